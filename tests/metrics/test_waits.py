"""Waiting told from transfer, by hand and against a count of every instant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laid_out import ClockOf, Job, lock_step

import tracekit
from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import communicator_sizes, rank_collectives
from tracekit.metrics.together import put_together
from tracekit.options import Options
from tracekit.timeline import NONE


def waits_of(timeline, window=(-(2**61), 2**61)):
    tracks = timeline.ranks
    covers = [Covers.of(track.ops) for track in tracks]
    sizes = communicator_sizes(timeline)
    found = [rank_collectives(timeline, t, c, window, sizes) for t, c in zip(tracks, covers, strict=True)]
    return put_together(timeline, tracks, found, covers, DEFAULT, align=True).waits


def started(job, op="all_reduce"):
    """A collective ahead of those that a test is about: the first one of a capture does not count."""
    job.collective(op, dict.fromkeys(range(job.ranks), 1_000), end=2_000)
    return job


def test_by_hand():
    """GIVEN arrivals at 10, 40 and 25 us and an end at 60, THEN the last one does not wait and the transfer is 20."""
    job = started(Job(3))
    job.collective("all_reduce", {0: 10_000, 1: 40_000, 2: 25_000}, end=60_000)
    waits = waits_of(job.timeline())
    assert [w.wait.tolist() for w in waits] == [[0, 30_000], [0, 0], [0, 15_000]]
    assert [w.exposed_wait.tolist() for w in waits] == [[0, 30_000], [0, 0], [0, 15_000]]
    assert [w.start_up.tolist() for w in waits] == [[True, False]] * 3


def test_no_clock_is_needed():
    """Two captures, too few collectives to align them: durations tell the same."""
    job = started(Job(2, [0, 1], {1: ClockOf(5_000_000_000, 50e-6)}))
    job.collective("all_gather", {0: 10_000, 1: 40_000}, end=60_000)
    job.collective("all_gather", {0: 80_000, 1: 70_000}, end=90_000)
    told = [w.wait[1:].tolist() for w in waits_of(job.timeline())]
    assert told[0] == pytest.approx([30_000, 0], abs=4)
    assert told[1] == pytest.approx([0, 10_000], abs=4)


@pytest.mark.parametrize("op", ["broadcast", "send_recv"])
def test_who_roots_or_sends_does_not_wait_for_the_others(op):
    job = started(Job(2))
    job.collective(op, {0: 10_000, 1: 40_000}, end=60_000)
    assert [w.wait.tolist() for w in waits_of(job.timeline())] == [[0, NONE]] * 2


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ops_that_all_leave_together(op):
    job = started(Job(2))
    job.collective(op, {0: 10_000, 1: 40_000}, end=60_000)
    assert [w.wait[1] for w in waits_of(job.timeline())] == [30_000, 0]


def test_a_collective_that_one_rank_did_not_capture_tells_nothing():
    job = started(Job(2))
    job.collective("all_reduce", {0: 10_000, 1: 40_000}, end=60_000)
    job.collective("all_reduce", {0: 110_000, 1: 140_000}, end=160_000)
    waits = waits_of(job.timeline(drop=lambda rank, row: (rank, row) == (1, 1)))
    assert [w.wait.tolist() for w in waits] == [[0, NONE, 30_000], [0, 0]]


def test_one_rank_alone_tells_nothing():
    job = started(Job(1))
    assert waits_of(job.timeline())[0].wait.tolist() == [NONE]


def test_the_first_collective_of_any_members_capture_is_start_up_for_all():
    """GIVEN a rank whose capture begins two collectives later, THEN that one counts for start-up on both."""
    job = Job(2)
    for k in range(4):
        job.collective("all_reduce", {0: 100_000 * k, 1: 100_000 * k + 20_000}, end=100_000 * k + 70_000)
    waits = waits_of(job.timeline(drop=lambda rank, row: rank == 1 and row < 2))
    assert waits[0].start_up.tolist() == [False, False, True, False]
    assert waits[1].start_up.tolist() == [True, False]
    # What rank 0 alone captured is not told; start-up is told and kept apart.
    assert waits[0].wait.tolist() == [NONE, NONE, 20_000, 20_000]
    assert waits[0].exposed_wait.tolist() == [0, 0, 0, 20_000]
    assert (waits[0].starting.start.tolist(), waits[0].starting.end.tolist()) == ([200_000], [270_000])


def test_only_the_first_collective_of_a_capture_is_start_up_not_that_of_each_communicator():
    job = Job(2)
    for number in (1, 2, 3):
        job.communicator(number, [0, 1])
        start = number * 100_000
        job.collective("all_reduce", {0: start, 1: start + 9_000}, end=start + 50_000, communicator=number)
    assert [w.start_up.tolist() for w in waits_of(job.timeline())] == [[True, False, False]] * 2


def test_compute_hides_waiting():
    """Of a wait from 10 to 40 us compute hides 5 to 22 and 35 to 50: 13 us are exposed."""
    job = started(Job(2))
    job.compute(0, 5_000, 22_000)
    job.compute(0, 35_000, 50_000)
    job.collective("all_reduce", {0: 10_000, 1: 40_000}, end=60_000)
    waits = waits_of(job.timeline())
    assert (waits[0].wait[1], waits[0].exposed_wait[1]) == (30_000, 13_000)
    assert (waits[0].peer_wait.start.tolist(), waits[0].peer_wait.end.tolist()) == ([22_000], [35_000])


def test_an_instant_of_two_waits_counts_once():
    job = started(Job(2))
    job.communicator(5, [0, 1])
    job.collective("all_reduce", {0: 10_000, 1: 40_000}, end=60_000)
    job.collective("all_gather", {0: 20_000, 1: 70_000}, end=90_000, communicator=5, stream=33)
    waits = waits_of(job.timeline())
    assert waits[0].wait.tolist() == [0, 30_000, 50_000]
    assert waits[0].exposed_wait.tolist() == [0, 30_000, 30_000]  # 40 to 70
    assert (waits[0].peer_wait.start.tolist(), waits[0].peer_wait.end.tolist()) == ([10_000], [70_000])


def test_waiting_beside_a_transfer_is_waiting():
    """Peer wait goes before transfer: GIVEN a long transfer from 10 us on and a wait from 20 to 50 beside it."""
    job = started(Job(2))
    job.communicator(5, [0, 1])
    job.collective("all_reduce", {0: 10_000, 1: 10_000}, end=90_000)
    job.collective("all_gather", {0: 20_000, 1: 50_000}, end=80_000, communicator=5, stream=33)
    waits = waits_of(job.timeline())
    assert waits[0].exposed_wait.tolist() == [0, 0, 30_000]
    assert waits[0].peer_wait.start.tolist() == [20_000]


def test_waits_are_cut_to_the_window():
    job = started(Job(2))
    job.compute(0, 2_000, 3_000)
    job.collective("all_reduce", {0: 10_000, 1: 40_000}, end=60_000)
    (cut, _) = waits_of(job.timeline(), window=(22_000, 50_000))
    assert (cut.peer_wait.end - cut.peer_wait.start).sum() == 18_000


STEP = 2_000_000


@st.composite
def jobs(draw):
    """Some ranks with collectives of two communicators that may overlap, and compute anywhere, in a few steps."""
    ranks = draw(st.integers(2, 3))
    job = Job(ranks)
    made = []
    ends = set()
    steps = draw(st.integers(1, 3))
    for step in range(steps):
        low = 1_000_000 + step * STEP
        for rank in range(ranks):
            job.range(rank, "step", low - 200_000, low + STEP - 200_001, value=step)
            job.compute(rank, low, low + draw(st.integers(1, 40)))
            for _ in range(draw(st.integers(0, 3))):
                start = low + draw(st.integers(0, 300))
                job.compute(rank, start, start + draw(st.integers(1, 120)))
        for _ in range(draw(st.integers(1, 4))):
            number = draw(st.integers(1, 2))
            arrivals = {rank: low + draw(st.integers(50, 260)) for rank in range(ranks)}
            end = max(arrivals.values()) + draw(st.integers(1, 90))
            while end in ends:
                end += 1
            ends.add(end)
            op = draw(st.sampled_from(["all_reduce", "all_reduce", "broadcast"]))
            job.collective(op, arrivals, end, communicator=number, stream=20 + number, size=8)
            made.append((op, arrivals, end))
    return job, made


def causes_by_instant(job, made, rank, first, last):
    """The cause of every exposed instant of a rank's window, counted one by one."""
    begins = [min(made, key=lambda m: (m[1][r], m[2])) for r in range(job.ranks)]
    computing = [(op.start, op.end) for op in job.ops[rank] if op.name == "gemm"]
    found = {}
    for t in range(first, last):
        here = [m for m in made if m[1][rank] <= t < m[2]]
        if not here or any(start <= t < end for start, end in computing):
            continue
        cause = "unknown"
        if any(m in begins and m[0] == "all_reduce" for m in here):
            cause = "start_up"
        elif any(t < max(m[1].values()) and m[0] == "all_reduce" for m in here):
            cause = "peer_wait"
        found[cause] = found.get(cause, 0) + 1
    return found


@given(jobs())
@settings(max_examples=60)
def test_every_exposed_nanosecond_has_its_cause(drawn):
    job, made = drawn
    analysis = tracekit.analyze(job.timeline(), Options(rules=False))
    for rank in analysis.ranks:
        assert rank.steps
        for step in rank.steps:
            assert sum(step.exposed_comm_by_cause.values()) == step.account.exposed_comm_ns
            low = 1_000_000 + step.step * STEP
            assert step.start_ns == low  # nothing of a step reaches beyond 1 us after its start
            told = dict.fromkeys(("start_up", "peer_wait", "unknown"), 0)
            for cause, ns in step.exposed_comm_by_cause.items():
                told[cause if cause in told else "unknown"] += ns  # why data moves when it does is another matter
            assert told == dict.fromkeys(told, 0) | causes_by_instant(job, made, rank.rank, low, low + 1_000)


def test_causes_of_steps_by_hand():
    """Four ranks in lock step; rank 3 computes 300 us longer in each of 5 layers: its peers wait 1.5 ms a step."""
    job = Job(4)
    lock_step(job, compute=lambda rank, *_: 900_000 if rank == 3 else 600_000)
    analysis = tracekit.analyze(job.timeline())
    for rank in analysis.ranks:
        for step in rank.steps[1:]:
            assert step.exposed_comm_by_cause.get("peer_wait", 0) == (0 if rank.rank == 3 else 5 * 300_000)
            assert "start_up" not in step.exposed_comm_by_cause
        first = rank.steps[0].exposed_comm_by_cause
        assert first["start_up"] == (100_000 if rank.rank == 3 else 400_000)
        assert first.get("peer_wait", 0) == (0 if rank.rank == 3 else 4 * 300_000)


@pytest.mark.parametrize("communicator", [None, 3])
def test_peer_wait_in_the_table_of_collectives(communicator):
    """Start-up aside, the sum over ranks is 3 x 300 us in each of 39 collectives; the transfer is that of the last."""
    job = Job(4)
    if communicator:
        job.communicator(communicator, range(4))
    lock_step(job, compute=lambda rank, *_: 900_000 if rank == 3 else 600_000, communicator=communicator)
    (row,) = tracekit.analyze(job.timeline()).collectives
    assert (row.peer_wait_ns, row.count) == (39 * 3 * 300_000, 40)
    assert row.transfer_ns == 100_000 + 37 * 20  # the layout adds 37 ns each time; the median of 1 to 39
