from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import COMM_STREAM, COMPUTE_STREAM, MS, Job, by_hand, make_analysis, make_timeline, simulate
from hypothesis import given
from hypothesis import strategies as st

from tracekit.report.causes import FAMILIES
from tracekit.report.payload import columns, header, varints
from tracekit.report.picture import bubble_rows, picture, stream_rows
from tracekit.report.scene import MAX_RANKS, MAX_STREAMS, RankScene, Scene, make_scene
from tracekit.report.summary import summarise
from tracekit.results import Analysis, Clock
from tracekit.timeline import Kind


def scene_of(job: Job, analysis: Analysis | None = None, **options: Any) -> Scene:
    analysis = analysis or make_analysis(job)
    scene = make_scene(analysis, make_timeline(job), summarise(analysis), **options)
    assert scene
    return scene


def time_by_family(rank: RankScene) -> dict[str, int]:
    lengths = np.diff(rank.edges)
    return {f.key: int(lengths[rank.families == code].sum()) for code, f in enumerate(FAMILIES)}


def test_ledger_counted_by_hand() -> None:
    # Step 1 starts at 100 ms: compute 0-60, communication alone 60-90, the copy alone 90-93, nothing to 100.
    scene = scene_of(by_hand())
    assert (scene.step, scene.span_ns) == (1, 100 * MS)
    first = scene.ranks[0]
    assert [int(e) // MS for e in first.edges] == [0, 60, 90, 93, 100]
    assert [FAMILIES[f].key for f in first.families] == ["compute", "comm", "copy", "idle"]
    compute = next(lane for lane in first.lanes if lane.stream == COMPUTE_STREAM)
    assert (compute.start.tolist(), compute.end.tolist(), compute.busy_ns) == ([0], [60 * MS], 60 * MS)


def test_ledger_adds_up_to_the_account_of_the_step() -> None:
    job = simulate()
    analysis = make_analysis(job)
    scene = scene_of(job, analysis)
    for rank, shown in zip(analysis.ranks, scene.ranks, strict=True):
        account = next(step.account for step in rank.steps if step.step == scene.step)
        assert shown.exact
        assert shown.end - shown.start == account.wall_ns
        assert time_by_family(shown) == {
            "compute": account.compute_ns,
            "comm": account.exposed_comm_ns,
            "copy": account.exposed_copy_ns,
            "idle": account.idle_ns,
            "wait": 0,
            "order": 0,
            "host": 0,
        }


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
    assert (scene.step, scene.span_ns, scene.events) == (None, 300 * MS, 18)


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

    exact = with_offset(shift)
    assert (exact.aligned, exact.ranks[1].start, exact.span_ns) == (True, 0, 100 * MS)
    late = with_offset(shift - 3 * MS)
    assert (late.aligned, late.ranks[1].start, late.span_ns) == (True, 3 * MS, 103 * MS)
    # A coarse clock that is off by more than a step would leave no two ranks side by side.
    astray = with_offset(shift - 101 * MS)
    assert (astray.aligned, astray.ranks[1].start, astray.span_ns) == (False, 0, 100 * MS)
    # So may clocks that were left as they are.
    raw = with_offset(0, "not_aligned")
    assert (raw.aligned, raw.ranks[1].start, raw.span_ns) == (False, 0, 100 * MS)
    unknown = with_offset(None, None)
    assert (unknown.aligned, unknown.ranks[0].start, unknown.ranks[1].start, unknown.span_ns) == (False, 0, 0, 100 * MS)


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
    assert scene.ranks[1].start == pytest.approx(straight.ranks[1].start, abs=20)
    assert scene.ranks[1].end == pytest.approx(straight.ranks[1].end, abs=20)
    assert scene.ranks[1].edges == pytest.approx(straight.ranks[1].edges, abs=20)
    for lane, expected in zip(scene.ranks[1].lanes, straight.ranks[1].lanes, strict=True):
        assert lane.start == pytest.approx(expected.start, abs=20)
        assert lane.end == pytest.approx(expected.end, abs=20)


def job_start(job: Job) -> int:
    return min(op[0] for op in job.ops[1])


def test_beyond_the_limit_the_longest_stay_and_the_rest_is_occupancy() -> None:
    job = Job([[]], [[0]], [1_000_000])
    job.ops[0] = [(i * 1000, i * 1000 + 400, COMPUTE_STREAM, Kind.COMPUTE, "short") for i in range(1000)]
    job.ops[0][500] = (500_000, 500_900, COMPUTE_STREAM, Kind.COMPUTE, "long")
    scene = scene_of(job, make_analysis(job, steps=False), max_events=10)
    (lane,) = scene.ranks[0].lanes
    assert (scene.events, scene.events_as_occupancy) == (1, 999)
    assert (lane.start.tolist(), lane.end.tolist(), lane.count) == ([500_000], [500_900], 1000)
    assert lane.occupancy is not None
    # 999 operations of 400 ns in 999,400 ns: 40 % on the whole
    assert lane.occupancy.mean() / 255 == pytest.approx(0.4, abs=0.01)


def test_a_long_ledger_becomes_slices_of_what_has_most_time() -> None:
    job = Job([[]], [[0]], [2_000_000])
    # 1 µs periods: in the first half compute takes 60 %, in the second 20 %.
    job.ops[0] = [
        (t, t + (600 if t < 1_000_000 else 200), COMPUTE_STREAM, Kind.COMPUTE, "k") for t in range(0, 2_000_000, 1000)
    ]
    job.ends = [2_000_000]
    analysis = make_analysis(job, steps=False)
    analysis = replace(analysis, ranks=(replace(analysis.ranks[0], end_ns=2_000_000),))
    rank = scene_of(job, analysis, max_events=100).ranks[0]
    assert (rank.exact, rank.slices) == (False, 512)
    assert [FAMILIES[f].key for f in rank.families] == ["compute", "idle"]
    assert int(rank.edges[1]) == pytest.approx(1_000_000, abs=4_000)
    assert (int(rank.edges[0]), int(rank.edges[-1])) == (0, 2_000_000)


def test_many_ranks_and_streams_are_limited_and_counted() -> None:
    scene = scene_of(simulate(ranks=40, steps=3, layers=2, slow_rank=35))
    assert (len(scene.ranks), scene.ranks_left_out) == (MAX_RANKS, 8)
    assert 35 in [rank.rank for rank in scene.ranks]
    job = Job([[(i, i + 10 * (i + 1), i, Kind.COMPUTE, "k") for i in range(30)]], [[0]], [400])
    rank = scene_of(job, make_analysis(job, steps=False)).ranks[0]
    assert (len(rank.lanes), rank.streams_left_out) == (MAX_STREAMS, 20)
    assert {lane.stream for lane in rank.lanes} == {7, *range(21, 30)}  # the main stream and the busiest


def test_no_rank_no_scene() -> None:
    analysis = make_analysis(by_hand())
    timeline = replace(make_timeline(by_hand()), ranks=())
    assert make_scene(analysis, timeline, summarise(analysis)) is None


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


def test_payload_reads_back() -> None:
    scene = scene_of(simulate())
    head = header(scene)
    numbers = decode(zlib.decompress(base64.b64decode(columns(scene))))

    def take(n: int) -> list[int]:
        return [next(numbers) for _ in range(n)]

    for described, rank in zip(head["ranks"], scene.ranks, strict=True):
        assert take(described["pieces"]) == np.diff(rank.edges).tolist()
        assert take(described["pieces"]) == rank.families.tolist()
        for lane_head, lane in zip(described["lanes"], rank.lanes, strict=True):
            starts = (lane_head["base"] + np.cumsum(take(lane_head["count"]))).tolist()
            assert starts == lane.start.tolist()
            assert take(lane_head["count"]) == (lane.end - lane.start).tolist()
            names = [head["names"][i][1] for i in take(lane_head["count"])]
            assert names == [scene.names[i] for i in lane.name]
            assert take(lane_head["count"]) == lane.event_kind.tolist()
    assert next(numbers, None) is None


def test_names_in_short_in_full_and_by_shade() -> None:
    names = header(scene_of(simulate()))["names"]
    assert ["all-gather", "ncclDevKernel_AllGather_RING_LL", "comm"] in names
    assert ["flash_fwd_kernel", "flash_fwd_kernel<Kernel_traits<128>>", "attention"] in names


def test_table_twin() -> None:
    scene = scene_of(by_hand())
    rows = {(row.rank, row.stream): row for row in stream_rows(scene)}
    assert len(rows) == 6
    comm = rows[0, COMM_STREAM]
    assert (comm.kind, comm.count, comm.busy, comm.share) == ("comm", 1, "40.0 ms", "40 %")
    first = bubble_rows(scene)[0]
    assert (first.rank, first.what, first.at, first.lasts) == (0, "exposed comm", "+60.0 ms", "30.0 ms")


def test_still_picture_is_to_scale() -> None:
    row = picture(scene_of(by_hand()))[0]
    paths = dict(row.paths)
    # 926 units for 100 ms, after a gutter of 74
    assert paths["compute"].startswith("M74.0 4h555.6v14")
    assert paths["comm"].startswith("M629.6 4h277.8v14")
