"""Which collectives are over though a rank lists them as unfinished.

An op that ends on no rank before all have begun is over for all when a rank has finished it and has gone on. A rank
that still lists it has stopped writing down what its GPU does: the GPU failed, or the thread that watches it. What was
called differently is never over by such proof: there one side can get through alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.evidence import UNKNOWN, Evidence, Int64, State
from tracekit.metrics.hangs.table import NEVER, SYNCHRONISING, Bool, Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """The table with what is over, and who lists it as unfinished."""

    table: Table
    late: dict[int, int]
    """Number of such collectives by row."""
    until: Int64
    """By row, the position of the last of them; UNKNOWN where there is none."""


def settle(evidence: Evidence, table: Table, mismatched: Bool) -> Settled:
    """``mismatched``: whether the ranks called each group differently."""
    told = unfinished(table)
    rows = len(evidence.ranks)
    # An abort ends all that a rank has issued, so only a rank that has something unfinished is proof.
    proves = np.array([rank.end_ns is not None for rank in evidence.ranks], np.bool_)
    proves[table.row[told]] = True
    limit = _proven(evidence, table, proves)
    stuck = mismatched & (np.add.reduceat(told.astype(np.int64), table.start[:-1]) > 0 if len(table) else mismatched)
    parted = np.full(len(evidence.communicators), NEVER)
    np.minimum.at(parted, table.communicator[table.start[:-1]][stuck], table.seq[table.start[:-1]][stuck])
    limit = np.minimum(limit, parted - 1)
    over = told & (table.seq <= limit[table.communicator])
    until = np.full(rows, UNKNOWN, np.int64)
    np.maximum.at(until, table.row[over], table.position[over])
    who, count = np.unique(table.row[over], return_counts=True)
    state = table.state.copy()
    state[over] = State.COMPLETED
    late = dict(zip(who.tolist(), count.tolist(), strict=True))
    return Settled(table=replace(table, state=state), late=late, until=until)


def unfinished(table: Table) -> Bool:
    """Whether each entry is launched and told not to be over."""
    return np.asarray((table.state == State.ISSUED) | (table.state == State.STARTED))


def _proven(evidence: Evidence, table: Table, proves: Bool) -> Int64:
    """By communicator, the last seq that is over for all its ranks; UNKNOWN without one."""
    reach = table.reach
    done = np.full(len(evidence.communicators), UNKNOWN, np.int64)
    proof = proves[reach.row]
    np.maximum.at(done, reach.communicator[proof], reach.completed[proof])
    together = np.array([name in SYNCHRONISING for name in evidence.names] + [False])
    proof = together[table.op] & (table.seq <= done[table.communicator])
    limit = np.full(len(evidence.communicators), UNKNOWN, np.int64)
    np.maximum.at(limit, table.communicator[proof], table.seq[proof])
    return limit
