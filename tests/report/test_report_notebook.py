"""What an analysis shows of itself in a notebook, and the example notebook."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import by_hand, make_analysis, some_findings

import tracekit
from tracekit.report.notebook import FINDINGS_SHOWN, render_notebook

CHECKOUT = Path(__file__).resolve().parents[2]
NOTEBOOK = CHECKOUT / "docs" / "tutorials" / "notebook.ipynb"
ACTIVE = {"script", "link", "iframe", "img", "style", "object", "form", "base", "svg"}


class Reader(HTMLParser):
    """Elements that were opened and not closed, attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_it_says_the_verdict_the_identity_and_the_findings() -> None:
    """GIVEN two ranks counted by hand: compute 70 of 100 ms, exposed 20, copies 3, idle 7 on average."""
    page = read(render_notebook(make_analysis(by_hand(), findings=some_findings())))
    assert "step 100.0 ms = compute 70.0 + exposed comm 20.0 + exposed copy 3.0 + idle 7.0" in page.text
    for finding in some_findings():
        assert finding.title in page.text
        assert finding.rule in page.text
    widths = [float(v.split("width:")[1].split("%")[0]) for n, v in page.attributes if n == "style" and "%;" in v]
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_names_are_inert_and_nothing_is_loaded() -> None:
    nasty = '</td><script>alert(1)</script><img src=x onerror="alert(2)">'
    finding = replace(some_findings()[0], title=nasty, fix=nasty)
    analysis = make_analysis(by_hand(), findings=(finding,))
    analysis = replace(analysis, captures=tuple(replace(c, path=f"/tmp/{nasty}.sqlite") for c in analysis.captures))
    page = read(render_notebook(analysis))
    assert nasty in page.text
    assert not page.seen & ACTIVE
    assert {name for name, _ in page.attributes} <= {"style", "title", "role", "aria-label"}
    assert not any("url(" in value for name, value in page.attributes if name == "style")


def test_many_findings_are_counted() -> None:
    many = tuple(replace(some_findings()[0], rule=f"TK{n}") for n in range(100, 100 + FINDINGS_SHOWN + 3))
    page = read(render_notebook(make_analysis(by_hand(), findings=many)))
    assert "3 more findings" in page.text
    assert "TK110" not in page.text


def test_without_gpu_work_it_shows_the_host_view() -> None:
    timeline = tracekit.open(CHECKOUT / "sample_traces" / "recorded" / "hang_cpu", require_ranks=False)
    analysis = tracekit.analyze(timeline, tracekit.Options(allow_no_gpu=True))
    html = analysis._repr_html_()
    assert html is not None
    assert read(html).seen == {"pre"}


def test_the_public_names_make_analyses_show_themselves() -> None:
    """GIVEN a new interpreter, THEN what ``tracekit.analyze`` returns shows itself and gives tables."""
    program = """
import tracekit
analysis = tracekit.analyze(tracekit.open("sample_traces/fsdp2_nsys_2022.sqlite"))
assert analysis._repr_html_().startswith("<div")
assert sorted(analysis.frames()) == sorted(tracekit.frames(analysis))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=CHECKOUT, check=True, timeout=120)


def code_cells() -> dict[str, str]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


def run_cells(cells: dict[str, str]) -> dict[str, Any]:
    """Run the cells one after another in one namespace; what the last expression of each is."""
    namespace: dict[str, Any] = {}
    shown = {}
    for name, source in cells.items():
        *body, last = ast.parse(source).body
        assert isinstance(last, ast.Expr), f"{name} shows nothing"
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        shown[name] = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return shown


def test_the_example_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN the example, WHEN its cells run, THEN they show what the text beside them says."""
    monkeypatch.chdir(NOTEBOOK.parent)
    shown = run_cells(code_cells())
    assert "Rank 2 computes slowly" in shown["analyze"]._repr_html_()
    assert {"steps", "findings", "bubbles"} <= set(shown["tables"])
    assert (shown["steps"].idxmin(axis=1) == 2).all()
    waits = shown["causes"].loc[("exposed_comm", "peer_wait")].fillna(0)
    assert waits.drop(2).min() > 10 * waits[2]
    assert 2 not in set(shown["longest"]["rank"])
    assert len(shown["longest"]) == 5


def test_the_example_notebook_holds_no_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
