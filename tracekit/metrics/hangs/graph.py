"""Who waits for whom: the wait-for graph of collectives that are not over.

A rank is stuck at its *front*, the first collective in its order of issue that is not over. It waits for the members
that have not reached it: those that never launched it, and those that launched it behind another front and whose
kernel of it is not running. The nodes of the graph are collectives rather than ranks: thousands of ranks that wait in
one collective are one node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.evidence import Int32, Int64, State
from tracekit.metrics.hangs.table import Bool, Members, Table

NO_GROUP = -1
MOST_STARTS = 200
"""From how many collectives a shortest cycle is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One collective that somebody waits in, or that somebody has not launched."""

    group: int
    waiting: Int32
    """Rows that have reached it and are not through."""
    absent: Int32
    """Rows of members that never launched it."""
    behind: Int32
    """Rows that launched it behind another front."""
    free: Int32
    """The absent to blame: they wait for nothing, or have gone on to later collectives of this communicator."""
    next: tuple[int, ...]
    """Groups that the others of absent and behind are stuck in."""


def fronts(table: Table, outstanding: Bool, rows: int) -> tuple[Int64, Int64]:
    """(group, position) of each row's front; `NO_GROUP` for a row that waits for nothing."""
    position = np.full(rows, np.iinfo(np.int64).max)
    np.minimum.at(position, table.row[outstanding], table.position[outstanding])
    entries = np.flatnonzero(outstanding & (table.position == position[table.row]))
    group = np.full(rows, NO_GROUP, np.int64)
    group[table.row[entries]] = np.searchsorted(table.start, entries, side="right") - 1
    return group, position


def build(
    table: Table, members: Sequence[Members], outstanding: Bool, first_absent: Sequence[int], rows: int
) -> dict[int, Node]:
    """Nodes by group: every front, and the first collective of each communicator that a member never launched."""
    front, front_position = fronts(table, outstanding, rows)
    wanted = {int(g) for g in np.unique(front) if g != NO_GROUP} | set(first_absent)
    nodes = {}
    for group in sorted(wanted):
        at = table.entries_of(group)
        present = table.row[at]
        inside = outstanding[at]
        late = inside & (front[present] != group) & (table.state[at] != State.STARTED)
        late &= table.position[at] > front_position[present]
        communicator = int(table.communicator[at.start])
        expected = members[communicator].rows
        absent = np.setdiff1d(expected, present, assume_unique=True)
        behind = present[late]
        skipped = np.isin(absent, _past(table, communicator, int(table.seq[at.start])))
        onward = np.unique(front[np.concatenate([absent[~skipped], behind])])
        nodes[group] = Node(
            group=group,
            waiting=present[inside & ~late],
            absent=absent,
            behind=behind,
            free=absent[skipped | (front[absent] == NO_GROUP)],
            next=tuple(int(g) for g in onward if g not in (NO_GROUP, group)),
        )
    return nodes


def _past(table: Table, communicator: int, seq: int) -> Int32:
    """Rows that have launched something after ``seq`` in a communicator."""
    at = table.reach.of(communicator)
    return table.reach.row[at][table.reach.last[at] > seq]


def cyclic_core(nodes: dict[int, Node]) -> set[int]:
    """The groups left when all that lie on no cycle, nor between two, have been peeled off."""
    onward = {group: list(node.next) for group, node in nodes.items()}
    return _peel(_peel(set(nodes), onward), _reversed(nodes))


def _reversed(nodes: dict[int, Node]) -> dict[int, list[int]]:
    """Groups that wait for each group."""
    before: dict[int, list[int]] = {group: [] for group in nodes}
    for node in nodes.values():
        for onward in node.next:
            before[onward].append(node.group)
    return before


def _peel(left: set[int], onward: dict[int, list[int]]) -> set[int]:
    """Without the groups that lead nowhere, again and again."""
    count = {g: sum(n in left for n in onward[g]) for g in left}
    backward: dict[int, list[int]] = {g: [] for g in left}
    for g in left:
        for n in onward[g]:
            if n in left:
                backward[n].append(g)
    ends = deque(g for g, n in count.items() if n == 0)
    gone: set[int] = set()
    while ends:
        group = ends.popleft()
        gone.add(group)
        for g in backward[group]:
            count[g] -= 1
            if count[g] == 0:
                ends.append(g)
    return left - gone


def shortest_cycle(nodes: dict[int, Node], core: set[int]) -> list[int]:
    """A shortest cycle of groups, in the direction of waiting; [] where there is none."""
    best: list[int] = []
    for start in sorted(core)[:MOST_STARTS]:
        came: dict[int, int] = {}
        todo = deque([start])
        while todo and start not in came:
            group = todo.popleft()
            for onward in nodes[group].next:
                if onward in core and onward not in came:
                    came[onward] = group
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


def waiting_for(nodes: dict[int, Node], roots: set[int]) -> int:
    """How many ranks wait, directly or by way of others, for a set of groups to end."""
    before = _reversed(nodes)
    seen, todo = set(roots), list(roots)
    while todo:
        for group in before[todo.pop()]:
            if group not in seen:
                seen.add(group)
                todo.append(group)
    rows = [nodes[group].waiting for group in seen]
    return len(np.unique(np.concatenate(rows))) if rows else 0


def edges_of(nodes: dict[int, Node], front: Int64, cycle: Sequence[int]) -> list[tuple[int, int, int]]:
    """(waiting row, group, row it waits for) around a cycle of groups, one rank for each group."""
    blockers = []
    for group, onward in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        rows = np.concatenate([nodes[group].absent, nodes[group].behind])
        blockers.append(int(rows[front[rows] == onward].min()))
    # The rank that keeps one group waiting is stuck in the next.
    return [(blockers[i - 1], group, blocker) for i, (group, blocker) in enumerate(zip(cycle, blockers, strict=True))]
