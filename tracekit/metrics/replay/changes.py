"""What could be different: changes of the durations and lags of a step's graph.

Each takes (durations by node, lags by edge) and returns new ones, so that several can be made together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge, Node
from tracekit.metrics.replay.twins import Twins
from tracekit.metrics.replay.work import RankWork, labels
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

Changed = tuple[Float, Float]
"""(durations by node, lags by edge), ns."""
LONG_BEFORE = -1e15
"""Added to the lag of an edge that binds nothing any more, ns: eleven days earlier."""


def no_straggler(now: Changed, kernels: Twins, gaps: Twins, ranks: Sequence[int]) -> Changed:
    """The ranks compute as fast as the median of the others, and their hosts pause no longer."""
    duration, lag = now[0].copy(), now[1].copy()
    pace = kernels.at_peers(duration, ranks, mean=False)
    slow = np.isin(kernels.rank, ranks) & ~np.isnan(pace)
    duration[kernels.item[slow]] = pace[slow]
    return duration, _without_pauses(lag, gaps, ranks, np.isin(gaps.rank, ranks))


def balanced(now: Changed, kernels: Twins, gaps: Twins) -> Changed:
    """All ranks have the mean work of the ranks, and no host pauses longer than the median one does there."""
    duration, lag = now[0].copy(), now[1].copy()
    pace = kernels.at_peers(duration, (), mean=True)
    known = ~np.isnan(pace)
    duration[kernels.item[known]] = pace[known]
    return duration, _without_pauses(lag, gaps, (), np.ones(len(gaps.item), np.bool_))


def even_stages(now: Changed, graph: Graph) -> Changed:
    """No rank computes longer in all than the median rank: the surplus of a stage that has more is gone."""
    duration = now[0].copy()
    computing = [
        node[(node != NONE) & (work.kind == Kind.COMPUTE)] for work, node in zip(graph.work, graph.op_node, strict=True)
    ]
    spent = np.array([duration[mine].sum() for mine in computing])
    for mine, own in zip(computing, spent, strict=True):
        duration[mine] *= min(1.0, float(np.median(spent)) / max(own, 1.0))
    return duration, now[1]


def _without_pauses(lag: Float, gaps: Twins, ranks: Sequence[int], mine: Bool) -> Float:
    usual = gaps.at_peers(lag, ranks, mean=False)
    longer = mine & ~np.isnan(usual)
    longer[longer] = lag[gaps.item[longer]] > usual[longer]
    lag[gaps.item[longer]] = usual[longer]
    return lag


def faster_network(now: Changed, graph: Graph, factor: float, thresholds: Thresholds) -> Changed:
    """Transfers move their bytes ``factor`` times as fast; what they take beyond that, their latency, stays."""
    duration, lag = now[0].copy(), now[1]
    comm = _kinds(graph) == Kind.COMM
    latency = np.minimum(duration[comm], thresholds.collective_latency_ns)
    duration[comm] = latency + (duration[comm] - latency) / factor
    return duration, lag


def without_edges(now: Changed, picked: Bool) -> Changed:
    """The picked edges bind nothing."""
    return now[0], np.where(picked, now[1] + LONG_BEFORE, now[1])


def host_on_time(now: Changed, graph: Graph) -> Changed:
    """Everything is launched long before it can start."""
    return without_edges(now, graph.edge == Edge.LAUNCH)


def no_synchronisation(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed:
    """No call waits for the GPU; each still takes its own time."""
    duration, lag = without_edges(now, graph.edge == Edge.BLOCKED)
    return duration, np.where(graph.edge == Edge.CALL, np.minimum(lag, thresholds.replay_launch_ns), lag)


def separate_communicators(now: Changed, graph: Graph) -> Changed:
    """Collectives of different streams do not queue behind each other."""
    source, target = _streams(graph, graph.source), _streams(graph, graph.target)
    return without_edges(now, (graph.edge == Edge.COMMUNICATOR) & (source != target))


def many_connections(now: Changed, graph: Graph) -> Changed:
    """Nothing that is launched in the backward pass waits for a reduction, except on the same stream."""
    reduction, backward = np.zeros(len(graph.kind), np.bool_), np.zeros(len(graph.kind), np.bool_)
    for work, node, end in zip(graph.work, graph.op_node, graph.end_node, strict=True):
        inside = node != NONE
        reduction[end[inside & work.reduction]] = True
        backward[node[inside & work.backward]] = True
    waits = np.isin(graph.edge, (Edge.EVENT, Edge.UNRECORDED))
    return without_edges(now, waits & reduction[graph.source] & backward[graph.target])


def deferred_reductions(now: Changed, graph: Graph) -> Changed:
    """Of several backward passes in a step only the last one reduces: nothing waits for what the others reduce."""
    dropped = np.zeros(len(graph.kind), np.bool_)
    for work, node, end in zip(graph.work, graph.op_node, graph.end_node, strict=True):
        dropped[end[(node != NONE) & work.deferrable]] = True
    duration, lag = without_edges(now, dropped[graph.source])
    return np.where(dropped, 0.0, duration), lag


def no_pageable_copies(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed:
    """Pageable copies are pinned: no call waits for them, and compute since the last one hides what it can."""
    duration, lag = now[0].copy(), now[1].copy()
    pageable = np.zeros(len(graph.kind), np.bool_)
    for work, node in zip(graph.work, graph.op_node, strict=True):
        mine = np.flatnonzero((node != NONE) & work.pageable)
        pageable[node[mine]] = True
        duration[node[mine]] = np.minimum(_pinned_ns(work, mine, thresholds), duration[node[mine]])
    return without_edges((duration, lag), (graph.edge == Edge.BLOCKED) & pageable[graph.source])


def _pinned_ns(work: RankWork, copies: NDArray[np.intp], thresholds: Thresholds) -> Float:
    """What copies would take from pinned memory, less the compute since the copy before, which they can run beside."""
    computing = work.kind == Kind.COMPUTE
    before = np.append(work.start[:1], work.end[copies])[:-1]
    beside = Cover.of(work.start[computing], work.end[computing]).within(before, work.start[copies])
    moving = np.maximum(work.bytes[copies], 0) / thresholds.pinned_bytes_per_s * 1e9
    return np.maximum(moving - beside, 0.0)


def _kinds(graph: Graph) -> NDArray[np.int8]:
    """`Kind` of each node; transfers are communication, and nodes of the host are nothing."""
    kinds = np.where(graph.kind == Node.TRANSFER, Kind.COMM, NONE).astype(np.int8)
    for work, node in zip(graph.work, graph.op_node, strict=True):
        inside = node != NONE
        kinds[node[inside]] = work.kind[inside]
    return kinds


def _streams(graph: Graph, nodes: Int64) -> Int64:
    """The stream of each operation among the nodes; of a transfer that of one of its operations."""
    stream = np.full(len(graph.kind), NONE, np.int64)
    for work, end in zip(graph.work, graph.end_node, strict=True):
        inside = end != NONE
        stream[end[inside]] = work.stream[inside]
    for work, node in zip(graph.work, graph.op_node, strict=True):
        inside = node != NONE
        stream[node[inside]] = work.stream[inside]
    return stream[nodes]


def no_contention(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed:
    """No kernel that runs under communication takes longer than the median of its like that run alone on its rank."""
    duration, lag = now[0].copy(), now[1]
    for work, node in zip(graph.work, graph.op_node, strict=True):
        mine = np.flatnonzero((node != NONE) & (work.kind == Kind.COMPUTE))
        alone = _median_alone(work, mine, duration[node[mine]], thresholds)
        slower = duration[node[mine]] > alone  # False where it is not known
        duration[node[mine[slower]]] = alone[slower]
    return duration, lag


def _median_alone(work: RankWork, mine: NDArray[np.intp], duration: Float, thresholds: Thresholds) -> Float:
    """(mine,) the median of the same kernel and grid without communication beside it, for those with; NaN else."""
    comm = work.kind == Kind.COMM
    beside = Cover.of(work.start[comm], work.end[comm]).within(work.start[mine], work.end[mine])
    alone = beside < thresholds.alone_share * (work.end[mine] - work.start[mine])
    kernel = labels(work.name[mine], work.grid[mine])
    twins = Twins(item=np.arange(len(mine)), rank=alone.astype(np.int64), group=kernel)
    typical = twins.at_peers(duration, (0,), mean=False)
    return np.where(alone, np.nan, typical)


def without_host_time(now: Changed, graph: Graph, spent: Sequence[Cover]) -> Changed:
    """The host does without what it spent, by rank, between calls."""
    duration, lag = now[0], now[1].copy()
    for rank, cover in enumerate(spent):
        edges = np.flatnonzero((graph.edge == Edge.HOST) & (graph.rank[graph.target] == rank))
        since, until = (graph.measured[side[edges]] + graph.zero_ns for side in (graph.source, graph.target))
        lag[edges] -= np.minimum(cover.within(since.astype(np.int64), until.astype(np.int64)), lag[edges])
    return duration, lag
