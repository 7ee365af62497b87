"""What the table of collectives shows before anything is concluded: absences, mismatches, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, Evidence, Int32, Int64, State
from tracekit.metrics.hangs.compare import Groups, find_mismatches
from tracekit.metrics.hangs.graph import Node, build, fronts
from tracekit.metrics.hangs.table import Bool, Members, Table, members_of, tabulate
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
    front: Int64
    """Group that each row is stuck in; -1 for none."""
    nodes: dict[int, Node]
    mismatches: tuple[Mismatch, ...]
    mismatched: dict[int, str]
    """Verdict by group."""
    untold_mismatches: int
    stale: Int32
    """Rows whose dumps are older than the others', or of another job, sorted."""
    desync: dict[int, int]
    """Group from which on the steps of a communicator's ranks differ, by communicator."""

    def communicator_of(self, group: int) -> int:
        """Index of a group's communicator."""
        return int(self.table.communicator[self.table.start[group]])

    def ranks(self, rows: np.typing.NDArray[np.int32]) -> tuple[int, ...]:
        """Global ranks of rows, sorted."""
        return tuple(sorted(self.evidence.ranks[row].rank for row in rows.tolist()))


def examine(evidence: Evidence, thresholds: Thresholds) -> Examined:
    """Look at all collectives once, in columns."""
    table = tabulate(evidence)
    members = members_of(evidence, table)
    first_absent = _first_absences(evidence, table, members)
    outstanding = (table.state == State.ISSUED) | (table.state == State.STARTED)
    for group in first_absent:
        at = table.entries_of(group)
        outstanding[at] |= table.state[at] == State.UNKNOWN
    rows = len(evidence.ranks)
    mismatches, mismatched, untold = find_mismatches(evidence, table, members, thresholds.most_mismatches)
    return Examined(
        evidence=evidence,
        thresholds=thresholds,
        table=table,
        members=members,
        outstanding=outstanding,
        front=fronts(table, outstanding, rows)[0],
        nodes=build(table, members, outstanding, first_absent, rows),
        mismatches=mismatches,
        mismatched=mismatched,
        untold_mismatches=untold,
        stale=_stale(evidence, table, members, outstanding),
        desync=_desync(table, members),
    )


def _first_absences(evidence: Evidence, table: Table, members: list[Members]) -> list[int]:
    """The first group of each communicator that a member never launched."""
    if not len(table):
        return []
    start, expected = _aligned(evidence, table, members)
    communicator = table.communicator[table.start[:-1]]
    listed = np.zeros(len(table.reach.row), np.bool_)
    for index, member in enumerate(members):
        at = table.reach.of(index)
        listed[at] = np.isin(table.reach.row[at], member.rows)
    present = np.add.reduceat(listed[table.pair].astype(np.int64), table.start[:-1])
    lacking = (present < expected[communicator]) & (table.seq[table.start[:-1]] >= start[communicator])
    groups = np.flatnonzero(lacking)
    _, first = np.unique(communicator[groups], return_index=True)
    return [int(g) for g in groups[first]]


def _aligned(evidence: Evidence, table: Table, members: list[Members]) -> tuple[Int64, Int64]:
    """(seq from which on each communicator can be compared, how many ranks it expects).

    That is the highest of its ranks' first seqs. What an op that ends on no rank before all have begun has completed on
    one rank, all have launched: a capture without it was cut off, and is compared from there on.
    """
    ends = np.array([rank.end_ns is not None for rank in evidence.ranks], np.bool_)
    reach = table.reach
    start = np.zeros(len(members), np.int64)
    for index in range(len(members)):
        at = reach.of(index)
        if at.start == at.stop:
            continue
        start[index] = reach.first[at].max()
        proven = reach.proven[at].max()
        short = reach.last[at] < proven
        if short.any() and (ends[reach.row[at]] & (reach.completed[at] == reach.last[at]))[short].all():
            start[index] = max(start[index], proven + 1)
    return start, np.array([len(member.rows) for member in members], np.int64)


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
        row = reach.row[at]
        found += row[(reach.last[at] < proven) & of_dump[row] & np.isin(row, member.rows)].tolist()
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
