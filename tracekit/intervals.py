"""Interval algebra on numpy columns.

An interval set is a pair of int64 arrays ``(start, end)`` of equal length, half open: ``[start, end)``. Intervals may
overlap and come in any order unless a function says otherwise; empty ones (end <= start) count for nothing. All sums
are exact while times stay within ±2^62, which the readers ensure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def union(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Disjoint, sorted, maximal intervals that cover the same instants. O(n log n); O(n) when sorted by start."""
    full = end > start
    if not full.all():
        start, end = start[full], end[full]
    if len(start) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), np.bool_)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    lasts = np.append(heads[1:], len(start)) - 1
    return start[heads], reach[lasts]


def subtract(a: tuple[Int64, Int64], b: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """The instants of ``a`` that are not in ``b``, as disjoint sorted intervals; both must come from `union`."""
    if len(a[0]) == 0 or len(b[0]) == 0:
        return a
    low, high = min(a[0][0], b[0][0]) - 1, max(a[1][-1], b[1][-1]) + 1
    gap_start, gap_end = np.append(low, b[1]), np.append(b[0], high)
    return intersect(a, (gap_start, gap_end))


def intersect(a: tuple[Int64, Int64], b: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """The instants in both, as disjoint sorted intervals; both must be disjoint and sorted. O((n + m) log)."""
    if len(a[0]) == 0 or len(b[0]) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Each piece starts where an interval of one side starts inside an interval of the other.
    starts, ends = [], []
    for (xs, xe), (ys, ye), side in ((a, b, "right"), (b, a, "left")):
        # ``left`` on the second pass: a start common to both sides is counted once.
        at = np.searchsorted(ys, xs, side=side) - 1  # type: ignore[call-overload]
        inside = at >= 0
        inside[inside] = xs[inside] < ye[at[inside]]
        starts.append(xs[inside])
        ends.append(np.minimum(xe[inside], ye[at[inside]]))
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def gaps(disjoint: tuple[Int64, Int64], window_start: int, window_end: int) -> tuple[Int64, Int64]:
    """The instants of the window that no interval of ``disjoint`` covers."""
    window = union(np.array([window_start], np.int64), np.array([window_end], np.int64))
    return subtract(window, disjoint)


def measure(disjoint: tuple[Int64, Int64]) -> int:
    """Total length of disjoint intervals, in ns."""
    return int((disjoint[1] - disjoint[0]).sum())


def owned(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Tile the union: each interval keeps the instants that no earlier one covers.

    ``start`` must be sorted. Returns (n,) arrays in which interval i owns ``[own_start[i], own_end[i])``, empty where
    earlier ones cover all of it. The owned parts are disjoint and their union is the union of all: sums over any
    grouping of intervals are exact, no instant counts twice.
    """
    if len(start) == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    own_start = start.copy()
    np.maximum(start[1:], reach[:-1], out=own_start[1:])
    return own_start, np.maximum(end, own_start)


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A set of instants that answers "how much of it lies before t?" for many t at once."""

    start: Int64
    end: Int64
    before: Int64
    """(n + 1,) measure of the intervals before the i-th."""

    @classmethod
    def of(cls, start: Int64, end: Int64) -> Cover:
        """Build from any intervals."""
        u_start, u_end = union(start, end)
        before = np.zeros(len(u_start) + 1, np.int64)
        np.cumsum(u_end - u_start, out=before[1:])
        return cls(u_start, u_end, before)

    def upto(self, t: Int64) -> Int64:
        """Measure of the set in (-inf, t), for each t; ns."""
        if len(self.start) == 0:
            return np.zeros(len(t), np.int64)
        at = np.searchsorted(self.start, t, side="right") - 1
        clipped = np.maximum(at, 0)
        inside = np.minimum(t, self.end[clipped]) - self.start[clipped]
        return np.where(at < 0, 0, self.before[clipped] + inside)

    def within(self, start: Int64, end: Int64) -> Int64:
        """Measure of the set in each ``[start, end)``; ns."""
        return self.upto(end) - self.upto(start)


def innermost(start: Int64, end: Int64, t: Int64) -> Int64:
    """Index of the innermost interval around each t, or -1; for properly nested intervals, as one thread pushes them.

    Works level by level on sorted columns, never by recursion, so nesting a thousand deep costs nothing. Where
    intervals cross (which push/pop cannot produce) the answer still contains t whenever any interval does, but may not
    be the shortest that does.
    """
    answer = np.full(len(t), -1, np.int64)
    rows = np.flatnonzero(end > start)
    if len(rows) == 0 or len(t) == 0:
        return answer
    s, e = start[rows], end[rows]
    n = len(rows)
    # At one instant ends come before starts (half open); of starts the longer, of ends the shorter comes first.
    time = np.concatenate([s, e])
    is_start = np.repeat(np.array([1, 0], np.int8), n)
    tie = np.concatenate([-e, -s])
    order = np.lexsort((tie, is_start, time))
    depth = np.cumsum(np.where(is_start[order] == 1, 1, -1))
    position = np.empty(2 * n, np.int64)
    position[order] = np.arange(2 * n)
    level = depth[position[:n]]  # 1 for outermost
    # The parent is the last interval one level up that started before; found by one search over (level, position).
    key = level * (2 * n) + position[:n]
    by_key = np.argsort(key)
    at = np.searchsorted(key[by_key], key - 2 * n, side="right") - 1
    parent = np.where((at >= 0) & (level > 1), by_key[np.maximum(at, 0)], -1)
    # After a start its interval is the innermost; after an end, that interval's parent.
    after = np.where(is_start[order] == 1, order % n, parent[order % n])
    last = np.searchsorted(time[order], t, side="right") - 1
    found = np.where(last >= 0, after[np.maximum(last, 0)], -1)
    # Crossing intervals can leave a parent that has ended: climb until one contains t.
    while True:
        bad = (found >= 0) & ((s[found] > t) | (e[found] <= t))
        if not bad.any():
            break
        found[bad] = parent[found[bad]]
    # They can also leave an interval around t that is no ancestor: the one that reaches furthest contains t then.
    lost = (found < 0) & (last >= 0) & (depth[np.maximum(last, 0)] > 0)
    if lost.any():
        by_start = np.argsort(s, kind="stable")
        reach = np.maximum.accumulate(e[by_start])
        furthest = np.maximum.accumulate(np.where(e[by_start] == reach, np.arange(n), 0))
        found[lost] = by_start[furthest[np.searchsorted(s[by_start], t[lost], side="right") - 1]]
    return np.where(found >= 0, rows[found], -1)
