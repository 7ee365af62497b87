"""The Perfetto trace, read back by the published message definitions and held against the captures' own rows."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from handmade import AUTOGRAD, COMMS, COMPUTE, Sketch
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor
from perfetto_reader import ReadTrace, read_trace

import tracekit
from tracekit.analysis import examine
from tracekit.cli import main
from tracekit.errors import TracekitError
from tracekit.options import Options
from tracekit.report.perfetto.lanes import nested_rows
from tracekit.report.perfetto.trace import write_perfetto
from tracekit.timeline import Timeline

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
KERNELS = """SELECT k.start, k.end, k.streamId, n.value, k.globalPid >> 24 & 0xFFFFFF, k.correlationId
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds n ON n.id = k.demangledName"""
CALLS = """SELECT c.start, c.end, c.globalTid, n.value, c.globalTid >> 24 & 0xFFFFFF, c.correlationId
    FROM CUPTI_ACTIVITY_KIND_RUNTIME c JOIN StringIds n ON n.id = c.nameId"""


def traced(timeline: Timeline, path: Path, **options: Any) -> ReadTrace:
    chosen = Options(**options)
    analysis, detail = examine(timeline, chosen)
    assert detail is not None
    size = write_perfetto(analysis, timeline, detail, chosen, path)
    assert size == path.stat().st_size
    return read_trace(path)


def rows(capture: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{capture}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def expected(sample: str) -> dict[str, Any]:
    return json.loads((SAMPLES / f"{sample}.expected.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def straggler(tmp_path_factory: pytest.TempPathFactory) -> ReadTrace:
    timeline = tracekit.open(SAMPLES / "straggler_4ranks.sqlite")
    return traced(timeline, tmp_path_factory.mktemp("trace") / "straggler.pftrace.gz")


# --- what is in the capture is in the trace ---


def test_kernels_are_those_of_the_capture(straggler: ReadTrace) -> None:
    truth = expected("straggler_4ranks")["ranks"]
    rank_of = {facts["pid"]: rank for rank, facts in truth.items()}
    found = Counter(
        (s.track[1].split()[1], int(re.match(r"stream (\d+)", s.track[2])[1]), s.name, s.start, s.end)  # type: ignore[index]
        for s in straggler.slices
        if s.category in {"compute", "communication"}
    )
    there = rows(SAMPLES / "straggler_4ranks.sqlite", KERNELS)
    assert len(there) > 1000
    assert found == Counter((rank_of[pid], stream, name, a, b) for a, b, stream, name, pid, _ in there)


def test_calls_and_ranges_are_those_of_the_capture(straggler: ReadTrace) -> None:
    capture = SAMPLES / "straggler_4ranks.sqlite"
    calls = Counter((re.sub(r"_v\d+$", "", name), a, b) for a, b, _, name, _, _ in rows(capture, CALLS))
    assert Counter((s.name, s.start, s.end) for s in straggler.slices if s.category == "cuda") == calls
    ranges = rows(
        capture,
        """SELECT coalesce(r.text, n.value), r.start, r.end FROM NVTX_EVENTS r
        LEFT JOIN StringIds n ON n.id = r.textId WHERE r.eventType = 59""",
    )
    assert len(ranges) > 500
    assert Counter((s.name, s.start, s.end) for s in straggler.slices if s.category == "nvtx") == Counter(ranges)


def test_every_launch_has_an_arrow_to_its_kernel(straggler: ReadTrace) -> None:
    capture = SAMPLES / "straggler_4ranks.sqlite"
    call_of = {(pid, correlation): (a, b) for a, b, _, _, pid, correlation in rows(capture, CALLS)}
    there = Counter(
        (*call_of[pid, correlation], a, b)
        for a, b, _, _, pid, correlation in rows(capture, KERNELS)
        if (pid, correlation) in call_of
    )
    pairs = [own for own in straggler.arrows().values() if own[0].category == "cuda"]
    assert all(len(own) == 2 for own in pairs)
    found = Counter((a.start, a.end, b.start, b.end) for a, b in pairs if b.category != "copies")
    assert found == there


def test_an_arrow_runs_through_the_ranks_of_each_collective_to_the_last_that_arrives(straggler: ReadTrace) -> None:
    chains = {flow: own for flow, own in straggler.arrows().items() if own[0].category == "communication"}
    count = sum(each["count"] for each in expected("straggler_4ranks")["collectives"])
    assert len(chains) == count
    for flow, own in chains.items():
        assert {s.track[1].split()[1] for s in own} == {"0", "1", "2", "3"}
        assert len({(s.args["op"], s.args["communicator"], s.args["bytes"]) for s in own}) == 1
        assert max(s.end for s in own) - min(s.end for s in own) < 1000
        assert [flow in s.ending for s in own] == [False, False, False, True]
        told = [s.args.get("wait_ns") for s in own]
        assert all(s.args.get("start_up") for s in own) or told[-1] < 1000


def test_bus_bandwidth_is_bytes_over_the_shortest_duration(straggler: ReadTrace) -> None:
    chains = [own for own in straggler.arrows().values() if own[0].category == "communication"]
    told = [own for own in chains if "busbw_gbps" in own[0].args]
    assert len(told) > 50
    for own in told:
        shortest = min(s.end - s.start for s in own)
        for s in own:
            assert s.args["transfer_ns"] == shortest
            assert s.args["busbw_gbps"] == pytest.approx(s.args["bytes"] / shortest * 3 / 4)
            assert s.args["wait_ns"] == s.end - s.start - shortest
    for path, values in straggler.counters.items():
        if path[-1] == "bus bandwidth":
            assert min(value for _, value in values) == 0
            assert values[-1][1] == 0
            assert max(value for _, value in values) >= max(s.args["busbw_gbps"] for own in told for s in own)


def test_memory_is_what_the_layout_took(tmp_path: Path) -> None:
    trace = traced(tracekit.open(SAMPLES / "memory_churn.sqlite"), tmp_path / "churn.pftrace")
    found = {path[1].split()[1]: values for path, values in trace.counters.items() if path[-1] == "GPU memory"}
    for rank, facts in expected("memory_churn")["memory"].items():
        assert max(value for _, value in found[rank]) == pytest.approx(facts["peak_bytes"] / 1e9)
        assert len(found[rank]) > 20, "it goes up and down"


def test_steps_and_overlap_are_those_of_the_layout(straggler: ReadTrace) -> None:
    for rank, facts in expected("straggler_4ranks")["ranks"].items():
        there = [(f"step {s['step']}", s["start_ns"], s["end_ns"], s["overlap_ratio"]) for s in facts["steps"]]
        steps = straggler.on(f"rank {rank} ", "steps")
        assert [(s.name, s.start, s.end, pytest.approx(s.args["overlap_ratio"])) for s in steps] == there
        values = next(
            v for p, v in straggler.counters.items() if p[1].startswith(f"rank {rank} ") and "overlap" in p[2]
        )
        assert values == [(start, pytest.approx(ratio)) for _, start, _, ratio in there]


def test_bubbles_add_up_to_the_account_and_say_why(straggler: ReadTrace) -> None:
    kinds = {"exposed communication": "exposed_comm_ns", "exposed copy": "exposed_copy_ns", "idle": "idle_ns"}
    for rank, facts in expected("straggler_4ranks")["ranks"].items():
        found: Counter[tuple[int, str]] = Counter()
        for s in straggler.on(f"rank {rank} ", "exposed and idle"):
            assert s.depth == 0
            assert s.end is not None
            assert s.args["cause"] != "peer_wait" or s.name == "waiting for peers"
            assert (s.args["kind"] == "exposed communication") == ("communicator" in s.args)
            found[s.args["step"], kinds[s.args["kind"]]] += s.end - s.start
        there = {(s["step"], key): s[key] for s in facts["steps"] for key in kinds.values() if s[key]}
        assert found == there
    waits = Counter(s.track[1].split()[1] for s in straggler.slices if s.name == "waiting for peers")
    assert waits["2"] < min(waits[rank] for rank in "013")


def test_tracks_stand_in_order(straggler: ReadTrace) -> None:
    """GIVEN the descriptors, THEN groups order their children, siblings of one place have one name."""
    children: dict[int, dict[int, set[str]]] = {}
    for track in straggler.tracks.values():
        children.setdefault(track.parent_uuid, {}).setdefault(track.sibling_order_rank, set()).add(track.name)
        if track.HasField("parent_uuid"):
            assert straggler.tracks[track.parent_uuid].child_ordering == TrackDescriptor.EXPLICIT
    assert all(len(names) == 1 for places in children.values() for names in places.values())
    names = [places[place].pop() for places in [children[1]] for place in sorted(places)]
    assert [name.split(" · ")[0] for name in names] == ["findings", "rank 0", "rank 1", "rank 2", "rank 3"]


def test_findings_are_marks_where_their_first_step_begins(straggler: ReadTrace) -> None:
    mark = next(i for i in straggler.instants if i.name.startswith("TK201"))
    steps = {s.name: s for s in straggler.on("rank 2 ", "steps")}
    assert mark.start == steps[f"step {mark.args['steps'].split('-')[0]}"].start
    assert mark.args["ranks"] == "2"
    assert mark.args["severity"] == "error"
    assert mark.track[1:] == ("findings", mark.name)
    longest = next(s for s in straggler.slices if s.track == mark.track)
    bubbles = [(s.start, s.end) for s in straggler.on(f"rank {longest.args['rank']} ", "exposed") if "wait" in s.name]
    assert (longest.start, longest.end) in bubbles


# --- several captures, one clock ---


def test_all_captures_are_on_the_first_ones_clock_without_their_drift(tmp_path: Path) -> None:
    """GIVEN a report a rank, one clock 5 s off and 50 ppm fast, THEN kernels stand where the layout says, to 100 ns."""
    trace = traced(tracekit.open(SAMPLES / "straggler_ragged"), tmp_path / "ragged.pftrace")
    truth = expected("straggler_ragged")["ranks"]
    for rank, facts in truth.items():
        capture = SAMPLES / f"straggler_ragged/straggler_ragged.rank{rank}.sqlite"
        raw = np.array(sorted(row[:2] for row in rows(capture, KERNELS)), np.float64)
        drift = facts["drift_ppm"] / 1e6 * (raw - facts["clock_at_ns"])
        there = raw - facts["clock_offset_ns"] - drift
        found = np.array(
            sorted(
                (s.start, s.end)
                for s in trace.on(f"rank {rank} ", "stream")
                if s.category in {"compute", "communication"}
            )
        )
        assert found.shape == there.shape
        assert np.abs(found - there).max() < 100
    chains = [own for own in trace.arrows().values() if own[0].category == "communication"]
    assert max(max(s.end for s in own) - min(s.end for s in own) for own in chains) < 1000  # type: ignore[type-var, operator]


def test_instants_before_the_first_captures_zero_move_all(tmp_path: Path) -> None:
    """GIVEN work 1 ms before the zero of the first capture's clock, THEN it is at 0 and the rest as far from it."""
    job = Sketch()
    for capture, ahead in ((0, 0), (1, 2_000_000)):
        rank = job.process(capture=capture)
        for k in range(20):
            at = 1_500_000 + 100_000 * k + 3_000 * k * k + ahead  # uneven, or the clocks would fit at several places
            rank.comm(at, at + 50_000 + k % 3)
    job.processes[1].kernel(1_000_000, 1_010_000)
    trace = traced(job.timeline(), tmp_path / "early.pftrace")
    first = next(s for s in trace.slices if s.category == "compute")
    assert (first.start, first.end) == (0, 10_000)
    starts = [min(s.start for s in trace.on(f"rank {rank} ", f"stream {COMMS}")) for rank in (0, 1)]
    assert starts == [2_500_000, 2_500_000]


# --- what was asked for ---


def test_only_the_steps_that_were_asked_for(tmp_path: Path, straggler: ReadTrace) -> None:
    timeline = tracekit.open(SAMPLES / "straggler_4ranks.sqlite")
    options = {"steps": frozenset({202, 204}), "ranks": frozenset({1, 2})}
    trace = traced(timeline, tmp_path / "steps.pftrace", **options)
    assert {s.name for s in trace.on("rank", "steps")} == {"step 202", "step 204"}
    assert {s.track[1].split()[1] for s in trace.on("rank")} == {"1", "2"}
    for rank in "12":
        windows = [(s.start, s.end) for s in straggler.on(f"rank {rank} ", "steps") if s.name[-1] in "24"]
        all_of_it = straggler.on(f"rank {rank} ", "stream")
        there = {(s.name, s.start, s.end) for s in all_of_it if any(s.start < b and s.end > a for a, b in windows)}
        assert {(s.name, s.start, s.end) for s in trace.on(f"rank {rank} ", "stream")} == there
        assert {s.args["step"] for s in trace.on(f"rank {rank} ", "exposed")} == {202, 204}
    launched = [own for own in trace.arrows().values() if own[0].category == "cuda"]
    assert len(launched) > 100


def test_ranges_are_cut_to_the_window_and_say_how_long_they_are(tmp_path: Path) -> None:
    job = Sketch()
    rank = job.process()
    rank.range("epoch", 0, 10_000)
    for start in range(1000, 9000, 1000):
        rank.kernel(start, start + 500, called=start - 200)
    trace = traced(job.timeline(), tmp_path / "window.pftrace", window=(3000, 5000))
    assert [(s.start, s.end) for s in trace.on("rank 0", "stream")] == [(3000, 3500), (4000, 4500)]
    epoch = next(s for s in trace.slices if s.name == "epoch")
    assert (epoch.start, epoch.end, epoch.args["whole_ns"]) == (2800, 5000, 10_000)
    assert [s.start for s in trace.slices if s.category == "cuda"] == [2800, 3800, 4800]


# --- rows that do not nest ---


def test_overlapping_operations_and_crossing_ranges_share_a_track_by_name(tmp_path: Path) -> None:
    job = Sketch()
    rank = job.process()
    rank.range("a", 0, 60)
    rank.range("b", 30, 90)
    rank.range("c", 30, 50)
    rank.range("on autograd", 40, 80, thread=AUTOGRAD)
    rank.kernel(100, 200, name="first")
    rank.kernel(150, 250, name="second")
    rank.kernel(150, 150, name="nothing")
    rank.kernel(200, 300, name="third")
    trace = traced(job.timeline(), tmp_path / "crossing.pftrace")
    stream = trace.on("rank 0", f"stream {COMPUTE}")
    assert {(s.name, s.start, s.end) for s in stream} == {
        ("first", 100, 200),
        ("second", 150, 250),
        ("nothing", 150, 150),
        ("third", 200, 300),
    }
    assert {s.track for s in stream} == {stream[0].track}
    assert {(s.name, s.start, s.end, s.depth) for s in trace.slices if s.category == "nvtx"} == {
        ("a", 0, 60, 0),
        ("b", 30, 90, 0),
        ("c", 30, 50, 1),
        ("on autograd", 40, 80, 0),
    }


def test_ranks_of_one_process_share_its_host_threads(tmp_path: Path) -> None:
    """GIVEN one process with two GPUs, THEN its calls are drawn once and reach kernels of both."""
    job = Sketch()
    process = job.process()
    process.kernel(100, 200, called=10, device=0)
    process.kernel(120, 220, called=20, device=1)
    trace = traced(job.timeline(), tmp_path / "shared.pftrace")
    assert len([s for s in trace.slices if s.category == "cuda"]) == 2
    reached = [(own[0].start, own[1].track[1].split()[1]) for own in trace.arrows().values()]
    assert sorted(reached) == [(10, "0"), (20, "1")]


def test_a_launch_after_its_own_kernel_has_no_arrow(tmp_path: Path) -> None:
    job = Sketch()
    job.process().kernel(100, 200, called=150)
    assert traced(job.timeline(), tmp_path / "late.pftrace").arrows() == {}


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)


@given(intervals)
def test_rows_nest_whatever_overlaps(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs], np.int64)
    end = start + np.array([n for _, n in pairs], np.int64)
    found = nested_rows(start, end)
    assert sorted(i for row in found for i in row.tolist()) == list(range(len(pairs)))
    for row in found:
        own = [(int(start[i]), int(end[i])) for i in row]
        assert own == sorted(own, key=lambda each: (each[0], -each[1]))
        for i, (_, b) in enumerate(own):
            for c, d in own[i + 1 :]:
                assert b <= c or d <= b, "neither apart nor one inside the other"


def test_a_million_crossing_intervals_take_no_square(tmp_path: Path) -> None:
    count = 200_000
    start = np.arange(count)
    found = nested_rows(start, start + 50)
    assert sum(map(len, found)) == count
    assert len(found) <= 51


# --- names and files ---


def test_names_stay_as_they_are_and_short(tmp_path: Path) -> None:
    names = ["</script><b>", "名前 🙂", "x" * 100_000, "tab\tescape\x1b[31m", "lone \udcff surrogate"]
    job = Sketch()
    rank = job.process()
    for i, name in enumerate(names):
        rank.kernel(100 * i, 100 * i + 50, name=name)
    found = [s.name for s in traced(job.timeline(), tmp_path / "names.pftrace").on("rank", "stream")]
    assert found[:2] == names[:2]
    assert found[2] == "x" * 999 + "…"
    assert found[3:] == ["tab\ufffdescape\ufffd[31m", "lone \ufffd surrogate"]


def test_one_event_of_no_length(tmp_path: Path) -> None:
    job = Sketch()
    job.process().kernel(7, 7)
    trace = traced(job.timeline(), tmp_path / "one.pftrace", rules=False)
    assert [(s.start, s.end) for s in trace.slices] == [(7, 7)]


def test_ten_thousand_streams(tmp_path: Path) -> None:
    job = Sketch()
    rank = job.process()
    for stream in range(10_000):
        rank.kernel(stream, stream + 5, stream=stream)
    trace = traced(job.timeline(), tmp_path / "streams.pftrace", rules=False)
    assert len({s.track for s in trace.on("rank 0", "stream")}) == 10_000


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    job = Sketch()
    job.process().kernel(0, 10)
    path = tmp_path / "trace.pftrace.gz"
    path.write_text("before")

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TracekitError if isinstance(failure, OSError) else KeyboardInterrupt):
        traced(job.timeline(), path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    timeline = tracekit.open(SAMPLES / "fsdp2_nsys_2022.sqlite")
    for name in ("a.pftrace.gz", "b.pftrace.gz"):
        traced(timeline, tmp_path / name)
    assert (tmp_path / "a.pftrace.gz").read_bytes() == (tmp_path / "b.pftrace.gz").read_bytes()


@pytest.mark.parametrize(
    "sample", ["fsdp2_cuda_graph.sqlite", "slow_link", "offload.sqlite", "hang_missing_rank.sqlite"]
)
def test_other_samples_can_be_read_back(sample: str, tmp_path: Path) -> None:
    trace = traced(tracekit.open(SAMPLES / sample), tmp_path / "trace.pftrace")
    assert len(trace.slices) > 100


def test_the_command_writes_it_beside_its_other_outputs(tmp_path: Path) -> None:
    capture, trace, results = SAMPLES / "ddp.sqlite", tmp_path / "trace.pftrace.gz", tmp_path / "ddp.json"
    said = CliRunner().invoke(
        main, ["analyze", str(capture), "--perfetto", str(trace), "--json", str(results), "--ranks", "1"]
    )
    assert said.exit_code == 0, said.output
    assert f"Wrote {trace} (" in said.stdout
    assert results.exists()
    assert {s.track[1].split()[1] for s in read_trace(trace).on("rank")} == {"1"}
