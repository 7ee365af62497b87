"""What part each communication operation of a rank plays in its step, and what stood around it when it started.

Order of launch tells the part: the host goes through a step from front to back, whatever the streams make of it. Where
no range tells of steps and phases, the names of the optimizer's kernels tell where one pass ends and the next begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce")
FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
NEVER = np.iinfo(np.int64).max

_FEEDERS = re.compile("CatArrayBatchedCopy|split_with_sizes_copy|chunk_cat")
"""Copies that fill or empty the buffers of collectives (FSDP): beside the main stream they hide nothing."""
_OPTIMIZERS = re.compile("multi_tensor_apply|[Aa]dam|FusedOptimizer|lamb_|LAMB|Adafactor|adafactor|[Mm]uon")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """A rank's compute but for copies that feed collectives, sorted by start."""

    row: NDArray[np.intp]
    start: Int64
    end: Int64
    cover: Cover
    optimizer: Bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roles:
    """Columns with an entry for each communication operation of a rank."""

    gather: Bool
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
    on_compute_stream: Bool
    cycle: Int64
    """Which step it was launched in (a count from 0 in order of launch); NONE where the launch is not known."""


def work_of(view: RankView) -> Work:
    """The rank's work."""
    ops = view.ops
    feeds, updates = (_named(view, pattern) for pattern in (_FEEDERS, _OPTIMIZERS))
    row = np.flatnonzero((ops.kind == Kind.COMPUTE) & ~(feeds & (ops.stream != view.main_stream)))
    start, end = ops.start[row], ops.end[row]
    return Work(
        row=row,
        start=start,
        end=end,
        cover=Cover.of(start, end),
        optimizer=updates[row] | (view.labels.phase[row] == OPTIMIZER),
    )


def _named(view: RankView, pattern: re.Pattern[str]) -> Bool:
    """(operations,) whose name the pattern finds; asked once for each distinct name."""
    distinct, inverse = np.unique(view.ops.name, return_inverse=True)
    found = np.array([pattern.search(view.names[i]) is not None for i in distinct.tolist()], np.bool_)
    result: Bool = found[inverse] if len(distinct) else np.zeros(0, np.bool_)
    return result


def roles_of(view: RankView, work: Work, thresholds: Thresholds) -> Roles:
    """Tell the part of each communication operation."""
    found, ops, calls = view.collectives, view.ops, view.process.calls
    row = found.row
    call = ops.call[row]
    known = call != NONE
    launched, returned = np.full(len(row), NONE, np.int64), np.full(len(row), NONE, np.int64)
    launched[known], returned[known] = calls.start[call[known]], calls.end[call[known]]
    op = np.array([name for _, name in found.group] or [""])[found.of]
    gather, reduction = op == "all_gather", np.isin(op, REDUCTIONS)
    order = _LaunchOrder.of(view, work)
    place = np.full(len(ops), NONE, np.int64)
    place[order.row] = np.arange(len(order.row))
    at = place[row]
    told = at != NONE
    optimizer = np.zeros(len(row), np.bool_)
    optimizer[told] = order.phase[at[told]] == OPTIMIZER
    silent = told & (view.labels.phase[row] == NONE)
    first = np.zeros(len(row), np.bool_)
    _by_optimizer_kernels(order, at, gather, reduction, silent, optimizer, first)
    microbatch, by_order = np.zeros(len(row), np.bool_), np.zeros(len(row), np.bool_)
    backward_end = np.full(len(row), NEVER, np.int64)
    cycle = np.where(told, order.cycle[np.maximum(at, 0)], NONE) if len(order.row) else np.full(len(row), NONE)
    for each in np.unique(cycle[told]).tolist():
        mine = np.flatnonzero(cycle == each)
        mine = mine[np.argsort(at[mine], kind="stable")]
        step = _Step(order, each, at, mine, gather, reduction, optimizer)
        step.find_gathers(first, by_order, thresholds)
        step.find_reductions(microbatch, backward_end)
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
        on_compute_stream=np.isin(ops.stream[row], _compute_streams(view, work, thresholds)),
        cycle=cycle,
    )


def _compute_streams(view: RankView, work: Work, thresholds: Thresholds) -> list[int]:
    """The streams that carry a good share of the compute."""
    streams, inverse = np.unique(view.ops.stream[work.row], return_inverse=True)
    time = np.zeros(len(streams), np.int64)
    np.add.at(time, inverse, work.end - work.start)
    kept: list[int] = streams[time >= thresholds.compute_stream_share * max(int(time.sum()), 1)].tolist()
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _LaunchOrder:
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
    def of(cls, view: RankView, work: Work) -> _LaunchOrder:
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


def _by_optimizer_kernels(
    order: _LaunchOrder, at: Int64, gather: Bool, reduction: Bool, silent: Bool, optimizer: Bool, first: Bool
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


class _Step:
    """The operations of one step, in the order of launch."""

    def __init__(
        self,
        order: _LaunchOrder,
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
        self._end = high
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

    def find_reductions(self, microbatch: Bool, backward_end: Int64) -> None:
        """Tell when the step's backward pass ends, and mark the reductions of earlier passes."""
        at, work, reductions = self._at, self._work, self._reductions
        if len(reductions) == 0:
            return
        phase = self._order.phase[work]
        backward = work[phase == BACKWARD]
        if len(backward) == 0:  # the step goes on after the last reduction if it gathers again
            ends = len(self._gathers) == 0 or at[self._gathers[-1]] < at[reductions[-1]]
            by_order = len(self._gathers) and at[self._gathers[0]] > at[reductions[-1]]
            backward = work[work < at[reductions[-1]]] if ends or by_order else work
        if len(backward):
            backward_end[reductions] = int(self._order.end[backward].max())
        turns = np.flatnonzero((phase[1:] == FORWARD) & (phase[:-1] == BACKWARD)) + 1  # the next microbatch begins
        passes = np.searchsorted(work[turns], at[reductions], side="right")
        if len(np.unique(passes)) > 1:
            microbatch[reductions[passes < len(turns)]] = True
