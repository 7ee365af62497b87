"""Puts the ranks' collectives beside each other: which communicator, which ordinal, on which clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN
from tracekit.metrics.clocks import ClockFit, fit_captures
from tracekit.metrics.hangs.issued import Group, Issued
from tracekit.metrics.lags import lag_at
from tracekit.metrics.matching import FINISH_TOGETHER
from tracekit.readers.raw import Names
from tracekit.timeline import Process, RankTrack, Timeline

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]

NO_END = np.iinfo(np.int64).min
"""Marks a collective without the end of a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank and where its evidence is."""

    rank: int
    source: str
    process: int
    track: RankTrack | None
    """None for a process without GPU work."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """How far each collective of a rank got; columns beside `Issued`'s."""

    state: Int8
    end: Int64
    """When its last kernel ended, on the capture's clock; NO_END."""
    stream: Int64
    """Where a kernel of it ran; NONE."""
    step: Int64
    """Training step it was called in; UNKNOWN."""


def clocks_of(
    timeline: Timeline,
    members: Sequence[Member],
    issued: Sequence[Issued | None],
    progress: Sequence[Progress | None],
    names: Names,
    thresholds: Thresholds,
) -> dict[int, ClockFit | None]:
    """By capture, its clock against the first one's, from the ends of the collectives that both have."""
    order = list(dict.fromkeys(timeline.processes[m.process].capture for m in members))
    ends: list[dict[object, Int64]] = [{} for _ in order]
    together = [names.add(op) for op in sorted(FINISH_TOGETHER)]
    for m, each, done in zip(members, issued, progress, strict=True):
        if each is None or done is None:
            continue
        mine = ends[order.index(timeline.processes[m.process].capture)]
        for g, group in enumerate(each.groups):
            for op in together:
                own = done.end[(each.group == g) & (each.op == op) & (done.end != NO_END)]
                if len(own) > len(mine.get((group, op), ())):
                    mine[group, op] = own
    starts = [timeline.captures[c].start_epoch_ns for c in order]
    coarse = [starts[0] - s if s is not None and starts[0] is not None else None for s in starts]
    return dict(zip(order, fit_captures(ends, coarse, thresholds), strict=True))


def communicators_of(members: Sequence[Member], issued: Sequence[Issued | None]) -> list[Group]:
    """All communicators, each once; where a rank does not tell the members of one, a rank that does speaks for it."""
    found: dict[Group, None] = {}
    for each in issued:
        for group in each.groups if each is not None else ():
            if group[1] is not None:
                found[group] = None
    for m, each in zip(members, issued, strict=True):
        for group in each.groups if each is not None else ():
            if group not in found and named(group, m.rank, found) is None:
                found[group] = None
    return list(found)


def named(group: Group, rank: int, found: dict[Group, None] | list[Group]) -> Group | None:
    """The one communicator of this name that the rank belongs to; None where there is none, or several."""
    same = [other for other in found if other[0] == group[0] and other[1] is not None and rank in other[1]]
    return same[0] if group[1] is None and len(same) == 1 else None


def aligned(
    members: Sequence[Member],
    processes: Sequence[Process],
    issued: Sequence[Issued | None],
    progress: Sequence[Progress | None],
    clocks: dict[int, ClockFit | None],
    groups: list[Group],
    notes: list[str],
) -> tuple[list[Int64], frozenset[int], frozenset[int]]:
    """(ordinals of each rank's collectives, comparable across ranks; the members for which nothing tells them; those
    that the numbers of steps moved, which then cannot tell that steps differ).

    A rank whose capture began later counts from a later collective: it is put beside the others by when they end; where
    no clock tells that, by the number of the step that they are called in.
    """
    seqs = [each.seq.copy() if each is not None else np.empty(0, np.int64) for each in issued]
    done: dict[Group, list[_Own]] = {group: [] for group in groups}
    for i, (m, each, got) in enumerate(zip(members, issued, progress, strict=True)):
        if each is None or got is None:
            continue
        fit = clocks[processes[i].capture]
        for g, group in enumerate(each.groups):
            calls = np.flatnonzero(each.group == g)
            rows = calls[got.end[calls] != NO_END]
            ends = fit.to_reference(got.end[rows]) if fit is not None else got.end[rows][:0]
            own = _Own(member=i, calls=calls, over=rows, ends=ends, step=got.step[calls], exact=each.exact[g])
            done[named(group, m.rank, groups) or group].append(own)
    strangers, by_step = set(), set()
    for ranks in done.values():
        if all(own.exact for own in ranks):
            continue
        reference = max(ranks, key=lambda own: (own.exact, len(own.ends)))
        for own in ranks:
            if own.exact or own is reference:
                continue
            found = _by_end(own, reference)
            stepped = found is None
            found = found or _by_step(own, reference)
            if found is None and len(own.over) and len(own.over) == len(reference.over):
                # Collectives end on all members or on none: as many ends, then as many beginnings.
                found = int(own.over[0]), int(reference.over[0])
            if found is not None:
                at, there = found
                moved = int(seqs[reference.member][there] - seqs[own.member][at])
                seqs[own.member][own.calls] += moved
                if stepped and moved:
                    by_step.add(own.member)
            elif processes[own.member].capture != processes[reference.member].capture:
                strangers.add(own.member)
    if strangers:
        notes.append("captures may begin at different collectives, and neither kernels nor steps tell which")
    return seqs, frozenset(strangers), frozenset(by_step)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Own:
    """One member's collectives of one communicator: rows of its `Issued`."""

    member: int
    calls: Int64
    over: Int64
    """Those that ended."""
    ends: Int64
    """When these did, on one clock; empty where there is none."""
    step: Int64
    """By ``calls``."""
    exact: bool


def _by_end(own: _Own, reference: _Own) -> tuple[int, int] | None:
    """(row, the reference's row) of one collective of both, by when they end; None where no clock tells."""
    if not len(own.ends) or not len(reference.ends):
        return None
    lag = lag_at(own.ends, reference.ends, 0.0)
    at = max(0, lag)  # own.over[at] and reference.over[at - lag] are one collective
    if at >= len(own.over) or at - lag >= len(reference.over):
        return None
    return int(own.over[at]), int(reference.over[at - lag])


def _by_step(own: _Own, reference: _Own) -> tuple[int, int] | None:
    """The same by the first step that both have: one that a capture begins in has no range there, so it is whole."""
    both = np.intersect1d(own.step[own.step != UNKNOWN], reference.step[reference.step != UNKNOWN])
    if not len(both):
        return None
    at, there = (int(each.calls[np.argmax(each.step == both[0])]) for each in (own, reference))
    return at, there
