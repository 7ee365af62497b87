"""What stood around each communication operation of a rank when it started and when it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import intersect, measure, union
from tracekit.metrics.launch_order import NEVER
from tracekit.metrics.roles import Roles
from tracekit.metrics.views import RankView
from tracekit.metrics.work import Serving, Work
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surroundings:
    """What stood around each communication operation of a rank; columns with an entry for each."""

    running: Bool
    """Compute runs when it starts, or starts with it."""
    after_compute: Int64
    """ns since the last work before it, and what it needed copied, had ended; 0 where work runs."""
    issued_after: Int64
    """Launch of the last work that ended before it; NONE where that is not known."""
    beside: Bool
    """Work runs beside it for some of its time."""
    blocking: Bool
    """No work starts until it ends."""
    next_work: Int64
    """ns from its end, and that of what is copied then, to the next work."""
    stream_free: Int64
    """Longest pause on its own stream since the communication before it, ns; NEVER for a stream's first."""
    behind: Int64
    """Which reduction on another stream it starts behind, launched before that ends; NONE where it is none."""

    @classmethod
    def of(cls, view: RankView, work: Work, serving: Serving, roles: Roles, thresholds: Thresholds) -> Surroundings:
        """Look around."""
        ops, row = view.ops, view.collectives.row
        start, end, tick = ops.start[row], ops.end[row], thresholds.clock_tolerance_ns
        following = np.searchsorted(work.start, start - tick)
        starts = np.append(work.start, NEVER)[following]
        inside = work.cover.within(start, start + tick) > 0
        beginning = (starts <= start + thresholds.handover_ns) & (starts < end - tick)
        running = (inside & (_cover_end(work, start) > start + tick)) | beginning
        after = np.append(work.start, NEVER)[np.searchsorted(work.start, end - tick)]
        previous = ended_before(work.end, start + tick)
        begin = serving.begin(start, np.iinfo(np.int64).min, thresholds)
        finish = np.minimum(serving.finish(end, thresholds), np.maximum(after, end))
        return cls(
            running=running,
            after_compute=np.where(running, 0, begin - latest(work.cover.end, begin + tick)),
            issued_after=_launch_of(view, np.append(work.row, NONE)[previous]),  # -1: none
            beside=work.cover.within(start, end) > tick,
            blocking=~running & (starts >= end - tick),
            next_work=np.where(after == NEVER, NEVER, np.where(after < end, after - end, after - finish)),
            stream_free=_since_stream_was_busy(view),
            behind=_behind_reductions(view, roles, thresholds),
        )


def _cover_end(work: Work, t: Int64) -> Int64:
    """End of the run of work around each t; t where there is none."""
    if len(work.cover.start) == 0:
        return t
    at = np.maximum(np.searchsorted(work.cover.start, t, side="right") - 1, 0)
    return np.maximum(work.cover.end[at], t)


def ended_before(ends: Int64, t: Int64) -> NDArray[np.intp]:
    """Index of the latest of ``ends`` (in any order) at or before each t, or -1."""
    order = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[order], t, side="right") - 1
    return np.where(at >= 0, order[np.maximum(at, 0)], -1) if len(ends) else np.full(len(t), -1)


def latest(sorted_ends: Int64, t: Int64) -> Int64:
    """The latest of sorted instants at or before each t; long ago where there is none."""
    long_ago = np.iinfo(np.int64).min // 4
    return np.append(long_ago, sorted_ends)[np.searchsorted(sorted_ends, t, side="right")]


def _launch_of(view: RankView, row: Int64) -> Int64:
    """Start of the launch call of each operation; NONE where either is missing."""
    call = np.where(row != NONE, view.ops.call[np.maximum(row, 0)], NONE)
    if len(view.process.calls) == 0:
        return np.full(len(row), NONE, np.int64)
    return np.where(call != NONE, view.process.calls.start[np.maximum(call, 0)], NONE)


def _since_stream_was_busy(view: RankView) -> Int64:
    """Longest pause on its stream between the communication before and each one; NEVER for a stream's first.

    Kernels between the two that feed or empty the buffers of collectives are no pause.
    """
    ops, row = view.ops, view.collectives.row
    free = np.full(len(row), NEVER, np.int64)
    order, own = (np.argsort(streams, kind="stable") for streams in (ops.stream, ops.stream[row]))
    sorted_streams, own_streams = ops.stream[order], ops.stream[row][own]
    for stream in np.unique(own_streams).tolist():
        line, mine = _of_stream(order, sorted_streams, stream), _of_stream(own, own_streams, stream)
        pause = np.append(0, ops.start[line[1:]] - np.maximum.accumulate(ops.end[line])[:-1])
        place = np.searchsorted(line, row[mine])
        if len(place) > 1:
            free[mine[1:]] = np.maximum.reduceat(pause[: place[-1] + 1], place[:-1] + 1)
    return free


def _of_stream(order: NDArray[np.intp], streams: Int64, stream: int) -> NDArray[np.intp]:
    low, high = (int(np.searchsorted(streams, stream, side=side)) for side in ("left", "right"))
    return order[low:high]


def _behind_reductions(view: RankView, roles: Roles, thresholds: Thresholds) -> Int64:
    """For gathers that start when a reduction on another stream ends, launched before that: which; else NONE.

    Only where gathers and reductions of these streams (where NCCL tells, of one communicator) never run together.
    """
    ops, found = view.ops, view.collectives
    behind = np.full(len(found.row), NONE, np.int64)
    stream, start, end = ops.stream[found.row], ops.start[found.row], ops.end[found.row]
    communicator = np.array([name or "" for name, _ in found.group] or [""])[found.of]
    gathers, reductions = np.flatnonzero(roles.gather), np.flatnonzero(roles.reduction)
    if len(gathers) == 0 or len(reductions) == 0:
        return behind
    before = ended_before(end[reductions], start[gathers] + thresholds.clock_tolerance_ns)
    q = reductions[np.maximum(before, 0)]
    held = (before >= 0) & (start[gathers] - end[q] <= thresholds.handover_ns) & (stream[q] != stream[gathers])
    held &= (roles.launched[gathers] != NONE) & (roles.launched[gathers] < end[q])
    held &= communicator[q] == communicator[gathers]
    pairs = sorted(set(zip(stream[gathers[held]].tolist(), stream[q[held]].tolist(), strict=True)))
    for one, other in pairs:
        a, b = gathers[stream[gathers] == one], reductions[stream[reductions] == other]
        together = measure(intersect(union(start[a], end[a]), union(start[b], end[b])))
        if together > thresholds.clock_tolerance_ns * min(len(a), len(b)):
            held &= ~((stream[gathers] == one) & (stream[q] == other))
    if np.count_nonzero(held) >= thresholds.queued_gathers:
        behind[gathers[held]] = q[held]
    return behind
