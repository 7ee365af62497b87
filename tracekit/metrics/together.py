"""Measures that need all ranks: one clock, matched collectives, waits, and who causes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.accounting import Covers, mean
from tracekit.metrics.clocks import SENDS, Alignment, ClockFit, align_captures
from tracekit.metrics.groups import Key
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.lateness import StepMatrix, idle_in_data, row_means
from tracekit.metrics.match_ranks import Clocks, match
from tracekit.metrics.matching import FINISH_TOGETHER, Matched, keys_of, same_roles
from tracekit.metrics.numbering import OwnSteps, common_numbers
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.stragglers import Arrivals, Suspicion, Windows, arithmetic, arrivals, chains, ratio_to_peers
from tracekit.metrics.verdicts import Evidence, verdicts
from tracekit.metrics.waits import RankWaits, rank_waits
from tracekit.metrics.world import world
from tracekit.results import Clock, Rank, Steady, Step, Straggler
from tracekit.spool import keep
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


def _windows(steps: Sequence[Step], order: Sequence[int], span: tuple[int, int]) -> Windows:
    """A rank's steps as columns of the step matrix; without steps its whole capture is the one column."""
    column = {number: i for i, number in enumerate(order)}
    rows = [(s.start_ns, s.end_ns, column[s.step]) for s in steps if s.step in column] if order else [(*span, 0)]
    start, end, columns = zip(*rows, strict=True) if rows else ((), (), ())
    return Windows(start=np.array(start, np.int64), end=np.array(end, np.int64), column=np.array(columns, np.int64))


def with_caused_waits(steps: Sequence[Step], row: int, verdict: Blame, steady: Steady | None) -> tuple[Step, ...]:
    """The steps of the rank in ``row`` with what the others waited for it."""
    if steady is None or not verdict.arrivals.last.any():
        return tuple(steps)
    column = {number: i for i, number in enumerate(steady.all_steps)}
    caused = verdict.arrivals.caused[row] / np.maximum(verdict.ranks_in_step, 1)
    return tuple(replace(step, caused_wait_ns=round(float(caused[column[step.step]]))) for step in steps)


def host_of(timeline: Timeline, track: RankTrack) -> str:
    """The rank's host, or its capture where the host is not known: one report is of one host."""
    return track.host or timeline.captures[timeline.processes[track.process].capture].path


def _idle_in_data(timeline: Timeline, m: RankMeasures, *, by_step: bool) -> Int64:
    """What the rank idles, its host inside a data range, in each of its steps or in its whole window, ns."""
    spans = [(step.start_ns, step.end_ns) for step in m.steps] if by_step else [m.window]
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    ranges = timeline.processes[m.track.process].ranges
    return idle_in_data(m.covers, ranges, m.words.where(lambda a: a.phase == "data"), start, end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blame:
    """The verdict on who makes the others wait, with what it rests on."""

    suspicion: Suspicion
    arrivals: Arrivals
    stragglers: tuple[Straggler, ...]
    ranks_in_step: NDArray[np.int64]
    """(steps,) how many ranks have each step."""
    wait_caused_ns: tuple[int, ...]
    """By rank: exposed time a step, mean over ranks, that the others wait for it."""

    def shown_in(self, rank: Rank, row: int) -> Rank:
        """The rank in ``row`` with what the verdict rests on, whether or not it is about this rank."""
        several = len(self.suspicion.compute_ratio) > 1
        rank = replace(rank, compute_ratio=self.suspicion.compute_ratio[row] if several else None)
        if not self.arrivals.last.any():
            return rank
        return replace(
            rank,
            wait_caused_ns=self.wait_caused_ns[row],
            caused_share=self.suspicion.caused_share[row],
            last_arrivals_share=self.suspicion.last_share[row],
        )


def _held_by_all(by_rank: Sequence[Sequence[Step]], numbers: Sequence[int]) -> tuple[int, ...]:
    """Of these steps those that every rank with steps holds; where there are none, all.

    Elsewhere waits cannot be told, for a rank is missing, and sums over different steps cannot be compared.
    """
    held = [{step.step for step in steps} for steps in by_rank if steps]
    return tuple(number for number in numbers if all(number in mine for mine in held)) or tuple(numbers)


def blame(
    timeline: Timeline,
    measured: Sequence[RankMeasures],
    together: Together,
    steady: Steady | None,
    thresholds: Thresholds,
) -> Blame:
    """Who makes the others wait in the steady steps (without steps: in the whole capture), and why."""
    tracks, found = [m.track for m in measured], [m.collectives for m in measured]
    by_rank, totals = [m.steps for m in measured], [m.totals for m in measured]
    order = steady.all_steps if steady else ()
    windows = [_windows(steps, order, span) for steps, span in zip(by_rank, [m.window for m in measured], strict=True)]
    doubt = [c.uncertainty_ns for c in together.clocks if c is not None and c.uncertainty_ns is not None]
    doubt_ns = max([thresholds.timestamp_tick_ns, *doubt])
    sums = arrivals(tracks, found, together.waits, together.matched, windows, max(len(order), 1), doubt_ns)
    numbers = _held_by_all(by_rank, steady.steps) if steady else ()
    columns = [order.index(number) for number in numbers] if steady else [0]
    counted, windows = sums.columns(columns), [each.only(columns) for each in windows]
    counting = set(numbers)
    accounts = [step.account for steps in by_rank for step in steps if step.step in counting]
    in_data = keep((_idle_in_data(timeline, m, by_step=bool(numbers)) for m in measured), tracks[0].ops.start)
    matrix = StepMatrix.of(by_rank, totals, in_data, numbers)
    suspicion = arithmetic(
        counted.own.sum(axis=1),
        counted.caused.sum(axis=1),
        counted.last.sum(axis=1),
        ratio_to_peers(row_means(matrix.compute), sums.peers).tolist(),
        mean(accounts or totals).wall_ns,
        max(len(numbers), 1),
        thresholds,
        float(counted.pushed.sum()),
    )
    told = verdicts(
        Evidence(
            tracks=tracks,
            processes=[timeline.processes[track.process] for track in tracks],
            found=found,
            suspicion=suspicion,
            arrivals=counted,
            matrix=matrix,
            windows=windows,
            numbers=tuple(numbers),
            columns=tuple(columns),
            step_ns=mean(accounts or totals).wall_ns,
            hosts=[host_of(timeline, track) for track in tracks],
            chained=chains(len(tracks), together.matched),
            thresholds=thresholds,
        )
    )
    wait_caused = np.rint(counted.caused.sum(axis=1) / len(accounts or tracks)).astype(np.int64).tolist()
    stragglers = [
        Straggler(
            rank=tracks[each.row].rank,
            verdict=each.verdict,
            wait_caused_ns=wait_caused[each.row],
            last_arrivals_share=suspicion.last_share[each.row],
            caused_share=suspicion.caused_share[each.row],
            compute_ratio=suspicion.compute_ratio[each.row],
            cause=each.cause,
            kernel_ratio=each.why.kernel_ratio if each.why else None,
            slow_kernels_share=each.why.slow_kernels_share if each.why else None,
            idle_excess_ns=round(each.why.idle_excess_ns) if each.why else None,
            pattern=each.pattern.kind if each.pattern else None,
            from_step=each.pattern.from_step if each.pattern else None,
            period=each.pattern.period if each.pattern else None,
            hosts=each.hosts,
        )
        for each in told
    ]
    stragglers.sort(key=lambda s: -s.wait_caused_ns)
    held = Counter(step.step for steps in by_rank for step in steps)
    return Blame(
        suspicion=suspicion,
        arrivals=sums,
        stragglers=tuple(stragglers),
        wait_caused_ns=tuple(wait_caused),
        ranks_in_step=np.array([held[number] for number in order], np.int64),
    )
