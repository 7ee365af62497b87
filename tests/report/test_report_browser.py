"""The page in a real browser, opened from disk without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import MS, by_hand, make_analysis, make_timeline, simulate, some_findings, some_gaps
from test_report_html import hostile

from tracekit.report.html import write_html
from tracekit.report.palette import palette
from tracekit.report.scene import MAX_EVENTS
from tracekit.results import Analysis
from tracekit.timeline import Timeline

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="browser: playwright is not installed")

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "document.querySelector('#where b') !== null"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@dataclass
class Opened:
    """A page with what went wrong in it and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_(
        analysis: Analysis,
        timeline: Timeline,
        *,
        width: int = 1280,
        ready: bool = True,
        max_events: int = MAX_EVENTS,
        **options: Any,
    ) -> Opened:
        path = tmp_path / "report.html"
        write_html(analysis, timeline, path, max_events=max_events)
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on(
            "console", lambda m: opened.complaints.append(m.text) if m.type in {"error", "warning"} else None
        )
        opened.page.on("pageerror", lambda e: opened.complaints.append(str(e)))
        opened.page.on("request", lambda r: opened.requests.append(r.url))
        opened.page.goto(path.as_uri())
        if ready:
            opened.page.wait_for_function(READY)
        return opened

    yield open_
    for context in contexts:
        context.close()


def full(job: Any = None) -> tuple[Analysis, Timeline]:
    job = job or simulate()
    return make_analysis(job, findings=some_findings(10 * MS), **some_gaps()), make_timeline(job)


def pixel(page: Any, x: float, y: float) -> str:
    """Colour of the canvas at a point in CSS pixels."""
    rgba = page.evaluate(
        "([x, y]) => [...document.querySelector('#canvas').getContext('2d').getImageData(x, y, 1, 1).data]", [x, y]
    )
    return "#" + "".join(f"{value:02X}" for value in rgba[:3])


def at_share(share: float) -> float:
    """X in the canvas of a share of the step: it spans 126 to width - 12, with half a percent more on either side."""
    width = 1280 - 2 * 24 - 2  # page padding and the card's border
    return 126 + (share + 0.005) / 1.01 * (width - 12 - 126)


def shown(page: Any) -> str:
    return str(page.inner_text("#where"))


def test_opens_offline_without_a_complaint(open_report: Open) -> None:
    opened = open_report(*full())
    opened.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    opened.page.wait_for_selector(".plot .main-svg")
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("file:")] == []
    assert opened.page.title().startswith("Rank 2 computes slowly")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ledger_has_the_right_colours_in_the_right_places(open_report: Open, theme: str) -> None:
    # Rank 0: compute 0-60 %, communication alone 60-90 %, a copy alone 90-93 %. The ledger lane spans y 32 to 58.
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand()), color_scheme=theme).page
    colours = palette()[theme]
    assert pixel(page, at_share(0.30), 40) == colours["pale"]
    assert pixel(page, at_share(0.30), 57) == colours["compute"]
    assert pixel(page, at_share(0.595), 40) == colours["pale"]
    assert pixel(page, at_share(0.605), 34) == colours["comm"]
    assert pixel(page, at_share(0.89), 34) == colours["comm"]
    assert pixel(page, at_share(0.915), 40) == colours["copy"]
    # The stream below it, y 61 to 76: the same kernel in the shade of a matrix product.
    assert pixel(page, at_share(0.30), 74) == colours["matmul"]
    assert pixel(page, at_share(0.70), 74) == colours["lane"]


def test_theme_button_repaints_canvas_and_charts(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand()), color_scheme="light").page
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_selector(".plot .main-svg")
    page.click("#theme")
    page.wait_for_timeout(200)
    assert pixel(page, at_share(0.30), 40) == palette()["dark"]["pale"]
    fills = page.evaluate(
        "[...document.querySelectorAll('[data-figure=collectives] .point path')].map(p => p.style.fill)"
    )
    comm = palette()["dark"]["comm"]
    assert fills == [f"rgb({int(comm[1:3], 16)}, {int(comm[3:5], 16)}, {int(comm[5:7], 16)})"]


def test_keys_zoom_pan_and_return(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    page.focus("#canvas")
    assert shown(page) == "101.0 ms shown"
    page.keyboard.press("w")
    page.wait_for_function("document.querySelector('#where').innerText.startsWith('70.70')")
    for _ in range(3):
        page.keyboard.press("d")
    page.wait_for_timeout(100)
    assert pixel(page, 1200, 40) != palette()["light"]["pale"]
    page.keyboard.press("s")
    page.keyboard.press("0")
    page.wait_for_function("document.querySelector('#where').innerText.startsWith('101.0')")


def test_keys_select_and_the_live_region_reads(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    page.focus("#canvas")
    page.keyboard.press(".")
    page.keyboard.press(".")
    live = page.inner_text("#live")
    assert "ms" in live
    assert "rank 0" in live
    page.keyboard.press("ArrowDown")
    assert "stream 7" in page.inner_text("#live")
    page.keyboard.press("m")
    assert "measured" in page.inner_text("#panel")
    page.keyboard.press("Escape")
    assert "Nothing selected" in page.inner_text("#panel")


def test_keys_leave_buttons_alone(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    page.focus("#theme")
    page.keyboard.press("w")
    page.wait_for_timeout(100)
    assert shown(page) == "101.0 ms shown"


def test_mouse_hovers_selects_measures_and_zooms(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + at_share(0.75), box["y"] + 40)
    assert page.inner_text("#tip").splitlines()[0] == "exposed comm · 30.00 ms"
    page.mouse.move(box["x"] + at_share(0.3), box["y"] + 70)
    assert page.inner_text("#tip").splitlines()[0] == "ampere_bf16_s16816gemm_128x128 · 60.00 ms"
    page.mouse.click(box["x"] + at_share(0.75), box["y"] + 40)
    assert "30.00 ms" in page.inner_text("#panel")
    page.mouse.move(box["x"] + at_share(0.5), box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + at_share(0.7), box["y"] + 40, steps=4)
    page.mouse.up()
    # Half the step to 70 %: 10 ms of compute and 10 ms of exposed communication on rank 0, give or take a pixel.
    cells = page.locator("#panel tbody tr").first.locator("td").all_inner_texts()
    assert [round(float(cell.split()[0])) for cell in cells[1:3]] == [10, 10]
    before = page.evaluate("scrollY")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("!document.querySelector('#where').innerText.startsWith('101.0')")
    assert page.evaluate("scrollY") == before
    narrow = shown(page)
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(100)
    assert shown(page) == narrow


def test_buttons_do_what_keys_do(open_report: Open) -> None:
    page = open_report(*full()).page
    whole = shown(page)
    page.click("[data-do=in]")
    page.wait_for_timeout(100)
    assert shown(page) != whole
    page.click("[data-do=whole]")
    page.wait_for_timeout(100)
    assert shown(page) == whole
    tall = page.evaluate("document.querySelector('#canvas').clientHeight")
    page.click("[data-do=collapse]")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('#canvas').clientHeight") < tall
    page.click("#panel .go >> nth=0")
    assert page.evaluate("document.activeElement.id") == "canvas"


@pytest.mark.parametrize("kind", ["full", "hostile", "many"])
def test_nothing_overflows_sideways(open_report: Open, kind: str) -> None:
    made = {"full": full, "hostile": hostile, "many": lambda: full(simulate(ranks=64, steps=3, layers=2))}[kind]
    page = open_report(*made()).page
    page.evaluate("document.querySelector('.patterns').scrollIntoView()")
    page.wait_for_selector(".plot .main-svg")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    for width in (1280, 768, 390, 360):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_phone_shows_one_figure_a_rank(open_report: Open) -> None:
    page = open_report(*full(by_hand()), width=390).page
    row = page.locator(".row", has_text="Rank 1")
    assert row.locator(".n").all_inner_texts()[0] == "10.0"
    assert [cell.is_visible() for cell in row.locator(".n").all()] == [True, False, False]
    assert not page.locator(".patterns").is_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert [cell.is_visible() for cell in row.locator(".n").all()] == [True, True, True]


def test_hostile_names_do_nothing(open_report: Open) -> None:
    opened = open_report(*hostile())
    page = opened.page
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_selector(".plot .main-svg")
    page.wait_for_timeout(300)
    page.focus("#canvas")
    for key in (".", "ArrowDown", ".", "ArrowDown"):
        page.keyboard.press(key)
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 300, "y": 70})
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert "<img src=x" in page.inner_text("#panel")
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("file:")] == []


def test_readable_without_script(open_report: Open) -> None:
    page = open_report(*full(by_hand()), java_script_enabled=False, ready=False).page
    text = page.inner_text("main")
    assert "100.0 ms=70.0 compute+20.0 exposed communication+3.0 exposed copy+7.0 idle" in text.replace(
        " = ", "="
    ).replace(" + ", "+")
    assert page.locator(".still svg path").first.is_visible()
    for selector in ("#canvas", "#panel", "#theme", ".tools", ".patterns", ".timeline .legend"):
        assert not page.locator(selector).is_visible(), selector
    page.click("summary:has-text('The same as a table')")
    assert page.locator("td:has-text('exposed comm')").first.is_visible()


def test_print_is_light_with_the_still_picture(open_report: Open) -> None:
    page = open_report(*full(), color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".still svg").is_visible()
    assert not page.locator("#canvas").is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 32, 44)"


def test_no_steps_and_one_rank_draw_too(open_report: Open) -> None:
    job = simulate(ranks=1, comm=False)
    opened = open_report(make_analysis(job, steps=False), make_timeline(job))
    assert opened.complaints == []
    assert "Whole capture" in opened.page.inner_text(".tools")


def test_occupancy_is_drawn_and_explained(open_report: Open) -> None:
    opened = open_report(*full(), max_events=12)
    canvas = opened.page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": at_share(0.7), "y": 68})
    assert "too short to keep one by one" in opened.page.inner_text("#tip")
    assert opened.complaints == []
