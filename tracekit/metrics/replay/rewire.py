"""Graphs with other edges: what is bound by something else than before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Edges to add to a graph, of one length; columns as in `Graph`."""

    source: Int64
    target: Int64
    edge: NDArray[np.int8]
    from_end: Bool
    lag: Float

    @classmethod
    def of(cls, kind: Edge, source: Int64, target: Int64, lag: Float | float, *, from_end: bool) -> Edges:
        """Edges of one kind."""
        n = len(source)
        return cls(
            source=source,
            target=target,
            edge=np.full(n, kind, np.int8),
            from_end=np.full(n, from_end, np.bool_),
            lag=np.broadcast_to(np.asarray(lag, np.float64), (n,)),
        )


def rewired(graph: Graph, kept: Bool, new: Sequence[Edges]) -> Graph:
    """The graph with the ``kept`` (m,) of its edges, and new ones behind them. Delays of new edges are explained."""
    added = sum(len(each.source) for each in new)
    return replace(
        graph,
        source=np.concatenate([graph.source[kept], *(each.source for each in new)]),
        target=np.concatenate([graph.target[kept], *(each.target for each in new)]),
        edge=np.concatenate([graph.edge[kept], *(each.edge for each in new)]),
        from_end=np.concatenate([graph.from_end[kept], *(each.from_end for each in new)]),
        lag=np.concatenate([graph.lag[kept], *(each.lag for each in new)]),
        unexplained=np.append(graph.unexplained[kept], np.zeros(added)),
    )


def launches(graph: Graph, rank: int) -> tuple[Int64, Float]:
    """By operation of a rank: the node of the call that launches it (NONE without), and how long after it it starts."""
    edges = np.flatnonzero((graph.edge == Edge.LAUNCH) & (graph.rank[graph.target] == rank))
    count = len(graph.work[rank])
    call, lag = np.full(count, NONE, np.int64), np.zeros(count)
    launched = graph.item[graph.target[edges]]
    call[launched], lag[launched] = graph.source[edges], graph.lag[edges]
    return call, lag
