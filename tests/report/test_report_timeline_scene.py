from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import (
    COMM_STREAM,
    COMPUTE_STREAM,
    MS,
    Job,
    by_hand,
    make_analysis,
    make_detail,
    make_timeline,
    simulate,
    some_findings,
)
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.views import Detail
from tracekit.report.summary import summarise
from tracekit.report.timeline.kept import HtmlDetail, Kept, telling_steps
from tracekit.report.timeline.lanes import LANE_KINDS, MAX_STREAMS, nesting
from tracekit.report.timeline.payload import LANE_COLUMNS, columns, differences, header, varints
from tracekit.report.timeline.picture import bubble_rows, picture, stream_rows
from tracekit.report.timeline.pieces import CAUSE_TABLE, COARSE, FAMILY_OF_CODE, coarse, crop
from tracekit.report.timeline.scene import RankScene, Scene, make_scene
from tracekit.results import Analysis, Clock, Span
from tracekit.timeline import Kind


def scene_of(job: Job, analysis: Analysis | None = None, **options: Any) -> Scene:
    analysis = analysis or make_analysis(job)
    timeline = make_timeline(job)
    scene = make_scene(analysis, timeline, make_detail(analysis, timeline), summarise(analysis), **options)
    assert scene
    return scene


def in_focus(scene: Scene, rank: RankScene) -> tuple[list[int], list[str]]:
    """Edges since the window shown first, and causes."""
    edges, codes = crop(rank.edges, rank.codes, *scene.focus)
    return [int(e) - scene.focus[0] for e in edges], [CAUSE_TABLE[c][2] for c in codes]


def test_ledger_counted_by_hand() -> None:
    # Step 1 starts at 100 ms: compute 0-60, communication alone 60-90, the copy alone 90-93, nothing to 100.
    scene = scene_of(by_hand())
    assert (scene.step, scene.focus, scene.span_ns) == (1, (100 * MS, 200 * MS), 300 * MS)
    first = scene.ranks[0]
    edges, causes = in_focus(scene, first)
    assert [e // MS for e in edges] == [0, 60, 90, 93, 100]
    assert causes == ["compute", "exposed communication", "exposed copy", "idle"]
    compute = next(lane for lane in first.lanes if lane.label == f"s{COMPUTE_STREAM}")
    assert compute.start.tolist() == [0, 100 * MS, 200 * MS]
    assert compute.busy_ns == 180 * MS


def test_ledger_adds_up_to_the_account_of_each_step() -> None:
    job = simulate()
    analysis = make_analysis(job)
    scene = scene_of(job, analysis)
    for rank, shown in zip(analysis.ranks, scene.ranks, strict=True):
        assert shown.exact
        for step, (number, start, end) in zip(rank.steps, shown.steps, strict=True):
            account = step.account
            edges, codes = crop(shown.edges, FAMILY_OF_CODE[shown.codes], start, end)
            time = np.bincount(codes, weights=np.diff(edges), minlength=7).astype(int).tolist()
            assert (step.step, end - start) == (number, account.wall_ns)
            # compute, wait, schedule, exposed comm, exposed copy, host, idle
            assert time[:7] == [
                account.compute_ns, 0, 0, account.exposed_comm_ns, account.exposed_copy_ns, 0, account.idle_ns
            ]  # fmt: skip


def test_the_median_step_is_shown() -> None:
    job = simulate(steps=6)
    analysis = make_analysis(job)
    walls = sorted(sum(r.steps[n].account.wall_ns for r in analysis.ranks) for n in range(1, 6))
    shown = scene_of(job, analysis).step
    assert shown is not None
    assert sum(r.steps[shown].account.wall_ns for r in analysis.ranks) == walls[2]


def test_without_steps_the_whole_window() -> None:
    job = by_hand()
    scene = scene_of(job, make_analysis(job, steps=False))
    assert (scene.step, scene.focus, scene.events) == (None, (0, 300 * MS), 18)


def test_ranks_are_put_on_one_clock() -> None:
    job = by_hand()
    shift = 7_000 * MS
    job.ops[1] = [(a + shift, b + shift, *rest) for a, b, *rest in job.ops[1]]  # type: ignore[misc]
    job.step_starts[1] = [t + shift for t in job.step_starts[1]]
    job.ends[1] += shift
    analysis = make_analysis(job)

    def with_offset(offset_ns: int | None, method: str | None = "session_start") -> Scene:
        clock = Clock(offset_ns=offset_ns, drift_ppm=None, uncertainty_ns=0, method=method)
        return scene_of(job, replace(analysis, ranks=(analysis.ranks[0], replace(analysis.ranks[1], clock=clock))))

    def first(scene: Scene) -> int:
        """How much later rank 1's first step begins than rank 0's."""
        return int(scene.ranks[1].edges[0] - scene.ranks[0].edges[0])

    exact = with_offset(shift)
    assert (exact.aligned, first(exact), exact.span_ns) == (True, 0, 300 * MS)
    late = with_offset(shift - 3 * MS)
    assert (late.aligned, first(late), late.span_ns) == (True, 3 * MS, 303 * MS)
    # A coarse clock that is off by more than a step would leave no two ranks side by side.
    astray = with_offset(shift - 101 * MS)
    assert (astray.aligned, first(astray), astray.span_ns) == (False, 0, 300 * MS)
    # So may clocks that were left as they are.
    raw = with_offset(0, "not_aligned")
    assert (raw.aligned, first(raw), raw.span_ns) == (False, 0, 300 * MS)
    unknown = with_offset(None, None)
    assert (unknown.aligned, first(unknown), unknown.span_ns) == (False, 0, 300 * MS)


def test_drift_is_taken_out() -> None:
    """GIVEN rank 1's clock 7 s ahead and 200 ppm fast, THEN after 100 ms it is 20 us off no more, at any instant."""
    job, shift, begin = by_hand(), 7_000 * MS, job_start(by_hand())

    def reads(t: int) -> int:
        return t + shift + (t - begin) // 5_000

    straight = scene_of(by_hand())
    job.ops[1] = [(reads(a), reads(b), *rest) for a, b, *rest in job.ops[1]]  # type: ignore[misc]
    job.step_starts[1] = [reads(t) for t in job.step_starts[1]]
    job.ends[1] = reads(job.ends[1])
    clock = Clock(offset_ns=shift, drift_ppm=200.0, uncertainty_ns=100, method="collectives", origin_ns=reads(begin))
    analysis = make_analysis(job)
    scene = scene_of(job, replace(analysis, ranks=(analysis.ranks[0], replace(analysis.ranks[1], clock=clock))))
    # 200 ppm of a clock that is itself 200 ppm fast: 4 ns in 100 ms.
    assert scene.ranks[1].edges == pytest.approx(straight.ranks[1].edges, abs=20)
    for lane, expected in zip(scene.ranks[1].lanes, straight.ranks[1].lanes, strict=True):
        assert lane.start == pytest.approx(expected.start, abs=20)
        assert lane.end == pytest.approx(expected.end, abs=20)


def job_start(job: Job) -> int:
    return min(op[0] for op in job.ops[1])


def test_without_steps_the_longest_stay_and_the_rest_is_occupancy() -> None:
    job = Job([[]], [[0]], [1_000_000])
    job.ops[0] = [(i * 1000, i * 1000 + 400, COMPUTE_STREAM, Kind.COMPUTE, "short") for i in range(1000)]
    job.ops[0][500] = (500_000, 500_900, COMPUTE_STREAM, Kind.COMPUTE, "long")
    scene = scene_of(job, make_analysis(job, steps=False), max_events=10)
    (lane,) = scene.ranks[0].lanes
    assert (scene.events, scene.events_as_occupancy, scene.kept) == (1, 999, Kept(shortest_ns=401))
    assert (lane.start.tolist(), lane.end.tolist(), lane.count) == ([500_000], [500_900], 1000)
    assert lane.occupancy is not None
    # 999 operations of 400 ns in 999,400 ns: 40 % on the whole
    assert lane.occupancy.mean() / 255 == pytest.approx(0.4, abs=0.01)


def test_beyond_the_limit_telling_steps_stay_whole() -> None:
    job = simulate(steps=6)
    span = Span(rank=0, step=5, start_ns=0, end_ns=1, cause="peer_wait")
    findings = tuple(replace(finding, span=span) for finding in some_findings())
    analysis = make_analysis(job, findings=findings)
    steps = telling_steps(analysis)
    assert steps[:2] == [scene_of(job).step, 5]
    # 16 collectives and 48 kernels on each of 4 ranks, with what reaches in from the steps beside it.
    scene = scene_of(job, analysis, max_events=4 * 70)
    assert scene.kept == Kept(steps=(steps[0],))
    window = {number: (start, end) for number, start, end in scene.ranks[0].steps}[steps[0]]
    for lane in scene.ranks[0].lanes:
        assert all(start < window[1] and end > window[0] for start, end in zip(lane.start, lane.end, strict=True))
    every = scene_of(job, analysis)
    assert scene.events + scene.events_as_occupancy == every.events == sum(len(ops) for ops in job.ops)
    assert scene_of(job, analysis, max_events=1, level=HtmlDetail.ALL).events == every.events
    assert scene_of(job, analysis, level=HtmlDetail.SUMMARY).events == 0


def test_slices_are_what_has_most_time() -> None:
    # 1 µs periods: in the first half code 0 takes 60 %, in the second 20 %.
    edges = np.arange(0, 2_000_001, 1000)
    inner = edges[:-1] + np.where(edges[:-1] < 1_000_000, 600, 200)
    every = np.sort(np.concatenate([edges, inner]))
    cut, codes = coarse(every, np.tile(np.array([0, 5], np.int8), 2000), 512)
    assert codes.tolist() == [0, 5]
    assert int(cut[1]) == pytest.approx(1_000_000, abs=4_000)
    assert (int(cut[0]), int(cut[-1])) == (0, 2_000_000)


def test_a_long_ledger_is_exact_in_kept_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job([[]], [[0, 1_000_000, 2_000_000]], [3_000_000])
    job.ops[0] = [(t, t + 600, COMPUTE_STREAM, Kind.COMPUTE, "k") for t in range(0, 3_000_000, 1000)]
    monkeypatch.setattr("tracekit.report.timeline.scene.MAX_PIECES", 3000)
    scene = scene_of(job, max_events=1500)
    (rank,) = scene.ranks
    assert scene.kept.steps == (scene.step,)
    exact = (rank.codes & COARSE) == 0
    lengths = np.diff(rank.edges)
    assert np.count_nonzero(exact) == 2000
    assert int(lengths[exact].sum()) == 1_000_000
    assert (int(rank.edges[0]), int(rank.edges[-1])) == (0, 3_000_000)
    assert len(rank.codes) < 3100


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30), st.lists(st.integers(0, 5), min_size=30), st.integers(1, 12)
)
def test_slices_lose_no_time(lengths: list[int], codes: list[int], pieces: int) -> None:
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    cut, found = coarse(edges, np.array(codes[: len(lengths)], np.int8), pieces)
    assert (cut[0], cut[-1], len(cut)) == (0, edges[-1], len(found) + 1)
    assert np.all(np.diff(cut) >= 0)


def test_many_ranks_are_all_there_and_streams_are_limited_and_counted() -> None:
    scene = scene_of(simulate(ranks=512, steps=3, layers=2, slow_rank=35))
    assert (len(scene.ranks), scene.ranks_left_out) == (512, 0)
    job = Job([[(i, i + 10 * (i + 1), i, Kind.COMPUTE, "k") for i in range(10_000)]], [[0]], [110_000])
    rank = scene_of(job, make_analysis(job, steps=False)).ranks[0]
    assert (len(rank.lanes), rank.streams_left_out) == (MAX_STREAMS, 9_990)
    # the main stream and the busiest
    assert {lane.label for lane in rank.lanes} == {"s7", *(f"s{s}" for s in range(9_991, 10_000))}


def test_nesting_of_ranges() -> None:
    # step [0, 100) with forward [10, 50) with a layer [20, 30) in it, then backward [50, 90); a second step.
    start, end = np.array([0, 10, 20, 50, 100]), np.array([100, 50, 30, 90, 200])
    assert nesting(start, end).tolist() == [0, 1, 2, 1, 0]


def test_no_operations_no_scene() -> None:
    analysis = make_analysis(by_hand())
    nothing = replace(make_timeline(by_hand()), ranks=())
    detail = Detail(views=(), matched=(), waits=())
    assert make_scene(replace(analysis, ranks=()), nothing, detail, summarise(analysis)) is None


def decode(data: bytes) -> Iterator[int]:
    """Read varints the plain way."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_varints(values: list[int]) -> None:
    assert list(decode(varints(np.array(values, np.int64)))) == values


def test_varints_of_known_bytes() -> None:
    assert varints(np.array([0, 1, 127, 128, 300], np.int64)) == bytes([0, 1, 127, 0x80, 1, 0xAC, 2])
    with pytest.raises(ValueError, match="negative"):
        varints(np.array([-1], np.int64))


def read_column(numbers: Iterator[int], n: int) -> list[int]:
    """A column the plain way, by what its first byte says."""
    mode = next(numbers)
    if mode == 0:
        return [next(numbers)] * n
    values = [next(numbers) for _ in range(n)]
    if mode == 1:
        return values
    assert mode == 2
    steps = [-(value + 1) // 2 if value % 2 else value // 2 for value in values]
    return list(itertools.accumulate(steps))


@given(st.lists(st.integers(-(2**50), 2**50), max_size=30))
def test_columns_of_differences(values: list[int]) -> None:
    assert read_column(decode(differences(np.array(values, np.int64))), len(values)) == values


@pytest.mark.parametrize("max_events", [10_000, 300])
def test_payload_reads_back(max_events: int) -> None:
    scene = scene_of(simulate(), max_events=max_events)
    head = header(scene)
    numbers = decode(zlib.decompress(base64.b64decode(columns(scene))))
    for described, rank in zip(head["ranks"], scene.ranks, strict=True):
        assert read_column(numbers, described["pieces"]) == np.diff(rank.edges).tolist()
        assert read_column(numbers, described["pieces"]) == rank.codes.tolist()
        steps = [read_column(numbers, described["steps"]) for _ in range(3)]
        assert [(n, s, s + length) for n, s, length in zip(*steps, strict=True)] == list(rank.steps)
        for lane_head, lane in zip(described["lanes"], rank.lanes, strict=True):
            count = lane_head["count"]
            starts = (lane_head["base"] + np.cumsum(read_column(numbers, count))).tolist()
            assert starts == lane.start.tolist()
            assert read_column(numbers, count) == (lane.end - lane.start).tolist()
            for name in LANE_COLUMNS[LANE_KINDS[lane.kind]]:
                assert read_column(numbers, count) == lane.columns[name].tolist()
            if lane_head["buckets"]:
                assert lane.occupancy is not None
                assert read_column(numbers, lane_head["buckets"]) == lane.occupancy.tolist()
    assert next(numbers, None) is None


def test_names_in_short_in_full_and_by_shade() -> None:
    names = header(scene_of(simulate()))["names"]
    assert ["all-gather", "ncclDevKernel_AllGather_RING_LL", "comm"] in names
    assert ["flash_fwd_kernel", "flash_fwd_kernel<Kernel_traits<128>>", "attention"] in names


def test_table_twin() -> None:
    scene = scene_of(by_hand())
    rows = {(row.rank, row.lane): row for row in stream_rows(scene)}
    assert len(rows) == 6
    comm = rows[0, f"s{COMM_STREAM}"]
    assert (comm.kind, comm.count, comm.busy, comm.share) == ("comm", 3, "120.0 ms", "40 %")
    first = bubble_rows(scene)[0]
    assert (first.rank, first.what, first.at, first.lasts) == (0, "exposed communication", "+60.0 ms", "30.0 ms")


def test_still_picture_is_to_scale() -> None:
    row = picture(scene_of(by_hand()))[0]
    paths = dict(row.paths)
    # 926 units for 100 ms, after a gutter of 74
    assert paths["compute"].startswith("M74.0 4h555.6v14")
    assert paths["comm"].startswith("M629.6 4h277.8v14")
