"""What stands above the page's two heat maps, or in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracekit.report.heat import HeatMaps
from tracekit.report.summary import stragglers_of
from tracekit.report.verdict import ONE_RANK
from tracekit.report.words import Scale, plural
from tracekit.results import Analysis
from tracekit.runs import runs


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """One map with its words; without cells the words say what is missing."""

    key: str
    title: str
    about: str
    legend: str
    """How to read the colours and frames of the map."""
    cells: tuple[tuple[float | None, ...], ...] | None


def wait_views(analysis: Analysis, maps: HeatMaps | None, scale: Scale) -> tuple[WaitView, ...]:
    """Return the map of waits and that of arrivals; where neither can be drawn, one card that says why."""
    title, arrivals = "Wait for peers, by rank and step", "Whom the others wait for"
    if maps is None:
        return (WaitView(key="waits", title=title, about=_why_not(analysis), legend="", cells=None),)
    waits = WaitView(
        key="waits",
        title=title,
        about=" ".join([f"{scale.unit} a step.", *_culprit(analysis), *_coarse(maps, "mean")]),
        legend=_legend(maps, maps.waited, scale),
        cells=maps.waited,
    )
    if maps.caused is None:
        missing = "Cannot be told: no two ranks arrive further apart than their clocks can be trusted."
        return waits, WaitView(key="arrivals", title=arrivals, about=missing, legend="", cells=None)
    meaning = f"{scale.unit} a step, mean over all ranks, by the rank that arrives last."
    return waits, WaitView(
        key="arrivals",
        title=arrivals,
        about=" ".join([meaning, *_coarse(maps, "sum")]),
        legend=_legend(maps, maps.caused, scale),
        cells=maps.caused,
    )


def _why_not(analysis: Analysis) -> str:
    if len(analysis.ranks) < 2:
        return ONE_RANK
    if analysis.steady is None:
        return "No steps in this capture, so there is no map of ranks and steps."
    return "Waiting cannot be told from transfer: no collective was found on all of its ranks."


def _legend(maps: HeatMaps, cells: Sequence[Sequence[float | None]], scale: Scale) -> str:
    full = f"Full colour: {scale.format(maps.top_ns(cells))}."
    left_out = [step for column in maps.columns if column.left_out for step in column.steps]
    steps = f"{'step' if len(left_out) == 1 else 'steps'} {runs(left_out)}"
    return f"{full} Dashed: left out of means, {steps}." if left_out else full


def _culprit(analysis: Analysis) -> Iterator[str]:
    """Name who hardly waits because it is waited for: a pale row reads as innocent otherwise."""
    single = stragglers_of(analysis)
    ranks = [s.rank for s in analysis.stragglers if s.verdict == "persistent" and s.rank in single]
    if len(ranks) == 1:
        yield f"Rank {ranks[0]} hardly waits: it is the one waited for."
    elif ranks:
        yield f"Ranks {runs(sorted(ranks))} hardly wait: they are the ones waited for."


def _coarse(maps: HeatMaps, together: str) -> Iterator[str]:
    """Yield what the map does not show one by one."""
    if maps.ranks_shared:
        rows = sum(len(row.ranks) > 1 for row in maps.rows)
        yield f"{maps.ranks_shared} ranks in {plural(rows, 'row')} ({together})."
    if maps.steps_shared > 1:
        yield f"A column is the mean of up to {maps.steps_shared} steps."
