"""TK501, TK502 and TK114: from memory events; what looks like them; what lets them be checked."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import tracekit
from tracekit.metrics.run import ModelFacts
from tracekit.options import Options
from tracekit.theory.gpus import gpu_named

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


@cache
def timeline(name):
    return tracekit.open(SAMPLES / f"{name}.sqlite")


def outcome(name, **options):
    """(findings by code, skipped rules by code)."""
    analysis = tracekit.analyze(timeline(name), Options(**options))
    return {f.rule: f for f in analysis.findings}, {s.rule: s for s in analysis.skipped_rules}


def values(finding):
    return {e.metric: e.value for e in finding.evidence}


def test_churn_says_how_much():
    found, _ = outcome("memory_churn")
    # Three workspaces of 96 MiB in each of four layers.
    assert values(found["TK501"])["allocated"] == round(12 * 96 * 2**20 / 1e9, 3)
    assert values(found["TK501"])["calls that free"] == 12


def test_a_first_step_that_allocates_is_no_churn():
    assert not {"TK501", "TK502", "TK114"} & outcome("memory_reserved")[0].keys()


def test_a_gap_is_told_in_parts():
    found, _ = outcome("memory_gap")
    parts = values(found["TK502"])
    known = parts["model state"] + parts["gathered units"] + parts["activations"] + parts["not accounted for"]
    assert abs(known - parts["reserved at the peak"]) < 0.01
    assert parts["not accounted for"] > 21 * 2**30 / 1e9
    assert found["TK502"].severity == "info"
    # The same on a GPU that it fills.
    full = tracekit.analyze(timeline("memory_gap"), Options(gpu=replace(gpu_named("H100"), memory_gb=28))).findings
    assert next(f for f in full if f.rule == "TK502").severity == "warning"


def test_a_larger_model_accounts_for_it():
    model = ModelFacts(
        source="option", parameters=3 * 10**9, multiplied=None, layers=4, hidden=2_048, heads=16, vocab=8_192
    )
    assert "TK502" not in outcome("memory_gap", model=model)[0]


def test_without_memory_events_the_flag_is_named():
    _, skipped = outcome("backward_prefetch_off")
    for code in ("TK502", "TK114"):
        assert "--cuda-memory-usage=true" in skipped[code].capture_with


def test_without_a_model_the_gap_is_skipped():
    bare = replace(
        timeline("memory_gap"), processes=tuple(replace(p, marks=()) for p in timeline("memory_gap").processes)
    )
    skipped = {s.rule: s for s in tracekit.analyze(bare).skipped_rules}
    assert "the model's size" in skipped["TK502"].reason


def test_gathers_again_where_there_is_room():
    found, _ = outcome("gathered_again")
    # Four layers in bf16.
    assert values(found["TK114"])["units that are gathered again"] == round(4 * 2 * 12 * 2_048**2 / 1e9, 3)
    assert "stage 2" in found["TK114"].fix or "reshard_after_forward" in found["TK114"].fix


def test_no_room_no_advice():
    found, skipped = outcome("gathered_again", gpu=replace(gpu_named("H100"), memory_gb=2.2))
    assert "TK114" not in found
    assert "TK114" not in skipped


def test_the_time_is_claimed_once():
    found, _ = outcome("gathered_again")
    assert found["TK102"].cost_ns > 0
    assert found["TK114"].cost_ns == 0
