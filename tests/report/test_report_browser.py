"""The page in a real browser, opened from disk without a network."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from browsing import LEFT, RIGHT, Open, pixel
from builders import (
    MS,
    by_hand,
    make_analysis,
    make_timeline,
    many_waiting,
    simulate,
    some_findings,
    some_gaps,
    straggler,
    waiting_by_hand,
)
from test_report_html import hostile
from test_report_palette import contrast, seen_distance

from tracekit.report.palette import palette
from tracekit.results import Analysis
from tracekit.timeline import Timeline

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="browser: playwright is not installed")


def full(job: Any = None) -> tuple[Analysis, Timeline]:
    job = job or simulate()
    return make_analysis(job, findings=some_findings(10 * MS), **some_gaps()), make_timeline(job)


def at_share(share: float) -> float:
    """X in the canvas of a share of the step, which has half a percent more on either side."""
    return LEFT + (share + 0.005) / 1.01 * (RIGHT - LEFT)


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
    # Rank 0: compute 0-60 %, communication alone 60-90 %, a copy alone 90-93 %. The ledger lane spans y 52 to 78.
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand()), color_scheme=theme).page
    colours = palette()[theme]
    assert pixel(page, at_share(0.30), 60) == colours["pale"]
    assert pixel(page, at_share(0.30), 77) == colours["compute"]
    assert pixel(page, at_share(0.595), 60) == colours["pale"]
    assert pixel(page, at_share(0.605), 54) == colours["comm"]
    assert pixel(page, at_share(0.89), 54) == colours["comm"]
    assert pixel(page, at_share(0.915), 60) == colours["copy"]
    # The stream below it, y 81 to 96: the same kernel in the shade of a matrix product.
    assert pixel(page, at_share(0.30), 94) == colours["matmul"]
    assert pixel(page, at_share(0.70), 94) == colours["lane"]


def test_theme_button_repaints_canvas_and_charts(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand()), color_scheme="light").page
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_selector(".plot .main-svg")
    page.click("#theme")
    page.wait_for_timeout(200)
    assert pixel(page, at_share(0.30), 60) == palette()["dark"]["pale"]
    fills = page.evaluate(
        "[...document.querySelectorAll('[data-figure=collectives] .point path')].map(p => p.style.fill)"
    )
    comm = palette()["dark"]["comm"]
    assert fills == [f"rgb({int(comm[1:3], 16)}, {int(comm[3:5], 16)}, {int(comm[5:7], 16)})"]


def test_keys_zoom_pan_and_return(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    page.focus("#canvas")
    assert shown(page) == "step 1 (median) · 101.0 ms shown"
    page.keyboard.press("w")
    sync_api.expect(page.locator("#where")).to_have_text(re.compile(r"70\.70 ms"))
    for _ in range(3):
        page.keyboard.press("d")
    page.wait_for_timeout(100)
    # 70.7 ms around 150 ms, moved on by three times 18 %: 165 ms, in the exposed communication, is left of the middle.
    start = 150 - 70.7 / 2 + 3 * 0.18 * 70.7
    assert pixel(page, LEFT + (165 - start) / 70.7 * (RIGHT - LEFT), 54) == palette()["light"]["comm"]
    page.keyboard.press("s")
    page.keyboard.press("0")
    sync_api.expect(page.locator("#where")).to_have_text(re.compile(r"101\.0 ms"))


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
    assert shown(page) == "step 1 (median) · 101.0 ms shown"


def test_mouse_hovers_selects_measures_and_zooms(open_report: Open) -> None:
    page = open_report(make_analysis(by_hand()), make_timeline(by_hand())).page
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + at_share(0.75), box["y"] + 60)
    assert page.inner_text("#tip").splitlines()[0] == "exposed communication · 30.00 ms"
    page.mouse.move(box["x"] + at_share(0.3), box["y"] + 90)
    assert page.inner_text("#tip").splitlines()[0] == "ampere_bf16_s16816gemm_128x128 · 60.00 ms"
    page.mouse.click(box["x"] + at_share(0.75), box["y"] + 60)
    assert "30.00 ms" in page.inner_text("#panel")
    page.mouse.move(box["x"] + at_share(0.5), box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + at_share(0.7), box["y"] + 60, steps=4)
    page.mouse.up()
    # Half the step to 70 %: 10 ms of compute and 10 ms of exposed communication on rank 0, give or take a pixel.
    cells = page.locator("#panel tbody tr").first.locator("td").all_inner_texts()
    assert [round(float(cell.split()[0])) for cell in cells[1:3]] == [10, 10]
    before = page.evaluate("scrollY")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    sync_api.expect(page.locator("#where")).not_to_have_text(re.compile(r"101\.0 ms"))
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
    page.click("[data-do=median]")
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
    canvas.hover(position={"x": 300, "y": 90})
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
    for selector in ("#canvas", "#overview", "#panel", "#theme", ".tools", ".patterns", ".timeline .legend"):
        assert not page.locator(selector).is_visible(), selector
    page.click("summary:has-text('The same as a table')")
    assert page.locator("td:has-text('exposed communication')").first.is_visible()


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
    canvas.hover(position={"x": at_share(0.7), "y": 110})
    assert "not kept one by one" in opened.page.inner_text("#tip")
    assert opened.complaints == []


def to_patterns(page: Any) -> None:
    page.evaluate("document.querySelector('section.patterns').scrollIntoView()")
    page.wait_for_selector(".plot .main-svg")
    page.wait_for_timeout(300)


def cells_of(page: Any, figure: str) -> list[tuple[str, str, str]]:
    """Fill, text and ink of each numbered cell, rows after one another."""
    found: list[list[str]] = page.evaluate(
        """figure => [...document.querySelectorAll(`[data-figure=${figure}] .point`)].map(p => {
          const text = p.querySelector("text");
          return text ? [p.querySelector("path").style.fill, text.textContent, text.style.fill] : null;
        }).filter(cell => cell)""",
        figure,
    )
    return [(hex_of(fill), text, hex_of(ink)) for fill, text, ink in found]


def hex_of(css: str) -> str:
    return "#" + "".join(f"{int(value):02X}" for value in re.findall(r"\d+", css)[:3])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_heat_maps_have_their_colours_and_numbers(open_report: Open, theme: str) -> None:
    analysis = waiting_by_hand(stragglers=(straggler(1),))
    opened = open_report(analysis, make_timeline(by_hand()), color_scheme=theme)
    to_patterns(opened.page)
    colours = palette()[theme]
    waits, arrivals = cells_of(opened.page, "waits"), cells_of(opened.page, "arrivals")
    assert [text for _, text, _ in waits] == ["20.0", "10.0", "0.0", "5.0"]
    assert [text for _, text, _ in arrivals] == ["0.0", "2.5", "10.0", "5.0"]
    assert [waits[0][0], waits[2][0]] == [colours["heat1"], colours["heat0"]]
    assert [arrivals[2][0], arrivals[0][0]] == [colours["heat1"], colours["heat0"]]
    halves = zip(*([int(colours[f"heat{end}"][i : i + 2], 16) for i in (1, 3, 5)] for end in (0, 1)), strict=True)
    seen = [int(waits[1][0][i : i + 2], 16) for i in (1, 3, 5)]
    assert seen == pytest.approx([sum(pair) / 2 for pair in halves], abs=1)
    assert min(contrast(fill, ink) for fill, _, ink in waits + arrivals) >= 4.5
    assert opened.complaints == []


def test_numbers_can_be_read_on_every_shade(open_report: Open) -> None:
    # Cells from nothing to full colour in a hundred steps of the map's scale.
    analysis = waiting_by_hand()
    first, second = analysis.ranks
    rows = tuple(
        replace(
            second,
            rank=n + 1,
            steps=tuple(replace(s, exposed_comm_by_cause={"peer_wait": (n + 1) * MS}) for s in second.steps),
        )
        for n in range(31)
    )
    for theme in ("light", "dark"):
        page = open_report(replace(analysis, ranks=(first, *rows)), make_timeline(by_hand()), color_scheme=theme).page
        to_patterns(page)
        cells = cells_of(page, "waits")
        assert len({fill for fill, _, _ in cells}) > 25
        assert min(contrast(fill, ink) for fill, _, ink in cells) >= 4.5


def test_theme_button_repaints_heat_maps(open_report: Open) -> None:
    page = open_report(waiting_by_hand(), make_timeline(by_hand()), color_scheme="light").page
    to_patterns(page)
    page.click("#theme")
    page.wait_for_timeout(300)
    assert cells_of(page, "waits")[0][0] == palette()["dark"]["heat1"]


def test_waits_are_visible_among_the_parts_of_a_step(open_report: Open) -> None:
    opened = open_report(waiting_by_hand(), make_timeline(by_hand()), color_scheme="light")
    to_patterns(opened.page)
    patches = opened.page.evaluate(
        """[...document.querySelectorAll('[data-figure=steps] pattern rect')]
          .map(rect => rect.getAttribute('fill') || rect.style.fill)"""
    )
    assert palette()["light"]["wait"] in [hex_of(p) if p.startswith("rgb") else p.upper() for p in patches]
    assert opened.complaints == []


def boxes_of(page: Any) -> list[dict[str, float]]:
    return [point.bounding_box() for point in page.locator("[data-figure=waits] .point").all()]


def test_a_cell_says_what_it_is_and_leads_to_the_timeline(open_report: Open) -> None:
    # Rank 0 is alone with its communication for 30 ms of each step.
    opened = open_report(waiting_by_hand(), make_timeline(by_hand()))
    page = opened.page
    to_patterns(page)
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes_of(page)]
    page.mouse.move(*middles[0])
    page.wait_for_selector("[data-figure=waits] .hovertext")
    assert page.text_content("[data-figure=waits] .hovertext") == "rank 0, step 1: 20.0 ms"
    page.mouse.move(middles[1][0] - 3, middles[1][1])
    # A click is for the cell that the pointer was last seen over, and plotly looks only now and then.
    page.locator("[data-figure=waits] .hovertext", has_text="step 2").wait_for()
    page.mouse.click(*middles[1])
    page.locator("#canvas:focus").wait_for()
    assert "in step 2" in page.inner_text("#panel")
    to_patterns(page)
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes_of(page)]
    page.mouse.move(middles[0][0] + 3, middles[0][1])
    page.locator("[data-figure=waits] .hovertext", has_text="step 1").wait_for()
    page.mouse.click(*middles[0])
    page.locator("#panel", has_text="in step 1").wait_for()
    assert "exposed comm" in page.inner_text("#panel")
    assert "30.00 ms" in page.inner_text("#panel")
    assert opened.complaints == []


def test_maps_of_512_ranks_and_200_steps_draw_without_a_complaint(open_report: Open) -> None:
    job, analysis = many_waiting(512, 200, slow_rank=77)
    opened = open_report(analysis, make_timeline(job))
    to_patterns(opened.page)
    assert opened.page.locator("[data-figure=waits] .point").count() == 33 * 51
    assert cells_of(opened.page, "waits") == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert opened.complaints == []


def test_maps_are_tables_without_script(open_report: Open) -> None:
    page = open_report(waiting_by_hand(), make_timeline(by_hand()), java_script_enabled=False, ready=False).page
    page.click("summary:has-text('Waits by rank and step')")
    assert page.locator("td:has-text('12.5')").first.is_visible()


def test_one_rank_and_no_steps_have_words_for_maps(open_report: Open) -> None:
    for analysis, job in (
        (make_analysis(simulate(ranks=1)), simulate(ranks=1)),
        (make_analysis(by_hand(), steps=False), by_hand()),
    ):
        opened = open_report(analysis, make_timeline(job))
        to_patterns(opened.page)
        assert opened.page.locator("[data-figure=waits]").count() == 0
        assert opened.page.locator(".chart", has_text="Wait for peers").is_visible()
        assert opened.complaints == []


def test_print_opens_the_folds_and_closes_them_again(open_report: Open) -> None:
    page = open_report(*full()).page
    folds = page.locator("details").count()
    page.evaluate(
        "addEventListener('beforeprint', () => { window.printed = document.querySelectorAll('details[open]').length; })"
    )
    page.pdf()
    assert page.evaluate("window.printed") == folds > 5
    assert page.locator("details[open]").count() == 0


def test_print_shows_folds_without_script(open_report: Open) -> None:
    page = open_report(*full(by_hand()), java_script_enabled=False, ready=False).page
    cell = page.locator("td:has-text('403 MB')").first
    assert not cell.is_visible()
    page.emulate_media(media="print")
    assert cell.is_visible()
    page.set_viewport_size({"width": 720, "height": 1000})  # what a sheet of A4 leaves between its margins
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


SIGHTS = ("protanopia", "deuteranopia", "tritanopia")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_families_stay_apart_with_emulated_colour_blindness(
    open_report: Open, browser: Any, sight: str, theme: str
) -> None:
    # What is on the screen, hatching included: the mean colour of each sample in the legend of the bars.
    job = simulate()
    analysis = with_causes(make_analysis(job))
    page = open_report(analysis, make_timeline(job), color_scheme=theme).page
    page.context.new_cdp_session(page).send("Emulation.setEmulatedVisionDeficiency", {"type": sight})
    samples = page.locator(".ledger .legend .sw").all()
    pictures = [base64.b64encode(sample.screenshot()).decode() for sample in samples]
    blank = browser.new_page()
    colours = [mean_colour(blank, picture) for picture in pictures]
    blank.close()
    assert len(colours) == 6
    # Compute is pale and the background of all others, which are held against each other.
    for a, b in combinations(colours, 2):
        assert seen_distance(a, b, "normal") >= 5, (colours.index(a), colours.index(b))


def with_causes(analysis: Analysis) -> Analysis:
    """Split exposed and idle time over causes of all families."""

    def split(step: Any) -> Any:
        exposed, idle = step.account.exposed_comm_ns, step.account.idle_ns
        comm = {"peer_wait": exposed // 3, "no_prefetch": exposed // 3, "bandwidth": exposed - 2 * (exposed // 3)}
        return replace(step, exposed_comm_by_cause=comm, idle_by_cause={"allocator": idle // 2, "unknown": idle // 2})

    ranks = tuple(replace(rank, steps=tuple(map(split, rank.steps))) for rank in analysis.ranks)
    return replace(analysis, ranks=ranks)


def mean_colour(page: Any, picture: str) -> str:
    """Mean of the picture's pixels, a ring of two at its edge left out."""
    rgb = page.evaluate(
        """async picture => {
          const bytes = Uint8Array.from(atob(picture), c => c.charCodeAt(0));
          const image = await createImageBitmap(new Blob([bytes]));
          const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const {data} = context.getImageData(2, 2, image.width - 4, image.height - 4), sums = [0, 0, 0];
          data.forEach((value, i) => { if (i % 4 < 3) sums[i % 4] += value; });
          return sums.map(sum => Math.round(sum / (data.length / 4)));
        }""",
        picture,
    )
    return "#" + "".join(f"{value:02X}" for value in rgb)
