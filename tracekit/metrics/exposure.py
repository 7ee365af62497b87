"""Why communication is exposed: one cause for each exposed bubble in which data moves.

Every test is about what could have hidden the transfer: was it issued ahead, did it wait for another collective, was
there anything left to hide it behind? Definitions: docs/explanation/accounting.md. What cannot be told is ``unknown``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.activity import EVENT_SYNCS
from tracekit.metrics.backlog import late_by_microbatches
from tracekit.metrics.bubbles import EXPOSED_COMM_CAUSES, Bubbles, Lost
from tracekit.metrics.launch_order import BACKWARD, FORWARD, NEVER
from tracekit.metrics.parallelism import CONTEXT, EXPERT, PARALLELISMS, PIPELINE, TENSOR
from tracekit.metrics.roles import Roles, roles_of
from tracekit.metrics.surroundings import Surroundings, ended_before
from tracekit.metrics.views import RankView
from tracekit.metrics.work import Serving, Work
from tracekit.timeline import NONE, Kind

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def with_exposure_causes(view: RankView, work: Work, thresholds: Thresholds) -> Bubbles:
    """The rank's bubbles, those of exposed communication with their causes, cut where the cause changes.

    ``start_up`` and ``peer_wait`` stay. For the rest the collective that compute waited for is looked at, which need
    not be the one that the instant is accounted to.
    """
    bubbles = view.bubbles
    rows = np.flatnonzero(bubbles.lost == Lost.EXPOSED_COMM)
    cause = bubbles.cause[rows]
    if len(rows) == 0:
        return bubbles
    roles = roles_of(view, work, thresholds)
    start, end = bubbles.start[rows], bubbles.end[rows]
    gap = _gaps_of_work(work, start)
    serving = Serving.of(view, work)
    # A copy or small kernel between a bubble and the work was released by what ended when it started.
    let_go = serving.begin(gap[1], end - thresholds.clock_tolerance_ns, thresholds)
    waited_for, not_released = _waited_for(view, start, end, bubbles.op[rows], let_go, thresholds)
    around = Surroundings.of(view, work, serving, roles, thresholds)
    code = _code_of_operations(view, roles, around, thresholds)
    k = np.maximum(waited_for, 0)
    found = np.where(waited_for != NONE, code[k], UNKNOWN)
    last = _last_reductions(roles, around, view, thresholds) & _may_be_last(code)
    found[(waited_for != NONE) & last[k] & (start >= roles.backward_end[k] - thresholds.clock_tolerance_ns)] = LAST
    found[(found == UNKNOWN) & not_released & _under_copy(view, let_go, start, thresholds)] = code_of("behind_copy")
    late = (found == UNKNOWN) & not_released & _next_kernel_was_late(view, work, gap, end, thresholds)
    found[late] = code_of("host_late")
    # Compute waits for a collective that was launched in time: long beside compute, or alone.
    in_time = roles.launched != NONE
    in_time &= _start(view) - roles.returned > thresholds.launch_lag_ns
    rest = (found == UNKNOWN) & (waited_for != NONE) & in_time[k]
    found[rest] = np.where(around.beside[k], code_of("bandwidth"), code_of("serialized"))[rest]
    found[gap[1] - gap[0] < thresholds.kernel_gap_ns] = code_of("between_kernels")
    told = cause == UNKNOWN
    bubbles = bubbles.with_causes(Lost.EXPOSED_COMM, np.where(told, found, cause).astype(np.int8))
    return _with_early_microbatches(bubbles, view, late_by_microbatches(view, roles, around, thresholds), roles)


def _with_early_microbatches(bubbles: Bubbles, view: RankView, late: tuple[Int64, Int64], roles: Roles) -> Bubbles:
    """Give the time by which reductions of early microbatches make the last ones late to the early ones."""
    if len(late[0]) == 0:
        return bubbles
    bubbles = bubbles.cut(late[1])
    picked = bubbles.of_cause(Lost.EXPOSED_COMM, "last_reduce", "bandwidth", "serialized", "unknown")
    picked &= np.isin(bubbles.op, view.collectives.row[roles.reduction])
    picked &= Cover.of(*late).within(bubbles.start, bubbles.end) == bubbles.ns
    cause = bubbles.cause.copy()
    cause[picked] = code_of("microbatch_reduce")
    return replace(bubbles, cause=cause)


def _last_reductions(roles: Roles, around: Surroundings, view: RankView, thresholds: Thresholds) -> Bool:
    """Reductions that the rest of the backward pass cannot hide, however they are scheduled.

    The gradients are ready when the backward pass ends, or so late that it lasts less than half of the reduction.
    What was ready earlier and queued behind other reductions is none: then the transfers rule.
    """
    end = np.where(roles.backward_end == NEVER, 0, roles.backward_end)
    rest = end - roles.ready
    short = (rest < thresholds.last_reduce_share * view.collectives.duration) & (
        around.stream_free > thresholds.handover_ns
    )
    told = (roles.backward_end != NEVER) & (roles.ready != NONE)
    result: Bool = told & roles.reduction & ~roles.optimizer & ~roles.microbatch
    return result & ((rest <= thresholds.handover_ns) | short)


def code_of(cause: str) -> int:
    """Index of a cause of exposed communication."""
    return EXPOSED_COMM_CAUSES.index(cause)


UNKNOWN = code_of("unknown")
CAUSES_BY_NATURE = {
    TENSOR: "tensor_parallel",
    EXPERT: "expert_parallel",
    CONTEXT: "context_parallel",
    PIPELINE: "pipeline",
}
"""What compute needs at once: no schedule of parameters and gradients helps."""
LAST = code_of("last_reduce")


def _may_be_last(code: Int64) -> Bool:
    """Causes that come after ``last_reduce`` in the order, and ``launched_late``, which would not have hidden it."""
    others = [
        code_of(name)
        for name in ("launched_late", "launch_order", "latency_bound", "serialized", "bandwidth", "unknown")
    ]
    result: Bool = np.isin(code, others)
    return result


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
    behind = np.maximum(around.behind, 0)
    queued = around.behind != NONE
    # A gather behind a reduction that itself starts when work ends is ready no sooner: it was not issued ahead either.
    stalled = queued & at_compute_end[behind] & around.blocking & (around.issued_after[behind] == around.issued_after)
    gathers_late = (at_compute_end | stalled) & issued_late & roles.gather & ~nothing_to_hide_behind
    in_time = known & (around.running | (around.stream_free <= near))
    short = many_and_short(view, roles, thresholds)
    serialized = at_compute_end & (np.abs(around.next_work) <= near)
    conditions = {cause: view.parallel == PARALLELISMS.index(kind) for kind, cause in CAUSES_BY_NATURE.items()} | {
        "on_compute_stream": own,  # cannot be issued ahead: every other test would misread it
        "rate_limiter": (gathers_late | (late & roles.gather)) & _after_event_sync(view, roles, thresholds),
        "no_prefetch": gathers_late,
        "queued_behind_comm": queued & ~nothing_to_hide_behind,
        "launched_late": late,
        "first_gather": first_gather & ~short,
        "microbatch_reduce": roles.microbatch,
        "optimizer_phase": optimizer,
        "launch_order": _held_up_by_launch_order(view, roles, around, thresholds) & ~short,
        "latency_bound": (in_time | first_gather | serialized) & short,
        "serialized": serialized,
        "bandwidth": in_time,
    }
    code = np.select(list(conditions.values()), [code_of(name) for name in conditions], UNKNOWN)
    code[(code == code_of("launched_late")) & short] = code_of("latency_bound")
    # What such a reduction costs is the gather's too: work waits for the gather, not for the reduction.
    passed_on = stalled & gathers_late & np.isin(code[behind], (code_of("serialized"), code_of("bandwidth"), UNKNOWN))
    code[behind[passed_on]] = code[passed_on]
    return code.astype(np.int64)


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
    may = roles.reduction & around.blocking & (roles.launched != NONE) & ~roles.optimizer & ~roles.microbatch
    may &= ~roles.on_compute_stream & _of_gradients(view)
    at_end = around.after_compute <= near
    held: Bool = may & at_end & (around.next_work <= near) & (around.next_work >= -tick)
    # Replicas reduce behind the shards' reduction: compute waits for both.
    row = view.collectives.row
    start, end = view.ops.start[row], view.ops.end[row]
    last = may & ~at_end & (around.next_work <= near) & (around.next_work >= -tick)
    before = ended_before(end, start[last] + tick)
    first = np.maximum(before, 0)
    pair = (before >= 0) & (start[last] - end[first] <= near) & may[first] & at_end[first]
    held[first[pair]] = True
    held[np.flatnonzero(last)[pair]] = True
    if np.count_nonzero(held) < thresholds.blocking_reductions or not in_launch_order(view, thresholds):
        return np.zeros(len(held), np.bool_)
    return held


def _of_gradients(view: RankView) -> Bool:
    """Reductions that no compute of the pass needs: reduce-scatters, and all-reduces of a communicator that has none
    outside of the backward pass (tensor parallelism reduces in the forward pass too).
    """
    found, phase = view.collectives, view.labels.phase[view.collectives.row]
    wanted = np.array([op == "reduce_scatter" for _, op in found.group] or [False])
    for i, (_, op) in enumerate(found.group):
        if op == "all_reduce":
            phases = phase[found.of == i]
            wanted[i] = bool(np.any(phases == BACKWARD)) and not bool(np.any((phases == FORWARD) | (phases == NONE)))
    result: Bool = wanted[found.of]
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


def _gaps_of_work(work: Work, t: Int64) -> tuple[Int64, Int64]:
    """The interval without work around each t, which no work covers; far away where it is open."""
    far = np.iinfo(np.int64).max // 4
    at = np.searchsorted(work.cover.start, t, side="right")
    return np.append(-far, work.cover.end)[at], np.append(work.cover.start, far)[at]


def _waited_for(
    view: RankView, start: Int64, end: Int64, owner: Int64, let_go: Int64, thresholds: Thresholds
) -> tuple[Int64, Bool]:
    """(index of the collective that work waited for in each bubble, NONE without one; where it was not let go by that).

    It runs throughout the bubble and its end lets work go on; else it is the owner, if that ends before work goes on:
    where the owner runs on beside work, work waited for something else.
    """
    row = view.collectives.row
    ends = view.ops.end[row]
    tick = thresholds.clock_tolerance_ns
    own = np.searchsorted(row, owner)
    releasing = ended_before(ends, let_go + tick)
    r = np.maximum(releasing, 0)
    throughout = (view.ops.start[row[r]] <= start + tick) & (ends[r] >= end - tick)
    released = (releasing >= 0) & (let_go - ends[r] <= thresholds.handover_ns) & throughout
    waited_for = np.where(released, r, np.where(ends[own] <= let_go + tick, own, NONE))
    return waited_for, (waited_for == NONE) | (let_go - end > thresholds.handover_ns)


def _under_copy(view: RankView, let_go: Int64, start: Int64, thresholds: Thresholds) -> Bool:
    """Whether work goes on when a copy ends that runs throughout the bubble."""
    ops = view.ops
    copies = np.flatnonzero(ops.kind == Kind.COPY)
    if len(copies) == 0:
        return np.zeros(len(start), np.bool_)
    by_end = copies[np.argsort(ops.end[copies], kind="stable")]
    at = np.searchsorted(ops.end[by_end], let_go + thresholds.clock_tolerance_ns, side="right") - 1
    copy = by_end[np.maximum(at, 0)]
    result: Bool = (at >= 0) & (let_go - ops.end[copy] <= thresholds.handover_ns)
    return result & (ops.start[copy] <= start + thresholds.clock_tolerance_ns)


def _next_kernel_was_late(
    view: RankView, work: Work, gap: tuple[Int64, Int64], end: Int64, thresholds: Thresholds
) -> Bool:
    """Whether the launch of the kernel that ends the gap returned in it, and not long before the bubble's end.

    What counts is the return: the first launch of a kernel can take milliseconds, in which it is loaded.
    """
    at = np.searchsorted(work.start, gap[1])
    following = np.append(work.row, NONE)[at]
    call = np.where(following != NONE, view.ops.call[following], NONE)
    returned = np.append(view.process.calls.end, NONE)[call]
    result: Bool = (call != NONE) & (returned >= np.maximum(gap[0], end - thresholds.launch_lag_ns))
    return result
