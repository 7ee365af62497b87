"""Who belongs to each communicator, and the last collective that each of them launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.evidence import UNKNOWN, Evidence, Int32, Int64
from tracekit.metrics.hangs.table import NEVER, Bool, Table, is_silent

WORLD = "default_pg"
"""What torch calls the process group of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """Who belongs to a communicator."""

    rows: Int32
    """With evidence of whether they launched a collective of it, sorted."""
    last: Int64
    """The last seq that each of them launched: numbers only grow, so it has launched all before it."""
    unseen: tuple[int, ...]
    """Ranks that belong to it without such evidence."""
    size: int | None
    """Ranks in it; None where no source tells."""
    is_way: bool = False

    def absent_from(self, seq: int) -> Int32:
        """Rows that have not come to a collective."""
        return self.rows[self.last < seq]


def members_of(evidence: Evidence, table: Table, outstanding: Bool) -> list[Members]:
    """Who belongs to each communicator.

    Of a rank that lists nothing of a communicator and counts nothing: a source that lists everything shows that it has
    launched nothing; one that lists all that is unfinished, that it is in none that others are in.
    """
    row_of = {rank.rank: row for row, rank in enumerate(evidence.ranks)}
    silent = np.array([is_silent(rank) for rank in evidence.ranks], np.bool_)
    wrapped = np.array([rank.wrapped for rank in evidence.ranks], np.bool_)
    pending = np.full(len(evidence.communicators), NEVER)
    np.minimum.at(pending, table.communicator[outstanding], table.seq[outstanding])
    known_alone = ~silent if evidence.only_unfinished else ~(silent | wrapped)
    found = []
    for index, communicator in enumerate(evidence.communicators):
        at = table.reach.of(index)
        told_rows, told_last = table.reach.row[at], table.reach.last[at]
        ranks, size = communicator.ranks, None if communicator.ranks is None else len(communicator.ranks)
        if ranks is None and communicator.description == WORLD:
            size = evidence.world_size
            ranks = tuple(range(max(size or 0, max(row_of, default=-1) + 1)))
        if ranks is None:
            found.append(Members(rows=told_rows, last=told_last, unseen=(), size=None))
            continue
        rows = np.array(sorted(row_of[rank] for rank in ranks if rank in row_of), np.int32)
        last = np.full(len(rows), UNKNOWN, np.int64)
        where = np.searchsorted(told_rows, rows)
        told = where < len(told_rows)
        told[told] = told_rows[where[told]] == rows[told]
        last[told] = told_last[where[told]]
        untold = last == UNKNOWN
        known = ~untold | known_alone[rows]
        last[untold] = pending[index] - 1 if evidence.only_unfinished and pending[index] != NEVER else 0
        if evidence.only_unfinished and pending[index] == NEVER:
            known &= ~untold
        seen = {evidence.ranks[row].rank for row in rows[known].tolist()}
        unseen = tuple(rank for rank in ranks if rank not in seen)
        found.append(Members(rows=rows[known], last=last[known], unseen=unseen, size=size))
    return found
