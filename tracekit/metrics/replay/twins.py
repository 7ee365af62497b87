"""The same piece of work on different ranks, found by counting.

The k-th launch of a kernel in a step is the same on every rank that launches it as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.metrics.replay.work import labels
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Twins:
    """Which nodes or edges of different ranks are the same piece of work."""

    item: Int64
    """Nodes (or edges) that are compared."""
    rank: Int64
    group: Int64
    """Same number: the same piece of work on different ranks."""

    def at_peers(self, value: Float, ranks: Sequence[int], *, mean: bool) -> Float:
        """(items,) the median (or mean) of what the ranks other than ``ranks`` take; NaN where none has it."""
        result = np.full(len(self.item), np.nan)
        told = ~np.isin(self.rank, ranks)
        group, own = self.group[told], value[self.item[told]]
        if not len(group):
            return result
        order = np.lexsort((own, group))
        group, own = group[order], own[order]
        heads = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        count = np.diff(np.append(heads, len(group)))
        if mean:
            typical = np.add.reduceat(own, heads) / count
        else:
            typical = (own[heads + (count - 1) // 2] + own[heads + count // 2]) / 2
        at = np.minimum(np.searchsorted(group[heads], self.group), len(heads) - 1)
        same = group[heads][at] == self.group
        result[same] = typical[at[same]]
        return result


def kernel_twins(graph: Graph, launched: Sequence[Int64], begun: Sequence[Int64]) -> Twins:
    """The compute kernels; by rank, when each step's anchor was launched and when it began (ns, reference).

    They are counted in the order of launch, or where launches are lost in the order in which they began.
    """
    nodes, ranks, keys = [], [], []
    lost = any(np.any(work.call[work.kind == Kind.COMPUTE] == NONE) for work in graph.work)
    anchors = begun if lost else launched
    for rank, (work, node) in enumerate(zip(graph.work, graph.op_node, strict=True)):
        mine = np.flatnonzero((node != NONE) & (work.kind == Kind.COMPUTE))
        at = work.start if lost else work.launched
        mine = mine[np.argsort(at[mine], kind="stable")]
        step = np.searchsorted(anchors[rank], at[mine], side="right")
        nodes.append(node[mine])
        ranks.append(np.full(len(mine), rank, np.int64))
        keys.append(_counted(work.name[mine].astype(np.int64), step))
    return _twins(nodes, ranks, keys)


def gap_twins(graph: Graph, anchors: Sequence[Int64]) -> Twins:
    """The host's work before each call, as edges."""
    return _twins(*_gaps(graph, anchors))


def gaps_of_steps(graph: Graph, anchors: Sequence[Int64]) -> Twins:
    """The same, of one rank in different steps, which stand for ranks."""
    items, ranks, keys = _gaps(graph, anchors)
    steps = [name_step[1] for name_step in keys]
    places = [np.concatenate([rank[None], key[:1], key[2:]]) for rank, key in zip(ranks, keys, strict=True)]
    return _twins(items, steps, places)


def _gaps(graph: Graph, anchors: Sequence[Int64]) -> tuple[list[Int64], list[Int64], list[Int64]]:
    """By rank: edges, the rank, and of each edge the calls that it leads to, counted."""
    edges = np.flatnonzero(graph.edge == Edge.HOST)
    target = graph.target[edges]
    items, ranks, keys = [], [], []
    for rank, work in enumerate(graph.work):
        mine = edges[graph.rank[target] == rank]
        call = graph.item[graph.target[mine]]
        launches = np.full(len(work.call_start), NONE, np.int64)
        launched = work.call != NONE
        launches[work.call[launched]] = work.name[launched]
        name = work.call_name[call].astype(np.int64) << 32 | (launches[call] & 0xFFFFFFFF)
        order = np.argsort(work.call_start[call], kind="stable")
        step = np.searchsorted(anchors[rank], work.call_start[call[order]], side="right")
        items.append(mine[order])
        ranks.append(np.full(len(mine), rank, np.int64))
        keys.append(_counted(name[order], step))
    return items, ranks, keys


def _counted(name: Int64, step: Int64) -> Int64:
    """(4, n): name, step, how manieth of that name in the step, and how many there are."""
    order = np.lexsort((np.arange(len(name)), name, step))
    same = (name[order[1:]] == name[order[:-1]]) & (step[order[1:]] == step[order[:-1]])
    heads = np.flatnonzero(np.append(True, ~same)) if len(name) else np.empty(0, np.int64)
    count = np.diff(np.append(heads, len(name)))
    ordinal, total = np.empty(len(name), np.int64), np.empty(len(name), np.int64)
    ordinal[order] = np.arange(len(name)) - np.repeat(heads, count)
    total[order] = np.repeat(count, count)
    return np.stack([name, step, ordinal, total])


def _twins(items: Sequence[Int64], ranks: Sequence[Int64], keys: Sequence[Int64]) -> Twins:
    return Twins(item=np.concatenate(items), rank=np.concatenate(ranks), group=labels(*np.concatenate(keys, axis=1)))
