"""The chain that a step's length hangs on: whole, over the ranks and modules that it should lead over."""

from functools import cache
from pathlib import Path

import pytest

import tracekit

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


@cache
def analysis(name):
    return tracekit.analyze(tracekit.open(SAMPLES / f"{name}.sqlite"))


@pytest.mark.parametrize("name", ["straggler_4ranks", "launch_bound", "ddp", "zero3_no_prefetch", "fsdp2_cuda_graph"])
def test_it_is_as_long_as_the_steps_and_every_way_to_split_it_adds_up(name):
    found = analysis(name)
    path, steps = found.critical_path, found.replay.steps
    windows = [(s.step, s.start_ns, s.end_ns) for rank in found.ranks for s in rank.steps]
    begin = min(start for step, start, _ in windows if step == steps[0])
    end = max(end for step, _, end in windows if step == steps[-1])
    assert path.length_ns == pytest.approx(end - begin, abs=2)
    assert sum(path.by_category.values()) == path.length_ns
    assert sum(path.by_rank.values()) == path.length_ns
    assert sum(ns for _, ns in path.by_module) == path.length_ns
    assert min([*path.by_category.values(), *path.by_rank.values()]) >= 0


def test_it_leads_over_the_straggler():
    path = analysis("straggler_4ranks").critical_path
    assert path.by_rank[2] > 0.95 * path.length_ns
    assert path.by_category["compute"] > 0.9 * path.length_ns


def test_it_leads_over_the_host_of_a_job_that_launches_too_slowly():
    path = analysis("launch_bound").critical_path
    assert path.by_category["host"] > 0.9 * path.length_ns


def test_it_goes_through_layers_and_exposed_gathers():
    """Without prefetch every gather of a layer is on the path, and belongs to that layer."""
    path = analysis("zero3_no_prefetch").critical_path
    names = [name for name, _ in path.by_module[:4]]
    assert sorted(name for name in names if name) == [f"layers.{i}" for i in range(4)]
    assert path.by_category["comm"] > 0.05 * path.length_ns


@pytest.mark.shared
def test_by_hand(shared):
    """GIVEN six times 1.0 ms of compute on the slowest rank and a transfer of 0.1 ms, THEN that is the path.

    Each launch but the first comes 5 us before the GPU is done, as of a host that polls: the path leads over it.
    """
    path = tracekit.analyze(tracekit.open(shared / "cases" / "straggler.sqlite")).critical_path
    polling = 11 * 5_000
    assert path.by_category["host"] == polling
    assert path.by_category["compute"] + path.by_category["comm"] == 6 * (1_000_000 + 100_000) - polling
    assert path.by_rank == {0: 0, 1: 0, 2: 6_600_000, 3: 0}
