"""Clocks: how each capture's clock relates to the first one's, from collectives that all ranks leave together.

An all-reduce, all-gather or reduce-scatter ends at one instant on all ranks, so the difference of a collective's end on
two captures is the difference of their clocks. The wall-clock start that a capture notes is good to milliseconds at
best, and to seconds where hosts are not synchronised: it serves only to choose among equal answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.coincidence import coincident
from tracekit.metrics.lags import (
    AMBIGUOUS,
    FEWEST,
    LARGEST_DRIFT,
    LONGEST_SEARCH,
    TIGHT_NS,
    Lagged,
    best_lag,
    jitter_of,
    lag_at,
    overlap,
    theil_sen,
)
from tracekit.metrics.pieces import pairs_by_pieces

Int64 = NDArray[np.int64]
Ends = Mapping[object, Int64]
"""The ends of a capture's collectives by key, on its own clock."""

MOST_KEYS = 6
"""Kinds of collectives in which two captures are compared."""
NEAREST, SPREAD = 12, 12
"""Aligned captures that one is held against: so many of its neighbours, and so many taken evenly from all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFit:
    """A linear clock: on the reference's clock an instant t is ``t - offset_ns - drift × (t - origin_ns)``."""

    offset_ns: int
    """At ``origin_ns``."""
    drift: float
    """Dimensionless: 1e-6 is one ppm."""
    origin_ns: int
    uncertainty_ns: int | None
    """Median absolute residual; None for a clock that was not measured."""
    method: str
    """same_capture, collectives, session_start."""

    def to_reference(self, t: Int64) -> Int64:
        """Instants on the reference's clock, in whole ns."""
        drifted = np.rint(self.drift * (t - self.origin_ns)).astype(np.int64) if self.drift else 0
        return t - self.offset_ns - drifted

    def from_reference(self, t: int) -> int:
        """An instant of the reference's clock on this one."""
        return (
            round((t + self.offset_ns - self.drift * self.origin_ns) / (1.0 - self.drift))
            if self.drift
            else (t + self.offset_ns)
        )


SAME = ClockFit(offset_ns=0, drift=0.0, origin_ns=0, uncertainty_ns=None, method="same_capture")

EXACT, SENT, CLEAR, BY_WALL_CLOCK = 0, 1, 2, 3
"""Grades of a fit: as exact as ends of one collective agree, and at one lag only; by sends and receives, as exact; at
one lag only; at the lag that the wall clocks chose."""
GRADES = (EXACT, SENT, CLEAR, BY_WALL_CLOCK)
SENDS = "sends and receives"
"""Key of the ends of all sends and receives of a capture, in no order that a lag could follow."""


def fit_pair(ends: Ends, reference: Ends, coarse_ns: int | None, thresholds: Thresholds) -> ClockFit | None:
    """The clock of ``ends`` against ``reference``; None where it cannot be told."""
    found = _graded(ends, reference, coarse_ns, thresholds)
    return found[1] if isinstance(found, tuple) else None


def _graded(
    ends: Ends, reference: Ends, coarse_ns: int | None, thresholds: Thresholds
) -> tuple[int, ClockFit] | str | None:
    """(grade, fit) by the kind of collective that fits best; `AMBIGUOUS`, or None where none fits.

    Captures may start and end at different collectives: for each kind the lag is tried that leaves least jitter.
    """
    best: Lagged | None = None
    several = False
    for key in _shared_keys(ends, reference):
        found = best_lag(ends[key], reference[key], coarse_ns, thresholds)
        several |= found == AMBIGUOUS
        if isinstance(found, Lagged) and (
            best is None or (not found.clear, found.jitter_ns) < (not best.clear, best.jitter_ns)
        ):
            best = found
    fit = _fit(*_pairs_near(ends, reference, best), thresholds) if best is not None else None
    exact = fit is not None and (fit.uncertainty_ns or 0) <= thresholds.clock_tolerance_ns
    if fit is not None and best is not None and best.clear and exact:
        return EXACT, fit
    sent = _fit_by_sends(ends, reference, coarse_ns, thresholds)
    if sent is not None:
        return SENT, sent
    # Ends of one collective differ by no more than the tolerance: what fits worse is not one, or records are lost.
    pieced = _fit_by_pieces(ends, reference, coarse_ns, thresholds) if not exact else None
    if pieced is not None:
        return CLEAR, pieced
    if fit is None or best is None:
        return AMBIGUOUS if several else None
    return (CLEAR if best.clear else BY_WALL_CLOCK), fit


def _shared_keys(ends: Ends, reference: Ends) -> list[object]:
    """Kinds of collectives that both have, those with most first."""
    both = (ends.keys() & reference.keys()) - {SENDS}
    return sorted(both, key=lambda k: (-min(len(ends[k]), len(reference[k])), str(k)))[:MOST_KEYS]


def _fit_by_sends(ends: Ends, reference: Ends, coarse_ns: int | None, thresholds: Thresholds) -> ClockFit | None:
    """The clock at which sends and receives end together."""
    if SENDS not in ends or SENDS not in reference:
        return None
    pairs = coincident(ends[SENDS], reference[SENDS], coarse_ns, thresholds)
    return _fit(*pairs, thresholds) if pairs is not None and len(pairs[0]) >= FEWEST else None


def _fit_by_pieces(ends: Ends, reference: Ends, coarse_ns: int | None, thresholds: Thresholds) -> ClockFit | None:
    """The clock by the kind of collective with most ends, where lost records leave no one lag that fits."""
    keys = _shared_keys(ends, reference)
    if not keys:
        return None
    own, other = np.sort(ends[keys[0]][:LONGEST_SEARCH]), np.sort(reference[keys[0]][:LONGEST_SEARCH])
    tolerance = thresholds.clock_tolerance_ns
    a, b = pairs_by_pieces(own, other, 2 * tolerance, thresholds.clock_residual_ns, LARGEST_DRIFT)
    # Of two captures of one job most records are in both.
    if len(a) < max(FEWEST, min(len(own), len(other)) // 2):
        return None
    fit = _fit(a, b, thresholds)
    if fit is None or (fit.uncertainty_ns or 0) > tolerance:
        return None
    astray = coarse_ns is not None and abs(fit.offset_ns - coarse_ns) > thresholds.coarse_clock_error_ns
    return None if astray else fit


def _pairs_near(ends: Ends, reference: Ends, best: Lagged) -> tuple[Int64, Int64]:
    """Ends of all keys paired by the lag that the best key's offset asks for."""
    own, other = [best.own], [best.other]
    for key in sorted((ends.keys() & reference.keys()) - {SENDS}, key=str):
        a, b = ends[key], reference[key]
        if len(a) < FEWEST or len(b) < FEWEST:
            continue
        x, y = overlap(a, b, lag_at(a, b, best.offset_ns))
        # The k-th of a kind need not be the same collective: groups of ranks run one each. Their ends differ more.
        if len(x) >= FEWEST and jitter_of(x, y)[0] <= max(3 * best.jitter_ns, TIGHT_NS):
            own.append(x)
            other.append(y)
    return np.concatenate(own), np.concatenate(other)


def _fit(own: Int64, other: Int64, thresholds: Thresholds) -> ClockFit | None:
    """Median offset and Theil-Sen drift, the drift only where it stands out of the noise."""
    order = np.argsort(own, kind="stable")
    own, other = own[order], other[order]
    difference = (own - other).astype(np.float64)
    origin = int(own[0])
    t = (own - origin).astype(np.float64)
    slope = theil_sen(t, difference)
    flat = float(np.median(difference))
    level = float(np.median(difference - slope * t))
    residual = float(np.median(np.abs(difference - level - slope * t)))
    if abs(slope) * t[-1] <= 3 * residual:
        slope, level = 0.0, flat
        residual = float(np.median(np.abs(difference - flat)))
    if residual > thresholds.clock_residual_ns:
        return None
    return ClockFit(
        offset_ns=round(level),
        drift=slope,
        origin_ns=origin,
        uncertainty_ns=max(1, round(residual)),
        method="collectives",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The clocks of several captures against the first one's."""

    fits: tuple[ClockFit | None, ...]
    """None where a clock cannot be told."""
    ambiguous: tuple[int, ...]
    """Of those the captures that fit at several lags, between which the wall clocks do not tell."""


def fit_captures(
    ends: Sequence[Ends], coarse_ns: Sequence[int | None], thresholds: Thresholds
) -> list[ClockFit | None]:
    """The clock of each capture against the first one's, as `align_captures` tells it."""
    return list(align_captures(ends, coarse_ns, thresholds).fits)


def align_captures(ends: Sequence[Ends], coarse_ns: Sequence[int | None], thresholds: Thresholds) -> Alignment:
    """Align captures with the first one, the surest fits first.

    ``ends`` has for each capture the ends of its collectives by key, on its own clock. ``coarse_ns`` is each capture's
    offset to the first by the wall clock. Captures that share no collectives with the first are reached through others:
    ranks of one tensor-parallel group through each other, these groups through a data-parallel one.
    """
    growing = _Growing(ends, coarse_ns, thresholds)
    while growing.waiting and growing.place_some():
        pass
    return Alignment(fits=tuple(growing.fits), ambiguous=tuple(sorted(growing.ambiguous & set(growing.waiting))))


class _Growing:
    """Captures that are aligned, from the first one on."""

    def __init__(self, ends: Sequence[Ends], coarse_ns: Sequence[int | None], thresholds: Thresholds) -> None:
        self._ends, self._coarse, self._thresholds = ends, coarse_ns, thresholds
        self.fits: list[ClockFit | None] = [SAME if i == 0 else None for i in range(len(ends))]
        self.waiting = list(range(1, len(ends)))
        self.ambiguous: set[int] = set()
        self._hops = {0: 0}
        self._on_reference: dict[int, Ends] = {0: ends[0]} if ends else {}
        self._known: dict[tuple[int, int], tuple[int, ClockFit] | None] = {}

    def place_some(self) -> bool:
        """Place what fits by the surest grade at which anything does; whether something did."""
        for grade in GRADES:
            placed = [c for c in list(self.waiting) if self._place(c, grade)]
            if placed:
                return True
        return False

    def _place(self, c: int, grade: int) -> bool:
        for other in self._others(c):
            found = self._against(c, other)
            if found is None or found[0] > grade:
                continue
            fit, doubt = found[1], self.fits[other]
            # Who is reached through another is known no better than that one.
            behind = (doubt.uncertainty_ns or 0) if doubt is not None else 0
            fit = replace(fit, uncertainty_ns=(fit.uncertainty_ns or 0) + behind)
            self.fits[c] = fit
            self._hops[c] = self._hops[other] + 1
            self._on_reference[c] = {k: fit.to_reference(e) for k, e in self._ends[c].items()}
            self.waiting.remove(c)
            return True
        return False

    def _others(self, c: int) -> list[int]:
        """Aligned captures to hold one against: near the first in hops, then near it in order."""
        aligned = sorted(self._hops, key=lambda other: (abs(other - c), other))
        rest = sorted(aligned[NEAREST:])
        spread = np.unique(np.linspace(0, len(rest) - 1, SPREAD).astype(np.int64)).tolist() if rest else []
        chosen = aligned[:NEAREST] + [rest[i] for i in spread]
        return sorted(chosen, key=lambda other: (self._hops[other], abs(other - c), other))

    def _against(self, c: int, other: int) -> tuple[int, ClockFit] | None:
        """The fit of one capture against one that is aligned; each pair is looked at once."""
        if (c, other) not in self._known:
            found = _graded(self._ends[c], self._on_reference[other], self._coarse[c], self._thresholds)
            if isinstance(found, str):
                self.ambiguous.add(c)
                found = None
            self._known[c, other] = found
        return self._known[c, other]
