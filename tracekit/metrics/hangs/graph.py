"""Who waits for whom: the wait graph of collectives that are not over.

A rank is inside its *heads*: of each communicator, the first collective that it launched and that is not over. A head
waits for the members that have not come to it; such a member is inside its own heads, or inside none. One that has come
to it, but behind an earlier launch that is not over, makes it wait as well. The nodes of the graph are collectives
rather than ranks: thousands of ranks that wait in one collective are one node. So is a batch of sends and receives,
which ends as a whole, together with the batches at the other ends of its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.evidence import Int32, Int64, State
from tracekit.metrics.hangs.members import Members
from tracekit.metrics.hangs.table import NEVER, Bool, Table

NO_GROUP = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One collective of a node."""

    group: int
    waiting: Int32
    """Rows that are inside it."""
    absent: Int32
    """Rows of members that have not come to it."""
    behind: Int32
    """Rows that launched it behind an earlier launch that is not over."""
    free: Int32
    """Of the absent, those that are inside nothing: nothing explains why they do not come."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One collective that somebody is inside; or several, in a batch."""

    label: int
    """The least group of its parts."""
    parts: tuple[Part, ...]
    waiting: Int32
    next: tuple[int, ...]
    """Labels of the nodes that the absent and those behind are inside; its own where they are in the same batch."""

    @property
    def part(self) -> Part:
        """The part that says most: who is inside nothing, else who is absent, else who is behind."""
        return max(self.parts, key=lambda p: (p.free.size > 0, p.absent.size > 0, p.behind.size > 0, -p.group))

    @property
    def free(self) -> Int32:
        """Rows that are inside nothing and that it waits for."""
        return np.unique(np.concatenate([part.free for part in self.parts]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """All nodes by label, and where each row is."""

    nodes: dict[int, Node]
    heads: dict[int, tuple[int, ...]]
    """Labels of the nodes that each row is inside."""
    front: Int64
    """The group of each row's first launch that is not over; `NO_GROUP`."""
    label_of: dict[int, int]
    """By group."""


def build(table: Table, members: Sequence[Members], outstanding: Bool, rows: int) -> Graph:
    """The graph."""
    front, front_position = _fronts(table, outstanding, rows)
    entries = _heads(table, outstanding)
    groups = table.group_at(entries)
    parts = {int(g): _part(table, members, outstanding, front, front_position, int(g)) for g in np.unique(groups)}
    label_of = _labels(table, entries, groups, first_way=_first_way(members))
    heads: dict[int, dict[int, None]] = {}
    for row, group in zip(table.row[entries].tolist(), groups.tolist(), strict=True):
        heads.setdefault(row, {})[label_of[group]] = None
    inside = {row: tuple(labels) for row, labels in heads.items()}
    joined: dict[int, list[Part]] = {}
    for group, part in parts.items():
        joined.setdefault(label_of[group], []).append(part)
    nodes = {
        label: Node(
            label=label,
            parts=tuple(own),
            waiting=np.unique(np.concatenate([part.waiting for part in own])),
            next=_next(label, own, inside, front, label_of),
        )
        for label, own in sorted(joined.items())
    }
    return Graph(nodes=nodes, heads=inside, front=front, label_of=label_of)


def _first_way(members: Sequence[Members]) -> int:
    return next((index for index, member in enumerate(members) if member.is_way), len(members))


def _fronts(table: Table, outstanding: Bool, rows: int) -> tuple[Int64, Int64]:
    """(group, position) of each row's first launch that is not over."""
    position = np.full(rows, NEVER)
    np.minimum.at(position, table.row[outstanding], table.position[outstanding])
    entries = np.flatnonzero(outstanding & (table.position == position[table.row]))
    group = np.full(rows, NO_GROUP, np.int64)
    group[table.row[entries]] = table.group_at(entries)
    return group, position


def _heads(table: Table, outstanding: Bool) -> Int64:
    """Entries that are the first of their communicator and row that is not over."""
    least = np.full(len(table.reach.row), NEVER)
    np.minimum.at(least, table.pair[outstanding], table.seq[outstanding])
    return np.flatnonzero(outstanding & (table.seq == least[table.pair]))


def _part(
    table: Table, members: Sequence[Members], outstanding: Bool, front: Int64, front_position: Int64, group: int
) -> Part:
    at = table.entries_of(group)
    present, inside = table.row[at], outstanding[at]
    late = inside & (front[present] != group) & (table.state[at] != State.STARTED)
    late &= table.position[at] > front_position[present]
    absent = members[int(table.communicator[at.start])].absent_from(int(table.seq[at.start]))
    return Part(
        group=group,
        waiting=present[inside],
        absent=absent,
        behind=present[late],
        free=absent[front[absent] == NO_GROUP],
    )


def _labels(table: Table, entries: Int64, groups: Int64, *, first_way: int) -> dict[int, int]:
    """The least group of each batch, by group: batches are joined where they share a message."""
    parent = {int(group): int(group) for group in groups}

    def root(group: int) -> int:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    launched: dict[tuple[int, int], int] = {}
    in_way = table.communicator[entries] >= first_way
    keys = zip(table.row[entries[in_way]].tolist(), table.position[entries[in_way]].tolist(), strict=True)
    for key, group in zip(keys, groups[in_way].tolist(), strict=True):
        one, other = root(launched.setdefault(key, group)), root(group)
        parent[max(one, other)] = min(one, other)
    return {group: root(group) for group in parent}


def _next(
    label: int, parts: list[Part], heads: dict[int, tuple[int, ...]], front: Int64, label_of: dict[int, int]
) -> tuple[int, ...]:
    found: set[int] = set()
    absent = np.unique(np.concatenate([part.absent for part in parts]))
    for row in absent.tolist():
        found.update(heads.get(row, ()))
    for part in parts:
        found.update(label_of[int(group)] for group in np.unique(front[part.behind]))
    if len(parts) == 1:
        found.discard(label)
    return tuple(sorted(found))


def components(nodes: dict[int, Node]) -> list[tuple[int, ...]]:
    """Strongly connected components, each sorted, those that others lead to first (Tarjan, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[tuple[int, ...]] = []
    for start in sorted(nodes):
        if start in number:
            continue
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        work = [(start, iter(nodes[start].next))]
        while work:
            node, onward = work[-1]
            for other in onward:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(nodes[other].next)))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(tuple(sorted(component)))
    return found


def before(nodes: dict[int, Node]) -> dict[int, list[int]]:
    """Labels of the nodes that wait for each node."""
    found: dict[int, list[int]] = {label: [] for label in nodes}
    for node in nodes.values():
        for onward in node.next:
            found[onward].append(node.label)
    return found


def upstream(waiters: dict[int, list[int]], roots: Sequence[int]) -> set[int]:
    """The nodes that wait for some of these, directly or by way of others, and these."""
    seen, todo = set(roots), list(roots)
    while todo:
        for label in waiters[todo.pop()]:
            if label not in seen:
                seen.add(label)
                todo.append(label)
    return seen
