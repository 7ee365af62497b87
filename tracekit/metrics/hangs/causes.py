"""The causes among what keeps ranks waiting: the ends of the wait graph, that nothing further explains."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tracekit.evidence import UNKNOWN, State
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node, before, components, upstream
from tracekit.metrics.hangs.table import NEVER

MOST_WALKED = 500
"""Causes up to which those who wait for each by way of others are counted; beyond, those inside it alone."""


class Kind(IntEnum):
    """What a cause is; of two that as many ranks wait for, the earlier kind comes first."""

    MISMATCH = 0
    ABSENT = 1
    CYCLE = 2
    STATE = 3
    ARRIVED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cause:
    """One cause."""

    kind: Kind
    group: int
    waiting: int
    """How many ranks wait for it, directly or by way of others."""
    node: Node | None = None
    """None for a mismatch that nobody waits in."""
    cycle: tuple[int, ...] = ()
    """Labels of the nodes that wait for one another, for a cycle."""


def find_causes(examined: Examined) -> list[Cause]:
    """The causes that have nothing to do with one another, the one that most ranks wait for first.

    A difference in what was called, ranks that are inside nothing and do not come, and ranks that wait for one another
    explain. A collective that all have begun and that does not end is a cause only where none of these is.
    """
    nodes = examined.graph.nodes
    waiters = before(nodes)
    parted = _parted(examined)
    found = _mismatches(examined, parted, waiters)
    absent, arrived = [], []
    for component in components(nodes):
        own = [nodes[label] for label in component]
        if any(_is_parted(examined, node, parted) for node in own):
            continue
        absent += [node for node in own if node.free.size]
        if any(node.free.size for node in own) or any(onward not in component for node in own for onward in node.next):
            continue
        if len(component) > 1 or own[0].label in own[0].next:
            group = min(node.part.group for node in own)
            at = next(node for node in own if node.part.group == group)
            waiting = _waiting(examined, upstream(waiters, component))
            found.append(Cause(kind=Kind.CYCLE, group=group, waiting=waiting, node=at, cycle=component))
        else:
            arrived.append(_arrived(examined, own[0], _waiting(examined, upstream(waiters, component))))
    found += _absences(examined, absent, waiters)
    return _ordered(examined, found) + _ordered(examined, arrived)


def _ordered(examined: Examined, causes: list[Cause]) -> list[Cause]:
    return sorted(causes, key=lambda cause: (-cause.waiting, cause.kind, _since(examined, cause.group), cause.group))


def _waiting(examined: Examined, labels: set[int]) -> int:
    rows = [examined.graph.nodes[label].waiting for label in labels]
    return len(np.unique(np.concatenate(rows))) if rows else 0


def _since(examined: Examined, group: int) -> int:
    """When the first rank launched it."""
    created = examined.table.created[examined.table.entries_of(group)]
    known = created[created != UNKNOWN]
    return int(known.min()) if len(known) else NEVER


def _parted(examined: Examined) -> dict[int, int]:
    """The first group of each communicator that its ranks called differently."""
    first: dict[int, int] = {}
    for group in sorted(examined.mismatched, reverse=True):
        first[examined.communicator_of(group)] = group
    return first


def _is_parted(examined: Examined, node: Node, parted: dict[int, int]) -> bool:
    """Whether a communicator came apart at or before what somebody is inside: all after that is a consequence."""
    return any(parted.get(examined.communicator_of(part.group), NEVER) <= part.group for part in node.parts)


def _mismatches(examined: Examined, parted: dict[int, int], waiters: dict[int, list[int]]) -> list[Cause]:
    nodes = examined.graph.nodes
    found = []
    for communicator, group in sorted(parted.items()):
        inside = [
            label
            for label, node in nodes.items()
            if any(examined.communicator_of(part.group) == communicator and group <= part.group for part in node.parts)
        ]
        node = nodes[inside[0]] if inside else None
        waiting = _waiting(examined, upstream(waiters, inside))
        found.append(Cause(kind=Kind.MISMATCH, group=group, waiting=waiting, node=node))
    return found


def _absences(examined: Examined, nodes: list[Node], waiters: dict[int, list[int]]) -> list[Cause]:
    """One cause for each set of ranks that do not come; one of a rank that another cause names is its consequence."""
    weighed = []
    direct = len(nodes) > MOST_WALKED
    for node in nodes:
        waiting = len(node.waiting) if direct else _waiting(examined, upstream(waiters, [node.label]))
        blocked = len(node.part.absent) - len(node.part.free)
        since = _since(examined, node.part.group)
        weighed.append(((blocked > 0, -waiting, -len(node.waiting), since, node.label), waiting, node))
    named: set[int] = set()
    found = []
    for _, waiting, node in sorted(weighed, key=lambda each: each[0]):
        rows = set(node.part.free.tolist())
        if not named.issuperset(rows):
            named.update(rows)
            found.append(Cause(kind=Kind.ABSENT, group=node.part.group, waiting=waiting, node=node))
    return found


def _arrived(examined: Examined, node: Node, waiting: int) -> Cause:
    group = node.part.group
    states = np.unique(examined.table.state[examined.table.entries_of(group)])
    kind = Kind.STATE if len(states[states != State.UNKNOWN]) > 1 else Kind.ARRIVED
    return Cause(kind=kind, group=group, waiting=waiting, node=node)
