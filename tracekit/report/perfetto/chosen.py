"""Which rows of each rank are drawn, and where on the trace's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis import Options
from tracekit.intervals import union
from tracekit.metrics.views import Detail, RankView
from tracekit.results import Analysis, Rank
from tracekit.timeline import NONE, Bool, Int64

Rows = NDArray[np.intp]
Column = NDArray[Any]
BLOCK = 1 << 16
"""Rows that are turned into Python's numbers at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnRank:
    """One rank, which of its operations are drawn, and how its clock relates to the trace's."""

    index: int
    """Position in `Detail.views`."""
    rank: Rank
    view: RankView
    ops: Bool
    """(operations,) which are drawn."""
    within: tuple[Int64, Int64] | None
    """Disjoint windows on the rank's clock that rows must touch; None where all are drawn."""
    offset_ns: int
    drift: float
    """Dimensionless, counted from ``since_ns``."""
    since_ns: int

    @property
    def span(self) -> tuple[int, int]:
        """From the first instant that was asked for to the last one, on the rank's clock."""
        if self.within is not None:
            return int(self.within[0][0]), int(self.within[1][-1])
        return self.rank.start_ns, self.rank.end_ns

    def at(self, t: Int64) -> Int64:
        """Instants on the trace's clock, ns."""
        drifted = np.rint(self.drift * (t - self.since_ns)).astype(np.int64) if self.drift else 0
        return t - self.offset_ns - drifted

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
    """(the ranks that have anything to draw, whether they are on one clock). Without one, each starts at its window."""
    ranks = []
    for index, (rank, view) in enumerate(zip(analysis.ranks, detail.views, strict=True)):
        if options.steps is not None and not rank.steps:
            continue
        clock = rank.clock
        drawn = DrawnRank(
            index=index,
            rank=rank,
            view=view,
            ops=np.empty(0, np.bool_),
            within=_windows(rank, options),
            offset_ns=clock.offset_ns or 0,
            drift=(clock.drift_ppm or 0.0) * 1e-6 if clock.origin_ns is not None else 0.0,
            since_ns=clock.origin_ns or 0,
        )
        ranks.append(replace(drawn, ops=drawn.touches(view.ops.start, view.ops.end)))
    if _share_a_clock(ranks):
        return ranks, True
    return [replace(each, offset_ns=each.span[0], drift=0.0) for each in ranks], False


def _windows(rank: Rank, options: Options) -> tuple[Int64, Int64] | None:
    """What was asked for by --steps or --window, on the rank's clock."""
    if options.steps is not None:
        return union(*(np.array(t, np.int64) for t in zip(*((s.start_ns, s.end_ns) for s in rank.steps), strict=True)))
    if options.window != (None, None):
        return np.array([rank.start_ns], np.int64), np.array([rank.end_ns], np.int64)
    return None


def _share_a_clock(ranks: Sequence[DrawnRank]) -> bool:
    """Whether all offsets are known, and put the ranks beside each other where they were not measured."""
    clocks = [each.rank.clock for each in ranks]
    if len(ranks) > 1 and any(clock.offset_ns is None for clock in clocks):
        return False
    if not any(clock.method in {"session_start", "not_aligned"} for clock in clocks):
        return True
    spans = [each.at(np.array(each.span, np.int64)) for each in ranks]
    return int(max(span[0] for span in spans)) < int(min(span[1] for span in spans))


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
