"""How sure findings are, by what the captures lack."""

from dataclasses import replace

import pytest
from handmade import Sketch
from test_analysis import train

from tracekit.analysis import analyze
from tracekit.config import DEFAULT
from tracekit.options import Options
from tracekit.results import Confidence, Finding, Severity
from tracekit.rules.confidence import with_confidence


class _Job:
    """As much of a context as confidence rests on."""

    def __init__(self, *, ranks=4, kernels=100, launched=100, told=True, steps=5, size=4):
        self.ranks = [type("Rank", (), {"kernels": kernels, "kernels_launched": launched})()] * ranks
        self.waits_told = told
        self.steps = tuple(range(steps))
        self.thresholds = DEFAULT
        self.world = type("World", (), {"complete": ranks >= size, "size": size})()


def finding(rule, **facts):
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        title="",
        ranks=(0,),
        steps=(1,),
        cost_ns=1,
        gain_ns=None,
        evidence=(),
        fix="",
        **facts,
    )


@pytest.mark.parametrize(
    ("rule", "job", "confidence", "reason"),
    [
        ("TK101", {}, "high", None),
        ("TK101", {"ranks": 1, "size": 1}, "medium", "one rank only"),
        ("TK101", {"told": False}, "medium", "cannot be matched"),
        ("TK101", {"ranks": 2}, "medium", "2 of 4 ranks captured"),
        ("TK101", {"launched": 94}, "medium", "6 % of launches are lost"),
        ("TK101", {"launched": 95}, "high", None),
        ("TK101", {"launched": 47}, "low", "53 % of launches are lost"),
        ("TK401", {"launched": 0}, "low", "no launch rows"),
        ("TK105", {"launched": 0}, "high", None),  # needs none
        ("TK201", {"steps": 2}, "medium", "2 steps only"),
        ("TK201", {"steps": 3}, "high", None),
        ("TK401", {"steps": 0}, "high", None),  # the whole capture: TK901 tells of that
        ("TK907", {"launched": 0, "ranks": 1}, "high", None),
    ],
)
def test_confidence_by_what_is_lacking(rule, job, confidence, reason):
    told = with_confidence(finding(rule), _Job(**job))
    assert told.confidence.value == confidence
    assert reason in told.confidence_reason if reason else told.confidence_reason is None


def test_the_least_of_what_a_rule_says_and_what_is_lacking():
    sure = finding("TK201", confidence=Confidence.MEDIUM, confidence_reason="few kernels alike")
    assert with_confidence(sure, _Job()) == sure
    both = with_confidence(replace(sure, rule="TK202"), _Job(launched=10))
    assert (both.confidence, both.confidence_reason) == (
        Confidence.LOW,
        "few kernels alike; 90 % of launches are lost",
    )


@pytest.mark.parametrize(("ranks", "confidence"), [(1, "medium"), (2, "high")])
def test_one_rank_cannot_tell_waiting_from_transfer(ranks, confidence):
    made = Sketch()
    for _ in range(ranks):
        train(made.process(), steps=6)
    (told,) = [f for f in analyze(made.timeline(), Options()).findings if f.rule == "TK100"]
    assert told.confidence.value == confidence
