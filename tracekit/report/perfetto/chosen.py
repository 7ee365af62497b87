"""Which rows of each rank are drawn, and where on the trace's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import union
from tracekit.metrics.views import Detail, RankView
from tracekit.options import Options
from tracekit.report.timeline.clock import PlacedRank, place_ranks
from tracekit.results import Analysis, Rank
from tracekit.timeline import NONE, Bool, Int64

Rows = NDArray[np.intp]
Column = NDArray[Any]
BLOCK = 1 << 16
"""Rows that are turned into Python's numbers at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnRank:
    """One rank, and which of its operations are drawn."""

    placed: PlacedRank
    ops: Bool
    """(operations,) which are drawn."""
    within: tuple[Int64, Int64] | None
    """Disjoint windows on the rank's clock that rows must touch; None where all are drawn."""

    @property
    def index(self) -> int:
        """Position in `Detail.views`."""
        return self.placed.index

    @property
    def rank(self) -> Rank:
        """Its figures."""
        return self.placed.rank

    @property
    def view(self) -> RankView:
        """What it did, row by row."""
        return self.placed.view

    @property
    def starts(self) -> int:
        """The first instant that was asked for, on the rank's clock."""
        return int(self.within[0][0]) if self.within is not None else self.rank.start_ns

    def at(self, t: Int64) -> Int64:
        """Instants on the trace's clock, ns."""
        return self.placed.common(t)

    def later(self, shift: int) -> DrawnRank:
        """The same, so many ns later on the trace's clock."""
        return replace(self, placed=replace(self.placed, offset_ns=self.placed.offset_ns - shift))

    def touches(self, start: Int64, end: Int64) -> Bool:
        """Which intervals, on the rank's clock, share an instant with the windows."""
        if self.within is None:
            return np.ones(len(start), np.bool_)
        first, last = self.within
        # The first window that ends after the interval's start is the only one that can tell.
        nearest = np.searchsorted(last, start, side="right")
        result: Bool = nearest < len(last)
        result[result] = first[nearest[result]] < np.maximum(end, start + 1)[result]
        return result


def drawn_ranks(analysis: Analysis, detail: Detail, options: Options) -> tuple[list[DrawnRank], bool]:
    """(the ranks that have anything to draw, whether they are on one clock).

    Without one, the first step that all of them have starts together.
    """
    steps = [{step.step for step in rank.steps} for rank in analysis.ranks if rank.steps]
    common = min(set.intersection(*steps), default=None) if steps else None
    placed, aligned = place_ranks(analysis, detail.views, detail.waits, common)
    ranks = []
    for each in placed:
        if options.steps is None or each.rank.steps:
            ops = each.view.ops
            drawn = DrawnRank(placed=each, ops=np.empty(0, np.bool_), within=_windows(each.rank, options))
            ranks.append(replace(drawn, ops=drawn.touches(ops.start, ops.end)))
    return ranks, aligned


def _windows(rank: Rank, options: Options) -> tuple[Int64, Int64] | None:
    """What was asked for by --steps or --window, on the rank's clock."""
    if options.steps is not None:
        return union(*(np.array(t, np.int64) for t in zip(*((s.start_ns, s.end_ns) for s in rank.steps), strict=True)))
    if options.window != (None, None):
        return np.array([rank.start_ns], np.int64), np.array([rank.end_ns], np.int64)
    return None


def by_value(column: Int64, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """(value, its rows in their order) for each distinct value of a column, the lowest first. O(n log n)."""
    if len(rows) == 0:
        return
    order = rows[np.argsort(column[rows], kind="stable")]
    values = column[order]
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    for part in np.split(order, cuts):
        yield int(column[part[0]]), part


def blocks(rows: Rows) -> Iterator[Rows]:
    """The rows in pieces of `BLOCK`."""
    for low in range(0, len(rows), BLOCK):
        yield rows[low : low + BLOCK]


def name_of(names: Sequence[str], index: int) -> str:
    """A name by its index."""
    return (names[index] if index != NONE else "") or "unnamed"
