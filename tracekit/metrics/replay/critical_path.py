"""The critical path of the replayed steps: the chain of what nothing could have been later without delaying the end.

Walked backwards from the end of the last step: of all that something waited for, what came last. Waiting for a peer is
not on it: where a collective waits, the path goes on with what the last rank to arrive was doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge, Node
from tracekit.metrics.replay.replay import Steps
from tracekit.metrics.views import OpLabels
from tracekit.results import CriticalPath
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]

CATEGORIES = ("compute", "comm", "copy", "host", "idle")
OF_KIND = {Kind.COMPUTE: "compute", Kind.COMM: "comm", Kind.COPY: "copy"}
HOST_EDGES = (Edge.LAUNCH, Edge.HOST, Edge.BLOCKED, Edge.CALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One stretch of the path, ns."""

    low: float
    high: float
    category: str
    node: int
    """Whose time it is, or what it delays."""


def critical_path(steps: Steps, ranks: Sequence[int], labels: Sequence[OpLabels]) -> CriticalPath:
    """The critical path of all replayed steps; ``ranks`` and ``labels`` are in the order of the analysis."""
    graph = steps.graph
    moment = steps.moments([(graph.duration, graph.lag)])[:, 0]
    binding = _binding(graph, moment)
    whose = _owners(graph, binding)
    start = float(moment[steps.starts[:, 0]].min())
    by_category = dict.fromkeys(CATEGORIES, 0)
    by_rank = dict.fromkeys(ranks, 0)
    by_module: dict[str | None, int] = {}
    for piece in _pieces(steps, moment, binding, start):
        ns = round(piece.high) - round(piece.low)
        by_category[piece.category] += ns
        rank, op = int(graph.rank[whose[piece.node]]), int(graph.item[whose[piece.node]])
        by_rank[ranks[rank]] += ns
        module = (
            _module(labels[rank], int(graph.work[rank].row[op])) if graph.kind[whose[piece.node]] == Node.OP else None
        )
        by_module[module] = by_module.get(module, 0) + ns
    ranked = sorted(by_module.items(), key=lambda pair: (-pair[1], pair[0] or ""))
    return CriticalPath(
        length_ns=sum(by_category.values()),
        by_category=by_category,
        by_rank=by_rank,
        by_module=tuple((name, ns) for name, ns in ranked if ns),
    )


def _binding(graph: Graph, moment: Float) -> Int64:
    """(nodes,) the edge that each node waited for longest; NONE where its release held it."""
    arrives = moment[graph.source] + graph.lag + np.where(graph.from_end, graph.duration[graph.source], 0.0)
    # Of what comes at one moment the GPU's own is taken: a host that polls launches when the GPU is done.
    order = np.lexsort((~np.isin(graph.edge, HOST_EDGES), np.rint(arrives), graph.target))
    last = order[np.append(graph.target[order][1:] != graph.target[order][:-1], True)] if len(order) else order
    binding = np.full(len(graph.kind), NONE, np.int64)
    binding[graph.target[last]] = np.where(arrives[last] > moment[graph.target[last]] - 1, last, NONE)
    return binding


def _owners(graph: Graph, binding: Int64) -> Int64:
    """(nodes,) the operation that each is about: a transfer of the last rank to arrive, a call of what it launches."""
    owner = np.arange(len(graph.kind))
    joins = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    owner[graph.target[joins]] = graph.source[joins]  # of some rank in it, where nothing held it back
    launches = np.flatnonzero(graph.edge == Edge.LAUNCH)
    owner[graph.source[launches]] = graph.target[launches]
    transfers = np.flatnonzero((graph.kind == Node.TRANSFER) & (binding != NONE))
    owner[transfers] = graph.source[binding[transfers]]
    return owner


def _pieces(steps: Steps, moment: Float, binding: Int64, start: float) -> Iterator[_Piece]:
    """The path's stretches between the steps' first beginning and their last end, latest first."""
    graph = steps.graph
    node, at, from_end = NONE, -np.inf, False
    for nodes, followed in zip(steps.ends, steps.followed.tolist(), strict=True):
        ends = moment[nodes] + (0.0 if followed else graph.duration[nodes])
        if ends.max() > at:
            node, at, from_end = int(nodes[np.argmax(ends)]), float(ends.max()), not followed
    while True:
        if from_end:
            begun = max(float(moment[node]), start)
            yield _Piece(low=min(begun, at), high=at, category=_category(graph, node), node=node)
            at = min(begun, at)
        edge = int(binding[node])
        if at <= start or edge == NONE:
            break
        source, from_end = int(graph.source[edge]), bool(graph.from_end[edge])
        left = float(moment[source]) + (float(graph.duration[source]) if from_end else 0.0)
        left = min(max(left, start), at)
        yield _Piece(low=left, high=at, category="host" if graph.edge[edge] in HOST_EDGES else "idle", node=node)
        node, at = source, left
    if at > start:
        yield _Piece(low=start, high=at, category="idle", node=node)


def _category(graph: Graph, node: int) -> str:
    if graph.kind[node] == Node.TRANSFER:
        return "comm"
    rank, item = int(graph.rank[node]), int(graph.item[node])
    return OF_KIND[Kind(int(graph.work[rank].kind[item]))] if graph.kind[node] == Node.OP else "host"


def _module(labels: OpLabels, row: int) -> str | None:
    index = int(labels.module[row])
    return labels.modules[index] if index != NONE else None
