"""The page of a job that stands still: where the view opens, what is drawn, and the page of dumps alone."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from browsing import LEFT, RIGHT, Open, colours_along
from click.testing import CliRunner

from tests.test_hang_command import write_dumps
from tracekit.analysis import examine
from tracekit.capture import open_captures
from tracekit.cli import main
from tracekit.report.html import write_html
from tracekit.report.palette import palette
from tracekit.report.summary import summarise
from tracekit.report.timeline.payload import header
from tracekit.report.timeline.scene import Scene, make_scene
from tracekit.report.wait_graph import picture
from tracekit.results import Hang, ProcessGroup, Wait

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SAMPLE = SAMPLES / "hang_missing_rank.sqlite"
MISSING, SEQ, LAUNCHED = 2, 26, 33
"""By the sample's layout: rank 2 never launches the 26th collective, and the others launch 33."""


@pytest.fixture(scope="module")
def job() -> Any:
    timeline = open_captures(SAMPLE)
    analysis, detail = examine(timeline)
    return analysis, timeline, detail


@pytest.fixture(scope="module")
def scene(job: Any) -> Scene:
    analysis, timeline, detail = job
    made = make_scene(analysis, timeline, detail, summarise(analysis))
    assert made
    return made


def stopped_ns() -> tuple[int, int]:
    """(instant at which the last kernel ends, length of time from the last event of any kind to the capture's end)."""
    with sqlite3.connect(f"file:{SAMPLE}?mode=ro", uri=True) as database:
        ((stop, duration),) = database.execute("SELECT stopTime, duration FROM ANALYSIS_DETAILS").fetchall()
        ((kernel, first),) = database.execute("SELECT max(end), min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        last = [
            row[0]
            for row in database.execute("SELECT end FROM NVTX_EVENTS WHERE end IS NOT NULL").fetchall()
            if row[0] != duration
        ]
    return kernel - first, stop - max(kernel, *last)


def test_the_view_opens_on_the_stuck_instant(scene: Scene) -> None:
    assert scene.stand
    kernel, quiet = stopped_ns()
    start, end = scene.focus
    assert start < kernel <= scene.stand.start < end == scene.stand.end == scene.span_ns
    assert scene.stand.length_ns == pytest.approx(quiet, abs=1_000_000)
    assert end - scene.stand.start == pytest.approx((end - start) / 5, rel=0.01)  # a quarter of what is before it


def test_what_is_launched_and_not_finished_is_drawn_by_rank(scene: Scene) -> None:
    for rank in scene.ranks:
        if rank.rank == MISSING:
            assert rank.pending == ()
            continue
        assert rank.pending[0].label == f"ncclAllGather {SEQ} + {LAUNCHED - SEQ}"
        assert scene.focus[0] < rank.pending[0].start < scene.stand.start  # type: ignore[union-attr]


def test_the_card_jumps_there(scene: Scene) -> None:
    place = scene.places[0]
    assert place
    assert (place.rule, place.rank, place.start, place.end) == ("TK301", MISSING, *scene.focus)


def test_a_healthy_job_has_no_band() -> None:
    timeline = open_captures(SAMPLES / "straggler_4ranks.sqlite")
    analysis, detail = examine(timeline)
    made = make_scene(analysis, timeline, detail, summarise(analysis))
    assert made
    assert made.stand is None
    assert header(made)["stand"] is None
    assert all(rank["pending"] == [] for rank in header(made)["ranks"])


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_standstill_in_a_browser(job: Any, scene: Scene, open_file: Open, tmp_path: Path, scheme: str) -> None:
    """The band begins with a red line where the last rank went quiet, and the card leads back to it."""
    analysis, timeline, detail = job
    write_html(analysis, timeline, tmp_path / "page.html", detail=detail)
    opened = open_file(tmp_path / "page.html", color_scheme=scheme)
    assert scene.stand
    view = opened.page.evaluate("document.querySelector('#where b').textContent")
    colours = colours_along(opened.page, LEFT, 60, RIGHT - LEFT)
    margin = (scene.focus[1] - scene.focus[0]) * 0.005
    share = (scene.stand.start - scene.focus[0] + margin) / (scene.focus[1] - scene.focus[0] + 2 * margin)
    at = round(share * (RIGHT - LEFT))
    assert palette()[scheme]["error"].upper() in colours[at - 2 : at + 4]
    opened.page.focus("#canvas")
    opened.page.keyboard.press("w")
    opened.page.locator("a.go").first.click()
    opened.page.wait_for_function(f"document.querySelector('#where b').textContent === {json.dumps(view)}")
    assert opened.complaints == []


# --- the page of `tracekit hang` ---


def page_of(*paths: Path, out: Path) -> str:
    result = CliRunner().invoke(main, ["hang", *map(str, paths), "--html", str(out), "-q"])
    assert result.exit_code == 1, result.output
    return out.read_text("utf-8")


def test_captures_have_a_page_with_the_last_instants(tmp_path: Path) -> None:
    text = page_of(SAMPLE, out=tmp_path / "hang.html")
    assert "<h1>Rank 2 never launched all-gather 26 of the communicator of ranks 0-3; ranks 0-1, 3 wait.</h1>" in text
    assert "nothing launched after all-gather 25" in text
    assert text.count('class="pending"') == 3
    assert "What to do next" in text
    assert "<script" not in text


def waiting(missing: int) -> Any:
    return lambda rank: [("0", 1, "all_reduce", "completed")] + [("0", 2, "all_reduce", "started")] * (rank != missing)


def test_dumps_have_a_page_with_the_wait_graph(tmp_path: Path) -> None:
    write_dumps(tmp_path, waiting(1), (0, 1, 2))
    text = page_of(tmp_path, out=tmp_path / "page.html")
    assert 'class="graph"' in text
    assert 'class="box root"' in text
    assert 'class="instants"' not in text  # dumps tell no times
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in text


def test_a_thousand_ranks_stay_small(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", tuple(range(1024)))}
    groups |= {f"tp{n}": ("TENSOR_MODEL_PARALLEL_GROUP", tuple(range(8 * n, 8 * n + 8))) for n in range(128)}

    def entries(rank: int) -> list[tuple[str, int, str, str]]:
        own = f"tp{rank // 8}"
        if rank == 515:
            return [(own, 1, "all_reduce", "completed")]
        last = (own, 2, "all_reduce", "started") if rank // 8 == 515 // 8 else ("0", 1, "all_gather", "started")
        return [(own, 1, "all_reduce", "completed"), last]

    write_dumps(tmp_path, entries, tuple(range(1024)), groups)
    out = tmp_path / "page.html"
    text = page_of(tmp_path, out=out)
    assert "Rank 515 never launched" in text
    assert out.stat().st_size < 300_000
    assert text.count('class="box') < 14


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write_dumps(tmp_path, waiting(1), (0, 1, 2), {"0": (evil, (0, 1, 2))})
    text = page_of(tmp_path, out=tmp_path / "page.html")
    assert "<img" not in text
    assert "&lt;img" in text


def test_a_page_does_not_overwrite_its_input(tmp_path: Path) -> None:
    write_dumps(tmp_path, waiting(1), (0, 1, 2))
    target = tmp_path / "nccl_trace_rank_0"
    result = CliRunner().invoke(main, ["hang", str(tmp_path), "--html", str(target)])
    assert result.exit_code == 2


# --- the wait graph ---


def wait(number: int, waits_for: tuple[int, ...], *, root: bool = False) -> Wait:
    group = ProcessGroup(name=str(number), description=f"GROUP_{number}", ranks=(number, number + 1))
    return Wait(
        groups=(group,), communicators=1, seq=number, op="all_reduce", waiting=(number,), missing=(number + 1,),
        behind=(), waits_for=waits_for, is_root=root,
    )  # fmt: skip


def graph_of(*waits: Wait) -> Any:
    hang = Hang(
        verdict="missing_rank", communicator="0", description=None, seq=0, op=None, missing_ranks=(), waiting_ranks=(),
        ahead_ranks=(), behind_ranks=(), culprits=(), cycle=(), mismatches=(), last_activity=(), step=None, module=None,
        lacking=(), notes=(), waits=waits,
    )  # fmt: skip
    return picture(hang)


def test_who_waits_is_right_of_what_it_waits_for() -> None:
    drawn = graph_of(wait(0, (), root=True), wait(1, (0,)), wait(2, (1,)), wait(3, (0,)))
    columns = [box.x for box in drawn.boxes]
    assert columns[0] < columns[1] == columns[3] < columns[2]
    assert [box.is_root for box in drawn.boxes] == [True, False, False, False]
    assert len(drawn.edges) == 3
    assert len({(box.x, box.y) for box in drawn.boxes}) == 4


def test_a_cycle_is_drawn_and_ends() -> None:
    drawn = graph_of(wait(0, (1,), root=True), wait(1, (0,), root=True))
    assert len(drawn.edges) == 2
    assert drawn.boxes[0].x == drawn.boxes[1].x


def test_nothing_to_wait_for_is_not_drawn() -> None:
    assert graph_of() is None
