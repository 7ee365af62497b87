"""Why a GPU idles: each nanosecond of each idle gap has one cause.

The operation that ends a gap says why there was one. Until its launch call had returned the host was late, by what the
launching thread was doing (`activity`); from then on the operation waited for another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.activity import BLOCKING, Activity, Doing
from tracekit.metrics.bubbles import IDLE_CAUSES
from tracekit.metrics.copies import TO_HOST, named
from tracekit.metrics.first_use import first_use_from
from tracekit.metrics.steps import StepRanges
from tracekit.timeline import NONE, Ops

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

(
    LAUNCH_LATENCY,
    SYNC_CALL,
    ALLOCATOR,
    FIRST_USE,
    COMM_INIT,
    DATA_LOADING,
    HOST_OTHER,
    DEPENDENCY,
    UNKNOWN,
) = range(len(IDLE_CAUSES))
_OF_DOING = np.array([COMM_INIT, FIRST_USE, SYNC_CALL, ALLOCATOR, DATA_LOADING, HOST_OTHER], np.int8)
"""Cause by `Doing`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Idle gaps of one rank, disjoint and sorted; all columns have one length."""

    start: Int64
    end: Int64
    before: Int64
    """Row of the operation that ended last before the gap; NONE without one."""
    after: Int64
    """Row of the operation that ends the gap; NONE without one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Gaps cut where the cause changes, sorted."""

    start: Int64
    end: Int64
    gap: Int64
    """Index of the gap that a piece is of."""
    cause: Int8
    """Index into `bubbles.IDLE_CAUSES`."""


def idle_pieces(ops: Ops, activity: Activity, gaps: Gaps, marks: StepRanges | None, thresholds: Thresholds) -> Pieces:
    """Cut idle gaps into pieces of one cause each, which cover them exactly. O((gaps + calls + ranges) log)."""
    calls = activity.process.calls
    call = _call_of(ops, gaps.after)
    short = gaps.end - gaps.start < thresholds.launch_latency_ns
    told = np.flatnonzero(~short & (call != NONE))
    # Clocks of host and GPU differ by microseconds: a launch may seem to return after its kernel's start.
    returned = gaps.start.copy()
    returned[told] = np.clip(calls.end[call[told]], gaps.start[told], gaps.end[told])
    late = returned > gaps.start
    host = _host_late(ops, activity, gaps, np.flatnonzero(late), call, returned, thresholds)
    if marks is not None and len(host.gap) and not activity.tells_of_data:
        cause = _with_data_between_steps(ops, activity, gaps, host, call, marks, thresholds)
        host = Pieces(start=host.start, end=host.end, gap=host.gap, cause=cause)
    prompt = late.copy()
    prompt[late] = ops.start[gaps.after[late]] - calls.end[call[late]] <= thresholds.launch_lag_ns
    # Such an operation waited for nothing but its launch: the host's last piece reaches to the gap's end.
    last = np.append(host.gap[1:] != host.gap[:-1], True)[: len(host.gap)] & prompt[host.gap]
    host_end = np.where(last, gaps.end[host.gap], host.end)
    rest = np.flatnonzero((gaps.end > returned) & ~prompt)
    cause = np.full(len(gaps.start), UNKNOWN, np.int8)
    cause[told] = DEPENDENCY
    cause[short] = LAUNCH_LATENCY
    start = np.concatenate([host.start, returned[rest]])
    order = np.argsort(start, kind="stable")
    return _merged(
        start[order],
        np.concatenate([host_end, gaps.end[rest]])[order],
        np.concatenate([host.gap, rest])[order],
        np.concatenate([host.cause, cause[rest]])[order],
    )


def _merged(start: Int64, end: Int64, gap: Int64, cause: Int8) -> Pieces:
    """Pieces in order; neighbours in one gap that have one cause become one."""
    first = np.ones(len(start), np.bool_)
    first[1:] = (gap[1:] != gap[:-1]) | (cause[1:] != cause[:-1])
    last = np.append(first[1:], True)[: len(start)]
    return Pieces(start=start[first], end=end[last], gap=gap[first], cause=cause[first])


def _call_of(ops: Ops, rows: Int64) -> Int64:
    """Row of the call that launched each operation; NONE where either is missing."""
    return np.where(rows != NONE, ops.call[np.maximum(rows, 0)], NONE).astype(np.int64)


def _host_late(
    ops: Ops,
    activity: Activity,
    gaps: Gaps,
    late: NDArray[np.intp],
    call: Int64,
    returned: Int64,
    thresholds: Thresholds,
) -> Pieces:
    """The late gaps from their starts to the returns of their launch calls, by what the launching thread did."""
    thread = activity.process.calls.thread[call[late]]
    first_use = np.full(len(gaps.start), np.iinfo(np.int64).max)
    first_use[late] = first_use_from(
        ops, activity, gaps.start[late], returned[late], gaps.after[late], thresholds.first_launch_ns
    )
    parts: list[tuple[Int64, Int64, Int64, Int8]] = []
    for each in np.unique(thread).tolist():
        own = late[thread == each]
        stretches = activity.stretches(each)
        cut = stretches.cut(gaps.start[own], returned[own])
        gap = own[np.searchsorted(gaps.start[own], cut.start, side="right") - 1]
        # A call that began before the gap let the GPU run dry; one that began in it found the GPU idle already.
        dried = stretches.blocked_across(gaps.start[gap])
        pieces = _with_refill(cut.start, cut.end, gap, cut.doing, dried, thresholds.refill_ns)
        parts.append(_with_first_use(*pieces, first_use))
    if not parts:
        nothing = np.empty(0, np.int64)
        return Pieces(start=nothing, end=nothing, gap=nothing, cause=np.empty(0, np.int8))
    start, end, gap = (np.concatenate([part[i] for part in parts]) for i in range(3))
    cause = _OF_DOING[np.concatenate([part[3] for part in parts])]
    order = np.argsort(start, kind="stable")
    return Pieces(start=start[order], end=end[order], gap=gap[order], cause=cause[order])


def _with_refill(
    start: Int64, end: Int64, gap: Int64, doing: Int8, dried: Bool, refill_ns: int
) -> tuple[Int64, Int64, Int64, Int8]:
    """Give a blocking call that let the GPU run dry also the time until the host has launched again, up to a limit.

    The queue is empty when such a call returns, and the first launch comes only as fast as the host can make it.
    """
    follows = dried & (doing == Doing.OTHER)
    follows[1:] &= np.isin(doing[:-1], BLOCKING) & (gap[1:] == gap[:-1])
    follows[:1] = False
    rows = np.flatnonzero(follows)
    until = end.copy()
    until[rows] = np.minimum(start[rows] + refill_ns, end[rows])
    doing = doing.copy()
    doing[rows] = doing[rows - 1]
    left = rows[until[rows] < end[rows]]
    return (
        np.concatenate([start, until[left]]),
        np.concatenate([until, end[left]]),
        np.concatenate([gap, gap[left]]),
        np.concatenate([doing, np.full(len(left), Doing.OTHER, np.int8)]),
    )


def _with_first_use(
    start: Int64, end: Int64, gap: Int64, doing: Int8, since: Int64
) -> tuple[Int64, Int64, Int64, Int8]:
    """From the instant on at which code begins to be loaded in a gap, all that the host does in it is part of that."""
    cut = np.clip(since[gap], start, end)
    own = (doing != Doing.COMM_INIT) & (cut < end)
    left = np.flatnonzero(own & (cut > start))
    doing, whole = doing.copy(), np.flatnonzero(own & (cut == start))
    doing[whole] = Doing.FIRST_USE
    end = end.copy()
    added = (cut[left], end[left], gap[left], np.full(len(left), Doing.FIRST_USE, np.int8))
    end[left] = cut[left]
    return (
        np.concatenate([start, added[0]]),
        np.concatenate([end, added[1]]),
        np.concatenate([gap, added[2]]),
        np.concatenate([doing, added[3]]),
    )


def _with_data_between_steps(
    ops: Ops, activity: Activity, gaps: Gaps, host: Pieces, call: Int64, marks: StepRanges, thresholds: Thresholds
) -> Int8:
    """Causes where no range tells of loading data: the host's quiet time in a gap between two steps is taken for it.

    Quiet is time in which the launching thread makes no CUDA call. Beside a large copy to the host it is saving.
    """
    calls = activity.process.calls
    step = [marks.containing(calls.start[known]) for known in (np.maximum(_call_of(ops, gaps.before), 0), call)]
    between = (_call_of(ops, gaps.before) != NONE) & (call != NONE) & (step[0] != step[1])
    for rows in (np.maximum(gaps.before, 0), np.maximum(gaps.after, 0)):
        between &= ~(named(ops, rows, activity.names, TO_HOST) & (ops.bytes[rows] >= thresholds.tensor_bytes))
    rows = np.flatnonzero((host.cause == HOST_OTHER) & between[host.gap])
    thread = calls.thread[call[host.gap[rows]]]
    quiet = np.zeros(len(gaps.start), np.int64)
    for each in np.unique(thread).tolist():
        own, called = rows[thread == each], calls.thread == each
        busy = Cover.of(calls.start[called], calls.end[called]).within(host.start[own], host.end[own])
        np.add.at(quiet, host.gap[own], host.end[own] - host.start[own] - busy)
    cause = host.cause.copy()
    cause[rows[quiet[host.gap[rows]] >= thresholds.quiet_ns]] = DATA_LOADING
    return cause
