"""Steps replayed: unchanged they take what they took; changed, what the same job takes that was laid out so."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import tracekit
from tracekit.config import DEFAULT
from tracekit.options import Options
from tracekit.rules.gains import CHANGES_OF_RULE

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
EXPECTED = {path.name.removesuffix(".expected.json"): path for path in sorted(SAMPLES.glob("*.expected.json"))}


def expected(name):
    return json.loads(EXPECTED[name].read_text())


@cache
def analysis(name):
    path = SAMPLES / name
    return tracekit.analyze(tracekit.open(path if path.is_dir() else path.with_suffix(".sqlite")))


FAULTS = [name for name in EXPECTED if expected(name)["straggler"]["step_time_without_ns"]]


@pytest.mark.parametrize("name", EXPECTED)
def test_without_changes_known_dependencies_explain_the_step(name):
    found = analysis(name).replay
    assert found.reason is None
    # Of a job that hangs the last whole step is cut off.
    assert len(found.steps) >= (1 if name.startswith("hang") else 2)
    assert found.unexplained_share < 0.01


def step_time_without(name):
    found = analysis(name)
    (prediction,) = [p for p in found.replay.predictions if p.change == "straggler=off"]
    assert prediction.gain_ns == found.replay.step_time_ns - prediction.step_time_ns
    return prediction.step_time_ns


STRAGGLERS = [name for name in FAULTS if expected(name)["straggler"]["verdict"] in ("persistent", "rotating")]


@pytest.mark.parametrize("name", STRAGGLERS)
def test_without_the_straggler_a_step_takes_what_it_takes_in_the_same_job_without(name):
    """The sample's own layout without the fault says so, to 2 %."""
    assert step_time_without(name) == pytest.approx(expected(name)["straggler"]["step_time_without_ns"], rel=0.02)


@pytest.mark.parametrize("name", STRAGGLERS)
def test_the_finding_carries_the_gain_and_ranks_by_it(name):
    found = analysis(name)
    (gain,) = {p.gain_ns for p in found.replay.predictions if p.change == "straggler=off"}
    (finding,) = [f for f in found.findings if f.rule.startswith("TK20") and f.gain_ns is not None]
    assert finding.gain_ns == gain > finding.cost_ns
    assert found.findings[0].gain_ns >= gain


# In zero3_no_prefetch each of two findings is one half of what is the matter.
PARTLY = {"zero3_no_prefetch"}
# A host that is on time gains more than the fused launches that the sample has in its place.
TO_A_QUARTER = {"launch_bound"}
MENDED = [
    name
    for name in EXPECTED
    if expected(name).get("without_fault")
    and name not in PARTLY
    and set(expected(name)["findings"]) & CHANGES_OF_RULE.keys()
]


@pytest.mark.parametrize("name", [name for name in MENDED if name not in TO_A_QUARTER])
def test_a_finding_gains_what_the_same_job_without_it_takes_less(name):
    """To 5 %, by the sample's own layout without what is the matter."""
    found = analysis(name)
    truth = expected(name)["without_fault"]["step_time_ns"]
    codes = [rule for rule in expected(name)["findings"] if rule in CHANGES_OF_RULE]
    gains = {finding.rule: finding.gain_ns for finding in found.findings}
    for code in codes:
        assert gains[code] > 0
        assert found.replay.step_time_ns - gains[code] == pytest.approx(truth, rel=0.05)


# Pieces as small as kernels gain more than the buckets of one layer in the same job without; and of the kernels that
# contention slows down some never run alone.
ROUGHLY = {"last_bucket", "contention"}


@pytest.mark.parametrize("name", [name for name in MENDED if name not in ROUGHLY])
def test_gains_are_within_a_quarter_of_the_true_ones(name):
    found = analysis(name)
    truth = found.replay.step_time_ns - expected(name)["without_fault"]["step_time_ns"]
    gains = [f.gain_ns for f in found.findings if f.rule in expected(name)["findings"] and f.rule in CHANGES_OF_RULE]
    assert gains == [pytest.approx(truth, rel=0.25)] * len(gains)


def test_two_findings_on_one_fault_do_not_gain_twice():
    """A loader that is late on one rank: TK405 and TK202 each carry the whole gain, and together no more than that."""
    found = analysis("data_stall")
    gains = {f.rule: f.gain_ns for f in found.findings if f.rule in ("TK405", "TK202")}
    truth = found.replay.step_time_ns - expected("data_stall")["without_fault"]["step_time_ns"]
    assert gains == pytest.approx({"TK405": truth, "TK202": truth}, rel=0.05)
    assert found.replay.together.gain_ns == pytest.approx(truth, rel=0.05)


def test_each_half_of_what_is_the_matter_gains_a_part():
    found = analysis("zero3_no_prefetch")
    gains = sum(f.gain_ns for f in found.findings if f.rule in ("TK101", "TK102"))
    truth = expected("zero3_no_prefetch")["without_fault"]["step_time_ns"]
    assert found.replay.step_time_ns - gains == pytest.approx(truth, rel=0.05)


def test_one_report_a_rank_predicts_the_same():
    """Clocks are then good to some ns only."""
    assert step_time_without("straggler_4ranks_per_rank") == pytest.approx(
        step_time_without("straggler_4ranks"), rel=1e-5
    )


def test_a_healthy_job_gains_nothing_from_even_ranks():
    assert not analysis("healthy_8ranks").replay.predictions


def test_what_does_not_explain_the_step_predicts_nothing():
    """GIVEN no delay that is taken for granted, not even that of a launch, THEN there is no gain, not a wrong one."""
    timeline = tracekit.open(SAMPLES / "straggler_4ranks.sqlite")
    strict = replace(DEFAULT, replay_lag_ns=0, replay_launch_ns=0, replay_error_share=1e-4)
    found = tracekit.analyze(timeline, Options(thresholds=strict))
    assert "unexplained" in (found.replay.reason or "")
    assert found.replay.predictions == ()
    assert all(finding.gain_ns is None for finding in found.findings)


def test_a_capture_without_steps_is_replayed_as_one():
    timeline = tracekit.open(SAMPLES / "straggler_4ranks.sqlite")
    hidden = replace(timeline, names=tuple("loop" if n == "step" else n for n in timeline.names))
    # Nor are steps taken from a period that repeats five times.
    found = tracekit.analyze(hidden, Options(thresholds=replace(DEFAULT, period_repeats=99)))
    assert found.steady is None
    assert (found.replay.steps, found.replay.reason) == ((), None)
    ends = [(rank.start_ns, rank.end_ns) for rank in found.ranks]
    assert found.replay.step_time_ns == pytest.approx(sum(end - start for start, end in ends) / len(ends), abs=1)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["straggler.sqlite", "straggler_per_rank"])
def test_a_job_laid_out_by_hand(shared, name):
    """GIVEN six times 0.60, 0.65, 1.00, 0.62 ms of compute, a transfer of 0.1 ms, hosts that launch just in time.

    THEN without rank 2 it takes 6 x (0.65 + 0.1) ms: rank 2 computes in the median 0.62, and rank 1 is the last.
    """
    found = tracekit.analyze(tracekit.open(shared / "cases" / name)).replay
    assert found.step_time_ns == 6 * 1_100_000
    assert [p.step_time_ns for p in found.predictions if p.change == "straggler=off"] == [6 * 750_000]


@pytest.mark.shared
@pytest.mark.parametrize("name", ["hta_dlrm_a100_rank3of8", "hta_128rank_onereport"])
def test_known_dependencies_explain_the_steps_of_real_jobs(shared, name):
    """Nearly, although these captures hold launches and operations only and no record of any wait."""
    found = tracekit.analyze(tracekit.open(shared / "traces" / f"{name}.sqlite")).replay
    assert found.reason is None
    assert found.unexplained_share < 0.03
