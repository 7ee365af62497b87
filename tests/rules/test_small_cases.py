"""Small captures laid out from the definitions of the rules: each fires in its plainest form, on no look-alike."""

from functools import cache
from itertools import pairwise

import cases_capture  # noqa: F401
import cases_exposed  # noqa: F401
import cases_hangs  # noqa: F401
import cases_host  # noqa: F401
import cases_stragglers  # noqa: F401
import cases_variants  # noqa: F401
import pytest
from small_captures import CASES

import tracekit

OF_COMPUTE = {"TK113"}
"""Codes of TK1xx that tell of compute, not of exposed time."""
pytestmark = pytest.mark.parametrize("name", list(CASES))


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory):
    @cache
    def analyze(name):
        job = CASES[name].build()
        return job, tracekit.analyze(tracekit.open(*job.write(tmp_path_factory.mktemp(name))))

    return analyze


def test_totals_counted_microsecond_by_microsecond(analyzed, name):
    job, found = analyzed(name)
    assert len(found.ranks) == len(job.ranks)
    for rank, laid_out in zip(found.ranks, job.ranks, strict=True):
        for key, ns in laid_out.totals().items():
            assert getattr(rank.totals, key) == ns, key


def test_what_has_to_be_said_and_what_must_not(analyzed, name):
    case, found = CASES[name], {f.rule: f for f in analyzed(name)[1].findings}
    first = None
    for codes, cost in case.fires.items():
        said = [found[code] for code in codes.split("|") if code in found]
        assert said, f"{codes} is missing from {sorted(found)}"
        first = first or said[0]
        assert cost is None or said[0].cost_ns == pytest.approx(cost * 1000, abs=1)
        assert said[0].fix
    assert not set(case.silent) & set(found)
    for fact, value in case.facts.items():
        told = getattr(first, fact)
        assert getattr(told, "value", told) == value, fact


def test_nothing_is_claimed_twice_and_nothing_that_costs_is_left_out(analyzed, name):
    _, found = analyzed(name)
    step = found.steady.account if found.steady else None
    ranks = [rank.totals for rank in found.ranks]
    exposed = step.exposed_comm_ns if step else sum(t.exposed_comm_ns for t in ranks) / len(ranks)
    wall = step.wall_ns if step else sum(t.wall_ns for t in ranks) / len(ranks)
    about = [f for f in found.findings if f.rule[:3] in ("TK1", "TK2") and f.rule not in OF_COMPUTE]
    about += [f for f in found.findings if f.rule == "TK404"]
    assert sum(f.cost_ns or 0 for f in about) <= exposed + 1
    assert about or exposed < 0.02 * wall
    assert sum(f.cost_ns or 0 for f in about) > exposed - 0.02 * wall


def test_causes_add_up(analyzed, name):
    for rank in analyzed(name)[1].ranks:
        for step in rank.steps:
            for causes, whole in (
                (step.exposed_comm_by_cause, step.account.exposed_comm_ns),
                (step.exposed_copy_by_cause, step.account.exposed_copy_ns),
                (step.idle_by_cause, step.account.idle_ns),
            ):
                assert sum(causes.values()) == whole


def test_findings_are_ranked_by_what_is_gained(analyzed, name):
    """A gain of nothing is a gain that is known. A hang goes before all."""
    findings = [f for f in analyzed(name)[1].findings if not f.rule.startswith("TK3")]
    weights = [(f.cost_ns if f.gain_ns is None else f.gain_ns) or 0 for f in findings]
    assert all(a >= b for a, b in pairwise(weights))
