"""Which ranks the verdict names, and why each is late: one, several alike, a group with more work, or all in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.lateness import (
    SILENT,
    Lateness,
    Medians,
    StepMatrix,
    kernel_medians,
    why_persistent,
    why_rotating,
)
from tracekit.metrics.stragglers import Arrivals, Suspicion, Windows, compared, hardly_wait
from tracekit.timeline import Process, RankTrack

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said of one rank."""

    row: int
    verdict: str
    """persistent, rotating or undecided."""
    cause: str
    why: Lateness | None
    """None where ranks take turns."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What verdicts rest on, by rank, in the steps that count."""

    tracks: Sequence[RankTrack]
    processes: Sequence[Process]
    found: Sequence[RankCollectives]
    suspicion: Suspicion
    arrivals: Arrivals
    matrix: StepMatrix
    windows: Sequence[Windows]
    thresholds: Thresholds

    def why(self, row: int, alike: Sequence[int], medians: Callable[[int], Medians]) -> Lateness:
        """Why the rank in ``row`` is late, held against those of its peers that are not late like it."""
        return why_persistent(
            row,
            alike,
            self.tracks[row],
            self.processes[row],
            self.found[row],
            self.suspicion,
            self.arrivals,
            self.matrix,
            medians,
            self.thresholds,
        )


def verdicts(evidence: Evidence) -> tuple[Verdict, ...]:
    """The ranks that others wait for, each with its cause; () where nothing explains why they would."""
    suspicion = evidence.suspicion
    if suspicion.verdict == "none":
        return ()
    medians = cache(lambda row: kernel_medians(evidence.tracks[row], evidence.windows[row]))
    several = _late_alike(evidence, medians)
    if several:
        return several
    if suspicion.verdict == "rotating":
        cause = why_rotating(evidence.arrivals, evidence.matrix, evidence.thresholds)
        told = [Verdict(row=row, verdict="rotating", cause=cause, why=None) for row in suspicion.ranks]
        return tuple(told) if cause != SILENT else ()
    row = suspicion.ranks[0]
    why = evidence.why(row, (row,), medians)
    if why.cause == SILENT:
        return ()
    verdict = "undecided" if _open(why, evidence.arrivals.caused[row]) else suspicion.verdict
    return (Verdict(row=row, verdict=verdict, cause=why.cause, why=why),)


def _open(why: Lateness | None, caused: Float) -> bool:
    """Whether the cause stays open: without launch rows a late launch cannot be told from nothing at all."""
    return why is not None and why.cause == "unknown" and (why.launch_share is None or _in_one_step(caused))


def _in_one_step(caused: Float) -> bool:
    """Whether most of what was waited for a rank, ns by step, fell in one step of many: that is an incident."""
    return len(caused) > 2 and bool(2 * caused.max() > caused.sum())


def _late_alike(evidence: Evidence, medians: Callable[[int], Medians]) -> tuple[Verdict, ...]:
    """Several ranks that are late together, for reasons that show; () where it is one, or none.

    Who of them is last is chance, so that none need have half of the waiting: what they share is that they hardly wait.
    """
    suspicion, thresholds = evidence.suspicion, evidence.thresholds
    quiet = hardly_wait(evidence.arrivals.own.sum(axis=1), thresholds)
    if len(quiet) < 2:
        return ()
    told = []
    for row in quiet:
        if np.isin(compared(evidence.arrivals.peers, row), quiet).all():
            continue  # nobody beside it waits
        why = evidence.why(row, quiet, medians)
        # More work without a slow kernel is no reason to name who is never last.
        if why.cause == "unknown" and suspicion.caused_share[row] < thresholds.turn_share:
            continue
        if why.cause != SILENT:
            told.append(Verdict(row=row, verdict="persistent", cause=why.cause, why=why))
    rows = [each.row for each in told]
    if len(told) < 2 or sum(suspicion.caused_share[row] for row in rows) < thresholds.persistent_share:
        return ()
    if any(_half_of_peers(row, rows, evidence.arrivals.peers) for row in rows):
        return tuple(_of_group(each) for each in told)
    caused = evidence.arrivals.caused[rows].sum(axis=0)
    return tuple(replace(each, verdict="undecided") if _open(each.why, caused) else each for each in told)


def _half_of_peers(row: int, rows: Sequence[int], peers: NDArray[np.bool_]) -> bool:
    """Whether half of those that a rank is compared with, or more, are late like it: which half is the odd one?"""
    beside = compared(peers, row)
    return bool(2 * np.count_nonzero(np.isin(beside, rows)) >= len(beside))


def _of_group(each: Verdict) -> Verdict:
    """What is said of a rank that is late with half of its peers: the group may have more to do, and nobody is slow."""
    why = each.why
    by_compute = why is not None and why.compute_excess_ns > why.idle_excess_ns
    return replace(each, verdict="undecided", cause="stage" if by_compute else each.cause)
