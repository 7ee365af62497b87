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
from tracekit.metrics.pieces import pairs_by_pieces

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]

FEWEST = 8
"""Fewer shared collectives than this cannot tell a lag from jitter."""
LONGEST_SEARCH = 4000
"""Collectives that the search for a lag looks at: enough to tell steps apart, few enough to stay linear."""
PROBES = 64
"""Collectives that are compared at every lag before the best lags are looked at in full."""
MOST_LAGS = 256
"""Lags looked at in full; more than these are promising only where every collective looks like the next."""
SLOPES = 400
"""Points that Theil-Sen takes slopes between: 80,000 pairs."""


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


SAME = ClockFit(offset_ns=0, drift=0.0, origin_ns=0, uncertainty_ns=None, method="same_capture")


def fit_pair(
    ends: Mapping[object, Int64], reference: Mapping[object, Int64], coarse_ns: int | None, thresholds: Thresholds
) -> ClockFit | None:
    """The clock of ``ends`` against ``reference``, both the ends of collectives by key; None where it cannot be told.

    Captures may start and end at different collectives: for each key the lag is tried that leaves least jitter.
    """
    best: tuple[float, float, Int64, Int64] | None = None
    for key in sorted(ends.keys() & reference.keys(), key=lambda k: -min(len(ends[k]), len(reference[k])))[:4]:
        found = _best_lag(ends[key], reference[key], coarse_ns, thresholds)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    fit = None
    if best is not None:
        fit = _fit(*_pairs_near(ends, reference, best, best[1]), thresholds)
    # Ends of one collective differ by no more than the tolerance: what fits worse is not one, or records are lost.
    if fit is None or (fit.uncertainty_ns or 0) > thresholds.clock_tolerance_ns:
        pieced = _fit_by_pieces(ends, reference, coarse_ns, thresholds)
        if pieced is not None and (fit is None or (pieced.uncertainty_ns or 0) < (fit.uncertainty_ns or 0)):
            return pieced
    return fit


def _fit_by_pieces(
    ends: Mapping[object, Int64], reference: Mapping[object, Int64], coarse_ns: int | None, thresholds: Thresholds
) -> ClockFit | None:
    """The clock by the kind of collective with most ends, where lost records leave no one lag that fits."""
    keys = sorted(ends.keys() & reference.keys(), key=lambda k: -min(len(ends[k]), len(reference[k])))
    if not keys:
        return None
    own, other = np.sort(ends[keys[0]][:LONGEST_SEARCH]), np.sort(reference[keys[0]][:LONGEST_SEARCH])
    tolerance = thresholds.clock_tolerance_ns
    a, b = pairs_by_pieces(own, other, 2 * tolerance, thresholds.clock_residual_ns, LARGEST_DRIFT)
    # Of two captures of one job most records are in both.
    if len(a) < max(FEWEST, min(len(own), len(other)) // 3):
        return None
    fit = _fit(a, b, thresholds)
    astray = (
        fit is not None and coarse_ns is not None and abs(fit.offset_ns - coarse_ns) > thresholds.coarse_clock_error_ns
    )
    return None if astray else fit


def _best_lag(
    own: Int64, other: Int64, coarse_ns: int | None, thresholds: Thresholds
) -> tuple[float, float, Int64, Int64] | None:
    """(jitter, offset, own ends, other ends) at the lag of least jitter, in ns."""
    own, other = own[:LONGEST_SEARCH], other[:LONGEST_SEARCH]
    if min(len(own), len(other)) < FEWEST:
        return None
    tried: list[tuple[float, float, int]] = []
    for lag in _promising_lags(own, other, coarse_ns, thresholds):
        a, b = overlap(own, other, lag)
        jitter, offset = _jitter(a, b)
        tried.append((jitter, offset, lag))
    smallest = min(jitter for jitter, _, _ in tried)
    if smallest == float("inf"):
        return None  # at every lag one of the clocks would drift as none does
    # A regular job fits at every whole step: of what fits equally well, the nearest to the coarse clock counts.
    good = [t for t in tried if t[0] <= max(2 * smallest, thresholds.clock_tolerance_ns)]
    if coarse_ns is not None:
        jitter, offset, lag = min(good, key=lambda t: abs(t[1] - coarse_ns))
    else:
        jitter, offset, lag = min(good, key=lambda t: (abs(t[2]), t[0]))
    astray = coarse_ns is not None and abs(offset - coarse_ns) > thresholds.coarse_clock_error_ns
    if astray and not _only_one_fits(own, other, lag, tried, thresholds):
        return None
    a, b = overlap(own, other, lag)
    return jitter, offset, a, b


def _only_one_fits(
    own: Int64, other: Int64, lag: int, tried: Sequence[tuple[float, float, int]], thresholds: Thresholds
) -> bool:
    """Whether ends at ``lag`` differ as those of one collective do, and no other lag comes near.

    That a host's wall clock was never set is likelier than that another job's ends are the same to the microsecond.
    ``tried`` has (jitter, offset, lag) of the promising lags; the neighbours are looked at whether or not they are.
    """
    tolerance = thresholds.clock_tolerance_ns
    beside = [_jitter(*overlap(own, other, each)) for each in (lag - 1, lag + 1)]
    rest = min([jitter for jitter, _ in beside] + [jitter for jitter, _, at in tried if at != lag])
    return _jitter(*overlap(own, other, lag))[0] <= tolerance and rest > CLEARLY * tolerance


def _promising_lags(own: Int64, other: Int64, coarse_ns: int | None, thresholds: Thresholds) -> list[int]:
    """The lags worth a closer look, by how evenly a few probes are apart; all overlap by a third."""
    if len(own) < len(other):
        return [-lag for lag in _promising_lags(other, own, None if coarse_ns is None else -coarse_ns, thresholds)]
    least = max(FEWEST, len(other) // 3)
    lags = np.arange(least - len(other), len(own) - least + 1)
    if len(lags) <= MOST_LAGS:
        return lags.tolist()
    probes = np.unique(np.linspace(0, len(other) - 1, PROBES).astype(np.int64))
    at = probes + lags[:, None]
    apart = (own[np.clip(at, 0, len(own) - 1)] - other[probes]).astype(np.float64)
    apart[(at < 0) | (at >= len(own))] = np.nan
    # Neighbouring probes are as far apart but for jitter, and drift, which is the same for every lag.
    uneven = _row_medians(np.abs(np.diff(apart, axis=1)))
    good = np.flatnonzero(uneven <= max(4 * float(np.nanmin(uneven)), 4 * thresholds.clock_tolerance_ns))
    expected = np.abs(_row_medians(apart[good]) - coarse_ns) if coarse_ns is not None else np.abs(lags[good])
    chosen: list[int] = lags[good[np.argsort(expected, kind="stable")[:MOST_LAGS]]].tolist()
    return chosen


def _row_medians(values: Float) -> Float:
    """(rows,) lower median of each row without its NaNs; NaN for a row of nothing else."""
    middle = np.maximum(np.count_nonzero(~np.isnan(values), axis=1) - 1, 0) // 2
    medians: Float = np.sort(values, axis=1)[np.arange(len(values)), middle]
    return medians


def overlap(own: Int64, other: Int64, lag: int) -> tuple[Int64, Int64]:
    """The parts of both that stand beside each other when own[i + lag] is other[i]."""
    low = max(0, -lag)
    high = max(low, min(len(other), len(own) - lag))
    return own[low + lag : high + lag], other[low:high]


def _jitter(own: Int64, other: Int64) -> tuple[float, float]:
    """(median absolute residual around a line through the medians of both halves, median difference)."""
    difference = own - other
    middle = len(difference) // 2
    first, second = np.median(difference[:middle]), np.median(difference[middle:])
    t0, t1 = np.median(other[:middle]), np.median(other[middle:])
    slope = (second - first) / (t1 - t0) if t1 > t0 else 0.0
    if abs(slope) > LARGEST_DRIFT:
        return float("inf"), float(np.median(difference))
    residual = difference - first - slope * (other - t0)
    return float(np.median(np.abs(residual - np.median(residual)))), float(np.median(difference))


CLEARLY = 4
"""A lag with so many times the jitter that ends of one collective may have is another one."""
TIGHT_NS = 500
"""Jitter below this is that of the timestamps themselves."""
LARGEST_DRIFT = 1e-3
"""Clocks of computers do not drift by 1000 ppm: a steeper line is a wrong lag."""


def _pairs_near(
    ends: Mapping[object, Int64],
    reference: Mapping[object, Int64],
    best: tuple[float, float, Int64, Int64],
    offset: float,
) -> tuple[Int64, Int64]:
    """Ends of all keys paired by the lag that the best key's offset asks for."""
    own, other = [best[2]], [best[3]]
    for key in ends.keys() & reference.keys():
        a, b = ends[key], reference[key]
        if len(a) < FEWEST or len(b) < FEWEST:
            continue
        x, y = overlap(a, b, lag_at(a, b, offset))
        # The k-th of a kind need not be the same collective: groups of ranks run one each. Their ends differ more.
        if len(x) >= FEWEST and _jitter(x, y)[0] <= max(3 * best[0], TIGHT_NS):
            own.append(x)
            other.append(y)
    return np.concatenate(own), np.concatenate(other)


def lag_at(own: Int64, other: Int64, offset: float) -> int:
    """The lag at which own[i + lag] - other[i] is nearest to ``offset`` (median absolute difference)."""
    if len(own) == 0 or len(other) == 0:
        return 0
    shifted = own - np.int64(round(offset))
    first, last = max(shifted[0], other[0]), min(shifted[-1], other[-1])
    middle = first + (last - first) // 2
    start = int(np.searchsorted(shifted, middle)) - int(np.searchsorted(other, middle))
    if first > last:
        return start  # nothing in common
    best, answer = float("inf"), start
    for lag in range(start - 3, start + 4):
        a, b = overlap(shifted, other, lag)
        if len(a) == 0:
            continue
        distance = float(np.median(np.abs(a - b)))
        if distance < best:
            best, answer = distance, lag
    return answer


def _fit(own: Int64, other: Int64, thresholds: Thresholds) -> ClockFit | None:
    """Median offset and Theil-Sen drift, the drift only where it stands out of the noise."""
    order = np.argsort(own, kind="stable")
    own, other = own[order], other[order]
    difference = (own - other).astype(np.float64)
    origin = int(own[0])
    t = (own - origin).astype(np.float64)
    slope = _theil_sen(t, difference)
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


def _theil_sen(t: Float, difference: Float) -> float:
    """Median slope between points taken evenly: not swayed by collectives that were mismatched or interrupted."""
    picked = np.unique(np.linspace(0, len(t) - 1, min(len(t), SLOPES)).astype(np.int64))
    x, y = t[picked], difference[picked]
    i, j = np.triu_indices(len(x), k=1)
    apart = x[j] - x[i]
    far = apart > (t[-1] - t[0]) / 10
    return float(np.median((y[j] - y[i])[far] / apart[far])) if far.any() else 0.0


def fit_captures(
    ends: Sequence[Mapping[object, Int64]], coarse_ns: Sequence[int | None], thresholds: Thresholds
) -> list[ClockFit | None]:
    """The clock of each capture against the first one's.

    ``ends`` has for each capture the ends of its collectives by key, on its own clock. ``coarse_ns`` is each capture's
    offset to the first by the wall clock. Captures that share no collectives with the first are reached through others.
    """
    fits: list[ClockFit | None] = [None] * len(ends)
    if not ends:
        return fits
    fits[0] = SAME
    on_reference: list[tuple[Mapping[object, Int64], int]] = [(ends[0], 0)]
    waiting = list(range(1, len(ends)))
    while waiting:
        placed: dict[int, ClockFit] = {}
        for c in waiting:
            shared = sorted(on_reference, key=lambda other, c=c: -len(ends[c].keys() & other[0].keys()))  # type: ignore[misc]
            for other, doubt in shared[:3]:
                fit = fit_pair(ends[c], other, coarse_ns[c], thresholds)
                if fit is not None:
                    # Who is reached through another is known no better than that one.
                    placed[c] = replace(fit, uncertainty_ns=(fit.uncertainty_ns or 0) + doubt)
                    break
        if not placed:
            break
        for c, fit in placed.items():
            fits[c] = fit
            on_reference.append(({k: fit.to_reference(e) for k, e in ends[c].items()}, fit.uncertainty_ns or 0))
        waiting = [c for c in waiting if c not in placed]
    return fits
