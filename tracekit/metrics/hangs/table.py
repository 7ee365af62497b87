"""All ranks' collectives in one table, grouped by (communicator, seq), and how far each rank got.

A *row* is an index into `Evidence.ranks`, a *group* one collective: the entries of one communicator and seq.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.evidence import Activity, Evidence, Int8, Int32, Int64, RankEvidence, State

Bool = NDArray[np.bool_]
WORLD = "default_pg"
"""What torch calls the process group of all ranks."""
SYNCHRONISING = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier")
"""Ops that end on no rank before all have begun: a rooted op can end early at its root."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Entries sorted by communicator, seq and row; one entry for each of these."""

    row: Int32
    communicator: Int32
    seq: Int64
    op: Int32
    elements_in: Int64
    elements_out: Int64
    dtype: Int32
    state: Int8
    """As told, or COMPLETED where something later in the communicator completed on this rank, or (of unknown state)
    was issued: one communicator works in order."""
    step: Int64
    position: Int64
    """Ordinal of issue on its rank."""
    start: Int64
    """First entry of each group; one more value at the end."""
    pair: Int64
    """Index into ``reach`` of each entry."""
    reach: Reach

    def __len__(self) -> int:
        return len(self.row)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.start) - 1

    def entries_of(self, group: int) -> slice:
        """Where a group's entries are."""
        return slice(int(self.start[group]), int(self.start[group + 1]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reach:
    """How far each rank got in each communicator that it has entries of; sorted by communicator, then row."""

    communicator: Int32
    row: Int32
    first: Int64
    last: Int64
    completed: Int64
    """Largest seq told to be completed; -1 where none is."""
    proven: Int64
    """Largest seq completed by an op that ends on no rank before all have begun."""

    def of(self, communicator: int) -> slice:
        """Where a communicator's rows are."""
        low, high = np.searchsorted(self.communicator, [communicator, communicator + 1])
        return slice(int(low), int(high))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """Who belongs to a communicator."""

    rows: Int32
    """With evidence of whether they launched a collective of it, sorted."""
    unseen: tuple[int, ...]
    """Ranks that belong to it without such evidence."""
    size: int | None
    """Ranks in it; None where no source tells."""


def tabulate(evidence: Evidence) -> Table:
    """All entries of all ranks; of several entries of one rank with one seq, the first."""
    ranks = evidence.ranks
    lengths = [len(rank.entries) for rank in ranks]
    row = np.repeat(np.arange(len(ranks), dtype=np.int32), lengths)
    communicator, seq = _column(evidence, "communicator", np.int32), _column(evidence, "seq", np.int64)
    order = np.lexsort((row, seq, communicator))
    row, communicator, seq = row[order], communicator[order], seq[order]
    new_group = _differs(communicator) | _differs(seq)
    keep = new_group | _differs(row)
    if not keep.all():
        order, row, communicator, seq = order[keep], row[keep], communicator[keep], seq[keep]
        new_group = new_group[keep]
    op = _column(evidence, "op", np.int32)[order]
    told = _column(evidence, "state", np.int8)[order]
    begin = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
    reach, pair = _reach(evidence, row, communicator, seq, op, told)
    completed = (seq <= reach.completed[pair]) | ((told == State.UNKNOWN) & (seq < reach.last[pair]))
    return Table(
        row=row,
        communicator=communicator,
        seq=seq,
        op=op,
        elements_in=_column(evidence, "elements_in", np.int64)[order],
        elements_out=_column(evidence, "elements_out", np.int64)[order],
        dtype=_column(evidence, "dtype", np.int32)[order],
        state=np.where(completed, np.int8(State.COMPLETED), told).astype(np.int8),
        step=_column(evidence, "step", np.int64)[order],
        position=order - begin[row],
        start=np.append(np.flatnonzero(new_group), len(row)),
        pair=pair,
        reach=reach,
    )


def members_of(evidence: Evidence, table: Table) -> list[Members]:
    """Who belongs to each communicator."""
    row_of = {rank.rank: row for row, rank in enumerate(evidence.ranks)}
    silent = np.array([is_silent(rank) for rank in evidence.ranks], np.bool_)
    wrapped = np.array([rank.wrapped for rank in evidence.ranks], np.bool_)
    found = []
    for index, communicator in enumerate(evidence.communicators):
        with_entries = table.reach.row[table.reach.of(index)]
        ranks = communicator.ranks
        size = None if ranks is None else len(ranks)
        if ranks is None and communicator.description == WORLD:
            size = evidence.world_size
            ranks = tuple(range(max(size or 0, max(row_of, default=-1) + 1)))
        if ranks is None:
            found.append(Members(rows=with_entries, unseen=(), size=None))
            continue
        rows = np.array(sorted(row_of[rank] for rank in ranks if rank in row_of), np.int32)
        # A ring buffer that wrapped may have lost all that a rank did here.
        known = np.isin(rows, with_entries) | ~(silent[rows] | wrapped[rows])
        seen = {evidence.ranks[row].rank for row in rows[known].tolist()}
        unseen = tuple(rank for rank in ranks if rank not in seen)
        found.append(Members(rows=rows[known], unseen=unseen, size=size))
    return found


def is_silent(rank: RankEvidence) -> bool:
    """Whether a source says nothing of its rank: no collective and no activity, as with the recorder off."""
    return not len(rank.entries) and rank.activity == Activity()


def _column(evidence: Evidence, name: str, dtype: type) -> NDArray[Any]:
    parts = [getattr(rank.entries, name) for rank in evidence.ranks]
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _differs(column: NDArray[np.int64] | NDArray[np.int32]) -> Bool:
    """Whether each value differs from the one before; the first does."""
    result = np.ones(len(column), np.bool_)
    np.not_equal(column[1:], column[:-1], out=result[1:])
    return result


def _reach(
    evidence: Evidence, row: Int32, communicator: Int32, seq: Int64, op: Int32, state: Int8
) -> tuple[Reach, Int64]:
    rows = max(len(evidence.ranks), 1)
    pairs, pair = np.unique(communicator.astype(np.int64) * rows + row, return_inverse=True)
    first = np.full(len(pairs), np.iinfo(np.int64).max)
    last, completed, proven = (np.full(len(pairs), -1, np.int64) for _ in range(3))
    np.minimum.at(first, pair, seq)
    np.maximum.at(last, pair, seq)
    done = state == State.COMPLETED
    np.maximum.at(completed, pair[done], seq[done])
    together = np.array([name in SYNCHRONISING for name in evidence.names] + [False])
    proof = done & together[op]  # an unknown op, -1, is the last value: no proof
    np.maximum.at(proven, pair[proof], seq[proof])
    reach = Reach(
        communicator=(pairs // rows).astype(np.int32),
        row=(pairs % rows).astype(np.int32),
        first=first,
        last=last,
        completed=completed,
        proven=proven,
    )
    return reach, pair
