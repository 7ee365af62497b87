from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest
from builders import by_hand, make_analysis, simulate
from plotly.offline import get_plotlyjs_version

from tracekit.report.details import collective_rows
from tracekit.report.figures import MAX_BARS, collectives_figure, steps_figure
from tracekit.report.palette import STATIC
from tracekit.report.words import Scale

MILLISECONDS = Scale("ms", 1_000_000, 1)


def traces(figure: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    assert figure
    return {trace["meta"]["family"]: trace for trace in figure["data"]}


def test_steps_counted_by_hand() -> None:
    # Means of two ranks: compute (60 + 80) / 2, exposed (30 + 10) / 2, copy 3, nothing 7; three steps alike.
    found = traces(steps_figure(make_analysis(by_hand()), MILLISECONDS))
    assert {key: trace["y"] for key, trace in found.items()} == {
        "compute": [70.0] * 3,
        "comm": [20.0] * 3,
        "copy": [3.0] * 3,
        "idle": [7.0] * 3,
    }
    assert found["compute"]["x"] == ["0", "1", "2"]


def test_collectives_counted_by_hand() -> None:
    figure = collectives_figure(collective_rows(make_analysis(by_hand())))
    assert traces(figure)["comm"]["x"] == [60.0]
    assert figure
    assert figure["layout"]["yaxis"]["ticktext"] == ["all-gather 0x5f1c0d7e"]


def test_plotly_accepts_every_attribute() -> None:
    analysis = make_analysis(simulate())
    for figure in (steps_figure(analysis, MILLISECONDS), collectives_figure(collective_rows(analysis))):
        assert figure
        go.Figure(json.loads(json.dumps(figure)), skip_invalid=False)
    broken = steps_figure(analysis, MILLISECONDS)
    assert broken
    broken["layout"]["xaxis"]["no_such_attribute"] = 1
    with pytest.raises(ValueError, match="no_such_attribute"):
        go.Figure(broken)


def test_the_vendored_library_is_the_one_the_figures_are_checked_against() -> None:
    banner = (STATIC / "plotly-basic.min.js").read_text("utf-8")[:200]
    major, minor, _ = get_plotlyjs_version().split(".")
    assert f"plotly.js (basic - minified) v{major}.{minor}." in banner
    table = (STATIC / "VENDORED.md").read_text("utf-8")
    assert hashlib.sha256((STATIC / "plotly-basic.min.js").read_bytes()).hexdigest() in table
    assert "MIT" in (STATIC / "plotly.LICENSE").read_text("utf-8")


def test_thousands_of_steps_become_means_of_neighbours() -> None:
    analysis = make_analysis(by_hand())
    rank = analysis.ranks[0]
    steps = tuple(replace(rank.steps[i % 3], step=i) for i in range(1000))
    found = traces(steps_figure(replace(analysis, ranks=(replace(rank, steps=steps),)), MILLISECONDS))
    assert len(found["compute"]["y"]) == 200 <= MAX_BARS
    assert found["compute"]["x"][:2] == ["0-4", "5-9"]
    assert set(found["compute"]["y"]) == {60.0}


def test_nothing_to_draw() -> None:
    assert steps_figure(make_analysis(by_hand(), steps=False), MILLISECONDS) is None
    assert collectives_figure([]) is None
