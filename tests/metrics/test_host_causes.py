"""Bubbles get the causes of idle time and of copies, and lose nothing in it."""

import json
from functools import cache
from pathlib import Path

import pytest
from handmade import COMPUTE, MAIN, Sketch

import tracekit

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
US = 1000


def test_every_cause_in_one_step():
    """100 us of compute, then each thing in turn; sums by hand."""
    job = Sketch()
    rank = job.process()
    rank.range("step", -60 * US, 2000 * US, thread=MAIN)
    rank.kernel(0, 100 * US, called=-50 * US)
    # The host waits for the kernel, and launches a copy 30 us after that.
    rank.call("cudaStreamSynchronize", -40 * US, 110 * US)
    rank.copy(145 * US, 165 * US, bytes=1000, pageable=True, called=(138 * US, 142 * US), call="cudaMemcpyAsync")
    # It is back in time with the next kernel, which is after another stream's.
    rank.kernel(168 * US, 200 * US, called=147 * US)
    rank.kernel(300 * US, 400 * US, called=150 * US)
    # Then it allocates.
    rank.call("cudaMalloc", 420 * US, 480 * US)
    rank.kernel(500 * US, 600 * US, called=(490 * US, 495 * US))
    rank.kernel(700 * US, 800 * US)
    (step,) = tracekit.analyze(job.timeline()).ranks[0].steps
    assert step.exposed_copy_by_cause == {"pageable": 20 * US}
    assert step.idle_by_cause == {
        "sync_call": 45 * US,
        "launch_latency": 3 * US,
        "dependency": 100 * US,
        "allocator": 60 * US,
        "host_other": 40 * US,
    }
    assert step.account.idle_ns == 248 * US


def test_without_steps_the_bubbles_of_the_whole_capture_are_told():
    job = Sketch()
    rank = job.process()
    rank.kernel(0, 100 * US, called=-50 * US)
    rank.copy(100 * US, 120 * US, stream=COMPUTE, called=-40 * US)
    rank.kernel(150 * US, 200 * US, called=(140 * US, 144 * US))
    found = tracekit.analyze(job.timeline())
    assert found.ranks[0].steps == ()
    assert found.ranks[0].totals.idle_ns == 30 * US


@cache
def analysis(name):
    captures = json.loads((SAMPLES / f"{name}.expected.json").read_text())["captures"]
    return tracekit.analyze(tracekit.open(*(SAMPLES / path for path in captures)))


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_no_unknown_causes_worth_a_percent(name):
    for rank in analysis(name).ranks:
        for step in rank.steps:
            assert sum(step.idle_by_cause.values()) == step.account.idle_ns
            assert sum(step.exposed_copy_by_cause.values()) == step.account.exposed_copy_ns
            unknown = step.idle_by_cause.get("unknown", 0) + step.exposed_copy_by_cause.get("unknown", 0)
            assert unknown < 0.01 * step.account.wall_ns


@pytest.mark.parametrize(
    ("name", "cause", "least"),
    [("launch_bound", "host_other", 0.7), ("data_stall", "data_loading", 0.04), ("gc_pauses", "host_other", 0.06)],
)
def test_samples_idle_for_the_reason_that_was_planted(name, cause, least):
    found = analysis(name)
    steps = [s for rank in found.ranks for s in rank.steps if s.step in found.steady.steps]
    wall = sum(s.account.wall_ns for s in steps)
    assert sum(s.idle_by_cause.get(cause, 0) for s in steps) >= least * wall
