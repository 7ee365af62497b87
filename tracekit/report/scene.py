"""What the timeline shows: one step of every rank (without steps the whole window), as columns on one clock.

Events beyond a limit are kept as occupancy, ranks and streams beyond a limit are left out, and each of these is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover, gaps, subtract, union
from tracekit.report.causes import FAMILIES
from tracekit.report.summary import BARS_SHOWN, Summary
from tracekit.results import Analysis, Rank, Step
from tracekit.timeline import Int8, Int32, Int64, Kind, Ops, Timeline

MAX_EVENTS = 200_000
"""Events and ledger pieces that are kept one by one."""
MAX_RANKS = 32
MAX_STREAMS = 10
OCCUPANCY_BUCKETS = 2048
_MIN_PIECES = 512
"""Slices of a rank's ledger, however many ranks share the limit."""

FAMILY_CODE = {family.key: code for code, family in enumerate(FAMILIES)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """One stream. Times in ns since the scene's start; (n,) columns sorted by start."""

    stream: int
    kind: Kind
    """The kind with most time on this stream."""
    start: Int64
    end: Int64
    name: Int64
    """Index into `Scene.names`."""
    event_kind: Int8
    busy_ns: int
    count: int
    """Operations in the window, whether kept one by one or as occupancy."""
    occupancy: NDArray[np.uint8] | None
    """Share of time (0 to 255) in which operations not kept one by one run, by bucket over the scene; None if none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankScene:
    """One rank: the ledger, which tiles its window, and its streams."""

    rank: int
    start: int
    end: int
    edges: Int64
    """(n + 1,) boundaries of the ledger's pieces."""
    families: Int8
    """(n,) index into `FAMILIES` of each piece."""
    slices: int | None
    """None where the ledger is exact; else into how many equal slices it was cut, each shown as its largest part."""
    lanes: tuple[Lane, ...]
    streams_left_out: int

    @property
    def exact(self) -> bool:
        """Whether every piece of the ledger is as it was measured."""
        return self.slices is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """What the timeline shows, and what it leaves out."""

    step: int | None
    span_ns: int
    aligned: bool
    """Whether all ranks are on one clock; otherwise each starts at its own window."""
    ranks: tuple[RankScene, ...]
    ranks_left_out: int
    names: tuple[str, ...]
    events: int
    """Events that are kept one by one."""
    events_as_occupancy: int


@dataclass(frozen=True, slots=True)
class _Window:
    """A rank's window on its capture's clock, and how to get from there to the common one."""

    rank: Rank
    start: int
    end: int
    offset: int
    drift: float = 0.0
    """Dimensionless, counted from ``since``."""
    since: int = 0

    def common(self, t: Int64) -> Int64:
        """Instants on the common clock, ns."""
        drifted: Int64 = np.rint(self.drift * (t - self.since)).astype(np.int64)
        return t - self.offset - drifted

    @property
    def span(self) -> tuple[int, int]:
        """The window on the common clock."""
        start, end = self.common(np.array([self.start, self.end], np.int64)).tolist()
        return start, end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What all ranks of the scene share."""

    origin: int
    span: int
    shortest: int
    """Length in ns from which operations are kept one by one."""
    names: Int32
    """Sorted indices into `Timeline.names`."""
    max_pieces: int


def make_scene(analysis: Analysis, timeline: Timeline, summary: Summary, max_events: int = MAX_EVENTS) -> Scene | None:
    """Choose the window and lay it out; None where no rank has operations in it."""
    step = _median_step(analysis)
    windows, aligned = _windows(analysis, step)
    ops_of = {track.rank: track.ops for track in timeline.ranks}
    windows = [window for window in windows if window.rank.rank in ops_of]
    shown = _choose(windows, summary)
    if not shown:
        return None
    origin = min(window.span[0] for window in shown)
    span = max(1, max(window.span[1] for window in shown) - origin)
    selected = [_in_window(ops_of[window.rank.rank], window) for window in shown]
    frame = _Frame(
        origin=origin,
        span=span,
        shortest=_shortest_kept(selected, max_events),
        names=np.unique(np.concatenate([ops.name for ops in selected])),
        max_pieces=max(_MIN_PIECES, max_events // len(shown)),
    )
    ranks = tuple(_rank_scene(window, ops, frame) for window, ops in zip(shown, selected, strict=True))
    kept = sum(len(lane.start) for rank in ranks for lane in rank.lanes)
    return Scene(
        step=step,
        span_ns=span,
        aligned=aligned,
        ranks=ranks,
        ranks_left_out=len(windows) - len(shown),
        names=tuple(timeline.names[int(i)] for i in frame.names),
        events=kept,
        events_as_occupancy=sum(lane.count for rank in ranks for lane in rank.lanes) - kept,
    )


def _median_step(analysis: Analysis) -> int | None:
    """Return the steady step whose mean length over ranks is the median (the lower of two)."""
    if not analysis.steady:
        return None
    lengths: dict[int, list[int]] = {number: [] for number in analysis.steady.steps}
    for rank in analysis.ranks:
        for step in rank.steps:
            if step.step in lengths:
                lengths[step.step].append(step.account.wall_ns)
    means = sorted((sum(walls) / len(walls), number) for number, walls in lengths.items() if walls)
    return means[(len(means) - 1) // 2][1] if means else None


def _windows(analysis: Analysis, step: int | None) -> tuple[list[_Window], bool]:
    """Return each rank's window and whether they share a clock; without one, offsets make all start together."""
    windows = []
    for rank in analysis.ranks:
        found: Step | None = next((s for s in rank.steps if s.step == step), None)
        if step is not None and found is None:
            continue
        start, end = (found.start_ns, found.end_ns) if found else (rank.start_ns, rank.end_ns)
        clock = rank.clock
        since, drift = (clock.origin_ns, clock.drift_ppm) if clock.origin_ns is not None else (0, None)
        windows.append(_Window(rank, start, end, clock.offset_ns or 0, (drift or 0.0) * 1e-6, since))
    if _share_a_clock(windows):
        return windows, True
    return [replace(window, offset=window.start, drift=0.0) for window in windows], False


def _share_a_clock(windows: Sequence[_Window]) -> bool:
    """Whether offsets put the windows beside each other: all known, and where not measured, near enough to overlap."""
    clocks = [window.rank.clock for window in windows]
    if len(windows) > 1 and any(clock.offset_ns is None for clock in clocks):
        return False
    if not any(clock.method in {"session_start", "not_aligned"} for clock in clocks):
        return True
    starts = [window.span[0] for window in windows]
    return max(starts) - min(starts) < max(window.end - window.start for window in windows)


def _choose(windows: Sequence[_Window], summary: Summary) -> list[_Window]:
    """Return the ranks to show: all, or those with a bar first and then in order."""
    if len(windows) <= MAX_RANKS:
        return list(windows)
    barred = {bar.rank for bar in summary.bars[:BARS_SHOWN]}
    first = sorted(windows, key=lambda window: (window.rank.rank not in barred, window.rank.rank))[:MAX_RANKS]
    return sorted(first, key=lambda window: window.rank.rank)


@dataclass(frozen=True, slots=True, eq=False)
class _Selected:
    start: Int64
    end: Int64
    stream: Int64
    kind: Int8
    name: Int32


def _in_window(ops: Ops, window: _Window) -> _Selected:
    """Return the operations that overlap the window, whole."""
    inside = (ops.start < window.end) & (ops.end > window.start)
    return _Selected(ops.start[inside], ops.end[inside], ops.stream[inside], ops.kind[inside], ops.name[inside])


def _shortest_kept(selected: Sequence[_Selected], max_events: int) -> int:
    """Return the length from which operations are kept one by one so that about ``max_events`` are."""
    lengths = np.concatenate([ops.end - ops.start for ops in selected])
    if len(lengths) <= max_events:
        return 0
    cut = len(lengths) - max_events
    return int(np.partition(lengths, cut - 1)[cut - 1]) + 1


def _rank_scene(window: _Window, ops: _Selected, frame: _Frame) -> RankScene:
    edges, families = _ledger(ops, window.start, window.end)
    slices = None if len(families) <= frame.max_pieces else frame.max_pieces
    if slices:
        edges, families = coarse(edges, families, slices)
    lanes = [_lane(ops, int(s), window, frame) for s in np.unique(ops.stream)]
    lanes.sort(key=lambda lane: (lane.stream != window.rank.main_stream, lane.kind, -lane.busy_ns))
    busiest = sorted(lanes, key=lambda lane: (lane.stream != window.rank.main_stream, -lane.busy_ns))[:MAX_STREAMS]
    return RankScene(
        rank=window.rank.rank,
        start=window.span[0] - frame.origin,
        end=window.span[1] - frame.origin,
        edges=window.common(edges) - frame.origin,
        families=families,
        slices=slices,
        lanes=tuple(lane for lane in lanes if lane in busiest),
        streams_left_out=len(lanes) - len(busiest),
    )


def _ledger(ops: _Selected, start: int, end: int) -> tuple[Int64, Int8]:
    """Tile a window by what runs: compute first, then communication alone, copies alone, nothing."""
    first, last = np.maximum(ops.start, start), np.minimum(ops.end, end)
    compute, comm, copy = (union(first[ops.kind == kind], last[ops.kind == kind]) for kind in Kind)
    parts = {
        "compute": compute,
        "comm": subtract(comm, compute),
        "copy": subtract(subtract(copy, compute), comm),
        "idle": gaps(union(first, last), start, end),
    }
    starts = np.concatenate([part[0] for part in parts.values()])
    codes = np.concatenate([np.full(len(part[0]), FAMILY_CODE[key], np.int8) for key, part in parts.items()])
    order = np.argsort(starts, kind="stable")
    return np.append(starts[order], end), codes[order]


def coarse(edges: Int64, families: Int8, pieces: int) -> tuple[Int64, Int8]:
    """Return the ledger in equal slices, each as the family with most time in it; equal neighbours merged."""
    cuts = np.linspace(edges[0], edges[-1], pieces + 1).astype(np.int64)
    present = np.unique(families)
    time = np.stack(
        [Cover.of(edges[:-1][families == f], edges[1:][families == f]).within(cuts[:-1], cuts[1:]) for f in present]
    )
    largest: Int8 = present[np.argmax(time, axis=0)]
    heads = np.flatnonzero(np.append(True, largest[1:] != largest[:-1]))
    return np.append(cuts[heads], cuts[-1]), largest[heads]


def _lane(ops: _Selected, stream: int, window: _Window, frame: _Frame) -> Lane:
    rows = np.flatnonzero(ops.stream == stream)
    start, end = (window.common(t[rows]) - frame.origin for t in (ops.start, ops.end))
    kind = ops.kind[rows]
    kept = end - start >= frame.shortest
    occupancy = None
    if not kept.all():
        cuts = np.linspace(0, frame.span, OCCUPANCY_BUCKETS + 1)
        at = cuts.astype(np.int64)
        width = np.maximum(1, np.diff(at))
        busy = Cover.of(start[~kept], end[~kept]).within(at[:-1], at[1:])
        occupancy = np.ceil(255 * busy / width).astype(np.uint8)
    time_by_kind = [int((end - start)[kind == k].sum()) for k in Kind]
    return Lane(
        stream=stream,
        kind=Kind(int(np.argmax(time_by_kind))),
        start=start[kept],
        end=end[kept],
        name=np.searchsorted(frame.names, ops.name[rows][kept]).astype(np.int64),
        event_kind=kind[kept],
        busy_ns=int(Cover.of(start, end).before[-1]),
        count=len(rows),
        occupancy=occupancy,
    )
