"""Arrows: from each launch to what it launched, and through the ranks of each matched collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.metrics.matching import FINISH_TOGETHER
from tracekit.metrics.views import Detail
from tracekit.report.perfetto.chosen import DrawnRank
from tracekit.timeline import NONE, Bool, Int64

ONE_ACROSS_RANKS = FINISH_TOGETHER | {"all_to_all", "broadcast", "reduce"}
"""Ops of which the k-th on each member is one collective; of point-to-point operations it need not be."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrows:
    """The arrows of one rank. Their ids are unique in the trace and above 0; NONE stands for no arrow."""

    launch: Int64
    """(operations,) arrow from the launch, which ends at the operation."""
    peers: Int64
    """(communication operations,) arrow through the collective's ranks, in the order of their arrival."""
    last: Bool
    """(communication operations,) whether that arrow ends here: nobody arrives later."""


def arrows_of(ranks: Sequence[DrawnRank], detail: Detail) -> list[Arrows]:
    """The arrows of each drawn rank, in the same order."""
    result: list[Arrows] = []
    used = 0
    for each in ranks:
        ops, calls = each.view.ops, each.view.process.calls
        launch = np.full(len(ops), NONE, np.int64)
        known = np.flatnonzero(each.ops & (ops.call != NONE))
        # Time runs along an arrow: a launch that seems to come after its operation gets none.
        known = known[calls.start[ops.call[known]] <= ops.start[known]]
        launch[known] = used + 1 + np.arange(len(known))
        used += len(known)
        found = each.view.collectives
        result.append(
            Arrows(
                launch=launch,
                peers=np.full(len(found.row), NONE, np.int64),
                last=np.zeros(len(found.row), np.bool_),
            )
        )
    place = {each.index: i for i, each in enumerate(ranks)}
    for kind in detail.matched:
        if kind.op not in ONE_ACROSS_RANKS:
            continue
        members = [(row, place[member]) for row, member in enumerate(kind.members) if member in place]
        arrival = np.full((len(members), kind.index.shape[1]), np.iinfo(np.int64).min, np.int64)
        index = kind.index[[row for row, _ in members]]
        for row, (_, at) in enumerate(members):
            each = ranks[at]
            op = each.view.collectives.row[index[row]]
            there = (index[row] != NONE) & each.ops[op]
            arrival[row, there] = each.at(each.view.ops.start[op[there]])
        there = arrival != np.iinfo(np.int64).min
        shared = there.sum(axis=0) > 1
        if not shared.any():
            continue
        number = used + np.cumsum(shared)
        used += int(np.count_nonzero(shared))
        # Of several at one instant the reader takes the one that stands last in the file.
        last = len(members) - 1 - np.argmax(arrival[::-1], axis=0)
        for row, (_, at) in enumerate(members):
            mine = there[row] & shared
            result[at].peers[index[row, mine]] = number[mine]
            result[at].last[index[row, mine]] = last[mine] == row
    return result
