"""Whether two samples differ by more than their own spread: a shift, and an interval around it.

No distribution is assumed. The estimate is Hodges and Lehmann's (1963): the median of all differences between a value
of one sample and a value of the other; its interval is the set of shifts that the two-sided test of Mann and Whitney
(1947) does not reject. Nothing is random: the same samples give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

EXACT_PAIRS = 2_500
"""Up to so many pairs the test's distribution is counted; beyond it is normal to three digits."""
MOST_VALUES = 1_000
"""Of a longer sample so many are taken, evenly spaced: the pairs have to fit into memory."""


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the second sample is larger, in the unit of the samples."""

    estimate: float
    low: float
    high: float


def shift(base: Sequence[float], new: Sequence[float], confidence: float) -> Shift | None:
    """The shift from ``base`` to ``new``; None where so few values never tell anything with this confidence.

    ``confidence``, 0 to 1, is of the interval, both sides together. Values are taken as independent of each other.
    """
    first, second = _thinned(base), _thinned(new)
    rank = _rank(len(first), len(second), confidence)
    if rank is None:
        return None
    differences = np.sort(np.subtract.outer(second, first), axis=None)
    return Shift(float(np.median(differences)), float(differences[rank]), float(differences[-1 - rank]))


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    column = np.asarray(values, np.float64)
    if len(column) <= MOST_VALUES:
        return column
    return column[np.linspace(0, len(column) - 1, MOST_VALUES).round().astype(np.int64)]


def _rank(n: int, m: int, confidence: float) -> int | None:
    """How many of the sorted differences lie outside the interval at each end; None where there is no such interval."""
    if not n or not m:
        return None
    tail = (1 - confidence) / 2
    if n * m > EXACT_PAIRS:
        spread = math.sqrt(n * m * (n + m + 1) / 12)
        outside = math.floor(n * m / 2 - 0.5 - NormalDist().inv_cdf(1 - tail) * spread)
        return outside if outside >= 0 else None
    limit = tail * math.comb(n + m, n) * (1 + 1e-9)  # 0.05 of 20 arrangements is one of them, whatever floats say
    outside, seen = -1, 0
    for ways in _arrangements(n, m):
        seen += ways
        if seen > limit:
            break
        outside += 1
    return outside if outside >= 0 else None


def _arrangements(n: int, m: int) -> list[int]:
    """In how many arrangements of two samples u pairs are in the wrong order, for u from 0 to n × m.

    These are the coefficients of the Gaussian binomial: the product of (1 - q^(m + i)) / (1 - q^i) for i from 1 to n.
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts
