"""One analysis, one figure: what the terminal, the page, Markdown, the notebook and the JSON say is the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tracekit
from tracekit.report.accounts import account_tables
from tracekit.report.json import render_json
from tracekit.report.markdown import render_markdown
from tracekit.report.notebook import render_notebook
from tracekit.report.sheet import Sheet
from tracekit.report.summary import summarise
from tracekit.report.text import render_text
from tracekit.report.views import bar_views, key_figures

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


@pytest.fixture(params=["straggler_4ranks", "data_stall", "offload", "ddp", "launch_bound"], scope="module")
def analysis(request: pytest.FixtureRequest) -> tracekit.Analysis:
    return tracekit.analyze(tracekit.open(SAMPLES / f"{request.param}.sqlite"))


def plain(analysis: tracekit.Analysis) -> str:
    return render_text(analysis, width=200, color=False, unicode=True)


def test_the_parts_of_the_mean_step(analysis: tracekit.Analysis) -> None:
    summary = summarise(analysis)
    bars = bar_views(summary, Sheet())
    identity = [figure for figure, _ in bars.identity]
    found = re.search(r"= ([\d.]+) compute \+ ([\d.]+) exposed comm \+ ([\d.]+) copy \+ ([\d.]+) idle", plain(analysis))
    assert found is not None
    assert list(found.groups()) == identity
    words = re.search(
        r"compute ([\d.]+) \+ exposed comm ([\d.]+) \+ exposed copy ([\d.]+) \+ idle ([\d.]+)",
        render_notebook(analysis),
    )
    assert words is not None
    assert list(words.groups()) == identity
    row = next(line for line in render_markdown(analysis).splitlines() if line.startswith(f"| {summary.scale.unit} "))
    assert [cell.strip() for cell in row.strip("|").split("|")][1:5] == identity
    exact = json.loads(render_json(analysis))["steady"]
    for figure, part in zip(identity, PARTS, strict=True):
        assert abs(float(figure) * summary.scale.unit_ns - exact[part]) < summary.scale.tick_ns
    assert ("Exposed comm", identity[1], summary.scale.unit) in key_figures(analysis, summary)


def test_the_segments_of_every_bar(analysis: tracekit.Analysis) -> None:
    """Compute and copies are the identity's, every bar adds up to its whole, and a rank's bar is its table's row."""
    summary = summarise(analysis)
    bars = bar_views(summary, Sheet())
    rows = {row.name: row for row in account_tables(analysis)[0].rows}
    text = plain(analysis)
    for bar, view in zip((summary.mean, *summary.bars), (bars.mean, *bars.ranks), strict=True):
        shown = bar.shown(summary.scale)
        assert [segment.value for segment in view.segments] == list(shown.values())
        assert shown["compute"] == view.compute
        total = sum(round(float(value) * 1000) for value in shown.values())
        assert total == round(float(summary.scale.format(round(bar.wall_ns))) * 1000)
        if bars.loss_name == "Peer wait":
            assert view.loss == shown.get("wait", summary.scale.format(0))
        if bar.rank is not None:
            assert rows[str(bar.rank)].parts[0] == view.compute
            assert re.search(
                rf"^ +{bar.rank}  .* {re.escape(view.compute)} +{re.escape(view.loss)} ", text, re.MULTILINE
            )


def test_the_median_step(analysis: tracekit.Analysis) -> None:
    summary, steady = summarise(analysis), analysis.steady
    assert steady is not None
    shown = summary.scale.format(steady.step_time_ns)
    assert key_figures(analysis, summary)[0] == ("Step, median", shown, summary.scale.unit)
    assert f"median {shown} {summary.scale.unit}" in plain(analysis)
    assert json.loads(render_json(analysis))["steady"]["step_time_ns"] == steady.step_time_ns
