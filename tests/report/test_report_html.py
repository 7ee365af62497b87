from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import (
    MS,
    Job,
    by_hand,
    make_analysis,
    make_detail,
    make_timeline,
    many_waiting,
    simulate,
    some_findings,
    some_gaps,
    straggler,
    waiting_by_hand,
)

from tracekit.errors import TracekitError
from tracekit.report import html
from tracekit.report.html import write_html
from tracekit.report.palette import STATIC
from tracekit.report.timeline.kept import HtmlDetail
from tracekit.results import Analysis, Clock, Evidence, Finding, Module, Severity, SkippedRule
from tracekit.timeline import Kind, Timeline

HOSTILE = '</script></style><img src=x onerror="window.hacked=1"><b>\'"&amp;\u2028\u202e\x1b[31m{{ 7*7 }}'


def render_html(analysis: Analysis, timeline: Timeline, **options: Any) -> str:
    """The page with its timeline."""
    return html.render_html(analysis, timeline, detail=make_detail(analysis, timeline), **options)


class Page(HTMLParser):
    """Collects elements with their attributes, text, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self._inside: tuple[str, dict[str, str | None]] | None = None
        self._in_cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._in_cell = True
        self._inside = (tag, dict(attrs)) if tag in {"script", "style"} else None
        if self._inside:
            self.raw.append((*self._inside, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, attrs, before = self.raw[-1]
            self.raw[-1] = (tag, attrs, before + data)
        else:
            self.text += data
            if self._in_cell:
                self.rows[-1][-1] += data.strip()

    def raw_block(self, id_: str) -> str:
        return next(text for _, attrs, text in self.raw if attrs.get("id") == id_)

    def block(self, id_: str) -> Any:
        return json.loads(self.raw_block(id_))

    @property
    def flat(self) -> str:
        return " ".join(self.text.split())


def page_of(job: Job, analysis: Analysis | None = None, **options: Any) -> Page:
    return Page(render_html(analysis or make_analysis(job), make_timeline(job), **options))


def hostile() -> tuple[Analysis, Timeline]:
    """A job in which every text that comes from outside is an attack."""
    job = simulate()
    analysis = make_analysis(job)
    timeline = make_timeline(job)
    ranks = tuple(
        replace(
            rank,
            device_name=HOSTILE,
            host=HOSTILE,
            rank_source=HOSTILE,
            step_source=HOSTILE,
            steps=tuple(replace(step, by_phase={HOSTILE: step.account}) for step in rank.steps),
            modules=(Module(module=HOSTILE, account=rank.totals),),
        )
        for rank in analysis.ranks
    )
    finding = Finding(
        rule="TK9<b>",
        severity=Severity.ERROR,
        title=HOSTILE,
        ranks=(1,),
        steps=(),
        cost_ns=90 * MS,
        gain_ns=None,
        evidence=(Evidence(metric=HOSTILE, value=HOSTILE, unit=HOSTILE, threshold=1),),
        fix=HOSTILE,
    )
    captures = (
        replace(
            analysis.captures[0], path="/" + HOSTILE, nsys_version=HOSTILE, diagnostics=(HOSTILE,), notes=(HOSTILE,)
        ),
    )
    analysis = replace(
        analysis,
        ranks=ranks,
        captures=captures,
        findings=(finding,) * 5,
        remedies=((HOSTILE, HOSTILE),) * 2,
        skipped_rules=(SkippedRule(rule=HOSTILE, reason=HOSTILE, capture_with=HOSTILE),),
        collectives=tuple(replace(c, op=HOSTILE, communicator=HOSTILE) for c in analysis.collectives),
    )
    return analysis, replace(timeline, names=[HOSTILE + name for name in timeline.names])


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_policy_allows_exactly_what_the_page_holds() -> None:
    page = page_of(simulate())
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    rules = {part.split()[0]: part.split()[1:] for part in policy.split(";")}
    scripts = [text for tag, attrs, text in page.raw if tag == "script" and "type" not in attrs]
    styles = [text for tag, _, text in page.raw if tag == "style"]
    plotly = (STATIC / "plotly-basic.min.js").read_text("utf-8")
    code = zlib.decompress(base64.b64decode(page.raw_block("page-code"))).decode()
    assert rules == {
        "default-src": ["'none'"],
        "script-src": [sha256(scripts[0]), sha256(code), sha256(plotly)],
        "style-src": [sha256(styles[0]), sha256("")],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    assert len(scripts) == len(styles) == 1
    assert "unsafe" not in policy


def test_nothing_is_fetched_and_nothing_is_inline() -> None:
    page = page_of(simulate(), make_analysis(simulate(), findings=some_findings(), **some_gaps()))
    for tag, attrs in page.elements:
        assert not {"src", "srcset", "action", "style", "background"} & attrs.keys(), (tag, attrs)
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not [name for name in attrs if name.startswith("on")]
        assert (attrs.get("href") or "#").startswith("#")
    for _, _, text in page.raw:
        assert not re.search(r"https?://|@import|url\(|\beval\(|new Function", text)


def test_hostile_names_stay_text() -> None:
    page = Page(render_html(*hostile()))
    tame = page_of(simulate(), make_analysis(simulate(), findings=some_findings() * 2, **some_gaps()))
    assert {tag for tag, _ in page.elements} - {tag for tag, _ in tame.elements} <= {"br"}
    assert not [attrs for _, attrs in page.elements if "onerror" in attrs]
    assert page.text.count('<img src=x onerror="window.hacked=1">') > 20
    assert "{{ 7*7 }}" in page.text
    names = page.block("scene-data")["names"]
    assert all(full.startswith("</script></style><img src=x") for _, full, _ in names)
    assert not re.search("[\u2028\u202e\x1b]", page.text + json.dumps(names, ensure_ascii=False))


def test_names_of_any_length_do_not_bloat_the_page() -> None:
    job = simulate()
    timeline = make_timeline(job)
    timeline = replace(timeline, names=[name + "<int>" * 20_000 for name in timeline.names])
    text = render_html(make_analysis(job), timeline)
    assert len(text) - len(render_html(make_analysis(job), make_timeline(job))) < 10_000


def test_identity_and_bars_counted_by_hand() -> None:
    page = page_of(by_hand())
    assert "100.0 ms=70.0 compute+20.0 exposed communication+3.0 exposed copy+7.0 idle" in page.flat
    spoken = [a["aria-label"] for _, a in page.elements if a.get("role") == "img" and a.get("class") == "bar"]
    assert spoken == [
        "All ranks: compute 70.0 ms, exposed comm 20.0 ms, exposed copy 3.0 ms, idle 7.0 ms",
        "Rank 0: compute 60.0 ms, exposed comm 30.0 ms, exposed copy 3.0 ms, idle 7.0 ms",
        "Rank 1: compute 80.0 ms, exposed comm 10.0 ms, exposed copy 3.0 ms, idle 7.0 ms",
    ]
    style = next(text for tag, _, text in page.raw if tag == "style")
    assert ".w7000{flex:7000 1 0%}" in style


def test_tables_counted_by_hand() -> None:
    rows = page_of(by_hand()).rows
    assert ["0", "100.0", "60.0", "30.0", "3.0", "7.0", "0.25"] in rows  # rank 0
    assert ["2", "100.0", "70.0", "20.0", "3.0", "7.0", "0.50"] in rows  # step 2, mean over ranks
    assert ["all-gather", "0x5f1c0d7e22aa9b04", "2", "3", "403 MB", "120.0 ms", "60.0", "0.50", "325"] in rows
    assert ["exposed communication", "0", "+60.0 ms", "30.0 ms"] in rows


def test_findings_with_cost_proof_and_advice() -> None:
    analysis = make_analysis(simulate(), findings=some_findings(10 * MS), **some_gaps())
    flat = page_of(simulate(), analysis).flat
    assert "◆ error· rank 2TK201" in flat
    assert "12.0 msa step · 29 %costs 10.0 ms; without it 29.3 ms a step" in flat
    assert "1.22 × threshold 1.05 ×" in flat
    assert "Try Call set_modules_to_forward_prefetch on each block" in flat
    assert "TK501 skipped, no memory events" in flat
    assert "capture with --cuda-memory-usage=true" in flat


def test_degraded_states_are_words_in_place() -> None:
    no_steps = page_of(by_hand(), make_analysis(by_hand(), steps=False)).flat
    assert (
        'No steps in this capture. Figures are for the whole of it. Wrap the loop body in nvtx.annotate("step")'
        in no_steps
    )
    assert "No steps in this capture, so there is nothing to compare." in no_steps
    assert "Exposed time by moduleModules are counted a step, and this capture has none." in no_steps
    one = simulate(ranks=1)
    assert "One rank: waiting for peers cannot be told from transfer." in page_of(one).flat
    silent = simulate(comm=False)
    assert "No collectives in this capture." in page_of(silent).flat
    assert "No NVTX ranges name modules. To have them: annotate the modules" in page_of(silent).flat
    assert "No communication kernels" in page_of(silent).flat
    job = by_hand()
    adrift = Clock(offset_ns=None, drift_ppm=None, uncertainty_ns=None, method=None)
    analysis = make_analysis(job)
    analysis = replace(analysis, ranks=tuple(replace(rank, clock=adrift) for rank in analysis.ranks))
    assert "Clocks cannot be aligned: each rank starts at its own step." in page_of(job, analysis).flat
    empty = Page(html.render_html(make_analysis(job), make_timeline(job)))
    assert "No operations to draw" in empty.flat
    assert "undefined" not in no_steps + empty.flat


def test_no_bandwidth_says_what_would_tell_it() -> None:
    analysis = make_analysis(by_hand())
    untold = replace(analysis.collectives[0], busbw_gbps=None, by_size=())
    for collective, why in (
        (
            replace(untold, bytes=None),
            "Message sizes are not known. To have them: nsys 2024.6 or newer, and nsys export",
        ),
        (replace(untold, transfer_ns=None), "Transfer times need all ranks of a collective: analyze their captures"),
    ):
        flat = page_of(by_hand(), replace(analysis, collectives=(collective,))).flat
        assert f"Bus bandwidth by size{why}" in flat


def test_occupancy_is_told() -> None:
    # A step of the job: 16 collectives and 48 kernels, on each of 4 ranks.
    two_steps = page_of(simulate(), max_events=2 * 4 * 66).flat
    assert re.search(r"Steps \d, \d of 6 in full, the rest as occupancy \(striped\)", two_steps)
    assert re.search(r"--html-detail all keeps every event \(about \d+ kB\)", two_steps)
    assert "The longest operations (from " in page_of(simulate(), max_events=40).flat
    assert "No operations in full" in page_of(simulate(), level=HtmlDetail.SUMMARY).flat
    for whole in (page_of(simulate()), page_of(simulate(), level=HtmlDetail.ALL, max_events=40)):
        assert "as occupancy" not in whole.flat


def test_a_capture_of_no_length() -> None:
    job = Job([[(5, 5, 7, Kind.COMPUTE, "k")]], [[5]], [5])
    assert "0.0 µs=0.0 compute" in page_of(job, make_analysis(job, steps=False)).flat


def test_many_ranks_stay_one_page() -> None:
    job = simulate(ranks=512, steps=3, layers=2)
    text = render_html(make_analysis(job), make_timeline(job))
    assert len(text) < 2_000_000
    flat = Page(text).flat
    assert "507 more ranks: " in flat
    assert "112 more: --json has them all." in flat


def test_template_script_and_style_stay_under_60_kb() -> None:
    text = render_html(make_analysis(by_hand()), make_timeline(by_hand()))
    page = Page(text)
    data = sum(len(text) for _, attrs, text in page.raw if attrs.get("type"))
    assert data > 500_000  # the chart library, deflated
    assert len(text.encode()) - data + len(page.raw_block("page-code")) <= 60_000


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    job = by_hand()
    path = tmp_path / "report.html"
    size = write_html(make_analysis(job), make_timeline(job), path)
    assert path.stat().st_size == size
    with pytest.raises(TracekitError, match="cannot write"):
        write_html(make_analysis(job), make_timeline(job), tmp_path / "no" / "report.html")


def test_waits_are_tables_too() -> None:
    clock = Clock(offset_ns=5_000_000, drift_ppm=50.0, uncertainty_ns=1_200, method="collectives")
    analysis = waiting_by_hand(stragglers=(straggler(1),))
    first = replace(analysis.ranks[0], wait_caused_ns=1_250_000, caused_share=1 / 7, last_arrivals_share=0.2)
    second = replace(analysis.ranks[1], host="node7", clock=clock, wait_caused_ns=7_500_000, caused_share=6 / 7)
    ranks = (replace(first, compute_ratio=0.75), replace(second, compute_ratio=1.21, last_arrivals_share=0.9))
    page = page_of(by_hand(), replace(analysis, ranks=ranks))
    assert ["0", "25.0", "20.0", "10.0"] in page.rows
    assert ["1", "12.5", "10.0", "5.0"] in page.rows
    # Steady steps 1 and 2: rank 0 waits (20 + 10) / 2, and 1.25 of 8.75 ms that others wait are for it.
    assert [
        "0",
        "unknown",
        "60.0",
        "15.0",
        "0.25",
        "1.2",
        "14 %",
        "0.75×",
        "20 %",
        "",
        "0 ns",
        "–",
        "same capture",
    ] in page.rows
    assert [
        "1",
        "node7",
        "80.0",
        "2.5",
        "0.75",
        "7.5",
        "86 %",
        "1.21×",
        "90 %",
        "persistent, slow compute",
        "5.0 ms ± 1.2 µs",
        "50.00",
        "collectives",
    ] in page.rows
    assert "clocks ± 1.2 µs" in page.flat
    told = "Rank 1 hardly waits: it is the one waited for. Full colour: 20.0. Dashed: left out of means, step 0."
    assert f"ms a step. {told}" in page.flat
    assert "Rank 1slow" in page.flat
    assert page.block("figures-data").keys() == {"bandwidth", "steps", "collectives", "modules", "waits", "arrivals"}


def test_maps_that_cannot_be_drawn_say_why() -> None:
    one = page_of(simulate(ranks=1))
    assert "Wait for peers, by rank and stepOne rank: waiting for peers cannot be told" in one.flat
    no_steps = page_of(by_hand(), make_analysis(by_hand(), steps=False))
    assert "so there is no map of ranks and steps." in no_steps.flat
    unmatched = page_of(by_hand())
    assert "no collective was found on all of its ranks." in unmatched.flat
    waiting = waiting_by_hand()
    untold = tuple(replace(r, steps=tuple(replace(s, caused_wait_ns=None) for s in r.steps)) for r in waiting.ranks)
    together = page_of(by_hand(), replace(waiting, ranks=untold))
    assert "no two ranks arrive further apart than their clocks can be trusted." in together.flat
    for page in (one, no_steps, unmatched):
        assert not page.block("figures-data").keys() & {"waits", "arrivals"}
    assert "arrivals" not in together.block("figures-data")


def test_maps_of_512_ranks_and_200_steps() -> None:
    job, analysis = many_waiting(512, 200, slow_rank=77)
    text = render_html(analysis, make_timeline(job))
    assert len(text) < 2_000_000
    page = Page(text)
    # Blocks of 16 ranks, and rank 77 alone.
    assert "511 ranks in 32 rows (mean). A column is the mean of up to 4 steps." in page.flat
    figure = page.block("figures-data")["waits"]
    assert sum(len(trace["x"]) for trace in figure["data"]) == 33 * (1 + 50)
    assert "▸ 77" in figure["layout"]["yaxis"]["ticktext"]
    assert [row for row in page.rows if row[:2] == ["511", "unknown"]]
