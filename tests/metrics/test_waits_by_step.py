"""What waits alone tell of lost time, against the causes that the full analysis finds."""

from pathlib import Path

import pytest

import tracekit
import tracekit.metrics.bubbles
from tracekit import Options

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


@pytest.mark.parametrize("name", ["straggler_4ranks.sqlite", "ddp.sqlite", "data_stall.sqlite", "straggler_ragged"])
def test_without_rules_waits_are_the_same_and_the_rest_is_unknown(name):
    path = SAMPLES / name
    timeline = tracekit.open(*(sorted(path.glob("*.sqlite")) if path.is_dir() else [path]))
    full = tracekit.analyze(timeline)
    bare = tracekit.analyze(timeline, Options(rules=False))
    waited = 0
    for rank, other in zip(full.ranks, bare.ranks, strict=True):
        for step, without in zip(rank.steps, other.steps, strict=True):
            assert step.account == without.account
            comm = without.exposed_comm_by_cause
            assert set(comm) <= {"start_up", "peer_wait", "unknown"}
            for cause in ("start_up", "peer_wait"):
                assert comm.get(cause, 0) == step.exposed_comm_by_cause.get(cause, 0)
                waited += comm.get(cause, 0)
            assert sum(comm.values()) == without.account.exposed_comm_ns
            assert sum(without.exposed_copy_by_cause.values()) == without.account.exposed_copy_ns
            assert sum(without.idle_by_cause.values()) == without.account.idle_ns
            assert 0 not in (*comm.values(), *without.idle_by_cause.values())
    assert waited
    assert bare.steady == full.steady
    assert bare.stragglers == full.stragglers


def test_rows_come_only_where_they_are_asked_for():
    timeline = tracekit.open(SAMPLES / "ddp.sqlite")
    assert tracekit.examine(timeline, Options(rules=False), detailed=False)[1] is None
    assert tracekit.examine(timeline, Options(rules=False))[1] is not None
    assert tracekit.examine(timeline, detailed=False)[1] is not None  # rules need them anyway


def test_with_a_timeline_without_rules_bubbles_say_what_steps_say():
    timeline = tracekit.open(SAMPLES / "straggler_4ranks.sqlite")
    analysis, detail = tracekit.examine(timeline, Options(rules=False))
    for rank, view in zip(analysis.ranks, detail.views, strict=True):
        told = tracekit.metrics.bubbles.with_causes(rank.steps, view.bubbles)
        for step, other in zip(rank.steps, told, strict=True):
            assert step.exposed_comm_by_cause == other.exposed_comm_by_cause
            assert step.idle_by_cause == other.idle_by_cause
