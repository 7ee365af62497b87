"""Puts the ranks' collectives beside each other: which communicator, which ordinal, on which clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
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
) -> list[Int64]:
    """The ordinals of each rank's collectives, comparable across ranks.

    A rank whose capture began later counts from a later collective: it is put beside the others by when they end.
    """
    seqs = [each.seq.copy() if each is not None else np.empty(0, np.int64) for each in issued]
    done: dict[Group, list[tuple[int, Int64, Int64, bool]]] = {group: [] for group in groups}
    for i, (m, each, got) in enumerate(zip(members, issued, progress, strict=True)):
        if each is None or got is None:
            continue
        fit = clocks[processes[i].capture]
        for g, group in enumerate(each.groups):
            rows = np.flatnonzero((each.group == g) & (got.end != NO_END))
            ends = fit.to_reference(got.end[rows]) if fit is not None else got.end[rows][:0]
            done[named(group, m.rank, groups) or group].append((i, rows[: len(ends)], ends, each.exact[g]))
    for ranks in done.values():
        if all(exact for *_, exact in ranks):
            continue
        reference = max(ranks, key=lambda r: (r[3], len(r[1])))
        for i, rows, ends, exact in ranks:
            if exact or i == reference[0]:
                continue
            each = issued[i]
            assert each is not None  # it is in the list because it has collectives
            group = each.group == each.group[rows[0]] if len(rows) else each.group == -1
            if not len(rows) or not len(reference[1]):
                if processes[i].capture != processes[reference[0]].capture:
                    notes.append("captures may begin at different collectives, and no kernel tells which")
                continue
            lag = lag_at(ends, reference[2], 0.0)
            at = max(0, lag)  # own[at] and reference[at - lag] are one collective
            if at < len(rows) and at - lag < len(reference[1]):
                seqs[i][group] += seqs[reference[0]][reference[1][at - lag]] - seqs[i][rows[at]]
    return seqs
