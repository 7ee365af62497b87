"""The order in which a rank launched its work and its communication, cut into steps and passes.

The host goes through a step from front to back, whatever the streams make of it. Where no range tells of steps and
phases, the names of the optimizer's kernels tell where one pass ends and the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.metrics.work import Work
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class LaunchOrder:
    """Work and communication of a rank in the order of launch; operations without a launch row are left out."""

    row: Int64
    work: Bool
    """Work that is not the optimizer's."""
    optimizer: Bool
    """Work that is."""
    phase: Int64
    step: Int64
    length: Int64
    end: Int64
    cycle: Int64

    @classmethod
    def of(cls, view: RankView, work: Work) -> LaunchOrder:
        """Sort by the launch calls."""
        ops, labels = view.ops, view.labels
        row = np.concatenate([work.row, view.collectives.row]).astype(np.int64)
        is_work = np.repeat([True, False], [len(work.row), len(view.collectives.row)])
        updates = np.concatenate([work.optimizer, np.zeros(len(view.collectives.row), np.bool_)])
        known = ops.call[row] != NONE
        row, is_work, updates = row[known], is_work[known], updates[known]
        order = np.argsort(view.process.calls.start[ops.call[row]], kind="stable")
        row, is_work, updates = row[order], is_work[order], updates[order]
        phase, step = labels.phase[row], labels.step[row]
        plain, updates = is_work & ~updates, is_work & updates
        return cls(
            row=row,
            work=plain,
            optimizer=updates,
            phase=phase,
            step=step,
            length=ops.end[row] - ops.start[row],
            end=ops.end[row],
            cycle=_cycles(step, phase, plain, updates),
        )

    def work_before(self) -> NDArray[np.int64]:
        """Index of the last work (of either sort) launched before each operation, or NONE."""
        index = np.where(self.work | self.optimizer, np.arange(len(self.row)), NONE)
        latest = np.maximum.accumulate(index) if len(index) else index
        return np.append(NONE, latest[:-1]) if len(latest) else latest


def _cycles(step: Int64, phase: Int64, plain: Bool, updates: Bool) -> Int64:
    """A count of steps: by their ranges; else from one optimizer step to the next work that is not the optimizer's."""
    if len(step) == 0:
        return np.empty(0, np.int64)
    if np.any(step != NONE):
        changes = (step != NONE) & (step != _held(step))
        return np.cumsum(changes) - 1 + (0 if changes[0] else 1)
    state = np.where(updates, 1, np.where(plain & (phase != OPTIMIZER), 0, NONE))
    before = _held(state)
    return np.cumsum((state == 0) & (before == 1))


def _held(values: Int64) -> Int64:
    """The last value that is not NONE before each entry; NONE where there is none."""
    at = np.maximum.accumulate(np.where(values != NONE, np.arange(len(values)), NONE))
    latest = np.where(at != NONE, values[np.maximum(at, 0)], NONE)
    return np.append(NONE, latest[:-1])


def mark_by_optimizer_kernels(
    order: LaunchOrder, at: Int64, gather: Bool, reduction: Bool, silent: Bool, optimizer: Bool, first: Bool
) -> None:
    """Where no phase is told: what was launched right after the optimizer's kernels.

    A reduction there is the norm of the gradients. A gather is ZeRO's, of updated parameters, if it is launched in the
    optimizer's own step, or if the job never gathers at another place; else it is the first of the next step.
    """
    before = order.work_before()
    rows = np.flatnonzero(silent)
    previous = before[at[rows]]
    after = (previous != NONE) & order.optimizer[np.maximum(previous, 0)]
    follows = np.zeros(len(at), np.bool_)
    follows[rows[after]] = True
    optimizer |= follows & reduction
    gathers = follows & gather
    if not gathers.any():
        return
    own_step = np.zeros(len(at), np.bool_)
    step = order.step[at[rows]]
    own_step[rows] = (step != NONE) & (step == order.step[np.maximum(previous, 0)])
    nowhere_else = bool(np.all(gathers == (gather & silent)))
    in_steps = bool(np.any(order.step != NONE))
    ours = gathers & (own_step if in_steps else nowhere_else)
    optimizer |= ours
    first |= gathers & ~ours


class StepOrder:
    """The operations of one step, in the order of launch."""

    def __init__(
        self,
        order: LaunchOrder,
        cycle: int,
        at: Int64,
        mine: NDArray[np.intp],
        gather: Bool,
        reduction: Bool,
        optimizer: Bool,
    ) -> None:
        self._order, self._at = order, at
        low, high = (int(np.searchsorted(order.cycle, cycle, side=side)) for side in ("left", "right"))
        self._work = low + np.flatnonzero(order.work[low:high])
        self._low, self._end = low, high
        self._reductions = mine[reduction[mine] & ~optimizer[mine]]
        self._gathers = mine[gather[mine] & ~optimizer[mine]]

    def find_gathers(self, first: Bool, by_order: Bool, thresholds: Thresholds) -> None:
        """Mark the gathers that begin the step, and those that come after all its reductions."""
        at, work, gathers = self._at, self._work, self._gathers
        if len(gathers) == 0:
            return
        begin = at[gathers[0]]
        if len(self._reductions) and begin > at[self._reductions[-1]]:
            by_order[gathers[self._order.phase[at[gathers]] == NONE]] = True
        if np.any(at[self._reductions] < begin):
            return
        ahead = int(self._order.length[work[work < begin]].sum())
        if ahead <= thresholds.first_gather_work_share * int(self._order.length[work].sum()):
            following = work[work > begin]
            first[gathers[at[gathers] < (following[0] if len(following) else self._end)]] = True

    def find_reductions(self, microbatch: Bool, backward_end: Int64, ready: Int64, thresholds: Thresholds) -> None:
        """Tell when the step's backward pass ends and each reduction could start; mark those of earlier passes."""
        at, work, reductions = self._at, self._work, self._reductions
        if len(reductions) == 0:
            return
        backward = work[self._order.phase[work] == BACKWARD]
        if len(backward) == 0:  # the step goes on after the last reduction if it gathers again, and uses that
            again = at[self._gathers[at[self._gathers] > at[reductions[-1]]]]
            goes_on = len(again) > 0 and len(work) > 0 and work[-1] > again[0]
            backward = work if goes_on else work[work < at[reductions[-1]]]
        if len(backward):
            ends = np.maximum.accumulate(self._order.end[backward])
            backward_end[reductions] = ends[-1]
            before = np.searchsorted(backward, at[reductions]) - 1
            ready[reductions] = np.where(before >= 0, ends[np.maximum(before, 0)], NONE)
        turns = self._turns(thresholds)
        passes = np.searchsorted(turns, at[reductions], side="right")
        microbatch[reductions[passes < passes.max()]] = True

    def _turns(self, thresholds: Thresholds) -> Int64:
        """Where the next microbatch begins: forward after backward. None where the forward passes are not alike.

        They are not where activations are computed again, layer by layer, inside the backward pass.
        """
        low, high = self._low, self._end
        phase = self._order.phase[low:high]
        told = low + np.flatnonzero((phase == FORWARD) | (phase == BACKWARD))
        phase = self._order.phase[told]
        turns = told[1:][(phase[1:] == FORWARD) & (phase[:-1] == BACKWARD)]
        forward = self._work[self._order.phase[self._work] == FORWARD]
        time = np.bincount(
            np.searchsorted(turns, forward, side="right"), self._order.length[forward], minlength=len(turns) + 1
        )
        alike = time.max() <= thresholds.microbatch_ratio * float(np.median(time))
        result: Int64 = turns if alike else turns[:0]
        return result
