"""Which end of one capture is which of another where the profiler lost records: told piece by piece.

A lost record shifts everything behind it, so that no one lag fits the whole capture. A short run of collectives is
mostly whole on both sides, and the gaps between its ends are its fingerprint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float = NDArray[np.float64]

PIECE = 8
"""Ends in a piece: few enough to be whole, enough to be told from others by their gaps."""
PIECES = 64
"""Pieces that are looked for, taken evenly."""
LEAST = 3
"""Pieces that have to agree on a clock."""


def pairs_by_pieces(own: Int64, other: Int64, jitter_ns: float, farthest_ns: int, drift: float) -> tuple[Int64, Int64]:
    """(own ends, the same ends on the other clock), both sorted; empty where pieces do not agree on one clock.

    A piece fits where its ends differ by one offset to within ``jitter_ns`` (median). Pieces agree if their offsets
    differ by no more than clocks drift (``drift``, dimensionless). An end is the other's if the clock that the pieces
    agree on puts them within ``farthest_ns``.
    """
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    at, offset = _fitting_pieces(own, other, jitter_ns)
    if len(at) < LEAST:
        return nothing
    apart = np.abs(offset[:, None] - offset) <= jitter_ns + drift * np.abs(at[:, None] - at)
    agree = apart[np.argmax(apart.sum(axis=1))]
    if np.count_nonzero(agree) < LEAST:
        return nothing
    at, offset = at[agree], offset[agree]
    # Between pieces the clock is a straight line; before the first and behind the last the offset stays.
    expected = own - np.rint(np.interp(own.astype(np.float64), at, offset)).astype(np.int64)
    place = np.clip(np.searchsorted(other, expected), 1, len(other) - 1)
    place -= expected - other[place - 1] <= other[place] - expected
    near = np.abs(other[place] - expected) <= farthest_ns
    first = np.append(True, np.diff(place[near]) > 0) if near.any() else near[:0]
    return own[near][first], other[place[near][first]]


def _fitting_pieces(own: Int64, other: Int64, jitter_ns: float) -> tuple[Float, Float]:
    """(when each fitting piece ends on its own clock, its offset), in order of time."""
    if min(len(own), len(other)) < PIECE:
        return np.empty(0), np.empty(0)
    runs = np.lib.stride_tricks.sliding_window_view(own, PIECE)
    at, offsets = [], []
    for begin in np.unique(np.linspace(0, len(other) - PIECE, PIECES).astype(np.int64)).tolist():
        difference = runs - other[begin : begin + PIECE]
        offset = np.median(difference, axis=1)
        spread = np.median(np.abs(difference - offset[:, None]), axis=1)
        best = int(np.argmin(spread))
        # A piece that fits at several places, as in a regular job, tells nothing.
        if spread[best] <= jitter_ns and np.count_nonzero(spread <= jitter_ns) == 1:
            at.append(float(own[best + PIECE - 1]))
            offsets.append(float(offset[best]))
    order = np.argsort(at, kind="stable")
    return np.array(at)[order], np.array(offsets)[order]
