"""The cause among what keeps ranks waiting: the root of the wait-for graph that most of them wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from tracekit.evidence import State
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node, cyclic_core, shortest_cycle, waiting_for


class Kind(IntEnum):
    """What a root is; of two that as many ranks wait for, the earlier kind is the cause."""

    MISMATCH = 0
    CYCLE = 1
    ABSENT = 2
    STATE = 3
    ARRIVED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cause:
    """A root of the wait-for graph."""

    kind: Kind
    group: int
    waiting: int
    """How many ranks wait for it, directly or by way of others."""
    node: Node | None = None
    """None for a mismatch that nobody waits in."""
    cycle: tuple[int, ...] = ()
    """Groups of the cycle, for one."""
    apart: tuple[Node, ...] = ()
    """Collectives that other ranks never launched, which has nothing to do with this; most waiting first."""


def find_cause(examined: Examined) -> Cause | None:
    """The root that most ranks wait for; where nobody waits, the first mismatch; None without either."""
    parted: dict[int, int] = {}
    for group in sorted(examined.mismatched, reverse=True):
        parted[examined.communicator_of(group)] = group
    roots = [
        _rooted(examined, node, parted) for node in examined.nodes.values() if node.free.size or not _blocked(node)
    ]
    core = cyclic_core(examined.nodes)
    if cycle := shortest_cycle(examined.nodes, core):
        group = min(cycle)
        waiting = waiting_for(examined.nodes, core)
        node = examined.nodes[group]
        roots.append(Cause(kind=Kind.CYCLE, group=group, waiting=waiting, node=node, cycle=tuple(cycle)))
    definite = [root for root in roots if root.kind <= Kind.ABSENT]
    if definite or roots:
        cause = max(definite or roots, key=lambda root: (root.waiting, -root.kind, -root.group))
        return replace(cause, apart=_apart(cause, definite))
    if examined.mismatched:
        return Cause(kind=Kind.MISMATCH, group=min(examined.mismatched), waiting=0)
    return None


def _apart(cause: Cause, roots: list[Cause]) -> tuple[Node, ...]:
    """The other roots at which ranks are absent that the cause, or a root before, does not blame."""
    blamed = set(cause.node.free.tolist()) if cause.node is not None else set()
    found = []
    for root in sorted(roots, key=lambda root: (-root.waiting, root.group)):
        if root.kind is Kind.ABSENT and root.node is not None and not blamed.issuperset(root.node.free.tolist()):
            blamed.update(root.node.free.tolist())
            found.append(root.node)
    return tuple(found)


def _blocked(node: Node) -> bool:
    return bool(node.absent.size or node.behind.size)


def _rooted(examined: Examined, node: Node, parted: dict[int, int]) -> Cause:
    """What a node that waits for no other is; ``parted``: the first mismatch of each communicator."""
    waiting = waiting_for(examined.nodes, {node.group})
    first = parted.get(examined.communicator_of(node.group))
    if first is not None and first <= node.group:  # all that comes after is a consequence
        return Cause(kind=Kind.MISMATCH, group=first, waiting=waiting, node=node)
    if node.absent.size:
        return Cause(kind=Kind.ABSENT, group=node.group, waiting=waiting, node=node)
    states = np.unique(examined.table.state[examined.table.entries_of(node.group)])
    kind = Kind.STATE if len(states[states != State.UNKNOWN]) > 1 else Kind.ARRIVED
    return Cause(kind=kind, group=node.group, waiting=waiting, node=node)
