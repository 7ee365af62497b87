"""From a cause to a verdict: the word, both sides, and what each rank was doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracekit.evidence import UNKNOWN, Int32, State
from tracekit.metrics.hangs.around import around
from tracekit.metrics.hangs.causes import Cause, Kind
from tracekit.metrics.hangs.compare import culprits_of, describe
from tracekit.metrics.hangs.cycles import edges_of, odd_ones
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.granted import taken_for_granted, unknown_members
from tracekit.metrics.hangs.graph import Node
from tracekit.metrics.hangs.peers import decided_by_peers
from tracekit.metrics.hangs.sides import (
    activities,
    launched,
    module_of,
    op_of,
    process_group,
    process_groups,
    sides,
    step_of,
)
from tracekit.metrics.hangs.still import Still, at_work, stands_still, stopped_outside, suspicion
from tracekit.metrics.hangs.table import is_silent
from tracekit.metrics.hangs.waits import waits_of
from tracekit.metrics.hangs.words import lacking_ranks, listed, newer, ranks_in_words, silent
from tracekit.results import Hang, Unfinished, Waiting

MOST_FINDINGS = 16
MOST_UNFINISHED = 100
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
    unfinished: tuple[Unfinished, ...] = ()


def conclude(examined: Examined, causes: Sequence[Cause]) -> Hang:
    """The verdict on a job's causes, or on there being none: the first hang, with the others beside it."""
    evidence = examined.evidence
    found = [_concluded(examined, cause) for cause in causes[:MOST_FINDINGS]] or [_concluded(examined, None)]
    first = next((hang for hang in found if hang.is_hang), found[0])
    others = tuple(hang for hang in found if hang is not first and hang.is_hang) if first.is_hang else ()
    waits, left_out = waits_of(examined, [cause.node.label for cause in causes if cause.node is not None])
    notes = [*evidence.notes, *first.notes]
    if examined.untold_mismatches:
        notes.append(f"{examined.untold_mismatches:,} further mismatched collectives are not listed")
    if first.is_hang:
        notes += _late(examined)
    return replace(
        first,
        notes=tuple(notes),
        others=others,
        last_activity=activities(examined),
        waits=waits,
        waits_left_out=left_out,
    )


def _concluded(examined: Examined, cause: Cause | None) -> Hang:
    evidence = examined.evidence
    if cause is not None and evidence.interrupted is False:  # what differs did not keep the job from going on
        draft = _moving(examined, Still.NO, cause)
    else:
        draft = _without_cause(examined) if cause is None else _on_cause(examined, cause)
    group = draft.group
    communicator = None if group is None else process_group(evidence, examined.communicator_of(group))
    waiting, ahead, behind = sides(examined, group)
    if cause is not None and draft.verdict not in ("not_a_hang", "undecided") and cause.waiting > len(waiting) > 0:
        draft.notes.append(f"{cause.waiting:,} ranks wait for it in all, most of them by way of other collectives")
    stuck = draft.culprits or behind or waiting
    names = {wait.communicator for wait in draft.cycle} | {mismatch.communicator for mismatch in examined.mismatches}
    hang = Hang(
        verdict=draft.verdict,
        communicator=communicator.name if communicator else None,
        description=communicator.description if communicator else None,
        seq=None if group is None else examined.seq_of(group),
        op=None if group is None else op_of(examined, group),
        missing_ranks=draft.missing,
        waiting_ranks=waiting,
        ahead_ranks=ahead,
        behind_ranks=behind,
        culprits=draft.culprits,
        cycle=draft.cycle,
        mismatches=examined.mismatches,
        last_activity=(),
        step=step_of(examined, stuck),
        module=module_of(examined, stuck),
        lacking=tuple(draft.lacking),
        notes=tuple(draft.notes),
        group=communicator,
        groups=process_groups(evidence, names | ({communicator.name} if communicator else set())),
        launched=launched(examined, group),
        unfinished=draft.unfinished,
    )
    return replace(hang, around=around(examined, hang))


def _late(examined: Examined) -> list[str]:
    """Who lists as unfinished what is over."""
    if not examined.late:
        return []
    rows = np.array(sorted(examined.late), np.int32)
    verb = "lists" if len(rows) == 1 else "list"
    count = sum(examined.late.values())
    what = "a collective" if count == 1 else f"{count:,} collectives"
    return [
        f"{ranks_in_words(examined, rows)} {verb} {what} as unfinished that the others finished together with them: the"
        " GPU failed there, or the thread that watches it stands still (dmesg tells Xid errors)"
    ]


def _without_cause(examined: Examined) -> Draft:
    """Nobody waits and nothing differs."""
    evidence = examined.evidence
    if evidence.unread:
        unfinished = tuple(
            Unfinished(
                rank=entry.rank,
                communicator=entry.communicator,
                seq=entry.seq,
                op=entry.op,
                state=None if entry.state is State.UNKNOWN else entry.state.name.lower(),
                why="it does not tell which entries of the other ranks belong to it",
            )
            for entry in evidence.unread[:MOST_UNFINISHED]
        )
        ranks = sorted({entry.rank for entry in evidence.unread})
        untold = f"what the unfinished entries of {listed(ranks)} belong to: they could not be read whole"
        return Draft(verdict="undecided", lacking=[untold], unfinished=unfinished)
    if lacking := _lacking_to_clear(examined):
        return Draft(verdict="undecided", lacking=lacking)
    return Draft(verdict="not_a_hang", notes=["all collectives were launched by all ranks and completed"])


def _lacking_to_clear(examined: Examined) -> list[str]:
    """What is lacking before a job can be said not to stand still; [] where nothing is."""
    evidence = examined.evidence
    if not len(examined.table):
        return [*silent(examined), *(evidence.lacking or ("collectives: none is in any capture or dump",))]
    unknown = bool((examined.table.state == State.UNKNOWN).any())
    if unknown and evidence.interrupted is not False:
        states = "how far the last collectives got: the captures or dumps do not tell their states"
        return [*silent(examined), states]
    if evidence.interrupted and (told := silent(examined)):
        return told
    if stopped_outside(evidence):
        return ["captures of further ranks: these stopped outside of any collective, with none of theirs unfinished"]
    return _without_dumps(examined)


def _without_dumps(examined: Examined) -> list[str]:
    """What is lacking where dumps are taken of a job, all is over on the ranks that have one, and others have none."""
    evidence = examined.evidence
    if any(rank.end_ns is not None for rank in evidence.ranks):
        return []
    there = {rank.rank for rank in evidence.ranks if not is_silent(rank)}
    known = set(range(evidence.world_size or 0)).union(*(group.ranks or () for group in evidence.communicators))
    lacking = sorted(known - there)
    return lacking_ranks(examined, lacking) if lacking else []


def _on_cause(examined: Examined, cause: Cause) -> Draft:
    if cause.kind is Kind.MISMATCH:
        return _steps_apart(examined, cause.group, itself=False) or _mismatched(examined, cause.group)
    node = cause.node
    assert node is not None  # of all other kinds it is there
    still = stands_still(examined, node.waiting, node.part.free)
    if still is not Still.YES:
        return _moving(examined, still, cause)
    if draft := _steps_apart(examined, cause.group):
        return draft
    if cause.kind is Kind.CYCLE:
        return _inverted(examined, cause)
    return _absent(examined, cause.group, node) if cause.kind is Kind.ABSENT else _arrived(examined, cause)


def _absent(examined: Examined, group: int, node: Node) -> Draft:
    free = node.part.free
    old = np.isin(node.waiting, examined.stale)
    if np.isin(free, examined.stale).any() or (old.size and old.all()):
        return Draft(verdict="undecided", group=group, lacking=[newer(examined)])
    verdict = "host_blocked" if _all_blocked(examined, free) else "missing_rank"
    named, busy = examined.ranks(free), at_work(examined, free)
    notes = [f"{ranks_in_words(examined, busy)} did other work until the capture ended"] if busy.size else []
    return Draft(verdict=verdict, group=group, culprits=named, missing=named, notes=notes)


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
    told = [f"{ranks_in_words(examined, table.row[at][table.step[at] == s])} in step {s}" for s in steps.tolist()]
    note = "from here on ranks call the same collective in different steps: " + ", ".join(told[:8])
    return Draft(verdict="step_desync", group=group, culprits=culprits, notes=[note])


def _mismatched(examined: Examined, group: int) -> Draft:
    mismatch = describe(examined.evidence, examined.table, examined.members, group, examined.mismatched[group])
    culprits = culprits_of(mismatch) or decided_by_peers(examined, group, mismatch)
    return Draft(verdict=mismatch.verdict, group=group, culprits=culprits)


def _moving(examined: Examined, still: Still, cause: Cause) -> Draft:
    """Ranks wait at the end of their captures, which proves nothing, or not enough."""
    if still is Still.NO or cause.node is None:
        note = "the captures end at different times, or while collectives run: that cuts them off and is no hang"
        return Draft(verdict="not_a_hang", group=None, notes=[note])
    lacking = "captures of the waiting ranks and of those they wait for that go on for longer"
    strength = suspicion(examined, cause.node.waiting)
    free = cause.node.part.free
    notes = [f"suspected: {ranks_in_words(examined, free)} had not launched it"] if free.size else []
    lacking = lacking if strength is None else f"{lacking}: {strength}"
    return Draft(verdict="undecided", group=cause.group, lacking=[lacking], notes=notes)


def _inverted(examined: Examined, cause: Cause) -> Draft:
    evidence = examined.evidence
    edges = edges_of(examined, cause.cycle)
    cycle = tuple(
        Waiting(
            rank=evidence.ranks[edge.row].rank,
            communicator=evidence.communicators[examined.communicator_of(edge.group)].name,
            seq=examined.seq_of(edge.group),
            op=op_of(examined, edge.group),
            waits_for=evidence.ranks[edge.blocker].rank,
        )
        for edge in edges
    )
    group = min(edge.group for edge in edges)
    if len(cause.cycle) == 1:  # in one batch: the message that was never sent is what the others wait for
        group = edges[0].group
        missing = (evidence.ranks[edges[0].blocker].rank,)
        return Draft(verdict="order_inversion", group=group, culprits=missing, missing=missing, cycle=cycle)
    culprits = examined.ranks(odd_ones(examined, [edge.group for edge in edges]))
    return Draft(verdict="order_inversion", group=group, culprits=culprits, cycle=cycle)


def _arrived(examined: Examined, cause: Cause) -> Draft:
    """All that are known have launched it, with the same arguments, and somebody is not through."""
    table = examined.table
    at = table.entries_of(cause.group)
    if lacking := _lacking_to_blame(examined, cause, at):
        return Draft(verdict="undecided", group=cause.group, lacking=lacking)
    member = examined.members[examined.communicator_of(cause.group)]
    inside, finished = table.row[at], np.setdiff1d(member.rows, table.row[at])
    if finished.size:  # that they do not list it says that it is over for them
        culprits = examined.ranks(inside) if len(inside) < len(finished) else NO_RANKS
        return Draft(verdict="state_mismatch", group=cause.group, culprits=culprits)
    if cause.kind is Kind.ARRIVED:
        return Draft(verdict="unfinished", group=cause.group, notes=taken_for_granted(examined, cause.group))
    state = table.state[at]
    late = inside[state == state[state != State.UNKNOWN].min()]
    furthest = inside[state == state.max()]
    if _all_blocked(examined, late):
        return Draft(verdict="host_blocked", group=cause.group, culprits=examined.ranks(late))
    culprits = examined.ranks(late) if len(late) < len(furthest) else NO_RANKS
    return Draft(verdict="state_mismatch", group=cause.group, culprits=culprits)


def _lacking_to_blame(examined: Examined, cause: Cause, at: slice) -> list[str]:
    """What is lacking before a collective can be said to have begun alike on all ranks; [] where nothing is."""
    group = cause.group
    member = examined.members[examined.communicator_of(group)]
    if member.unseen:
        return lacking_ranks(examined, member.unseen)
    if op_of(examined, group) == "all_to_all" and not _even(examined, at):
        return ["how much each rank sends to each other: the sums of an all-to-all do not tell whether it fits"]
    unlisted = np.setdiff1d(member.rows, examined.table.row[at])
    if unlisted.size and not examined.evidence.only_unfinished:
        called = f"what {ranks_in_words(examined, unlisted)} called as number {examined.seq_of(group)}"
        return [f"{called}: the entry is lost"]
    untold = unknown_members(examined, group)
    return [untold] if untold else []


def _even(examined: Examined, at: slice) -> bool:
    """Whether all ranks send and receive equally much."""
    sizes = np.concatenate([examined.table.elements_in[at], examined.table.elements_out[at]])
    return bool(sizes.min() == sizes.max() != UNKNOWN)


def _all_blocked(examined: Examined, rows: Int32) -> bool:
    """Whether the host of each of some ranks is inside a CUDA call that did not return."""
    ranks = examined.evidence.ranks
    return bool(rows.size) and all(ranks[row].activity.last_call_open for row in rows.tolist())
