"""Groups of ranks where they leave collectives apart, as rings and trees of real jobs do; sends; clocks by both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from laid_out import LAUNCH_AHEAD, MS, US, ClockOf, Job

import tracekit
from tracekit.metrics.lost_payloads import joined_by_stream

EPOCH = 1_700_000_000_000_000_000


def clocks_of(captures, off=(0, 7_000_000_013, -3_000_000_007, 123_456_789), wall_error=700_000):
    """Clocks seconds apart, with wall clocks that are wrong by less than a millisecond each."""
    return {c: ClockOf(off[c], start_epoch_ns=EPOCH - off[c] + c * wall_error) for c in range(captures)}


def sharded(late_ns, late_at, *, captures=1, spread=12 * US, ranks=4, n=50, seed=1):
    """All-gathers and reduce-scatters that ranks leave ``spread`` apart; rank 0 comes ``late_ns`` late to some."""
    rng = np.random.default_rng(seed)
    capture_of = [0] * ranks if captures == 1 else list(range(ranks))
    job = Job(ranks, capture_of, clocks_of(captures) if captures > 1 else {})
    now = dict.fromkeys(range(ranks), MS)
    for k in range(n):
        for op, stream in (("all_gather", 20), ("reduce_scatter", 24))[: 1 + k % 2]:
            arrivals = {}
            for rank in range(ranks):
                end = now[rank] + 800 * US + int(rng.integers(0, 400 * US))
                job.compute(rank, now[rank] + 5 * US, end, name=f"gemm{k % 3}")
                late = late_ns if rank == 0 and k in late_at and op == "all_gather" else 0
                arrivals[rank] = end + 3 * US + late
            leave = max(arrivals.values()) + int(rng.integers(200, 900)) * US
            apart = {rank: int(rng.normal(0, spread)) for rank in range(ranks)}
            called = {r: t - (8 * US if r == 0 and k in late_at else LAUNCH_AHEAD) for r, t in arrivals.items()}
            job.collective(op, arrivals, leave, stream=stream, late_end=apart, called=called)
            now = {rank: leave + apart[rank] for rank in range(ranks)}
    return job


@pytest.mark.parametrize("captures", [1, 4])
@pytest.mark.parametrize("spread", [2 * US, 12 * US, 40 * US])
def test_ranks_that_leave_apart_are_matched_and_the_late_one_is_named(captures, spread):
    """GIVEN ends that differ by microseconds, far beyond the tick, and rank 0 seconds late; THEN it has the blame."""
    analysis = tracekit.analyze(sharded(900 * MS, range(5, 45, 5), captures=captures, spread=spread).timeline())
    (straggler,) = analysis.stragglers
    assert (straggler.rank, straggler.verdict) == (0, "persistent")
    gathers = next(c for c in analysis.collectives if c.op == "all_gather")
    truth = 8 * 900 * MS * 3
    assert truth <= gathers.peer_wait_ns <= 1.01 * truth
    exposed = sum(rank.totals.exposed_comm_ns for rank in analysis.ranks)
    named = sum(f.cost_ns or 0 for f in analysis.findings if f.ranks == (0,) and f.rule.startswith("TK2"))
    assert 4 * named >= 0.95 * exposed


def test_a_wait_is_from_the_own_arrival_to_the_last():
    """GIVEN rank 1 leaving 60 us before rank 0, THEN that is not held against anyone: arrivals say who waits."""
    job = Job(2)
    for k in range(12):
        at = MS + k * 2 * MS
        arrivals = {0: at, 1: at + (500 * US if k % 2 else 0)}
        job.collective("all_reduce", arrivals, at + 800 * US, late_end={0: 60 * US})
    (row,) = tracekit.analyze(job.timeline()).collectives
    assert row.peer_wait_ns == 6 * 500 * US
    assert row.transfer_ns == 300 * US  # six times rank 1 is last and takes this; five times both come at once


@pytest.mark.parametrize("late", [0, 30 * MS])
def test_two_groups_that_leave_at_different_times_stay_two(late):
    """Ranks 0-1 and 2-3 gather apart from each other, each a little ragged: nobody of one waits for the other."""
    job = Job(4)
    rng = np.random.default_rng(5)
    for first in (0, 2):
        now = MS + first * 100 * US
        for k in range(40):
            arrivals = {r: now + 300 * US + int(rng.integers(0, 200 * US)) for r in (first, first + 1)}
            if first and k == 10:
                arrivals[2] += late
            end = max(arrivals.values()) + 150 * US
            job.collective("all_gather", arrivals, end, late_end={first: int(rng.normal(0, 5 * US))})
            now = end + int(rng.integers(0, 300)) * US
    rows = tracekit.analyze(job.timeline())
    waits = rows.collectives[0].peer_wait_ns
    assert waits is not None
    assert late <= waits <= late + 4 * 40 * 200 * US


def mesh(seed=2):
    """Two tensor-parallel pairs, two data-parallel pairs, one report a rank, nobody names a communicator."""
    rng = np.random.default_rng(seed)
    job = Job(4, [0, 1, 2, 3], clocks_of(4))
    now = dict.fromkeys(range(4), MS)
    for _ in range(12):
        for _layer in range(6):
            for pair in ((0, 1), (2, 3)):
                arrivals = {r: now[r] + 500 * US + int(rng.normal(0, 3 * US)) for r in pair}
                end = max(arrivals.values()) + 170 * US
                job.collective("all_reduce", arrivals, end, stream=32)
                now |= dict.fromkeys(pair, end)
        for pair in ((0, 2), (1, 3)):
            arrivals = {r: now[r] + 20 * US for r in pair}
            end = max(arrivals.values()) + 400 * US + int(rng.normal(0, 2 * US))
            job.collective("reduce_scatter", arrivals, end, stream=24)
            now |= dict.fromkeys(pair, end)
    return job


def test_clocks_of_a_mesh_of_groups_without_names():
    """GIVEN ranks 0 and 3, which share no communicator, THEN they are aligned by way of the others, and to the ns."""
    analysis = tracekit.analyze(mesh().timeline())
    for rank, clock in zip(analysis.ranks, clocks_of(4).values(), strict=True):
        assert rank.clock.offset_ns == clock.offset_ns
    assert {f.rule for f in analysis.findings} & {"TK904", "TK908"} == set()


def pipeline(slow=1.0, *, captures=1, stages=2, chains=2, micro=6, steps=5, wall_error=700_000):
    """Two pipelines of two stages: forward sends, backward sends; stages reduce among themselves at the step's end."""
    job = Job(stages * chains, [r // chains if captures > 1 else 0 for r in range(stages * chains)])
    job.clocks = clocks_of(captures, wall_error=wall_error) if captures > 1 else {}
    rng = np.random.default_rng(3)
    now = dict.fromkeys(range(job.ranks), MS)

    def work(rank, ns):
        ns = int(ns * (slow if rank == 1 else 1.0)) + int(rng.integers(0, 4 * US))
        job.compute(rank, now[rank], now[rank] + ns)
        now[rank] += ns

    def send(a, b):
        end = max(now[a], now[b]) + 90 * US + int(rng.integers(0, 20 * US))
        job.collective("send_recv", {a: now[a], b: now[b]}, end, stream=34)
        now[a] = now[b] = end

    for step in range(steps):
        begin = dict(now)
        for _ in range(micro):
            for chain in range(chains):
                first, last = chain, chain + chains
                work(first, MS)
                send(first, last)
                work(last, 2 * MS)
                send(last, first)
                work(first, MS)
        for stage in range(stages):
            members = [stage * chains + chain for chain in range(chains)]
            end = max(now[r] for r in members) + 300 * US
            job.collective("reduce_scatter", {r: now[r] for r in members}, end, stream=24)
            now |= dict.fromkeys(members, end)
        for rank in range(job.ranks):
            job.range(rank, "step", begin[rank] - LAUNCH_AHEAD - 50, now[rank] - LAUNCH_AHEAD - 100, value=step)
    return job


@pytest.mark.parametrize("captures", [1, 2])
def test_sends_and_receives_are_matched_and_waits_are_told(captures):
    analysis = tracekit.analyze(pipeline(captures=captures).timeline())
    sends = next(c for c in analysis.collectives if c.op == "send_recv")
    # The second stage waits for each first send, the first stage for each send back.
    assert sends.peer_wait_ns == pytest.approx(2 * 5 * 6 * (2 + 2) * MS - 4 * MS, rel=0.1)
    assert analysis.stragglers == ()


def test_captures_that_share_sends_alone_are_aligned_by_them():
    """Stages on two hosts meet in no collective; each sends now here, now there, so that no lag fits."""
    analysis = tracekit.analyze(pipeline(captures=2).timeline())
    assert [rank.clock.offset_ns for rank in analysis.ranks] == pytest.approx(
        [0, 0, 7_000_000_013, 7_000_000_013], abs=500
    )


@pytest.mark.parametrize("captures", [1, 2])
def test_the_slow_rank_of_a_pipeline_is_named_and_not_who_waits_for_it(captures):
    analysis = tracekit.analyze(pipeline(1.3, captures=captures).timeline())
    (straggler,) = analysis.stragglers
    assert (straggler.rank, straggler.verdict, straggler.cause) == (1, "persistent", "slow_compute")
    # The second stage of its pipeline comes late with it: that is its doing too.
    assert straggler.caused_share > 0.95


def all_to_all(hot=0, n=30):
    """Every rank sends to every other; parts are unequal, so that ranks are done at different times."""
    job = Job(4)
    rng = np.random.default_rng(4)
    now = MS
    for _ in range(n):
        arrivals = {r: now + 400 * US + int(rng.integers(0, 10 * US)) + hot * (r == 2) for r in range(4)}
        for rank, arrival in arrivals.items():
            job.compute(rank, now, arrival)
        end = max(arrivals.values()) + 200 * US
        job.collective(
            "send_recv", arrivals, end, stream=34, late_end={r: int(rng.integers(0, 80 * US)) for r in range(4)}
        )
        now = end + 90 * US
    return job


def test_an_all_to_all_of_unequal_parts():
    analysis = tracekit.analyze(all_to_all(hot=300 * US).timeline())
    (row,) = analysis.collectives
    assert row.peer_wait_ns == pytest.approx(29 * 3 * 300 * US, rel=0.05)
    assert [s.rank for s in analysis.stragglers] == [2]
    assert tracekit.analyze(all_to_all().timeline()).stragglers == ()


SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
sys.path.insert(0, {here!r})
import tracekit
from tracekit.report.json import render_json
from test_groups import mesh, pipeline, sharded
for job in (mesh(), pipeline(1.3, captures=2), sharded(900_000_000, range(5, 45, 5), captures=4)):
    print(render_json(tracekit.analyze(job.timeline())))
"""


def test_the_same_input_gives_the_same_output_whatever_the_hash_seed():
    here = Path(__file__).parent
    script = SCRIPT.format(tests=str(here.parent), here=str(here))
    told = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        told.add(done.stdout)
    assert len(told) == 1
    assert json.loads(told.pop().splitlines()[0] or "{}") is not None


def test_operations_without_a_payload_join_those_of_their_stream():
    """By hand: stream 20 serves one communicator; stream 24 two, so that its nameless operation stays nameless."""
    groups = [("0xa", "all_gather"), (None, "all_gather"), ("0xb", "all_gather")]
    of = np.array([0, 1, 0, 0, 2, 1])
    stream = np.array([20, 20, 20, 24, 24, 24])
    told, joined, sources = joined_by_stream(groups, of, stream, {0: "nccl_payload"})
    assert [told[i] for i in joined.tolist()] == [
        ("0xa", "all_gather"),
        ("0xa", "all_gather"),
        ("0xa", "all_gather"),
        ("0xa", "all_gather"),
        ("0xb", "all_gather"),
        (None, "all_gather"),
    ]
    assert sources == {0: "nccl_payload"}
