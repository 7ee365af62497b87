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
from tracekit.metrics.clocks import SAME, ClockFit
from tracekit.metrics.matching import FINISH_TOGETHER
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.replay.changes import Changed
from tracekit.metrics.replay.graph import Graph, build_graph
from tracekit.metrics.replay.longest_path import CycleError, Order
from tracekit.metrics.replay.windows import Window, choose_steps, step_windows, whole_capture
from tracekit.metrics.replay.work import Names
from tracekit.metrics.together import Together
from tracekit.results import Steady
from tracekit.timeline import NONE, Ops, Timeline

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Consecutive steps as a graph that can be replayed."""

    numbers: tuple[int, ...]
    """() where the whole capture counts as one step."""
    graph: Graph
    order: Order
    starts: Int64
    """(ranks, steps) nodes at which the steps begin."""
    ends: tuple[Int64, ...]
    """By rank: the node at which the last step ends; where nothing follows it, all nodes whose ends it includes."""
    followed: NDArray[np.bool_]
    """(ranks,) whether another step follows the last one."""
    walls: Float
    """(ranks, steps) as measured, ns."""
    unexplained: float = 0.0
    """What `error` found."""

    @property
    def step_ns(self) -> float:
        """Mean over ranks and steps, as measured."""
        return float(self.walls.mean())

    @property
    def launched(self) -> tuple[Int64, ...]:
        """By rank: when the launches of the steps' first kernels began, ns on the reference's clock."""
        return tuple(w.launched[self.graph.item[row]] for w, row in zip(self.graph.work, self.starts, strict=True))

    @property
    def begun(self) -> tuple[Int64, ...]:
        """By rank: when the steps' first kernels began, ns on the reference's clock."""
        return tuple(w.start[self.graph.item[row]] for w, row in zip(self.graph.work, self.starts, strict=True))

    def moments(self, changed: Sequence[Changed], *, explained_only: bool = False) -> Float:
        """(nodes, changes) when everything happens with each change, ns since the graph's zero."""
        graph = self.graph
        weight = np.empty((len(graph.source), len(changed)))
        for column, (duration, lag) in enumerate(changed):
            weight[:, column] = lag + np.where(graph.from_end, duration[graph.source], 0.0)
        if explained_only:
            weight -= graph.unexplained[:, None]
        return self.order.earliest(weight, graph.release)

    def times(self, changed: Sequence[Changed], *, explained_only: bool = False) -> Float:
        """(ranks, steps, changes) length of each step with each change, ns."""
        moment = self.moments(changed, explained_only=explained_only)
        bounds = np.empty((self.starts.shape[0], self.starts.shape[1] + 1, len(changed)))
        bounds[:, :-1] = moment[self.starts]
        for rank, nodes in enumerate(self.ends):
            for column, (duration, _) in enumerate(changed):
                length = 0.0 if self.followed[rank] else duration[nodes]
                bounds[rank, -1, column] = np.max(moment[nodes, column] + length)
        return np.diff(bounds, axis=1)

    def error(self) -> float:
        """By how much the worst step's replay misses, as a share of it, when nothing unexplained is kept."""
        again = self.times([(self.graph.duration, self.graph.lag)], explained_only=True)[:, :, 0]
        measured = self.walls.mean(axis=0)
        # A step of no length (operations of no length only) is missed by all of it, or not at all.
        return float(np.max(np.abs(again.mean(axis=0) - measured) / np.maximum(measured, 1)))

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
    """The graph of a few steady steps (without steps: of the whole capture), or why there is none."""
    clocks = _clocks(timeline, measured, together)
    if clocks is None:
        return "the captures' clocks are not aligned"
    numbers = choose_steps(measured, steady, thresholds) if steady else []
    if steady and not numbers:
        return "no step is held by all ranks, or it has too many operations"
    if not steady and sum(len(m.track.ops) for m in measured) > thresholds.replay_operations:
        return "the captures have no steps, and too many operations to be replayed as one"
    windows = step_windows(measured, numbers) if steady else whole_capture(measured)
    graph = _graph(timeline, measured, together, clocks, windows, bool(steady), thresholds)
    return _steps(graph, measured, windows, numbers, thresholds)


def _clocks(timeline: Timeline, measured: Sequence[RankMeasures], together: Together) -> list[ClockFit] | None:
    """Each rank's clock; where it was not measured, by the few collectives that there are. None without any."""
    reference = timeline.processes[measured[0].track.process].capture
    clocks = []
    for rank, (m, clock) in enumerate(zip(measured, together.clocks, strict=True)):
        if timeline.processes[m.track.process].capture == reference:
            clocks.append(clock or SAME)
        elif clock is not None and clock.method != "not_aligned":
            clocks.append(clock)
        else:
            apart = _ends_apart(measured, together, rank)
            if not len(apart):
                return None
            clocks.append(replace(SAME, offset_ns=int(np.median(apart)), method="collectives"))
    return clocks


def _ends_apart(measured: Sequence[RankMeasures], together: Together, rank: int) -> Int64:
    """By how much later a rank's collectives end than the first rank's, raw, ns."""
    apart = [np.empty(0, np.int64)]
    for kind in together.matched:
        if kind.op in FINISH_TOGETHER and {0, rank} <= set(kind.members):
            rows = [measured[r].collectives.row[kind.index[kind.members.index(r)][kind.complete]] for r in (0, rank)]
            apart.append(measured[rank].track.ops.end[rows[1]] - measured[0].track.ops.end[rows[0]])
    return np.concatenate(apart)


def _graph(
    timeline: Timeline,
    measured: Sequence[RankMeasures],
    together: Together,
    clocks: Sequence[ClockFit],
    windows: Sequence[Window],
    learn_before: bool,
    thresholds: Thresholds,
) -> Graph:
    spans = [
        clock.to_reference(np.array([window.starts[0], window.end], np.int64))
        for clock, window in zip(clocks, windows, strict=True)
    ]
    low, high = min(int(span[0]) for span in spans), max(int(span[1]) for span in spans)
    return build_graph(
        measured,
        [timeline.processes[m.track.process] for m in measured],
        together.matched,
        clocks,
        Names.of(timeline.names),
        (low, high),
        low - (high - low) if learn_before else low,
        thresholds,
    )


def _steps(
    graph: Graph,
    measured: Sequence[RankMeasures],
    windows: Sequence[Window],
    numbers: Sequence[int],
    thresholds: Thresholds,
) -> Steps | str:
    """The graph with where its steps begin and end, or why it cannot be trusted."""
    bounds = [
        _bounds(graph, rank, window, m.track.ops)
        for rank, (window, m) in enumerate(zip(windows, measured, strict=True))
    ]
    found = [each for each in bounds if each is not None]
    if len(found) < len(bounds):
        return "the steps' first kernels are not among the replayed operations"
    try:
        order = Order.of(len(graph.kind), graph.source, graph.target)
    except CycleError as cycle:
        return str(cycle)
    made = Steps(
        numbers=tuple(numbers),
        graph=graph,
        order=order,
        starts=np.stack([starts for starts, _, _ in found]),
        ends=tuple(ends for _, ends, _ in found),
        followed=np.array([followed for _, _, followed in found], np.bool_),
        walls=np.array([np.diff([*window.starts, window.end]) for window in windows], np.float64),
    )
    error = made.error()
    if error > thresholds.replay_error_share:
        return f"what is known of the dependencies leaves {error:.0%} of a step unexplained"
    return replace(made, unexplained=error)


def _bounds(graph: Graph, rank: int, window: Window, ops: Ops) -> tuple[Int64, Int64, bool] | None:
    """(nodes at which a rank's steps begin, nodes at or with which the last one ends, whether a step follows it)."""
    row, node, end = graph.work[rank].row, graph.op_node[rank], graph.end_node[rank]
    anchoring = np.flatnonzero((node != NONE) & ((ops.stream[row] == window.stream) | (window.stream is None)))
    if not len(anchoring):
        return None
    edges = np.array([*window.starts, window.end], np.int64)
    at = np.minimum(np.searchsorted(ops.start[row[anchoring]], edges), len(anchoring) - 1)
    exact = ops.start[row[anchoring[at]]] == edges
    if not exact[:-1].all():
        return None
    nodes = node[anchoring[at]]
    if exact[-1]:
        return nodes[:-1], nodes[-1:], True
    inside = np.flatnonzero((node != NONE) & (ops.end[row] <= window.end))
    return nodes[:-1], end[inside], False
