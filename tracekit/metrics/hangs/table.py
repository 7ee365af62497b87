"""All ranks' collectives in one table, grouped by (communicator, seq), and how far each rank got.

A *row* is an index into `Evidence.ranks`, a *group* one collective: the entries of one communicator and seq.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.evidence import (
    NO_STATUS,
    UNKNOWN,
    Activity,
    Evidence,
    Int8,
    Int32,
    Int64,
    RankEvidence,
    State,
    Status,
)

Bool = NDArray[np.bool_]
SYNCHRONISING = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier")
"""Ops that end on no rank before all have begun: a rooted op can end early at its root."""
NEVER = np.iinfo(np.int64).max
COLUMNS = ("op", "elements_in", "elements_out", "dtype", "step", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    created: Int64
    position: Int64
    """Ordinal of the launch on its rank; a batch of sends and receives is one launch."""
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

    def group_at(self, entries: NDArray[np.int64]) -> Int64:
        """The groups of entries."""
        return np.searchsorted(self.start, entries, side="right") - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far each rank got in each communicator of which it tells anything; sorted by communicator, then row."""

    communicator: Int32
    row: Int32
    first: Int64
    """First seq with an entry; `NEVER` without one."""
    last: Int64
    """Last seq that it launched, by its entries and by its process's own count; UNKNOWN where neither tells."""
    completed: Int64
    """Largest seq told to be completed; UNKNOWN where none is."""
    proven: Int64
    """Largest seq completed by an op that ends on no rank before all have begun."""
    counted: Bool
    """The process's own count tells it, apart from entries."""

    def of(self, communicator: int) -> slice:
        """Where a communicator's rows are."""
        low, high = np.searchsorted(self.communicator, [communicator, communicator + 1])
        return slice(int(low), int(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Entries in the order of the ranks and of issue."""

    row: Int32
    communicator: Int32
    seq: Int64
    state: Int8
    position: Int64
    columns: dict[str, NDArray[Any]]
    """The others, by name."""

    def pick(self, which: NDArray[Any]) -> Raw:
        """Some of the entries."""
        return Raw(
            row=self.row[which],
            communicator=self.communicator[which],
            seq=self.seq[which],
            state=self.state[which],
            position=self.position[which],
            columns={name: column[which] for name, column in self.columns.items()},
        )


def joined(parts: Sequence[Raw]) -> Raw:
    """Entries one after the other."""
    return Raw(
        row=np.concatenate([part.row for part in parts]),
        communicator=np.concatenate([part.communicator for part in parts]),
        seq=np.concatenate([part.seq for part in parts]),
        state=np.concatenate([part.state for part in parts]),
        position=np.concatenate([part.position for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
    )


def raw_of(evidence: Evidence) -> Raw:
    """All entries of all ranks."""
    ranks = evidence.ranks
    lengths = [len(rank.entries) for rank in ranks]
    launches = [np.arange(len(rank.entries)) if rank.entries.launch is None else rank.entries.launch for rank in ranks]
    created = [
        np.full(len(rank.entries), UNKNOWN) if rank.entries.created is None else rank.entries.created for rank in ranks
    ]
    types = {"op": np.int32, "dtype": np.int32}
    columns = {name: _column(evidence, name, types.get(name, np.int64)) for name in COLUMNS if name != "created"}
    columns["created"] = _joined(created, np.int64)
    return Raw(
        row=np.repeat(np.arange(len(ranks), dtype=np.int32), lengths),
        communicator=_column(evidence, "communicator", np.int32),
        seq=_column(evidence, "seq", np.int64),
        state=_column(evidence, "state", np.int8),
        position=_joined(launches, np.int64),
        columns=columns,
    )


def tabulate(evidence: Evidence, raw: Raw, *, with_counts: bool = True) -> Table:
    """Entries as a table; of several entries of one rank with one seq, the first.

    ``with_counts``: with what the processes count beside the entries.
    """
    order = np.lexsort((raw.row, raw.seq, raw.communicator))
    row, communicator, seq = raw.row[order], raw.communicator[order], raw.seq[order]
    new_group = _differs(communicator) | _differs(seq)
    keep = new_group | _differs(row)
    if not keep.all():
        order, row, communicator, seq = order[keep], row[keep], communicator[keep], seq[keep]
        new_group = new_group[keep]
    columns = {name: column[order] for name, column in raw.columns.items()}
    told = raw.state[order]
    status = [rank.status if with_counts else NO_STATUS for rank in evidence.ranks]
    reach, pair = _reach(evidence, status, row, communicator, seq, columns["op"], told)
    completed = (seq <= reach.completed[pair]) | ((told == State.UNKNOWN) & (seq < reach.last[pair]))
    return Table(
        row=row,
        communicator=communicator,
        seq=seq,
        state=np.where(completed, np.int8(State.COMPLETED), told).astype(np.int8),
        position=raw.position[order],
        start=np.append(np.flatnonzero(new_group), len(row)),
        pair=pair,
        reach=reach,
        **columns,
    )


def appended(table: Table, after: Table) -> Table:
    """One table of two; the communicators of the second come after those of the first."""

    def columns(one: Any, other: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names}

    apart = ("start", "pair", "reach")
    return Table(
        **columns(table, after, [each.name for each in fields(Table) if each.name not in apart]),
        start=np.concatenate([table.start[:-1], after.start + len(table)]),
        pair=np.concatenate([table.pair, after.pair + len(table.reach.row)]),
        reach=Reach(**columns(table.reach, after.reach, [each.name for each in fields(Reach)])),
    )


def is_silent(rank: RankEvidence) -> bool:
    """Whether a source says nothing of its rank: no collective, no count, no activity, as with the recorder off."""
    counts = rank.at_rest or len(rank.status.communicator) > 0
    return not len(rank.entries) and not counts and rank.activity == Activity()


def _column(evidence: Evidence, name: str, dtype: type) -> NDArray[Any]:
    return _joined([getattr(rank.entries, name) for rank in evidence.ranks], dtype)


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _differs(column: NDArray[np.int64] | NDArray[np.int32]) -> Bool:
    """Whether each value differs from the one before; the first does."""
    result = np.ones(len(column), np.bool_)
    np.not_equal(column[1:], column[:-1], out=result[1:])
    return result


def _reach(
    evidence: Evidence,
    status: list[Status],
    row: Int32,
    communicator: Int32,
    seq: Int64,
    op: Int32,
    state: Int8,
) -> tuple[Reach, Int64]:
    rows = max(len(evidence.ranks), 1)
    counted_row = np.repeat(np.arange(len(status)), [len(each.communicator) for each in status])
    counted_of = _joined([each.communicator for each in status], np.int64)
    key = communicator.astype(np.int64) * rows + row
    counted_key = counted_of * rows + counted_row
    pairs, inverse = np.unique(np.concatenate([key, counted_key]), return_inverse=True)
    pair, at = inverse[: len(key)], inverse[len(key) :]
    first = np.full(len(pairs), NEVER)
    last, completed, proven = (np.full(len(pairs), UNKNOWN, np.int64) for _ in range(3))
    np.minimum.at(first, pair, seq)
    np.maximum.at(last, pair, seq)
    np.maximum.at(last, at, _joined([each.launched for each in status], np.int64))
    done = state == State.COMPLETED
    np.maximum.at(completed, pair[done], seq[done])
    np.maximum.at(completed, at, _joined([each.completed for each in status], np.int64))
    if evidence.only_unfinished:  # a communicator works in order: all before the first that is listed is done
        listed = first != NEVER
        completed[listed] = np.maximum(completed[listed], first[listed] - 1)
    together = np.array([name in SYNCHRONISING for name in evidence.names] + [False])
    proof = done & together[op]  # an unknown op, -1, is the last value: no proof
    np.maximum.at(proven, pair[proof], seq[proof])
    counted = np.zeros(len(pairs), np.bool_)
    counted[at] = True
    reach = Reach(
        communicator=(pairs // rows).astype(np.int32),
        row=(pairs % rows).astype(np.int32),
        first=first,
        last=last,
        completed=completed,
        proven=proven,
        counted=counted,
    )
    return reach, pair
