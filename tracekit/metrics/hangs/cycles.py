"""Ranks that wait for one another: who, in which collectives, and which of them called in another order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.evidence import UNKNOWN, Int32, Int64
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node
from tracekit.metrics.hangs.table import NEVER

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

    Ranks of other groups of the same description and size count, which call what their groups call under the same
    numbers. They have to be most of all, and all others have to be in the cycle's communicators.
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
    if len(few) and len(many) >= 2 * len(few) and members.issuperset(few.tolist()):
        return [int(row) for row in few]
    return []


def _launch_of(examined: Examined, group: int) -> Int64:
    """By row, the position of its launch of a collective, or of the one that has its place in a group like it.

    `NEVER` where it was not launched, UNKNOWN where nothing tells.
    """
    seq = examined.seq_of(group)
    found = np.full(len(examined.evidence.ranks), UNKNOWN, np.int64)
    for index in alike(examined, examined.communicator_of(group)):
        member = examined.members[index]
        found[member.rows[member.last < seq]] = NEVER
        entries = _entries_at(examined, index, seq)
        found[examined.table.row[entries]] = examined.table.position[entries]
    return found


def _entries_at(examined: Examined, communicator: int, seq: int) -> slice:
    table = examined.table
    low, high = np.searchsorted(table.communicator, [communicator, communicator + 1])
    start, stop = np.searchsorted(table.seq[low:high], [seq, seq + 1])
    return slice(int(low + start), int(low + stop))


def alike(examined: Examined, communicator: int) -> list[int]:
    """Communicators of the same description and size, with this one; this one alone where it has none."""
    communicators = examined.evidence.communicators
    own = communicators[communicator]
    if own.description is None or own.ranks is None or own.is_way:
        return [communicator]
    return [
        index
        for index, other in enumerate(communicators)
        if other.description == own.description and other.ranks is not None and len(other.ranks) == len(own.ranks)
    ]


def elsewhere(examined: Examined, group: int) -> list[slice]:
    """The entries of the collectives that have a group's place in other communicators like its own."""
    own, seq = examined.communicator_of(group), examined.seq_of(group)
    found = [_entries_at(examined, index, seq) for index in alike(examined, own) if index != own]
    return [entries for entries in found if entries.start < entries.stop]
