"""The earliest moment of each event in a graph of "at least so long after": longest paths, many variants at once.

The same code replays a step's operations and a pipeline's micro-batches. Variants share the graph and differ in the
weights of edges: a dependency that does not hold in a variant weighs ``NEVER``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]

NEVER = -np.inf
"""Weight of an edge that binds nothing; moment of a node that nothing holds back."""


class CycleError(ValueError):
    """Events that wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """A graph of n nodes and m edges, laid out so that each level of nodes only needs the levels before it."""

    size: int
    edge: NDArray[np.intp]
    """(m,) the edges in the order of use: by level, then by node."""
    source: Int64
    """(m,) where each of those edges comes from."""
    target: Int64
    """The nodes with incoming edges, by level."""
    first: Int64
    """Position in ``edge`` of each target's first edge."""
    levels: tuple[tuple[int, int, int, int], ...]
    """Of each level: its targets ``[a, b)``, its edges ``[c, d)``."""

    @classmethod
    def of(cls, size: int, source: Int64, target: Int64, picked: NDArray[np.intp] | None = None) -> Order:
        """Sort a graph, or only its ``picked`` edges. O(n + m). Raises `CycleError`."""
        edge = np.arange(len(source)) if picked is None else picked
        level = _levels(size, source[edge], target[edge])
        edge = edge[np.lexsort((target[edge], level[target[edge]]))]
        at = target[edge]
        first = np.flatnonzero(np.append(True, at[1:] != at[:-1])) if len(at) else np.empty(0, np.int64)
        targets = at[first]
        depth = level[targets]
        heads = np.flatnonzero(np.append(True, depth[1:] != depth[:-1])) if len(depth) else np.empty(0, np.int64)
        node_edges = np.append(heads, len(targets)).tolist()
        edge_edges = np.append(first[heads], len(edge)).tolist()
        return cls(
            size=size,
            edge=edge,
            source=source[edge],
            target=targets,
            first=first,
            levels=tuple(zip(node_edges[:-1], node_edges[1:], edge_edges[:-1], edge_edges[1:], strict=True)),
        )

    def earliest(self, weight: Float, release: Float) -> Float:
        """(n, s) when each event happens at the earliest, in each of s variants.

        ``weight`` is (m, s): a target is at least so long after its source. ``release`` is (n,) or (n, s): no event
        happens before it; NEVER where nothing holds it. Both in one unit of time.
        """
        weight = weight[self.edge]
        moment = np.broadcast_to(release.reshape(self.size, -1), (self.size, weight.shape[1])).copy()
        for a, b, c, d in self.levels:
            reached = np.maximum.reduceat(moment[self.source[c:d]] + weight[c:d], self.first[a:b] - c, axis=0)
            targets = self.target[a:b]
            moment[targets] = np.maximum(moment[targets], reached)
        return moment


def _levels(size: int, source: Int64, target: Int64) -> Int64:
    """Length of the longest chain of edges that leads to each node."""
    by_source = np.argsort(source, kind="stable")
    after = target[by_source].tolist()
    begin = np.searchsorted(source[by_source], np.arange(size + 1)).tolist()
    waiting = np.bincount(target, minlength=size).tolist()
    level = [0] * size
    # First in, first out: nodes come by level, so that of those before a node the last one to come is the highest.
    ready = [node for node in range(size) if not waiting[node]]
    for node in ready:
        above = level[node] + 1
        for other in after[begin[node] : begin[node + 1]]:
            waiting[other] -= 1
            if not waiting[other]:
                level[other] = above
                ready.append(other)
    if len(ready) < size:
        raise CycleError("events of the captures wait for each other in a circle")
    return np.array(level, np.int64)
