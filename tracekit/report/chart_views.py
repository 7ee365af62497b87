"""What stands above each chart of the page, or in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracekit.report.details import CollectiveRow, SizeRow, why_no_bandwidth
from tracekit.report.figures import Figure
from tracekit.report.wait_views import WaitView
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
    waits: Sequence[WaitView],
) -> tuple[ChartView, ...]:
    """Return the maps of waits, then steps, collectives, modules and bandwidth."""
    quoted = "A steady step" if analysis.steady else "Whole capture"
    dashed = ". Dashed: the link's peak" if any(row.peak_gbps for row in sizes) else ""
    faded = ", left out of means: faded" if analysis.steady and analysis.steady.not_averaged else ""
    exposed = f"{quoted}, mean over ranks"
    told = {
        "steps": ("Step time by cause", f"Mean over ranks{faded}; exact causes on hover"),
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
    maps = [
        ChartView(key=view.key if view.cells else None, title=view.title, about=f"{view.about} {view.legend}".strip())
        for view in waits
    ]
    return (*maps, *_charts(figures, told, missing))


def _charts(
    figures: Mapping[str, Figure | None], told: Mapping[str, tuple[str, str]], missing: Mapping[str, str]
) -> Iterator[ChartView]:
    for key, (title, about) in told.items():
        if figures[key]:
            yield ChartView(key=key, title=title, about=about)
        else:
            yield ChartView(key=None, title=title, about=missing[key])


def _why_no_modules(analysis: Analysis) -> str:
    if analysis.steady is None:
        return "Modules are counted a step, and this capture has none."
    if not any(rank.modules for rank in analysis.ranks):
        return NO_MODULES
    return "No module is exposed."
