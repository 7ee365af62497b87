"""The page of captures without GPU work that end in a hang: where the ranks part, then what the host did."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from tracekit.report import hang_page
from tracekit.report.files import write_whole
from tracekit.report.host import render_host
from tracekit.report.html import content_hash, environment, styles_of
from tracekit.report.palette import stylesheet
from tracekit.report.verdict import hang_lead
from tracekit.report.words import clean, sentence
from tracekit.results import Analysis
from tracekit.rules.hang_words import claim
from tracekit.rules.hangs import finding_of


def write_host_html(analysis: Analysis, path: Path) -> int:
    """Write the page to ``path`` and return its size in bytes; ``analysis`` has a hang.

    Raises:
        TracekitError: the file cannot be written; nothing is left half written.
    """
    return write_whole(path, render_host_html(analysis).encode("utf-8", "backslashreplace"))


def render_host_html(analysis: Analysis) -> str:
    """Return the page as one HTML document without scripts."""
    hang = analysis.hang
    assert hang is not None  # without one there is nothing to draw
    style = Markup(stylesheet() + styles_of("style.css", "hang.css"))
    finding = finding_of(hang)
    return (
        environment()
        .get_template("host_page.html.j2")
        .render(
            policy=f"default-src 'none'; style-src {content_hash(style)}; base-uri 'none'; form-action 'none'",
            style=style,
            headline=sentence(clean(claim(hang), 2000)),
            lead=hang_lead(hang),
            hang=hang_page.page(hang),
            fix=finding.fix if finding is not None else None,
            host=render_host(analysis, with_hang=False),
        )
    )
