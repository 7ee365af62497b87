"""The wait graph as a value that stays small: collectives of groups of one kind that wait for the same are one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.evidence import Int32
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node
from tracekit.metrics.hangs.sides import op_of, process_group
from tracekit.results import Wait

MOST_NODES = 64
MOST_GROUPS_NAMED = 4
ROUNDS = 8
"""How often nodes are put together by what they wait for; more than the wait graphs of jobs are deep."""


def waits_of(examined: Examined, roots: Sequence[int]) -> tuple[tuple[Wait, ...], int]:
    """(the nodes, roots first; how many more there are); ``roots``: labels of the causes."""
    nodes = examined.graph.nodes
    if not nodes:
        return (), 0
    kind_of = _kinds(examined, set(roots))
    kinds: dict[int, list[Node]] = {}
    for label, kind in kind_of.items():
        kinds.setdefault(kind, []).append(nodes[label])
    order = sorted(
        kinds, key=lambda kind: (not any(n.label in roots for n in kinds[kind]), -len(_rows(kinds[kind])), kind)
    )
    shown = order[:MOST_NODES]
    place = {kind: position for position, kind in enumerate(shown)}
    found = [
        _wait(
            examined,
            kinds[kind],
            tuple(sorted({place[kind_of[n]] for node in kinds[kind] for n in node.next if kind_of[n] in place})),
            is_root=any(node.label in roots or node.free.size for node in kinds[kind]),
        )
        for kind in shown
    ]
    return tuple(found), len(order) - len(shown)


def _kinds(examined: Examined, roots: set[int]) -> dict[int, int]:
    """A number by label, the same for nodes of one kind that wait for nodes of the same kinds."""
    evidence, nodes = examined.evidence, examined.graph.nodes
    keys: dict[int, tuple[object, ...]] = {}
    for label, node in nodes.items():
        communicator = evidence.communicators[examined.communicator_of(node.part.group)]
        named = communicator.description if communicator.ranks is not None else None
        alone = label if label in roots or named is None else None
        size = len(communicator.ranks or ())
        keys[label] = (named, size, op_of(examined, node.part.group), alone)
    kinds = _numbered(keys)
    for _ in range(ROUNDS):
        refined = _numbered(
            {label: (kinds[label], tuple(sorted({kinds[n] for n in nodes[label].next}))) for label in nodes}
        )
        if len(set(refined.values())) == len(set(kinds.values())):
            break
        kinds = refined
    return kinds


def _numbered(keys: dict[int, tuple[object, ...]]) -> dict[int, int]:
    numbers: dict[tuple[object, ...], int] = {}
    return {label: numbers.setdefault(key, label) for label, key in keys.items()}


def _rows(nodes: Sequence[Node]) -> Int32:
    return np.unique(np.concatenate([node.waiting for node in nodes]))


def _wait(examined: Examined, nodes: Sequence[Node], waits_for: tuple[int, ...], *, is_root: bool) -> Wait:
    first = nodes[0].part.group
    communicators = sorted({examined.communicator_of(part.group) for node in nodes for part in node.parts})
    own = examined.communicator_of(first)
    named = [own, *(index for index in communicators if index != own)][:MOST_GROUPS_NAMED]

    def ranks(rows: list[Int32]) -> tuple[int, ...]:
        return examined.ranks(np.unique(np.concatenate(rows)))

    parts = [part for node in nodes for part in node.parts]
    return Wait(
        groups=tuple(process_group(examined.evidence, index) for index in named),
        communicators=len(communicators),
        seq=examined.seq_of(first),
        op=op_of(examined, first),
        waiting=examined.ranks(_rows(nodes)),
        missing=ranks([part.absent for part in parts]),
        behind=ranks([part.behind for part in parts]),
        waits_for=waits_for,
        is_root=is_root,
    )
