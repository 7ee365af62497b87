"""What is told of a verdict's collective and of each rank: who got how far, and what each was doing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.evidence import UNKNOWN, Evidence, RankEvidence, State
from tracekit.metrics.hangs.examine import Examined
from tracekit.results import LastActivity, Launched, ProcessGroup

Sides = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def sides(examined: Examined, group: int | None) -> Sides:
    """(waiting, ahead, behind) at a collective: who launched it or later ones, and who did not."""
    if group is None:
        return (), (), ()
    table = examined.table
    at = table.entries_of(group)
    waiting = table.row[at][table.state[at] != State.COMPLETED]
    member = examined.members[examined.communicator_of(group)]
    behind = member.last < examined.seq_of(group)
    if not behind.any():
        behind = member.last < member.last.max()
    ahead = member.rows[~behind] if behind.any() else member.rows[:0]
    return examined.ranks(waiting), examined.ranks(ahead), examined.ranks(member.rows[behind])


def op_of(examined: Examined, group: int) -> str | None:
    """What most ranks call here; None where they disagree evenly, or no source tells."""
    codes, counts = np.unique(examined.table.op[examined.table.entries_of(group)], return_counts=True)
    best = int(counts.argmax())
    if codes[best] == UNKNOWN or 2 * counts[best] <= counts.sum():
        return None
    return examined.evidence.names[int(codes[best])]


def process_group(evidence: Evidence, communicator: int) -> ProcessGroup:
    """A communicator with its members."""
    told = evidence.communicators[communicator]
    return ProcessGroup(name=told.name, description=told.description, ranks=told.ranks)


def process_groups(evidence: Evidence, names: set[str]) -> tuple[ProcessGroup, ...]:
    """All communicators of these names, in order."""
    found = {process_group(evidence, index) for index, c in enumerate(evidence.communicators) if c.name in names}
    return tuple(sorted(found, key=lambda group: (group.name, group.ranks or (), group.description or "")))


def launched(examined: Examined, group: int | None) -> tuple[Launched, ...]:
    """How far each rank of a collective's communicator got, those furthest behind first."""
    if group is None:
        return ()
    communicator = examined.communicator_of(group)
    reach, at = examined.table.reach, examined.table.reach.of(communicator)
    told = {int(row): i for i, row in enumerate(reach.row[at].tolist(), start=at.start)}
    rows: dict[tuple[int, int, str], list[int]] = {}
    for row, last in zip(*(c.tolist() for c in _members(examined, communicator)), strict=True):
        i = told.get(row)
        if i is None:
            key = (UNKNOWN if examined.evidence.ranks[row].wrapped else last, UNKNOWN, "none")
        else:
            entries = reach.first[i] <= reach.last[i]
            source = "both" if entries and reach.counted[i] else "entries" if entries else "status"
            key = (max(last, int(reach.last[i])), int(reach.completed[i]), source)
        rows.setdefault(key, []).append(row)
    made = [
        Launched(
            ranks=tuple(sorted(examined.evidence.ranks[row].rank for row in same)),
            launched=None if last == UNKNOWN else last,
            completed=None if completed == UNKNOWN else completed,
            source=source,
        )
        for (last, completed, source), same in rows.items()
    ]
    return tuple(sorted(made, key=lambda each: (-1 if each.launched is None else each.launched, each.ranks)))


def _members(examined: Examined, communicator: int) -> tuple[np.ndarray, np.ndarray]:
    member = examined.members[communicator]
    return member.rows, member.last


def activities(examined: Examined) -> tuple[LastActivity, ...]:
    """What each rank did last."""
    evidence, table = examined.evidence, examined.table
    settled: dict[int, int] = {}
    if len(table):
        final = np.full(len(evidence.ranks), -1, np.int64)
        np.maximum.at(final, table.row, table.position)
        entries = np.flatnonzero(table.position == final[table.row])
        settled = dict(zip(table.row[entries].tolist(), entries.tolist(), strict=True))
    found = []
    for row, rank in enumerate(evidence.ranks):
        entry = settled.get(row)
        op = UNKNOWN if entry is None else int(table.op[entry])
        state = UNKNOWN if entry is None else int(table.state[entry])
        found.append(
            LastActivity(
                rank=rank.rank,
                communicator=None if entry is None else evidence.communicators[int(table.communicator[entry])].name,
                seq=None if entry is None else int(table.seq[entry]),
                op=None if op == UNKNOWN else evidence.names[op],
                state=None if state == UNKNOWN else State(state).name.lower(),
                activity=rank.activity,
                process=rank.process,
            )
        )
    return tuple(found)


def step_of(examined: Examined, ranks: Sequence[int]) -> int | None:
    """The step in which all of some ranks were last; None where they differ or it is unknown."""
    wanted = set(ranks)
    steps = {_last_step(r) for r in examined.evidence.ranks if r.rank in wanted}
    return steps.pop() if len(steps) == 1 else None


def _last_step(rank: RankEvidence) -> int | None:
    if rank.activity.step is not None:
        return rank.activity.step
    last = int(rank.entries.step[-1]) if len(rank.entries) else UNKNOWN
    return None if last == UNKNOWN else last


def module_of(examined: Examined, ranks: Sequence[int]) -> str | None:
    """The module that all of some ranks were in last."""
    wanted = set(ranks)
    modules = {r.activity.module for r in examined.evidence.ranks if r.rank in wanted}
    return modules.pop() if len(modules) == 1 else None
