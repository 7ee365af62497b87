"""The browser that the tests of the page share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import ARGUMENTS, Open, Opened
from builders import make_detail

from tracekit.report.html import write_html
from tracekit.report.timeline.scene import MAX_EVENTS
from tracekit.results import Analysis
from tracekit.timeline import Timeline


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    from playwright import sync_api  # noqa: PLC0415 - only where there is a browser

    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


def _is_complaint(message: Any) -> bool:
    """That a test reads pixels more than once is no fault of the page."""
    return message.type in {"error", "warning"} and "willReadFrequently" not in message.text


@pytest.fixture
def open_file(browser: Any) -> Iterator[Open]:
    """Opens a file from disk, the network cut off."""
    contexts = []

    def open_(path: Path, address: str = "", *, width: int = 1280, ready: bool = True, **options: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("console", lambda m: opened.complaints.append(m.text) if _is_complaint(m) else None)
        opened.page.on("pageerror", lambda e: opened.complaints.append(str(e)))
        opened.page.on("request", lambda r: opened.requests.append(r.url))
        opened.page.goto(path.as_uri() + address)
        if ready:
            opened.wait_until_ready()
        return opened

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def open_report(open_file: Open, tmp_path: Path) -> Open:
    """Opens the page of a hand-made analysis."""

    def open_(analysis: Analysis, timeline: Timeline, *, max_events: int = MAX_EVENTS, **options: Any) -> Opened:
        path = tmp_path / "report.html"
        write_html(analysis, timeline, path, detail=make_detail(analysis, timeline), max_events=max_events)
        return open_file(path, **options)

    return open_
