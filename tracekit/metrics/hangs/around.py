"""Who launched and who finished what around the point where the ranks part, as a table that stays small."""

from __future__ import annotations

import numpy as np

from tracekit.evidence import UNKNOWN, State
from tracekit.metrics.hangs.examine import Examined
from tracekit.results import Around, Hang, SameRanks

BEFORE, AFTER = 4, 4
"""Collectives that are told before and after the one where the ranks part."""
ABSENT, LOST, DIFFERS = "absent", "lost", "differs"


def around(examined: Examined, hang: Hang) -> tuple[Around, ...]:
    """The tables of the verdict's communicator, and of the others of its cycle; () without a communicator."""
    if hang.communicator is None or hang.seq is None:
        return ()
    wanted = {hang.communicator: hang.seq} | {wait.communicator: wait.seq for wait in hang.cycle}
    names = [communicator.name for communicator in examined.evidence.communicators]
    # Several communicators can bear one name: the one that has the collective is meant.
    found = [
        table
        for name, seq in wanted.items()
        for index in range(len(names))
        if names[index] == name and (table := _around(examined, hang, index, seq)) is not None
    ]
    return tuple(found)


def _around(examined: Examined, hang: Hang, communicator: int, seq: int) -> Around | None:
    table, members = examined.table, examined.members[communicator].rows
    here = table.communicator == communicator
    if not np.any(here & (table.seq == seq)):
        return None
    entries = np.flatnonzero(here & (table.seq >= seq - BEFORE) & (table.seq <= seq + AFTER))
    seqs = np.unique(table.seq[entries])
    column = np.searchsorted(seqs, table.seq[entries])
    rows = len(examined.evidence.ranks)
    state = np.full((rows, len(seqs)), ABSENT, dtype=object)
    step = np.full((rows, len(seqs)), UNKNOWN, np.int64)
    words = np.array([State(code).name.lower() for code in range(State.ISSUED, State.COMPLETED + 1)] + ["unknown"])
    state[table.row[entries], column] = words[table.state[entries]]  # UNKNOWN is -1: the last word
    step[table.row[entries], column] = table.step[entries]
    reach, known = table.reach, table.reach.of(communicator)
    # Numbers only grow: what is not listed of a rank and not beyond its last is over, or lost.
    for row, last, done in zip(
        *(column[known].tolist() for column in (reach.row, reach.last, reach.completed)), strict=True
    ):
        unlisted = state[row] == ABSENT
        state[row, unlisted & (seqs <= last)] = LOST
        state[row, unlisted & (seqs <= done)] = words[State.COMPLETED]
    row_of = {rank.rank: row for row, rank in enumerate(examined.evidence.ranks)}
    for mismatch in hang.mismatches:
        if mismatch.communicator == examined.evidence.communicators[communicator].name and mismatch.seq in seqs:
            at = [row_of[rank] for rank in mismatch.ranks]
            state[at, int(np.searchsorted(seqs, mismatch.seq))] = DIFFERS
    return Around(
        communicator=examined.evidence.communicators[communicator].name,
        seqs=tuple(seqs.tolist()),
        ops=tuple(_op(examined, communicator, int(each)) for each in seqs),
        rows=_grouped(examined, members.tolist(), state, step, with_steps=hang.verdict == "step_desync"),
    )


def _op(examined: Examined, communicator: int, seq: int) -> str | None:
    table = examined.table
    codes = table.op[(table.communicator == communicator) & (table.seq == seq)]
    known, counts = np.unique(codes[codes != UNKNOWN], return_counts=True)
    return examined.evidence.names[int(known[counts.argmax()])] if len(known) else None


def _grouped(
    examined: Examined,
    members: list[int],
    state: np.ndarray[tuple[int, int], np.dtype[np.object_]],
    step: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    *,
    with_steps: bool,
) -> tuple[SameRanks, ...]:
    """Ranks with equal states (for a step that came apart: and equal steps) in one row."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for row in members:
        key = (*state[row].tolist(), *(step[row].tolist() if with_steps else ()))
        groups.setdefault(key, []).append(row)
    made = [
        SameRanks(
            ranks=tuple(sorted(examined.evidence.ranks[row].rank for row in rows)),
            states=tuple(state[rows[0]].tolist()),
            steps=tuple(_same(step[rows, i].tolist()) for i in range(step.shape[1])),
        )
        for rows in groups.values()
    ]
    return tuple(sorted(made, key=lambda group: (-group.states.count(ABSENT), group.ranks)))


def _same(steps: list[int]) -> int | None:
    """The step that all have; None where they differ, or it is not told."""
    return steps[0] if len(set(steps)) == 1 and steps[0] != UNKNOWN else None
