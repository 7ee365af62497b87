"""Charts as plain plotly figures (JSON-ready dicts), so that rendering needs no plotly package.

Colours are those of the light theme; each trace names its family in ``meta``, by which the page repaints it.
"""

from __future__ import annotations

from typing import Any

from tracekit.report.causes import FAMILIES
from tracekit.report.details import CollectiveRow
from tracekit.report.palette import palette
from tracekit.report.summary import families_of
from tracekit.report.words import Scale
from tracekit.results import Analysis, Step

MAX_BARS = 240
"""More steps than this are drawn as means of neighbouring steps."""
MAX_COLLECTIVES = 12
_PATTERN = {"wait": "/", "order": "|", "host": "\\", "idle": "x"}

Figure = dict[str, Any]


def steps_figure(analysis: Analysis, scale: Scale) -> Figure | None:
    """Return step time by part: one stacked bar a step, mean over ranks, warm-up steps included; None without steps."""
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
    means = [_mean_families([step for number in group for step in by_step[number]]) for group in groups]
    traces = []
    for family in FAMILIES:
        values = [round(mean.get(family.key, 0.0) / scale.unit_ns, 6) for mean in means]
        if any(values):
            traces.append(_bars(family.key, family.label, x=labels, y=values, unit=scale.unit))
    layout = _layout(xaxis_title="step", yaxis_title=f"{scale.unit} a step")
    layout["xaxis"]["type"] = "category"
    return {"data": traces, "layout": layout}


def _mean_families(steps: list[Step]) -> dict[str, float]:
    total: dict[str, float] = {}
    for step in steps:
        for family, ns in families_of([step], step.account).items():
            total[family] = total.get(family, 0.0) + ns / len(steps)
    return total


def collectives_figure(rows: list[CollectiveRow]) -> Figure | None:
    """Return exposed time by collective, most first, mean over ranks; None where no collective is exposed."""
    shown = [row for row in rows if row.exposed_ns > 0][:MAX_COLLECTIVES]
    if not shown:
        return None
    scale = shown[0].scale
    labels = [f"{row.op} {row.communicator[:10] if row.communicator else ''}".rstrip() for row in shown]
    values = [round(row.exposed_ns / scale.unit_ns, 6) for row in shown]
    trace = _bars("comm", "exposed", x=values, y=[str(i) for i in range(len(shown))], unit=scale.unit)
    trace["orientation"] = "h"
    trace["hovertemplate"] = f"%{{x:.2f}} {scale.unit}<extra></extra>"
    trace["showlegend"] = False
    layout = _layout(xaxis_title=f"{scale.unit} exposed", yaxis_title=None)
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    layout["yaxis"] |= {"tickmode": "array", "tickvals": [str(i) for i in range(len(shown))], "ticktext": labels}
    return {"data": [trace], "layout": layout}


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
            "pattern": {"shape": _PATTERN.get(family, ""), "size": 7, "solidity": 0.2},
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
        "legend": {"orientation": "h", "x": 0, "y": 1.16, "traceorder": "normal"},
        "xaxis": axis | ({"title": title | {"text": xaxis_title}} if xaxis_title else {}),
        "yaxis": axis | ({"title": title | {"text": yaxis_title}} if yaxis_title else {}),
    }
