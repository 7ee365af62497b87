"""Nodes of what ranks do together: a transfer begins when all have arrived.

Collectives that finish together are one transfer. In sends, receives and all-to-alls the ranks meet as well, and then
each is done after its own part: those are a meeting, and a transfer for each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import FINISH_TOGETHER, Matched
from tracekit.metrics.replay.nodes import Builder, Edge, Node
from tracekit.metrics.replay.work import RankWork
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Outside = list[tuple[Int64, Int64]]
"""(node, moment) of arrivals that lie outside of the window."""
MOST_SPREAD = 3.0
"""A transfer between two ranks takes at most this times the lower quartile of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Placed:
    """One kind of collective among the replayed operations: (members, k) matrices."""

    members: tuple[int, ...]
    op: Int64
    """Index into the member's work; NONE where it is not there."""
    start: Int64
    end: Int64
    node: Int64
    """Of the operation; NONE where it lies outside of the window."""
    used: Int64
    """The columns that all members have, and that lie inside for some."""


def transfers(
    make: Builder,
    work: Sequence[RankWork],
    op_node: Sequence[Int64],
    end_node: Sequence[Int64],
    found: Sequence[RankCollectives],
    matched: Sequence[Matched],
    low: int,
) -> Outside:
    """Add the nodes; ``end_node`` then tells where operations end."""
    outside: Outside = []
    pairs: list[_Placed] = []
    for kind in matched:
        if len(kind.members) < 2 or not kind.index.shape[1] or not (kind.op in FINISH_TOGETHER or kind.meets):
            continue
        placed = _placed(kind, work, op_node, found)
        if not len(placed.used):
            continue
        if kind.point_to_point:
            pairs.append(placed)
        elif kind.op in FINISH_TOGETHER:
            _finish_together(make, placed, end_node, low, outside)
        else:
            _exchange(make, placed, end_node, low, outside)
    _sends(make, work, pairs, op_node, end_node, low, outside)
    return outside


def _placed(
    kind: Matched, work: Sequence[RankWork], op_node: Sequence[Int64], found: Sequence[RankCollectives]
) -> _Placed:
    shape = kind.index.shape
    op, node = np.full(shape, NONE, np.int64), np.full(shape, NONE, np.int64)
    start, end = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, member in enumerate(kind.members):
        mine = work[member]
        if not len(mine):
            continue
        ops_row = found[member].row[np.maximum(kind.index[row], 0)] if len(found[member].row) else kind.index[row]
        at = np.minimum(np.searchsorted(mine.row, ops_row), len(mine) - 1)
        there = (kind.index[row] != NONE) & (mine.row[at] == ops_row)
        op[row, there] = at[there]
        start[row, there], end[row, there] = mine.start[at[there]], mine.end[at[there]]
        node[row, there] = op_node[member][at[there]]
    # Only what is whole: with a member missing, the shortest duration may be another's wait.
    used = np.flatnonzero(kind.complete & np.all(op != NONE, axis=0) & np.any(node != NONE, axis=0))
    return _Placed(members=kind.members, op=op, start=start, end=end, node=node, used=used)


def _finish_together(make: Builder, placed: _Placed, end_node: Sequence[Int64], low: int, outside: Outside) -> None:
    used, end = placed.used, placed.end[:, placed.used]
    length = np.min(end - placed.start[:, used], axis=0)
    begin = make.add(Node.TRANSFER, NONE, used, end.max(axis=0) - length - low, length)
    for row, member in enumerate(placed.members):
        inside = placed.node[row, used] != NONE
        make.join(Edge.ARRIVAL, placed.node[row, used][inside], begin[inside], 0, from_end=False)
        end_node[member][placed.op[row, used[inside]]] = begin[inside]
        outside.append((begin[~inside], placed.start[row, used[~inside]] - low))


def _exchange(make: Builder, placed: _Placed, end_node: Sequence[Int64], low: int, outside: Outside) -> None:
    """All meet, and then each is done after its own part."""
    used = placed.used
    last = placed.start[:, used].max(axis=0)
    met = make.add(Node.TRANSFER, NONE, used, last - low, np.zeros(len(used), np.int64))
    for row, member in enumerate(placed.members):
        inside = placed.node[row, used] != NONE
        make.join(Edge.ARRIVAL, placed.node[row, used][inside], met[inside], 0, from_end=False)
        outside.append((met[~inside], placed.start[row, used[~inside]] - low))
        mine, begun = used[inside], last[inside]
        own = np.maximum(placed.end[row, mine] - begun, 0)
        part = make.add(Node.TRANSFER, NONE, mine, begun - low, own)
        make.join(Edge.ARRIVAL, met[inside], part, 0, from_end=False)
        end_node[member][placed.op[row, mine]] = part


def _sends(
    make: Builder,
    work: Sequence[RankWork],
    pairs: Sequence[_Placed],
    op_node: Sequence[Int64],
    end_node: Sequence[Int64],
    low: int,
    outside: Outside,
) -> None:
    """Sends and receives: each begins when those have come that it ends with.

    Ranks that do the same at the same time end together as well: what they wait for then holds no less.
    """
    met: dict[int, list[tuple[Int64, int, Int64]]] = {}
    for placed in pairs:
        # Where both take long, both wait for somebody else.
        shortest = np.min((placed.end - placed.start)[:, placed.used], axis=0)
        used = placed.used[shortest <= MOST_SPREAD * np.quantile(shortest, 0.25)]
        for row in (0, 1):
            inside = used[placed.node[row, used] != NONE]
            other = placed.members[1 - row]
            met.setdefault(placed.members[row], []).append((placed.op[row, inside], other, placed.op[1 - row, inside]))
    for member, partners in sorted(met.items()):
        mine = np.unique(np.concatenate([own for own, _, _ in partners]))
        last = work[member].start[mine].copy()
        for own, other, theirs in partners:
            np.maximum.at(last, np.searchsorted(mine, own), work[other].start[theirs])
        part = make.add(Node.TRANSFER, NONE, mine, last - low, np.maximum(work[member].end[mine] - last, 0))
        make.join(Edge.ARRIVAL, op_node[member][mine], part, 0, from_end=False)
        for own, other, theirs in partners:
            at, node = part[np.searchsorted(mine, own)], op_node[other][theirs]
            inside = node != NONE
            make.join(Edge.ARRIVAL, node[inside], at[inside], 0, from_end=False)
            outside.append((at[~inside], work[other].start[theirs[~inside]] - low))
        end_node[member][mine] = part
