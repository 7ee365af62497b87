"""Charts as plain plotly figures (JSON-ready dicts), so that rendering needs no plotly package.

Colours are those of the light theme; each trace names its family in ``meta``, by which the page repaints it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from tracekit.report.causes import FAMILIES
from tracekit.report.details import CollectiveRow, SizeRow
from tracekit.report.heat import HeatMaps
from tracekit.report.palette import palette
from tracekit.report.summary import families_of, lost_of
from tracekit.report.words import Scale, clean
from tracekit.results import Analysis, Step

MAX_BARS = 240
"""More steps than this are drawn as means of neighbouring steps."""
MAX_COLLECTIVES = 12
MAX_SIZES = 16
MOST_OVER_STEADY = 1.5
"""Warm-up steps that are higher than this, over the highest steady step, are cut."""
MAX_NAME = 28
"""Longer names of modules keep their end, which tells them apart."""
MAX_NUMBERED_COLUMNS, MAX_NUMBERED_ROWS = 12, 32
"""Larger heat maps have no numbers in their cells: they would not fit."""
_ROW_PX = {True: 24, False: 12}
"""Height of a heat map's row, by whether its cells are numbered."""
_PATTERN = {"wait": "/", "order": "|", "host": "\\", "idle": "x"}

Figure = dict[str, Any]


def steps_figure(analysis: Analysis, scale: Scale) -> Figure | None:
    """Return step time by part: a stacked bar for every step, mean over ranks; None without steps."""
    by_step: dict[int, list[Step]] = {}
    for rank in analysis.ranks:
        for step in rank.steps:
            by_step.setdefault(step.step, []).append(step)
    if not by_step:
        return None
    numbers = sorted(by_step)
    width = -(-len(numbers) // MAX_BARS)
    groups = [numbers[i : i + width] for i in range(0, len(numbers), width)]
    labels = [str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups]
    members = [[step for number in group for step in by_step[number]] for group in groups]
    means = [_mean_families(steps) for steps in members]
    causes = [_mean_causes(steps, scale) for steps in members]
    traces = []
    for family in FAMILIES:
        values = [round(mean.get(family.key, 0.0) / scale.unit_ns, 6) for mean in means]
        if any(values):
            trace = _bars(family.key, family.label, x=labels, y=values, unit=scale.unit)
            texts = [by_family.get(family.key, "") for by_family in causes]
            if any(texts):
                trace["customdata"] = texts
                trace["hovertemplate"] = f"%{{y:.2f}} {scale.unit} {family.label}%{{customdata}}<extra></extra>"
            traces.append(trace)
    layout = _layout(xaxis_title="step", yaxis_title=f"{scale.unit} a step")
    layout["xaxis"]["type"] = "category"
    not_averaged = analysis.steady.not_averaged if analysis.steady else frozenset()
    faded = [not_averaged.issuperset(group) for group in groups]
    _cut_warm_up(layout, [sum(mean.values()) / scale.unit_ns for mean in means], faded)
    for trace in traces:
        trace["marker"]["opacity"] = [0.4 if pale else 1 for pale in faded]
    return {"data": traces, "layout": layout}


def _cut_warm_up(layout: Figure, heights: Sequence[float], faded: Sequence[bool]) -> None:
    """Keep a slow first step from making all others look flat: its bar is cut, with its height written above."""
    steady = [height for height, pale in zip(heights, faded, strict=True) if not pale]
    if not steady or max(heights) <= MOST_OVER_STEADY * max(steady):
        return
    top = 1.1 * max(steady)
    layout["yaxis"]["range"] = [0, top]
    layout["legend"]["y"] = 1.1
    layout["annotations"] = [
        {"x": i, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "text": f"{height:.0f} ↑"}
        | {"font": {"size": 11}}
        for i, height in enumerate(heights)
        if height > top
    ]


def _mean_families(steps: list[Step]) -> dict[str, float]:
    total: dict[str, float] = {}
    for step in steps:
        for family, ns in families_of([step], step.account).items():
            total[family] = total.get(family, 0.0) + ns / len(steps)
    return total


def _mean_causes(steps: Sequence[Step], scale: Scale) -> dict[str, str]:
    """Return by family the exact causes with their times, a line each, most first."""
    lost: dict[tuple[str, str], float] = {}
    for step in steps:
        for family, cause, ns in lost_of(step):
            lost[family, cause] = lost.get((family, cause), 0.0) + ns / len(steps)
    texts: dict[str, str] = {}
    for (family, cause), mean_ns in sorted(lost.items(), key=lambda item: -item[1]):
        line = f"<br>{scale.format(mean_ns)} {plain(cause.replace('_', ' '))}"
        texts[family] = texts.get(family, "") + line
    return texts


def plain(text: str) -> str:
    """Return text as it is to be read: the chart library takes it for a small kind of HTML."""
    return html.escape(clean(text), quote=False)


def modules_figure(rows: Sequence[tuple[str, float]], scale: Scale) -> Figure | None:
    """Return exposed time by module, most first; None where no module is known to expose any.

    ``rows`` are (module, ns a steady step, mean over ranks), most first.
    """
    shown = [(name, ns) for name, ns in rows if ns > 0][:MAX_COLLECTIVES]
    if not shown:
        return None
    labels = [name if len(name) <= MAX_NAME else "…" + name[1 - MAX_NAME :] for name, _ in shown]
    values = [ns / scale.unit_ns for _, ns in shown]
    return _ranked(values, labels, f"%{{x:.2f}} {scale.unit}", f"{scale.unit} exposed")


def _ranked(values: Sequence[float], labels: Sequence[str], hover: str, title: str) -> Figure:
    """Return bars from left to right, each with its label, the first at the top."""
    places = [str(i) for i in range(len(values))]
    trace = _bars("comm", title, x=[round(value, 6) for value in values], y=places, unit="")
    trace |= {"orientation": "h", "hovertemplate": f"{hover}<extra></extra>", "showlegend": False}
    trace["width"] = min(0.75, 0.2 * len(values))  # few bars stay bars
    layout = _layout(xaxis_title=title, yaxis_title=None)
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    layout["yaxis"] |= {"tickmode": "array", "tickvals": places, "ticktext": [plain(label) for label in labels]}
    layout["yaxis"]["ticklabelstandoff"] = 5
    return {"data": [trace], "layout": layout}


def collectives_figure(rows: list[CollectiveRow]) -> Figure | None:
    """Return exposed time by collective, most first, mean over ranks; None where no collective is exposed."""
    shown = [row for row in rows if row.exposed_ns > 0][:MAX_COLLECTIVES]
    if not shown:
        return None
    scale = shown[0].scale
    labels = [f"{row.op} {row.communicator[:10] if row.communicator else ''}".rstrip() for row in shown]
    values = [row.exposed_ns / scale.unit_ns for row in shown]
    return _ranked(values, labels, f"%{{x:.2f}} {scale.unit}", f"{scale.unit} exposed")


def bandwidth_figure(rows: Sequence[SizeRow]) -> Figure | None:
    """Return bus bandwidth by collective and size, peaks of links dashed; None where none is known."""
    shown = [row for row in rows if row.busbw_gbps is not None][:MAX_SIZES]
    if not shown:
        return None
    labels = [
        f"{row.op} {row.communicator[:6] if row.communicator else ''} {row.size}".replace("  ", " ") for row in shown
    ]
    figure = _ranked([row.busbw_gbps or 0.0 for row in shown], labels, "%{x:.1f} GB/s", "GB/s")
    peaks = sorted({row.peak_gbps for row in shown if row.peak_gbps})
    line = {"color": palette()["light"]["ink3"], "width": 1, "dash": "dash"}
    place: Figure = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    layout = figure["layout"]
    layout["shapes"] = [
        {"type": "line", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line} for x in peaks
    ]
    layout["annotations"] = [place | {"x": x, "text": f"link {x:g}", "font": {"size": 11}} for x in peaks]
    layout["margin"] |= {"t": 22 if peaks else layout["margin"]["t"], "r": 24}
    return figure


def heat_figure(maps: HeatMaps, cells: Sequence[Sequence[float | None]], scale: Scale) -> Figure:
    """Return a map as bars of one unit: the basic chart library has no heat map, and needs no picture for bars.

    Traces are the steady steps and those left out of means; each cell's colour comes from ``meta``, on the page.
    """
    rows, columns = maps.rows, maps.columns
    numbered = len(columns) <= MAX_NUMBERED_COLUMNS and len(rows) <= MAX_NUMBERED_ROWS
    top = round(maps.top_ns(cells) / scale.unit_ns, 6)
    traces = []
    for left_out in (False, True):
        places = [
            (y, x, ns)
            for y, values in enumerate(cells)
            for x, ns in enumerate(values)
            if ns is not None and columns[x].left_out == left_out
        ]
        if places:
            trace = _heat_cells(places, top, scale, numbered=numbered and not left_out)
            traces.append(trace | ({"opacity": 0.4} if left_out else {}))
    layout = _layout(xaxis_title="step", yaxis_title="rank")
    layout |= {"barmode": "overlay", "bargap": 0, "showlegend": False, "height": 92 + _ROW_PX[numbered] * len(rows)}
    names = [f"▸ {row.label}" if row.straggles else row.label for row in rows]
    layout["margin"] = {"l": 36 + 7 * max(map(len, names)), "r": 4, "t": 8, "b": 44}
    layout["xaxis"] |= _ticks([str(column.steps[0]) for column in columns], 16) | {"range": [-0.5, len(columns) - 0.5]}
    layout["yaxis"] |= _ticks(names, 40) | {"range": [len(rows) - 0.5, -0.5]}
    layout["shapes"] = _left_out_frames(maps)
    layout["meta"] = {
        "rows": [f"{'rank' if len(row.ranks) == 1 else 'ranks'} {row.label}" for row in rows],
        "columns": [f"{'step' if len(column.steps) == 1 else 'steps'} {column.label}" for column in columns],
        "ranks": [row.ranks[0] if len(row.ranks) == 1 else None for row in rows],
        "steps": [column.steps[0] if len(column.steps) == 1 else None for column in columns],
    }
    return {"data": traces, "layout": layout}


def _heat_cells(places: Sequence[tuple[int, int, float]], top: float, scale: Scale, *, numbered: bool) -> Figure:
    number = f"%{{customdata[2]:.{scale.decimals}f}}"
    return {
        "type": "bar",
        "x": [x for _, x, _ in places],
        "base": [y - 0.5 for y, _, _ in places],
        "y": [1] * len(places),
        "width": 1,
        "meta": {"top": top, "values": [round(ns / scale.unit_ns, scale.decimals + 2) for _, _, ns in places]},
        "texttemplate": number if numbered else "",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "hovertemplate": f"%{{customdata[0]}}, %{{customdata[1]}}: {number} {scale.unit}<extra></extra>",
        "marker": {"color": palette()["light"]["heat0"], "line": {"width": 1 if numbered else 0}},
    }


def _ticks(labels: Sequence[str], most: int) -> Figure:
    """Return tick labels for rows or columns, thinned out evenly to at most ``most``."""
    every = -(-len(labels) // most)
    return {
        "type": "linear",
        "tickmode": "array",
        "tickvals": list(range(0, len(labels), every)),
        "ticktext": list(labels[::every]),
        "tickangle": 0,
        "ticklabelstandoff": 5,
        "showgrid": False,
    }


def _left_out_frames(maps: HeatMaps) -> list[Figure]:
    line = {"color": palette()["light"]["ink3"], "width": 1, "dash": "dash"}
    return [
        {"type": "rect", "yref": "paper", "x0": x - 0.5, "x1": x + 0.5, "y0": 0, "y1": 1, "line": line}
        for x, column in enumerate(maps.columns)
        if column.left_out
    ]


def _bars(family: str, label: str, *, x: list[Any], y: list[Any], unit: str) -> Figure:
    return {
        "type": "bar",
        "name": label,
        "x": x,
        "y": y,
        "meta": {"family": family},
        "hovertemplate": f"%{{y:.2f}} {unit} {label}<extra></extra>",
        "marker": {
            "color": palette()["light"]["pale" if family == "compute" else family],
            "line": {"width": 0},
            "pattern": {
                "shape": _PATTERN.get(family, ""),
                "fillmode": "overlay",
                "fgcolor": palette()["light"]["idle" if family == "idle" else "hatch"],
                "size": 7,
                "solidity": 0.2,
            },
        },
    }


def _layout(*, xaxis_title: str | None, yaxis_title: str | None) -> Figure:
    colours = palette()["light"]
    title = {"font": {"size": 12}, "standoff": 8}
    axis = {"gridcolor": colours["line"], "zeroline": False, "fixedrange": True}
    return {
        "barmode": "stack",
        "bargap": 0.25,
        "height": 260,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": colours["ink2"]},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "xaxis": axis | ({"title": title | {"text": xaxis_title}} if xaxis_title else {}),
        "yaxis": axis | ({"title": title | {"text": yaxis_title}} if yaxis_title else {}),
    }
