"""Off the stream that computes: what that changes about a step's graph.

Operations that share the compute stream hold up all that is behind them, though only a part of it needs them. On a
stream of their own, events bind them instead: each comes after the operation that it was behind, in turn after its
like, and only what uses its result waits for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.metrics.replay.rewire import Edges, launches, rewired
from tracekit.metrics.replay.work import RankWork, main_stream
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def collectives_apart(graph: Graph) -> Graph | None:
    """Gathers, and reductions of the backward pass, leave the compute stream.

    What comes after the backward pass waits for the reductions; gathers are issued one use ahead. None where none of
    them is on that stream.
    """
    kept, new = np.ones(len(graph.source), np.bool_), list[Edges]()
    for rank, work in enumerate(graph.work):
        moved = (work.kind == Kind.COMM) & (work.gather | work.reduction & work.backward)
        line = _Line(graph, rank, work, moved)
        if not line.moved.any():
            continue
        gather = work.gather[line.op]
        needed = line.next_of(~line.moved)
        back = np.flatnonzero(line.moved & gather & (needed != NONE))
        free, ahead = _issued_ahead(graph, rank, line, back, needed[back], kept)
        new += line.taken_out(kept, gather, free)
        new += [*ahead, line.edges(Edge.EVENT, back, needed[back])]
        user = line.next_of(~line.moved & ~work.backward[line.op])
        told = line.moved & ~gather & (user != NONE)
        new.append(line.edges(Edge.EVENT, np.flatnonzero(told), user[told]))
    return rewired(graph, kept, new) if new else None


def offload_apart(graph: Graph) -> Graph | None:
    """Copies of tensors to the host and back leave the compute stream; those back are issued one use ahead.

    Nothing waits for a copy to the host; what followed a copy to the GPU does, and no call waits for either. Copies
    back may begin when what uses those before them does. None where no such copy is on the compute stream.
    """
    kept, new = np.ones(len(graph.source), np.bool_), list[Edges]()
    for rank, work in enumerate(graph.work):
        working = work.forward | work.backward | work.optimizer
        line = _Line(graph, rank, work, (work.to_host | work.to_device) & working)
        if not line.moved.any():
            continue
        user = line.next_of(~line.moved)
        back = np.flatnonzero(line.moved & work.to_device[line.op] & (user != NONE))
        free, ahead = _issued_ahead(graph, rank, line, back, user[back], kept)
        new += line.taken_out(kept, work.to_device[line.op], free)
        new += [*ahead, line.edges(Edge.EVENT, back, user[back])]
        kept &= ~((graph.edge == Edge.BLOCKED) & np.isin(graph.source, line.node[line.moved]))
    return rewired(graph, kept, new) if new else None


class _Line:
    """The operations on one rank's compute stream in their order; places count along it."""

    def __init__(self, graph: Graph, rank: int, work: RankWork, moved: Bool) -> None:
        """``moved`` are the operations of the rank that leave it if they are on it."""
        inside = graph.op_node[rank] != NONE
        self.op = np.flatnonzero(inside & (work.stream == main_stream(work)))
        self.moved = moved[self.op]
        self.node = graph.op_node[rank][self.op]
        self.end = graph.end_node[rank][self.op]
        self._graph = graph

    def next_of(self, picked: Bool) -> Int64:
        """By place: the next place behind it that is picked, or NONE."""
        places = np.flatnonzero(picked)
        at = np.searchsorted(places, np.arange(len(picked)), side="right")
        return np.where(at < len(places), np.append(places, NONE)[np.minimum(at, len(places))], NONE)

    def last_of(self, picked: Bool) -> Int64:
        """By place: the last place before it that is picked, or NONE."""
        places = np.flatnonzero(picked)
        at = np.searchsorted(places, np.arange(len(picked)), side="left") - 1
        return np.where(at >= 0, np.append(places, NONE)[at], NONE)

    def edges(self, kind: Edge, before: Int64, after: Int64) -> Edges:
        """From the ends of operations; what starts a little later than it could keeps doing so."""
        return Edges.of(kind, self.end[before], self.node[after], self._graph.late[self.node[after]], from_end=True)

    def taken_out(self, kept: Bool, apart: Bool | None = None, free: Bool | None = None) -> list[Edges]:
        """Take the moved operations out of the line; each still comes after what it was behind, but for the ``free``.

        Those of ``apart`` and the others each get a line of their own.
        """
        graph = self._graph
        on_line = np.zeros(len(graph.kind), np.bool_)
        on_line[self.node] = True
        kept &= ~((graph.edge == Edge.STREAM) & on_line[graph.target])
        others = self.last_of(~self.moved)
        made = []
        none = np.zeros(len(self.op), np.bool_)
        apart, free = none if apart is None else apart, none if free is None else free
        for after in (~self.moved, self.moved & ~free):
            told = after & (others != NONE)
            made.append(self.edges(Edge.STREAM, others[told], np.flatnonzero(told)))
        for mine in (self.moved & apart, self.moved & ~apart):
            before = self.last_of(mine)
            told = mine & (before != NONE)
            made.append(self.edges(Edge.STREAM, before[told], np.flatnonzero(told)))
        return made


def _issued_ahead(
    graph: Graph, rank: int, line: _Line, back: Int64, user: Int64, kept: Bool
) -> tuple[Bool, list[Edges]]:
    """Bind copies at the places ``back`` to when the ones before them are used, instead of to what was before them.

    A step's first stay where they are. Returns (which places are bound anew, by what).
    """
    work = graph.work[rank]
    uses, use = np.unique(user, return_inverse=True)
    behind = uses[np.maximum(use - 1, 0)]
    ahead = (use > 0) & (work.step[line.op[behind]] == work.step[line.op[back]])
    ahead &= work.backward[line.op[behind]] == work.backward[line.op[back]]
    copy, behind = line.node[back[ahead]], behind[ahead]
    call, lag = launches(graph, rank)
    told = call[line.op[behind]] != NONE
    kept &= ~(np.isin(graph.target, copy) & np.isin(graph.edge, (Edge.LAUNCH, Edge.EVENT, Edge.UNRECORDED)))
    free = np.zeros(len(line.op), np.bool_)
    free[back[ahead]] = True
    return free, [
        Edges.of(Edge.EVENT, line.node[behind], copy, 0.0, from_end=False),
        Edges.of(Edge.LAUNCH, call[line.op[behind[told]]], copy[told], lag[line.op[behind[told]]], from_end=False),
    ]
