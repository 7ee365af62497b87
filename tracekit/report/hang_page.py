"""What the page shows of a job that stands still."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from tracekit.report import hang_views, wait_graph
from tracekit.report.files import write_whole
from tracekit.report.hang import doings
from tracekit.report.palette import stylesheet
from tracekit.report.standstill import Standstill, standstill
from tracekit.report.templating import content_hash, environment, styles_of
from tracekit.report.verdict import hang_lead
from tracekit.report.words import clean, sentence
from tracekit.results import Finding, Hang
from tracekit.rules.hang_steps import next_steps
from tracekit.rules.hang_words import claim
from tracekit.rules.hangs import finding_of

NOTES_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPage:
    """The section about the hang."""

    others: tuple[str, ...]
    """What else stands still, a sentence each."""
    steps: tuple[str, ...]
    """What to do next."""
    graph: wait_graph.Picture | None
    standstill: Standstill | None
    tables: tuple[hang_views.Table, ...]
    states: tuple[hang_views.State, ...]
    """For the legend."""
    doings: tuple[tuple[str, tuple[str, ...]], ...]
    """(ranks, what they did last)."""
    mismatches: tuple[tuple[str, tuple[str, ...]], ...]
    """(where, who called what)."""
    lacking: tuple[str, ...]
    notes: tuple[str, ...]


def page(hang: Hang) -> HangPage:
    """The section's content; ranks that got equally far, or did the same, are together."""
    tables = hang_views.tables(hang)
    rows = doings(hang)[: hang_views.ROWS_SHOWN]
    return HangPage(
        others=tuple(sentence(clean(f"Apart from that: {claim(other)}", 400)) for other in hang.others),
        steps=tuple(clean(step, 400) for step in next_steps(hang)),
        graph=wait_graph.picture(hang),
        standstill=standstill(hang),
        tables=tables,
        states=hang_views.states_of(tables),
        doings=tuple((hang_views.ranks_in_words(tuple(ranks)).capitalize(), texts) for texts, ranks in rows),
        mismatches=tuple(
            (
                clean(f"{row.verdict.replace('_', ' ')} at {row.seq} of {row.communicator}", 120),
                tuple(clean(f"{hang_views.ranks_in_words(ranks)}: {call}", 200) for ranks, call in row.found),
            )
            for row in hang.mismatches[: hang_views.ROWS_SHOWN]
        ),
        lacking=tuple(clean(text, 400) for text in hang.lacking),
        notes=tuple(sentence(clean(text, 400)) for text in hang.notes[:NOTES_SHOWN]),
    )


def write_hang_html(hang: Hang, path: Path) -> int:
    """Write the page of a hang to ``path`` and return its size in bytes.

    Raises:
        TracekitError: the file cannot be written; nothing is left half written.
    """
    return write_whole(path, render_hang_html(hang).encode("utf-8", "backslashreplace"))


def render_hang_html(hang: Hang, *, host: str | None = None) -> str:
    """Return the page of a hang as one HTML document without scripts; ``host`` is what else is known, as text."""
    style = Markup(stylesheet() + styles_of("style.css", "hang.css"))
    finding: Finding | None = finding_of(hang)
    return (
        environment()
        .get_template("hang_page.html.j2")
        .render(
            policy=f"default-src 'none'; style-src {content_hash(style)}; base-uri 'none'; form-action 'none'",
            style=style,
            headline=sentence(clean(claim(hang), 2000)),
            lead=hang_lead(hang),
            hang=page(hang),
            fix=finding.fix if finding is not None else None,
            host=host,
        )
    )
