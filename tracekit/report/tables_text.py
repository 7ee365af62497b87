"""Tables that the terminal shows on request: what the verdict on each rank rests on, and bandwidth by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tracekit.report.details import size_rows
from tracekit.report.ranks import rank_rows
from tracekit.report.words import Scale, plural
from tracekit.results import Analysis

MAX_ROWS = 64
"""Ranks, and size classes, that are listed."""


def rank_lines(analysis: Analysis, scale: Scale, width: int) -> Iterator[Text]:
    """Yield a line a rank with what it computes, waits and causes; nothing where ranks were not compared."""
    if all(rank.compute_ratio is None for rank in analysis.ranks):
        return
    rows = rank_rows(analysis, scale).rows
    heads = ["rank", "compute", "waits", "causes", "P", "W", "last", "verdict"]
    cells = [
        [str(r.rank), r.compute, r.waits, r.caused, r.caused_share, r.compute_ratio, r.last, r.verdict] for r in rows
    ]
    title = f"What the verdict rests on, {scale.unit}{' a step' if analysis.steady else ''}"
    yield Text(fitted(title, width), style="bold")
    yield from table_lines(heads, cells[:MAX_ROWS], width, left_last=True)
    if len(rows) > MAX_ROWS:
        yield Text(f"  {len(rows) - MAX_ROWS} more in the JSON and the page", style="dim")
    legend = "P: share of all waiting that it causes; W: its compute over its peers'"
    yield Text(fitted(legend, width), style="dim")


def size_lines(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield bandwidth by size of the message; nothing where sizes or transfer times are not known."""
    rows = size_rows(analysis)
    if not rows:
        return
    cells = [
        [f"{r.op} {r.communicator or ''}".rstrip(), r.size, str(r.count), r.transfer, r.busbw, r.peak]
        for r in rows[:MAX_ROWS]
    ]
    yield from table_lines(["Bandwidth by size", "size", "count", "transfer", "bus GB/s", "of peak"], cells, width)
    if len(rows) > MAX_ROWS:
        yield Text(f"  {plural(len(rows) - MAX_ROWS, 'size')} more in the JSON", style="dim")


def table_lines(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, left_last: bool = False
) -> Iterator[Text]:
    """Yield a table: names at the left, figures right-aligned, columns that do not fit left out from the right.

    The first column takes the room that is left; with ``left_last`` the last one does.
    """
    widths = [max(map(cell_len, column)) + 2 for column in zip(heads, *rows, strict=True)]
    names = widths[0] if left_last else 8
    shown = len(heads)
    while shown > 2 and names + sum(widths[1:shown]) > width:
        shown -= 1
    first = names if left_last else width - sum(widths[1:shown])
    for i, row in enumerate((heads, *rows)):
        name = heads[0] if i == 0 else f"  {row[0]}"
        figures = "".join(
            f"  {text}" if left_last and column == len(heads) - 1 else " " * (widths[column] - cell_len(text)) + text
            for column, text in enumerate(row[1:shown], 1)
        )
        yield Text.assemble((set_cell_size(fitted(name, first - 1), first), "bold" if i == 0 else ""), figures)


def fitted(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider than ``width`` cells."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
