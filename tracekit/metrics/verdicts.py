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
from tracekit.metrics.patterns import Pattern, pattern_of
from tracekit.metrics.stragglers import Arrivals, Suspicion, Windows, compared, hardly_wait
from tracekit.timeline import Process, RankTrack

Float = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said of one rank."""

    row: int
    verdict: str
    """persistent, rotating or undecided."""
    cause: str
    why: Lateness | None
    """None where ranks take turns."""
    pattern: Pattern | None = None
    """In which steps it is late; None where ranks take turns, and without steps."""
    hosts: tuple[str, ...] = ()
    """Hosts all of whose ranks are named."""
    behind: tuple[int, ...] = ()
    """Rows of its pipeline that are late with it: what they cause is its doing."""


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
    numbers: tuple[int, ...]
    """Of the steps; () where the whole capture counts as one."""
    columns: tuple[int, ...]
    """What ``windows`` call these steps."""
    step_ns: float
    hosts: Sequence[str]
    chained: Bool
    """(ranks, ranks) which ranks send to each other, also by way of others: they are late together."""
    thresholds: Thresholds

    def pattern(self, rows: Sequence[int]) -> Pattern | None:
        """In which steps ranks are late: by their own work, where that explains it; else by what others wait for them.

        What others wait can lie in the step after: compute hides it for a while.
        """
        if len(self.numbers) < 2:
            return None
        waiting = np.maximum(self.matrix.others() - (len(rows) - 1), 1)
        late = self.arrivals.caused[list(rows)].sum(axis=0) / waiting
        beside = compared(self.arrivals.peers, rows[0])
        others = beside[~np.isin(beside, rows)]
        if len(others):
            busy = self.matrix.compute + self.matrix.idle
            known = ~np.isnan(busy[others]).all(axis=0)
            more = np.zeros(len(late))
            more[known] = busy[list(rows)].mean(axis=0)[known] - np.nanmedian(busy[others][:, known], axis=0)
            more = np.nan_to_num(more)
            if np.maximum(more, 0.0).sum() >= self.thresholds.explained_share * late.sum():
                late = more
        return pattern_of(late, self.numbers, self.step_ns, self.thresholds)

    def in_steps(self, pattern: Pattern | None) -> Evidence:
        """What is known of the steps of a pattern alone."""
        if pattern is None or pattern.kind is None or len(pattern.steps) == len(self.numbers):
            return self
        at = [self.numbers.index(number) for number in pattern.steps]
        columns = tuple(self.columns[i] for i in at)
        # All that was waited for them, as if in these steps: it can lie in the ones after.
        caused = np.repeat(self.arrivals.caused.sum(axis=1, keepdims=True) / len(at), len(at), axis=1)
        return replace(
            self,
            arrivals=replace(self.arrivals.columns(at), caused=caused, late=self._late_in(columns)),
            matrix=self.matrix.columns(at),
            windows=[each.only(columns) for each in self.windows],
            numbers=pattern.steps,
            columns=columns,
        )

    def _late_in(self, columns: Sequence[int]) -> tuple[Int64, ...]:
        """By rank: the collectives in which it was last that start in these steps."""
        result = []
        for track, each, windows, late in zip(self.tracks, self.found, self.windows, self.arrivals.late, strict=True):
            column = windows.column_of(track.ops.start[each.row[late]])
            result.append(late[np.isin(column, columns)])
        return tuple(result)

    def why(self, row: int, alike: Sequence[int], medians: Callable[[int], Medians]) -> Lateness:
        """Why the rank in ``row`` is late, held against those of its peers that are not late like it."""
        return why_persistent(
            row,
            alike,
            self.tracks[row],
            self.processes[row],
            self.found[row],
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
    several = _late_alike(evidence)
    if several:
        return several
    if suspicion.verdict == "rotating":
        cause = why_rotating(evidence.arrivals, evidence.matrix, evidence.thresholds)
        told = [Verdict(row=row, verdict="rotating", cause=cause, why=None) for row in suspicion.ranks]
        return tuple(told) if cause != SILENT else ()
    row = suspicion.ranks[0]
    pattern = evidence.pattern((row,))
    turns = _in_turn(evidence, pattern)
    if turns:
        return turns
    why = _reasons(evidence.in_steps(pattern))(row, (row,))
    if why.cause == SILENT:
        return ()
    verdict = "undecided" if _open(why, evidence.arrivals.caused[row]) else suspicion.verdict
    return (Verdict(row=row, verdict=verdict, cause=why.cause, why=why, pattern=pattern),)


def _in_turn(evidence: Evidence, pattern: Pattern | None) -> tuple[Verdict, ...]:
    """Ranks that are the latest of a step in turn, for a reason that shows; () where one is late on its own pattern.

    In a few steps chance gives one of them half of the waiting.
    """
    caused, thresholds = evidence.arrivals.caused, evidence.thresholds
    if pattern is None or pattern.kind is not None or len(evidence.numbers) < FEWEST_TURNS:
        return ()
    matters = caused.sum(axis=0) / len(caused) >= thresholds.wait_share * evidence.step_ns
    latest = np.bincount(np.argmax(caused[:, matters], axis=0), minlength=len(caused))
    if np.count_nonzero(latest) < 2:
        return ()
    cause = why_rotating(evidence.arrivals, evidence.matrix, thresholds)
    if cause in {SILENT, "unknown"}:
        return ()
    share = np.array(evidence.suspicion.caused_share)
    rows = np.flatnonzero(share >= thresholds.turn_share).tolist()
    told = [Verdict(row=row, verdict="rotating", cause=cause, why=None) for row in rows]
    return tuple(told) if len(told) > 1 else ()


FEWEST_TURNS = 4
"""Steps in which turns can show."""


def _reasons(evidence: Evidence) -> Callable[[int, Sequence[int]], Lateness]:
    """Why a row is late, beside those that are late alike; kernels are summed up once a rank."""
    medians = cache(lambda row: kernel_medians(evidence.tracks[row], evidence.windows[row]))
    return lambda row, alike: evidence.why(row, alike, medians)


def _open(why: Lateness | None, caused: Float) -> bool:
    """Whether the cause stays open: without launch rows a late launch cannot be told from nothing at all."""
    return why is not None and why.cause == "unknown" and (why.launch_share is None or _in_one_step(caused))


def _in_one_step(caused: Float) -> bool:
    """Whether most of what was waited for a rank, ns by step, fell in one step of many: that is an incident."""
    return len(caused) > 2 and bool(2 * caused.max() > caused.sum())


def _late_alike(evidence: Evidence) -> tuple[Verdict, ...]:
    """Several ranks that are late together, for reasons that show; () where it is one, or none.

    Who of them is last is chance, so that none need have half of the waiting: what they share is that they hardly wait.
    Ranks of one pipeline are late with the one among them that has a reason, and are not named.
    """
    suspicion, thresholds = evidence.suspicion, evidence.thresholds
    quiet = hardly_wait(evidence.arrivals.own.sum(axis=1), thresholds)
    if len(quiet) < 2:
        return ()
    pattern = evidence.pattern(quiet)
    reasons = _reasons(evidence.in_steps(pattern))
    told = []
    for row in quiet:
        if np.isin(compared(evidence.arrivals.peers, row), quiet).all():
            continue  # nobody beside it waits
        why = reasons(row, quiet)
        # More work without a slow kernel is no reason to name who is never last.
        if why.cause == "unknown" and suspicion.caused_share[row] < thresholds.turn_share:
            continue
        if why.cause != SILENT:
            told.append(Verdict(row=row, verdict="persistent", cause=why.cause, why=why, pattern=pattern))
    rows = [each.row for each in told]
    behind = [row for row in quiet if row not in rows and evidence.chained[row, rows].any()]
    share = sum(suspicion.caused_share[row] for row in (*rows, *behind))
    if len(rows) + len(behind) < 2 or not rows or share < thresholds.persistent_share:
        return ()
    slow = [each for each in told if each.cause == "slow_compute"]
    named = slow or [each for each in told if each.cause != "unknown"]
    if named and len(named) < len(told):  # who sends to a slow rank idles and is late with it
        told = [each for each in told if each in named or not evidence.chained[each.row, [n.row for n in named]].any()]
        rows = [each.row for each in told]
    hosts = _whole_hosts(rows, evidence.hosts)
    if hosts and all(each.cause == "slow_compute" for each in told):
        return tuple(replace(each, hosts=hosts) for each in told)
    if len(rows) > 1 and any(_half_of_peers(row, rows, evidence.arrivals.peers) for row in rows):
        return tuple(_of_group(each) for each in told)
    caused = evidence.arrivals.caused[rows].sum(axis=0)
    if len(told) == 1:
        late_with_it = tuple(row for row in quiet if row not in rows and evidence.chained[row, rows[0]])
        told = [replace(told[0], behind=late_with_it)]
    return tuple(replace(each, verdict="undecided") if _open(each.why, caused) else each for each in told)


def _whole_hosts(rows: Sequence[int], hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts of which these are all the ranks, where they are the ranks of whole hosts, and others are not."""
    named = {hosts[row] for row in rows}
    of_them = [row for row, host in enumerate(hosts) if host in named]
    return tuple(sorted(named)) if sorted(rows) == of_them and len(of_them) < len(hosts) and len(of_them) > 1 else ()


def _half_of_peers(row: int, rows: Sequence[int], peers: NDArray[np.bool_]) -> bool:
    """Whether half of those that a rank is compared with, or more, are late like it: which half is the odd one?"""
    beside = compared(peers, row)
    return bool(2 * np.count_nonzero(np.isin(beside, rows)) >= len(beside))


def _of_group(each: Verdict) -> Verdict:
    """What is said of a rank that is late with half of its peers: the group may have more to do, and nobody is slow."""
    why = each.why
    by_compute = why is not None and why.compute_excess_ns > why.idle_excess_ns
    return replace(each, verdict="undecided", cause="stage" if by_compute else each.cause)
