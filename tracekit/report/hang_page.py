"""What the page shows of a job that stands still."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.report import hang_views
from tracekit.report.hang import doings
from tracekit.report.words import clean
from tracekit.results import Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPage:
    """The section about the hang."""

    tables: tuple[hang_views.Table, ...]
    states: tuple[hang_views.State, ...]
    """For the legend."""
    doings: tuple[tuple[str, tuple[str, ...]], ...]
    """(ranks, what they did last)."""
    lacking: tuple[str, ...]


def page(hang: Hang) -> HangPage:
    """The section's content; ranks that got equally far, or did the same, are together."""
    tables = hang_views.tables(hang)
    rows = doings(hang)[: hang_views.ROWS_SHOWN]
    return HangPage(
        tables=tables,
        states=hang_views.states_of(tables),
        doings=tuple((hang_views.ranks_in_words(tuple(ranks)).capitalize(), texts) for texts, ranks in rows),
        lacking=tuple(clean(text, 400) for text in hang.lacking),
    )
