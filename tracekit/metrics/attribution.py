"""Who makes the others wait, and why: the verdict over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.accounting import mean
from tracekit.metrics.lateness import StepMatrix, idle_in_data, row_means
from tracekit.metrics.links import Link, links, slow_links
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.stragglers import Arrivals, Suspicion, Windows, arithmetic, arrivals, chains, ratio_to_peers
from tracekit.metrics.together import Together
from tracekit.metrics.verdicts import Evidence, verdicts
from tracekit.results import Rank, Steady, Step, Straggler
from tracekit.spool import keep
from tracekit.timeline import RankTrack, Timeline

Int64 = NDArray[np.int64]


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


def with_slow_links(
    verdict: Blame, network: Sequence[Link], tracks: Sequence[RankTrack], thresholds: Thresholds
) -> Blame:
    """The verdict with ranks that others wait for because a link of theirs is slow, where nothing else explains it.

    Who of such a group is last is chance: all of them are named, and it is the link that is at fault.
    """
    on_it = {rank for link, _ in slow_links(network, thresholds) for rank in link.ranks}
    rows = [row for row, track in enumerate(tracks) if track.rank in on_it]
    suspicion = verdict.suspicion
    share = sum(suspicion.caused_share[row] for row in rows)
    if verdict.stragglers or suspicion.verdict == "none" or share < thresholds.persistent_share:
        return verdict
    named = [
        Straggler(
            rank=tracks[row].rank,
            verdict="undecided",
            wait_caused_ns=verdict.wait_caused_ns[row],
            last_arrivals_share=suspicion.last_share[row],
            caused_share=suspicion.caused_share[row],
            compute_ratio=suspicion.compute_ratio[row],
            cause="link",
            kernel_ratio=None,
            slow_kernels_share=None,
            idle_excess_ns=None,
        )
        for row in rows
    ]
    return replace(verdict, stragglers=tuple(sorted(named, key=lambda s: -s.wait_caused_ns)))


def _spans(steps: Sequence[Step]) -> tuple[Int64, Int64]:
    """Starts and ends of one rank's steps."""
    start, end = [step.start_ns for step in steps], [step.end_ns for step in steps]
    return np.array(start, np.int64), np.array(end, np.int64)


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

    @property
    def unexplained(self) -> bool:
        """Whether ranks wait, and nobody is named for it."""
        return self.suspicion.verdict != "none" and not self.stragglers

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
            chained=chains(len(tracks), together.matched, counted.peers),
            thresholds=thresholds,
        )
    )
    wait_caused = np.rint(counted.caused.sum(axis=1) / len(accounts or tracks)).astype(np.int64).tolist()
    stragglers = [
        Straggler(
            rank=tracks[each.row].rank,
            verdict=each.verdict,
            wait_caused_ns=sum(wait_caused[row] for row in (each.row, *each.behind)),
            last_arrivals_share=suspicion.last_share[each.row],
            caused_share=sum(suspicion.caused_share[row] for row in (each.row, *each.behind)),
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


def network_of(timeline: Timeline, measured: Sequence[RankMeasures], together: Together) -> tuple[Link, ...]:
    """The network as each kind of collective saw it."""
    tracks, found = [m.track for m in measured], [m.collectives for m in measured]
    hosts, spans = [host_of(timeline, track) for track in tracks], [_spans(m.steps) for m in measured]
    return links(hosts, tracks, found, together.waits, together.matched, spans)
