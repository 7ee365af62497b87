"""Measures that need all ranks: one clock, matched collectives, waits, and who causes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.accounting import Covers
from tracekit.metrics.clocks import SENDS, Alignment, ClockFit, align_captures
from tracekit.metrics.groups import Key
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.match_ranks import Clocks, match
from tracekit.metrics.matching import FINISH_TOGETHER, Matched, keys_of, same_roles
from tracekit.metrics.numbering import OwnSteps, common_numbers
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.waits import RankWaits, rank_waits
from tracekit.metrics.world import world
from tracekit.results import Clock
from tracekit.timeline import RankTrack, Timeline

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """What the ranks' captures say together."""

    clocks: tuple[ClockFit | None, ...]
    """By rank; None where a clock cannot be told."""
    matched: tuple[Matched, ...]
    waits: tuple[RankWaits, ...]
    """By rank."""
    ambiguous: tuple[int, ...] = ()
    """Captures whose collectives fit the others' at several offsets, between which the wall clocks do not tell."""


def put_together(
    timeline: Timeline,
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    covers: Sequence[Covers],
    thresholds: Thresholds,
    *,
    align: bool,
) -> Together:
    """Align the clocks (unless ``align`` is off), match the collectives, tell waiting from transfer."""
    kinds = same_roles([keys_of(each, track) for each, track in zip(found, tracks, strict=True)])
    captures = tuple(timeline.processes[track.process].capture for track in tracks)
    order = tuple(dict.fromkeys(captures))
    alignment = measure_clocks(timeline, tracks, found, kinds, order, thresholds) if align else None
    fits = dict(zip(order, alignment.fits, strict=True)) if alignment else dict.fromkeys(order, RAW)
    clocks = tuple(fits[capture] for capture in captures)
    # Raw times of several captures say nothing about which collectives are one: then the order alone does.
    comparable = align or len(order) == 1
    known = Clocks(
        fits=clocks if comparable else (None,) * len(tracks),
        capture=captures,
        in_order=frozenset(order[i] for i in alignment.ambiguous) if alignment else frozenset(order),
        coarse_ns=tuple(coarse_offset(timeline, track, tracks[0]) for track in tracks)
        if align
        else (None,) * len(tracks),
    )
    whole = world(timeline).complete
    matched = match(tracks, found, kinds, known, thresholds, whole=whole)
    return Together(
        clocks=clocks,
        matched=matched,
        waits=rank_waits(tracks, found, covers, matched),
        ambiguous=tuple(order[i] for i in alignment.ambiguous) if alignment else (),
    )


def measure_clocks(
    timeline: Timeline,
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    kinds: Sequence[dict[Key, Int64]],
    order: Sequence[int],
    thresholds: Thresholds,
) -> Alignment:
    """The clock of each capture, in this order, against that of the first."""
    ends: list[dict[object, Int64]] = [{} for _ in order]
    for track, each, keys in zip(tracks, found, kinds, strict=True):
        mine = ends[order.index(timeline.processes[track.process].capture)]
        for key, index in keys.items():
            # One rank of a capture speaks for a kind of collective: all of the capture's ranks share its clock.
            if key[1] in FINISH_TOGETHER and len(index) > len(mine.get(key, ())):
                # In order of end: of several streams, what starts first need not end first.
                mine[key] = np.sort(track.ops.end[each.row[index]])
            if key[1] == "send_recv":
                mine[SENDS] = np.append(mine.get(SENDS, index[:0]), track.ops.end[each.row[index]])
    starts = [timeline.captures[c].start_epoch_ns for c in order]
    coarse = [starts[0] - s if s is not None and starts[0] is not None else None for s in starts]
    return align_captures(ends, coarse, thresholds)


def with_common_numbers(measured: Sequence[RankMeasures], together: Together) -> list[RankMeasures]:
    """The ranks with one number a step: the first rank's, wherever matched collectives tell which step is which."""
    own = [
        OwnSteps(
            number=np.array([step.step for step in m.steps], np.int64),
            start=np.array([step.start_ns for step in m.steps], np.int64),
            end=np.array([step.end_ns for step in m.steps], np.int64),
        )
        for m in measured
    ]
    sure = [
        kind
        for kind in together.matched
        if kind.op in FINISH_TOGETHER and all(_is_measured(together.clocks[member]) for member in kind.members)
    ]
    agreed = common_numbers([m.track for m in measured], [m.collectives for m in measured], sure, own)
    return [_renumbered(m, number.tolist()) for m, number in zip(measured, agreed, strict=True)]


def _is_measured(clock: ClockFit | None) -> bool:
    """Whether the k-th collective here is known to be the k-th there: on raw clocks the order alone would say so."""
    return clock is not None and clock is not RAW


def _renumbered(m: RankMeasures, numbers: Sequence[int]) -> RankMeasures:
    changed = [(step.step, number) for step, number in zip(m.steps, numbers, strict=True) if step.step != number]
    if not changed:
        return m
    first, now = changed[0]
    note = f"marks and collectives disagree about the number of {len(changed)} steps: {first} here is now called {now}"
    return replace(
        m,
        steps=tuple(replace(step, step=number) for step, number in zip(m.steps, numbers, strict=True)),
        notes=(*m.notes, note),
        renumbered=True,
    )


RAW = ClockFit(offset_ns=0, drift=0.0, origin_ns=0, uncertainty_ns=None, method="not_aligned")


def clock_of(fit: ClockFit | None, coarse_ns: int | None) -> Clock:
    """A rank's clock as a result; where it was not measured, the wall clock's offset if that is known."""
    if fit is not None:
        return Clock(
            offset_ns=fit.offset_ns,
            drift_ppm=round(fit.drift * 1e6, 4) if fit.method == "collectives" else None,
            uncertainty_ns=fit.uncertainty_ns,
            method=fit.method,
            origin_ns=fit.origin_ns if fit.method == "collectives" else None,
        )
    method = "session_start" if coarse_ns is not None else None
    return Clock(offset_ns=coarse_ns, drift_ppm=None, uncertainty_ns=None, method=method)


def coarse_offset(timeline: Timeline, track: RankTrack, first: RankTrack) -> int | None:
    """Offset to the first rank's clock by the wall clocks at the captures' starts, where both are known, ns."""
    own, reference = (timeline.captures[timeline.processes[t.process].capture].start_epoch_ns for t in (track, first))
    return reference - own if own is not None and reference is not None else None


def with_wall_clock_notes(
    timeline: Timeline, measured: Sequence[RankMeasures], together: Together, thresholds: Thresholds
) -> list[RankMeasures]:
    """The ranks, with a note where wall clocks and collectives tell different offsets, or neither tells one."""
    result = []
    for m, fit in zip(measured, together.clocks, strict=True):
        coarse = coarse_offset(timeline, m.track, measured[0].track)
        apart = abs(fit.offset_ns - coarse) if fit is not None and coarse is not None else 0
        if fit is not None and fit.method == "collectives" and apart > thresholds.coarse_clock_error_ns:
            note = (
                f"the wall clocks at the captures' starts disagree by {round(apart / 1e9)} s with its collectives, "
                "which fit at one place only: the clock is aligned by these"
            )
            m = replace(m, notes=(*m.notes, note))  # noqa: PLW2901
        if timeline.processes[m.track.process].capture in together.ambiguous:
            m = replace(m, notes=(*m.notes, AMBIGUOUS_CLOCK))  # noqa: PLW2901
        result.append(m)
    return result


AMBIGUOUS_CLOCK = (
    "its collectives fit the others' at several offsets, a period of the job apart, and the wall clocks do not tell "
    "which is right: its clock is not aligned"
)


def stages(
    tracks: Sequence[RankTrack], found: Sequence[RankCollectives], peers: NDArray[np.bool_]
) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks that meet in collectives, in jobs that also send and receive (pipelines); else ().

    A rank that meets nobody is no stage: all-to-all exchanges are sends and receives too.
    """
    if not any(op == "send_recv" for each in found for _, op in each.group):
        return ()
    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for i in range(len(tracks)):
        if i in seen:
            continue
        group, edge = {i}, {i}
        while edge:
            edge = {int(k) for j in edge for k in np.flatnonzero(peers[j])} - group
            group |= edge
        seen |= group
        groups.append(tuple(tracks[j].rank for j in sorted(group)))
    return tuple(groups) if len(groups) > 1 and all(len(group) > 1 for group in groups) else ()
