"""Ranks that wait for one another: who, in which collectives, and which of them called in another order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.evidence import UNKNOWN, Int32, Int64
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node
from tracekit.metrics.hangs.peers import entries_at, in_step
from tracekit.metrics.hangs.table import NEVER

MOST_TO_ONE = 3
"""How many have to call in the usual order for each that does not."""
EARLY = -2
"""Position of a launch that is not listed, since it is over or lost: before all that is listed."""
MOST_STARTS = 200
"""From how many collectives a shortest cycle is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A row inside a collective, and the row that it waits for there."""

    row: int
    group: int
    blocker: int


def edges_of(examined: Examined, component: Sequence[int]) -> list[Edge]:
    """A shortest cycle, each edge from one row to the next."""
    nodes = examined.graph.nodes
    if len(component) == 1:
        return _within(nodes[component[0]])
    cycle = _shortest(nodes, set(component))
    blockers = [
        _blocker(examined, nodes[label], onward) for label, onward in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    # The rank that keeps one node waiting is inside the next.
    return [Edge(row=blockers[i - 1][0], group=group, blocker=row) for i, (row, group) in enumerate(blockers)]


def _blocker(examined: Examined, node: Node, onward: int) -> tuple[int, int]:
    """(the first row that a node waits for and that is inside the next, the group of the node where it lacks)."""
    graph = examined.graph
    found = []
    for part in node.parts:
        for rows, in_front in ((part.absent, False), (part.behind, True)):
            for row in rows.tolist():
                inside = (graph.label_of[int(graph.front[row])],) if in_front else graph.heads.get(row, ())
                if onward in inside:
                    found.append((row, part.group))
                    break
    return min(found)


def _shortest(nodes: dict[int, Node], component: set[int]) -> list[int]:
    """A shortest cycle of labels, in the direction of waiting."""
    best: list[int] = []
    for start in sorted(component)[:MOST_STARTS]:
        came: dict[int, int] = {}
        todo = deque([start])
        while todo and start not in came:
            label = todo.popleft()
            for onward in nodes[label].next:
                if onward in component and onward not in came:
                    came[onward] = label
                    todo.append(onward)
        if start in came:
            path = [came[start]]
            while path[-1] != start:
                path.append(came[path[-1]])
            path.reverse()
            best = path if not best or len(path) < len(best) else best
            if len(best) == 2:
                break
    return best


def _within(node: Node) -> list[Edge]:
    """A cycle inside one node: a batch that waits for a message whose sender is in a batch that ends with it."""
    inside = set(node.waiting.tolist())
    part = next(p for p in node.parts if inside.intersection(p.absent.tolist()) and p.waiting.size)
    absent = min(inside.intersection(part.absent.tolist()))
    start = int(part.waiting[0])
    came: dict[int, tuple[int, int]] = {absent: (absent, part.group)}
    todo = deque([absent])
    while todo and start not in came:
        row = todo.popleft()
        for other in node.parts:
            for next_row in other.waiting.tolist() if row in other.waiting.tolist() else ():
                if next_row not in came:
                    came[next_row] = (row, other.group)
                    todo.append(next_row)
    edges = [Edge(row=start, group=part.group, blocker=absent)]
    back: list[Edge] = []
    row = start
    while row != absent and row in came:
        before, group = came[row]
        back.append(Edge(row=before, group=group, blocker=row))
        row = before
    return edges + back[::-1]


def odd_ones(examined: Examined, groups: Sequence[int]) -> Int32:
    """Rows that call the collectives of a cycle in another order than most do; none where nobody stands out.

    Ranks of other communicators that call the same under the same numbers count too. Those who stand out have to be
    few, and members of the cycle's communicators.
    """
    odd: set[int] = set()
    for one, other in zip(groups, [*groups[1:], groups[0]], strict=True):
        if one != other:
            odd.update(_odd(examined, one, other))
    return np.array(sorted(odd), np.int32)


def _odd(examined: Examined, one: int, other: int) -> list[int]:
    first, second = _launch_of(examined, one), _launch_of(examined, other)
    known = (first != UNKNOWN) & (second != UNKNOWN) & (np.minimum(first, second) != NEVER) & (first != second)
    forward, back = np.flatnonzero(known & (first < second)), np.flatnonzero(known & (first > second))
    few, many = sorted((forward, back), key=len)
    members = {
        int(row) for group in (one, other) for row in examined.members[examined.communicator_of(group)].rows.tolist()
    }
    if len(few) and len(many) >= MOST_TO_ONE * len(few) and members.issuperset(few.tolist()):
        return [int(row) for row in few]
    return []


def _launch_of(examined: Examined, group: int) -> Int64:
    """By row, the position of its launch of a collective, or of the one that has its place in a communicator like it.

    `NEVER` where it was not launched, `EARLY` where it is not listed any more, UNKNOWN where nothing tells.
    """
    seq = examined.seq_of(group)
    found = np.full(len(examined.evidence.ranks), UNKNOWN, np.int64)
    own = examined.communicator_of(group)
    for index in [own, *in_step(examined, own, seq)]:
        member = examined.members[index]
        found[member.rows] = np.where(member.last < seq, NEVER, EARLY)
        entries = entries_at(examined, index, seq)
        found[examined.table.row[entries]] = examined.table.position[entries]
    return found
