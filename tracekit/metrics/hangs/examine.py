"""What the table of collectives shows before anything is concluded: absences, mismatches, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, Evidence, Int32, State
from tracekit.metrics.hangs.compare import Flags, Groups, flags_of, told_mismatches, unfinished_mismatches
from tracekit.metrics.hangs.graph import Graph, build
from tracekit.metrics.hangs.members import WORLD, Members, members_of
from tracekit.metrics.hangs.settle import Settled, settle, unfinished
from tracekit.metrics.hangs.table import Bool, Table, appended, raw_of, tabulate
from tracekit.metrics.hangs.ways import aligned
from tracekit.results import Mismatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examined:
    """A job's collectives, examined."""

    evidence: Evidence
    thresholds: Thresholds
    table: Table
    members: list[Members]
    outstanding: Bool
    """Whether each entry is not over; of unknown state only where a member never launched it."""
    graph: Graph
    mismatches: tuple[Mismatch, ...]
    mismatched: dict[int, str]
    """Verdict by group."""
    untold_mismatches: int
    stale: Int32
    """Rows whose dumps are older than the others', or of another job, sorted."""
    desync: dict[int, int]
    """Group from which on the steps of a communicator's ranks differ, by communicator."""
    late: dict[int, int]
    """By row, the number of collectives that it lists as unfinished and that are over."""

    def communicator_of(self, group: int) -> int:
        """Index of a group's communicator."""
        return int(self.table.communicator[self.table.start[group]])

    def seq_of(self, group: int) -> int:
        """A group's number in its communicator."""
        return int(self.table.seq[self.table.start[group]])

    def ranks(self, rows: np.typing.NDArray[np.int32]) -> tuple[int, ...]:
        """Global ranks of rows, sorted."""
        return tuple(sorted(self.evidence.ranks[row].rank for row in rows.tolist()))


def examine(evidence: Evidence, thresholds: Thresholds) -> Examined:
    """Look at all collectives once, in columns."""
    settled, flags, lasts = _table(evidence)
    table = settled.table
    outstanding = unfinished(table)
    members = [
        _of_way(evidence, index, lasts.get(index, {})) if evidence.communicators[index].is_way else member
        for index, member in enumerate(members_of(evidence, table, outstanding))
    ]
    members = _without_cut_off(evidence, table, members)
    outstanding |= _unknown_where_absent(table, members)
    rows = len(evidence.ranks)
    mismatched = unfinished_mismatches(table, flags)
    mismatches, untold = told_mismatches(evidence, table, members, mismatched, thresholds.most_mismatches)
    return Examined(
        evidence=evidence,
        thresholds=thresholds,
        table=table,
        members=members,
        outstanding=outstanding,
        graph=build(table, members, outstanding, rows),
        mismatches=mismatches,
        mismatched=mismatched,
        untold_mismatches=untold,
        stale=_stale(evidence, table, members, outstanding),
        desync=_desync(table, members),
        late=settled.late,
    )


def _table(evidence: Evidence) -> tuple[Settled, Flags, dict[int, dict[int, int]]]:
    """(the table, what was called differently in it, the last message that each end of a way launched)."""
    sizes = np.array([_size(evidence, index) for index in range(len(evidence.communicators))], np.int64)
    is_way = np.array([communicator.is_way for communicator in evidence.communicators], np.bool_)
    raw = raw_of(evidence)
    if not is_way.any():
        table = tabulate(evidence, raw)
        flags = flags_of(evidence, table, sizes)
        return settle(evidence, table, flags.any), flags, {}
    table = tabulate(evidence, raw.pick(~is_way[raw.communicator]))
    settled = settle(evidence, table, flags_of(evidence, table, sizes).any)
    messages, lasts = aligned(evidence, raw, settled.until)
    both = appended(settled.table, tabulate(evidence, messages, with_counts=False))
    return replace(settled, table=both), flags_of(evidence, both, sizes), lasts


def _size(evidence: Evidence, index: int) -> int:
    communicator = evidence.communicators[index]
    if communicator.ranks is not None:
        return len(communicator.ranks)
    return (evidence.world_size or 0) if communicator.description == WORLD else 0


def _of_way(evidence: Evidence, index: int, last: dict[int, int]) -> Members:
    """The sender and the receiver."""
    ranks = evidence.communicators[index].ranks or ()
    rows = sorted(last)
    seen = {evidence.ranks[row].rank for row in rows}
    return Members(
        rows=np.array(rows, np.int32),
        last=np.array([last[row] for row in rows], np.int64),
        unseen=tuple(sorted(set(ranks) - seen)) if last else (),
        size=len(ranks),
        is_way=True,
    )


def _without_cut_off(evidence: Evidence, table: Table, members: list[Members]) -> list[Members]:
    """A capture that ends earlier than the others has launched what an op shows that needs all to have begun."""
    ends = np.array([rank.end_ns is not None for rank in evidence.ranks], np.bool_)
    reach = table.reach
    found = []
    for index, member in enumerate(members):
        at = reach.of(index)
        proven = reach.proven[at].max() if at.start < at.stop else UNKNOWN
        short = (member.last < proven) & ends[member.rows]
        if short.any():
            idle = np.isin(member.rows, reach.row[at][reach.completed[at] == reach.last[at]])
            member = replace(member, last=np.where(short & idle, proven, member.last))  # noqa: PLW2901
        found.append(member)
    return found


def _unknown_where_absent(table: Table, members: list[Members]) -> Bool:
    """Entries of unknown state in the first collective of each communicator that a member has not come to."""
    found = np.zeros(len(table), np.bool_)
    unknown = table.state == State.UNKNOWN
    if not unknown.any():
        return found
    communicator = table.communicator[table.start[:-1]]
    for index, member in enumerate(members):
        low, high = np.searchsorted(communicator, [index, index + 1])
        if not len(member.last):
            continue
        seqs = table.seq[table.start[low:high]]
        group = low + int(np.searchsorted(seqs, member.last.min(), side="right"))
        if group < high:
            at = table.entries_of(group)
            found[at] = unknown[at]
    return found


def _stale(evidence: Evidence, table: Table, members: list[Members], outstanding: Bool) -> Int32:
    """Rows whose dumps end before what others have completed with them, by an op that needs all to have begun.

    An abort ends all that a rank has issued, so only a rank that has something outstanding after it is proof.
    """
    reach = table.reach
    still = np.zeros(len(reach.row), np.bool_)
    still[table.pair[outstanding]] = True
    of_dump = np.array([rank.end_ns is None for rank in evidence.ranks], np.bool_)
    found: list[int] = []
    for index, member in enumerate(members):
        at = reach.of(index)
        if member.size is None or not still[at].any():
            continue
        proven = reach.proven[at][still[at]].max()
        found += member.rows[(member.last < proven) & of_dump[member.rows]].tolist()
    return np.unique(np.array(found, np.int32))


def _desync(table: Table, members: list[Members]) -> dict[int, int]:
    """Where the steps begin to differ between ranks and stay different, by communicator."""
    if not len(table) or not (table.step != UNKNOWN).any():
        return {}
    groups = Groups(table)
    differs = groups.differs(table.step)
    known = np.minimum.reduceat(table.step, table.start[:-1]) != UNKNOWN
    communicator = table.communicator[table.start[:-1]]
    expected = np.array([len(member.rows) for member in members], np.int64)
    full = np.flatnonzero(known & (groups.count == expected[communicator]) & (groups.count > 1))
    agreeing = np.full(len(members), -1, np.int64)
    np.maximum.at(agreeing, communicator[full], np.where(differs[full], -1, full))
    parted = full[full > agreeing[communicator[full]]]
    which, first = np.unique(communicator[parted], return_index=True)
    return {int(index): int(parted[at]) for index, at in zip(which, first, strict=True)}
