"""The lanes below a rank's ledger: streams, host threads, NVTX ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover
from tracekit.metrics.labels import Vocabulary
from tracekit.report.timeline.clock import PlacedRank
from tracekit.report.timeline.kept import Bool, Kept
from tracekit.timeline import NONE, Int64, Kind

MAX_STREAMS = 10
MAX_THREADS = 4
MAX_NVTX_ROWS = 6
OCCUPANCY_BUCKETS = 2048
LANE_KINDS = ("compute", "comm", "copy", "host", "nvtx")
"""The first three by `Kind`."""
HOST, NVTX = LANE_KINDS.index("host"), LANE_KINDS.index("nvtx")
STEP, PHASE, MODULE = 0, 1, 2
"""What an NVTX range names: column ``kind`` of those lanes."""
_THREAD_BITS = 0xFFFFFF
"""globalTid holds the thread's id in its low 24 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """One stream, one host thread, or one level of nested ranges. Times in ns on the scene's clock, sorted by start."""

    kind: int
    """Index into `LANE_KINDS`; of a stream, the kind with most time on it."""
    label: str
    start: Int64
    end: Int64
    columns: dict[str, Int64]
    """What else is known of each event, one entry an event: ``name`` and others, see `payload`."""
    busy_ns: int
    count: int
    """Events in the window, whether kept one by one or as occupancy."""
    occupancy: NDArray[np.uint8] | None
    """Share of time (0 to 255) in which events not kept one by one run, by bucket over the scene; None if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all lanes of a scene share."""

    origin: int
    """On the scene's clock before it is counted from here."""
    span: int
    modules: dict[str, int]
    """Position of each module's name, filled as ranks are laid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one rank that the scene shows at all, of operations, calls and ranges, before they become lanes."""

    ops: NDArray[np.intp]
    stream: Int64
    """By position in ``ops``."""
    streams: tuple[int, ...]
    """The streams to show, in order."""
    streams_left_out: int
    calls: NDArray[np.intp]
    ranges: NDArray[np.intp]
    range_row: Int64
    """The row of nesting, by position in ``ranges``: those of one thread are nested, 0 outermost."""
    range_kind: Int64


def rows_of(placed: PlacedRank, others: Sequence[PlacedRank], words: Vocabulary) -> Rows:
    """Choose what to show; ``others`` are the ranks of the same process."""
    ops, process = placed.view.ops, placed.view.process
    streams, inverse = np.unique(ops.stream, return_inverse=True)
    time = np.zeros((len(streams), len(Kind)), np.int64)
    np.add.at(time, (inverse, ops.kind), ops.end - ops.start)
    main = streams == (placed.view.main_stream if placed.view.main_stream is not None else NONE)
    busiest = np.lexsort((-time.sum(axis=1), ~main))[:MAX_STREAMS]
    order = sorted(busiest.tolist(), key=lambda s: (not main[s], int(np.argmax(time[s])), -int(time[s].sum())))
    shown = np.flatnonzero(np.isin(inverse, order)) if len(order) < len(streams) else np.arange(len(ops))
    ranges, range_row, range_kind = _ranges(placed, words)
    return Rows(
        ops=shown,
        stream=ops.stream[shown],
        streams=tuple(int(streams[s]) for s in order),
        streams_left_out=len(streams) - len(order),
        calls=np.flatnonzero(_own_calls(placed, others)) if len(process.calls) else np.empty(0, np.intp),
        ranges=ranges,
        range_row=range_row,
        range_kind=range_kind,
    )


def _own_calls(placed: PlacedRank, others: Sequence[PlacedRank]) -> Bool:
    """(calls,) those of the rank: not those that launched work of another rank only; of its busiest threads."""
    calls = placed.view.process.calls
    own = np.ones(len(calls), np.bool_)
    for other in others:
        theirs = other.view.ops.call
        own[theirs[theirs != NONE]] = False
    mine = placed.view.ops.call
    own[mine[mine != NONE]] = True
    threads, inverse, counts = np.unique(calls.thread, return_inverse=True, return_counts=True)
    if len(threads) > MAX_THREADS:
        own &= np.isin(inverse, np.argsort(-counts, kind="stable")[:MAX_THREADS])
    return own


def _ranges(placed: PlacedRank, words: Vocabulary) -> tuple[NDArray[np.intp], Int64, Int64]:
    """(rows of the ranges that name a step, phase or module; the lane of each; which of these it names)."""
    ranges = placed.view.process.ranges
    meaning = [
        NONE if a is None else STEP if a.step else PHASE if a.module is None else MODULE for a in words.annotations
    ]
    kind = np.array(meaning, np.int64)[words.of] if meaning else np.empty(0, np.int64)
    rows = np.flatnonzero(kind != NONE)
    _, inverse, counts = np.unique(ranges.thread[rows], return_inverse=True, return_counts=True)
    lane = np.full(len(rows), NONE, np.int64)
    first = 0
    for thread in np.argsort(-counts, kind="stable").tolist():
        mine = np.flatnonzero(inverse == thread)
        level = nesting(ranges.start[rows[mine]], ranges.end[rows[mine]])
        lane[mine] = first + level
        first += int(level.max()) + 1
        if first >= MAX_NVTX_ROWS:
            break
    shown = (lane != NONE) & (lane < MAX_NVTX_ROWS)
    return rows[shown], lane[shown], kind[rows[shown]]


def nesting(start: Int64, end: Int64) -> Int64:
    """How many intervals are open when each begins, itself left out; sorted by start, longer ones first."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    level: Int64 = np.arange(len(start)) - ended
    return np.maximum(level, 0)


def lanes_of(
    placed: PlacedRank,
    rows: Rows,
    kept: Kept,
    kept_host: Kept,
    collective: Int64,
    frame: Frame,
) -> tuple[Lane, ...]:
    """Lay a rank's rows out; ``collective`` numbers its `RankCollectives`, from 1 over all ranks (0: unmatched)."""
    host, position = _host_lanes(placed, rows, kept_host, frame)
    return (
        *_stream_lanes(placed, rows, kept, collective, position, frame),
        *host,
        *_nvtx(placed, rows, kept_host, frame),
    )


def _stream_lanes(
    placed: PlacedRank, rows: Rows, kept: Kept, collective: Int64, position: Int64, frame: Frame
) -> list[Lane]:
    ops, labels, found = placed.view.ops, placed.view.labels, placed.view.collectives
    module = np.array([frame.modules.setdefault(m, len(frame.modules)) for m in labels.modules], np.int64)
    number, wait, size = (np.zeros(len(ops), np.int64) for _ in range(3))
    number[found.row] = collective
    wait[found.row] = placed.waits.wait + 1
    size[:] = ops.bytes + 1
    size[found.row] = found.full_bytes + 1
    lanes = []
    for stream in rows.streams:
        mine = rows.ops[rows.stream == stream]
        own = kept.mask(ops.start[mine], ops.end[mine], placed.windows)
        picked, kinds = mine[own], ops.kind[mine]
        time = np.bincount(kinds, weights=(ops.end - ops.start)[mine], minlength=len(Kind))
        call = ops.call[picked]
        columns = {
            "name": ops.name[picked].astype(np.int64),
            "kind": ops.kind[picked].astype(np.int64),
            "module": np.where(labels.module[picked] != NONE, module[labels.module[picked]], NONE) + 1
            if len(module)
            else np.zeros(len(picked), np.int64),
            "phase": labels.phase[picked] + 1,
            "call": np.where(call != NONE, position[call], 0) if len(position) else np.zeros(len(picked), np.int64),
            "wait": wait[picked],
            "collective": number[picked],
            "bytes": size[picked],
        }
        lanes.append(
            _lane(placed, int(np.argmax(time)), f"s{stream}", ops.start[mine], ops.end[mine], own, columns, frame)
        )
    return lanes


def _host_lanes(placed: PlacedRank, rows: Rows, kept: Kept, frame: Frame) -> tuple[list[Lane], Int64]:
    """(a lane a thread; by row of the process's calls its position, from 1, among the kept ones of all lanes)."""
    calls = placed.view.process.calls
    position = np.zeros(len(calls), np.int64)
    lanes, before = [], 0
    for thread in np.unique(calls.thread[rows.calls]).tolist():
        mine = rows.calls[calls.thread[rows.calls] == thread]
        own = kept.mask(calls.start[mine], calls.end[mine], placed.windows)
        picked = mine[own]
        position[picked] = before + 1 + np.arange(len(picked))
        before += len(picked)
        columns = {"name": calls.name[picked].astype(np.int64)}
        label = f"thread {thread & _THREAD_BITS}"
        lanes.append(_lane(placed, HOST, label, calls.start[mine], calls.end[mine], own, columns, frame))
    return lanes, position


def _nvtx(placed: PlacedRank, rows: Rows, kept: Kept, frame: Frame) -> list[Lane]:
    ranges, lanes = placed.view.process.ranges, []
    for level in np.unique(rows.range_row).tolist():
        at = np.flatnonzero(rows.range_row == level)
        mine = rows.ranges[at]
        own = kept.mask(ranges.start[mine], ranges.end[mine], placed.windows)
        columns = {"name": ranges.name[mine[own]].astype(np.int64), "kind": rows.range_kind[at[own]]}
        lanes.append(_lane(placed, NVTX, "nvtx", ranges.start[mine], ranges.end[mine], own, columns, frame))
    return lanes


def _lane(
    placed: PlacedRank,
    kind: int,
    label: str,
    start: Int64,
    end: Int64,
    own: Bool,
    columns: dict[str, Int64],
    frame: Frame,
) -> Lane:
    start, end = placed.common(start) - frame.origin, placed.common(end) - frame.origin
    occupancy = None
    if not own.all():
        at = np.linspace(0, frame.span, OCCUPANCY_BUCKETS + 1).astype(np.int64)
        busy = Cover.of(start[~own], end[~own]).within(at[:-1], at[1:])
        occupancy = np.ceil(255 * busy / np.maximum(1, np.diff(at))).astype(np.uint8)
    return Lane(
        kind=kind,
        label=label,
        start=start[own],
        end=end[own],
        columns=columns,
        busy_ns=int(Cover.of(start, end).before[-1]),
        count=len(start),
        occupancy=occupancy,
    )
