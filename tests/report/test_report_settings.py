"""The thresholds that an analysis was made with decide what its renderers say, in every one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS, by_hand, make_analysis, make_timeline

from tracekit.analysis import analyze
from tracekit.config import DEFAULT, Thresholds
from tracekit.options import Options
from tracekit.report.html import render_html
from tracekit.report.json import render_json
from tracekit.report.markdown import render_markdown
from tracekit.report.notebook import render_notebook
from tracekit.report.saved import read_saved
from tracekit.report.text import render_text
from tracekit.results import Analysis, Finding, Severity

RENDERERS: dict[str, Callable[[Analysis], str]] = {
    "text": lambda analysis: render_text(analysis, width=200, color=False, unicode=True),
    "html": lambda analysis: render_html(analysis, make_timeline(by_hand())),
    "markdown": render_markdown,
    "notebook": render_notebook,
}
every_renderer = pytest.mark.parametrize("render", RENDERERS.values(), ids=RENDERERS)


def finding(rule: str, title: str, cost_ns: int) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        title=title,
        ranks=(0, 1),
        steps=(1, 2),
        cost_ns=cost_ns,
        gain_ns=None,
        evidence=(),
        fix="Change it.",
    )


def analysis(*findings: Finding, **thresholds: float) -> Analysis:
    """Of a step of 100 ms with 20 ms of exposed communication."""
    return replace(make_analysis(by_hand(), findings=findings), thresholds=replace(DEFAULT, **thresholds))


REST, NAMED = "much of it is exposed", "gathers come late"


@every_renderer
def test_findings_must_explain_a_share_of_the_largest_loss_to_lead(render: Callable[[Analysis], str]) -> None:
    """GIVEN a finding that explains 12 of the 20 ms, THEN it leads up to a share of 0.6 and not beyond."""
    found = finding("TK101", NAMED, 12 * MS)
    largest = "20 % of a step is exposed communication."
    assert largest not in render(analysis(found, headline_explained_share=0.59))
    assert largest in render(analysis(found, headline_explained_share=0.61))


def leads(text: str) -> str:
    """Which of the two claims comes first."""
    return min((REST, NAMED), key=text.index)


@every_renderer
def test_a_named_cause_leads_from_a_share_of_the_costliest_finding_on(render: Callable[[Analysis], str]) -> None:
    """GIVEN 14 ms without a named cause and 5.6 ms with one: 0.4 of the costliest."""
    findings = finding("TK100", REST, 14 * MS), finding("TK101", NAMED, 5_600_000)
    assert leads(render(analysis(*findings, headline_named_share=0.39))) == NAMED
    assert leads(render(analysis(*findings, headline_named_share=0.41))) == REST


@every_renderer
def test_less_than_a_share_of_the_step_does_not_stand_out(render: Callable[[Analysis], str]) -> None:
    assert "20 % of a step is exposed communication." in render(analysis(warning_share=0.19))
    assert "Nothing stands out: 70 % of the step is compute." in render(analysis(warning_share=0.21))


def test_an_analysis_carries_its_thresholds(tmp_path: Path) -> None:
    thresholds = Thresholds(warning_share=0.21, queued_gathers=4)
    made = analyze(make_timeline(by_hand()), Options(thresholds=thresholds))
    assert made.thresholds == thresholds
    document = json.loads(render_json(made))
    assert document["thresholds"] == {"warning_share": 0.21, "queued_gathers": 4}
    saved = tmp_path / "run.json"
    saved.write_text(render_json(made))
    assert read_saved(saved).thresholds == thresholds


def test_defaults_are_not_listed() -> None:
    assert json.loads(render_json(analysis()))["thresholds"] == {}
