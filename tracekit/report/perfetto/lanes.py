"""Rows of a track so that slices nest: what crosses another one goes to a further row."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from tracekit.timeline import Int64

Rows = NDArray[np.intp]


def nested_rows(start: Int64, end: Int64) -> list[Rows]:
    """Spread intervals over rows, in each of which any two are disjoint or one holds the other. O(n log n).

    Returns indices, each row sorted by start, of one start the longer first. The first row takes whatever nests in it;
    the rest, which real captures hardly have, is laid out end to end in as few rows as that needs.
    """
    order = np.lexsort((-end, start))
    if len(order) == 0:
        return []
    s, e = start[order], end[order]
    if np.all(s[1:] >= np.maximum.accumulate(e)[:-1]):
        return [order]
    first: list[int] = []
    rest: list[int] = []
    open_ends: list[int] = []
    for row, begins, ends in zip(order.tolist(), s.tolist(), e.tolist(), strict=True):
        while open_ends and open_ends[-1] <= begins:
            open_ends.pop()
        if open_ends and ends > open_ends[-1]:
            rest.append(row)
            continue
        first.append(row)
        open_ends.append(ends)
    return [np.array(row, np.intp) for row in [first, *_end_to_end(rest, start, end)]]


def _end_to_end(rows: list[int], start: Int64, end: Int64) -> list[list[int]]:
    """Rows of disjoint intervals, each put into the row that has been free for longest, a new one if none is free."""
    lanes: list[list[int]] = []
    free_from: list[tuple[int, int]] = []
    for row, begins, ends in zip(rows, start[rows].tolist(), end[rows].tolist(), strict=True):
        if free_from and free_from[0][0] <= begins:
            _, lane = heapq.heappop(free_from)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(row)
        heapq.heappush(free_from, (ends, lane))
    return lanes
