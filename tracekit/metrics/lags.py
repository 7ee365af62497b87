"""Which collective of one capture stands beside which of another: the lag at which their ends are evenly apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds

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
CLEARLY = 4
"""A lag with so many times the jitter of the best one is another one."""
TIGHT_NS = 500
"""Jitter below this is that of the timestamps themselves."""
SLOPES = 400
"""Points that Theil-Sen takes slopes between: 80,000 pairs."""
LARGEST_DRIFT = 1e-3
"""Clocks of computers do not drift by 1000 ppm: a steeper line is a wrong lag."""

Tried = tuple[float, float, int]
"""(jitter, offset, lag), the first two in ns."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lagged:
    """The ends of one kind of collective on two captures, beside each other."""

    jitter_ns: float
    offset_ns: float
    own: Int64
    other: Int64
    clear: bool
    """No other lag comes near. Else the wall clocks decided between lags that fit alike."""


AMBIGUOUS = "ambiguous"
"""Several lags fit alike, and the wall clocks do not tell which is right."""


def best_lag(own: Int64, other: Int64, coarse_ns: int | None, thresholds: Thresholds) -> Lagged | str | None:
    """Both ends at the lag of least jitter; `AMBIGUOUS`, or None where no lag fits."""
    own, other = own[:LONGEST_SEARCH], other[:LONGEST_SEARCH]
    if min(len(own), len(other)) < FEWEST:
        return None
    tried: list[Tried] = []
    for lag in _promising_lags(own, other, coarse_ns, thresholds):
        jitter, offset = jitter_of(*overlap(own, other, lag))
        tried.append((jitter, offset, lag))
    tried.sort(key=lambda t: (t[0], abs(t[2]), t[2]))
    smallest = tried[0][0]
    if smallest > thresholds.clock_residual_ns:
        return None
    chosen, clear = tried[0], _stands_out(tried)
    if not clear:
        among = _by_wall_clock(tried, coarse_ns)
        if among is None:
            return AMBIGUOUS
        chosen = among
    astray = coarse_ns is not None and abs(chosen[1] - coarse_ns) > thresholds.coarse_clock_error_ns
    if astray and not _only_one_fits(own, other, chosen[2], tried, thresholds):
        return None
    a, b = overlap(own, other, chosen[2])
    return Lagged(jitter_ns=chosen[0], offset_ns=chosen[1], own=a, other=b, clear=clear)


def _stands_out(tried: Sequence[Tried]) -> bool:
    """Whether the first of the lags, in order of jitter, fits clearly better than all others."""
    return len(tried) == 1 or tried[1][0] > CLEARLY * max(tried[0][0], TIGHT_NS)


def _by_wall_clock(tried: Sequence[Tried], coarse_ns: int | None) -> Tried | None:
    """Of the lags that fit alike the one that the wall clocks mean; None where they stand between two.

    A regular job fits at every whole step. Ranks that share no communicator fit nowhere exactly, and at a wrong step
    no worse than at the right one.
    """
    if coarse_ns is None:
        return None
    good = [t for t in tried if t[0] <= CLEARLY * max(tried[0][0], TIGHT_NS)]
    good.sort(key=lambda t: abs(t[1] - coarse_ns))
    nearest, next_one = good[0], good[1]
    return nearest if 2 * abs(nearest[1] - coarse_ns) <= abs(next_one[1] - coarse_ns) else None


def _only_one_fits(own: Int64, other: Int64, lag: int, tried: Sequence[Tried], thresholds: Thresholds) -> bool:
    """Whether ends at ``lag`` differ as those of one collective do, and no other lag comes near.

    That a host's wall clock was never set is likelier than that another job's ends are the same to the microsecond.
    The neighbours of the lag are looked at whether or not they were tried.
    """
    tolerance = thresholds.clock_tolerance_ns
    beside = [jitter_of(*overlap(own, other, each)) for each in (lag - 1, lag + 1)]
    rest = min([jitter for jitter, _ in beside] + [jitter for jitter, _, at in tried if at != lag])
    return jitter_of(*overlap(own, other, lag))[0] <= tolerance and rest > CLEARLY * tolerance


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


def jitter_of(own: Int64, other: Int64) -> tuple[float, float]:
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


def theil_sen(t: Float, difference: Float) -> float:
    """Median slope between points taken evenly: not swayed by collectives that were mismatched or interrupted."""
    picked = np.unique(np.linspace(0, len(t) - 1, min(len(t), SLOPES)).astype(np.int64))
    x, y = t[picked], difference[picked]
    i, j = np.triu_indices(len(x), k=1)
    apart = x[j] - x[i]
    far = apart > (t[-1] - t[0]) / 10
    return float(np.median((y[j] - y[i])[far] / apart[far])) if far.any() else 0.0
