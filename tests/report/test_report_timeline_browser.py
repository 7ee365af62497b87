"""The timeline of a sample capture in a real browser; what is expected is read from the capture by plain SQL."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import FIRST_STREAM_Y, LEDGER_Y, LEFT, RIGHT, Open, Opened, colours_along, pixel
from builders import COMPUTE_STREAM, MS, Job, make_analysis, make_timeline, simulate

from tracekit.analysis import examine
from tracekit.capture import open_captures
from tracekit.report.html import write_html
from tracekit.report.palette import palette
from tracekit.timeline import Kind

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="browser: playwright is not installed")

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "straggler_4ranks.sqlite"
STEPS, SLOW = [200, 201, 202, 203, 204], 2


def query(sql: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{SAMPLE}?mode=ro", uri=True) as db:
        return db.execute(sql, values).fetchall()


@cache
def first_ns() -> int:
    """When the first GPU operation starts: instant 0 of the page."""
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    return min(query(f"SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_{table}")[0][0] for table in tables)


@dataclass
class Collective:
    """The reduce-scatter that rank 0 waits in longest, by device: (start, end, stream), from the page's instant 0."""

    by_rank: list[tuple[int, int, int]]

    @property
    def last(self) -> int:
        """When the last rank arrives."""
        return max(start for start, _, _ in self.by_rank)


@cache
def longest_wait() -> Collective:
    found = []
    for device in range(4):
        rows = query(
            "SELECT k.start, k.end, k.streamId FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.shortName "
            "WHERE k.deviceId = ? AND s.value LIKE '%ReduceScatter%' ORDER BY k.start",
            device,
        )
        found.append([(start - first_ns(), end - first_ns(), stream) for start, end, stream in rows])
    return Collective(list(max(zip(*found, strict=True), key=lambda ranks: ranks[0][1] - ranks[0][0])))


@pytest.fixture(scope="module")
def sample_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    timeline = open_captures(SAMPLE)
    analysis, detail = examine(timeline)
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(analysis, timeline, path, detail=detail)
    return path


@pytest.fixture
def opened(open_file: Open, sample_page: Path) -> Opened:
    opened = open_file(sample_page)
    opened.page.focus("#canvas")
    return opened


def window(event: Collective) -> tuple[int, int]:
    start, end, _ = event.by_rank[0]
    return start - (end - start), end + (end - start)


def x_of(t: float, view: tuple[float, float]) -> float:
    return LEFT + (t - view[0]) / (view[1] - view[0]) * (RIGHT - LEFT)


def lane_y(page: Any, label: str) -> float:
    """Middle of the first rank's lane of a stream: the lanes are as the table below names them, ledger left out."""
    rows = page.locator(".timeline details tbody").last.locator("tr").all()
    cells = [row.locator("td").all_text_contents() for row in rows]
    shown = [lane for lane, rank, kind, *_ in cells if rank == "0" and kind in {"compute", "comm"}]
    return FIRST_STREAM_Y + 18 * shown.index(label) + 7.5


def view_of(page: Any) -> tuple[int, int]:
    """The window in the address, once it has settled."""
    page.wait_for_timeout(1000)
    page.wait_for_url(re.compile(r"#t="))
    found = re.search(r"#t=(-?\d+)-(-?\d+)", page.url)
    assert found
    return int(found[1]), int(found[2])


def test_waiting_is_red_in_the_ledger_and_thin_on_its_stream(open_file: Open, sample_page: Path) -> None:
    event = longest_wait()
    view, (start, end, stream) = window(event), event.by_rank[0]
    colours = palette()["light"]
    opened = open_file(sample_page, f"#t={view[0]}-{view[1]}")
    page = opened.page
    waiting = x_of((start + event.last) / 2, view)
    assert colours["wait"] in colours_along(page, waiting, LEDGER_Y + 3, 12)
    y = lane_y(page, f"s{stream}")
    transfer = x_of((event.last + end) / 2, view)
    assert pixel(page, transfer, y - 6) == colours["comm"]
    assert pixel(page, waiting, y - 6) == colours["lane"]
    assert pixel(page, waiting, y) not in {colours["lane"], colours["comm"]}
    # Rank 2 arrives last: compute to the left of its arrival, on the ledger of the third rank.
    third = LEDGER_Y + 2 * (29 + 18 * 4 + 11)
    assert pixel(page, waiting, third + 25) == colours["compute"]
    assert opened.complaints == []
    assert all(url.startswith("file:") for url in opened.requests)


def test_a_click_on_a_collective_shows_it_on_all_ranks(open_file: Open, sample_page: Path) -> None:
    event = longest_wait()
    view, (_, end, stream) = window(event), event.by_rank[0]
    page = open_file(sample_page, f"#t={view[0]}-{view[1]}").page
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": x_of((event.last + end) / 2, view), "y": lane_y(page, f"s{stream}")})
    rows = [row.locator("td").all_text_contents() for row in page.locator("#panel tbody tr").all()]
    assert [row[0] for row in rows] == ["0", "1", "2 · last", "3"]
    for (start, _, _), row in zip(event.by_rank, rows, strict=True):
        waits = (event.last - start) / MS
        assert row[2] in {f"{waits:.2f} ms", "0 ns"}
        first = min(s for s, _, _ in event.by_rank)
        assert f"+{(start - first) / MS:.2f} ms" in row[1] or start - first < 1000
    text = page.inner_text("#panel")
    assert "rank 2 arrives last" in text
    assert "GB/s bus" in text
    # A dashed line where rank 2 arrives, through the ledger of rank 0 as well.
    line = colours_along(page, x_of(event.last, view) - 1, LEDGER_Y - 6, 4)
    assert palette()["light"]["ink"] in line or palette()["light"]["ink"] in colours_along(
        page, x_of(event.last, view) - 1, LEDGER_Y - 3, 4
    )
    page.keyboard.press("]")
    assert "rank 1, stream" in page.inner_text("#panel")


def test_a_finding_leads_to_its_proof_and_its_link_back_there(open_file: Open, sample_page: Path) -> None:
    event = longest_wait()
    opened = open_file(sample_page)
    page = opened.page
    page.click(".find a.go >> nth=0")
    start, _, _ = event.by_rank[0]
    view = view_of(page)
    # The finding's longest bubble and 60 % of it on either side. It is a wait of this length, in this step or another.
    assert (view[1] - view[0]) / 2.2 == pytest.approx(event.last - start, rel=0.02)
    assert "waiting for peers" in page.inner_text("#panel")
    assert "rank 2 arrives last" in page.inner_text("#panel")
    assert page.evaluate("document.activeElement.id") == "canvas"
    assert page.inner_text("#live").startswith("Rank 2 computes slowly")
    address, table = page.url.partition("#")[2], page.inner_text("#panel table")
    assert re.fullmatch(r"t=\d+-\d+&c=\d+", address)
    again = open_file(sample_page, "#" + address).page
    again.locator("#panel td").first.wait_for()
    assert view_of(again) == view
    assert again.inner_text("#panel table") == table
    by_code = open_file(sample_page, "#f=TK201").page
    assert view_of(by_code) == view
    by_key = open_file(sample_page).page
    by_key.keyboard.press("1")
    assert view_of(by_key) == view
    assert opened.complaints == []


def test_other_causes_fade_around_a_finding(open_file: Open, sample_page: Path) -> None:
    page = open_file(sample_page, "#f=TK201").page
    view = view_of(page)
    every = colours_along(page, LEFT, LEDGER_Y + 3, RIGHT - LEFT)
    assert palette()["light"]["wait"] in every
    assert palette()["light"]["order"] not in every
    page.goto(page.url.partition("#")[0] + f"#t={view[0]}-{view[1]}")
    page.wait_for_timeout(200)
    assert palette()["light"]["order"] in colours_along(page, LEFT, LEDGER_Y + 3, RIGHT - LEFT)


def test_links_to_steps_and_ranks(open_file: Open, sample_page: Path) -> None:
    page = open_file(sample_page, "#step=203").page
    assert page.inner_text("#where").startswith("step 203 · ")
    tall = page.evaluate("document.querySelector('#lanes').clientHeight")
    page.goto(page.url.partition("#")[0] + "#step=201&r=0,2")
    page.wait_for_timeout(200)
    assert page.inner_text("#where").startswith("step 201 · ")
    assert page.evaluate("document.querySelector('#lanes').clientHeight") == pytest.approx(tall / 2, abs=30)
    assert page.input_value("#ranks") == "0,2"
    assert "&r=0,2" in (view_of(page), page.url)[1]


@pytest.mark.parametrize(
    "address", ["#t=5-1", "#t=x", "#f=TK999", "#step=7", "#c=3", "#<script>alert(1)</script>", "#r="]
)
def test_links_to_nowhere_change_nothing(open_file: Open, sample_page: Path, address: str) -> None:
    opened = open_file(sample_page, address)
    assert opened.page.inner_text("#where").startswith("step 202 (median) · ")
    assert opened.complaints == []


def test_finding_kernels_by_name(opened: Opened) -> None:
    page = opened.page
    (count,) = query(
        "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName "
        "WHERE s.value LIKE '%flash%'"
    )[0]
    page.keyboard.press("/")
    page.keyboard.type("flash")
    assert page.inner_text("#hits") == f"{count} hits"
    seen = set()
    for _ in range(3):
        page.keyboard.press("Enter")
        assert "flash" in page.inner_text("#panel h3")
        seen.add(page.inner_text("#panel"))
    assert len(seen) == 3
    page.keyboard.press("Shift+Enter")
    assert page.inner_text("#panel") in seen
    page.keyboard.press("Escape")
    assert page.inner_text("#hits") == ""
    assert page.evaluate("document.activeElement.id") == "canvas"
    page.fill("#find", "layers.1")
    assert int(page.inner_text("#hits").split()[0].replace(",", "")) > 100
    page.fill("#find", "no such thing")
    assert page.inner_text("#hits") == "0 hits"


def test_from_a_kernel_to_its_launch_and_back(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press(".")
    page.keyboard.press("ArrowDown")
    kernel = page.inner_text("#panel h3")
    assert "before, thread" in page.inner_text("#panel")
    page.keyboard.press("[")
    assert page.inner_text("#panel h3").startswith("cudaLaunchKernel")
    assert "thread" in page.inner_text("#live")
    page.click("#panel .go")
    assert page.inner_text("#panel h3") == kernel
    assert opened.complaints == []


def test_a_measured_range_adds_up_on_every_rank(opened: Opened) -> None:
    page = opened.page
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 900, box["y"] + 60, steps=3)
    page.mouse.up()
    units = {"ns": 1, "µs": 1e3, "ms": 1e6}

    def ns(text: str) -> float:
        number, unit = text.split()[:2]
        return float(number) * units[unit]

    whole = ns(page.inner_text("#panel h3"))
    rows = [row.locator("td").all_text_contents() for row in page.locator("#panel tbody tr").all()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        assert sum(map(ns, row[1:])) == pytest.approx(whole, rel=0.005)


def test_ranks_collapse_sort_filter_and_expand(opened: Opened) -> None:
    page = opened.page
    height = "document.querySelector('#lanes').clientHeight"
    usual = page.evaluate(height)
    page.keyboard.press("c")
    assert page.evaluate(height) < usual / 2
    page.keyboard.press("c")
    page.locator("#canvas").click(position={"x": 30, "y": LEDGER_Y + 12})
    assert page.evaluate(height) > usual + 5 * 15
    page.locator("#canvas").click(position={"x": 30, "y": LEDGER_Y + 12})
    assert page.evaluate(height) == usual
    page.fill("#ranks", "1-2")
    assert page.evaluate(height) == pytest.approx(usual / 2, abs=30)
    page.fill("#ranks", "77")
    assert page.evaluate(height) == usual
    page.click("[data-do=sort]")
    page.wait_for_timeout(100)
    # Rank 2 hardly waits, so it is the last one now: compute runs where the others wait.
    event = longest_wait()
    view = window(event)
    page.evaluate(f"location.hash = '#t={view[0]}-{view[1]}'")
    page.wait_for_timeout(200)
    fourth = LEDGER_Y + 3 * (29 + 18 * 4 + 11)
    assert pixel(page, x_of((event.by_rank[0][0] + event.last) / 2, view), fourth + 25) == palette()["light"]["compute"]


def test_the_strip_and_the_arrow_keys_go_by_steps_and_back(opened: Opened) -> None:
    page = opened.page

    def shows(step: int, before: str) -> str:
        """Waits until the step is shown and has become a part of the history; the address then."""
        sync_api.expect(page.locator("#where")).to_have_text(re.compile(f"^step {step}"))
        sync_api.expect(page).not_to_have_url(before)
        return str(page.url)

    page.keyboard.press("ArrowRight")
    third = shows(203, page.url)
    page.keyboard.press("ArrowLeft")
    second = shows(202, third)
    page.keyboard.press("Alt+ArrowLeft")
    assert shows(203, second) == third
    page.keyboard.press("Alt+ArrowRight")
    shows(202, third)
    page.locator("#overview").click(position={"x": LEFT + 150, "y": 20})
    sync_api.expect(page.locator("#where")).to_have_text(re.compile("^step 200 ·"))


def test_full_page_mode_scrolls_the_lanes(opened: Opened) -> None:
    page = opened.page
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    page.set_viewport_size({"width": 1280, "height": 600})
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('section.timeline').getBoundingClientRect().height") == 600
    page.mouse.move(700, 250)
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('#scroller').scrollTop") == 120
    page.keyboard.press("x")
    page.wait_for_timeout(100)
    assert page.evaluate("getComputedStyle(document.querySelector('section.timeline')).position") != "fixed"


def test_the_ruler_stays_while_the_page_scrolls_by(open_report: Open) -> None:
    job = simulate(ranks=60, steps=2, layers=1)
    opened = open_report(make_analysis(job), make_timeline(job))
    page = opened.page
    page.click("[data-do=collapse]")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('#canvas').clientHeight") == 900
    page.evaluate("scrollBy(0, document.querySelector('#lanes').getBoundingClientRect().top + 1500)")
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('#canvas').getBoundingClientRect().top") == 0
    # 1500 px down, lanes of other ranks are below the same ruler.
    assert palette()["light"]["pale"] in {pixel(page, 600, y) for y in range(50, 200, 5)}
    assert opened.complaints == []


def test_two_fingers_zoom_and_one_pans(open_file: Open, sample_page: Path) -> None:
    page = open_file(sample_page, has_touch=True).page
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *points: float) -> None:
        at = [{"x": box["x"] + x, "y": box["y"] + 100, "id": i} for i, x in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    touch("touchStart", 500)
    for x in (480, 440, 400):
        touch("touchMove", x)
    touch("touchEnd")
    panned = view_of(page)
    touch("touchStart", 500)
    touch("touchStart", 500, 700)
    for by in (20, 60, 100):
        touch("touchMove", 500 - by, 700 + by)
    touch("touchEnd")
    zoomed = view_of(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((panned[1] - panned[0]) / 2, rel=0.1)


def one_operation() -> Job:
    return Job([[(0, 1_000, COMPUTE_STREAM, Kind.COMPUTE, "k")]], [[0]], [1_000])


def steps_of(length: int) -> Job:
    ops = [
        (length * i, length * i + max(1, length // 2), COMPUTE_STREAM, Kind.COMPUTE, "</script><b>☃🚀" + "x" * 100_000)
        for i in range(4)
    ]
    return Job([ops], [[length * i for i in range(4)]], [4 * length])


def many_streams() -> Job:
    return Job([[(i, i + 10 * (i + 1), i, Kind.COMPUTE, "k") for i in range(10_000)]], [[0]], [110_000])


@pytest.mark.parametrize(
    ("job", "steps"),
    [
        (one_operation(), False),
        (steps_of(1), True),
        (steps_of(3_600_000_000_000), True),
        (many_streams(), False),
        (simulate(ranks=512, steps=3, layers=1), True),
    ],
    ids=["one operation", "steps of 1 ns", "steps of an hour", "10,000 streams", "512 ranks"],
)
def test_odd_jobs_draw_without_a_complaint(open_report: Open, job: Job, steps: bool) -> None:
    opened = open_report(make_analysis(job, steps=steps), make_timeline(job))
    page = opened.page
    page.focus("#canvas")
    for key in ("w", "w", "d", ".", "ArrowDown", "f", "e", "c", "s", "0", "m", "Escape"):
        page.keyboard.press(key)
    page.wait_for_timeout(100)
    row = colours_along(page, LEFT, LEDGER_Y + 1, RIGHT - LEFT)
    assert set(row) & {palette()["light"][role] for role in ("pale", "idle", "comm")}
    assert opened.complaints == []


def test_slivers_show_what_has_most_time_in_a_pixel(open_report: Open) -> None:
    # 20,000 periods of 1 µs in 1,078 pixels: compute takes 70 % of each in the first half, 20 % in the second.
    starts = np.arange(20_000) * 1_000
    ops = [
        (int(t), int(t) + (700 if i < 10_000 else 200), COMPUTE_STREAM, Kind.COMPUTE, "k") for i, t in enumerate(starts)
    ]
    job = Job([ops], [[0]], [20_000_000])
    analysis = make_analysis(job, steps=False)
    analysis = replace(analysis, ranks=(replace(analysis.ranks[0], end_ns=20_000_000),))
    page = open_report(analysis, make_timeline(job)).page
    page.focus("#canvas")
    for key in ("s", "s", "0"):  # the sums over neighbours, which a wide view uses, say the same
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    middle = (LEFT + RIGHT) / 2
    colours = palette()["light"]
    assert set(colours_along(page, LEFT + 20, LEDGER_Y + 10, 400)) == {colours["pale"]}
    assert colours["pale"] not in colours_along(page, middle + 20, LEDGER_Y + 10, 400)
