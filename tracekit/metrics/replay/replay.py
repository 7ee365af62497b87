"""Replays the steps of a job with something changed.

The steps are consecutive, for one hands its delays to the next. A replay without changes has to reproduce the measured
step time first; where what is known of the dependencies does not explain it, nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.replay.changes import Changed
from tracekit.metrics.replay.graph import Graph, build_graph
from tracekit.metrics.replay.longest_path import CycleError, Order
from tracekit.metrics.together import Together
from tracekit.results import Steady, Step
from tracekit.timeline import NONE, Timeline

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Consecutive steps as a graph that can be replayed."""

    numbers: tuple[int, ...]
    graph: Graph
    order: Order
    bounds: Int64
    """(ranks, steps + 1) nodes at which the steps begin; the last column ends the last step."""
    ends: NDArray[np.bool_]
    """(ranks,) whether the last column's node counts with its end: nothing follows the last step."""
    launched: tuple[Int64, ...]
    """By rank: when the launches of the steps' first kernels began, ns on the reference's clock."""
    step_ns: float
    """Mean over ranks and steps, as measured."""
    unexplained: float = 0.0
    """What `error` found."""

    def times(self, changed: Sequence[Changed], *, explained_only: bool = False) -> Float:
        """(ranks, steps, changes) length of each step with each change, ns."""
        graph = self.graph
        weight = np.empty((len(graph.source), len(changed)))
        durations = np.empty((len(graph.kind), len(changed)))
        for column, (duration, lag) in enumerate(changed):
            durations[:, column] = duration
            weight[:, column] = lag + np.where(graph.from_end, duration[graph.source], 0.0)
        if explained_only:
            weight -= graph.unexplained[:, None]
        moment = self.order.earliest(weight, graph.release)
        at = moment[self.bounds]
        at[self.ends, -1] += durations[self.bounds[self.ends, -1]]
        return np.diff(at, axis=1)

    def error(self, walls: Float) -> float:
        """By how much the worst step's replay misses, as a share of it, when nothing unexplained is kept.

        ``walls`` are the (ranks, steps) measured lengths, ns.
        """
        again = self.times([(self.graph.duration, self.graph.lag)], explained_only=True)[:, :, 0]
        return float(np.max(np.abs(again.mean(axis=0) / walls.mean(axis=0) - 1)))

    def predict(self, changed: Mapping[str, Changed]) -> dict[str, float]:
        """Mean step time with each change, ns."""
        if not changed:
            return {}
        means = self.times(list(changed.values())).mean(axis=(0, 1))
        return dict(zip(changed, means.tolist(), strict=True))


def replayable_steps(
    timeline: Timeline,
    measured: Sequence[RankMeasures],
    together: Together,
    steady: Steady | None,
    thresholds: Thresholds,
) -> Steps | str:
    """The graph of a few steady steps, or why there is none."""
    if steady is None:
        return "the captures have no steps"
    clocks = [clock for clock in together.clocks if clock is not None and clock.method != "not_aligned"]
    captures = {timeline.processes[m.track.process].capture for m in measured}
    if len(captures) > 1 and len(clocks) < len(measured):
        return "the captures' clocks are not aligned"
    clocks = [clock for clock in together.clocks if clock is not None]
    if any(np.count_nonzero(m.track.ops.call != NONE) == 0 for m in measured):
        return "the captures lack launch rows"
    chosen = _choose(measured, steady, thresholds)
    if not chosen:
        return "no step is held by all ranks, or it has too many operations"
    return _steps(timeline, measured, together, clocks, chosen, thresholds)


def _choose(measured: Sequence[RankMeasures], steady: Steady, thresholds: Thresholds) -> list[int]:
    """Consecutive steady steps that all ranks have, of usual length, as many as may be replayed together."""
    have = set.intersection(*({step.step for step in m.steps} for m in measured))
    runs: list[list[int]] = [[]]
    for number in steady.steps:
        if number in have:
            runs[-1].append(number)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    if not longest:
        return []
    walls = {n: np.mean([s.account.wall_ns for m in measured for s in m.steps if s.step == n]) for n in longest}
    operations = sum(_operations(m, set(longest)) for m in measured) / len(longest)
    count = int(min(len(longest), thresholds.replay_steps, thresholds.replay_operations // max(operations, 1)))
    if count == 0:
        count = 1 if operations <= 3 * thresholds.replay_operations else 0
    usual = float(np.median(list(walls.values())))
    windows = [longest[i : i + count] for i in range(len(longest) - count + 1)] if count else []
    return min(windows, key=lambda w: abs(float(np.mean([walls[n] for n in w])) - usual), default=[])


def _operations(m: RankMeasures, numbers: set[int]) -> int:
    steps = [step for step in m.steps if step.step in numbers]
    first, last = min(s.start_ns for s in steps), max(s.end_ns for s in steps)
    return int(np.count_nonzero((m.track.ops.start >= first) & (m.track.ops.start < last)))


def _steps(
    timeline: Timeline,
    measured: Sequence[RankMeasures],
    together: Together,
    clocks: Sequence[ClockFit],
    numbers: Sequence[int],
    thresholds: Thresholds,
) -> Steps | str:
    chosen = [[step for step in m.steps if step.step in set(numbers)] for m in measured]
    edges = [
        clock.to_reference(np.array([steps[0].start_ns, steps[-1].end_ns], np.int64))
        for clock, steps in zip(clocks, chosen, strict=True)
    ]
    low, high = min(int(e[0]) for e in edges), max(int(e[1]) for e in edges)
    recording = [i for i, name in enumerate(timeline.names) if "EventRecord" in name]
    graph = build_graph(
        [m.track for m in measured],
        [timeline.processes[m.track.process] for m in measured],
        [m.collectives for m in measured],
        together.matched,
        clocks,
        np.array(recording, np.int32),
        (low, high),
        low - (high - low),
        thresholds,
    )
    bounds = [
        _bounds(m, steps, work.row, node, end)
        for m, steps, work, node, end in zip(measured, chosen, graph.work, graph.op_node, graph.end_node, strict=True)
    ]
    if any(found is None for found in bounds):
        return "the steps' first kernels are not among the replayed operations"
    try:
        order = Order.of(len(graph.kind), graph.source, graph.target)
    except CycleError as cycle:
        return str(cycle)
    nodes = np.stack([found[0] for found in bounds if found is not None])
    ends = np.array([found[1] for found in bounds if found is not None], np.bool_)
    launched = [work.launched[graph.item[row[: len(numbers)]]] for work, row in zip(graph.work, nodes, strict=True)]
    walls = np.array([[step.account.wall_ns for step in steps] for steps in chosen], np.float64)
    made = Steps(
        numbers=tuple(numbers),
        graph=graph,
        order=order,
        bounds=nodes,
        ends=ends,
        launched=tuple(launched),
        step_ns=float(walls.mean()),
    )
    error = made.error(walls)
    if error > thresholds.replay_error_share:
        return f"what is known of the dependencies leaves {error:.0%} of a step unexplained"
    return replace(made, unexplained=error)


def _bounds(
    m: RankMeasures, steps: Sequence[Step], row: NDArray[np.intp], node: Int64, end_node: Int64
) -> tuple[Int64, bool] | None:
    """(nodes at the steps' beginnings and at the last one's end, whether the last node counts with its end)."""
    ops = m.track.ops
    starts = np.array([*(step.start_ns for step in steps), steps[-1].end_ns], np.int64)
    main = np.flatnonzero(ops.stream[row] == m.stream)
    at = np.searchsorted(ops.start[row[main]], starts)
    inside = np.minimum(at, len(main) - 1)
    exact = ops.start[row[main[inside]]] == starts
    if not exact[:-1].all():
        return None
    found = node[main[inside]]
    ends = not exact[-1]
    if ends:
        last = np.flatnonzero(ops.end[row] == starts[-1])
        if not len(last):
            return None
        found[-1] = end_node[last[-1]]
    return (found, ends) if np.all(found != NONE) else None
