"""Who waits when, and for whom: ranks × steps, for the heat maps of the terminal and the page.

With more ranks or steps than a map can show, neighbours share a row or a column; ranks that stand out keep their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tracekit.report.summary import steady_steps, stragglers_of, told_steps
from tracekit.results import Analysis, Step

SINGLES = 8
"""Ranks that keep a row of their own where others share one."""
COLOURED_SHARE = 0.02
"""† Full colour is at least this share of the step: noise must not look like a fire."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rank, or neighbouring ranks together."""

    ranks: tuple[int, ...]
    straggles: bool

    @property
    def label(self) -> str:
        """``3`` or ``0-15``; a rank between the two that has its own row is not in it."""
        return _label(self.ranks)


@dataclass(frozen=True, slots=True)
class Column:
    """One step, or neighbouring steps together."""

    steps: tuple[int, ...]
    left_out: bool

    @property
    def label(self) -> str:
        """``3`` or ``10-14``."""
        return _label(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMaps:
    """Two maps with the same rows and columns; cells in ns a step, None where a rank lacks the step."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    waited: tuple[tuple[float | None, ...], ...]
    """Exposed time that a rank waits for its peers; the mean where ranks share a row."""
    caused: tuple[tuple[float | None, ...], ...] | None
    """Exposed time, mean over ranks, that others wait for a rank; the sum where ranks share a row. None: not told."""
    floor_ns: float
    """What full colour stands for at least."""

    @property
    def ranks_shared(self) -> int:
        """How many ranks share a row with others."""
        return sum(len(row.ranks) for row in self.rows if len(row.ranks) > 1)

    @property
    def steps_shared(self) -> int:
        """How many steps are shown together at most."""
        return max(len(column.steps) for column in self.columns)

    def top_ns(self, cells: Sequence[Sequence[float | None]]) -> float:
        """Return what full colour stands for: the largest cell of the steady steps."""
        steady = [i for i, column in enumerate(self.columns) if not column.left_out]
        return max([self.floor_ns, *(row[i] or 0.0 for row in cells for i in steady)])


_Figure = Callable[[Step], int | None]


def heat_maps(analysis: Analysis, *, max_rows: int, max_columns: int) -> HeatMaps | None:
    """Lay out the maps; None with one rank, without steps, and where waiting cannot be told from transfer."""
    steps = [step for rank in analysis.ranks for step in rank.steps]
    told = told_steps(analysis)
    if len(analysis.ranks) < 2 or not told or analysis.steady is None:
        return None

    def waited(step: Step) -> int | None:
        return step.exposed_comm_by_cause.get("peer_wait", 0) if step.step in told else None

    def caused(step: Step) -> int | None:
        return step.caused_wait_ns

    by_rank = {rank.rank: {step.step: step for step in rank.steps} for rank in analysis.ranks}
    floor_ns = COLOURED_SHARE * analysis.steady.account.wall_ns
    rows = _rows(analysis, waited, max_rows, floor_ns)
    columns = _columns(sorted(told), analysis.steady.not_averaged, max_columns)
    anybody = any(step.caused_wait_ns is not None for step in steps)
    return HeatMaps(
        rows=rows,
        columns=columns,
        waited=_cells(rows, columns, by_rank, waited, statistics.fmean),
        caused=_cells(rows, columns, by_rank, caused, sum) if anybody else None,
        floor_ns=floor_ns,
    )


def _label(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _rows(analysis: Analysis, waited: _Figure, max_rows: int, floor_ns: float) -> tuple[Row, ...]:
    """Return a row for each rank; beyond ``max_rows`` blocks of 2, 4, 8 ... ranks, as nodes hold them, share one."""
    straggling = stragglers_of(analysis)
    ranks = sorted(analysis.ranks, key=lambda rank: rank.rank)
    if len(ranks) <= max_rows:
        return tuple(Row((rank.rank,), rank.rank in straggling) for rank in ranks)
    singles = _odd(analysis, waited, straggling, min(SINGLES, max_rows // 2), floor_ns)
    size = 2
    while math.ceil(len(ranks) / size) + len(singles) > max_rows:
        size *= 2
    blocks = [
        tuple(rank.rank for rank in ranks[i : i + size] if rank.rank not in singles) for i in range(0, len(ranks), size)
    ]
    rows = [Row(block, False) for block in blocks if block] + [Row((rank,), rank in straggling) for rank in singles]
    return tuple(sorted(rows, key=lambda row: row.ranks[0]))


def _odd(analysis: Analysis, waited: _Figure, straggling: set[int], most: int, floor_ns: float) -> set[int]:
    """Return the ranks to keep apart: those that straggle, then those whose wait differs most from the median."""
    means = {
        rank.rank: statistics.fmean([waited(step) or 0 for step in steps])
        for rank in analysis.ranks
        if (steps := steady_steps(analysis, rank))
    }
    median = statistics.median(means.values()) if means else 0.0
    away = {rank: abs(mean - median) for rank, mean in means.items()}
    apart = [rank for rank in means if rank in straggling or away[rank] >= floor_ns]
    return set(sorted(apart, key=lambda rank: (rank not in straggling, -away[rank], rank))[:most])


def _columns(numbers: Sequence[int], not_averaged: Collection[int], max_columns: int) -> tuple[Column, ...]:
    """Return a column for each step; with more than ``max_columns`` neighbours share one, if both are averaged."""
    left_out = [number for number in numbers if number in not_averaged]
    steady = [number for number in numbers if number not in not_averaged]
    size = 1
    while math.ceil(len(left_out) / size) + math.ceil(len(steady) / size) > max_columns:
        size += 1
    columns = [
        Column(tuple(part[i : i + size]), part is left_out)
        for part in (left_out, steady)
        for i in range(0, len(part), size)
    ]
    return tuple(sorted(columns, key=lambda column: column.steps[0]))


def _cells(
    rows: Sequence[Row],
    columns: Sequence[Column],
    by_rank: dict[int, dict[int, Step]],
    figure: _Figure,
    together: Callable[[list[float]], float],
) -> tuple[tuple[float | None, ...], ...]:
    """Return a cell for each row and column: each rank's mean over the steps, then ``together`` over the ranks."""

    def of_rank(rank: int, steps: Sequence[int]) -> float | None:
        found = [ns for n in steps if (step := by_rank[rank].get(n)) and (ns := figure(step)) is not None]
        return statistics.fmean(found) if found else None

    def cell(row: Row, column: Column) -> float | None:
        known = [ns for rank in row.ranks if (ns := of_rank(rank, column.steps)) is not None]
        return float(together(known)) if known else None

    return tuple(tuple(cell(row, column) for column in columns) for row in rows)
