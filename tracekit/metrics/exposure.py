"""Why communication is exposed: one cause for each exposed bubble in which data moves.

Every test is about what could have hidden the transfer: was it issued ahead, did it wait for another collective, was
there anything left to hide it behind? Definitions: docs/explanation/accounting.md. What cannot be told is ``unknown``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import intersect, measure, union
from tracekit.metrics.activity import EVENT_SYNCS
from tracekit.metrics.bubbles import EXPOSED_COMM_CAUSES, Lost
from tracekit.metrics.roles import NEVER, Roles, Work, roles_of, work_of
from tracekit.metrics.views import RankView
from tracekit.timeline import NONE, Kind

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def exposure_causes(view: RankView, thresholds: Thresholds) -> Int8:
    """The cause of each of the rank's exposed-communication bubbles, in their order.

    ``start_up`` and ``peer_wait`` stay. For the rest the collective that compute waited for is looked at, which need
    not be the one that the instant is accounted to.
    """
    bubbles = view.bubbles
    rows = np.flatnonzero(bubbles.lost == Lost.EXPOSED_COMM)
    cause = bubbles.cause[rows]
    if len(rows) == 0:
        return cause
    work = work_of(view)
    roles = roles_of(view, work, thresholds)
    around = Surroundings.of(view, work, roles, thresholds)
    start, end = bubbles.start[rows], bubbles.end[rows]
    gap = _gaps_of_compute(view, start)
    waited_for = _waited_for(view, start, end, bubbles.op[rows], gap, thresholds)
    code = _code_of_operations(view, roles, around, thresholds)
    found = np.where(waited_for != NONE, code[np.maximum(waited_for, 0)], UNKNOWN)
    # A reduction that ends after the last backward compute has nothing left to hide behind, however it began.
    k = np.maximum(waited_for, 0)
    last = (waited_for != NONE) & _may_be_last(code[k]) & roles.reduction[k] & ~roles.optimizer[k]
    last &= ~roles.microbatch[k] & (start >= roles.backward_end[k] - thresholds.clock_tolerance_ns)
    found[last & (roles.backward_end[k] != NEVER)] = code_of("last_reduce")
    not_released = (waited_for == NONE) | (gap[1] - end > thresholds.handover_ns)
    found[(found == UNKNOWN) & not_released & _released_by_copy(view, gap[1], end, thresholds)] = code_of("behind_copy")
    late = (found == UNKNOWN) & not_released & _next_kernel_was_late(view, gap, end, thresholds)
    found[late] = code_of("host_late")
    found[gap[1] - gap[0] < thresholds.kernel_gap_ns] = code_of("between_kernels")
    told = cause == UNKNOWN
    return np.where(told, found, cause).astype(np.int8)


def code_of(cause: str) -> int:
    """Index of a cause of exposed communication."""
    return EXPOSED_COMM_CAUSES.index(cause)


UNKNOWN = code_of("unknown")


def _may_be_last(code: Int64) -> Bool:
    """Causes that come after ``last_reduce`` in the order, and ``launched_late``, which would not have hidden it."""
    others = [
        code_of(name)
        for name in ("launched_late", "launch_order", "latency_bound", "serialized", "bandwidth", "unknown")
    ]
    result: Bool = np.isin(code, others)
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surroundings:
    """What stood around each communication operation of a rank; columns with an entry for each."""

    running: Bool
    """Compute runs when it starts, or starts with it."""
    after_compute: Int64
    """ns since the last compute before it ended; 0 where compute runs."""
    issued_after: Int64
    """Launch of the last work that ended before it; NONE where that is not known."""
    blocking: Bool
    """No work starts until it ends."""
    next_work: Int64
    """ns from its end to the next work."""
    stream_free: Int64
    """ns since the operation before it on its own stream ended."""
    behind_reduction: Bool
    """Starts when a reduction on another stream ends, and was launched before that."""

    @classmethod
    def of(cls, view: RankView, work: Work, roles: Roles, thresholds: Thresholds) -> Surroundings:
        """Look around."""
        ops, row = view.ops, view.collectives.row
        start, end, tick = ops.start[row], ops.end[row], thresholds.clock_tolerance_ns
        following = np.searchsorted(work.start, start - tick)
        starts = np.append(work.start, NEVER)[following]
        inside = work.cover.within(start, start + tick) > 0
        beginning = (starts <= start + thresholds.handover_ns) & (starts < end - tick)
        running = (inside & (_cover_end(work, start) > start + tick)) | beginning
        after = np.append(work.start, NEVER)[np.searchsorted(work.start, end - tick)]
        previous = _ended_before(work.end, start + tick)
        return cls(
            running=running,
            after_compute=np.where(running, 0, start - _latest(view.covers.compute.end, start + tick)),
            issued_after=_launch_of(view, np.append(work.row, NONE)[previous]),  # -1: none
            blocking=~running & (starts >= end - tick),
            next_work=np.where(after == NEVER, NEVER, after - end),
            stream_free=_since_stream_was_busy(view),
            behind_reduction=_behind_reductions(view, roles, thresholds),
        )


def _cover_end(work: Work, t: Int64) -> Int64:
    """End of the run of work around each t; t where there is none."""
    if len(work.cover.start) == 0:
        return t
    at = np.maximum(np.searchsorted(work.cover.start, t, side="right") - 1, 0)
    return np.maximum(work.cover.end[at], t)


def _ended_before(ends: Int64, t: Int64) -> NDArray[np.intp]:
    """Index of the latest of ``ends`` (in any order) at or before each t, or -1."""
    order = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[order], t, side="right") - 1
    return np.where(at >= 0, order[np.maximum(at, 0)], -1) if len(ends) else np.full(len(t), -1)


def _latest(sorted_ends: Int64, t: Int64) -> Int64:
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
    """ns from the end of the communication before on its stream to each one's start; NEVER for a stream's first."""
    ops, row = view.ops, view.collectives.row
    free = np.full(len(row), NEVER, np.int64)
    for stream in np.unique(ops.stream[row]).tolist():
        mine = np.flatnonzero(ops.stream[row] == stream)
        free[mine[1:]] = ops.start[row[mine[1:]]] - np.maximum.accumulate(ops.end[row[mine]])[:-1]
    return free


def _behind_reductions(view: RankView, roles: Roles, thresholds: Thresholds) -> Bool:
    """Gathers that start when a reduction on another stream ends, launched before that.

    Only where gathers and reductions of these streams (where NCCL tells, of one communicator) never run together.
    """
    ops, found = view.ops, view.collectives
    behind = np.zeros(len(found.row), np.bool_)
    stream, start, end = ops.stream[found.row], ops.start[found.row], ops.end[found.row]
    communicator = np.array([name or "" for name, _ in found.group] or [""])[found.of]
    gathers, reductions = np.flatnonzero(roles.gather), np.flatnonzero(roles.reduction)
    if len(gathers) == 0 or len(reductions) == 0:
        return behind
    before = _ended_before(end[reductions], start[gathers] + thresholds.clock_tolerance_ns)
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
        behind[gathers[held]] = True
    return behind


def _code_of_operations(view: RankView, roles: Roles, around: Surroundings, thresholds: Thresholds) -> Int64:
    """The cause that each operation would give its exposed time; the first that holds in the order of the causes."""
    near = thresholds.handover_ns
    own = roles.on_compute_stream
    first_gather = roles.first_gather & ~around.running
    optimizer = roles.optimizer & ~(roles.by_order & around.running)
    nothing_to_hide_behind = own | first_gather | optimizer
    known = roles.launched != NONE
    at_compute_end = known & around.blocking & (around.after_compute <= near)
    issued_late = around.issued_after < roles.launched
    lag = _start(view) - roles.returned
    on_launch = known & (lag <= thresholds.launch_lag_ns) & (around.stream_free > near)
    late = on_launch & (around.running | (around.after_compute > near)) & ~nothing_to_hide_behind
    gathers_late = at_compute_end & issued_late & roles.gather & ~nothing_to_hide_behind
    in_time = known & (around.running | (around.stream_free <= near))
    short = many_and_short(view, roles, thresholds)
    serialized = at_compute_end & (np.abs(around.next_work) <= near)
    conditions = {
        "on_compute_stream": own,  # cannot be issued ahead: every other test would misread it
        "rate_limiter": (gathers_late | (late & roles.gather)) & _after_event_sync(view, roles, thresholds),
        "no_prefetch": gathers_late,
        "queued_behind_comm": around.behind_reduction & ~nothing_to_hide_behind,
        "launched_late": late,
        "first_gather": first_gather & ~short,
        "microbatch_reduce": roles.microbatch,
        "optimizer_phase": optimizer,
        "launch_order": _held_up_by_launch_order(view, roles, around, thresholds),
        "latency_bound": (in_time | first_gather | serialized) & short,
        "serialized": serialized,
        "bandwidth": in_time,
    }
    code = np.select(list(conditions.values()), [code_of(name) for name in conditions], UNKNOWN)
    late_and_short = (code == code_of("launched_late")) & short
    return np.where(late_and_short, code_of("latency_bound"), code).astype(np.int64)


def _start(view: RankView) -> Int64:
    return view.ops.start[view.collectives.row]


def _after_event_sync(view: RankView, roles: Roles, thresholds: Thresholds) -> Bool:
    """Gathers whose launching thread had waited for an event just before.

    FSDP1 limits how many gathers are under way by letting the host wait until an earlier one has been used.
    """
    calls = view.process.calls
    waits = [i for i, name in enumerate(view.names) if name in EVENT_SYNCS]
    is_wait = np.isin(calls.name, waits)
    limited = np.zeros(len(roles.launched), np.bool_)
    known = np.flatnonzero((roles.launched != NONE) & roles.gather)
    if not is_wait.any() or len(known) == 0:
        return limited
    call = view.ops.call[view.collectives.row[known]]
    for thread in np.unique(calls.thread[call]).tolist():
        own = np.flatnonzero((calls.thread == thread) & is_wait)
        mine = known[calls.thread[call] == thread]
        at = np.searchsorted(calls.end[own], roles.launched[mine], side="right") - 1
        ended = np.append(calls.end[own], 0)[at]
        limited[mine] = (at >= 0) & (roles.launched[mine] - ended <= thresholds.rate_limiter_ns)
    return limited


def _held_up_by_launch_order(view: RankView, roles: Roles, around: Surroundings, thresholds: Thresholds) -> Bool:
    """Reductions that hold up compute which does not need them, in a job that starts all in the order of launch."""
    near, tick = thresholds.handover_ns, thresholds.clock_tolerance_ns
    held = roles.reduction & around.blocking & (around.after_compute <= near) & (around.next_work <= near)
    held &= (around.next_work >= -tick) & (roles.launched != NONE) & ~roles.optimizer & ~roles.microbatch
    held &= ~roles.on_compute_stream & _scatters(view)
    if np.count_nonzero(held) < thresholds.blocking_reductions or not in_launch_order(view, thresholds):
        return np.zeros(len(held), np.bool_)
    return held


def _scatters(view: RankView) -> Bool:
    found = view.collectives
    result: Bool = np.array([op == "reduce_scatter" for _, op in found.group] or [False])[found.of]
    return result


def in_launch_order(view: RankView, thresholds: Thresholds) -> bool:
    """Whether a rank's operations start in the order in which they were launched, over all streams."""
    ops = view.ops
    rows = np.flatnonzero(ops.call != NONE)
    if len(np.unique(ops.stream[rows])) < 2:
        return False
    start, called = ops.start[rows], view.process.calls.start[ops.call[rows]]
    # An operation is out of order if one that started clearly earlier was launched later.
    latest = np.maximum.accumulate(called)
    earlier = np.searchsorted(start, start - thresholds.clock_tolerance_ns) - 1
    before = np.where(earlier >= 0, latest[np.maximum(earlier, 0)], np.iinfo(np.int64).min)
    return bool(np.count_nonzero(before > called) <= thresholds.launch_order_share * len(rows))


def many_and_short(view: RankView, roles: Roles, thresholds: Thresholds) -> Bool:
    """Collectives of a kind that is mostly latency and occurs many times a step."""
    found = view.collectives
    cycles = max(len(np.unique(roles.cycle[roles.cycle != NONE])), 1)
    short = np.zeros(len(found.row), np.bool_)
    for group in range(len(found.group)):
        mine = np.flatnonzero(found.of == group)
        many = len(mine) >= thresholds.latency_bound_count * cycles
        short[mine] = many and bool(np.median(found.duration[mine]) < thresholds.latency_bound_ns)
    return short


def _gaps_of_compute(view: RankView, t: Int64) -> tuple[Int64, Int64]:
    """The interval without compute around each t, which no compute covers; far away where it is open."""
    compute = view.covers.compute
    far = np.iinfo(np.int64).max // 4
    at = np.searchsorted(compute.start, t, side="right")
    return np.append(-far, compute.end)[at], np.append(compute.start, far)[at]


def _waited_for(
    view: RankView, start: Int64, end: Int64, owner: Int64, gap: tuple[Int64, Int64], thresholds: Thresholds
) -> Int64:
    """Which collective (index into the rank's) compute waited for in each bubble; NONE where it was none.

    It runs throughout the bubble and its end lets compute go on; else it is the owner, if that ends before compute goes
    on: where the owner runs on beside compute, compute waited for something else.
    """
    row = view.collectives.row
    ends = view.ops.end[row]
    tick = thresholds.clock_tolerance_ns
    own = np.searchsorted(row, owner)
    releasing = _ended_before(ends, gap[1] + tick)
    r = np.maximum(releasing, 0)
    throughout = (view.ops.start[row[r]] <= start + tick) & (ends[r] >= end - tick)
    released = (releasing >= 0) & (gap[1] - ends[r] <= thresholds.handover_ns) & throughout
    return np.where(released, r, np.where(ends[own] <= gap[1] + tick, own, NONE))


def _released_by_copy(view: RankView, gap_end: Int64, end: Int64, thresholds: Thresholds) -> Bool:
    """Whether compute goes on when a copy ends, which lasts until the bubble's end or longer."""
    copies = np.sort(view.ops.end[view.ops.kind == Kind.COPY])
    latest = _latest(copies, gap_end + thresholds.clock_tolerance_ns)
    result: Bool = (gap_end - latest <= thresholds.handover_ns) & (latest >= end - thresholds.handover_ns)
    return result


def _next_kernel_was_late(view: RankView, gap: tuple[Int64, Int64], end: Int64, thresholds: Thresholds) -> Bool:
    """Whether the launch of the kernel that ends the gap returned in it, and not long before the bubble's end.

    What counts is the return: the first launch of a kernel can take milliseconds, in which it is loaded.
    """
    ops = view.ops
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    at = np.searchsorted(ops.start[compute], gap[1])
    following = np.append(compute, NONE)[at]
    call = np.where(following != NONE, ops.call[following], NONE)
    returned = np.append(view.process.calls.end, NONE)[call]
    result: Bool = (call != NONE) & (returned >= np.maximum(gap[0], end - thresholds.launch_lag_ns))
    return result
