"""The page of captures without GPU work that end in a hang: where the ranks part, then what the host did."""

from __future__ import annotations

from pathlib import Path

from tracekit.report.files import write_whole
from tracekit.report.hang_page import render_hang_html
from tracekit.report.host import render_host
from tracekit.results import Analysis


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
    return render_hang_html(hang, host=render_host(analysis, with_hang=False))
