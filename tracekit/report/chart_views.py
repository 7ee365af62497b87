"""What stands above each chart of the page, or in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.report.details import CollectiveRow, SizeRow, why_no_bandwidth
from tracekit.report.figures import Figure
from tracekit.results import Analysis

NO_MODULES = "No NVTX ranges name modules. To have them: annotate the modules, and capture with --trace=cuda,nvtx."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartView:
    """One chart with its words; without a key the words say what is missing."""

    key: str | None
    title: str
    about: str


def chart_views(
    analysis: Analysis,
    figures: Mapping[str, Figure | None],
    collectives: Sequence[CollectiveRow],
    sizes: Sequence[SizeRow],
) -> tuple[ChartView, ...]:
    """Return steps, collectives, modules and bandwidth, in this order."""
    quoted = "A steady step" if analysis.steady else "Whole capture"
    dashed = ". Dashed: the link's peak" if any(row.peak_gbps for row in sizes) else ""
    exposed = f"{quoted}, mean over ranks"
    told = {
        "steps": ("Step time by cause", "Mean over ranks, warm-up steps included; exact causes on hover"),
        "collectives": ("Exposed time by collective", exposed),
        "modules": ("Exposed time by module", exposed),
        "bandwidth": ("Bus bandwidth by size", f"Waiting left out{dashed}"),
    }
    missing = {
        "steps": "No steps in this capture, so there is nothing to compare.",
        "collectives": "No collective is exposed." if collectives else "No collectives in this capture.",
        "modules": _why_no_modules(analysis),
        "bandwidth": why_no_bandwidth(analysis),
    }
    return tuple(
        ChartView(key=key, title=title, about=about)
        if figures[key]
        else ChartView(key=None, title=title, about=missing[key])
        for key, (title, about) in told.items()
    )


def _why_no_modules(analysis: Analysis) -> str:
    if analysis.steady is None:
        return "Modules are counted a step, and this capture has none."
    if not any(rank.modules for rank in analysis.ranks):
        return NO_MODULES
    return "No module is exposed."
