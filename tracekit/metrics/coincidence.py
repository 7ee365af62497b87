"""The clock of a capture by sends and receives: at which offset most of their ends are the same instants.

A pipeline stage sends now to one rank, now to another, so that no lag puts its operations beside those of one of them.
Yet a send and its receive end together: at the right offset many ends of one capture are ends of the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.groups import nearest_to
from tracekit.metrics.lags import LARGEST_DRIFT, theil_sen

Int64 = NDArray[np.int64]

FEWEST = 8
"""Ends that are the same less often may be so by chance."""
MOST_ENDS = 1500
"""Ends of each capture that are looked at."""
MOST_PAIRS = 4_000_000
MOST_PEAKS = 8
"""Offsets that are looked at closely."""
STANDS_OUT = 2
"""The right offset has so many times the ends in common that any other has."""


def coincident(own: Int64, other: Int64, coarse_ns: int | None, thresholds: Thresholds) -> tuple[Int64, Int64] | None:
    """(own ends, the same ends on the other clock) near the wall clocks' offset; None where no offset stands out."""
    if coarse_ns is None or min(len(own), len(other)) < FEWEST:
        return None
    own, other = np.sort(own)[:MOST_ENDS], np.sort(other)[:MOST_ENDS] + coarse_ns
    found = [
        _on_a_line(own, other, offset, thresholds)
        for offset in _peaks(_differences(own, other, thresholds.wall_clock_search_ns), thresholds.clock_residual_ns)
    ]
    found.sort(key=lambda pair: -len(pair[0]))
    count = [len(pair[0]) for pair in found] + [0, 0]
    if count[0] < FEWEST or count[0] < STANDS_OUT * count[1] or 8 * count[0] < min(len(own), len(other)):
        return None
    return found[0][0], found[0][1] - coarse_ns


def _peaks(apart: Int64, width: int) -> list[int]:
    """The differences (sorted) that most others are near to, each well apart from the rest."""
    count = np.searchsorted(apart, apart + width, side="right") - np.arange(len(apart))
    peaks: list[int] = []
    for i in np.argsort(-count, kind="stable").tolist():
        middle = int(apart[i + count[i] // 2])
        if all(abs(middle - peak) > 2 * width for peak in peaks):
            peaks.append(middle)
        if len(peaks) == MOST_PEAKS or count[i] < FEWEST:
            break
    return peaks


def _on_a_line(own: Int64, other: Int64, offset: int, thresholds: Thresholds) -> tuple[Int64, Int64]:
    """Ends that are each other's nearest at an offset, and differ as two clocks do that drift: by a straight line."""
    shifted = own - offset
    near = nearest_to(other, shifted)
    both = (nearest_to(shifted, other)[near] == np.arange(len(own))) & (
        np.abs(shifted - other[near]) <= thresholds.clock_residual_ns
    )
    a, b = own[both], other[near[both]]
    if len(a) < FEWEST:
        return a[:0], b[:0]
    t, difference = (a - a[0]).astype(np.float64), (a - b - offset).astype(np.float64)
    slope = theil_sen(t, difference)
    residual = difference - slope * t
    kept = np.abs(residual - np.median(residual)) <= 2 * thresholds.clock_tolerance_ns
    if abs(slope) > LARGEST_DRIFT:
        kept[:] = False
    return a[kept], b[kept]


def _differences(own: Int64, other: Int64, farthest_ns: int) -> Int64:
    """All differences of an own and an other end of at most this size, sorted."""
    first = np.searchsorted(other, own - farthest_ns)
    last = np.searchsorted(other, own + farthest_ns, side="right")
    if int((last - first).sum()) > MOST_PAIRS:
        return np.empty(0, np.int64)
    parts = [t - other[a:b] for t, a, b in zip(own.tolist(), first.tolist(), last.tolist(), strict=True)]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
