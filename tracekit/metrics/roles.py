"""What part each communication operation of a rank plays in its step, and what stood around it when it started.

Order of launch tells the part: the host goes through a step from front to back, whatever the streams make of it. Where
no range tells of steps and phases, the names of the optimizer's kernels tell where one pass ends and the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.launch_order import NEVER, OPTIMIZER, LaunchOrder, StepOrder, mark_by_optimizer_kernels
from tracekit.metrics.parallelism import BY_NATURE, PARALLELISMS
from tracekit.metrics.views import RankView
from tracekit.metrics.work import Work
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roles:
    """Columns with an entry for each communication operation of a rank."""

    gather: Bool
    """Of parameters, as far as can be known; so with reductions of gradients."""
    reduction: Bool
    launched: Int64
    """Start of the launch call; NONE where it is not known."""
    returned: Int64
    """End of the launch call; NONE where it is not known."""
    first_gather: Bool
    """Launched before any other gather of its step could be, with no work of the step to hide behind."""
    optimizer: Bool
    """Launched in or after the optimizer's step."""
    by_order: Bool
    """Where ``optimizer`` rests only on the order: the step's only gathers come after all its reductions."""
    microbatch: Bool
    """A reduction of a backward pass that is not the step's last."""
    backward_end: Int64
    """When the last backward compute of the operation's step ends; NEVER where that cannot be told."""
    ready: Int64
    """When the backward compute launched before a reduction has ended; NONE where that cannot be told."""
    on_compute_stream: Bool
    cycle: Int64
    """Which step it was launched in (a count from 0 in order of launch); NONE where the launch is not known."""


def roles_of(view: RankView, work: Work, thresholds: Thresholds) -> Roles:
    """Tell the part of each communication operation."""
    found, ops, calls = view.collectives, view.ops, view.process.calls
    row = found.row
    call = ops.call[row]
    known = call != NONE
    launched, returned = np.full(len(row), NONE, np.int64), np.full(len(row), NONE, np.int64)
    launched[known], returned[known] = calls.start[call[known]], calls.end[call[known]]
    op = np.array([name for _, name in found.group] or [""])[found.of]
    parameters = ~np.isin(view.parallel, [PARALLELISMS.index(name) for name in BY_NATURE])
    gather, reduction = (op == "all_gather") & parameters, np.isin(op, REDUCTIONS) & parameters
    order = LaunchOrder.of(view, work)
    place = np.full(len(ops), NONE, np.int64)
    place[order.row] = np.arange(len(order.row))
    at = place[row]
    told = at != NONE
    optimizer = np.zeros(len(row), np.bool_)
    optimizer[told] = order.phase[at[told]] == OPTIMIZER
    silent = told & (view.labels.phase[row] == NONE)
    first = np.zeros(len(row), np.bool_)
    mark_by_optimizer_kernels(order, at, gather, reduction, silent, optimizer, first)
    microbatch, by_order = np.zeros(len(row), np.bool_), np.zeros(len(row), np.bool_)
    backward_end, ready = np.full(len(row), NEVER, np.int64), np.full(len(row), NONE, np.int64)
    cycle = np.where(told, order.cycle[np.maximum(at, 0)], NONE) if len(order.row) else np.full(len(row), NONE)
    for each in np.unique(cycle[told]).tolist():
        mine = np.flatnonzero(cycle == each)
        mine = mine[np.argsort(at[mine], kind="stable")]
        step = StepOrder(order, each, at, mine, gather, reduction, optimizer)
        step.find_gathers(first, by_order, thresholds)
        step.find_reductions(microbatch, backward_end, ready, thresholds)
    return Roles(
        gather=gather,
        reduction=reduction,
        launched=launched,
        returned=returned,
        first_gather=first & ~optimizer & ~by_order,
        optimizer=optimizer | by_order,
        by_order=by_order,
        microbatch=microbatch,
        backward_end=backward_end,
        ready=ready,
        on_compute_stream=np.isin(ops.stream[row], np.array(work.streams, np.int64)),
        cycle=cycle,
    )
