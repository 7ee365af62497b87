"""Collectives that move the same bytes otherwise: in fewer calls, in other units, over a faster link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.replay.changes import Changed
from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge, Node
from tracekit.metrics.replay.twins import Twins
from tracekit.metrics.replay.work import before_in_group, labels
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]


FEWEST_STEPS = 3
"""Of fewer steps there is no usual one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Transfers:
    """The transfers of a graph by the launch of the first rank that takes part; columns of one length."""

    node: Int64
    rank: Int64
    """Index of that rank, and of its operation."""
    op: Int64
    launched: Int64
    step: Int64
    name: Int64
    bytes: Int64
    """Of the full tensor, or NONE."""
    members: Int64
    """A number for each set of ranks."""
    size: Int64
    """How many ranks take part."""

    @classmethod
    def of(cls, graph: Graph) -> _Transfers:
        """All transfers, by rank and launch."""
        nodes, ranks, ops = [], [], []
        for number, end in enumerate(graph.end_node):
            mine = np.flatnonzero(end != NONE)
            mine = mine[graph.kind[end[mine]] == Node.TRANSFER]
            nodes.append(end[mine])
            ranks.append(np.full(len(mine), number, np.int64))
            ops.append(mine)
        node, rank, op = np.concatenate(nodes), np.concatenate(ranks), np.concatenate(ops)
        order = np.lexsort((rank, node))
        node, rank, op = node[order], rank[order], op[order]
        first = np.flatnonzero(np.append(True, node[1:] != node[:-1])) if len(node) else node
        # Equal sums of a random number for each rank are equal sets of ranks.
        of_rank = np.random.default_rng(0).integers(1 << 62, size=len(graph.work))
        sums = np.add.reduceat(of_rank[rank], first) if len(first) else first
        count = np.diff(np.append(first, len(node)))
        rank, op = rank[first], op[first]

        def column(name: str) -> Int64:
            found = np.zeros(len(first), np.int64)
            for each, work in enumerate(graph.work):
                found[rank == each] = getattr(work, name)[op[rank == each]]
            return found

        made = cls(
            node=node[first],
            rank=rank,
            op=op,
            members=labels(sums),
            size=count,
            **{name: column(name) for name in ("launched", "step", "name", "bytes")},
        )
        return made.picked(np.lexsort((made.launched, made.rank)))

    def picked(self, rows: NDArray[np.intp]) -> _Transfers:
        """Some of them."""
        return _Transfers(**{name: getattr(self, name)[rows] for name in self.__slots__})


def coalesced(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """Short collectives of one kind, launched one after the other, are one: more bytes with one latency.

    What a kind takes for each byte is known from its collectives of different sizes. None where it is not, or where
    nothing is launched in a row.
    """
    duration, lag = now[0].copy(), now[1].copy()
    found = _Transfers.of(graph)
    kind = labels(found.members, found.name)
    joined = _in_a_row(graph, found, kind) & _short(found, duration, thresholds)
    joined &= np.append(False, _short(found, duration, thresholds)[:-1])
    made = False
    for each in np.unique(kind[joined]).tolist():
        rows = np.flatnonzero(kind == each)
        per_byte = _per_byte(found.bytes[rows], duration[found.node[rows]])
        if per_byte is None:
            continue
        later = rows[joined[rows]]
        heads = rows[~joined[rows]]
        head = heads[np.searchsorted(heads, later, side="right") - 1]
        np.add.at(duration, found.node[head], per_byte * found.bytes[later])
        duration[found.node[later]] = 0.0
        _launched_as_one(graph, found, later, lag)
        made = True
    return (duration, lag) if made else None


def _short(found: _Transfers, duration: Float, thresholds: Thresholds) -> Bool:
    result: Bool = (duration[found.node] < thresholds.latency_bound_ns) & (found.bytes > 0)
    return result


def _in_a_row(graph: Graph, found: _Transfers, kind: Int64) -> Bool:
    """Which transfers are of the same kind as what the rank launched right before, on the same stream."""
    joined = np.zeros(len(found.node), np.bool_)
    for rank, work in enumerate(graph.work):
        mine = np.flatnonzero(found.rank == rank)
        if len(mine) < 2:
            continue
        order = np.argsort(work.launched, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        before, after = mine[:-1], mine[1:]
        joined[after] = (
            (place[found.op[after]] == place[found.op[before]] + 1)
            & (kind[after] == kind[before])
            & (work.stream[found.op[after]] == work.stream[found.op[before]])
        )
    return joined


def _per_byte(size: Int64, duration: Float) -> float | None:
    """ns for each byte more, from the median durations of the smallest and the largest collectives."""
    known = np.flatnonzero(size > 0)
    if not len(known):
        return None
    low, high = size[known].min(), size[known].max()
    if low == high:
        return None
    least, most = (float(np.median(duration[known[size[known] == each]])) for each in (low, high))
    return max(most - least, 0.0) / float(high - low)


def _launched_as_one(graph: Graph, found: _Transfers, later: Int64, lag: Float) -> None:
    """What was joined to the collective before it takes no launch and no gap of its own, on any rank."""
    gone = np.zeros(len(graph.kind), np.bool_)
    gone[found.node[later]] = True
    arrival = (graph.edge == Edge.ARRIVAL) & gone[graph.target]
    gone[graph.source[arrival]] = True
    between = gone[graph.target] & np.isin(graph.edge, (Edge.STREAM, Edge.COMMUNICATOR))
    lag[between] = np.minimum(lag[between], 0.0)
    launching = (graph.edge == Edge.LAUNCH) & gone[graph.target]
    gone[graph.source[launching]] = True
    lag[(graph.edge == Edge.HOST) & gone[graph.target]] = 0.0


def first_gather_split(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """Of a step's first gather only what its latency is comes first; the rest comes with the forward pass's others.

    In equal parts, for what the unit is made of does not tell. None where there are no others.
    """
    duration, lag = now[0].copy(), now[1]
    found = _forward_gathers(graph)
    group = labels(found.rank, found.step, found.members)
    first = before_in_group(group) == NONE
    others = np.bincount(group[~first], minlength=int(group.max(initial=0)) + 1)
    if not len(group) or not np.any(others[group[first]]):
        return None
    split = first & (others[group] > 0)
    node = found.node[split]
    rest = np.zeros(len(others))
    rest[group[split]] = np.maximum(duration[node] - thresholds.collective_latency_ns, 0.0)
    duration[node] -= rest[group[split]]
    duration[found.node[~first]] += rest[group[~first]] / others[group[~first]]
    return duration, lag


def _forward_gathers(graph: Graph) -> _Transfers:
    found = _Transfers.of(graph)
    forward = np.zeros(len(found.node), np.bool_)
    for rank, work in enumerate(graph.work):
        mine = found.rank == rank
        op = found.op[mine]
        forward[mine] = work.gather[op] & ~work.backward[op] & ~work.optimizer[op] & (work.step[op] != NONE)
    return found.picked(np.flatnonzero(forward))


def first_gather_small(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """Each step's first gather is of a small unit: the rest moves under compute, as far as that is free."""
    return _small(now, graph, _forward_gathers(graph), thresholds, first=True)


def last_reduction_small(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """Each step's last reduction is of a small unit: the rest moves under compute, as far as that is free."""
    found = _Transfers.of(graph)
    reducing = np.zeros(len(found.node), np.bool_)
    for rank, work in enumerate(graph.work):
        mine = found.rank == rank
        reducing[mine] = work.reduction[found.op[mine]] & (work.step[found.op[mine]] != NONE)
    return _small(now, graph, found.picked(np.flatnonzero(reducing)), thresholds, first=False)


def _small(now: Changed, graph: Graph, found: _Transfers, thresholds: Thresholds, *, first: bool) -> Changed | None:
    """The first (last) transfer of each step keeps its latency, and what no compute of its step could hide."""
    duration = now[0].copy()
    group = labels(found.rank, found.step, found.members)
    order = np.lexsort((found.launched, group))
    if not len(order):
        return None
    free = [_free_compute(graph, rank, now[0]) for rank in range(len(graph.work))]
    for mine in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        odd = mine[0] if first else mine[-1]
        whole = float(now[0][found.node[odd]])
        latency = min(whole, float(thresholds.collective_latency_ns))
        room = free[int(found.rank[odd])]
        duration[found.node[odd]] = latency + max(whole - latency - room, 0.0)
    return duration, now[1]


def _free_compute(graph: Graph, rank: int, duration: Float) -> float:
    """ns of a step's compute that would still have nothing beside it if all its communication had; the median step."""
    work, node, end = graph.work[rank], graph.op_node[rank], graph.end_node[rank]
    inside = (node != NONE) & (work.step != NONE)
    spent = np.zeros((2, int(work.step.max(initial=0)) + 1))
    for row, (kind, place) in enumerate(((Kind.COMPUTE, node), (Kind.COMM, end))):
        mine = inside & (work.kind == kind)
        np.add.at(spent[row], work.step[mine], duration[place[mine]])
    whole = spent[0] > spent[0].max() / 2  # the first and the last may not be here in full
    return float(max(np.median(spent[0, whole] - spent[1, whole]), 0.0)) if whole.any() else 0.0


def steady_transfers(now: Changed, graph: Graph) -> Changed | None:
    """Transfers of one op at one place of the step take the median over the steps, where they take longer.

    None with less than three steps.
    """
    duration = now[0].copy()
    found = _Transfers.of(graph)
    found = found.picked(np.flatnonzero(found.step != NONE))
    kind = labels(found.members, found.name, found.bytes, found.step)
    place = np.empty(len(kind), np.int64)
    order = np.lexsort((found.launched, kind))
    heads = np.flatnonzero(np.append(True, np.diff(kind[order]) != 0)) if len(order) else order
    place[order] = np.arange(len(order)) - np.repeat(heads, np.diff(np.append(heads, len(order))))
    like = labels(found.members, found.name, found.bytes, place)
    order = np.argsort(like, kind="stable")
    made = False
    for mine in np.split(order, np.flatnonzero(np.diff(like[order])) + 1):
        if len(mine) >= FEWEST_STEPS:
            nodes = found.node[mine]
            duration[nodes] = np.minimum(duration[nodes], np.median(now[0][nodes]))
            made = True
    return (duration, now[1]) if made else None


def even_links(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """A group of ranks whose link is slow transfers as fast as the median of the other groups; None without others.

    Compared is the k-th collective of a kind and size in groups of one size.
    """
    duration, lag = now[0].copy(), now[1]
    found = _Transfers.of(graph)
    what = labels(found.name, found.size, found.bytes)
    order = np.lexsort((found.launched, what, found.members))
    same = (what[order[1:]] == what[order[:-1]]) & (found.members[order[1:]] == found.members[order[:-1]])
    heads = np.flatnonzero(np.append(True, ~same)) if len(order) else order
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - np.repeat(heads, np.diff(np.append(heads, len(order))))
    twins = Twins(item=found.node, rank=found.members, group=labels(what, ordinal))
    slow = []
    for members in np.unique(found.members).tolist():
        pace = twins.at_peers(now[0], (members,), mean=False)
        mine = np.flatnonzero((found.members == members) & (pace > 0))
        if len(mine) and np.median(pace[mine] / now[0][found.node[mine]]) < thresholds.slow_link_ratio:
            slow.append((found.node[mine], pace[mine]))
    for node, pace in slow:
        duration[node] = np.minimum(duration[node], pace)
    return (duration, lag) if slow else None
