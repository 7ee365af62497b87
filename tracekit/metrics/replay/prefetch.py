"""Gathers issued one ahead: what prefetch changes about a step's graph.

A unit's all-gather, and the copies that feed it, are issued when the compute that uses the unit before it is, and may
run as soon as that compute starts. Whatever follows on the same stream or communicator follows in the new order. The
first gather of a step stays where it is, for it needs what the optimizer has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.metrics.replay.rewire import Edges, launches, rewired
from tracekit.metrics.replay.work import RankWork, before_in_group, main_stream
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def prefetched(graph: Graph, *, forward: bool, backward: bool) -> Graph:
    """The graph with gathers issued one ahead.

    Gathers are taken that are launched in the backward pass, or not in it, or both. Where ranks would issue their
    collectives in different orders, the graph has a circle.
    """
    kept = np.ones(len(graph.source), np.bool_)
    new: list[Edges] = []
    for rank, work in enumerate(graph.work):
        moves = _moves(graph, rank, work, work.backward & backward | ~work.backward & forward)
        if moves.op.size:
            _drop(graph, rank, work, moves, kept)
            new += _edges(graph, rank, work, moves)
    return rewired(graph, kept, new)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Moves:
    """Operations of one rank that are issued earlier; columns of one length."""

    op: Int64
    behind: Int64
    """The operation that each is issued right after."""
    issued: Int64
    """(operations of the rank,) when each is launched then; ns, as the launches."""


def _moves(graph: Graph, rank: int, work: RankWork, wanted: Bool) -> _Moves:
    """Which operations of a rank prefetch issues earlier, and behind which; only for the ``wanted`` gathers."""
    node, main = graph.op_node[rank], main_stream(work)
    order = np.argsort(work.launched, kind="stable")
    order = order[node[order] != NONE]
    gathers = [int(op) for op in order if work.gather[op] and work.stream[op] != main]
    on_main = order[work.stream[order] == main]
    users = _users(graph, rank, work, gathers, on_main)
    copies = order[(work.stream[order] != main) & (work.kind[order] != Kind.COMM)]
    issued = work.launched.copy()
    op: list[int] = []
    behind: list[int] = []
    for before, gather in pairwise(gathers):
        user = users.get(before)
        if user is None or not wanted[gather] or work.step[before] != work.step[gather]:
            continue
        if work.launched[user] >= work.launched[gather]:
            continue  # it is issued ahead already
        last = on_main[np.searchsorted(work.launched[on_main], work.launched[gather]) - 1]
        since, until = max(work.launched[last], work.launched[user]), work.launched[gather]
        feeding = copies[(work.launched[copies] > since) & (work.launched[copies] < until)]
        for place, moved in enumerate([*feeding.tolist(), gather]):
            issued[moved] = work.launched[user] + 1 + place
            op.append(moved)
            behind.append(user)
    return _Moves(op=np.array(op, np.int64), behind=np.array(behind, np.int64), issued=issued)


def _users(graph: Graph, rank: int, work: RankWork, gathers: Sequence[int], on_main: Int64) -> dict[int, int]:
    """By gather: the first operation that waits for it, else the first one launched after it on the main stream."""
    mine = (graph.rank[graph.target] == rank) & np.isin(graph.edge, (Edge.EVENT, Edge.UNRECORDED))
    waits = np.flatnonzero(mine)
    by_node: dict[int, int] = {}
    for source, user in zip(graph.source[waits].tolist(), graph.item[graph.target[waits]].tolist(), strict=True):
        if work.kind[user] != Kind.COMM and (
            source not in by_node or work.launched[user] < work.launched[by_node[source]]
        ):
            by_node[source] = user
    users = {}
    for gather in gathers:
        after = int(np.searchsorted(work.launched[on_main], work.launched[gather], side="right"))
        next_on_main = int(on_main[after]) if after < len(on_main) else None
        user = by_node.get(int(graph.end_node[rank][gather]), next_on_main)
        if user is not None:
            users[gather] = user
    return users


def _drop(graph: Graph, rank: int, work: RankWork, moves: _Moves, kept: Bool) -> None:
    """Give up what bound the moved operations, and the old order of their streams and communicators."""
    node, end = graph.op_node[rank], graph.end_node[rank]
    moved = np.zeros(len(graph.kind), np.bool_)
    moved[node[moves.op]] = moved[end[moves.op]] = True
    into = moved[graph.target] & (graph.rank[graph.target] == rank)
    kept[into & (graph.edge == Edge.LAUNCH)] = False
    kept[into & np.isin(graph.edge, (Edge.EVENT, Edge.UNRECORDED)) & ~moved[graph.source]] = False
    for kind, group in ((Edge.STREAM, work.stream), (Edge.COMMUNICATOR, work.communicator)):
        inside = (node != NONE) & np.isin(group, np.unique(group[moves.op]))
        reordered = np.zeros(len(graph.kind), np.bool_)
        reordered[node[inside]] = True
        kept[(graph.edge == kind) & reordered[graph.target]] = False


def _edges(graph: Graph, rank: int, work: RankWork, moves: _Moves) -> list[Edges]:
    """What binds the moved operations instead."""
    node, end = graph.op_node[rank], graph.end_node[rank]
    call, lag = launches(graph, rank)
    told = call[moves.behind] != NONE
    op, behind = moves.op[told], moves.behind[told]
    lags = np.minimum(lag[op], lag[behind])
    made = [
        Edges.of(Edge.LAUNCH, call[behind], node[op], lags, from_end=False),
        Edges.of(Edge.EVENT, node[moves.behind], node[moves.op], np.zeros(len(moves.op)), from_end=False),
    ]
    for kind, group in ((Edge.STREAM, work.stream), (Edge.COMMUNICATOR, work.communicator)):
        in_use = np.any((graph.edge == kind) & (graph.rank[graph.target] == rank))
        ops = np.flatnonzero((node != NONE) & np.isin(group, np.unique(group[moves.op])) & (group != NONE) & in_use)
        ops = ops[np.argsort(moves.issued[ops], kind="stable")]
        before = before_in_group(group[ops])
        after, first = ops[before != NONE], ops[before[before != NONE]]
        made.append(Edges.of(kind, end[first], node[after], graph.late[node[after]], from_end=True))
    return made
