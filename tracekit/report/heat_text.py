"""The heat maps of waits and of arrivals for the terminal: a row a rank, a cell a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from tracekit.report.heat import HeatMaps, heat_maps
from tracekit.report.words import Scale
from tracekit.results import Analysis
from tracekit.runs import runs

MAX_ROWS = 16
_SHADES = "·░▒▓█"
_ASCII_SHADES = ".-+x#"
_NUMBERED = 8
"""Width of a cell with its number."""

_Cells = Sequence[Sequence[float | None]]


def heat_lines(analysis: Analysis, scale: Scale, width: int, unicode: bool) -> Iterator[Text]:
    """Yield both maps, or nothing where waiting cannot be told; no line is wider than ``width`` (at least 40)."""
    label_width = max(5, *(2 * len(str(rank.rank)) + 2 for rank in analysis.ranks))
    maps = heat_maps(analysis, max_rows=MAX_ROWS, max_columns=width - label_width)
    if maps is None:
        return
    frame = _Frame(scale, width, label_width, _SHADES if unicode else _ASCII_SHADES)
    yield from _map(f"Waits for its peers, {scale.unit} a step", maps, maps.waited, frame)
    if maps.caused is not None:
        yield Text()
        yield from _map(f"Makes others wait, {scale.unit} a step over all ranks", maps, maps.caused, frame)
    notes = []
    if maps.ranks_shared:
        notes.append("ranks that share a row: mean, then sum" if maps.caused else "ranks that share a row: mean")
    if left_out := [step for column in maps.columns if column.left_out for step in column.steps]:
        notes.append(f"left out of means: {runs(left_out)}")
    if notes:
        text = Text("; ".join(notes), style="dim")
        text.truncate(width)
        yield text


@dataclass(frozen=True, slots=True)
class _Frame:
    scale: Scale
    width: int
    label_width: int
    shades: str


def _map(title: str, maps: HeatMaps, cells: _Cells, frame: _Frame) -> Iterator[Text]:
    top = maps.top_ns(cells)
    room = frame.width - frame.label_width
    cell_width = next((w for w in (_NUMBERED, 2) if w * len(maps.columns) <= room), 1)
    head = Text.assemble((title, "bold"), f"  {frame.shades[0]} 0  {frame.shades[-1]} {frame.scale.format(top)}")
    head.truncate(frame.width)
    yield head
    labels = [column.label for column in maps.columns]
    if cell_width == _NUMBERED:
        steps = "".join(f"{label:>{_NUMBERED}}" for label in labels)
    else:
        steps = (
            labels[0] + labels[-1].rjust(cell_width * len(labels) - len(labels[0])) if len(labels) > 1 else labels[0]
        )
    yield Text("step".ljust(frame.label_width) + steps[:room])
    for row, values in zip(maps.rows, cells, strict=True):
        line = Text(f"{row.label:>{frame.label_width - 1}} ")
        for value in values:
            line.append(_cell(value, top, frame, cell_width), style="red" if value else "")
        if row.straggles and line.cell_len + 2 <= frame.width:
            line.append(" <", style="bold red")
        yield line


def _cell(value: float | None, top_ns: float, frame: _Frame, width: int) -> str:
    """Return one cell: its shade, and its number where there is room for it; blank where there is no such step."""
    if value is None:
        return " " * width
    last = len(frame.shades) - 1
    shade = frame.shades[min(last, round(value / top_ns * last))] if top_ns else frame.shades[0]
    return f" {shade * 2}{frame.scale.format(value):>{width - 3}}" if width == _NUMBERED else shade * width
