"""From a cause to a verdict: the word, both sides, and what each rank was doing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracekit.evidence import UNKNOWN, Int32, RankEvidence, State
from tracekit.metrics.hangs.causes import Cause, Kind
from tracekit.metrics.hangs.compare import culprits_of, describe
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.graph import Node, edges_of
from tracekit.metrics.hangs.still import Still, stands_still
from tracekit.metrics.hangs.table import is_silent
from tracekit.results import Hang, LastActivity, ProcessGroup, Waiting

MOST_APART = 5
NO_RANKS: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Draft:
    """A verdict in the making."""

    verdict: str
    group: int | None = None
    culprits: tuple[int, ...] = NO_RANKS
    missing: tuple[int, ...] = NO_RANKS
    cycle: tuple[Waiting, ...] = ()
    lacking: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def conclude(examined: Examined, cause: Cause | None) -> Hang:
    """The verdict on a cause, or on there being none."""
    evidence = examined.evidence
    if cause is not None and evidence.interrupted is False:  # what differs did not keep the job from going on
        draft = _moving(Still.NO, cause.group)
    else:
        draft = _without_cause(examined) if cause is None else _on_cause(examined, cause)
    if examined.untold_mismatches:
        draft.notes.append(f"{examined.untold_mismatches:,} further mismatched collectives are not listed")
    communicator = None if draft.group is None else evidence.communicators[examined.communicator_of(draft.group)]
    waiting, ahead, behind = _sides(examined, draft)
    if cause is not None and draft.verdict not in ("not_a_hang", "undecided"):
        draft.notes += _further(examined, cause, waiting)
    return Hang(
        verdict=draft.verdict,
        communicator=communicator.name if communicator else None,
        description=communicator.description if communicator else None,
        seq=None if draft.group is None else int(examined.table.seq[examined.table.start[draft.group]]),
        op=None if draft.group is None else _op(examined, draft.group),
        missing_ranks=draft.missing,
        waiting_ranks=waiting,
        ahead_ranks=ahead,
        behind_ranks=behind,
        culprits=draft.culprits,
        cycle=draft.cycle,
        mismatches=examined.mismatches,
        last_activity=_activities(examined),
        step=_step(examined, draft.culprits or behind or waiting),
        module=_module(examined, draft.culprits or behind or waiting),
        lacking=tuple(draft.lacking),
        notes=(*evidence.notes, *draft.notes),
        group=_group(examined, draft.group) if draft.group is not None else None,
        groups=_groups(examined, draft),
    )


def _group(examined: Examined, group: int) -> ProcessGroup:
    communicator = examined.evidence.communicators[examined.communicator_of(group)]
    return ProcessGroup(name=communicator.name, description=communicator.description, ranks=communicator.ranks)


def _groups(examined: Examined, draft: Draft) -> tuple[ProcessGroup, ...]:
    """All communicators that the verdict names."""
    names = {wait.communicator for wait in draft.cycle} | {mismatch.communicator for mismatch in examined.mismatches}
    if draft.group is not None:
        names.add(_group(examined, draft.group).name)
    known = (c for c in examined.evidence.communicators if c.name in names)
    found = {ProcessGroup(name=c.name, description=c.description, ranks=c.ranks) for c in known}
    return tuple(sorted(found, key=lambda group: (group.name, group.ranks or ())))


def _without_cause(examined: Examined) -> Draft:
    """Nobody waits and nothing differs."""
    evidence = examined.evidence
    if not len(examined.table):
        lacking = [*_silent(examined), *(evidence.lacking or ("collectives: none is in any capture or dump",))]
        return Draft(verdict="undecided", lacking=lacking)
    unknown = bool((examined.table.state == State.UNKNOWN).any())
    if unknown and evidence.interrupted is not False:
        lacking = ["how far the last collectives got: the captures or dumps do not tell their states"]
        return Draft(verdict="undecided", lacking=[*_silent(examined), *lacking])
    if evidence.interrupted and (silent := _silent(examined)):
        return Draft(verdict="undecided", lacking=silent)
    return Draft(verdict="not_a_hang", notes=["all collectives were launched by all ranks and completed"])


def _on_cause(examined: Examined, cause: Cause) -> Draft:
    if cause.kind is Kind.MISMATCH:
        return _steps_apart(examined, cause.group, itself=False) or _mismatched(examined, cause.group)
    node = cause.node
    assert node is not None  # of all other kinds it is there
    still = stands_still(examined, node.waiting, node.free)
    if still is not Still.YES:
        return _moving(still, cause.group)
    if draft := _steps_apart(examined, cause.group):
        return draft
    if cause.kind is Kind.CYCLE:
        return _inverted(examined, cause)
    return _absent(examined, cause.group, node) if cause.kind is Kind.ABSENT else _arrived(examined, cause)


def _absent(examined: Examined, group: int, node: Node) -> Draft:
    old = np.isin(node.waiting, examined.stale)
    if np.isin(node.free, examined.stale).any() or (old.size and old.all()):
        return Draft(verdict="undecided", group=group, lacking=[_newer(examined)])
    verdict = "host_blocked" if _all_blocked(examined, node.free) else "missing_rank"
    culprits, missing = examined.ranks(node.free), examined.ranks(node.absent)
    return Draft(verdict=verdict, group=group, culprits=culprits, missing=missing)


def _newer(examined: Examined) -> str:
    ranks = examined.ranks(examined.stale)
    which = f"{'a dump' if len(ranks) == 1 else 'dumps'} of {_listed(ranks)}"
    why = "those have completed what is not begun there, so it is older, or of another job"
    return f"{which} of the same moment as the others: {why}"


def _further(examined: Examined, cause: Cause, waiting: Sequence[int]) -> list[str]:
    """Who else waits for the cause, and what else keeps ranks waiting."""
    notes = []
    if cause.waiting > len(waiting) > 0:
        notes.append(f"{cause.waiting:,} ranks wait for it in all, most of them by way of other collectives")
    for node in cause.apart[:MOST_APART]:
        communicator = examined.evidence.communicators[examined.communicator_of(node.group)].name
        seq = int(examined.table.seq[examined.table.start[node.group]])
        op = _op(examined, node.group) or "collective"
        who = _ranks_in_words(examined, node.free)
        notes.append(f"apart from that, {len(node.waiting):,} wait for {who} in {op} {seq} of {communicator}")
    if len(cause.apart) > MOST_APART:
        notes.append(f"{len(cause.apart) - MOST_APART:,} further collectives lack other ranks")
    return notes


def _steps_apart(examined: Examined, latest: int, *, itself: bool = True) -> Draft | None:
    """Where the ranks of a communicator came to be in different steps, before a group of it or in that group itself."""
    table = examined.table
    group = examined.desync.get(examined.communicator_of(latest))
    if group is None or group > latest or (group == latest and not itself):
        return None
    at = table.entries_of(group)
    steps, counts = np.unique(table.step[at], return_counts=True)
    majority = steps[counts.argmax()] if 2 * counts.max() > counts.sum() else None
    culprits = examined.ranks(table.row[at][table.step[at] != majority]) if majority is not None else NO_RANKS
    sides = [f"{_ranks_in_words(examined, table.row[at][table.step[at] == s])} in step {s}" for s in steps.tolist()]
    note = "from here on ranks call the same collective in different steps: " + ", ".join(sides[:8])
    return Draft(verdict="step_desync", group=group, culprits=culprits, notes=[note])


def _mismatched(examined: Examined, group: int) -> Draft:
    mismatch = describe(examined.evidence, examined.table, examined.members, group, examined.mismatched[group])
    return Draft(verdict=mismatch.verdict, group=group, culprits=culprits_of(mismatch))


def _moving(still: Still, group: int) -> Draft:
    """Ranks wait at the end of their captures, which proves nothing."""
    if still is Still.NO:
        note = "the captures end at different times, or while collectives run: that cuts them off and is no hang"
        return Draft(verdict="not_a_hang", group=None, notes=[note])
    lacking = "captures of the waiting ranks and of those they wait for that go on for longer"
    return Draft(verdict="undecided", group=group, lacking=[lacking])


def _inverted(examined: Examined, cause: Cause) -> Draft:
    evidence, table = examined.evidence, examined.table
    waits = []
    for row, group, blocker in edges_of(examined.nodes, examined.front, cause.cycle):
        waits.append(
            Waiting(
                rank=evidence.ranks[row].rank,
                communicator=evidence.communicators[examined.communicator_of(group)].name,
                seq=int(table.seq[table.start[group]]),
                op=_op(examined, group),
                waits_for=evidence.ranks[blocker].rank,
            )
        )
    nodes = [examined.nodes[group] for group in cause.cycle]
    at = examined.nodes[cause.group]
    culprits = examined.ranks(np.unique(np.concatenate([node.waiting for node in nodes])))
    return Draft(
        verdict="order_inversion",
        group=cause.group,
        culprits=culprits,
        missing=examined.ranks(at.absent),
        cycle=tuple(waits),
    )


def _arrived(examined: Examined, cause: Cause) -> Draft:
    """All that are known have launched it, with the same arguments, and somebody is not through."""
    table = examined.table
    at = table.entries_of(cause.group)
    unseen = examined.members[examined.communicator_of(cause.group)].unseen
    if unseen:
        return Draft(verdict="undecided", group=cause.group, lacking=_lacking_ranks(examined, unseen))
    if _op(examined, cause.group) == "all_to_all":
        lacking = ["how much each rank sends to each other: the sums of an all-to-all do not tell whether it fits"]
        return Draft(verdict="undecided", group=cause.group, lacking=lacking)
    if cause.kind is Kind.ARRIVED:
        if untold := _unknown_members(examined, cause.group):
            return Draft(verdict="undecided", group=cause.group, lacking=[untold])
        return Draft(verdict="unfinished", group=cause.group)
    state = table.state[at]
    late = table.row[at][state == state[state != State.UNKNOWN].min()]
    furthest = table.row[at][state == state.max()]
    if _all_blocked(examined, late):
        return Draft(verdict="host_blocked", group=cause.group, culprits=examined.ranks(late))
    culprits = examined.ranks(late) if len(late) < len(furthest) else NO_RANKS
    return Draft(verdict="state_mismatch", group=cause.group, culprits=culprits)


def _unknown_members(examined: Examined, group: int) -> str | None:
    """What is lacking where no source tells who belongs to a communicator, and not all ranks of the job are there."""
    evidence = examined.evidence
    index = examined.communicator_of(group)
    if examined.members[index].size is not None:
        return None
    if evidence.world_size is not None and len(evidence.ranks) >= evidence.world_size:
        return None
    return f"which ranks belong to communicator {evidence.communicators[index].name}, and evidence of all of them"


def _all_blocked(examined: Examined, rows: Int32) -> bool:
    """Whether the host of each of some ranks is inside a CUDA call that did not return."""
    ranks = examined.evidence.ranks
    return bool(rows.size) and all(ranks[row].activity.last_call_open for row in rows.tolist())


def _sides(examined: Examined, draft: Draft) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(waiting, ahead, behind) at a collective: who launched it or later ones, and who did not."""
    if draft.group is None:
        return NO_RANKS, NO_RANKS, NO_RANKS
    table = examined.table
    at = table.entries_of(draft.group)
    waiting = table.row[at][table.state[at] != State.COMPLETED]
    index = examined.communicator_of(draft.group)
    seq = int(table.seq[at.start])
    rows = examined.members[index].rows
    reach = table.reach
    there = reach.of(index)
    last = np.full(len(examined.evidence.ranks), UNKNOWN, np.int64)
    last[reach.row[there]] = reach.last[there]
    last = last[rows]
    behind = last < seq
    if not behind.any():
        behind = last < last.max()
    ahead = rows[~behind] if behind.any() else rows[:0]
    return examined.ranks(waiting), examined.ranks(ahead), examined.ranks(rows[behind])


def _op(examined: Examined, group: int) -> str | None:
    """What most ranks call here; None where they disagree evenly, or no source tells."""
    codes, counts = np.unique(examined.table.op[examined.table.entries_of(group)], return_counts=True)
    best = int(counts.argmax())
    if codes[best] == UNKNOWN or 2 * counts[best] <= counts.sum():
        return None
    return examined.evidence.names[int(codes[best])]


def _activities(examined: Examined) -> tuple[LastActivity, ...]:
    evidence = examined.evidence
    settled: dict[int, int] = {}
    table = examined.table
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


def _step(examined: Examined, ranks: Sequence[int]) -> int | None:
    """The step in which all of some ranks were last; None where they differ or it is unknown."""
    wanted = set(ranks)
    steps = {_last_step(r) for r in examined.evidence.ranks if r.rank in wanted}
    return steps.pop() if len(steps) == 1 else None


def _last_step(rank: RankEvidence) -> int | None:
    if rank.activity.step is not None:
        return rank.activity.step
    last = int(rank.entries.step[-1]) if len(rank.entries) else UNKNOWN
    return None if last == UNKNOWN else last


def _module(examined: Examined, ranks: Sequence[int]) -> str | None:
    wanted = set(ranks)
    modules = {r.activity.module for r in examined.evidence.ranks if r.rank in wanted}
    return modules.pop() if len(modules) == 1 else None


def _silent(examined: Examined) -> list[str]:
    ranks = [rank.rank for rank in examined.evidence.ranks if is_silent(rank)]
    return _lacking_ranks(examined, ranks) if ranks else []


def _lacking_ranks(examined: Examined, ranks: Iterable[int]) -> list[str]:
    """What is lacking of ranks, told by whether they have an empty source or none."""
    empty = {rank.rank for rank in examined.evidence.ranks if is_silent(rank)}
    here = {rank.rank for rank in examined.evidence.ranks} - empty
    told = []
    for words, some in (
        ("a capture or dump of", [r for r in ranks if r not in empty and r not in here]),
        ("collectives of (the source holds none)", [r for r in ranks if r in empty]),
        ("earlier collectives (lost from the buffer) of", [r for r in ranks if r in here]),
    ):
        if some:
            told.append(f"{words} {_listed(some)}")
    return told


def _ranks_in_words(examined: Examined, rows: Int32) -> str:
    return _listed(examined.ranks(rows))


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
