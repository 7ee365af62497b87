"""GPU memory: against the samples' truth, by hand, and against a loop over single events."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tests.nsys_builder import Export, global_pid, small_job
from tracekit.errors import CaptureError
from tracekit.metrics.memory import held_at, live, peak_between
from tracekit.options import Options
from tracekit.report.json import render_json
from tracekit.results import MemoryNeed
from tracekit.theory.gpus import gpu_named
from tracekit.timeline import Allocations, MemoryKind

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
WITH_MEMORY = ("memory_reserved", "memory_churn", "memory_gap", "gathered_again")
TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
GB = 10**9


def sample(name, **options):
    return tracekit.analyze(tracekit.open(SAMPLES / f"{name}.sqlite"), Options(**options))


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_measured_as_the_program_laid_it_out(name):
    true = json.loads((SAMPLES / f"{name}.expected.json").read_text())["memory"]
    found = sample(name).memory
    assert len(found.ranks) == len(true)
    for rank in found.ranks:
        for field, value in true[str(rank.rank)].items():
            assert getattr(rank, field) == pytest.approx(value), field
        assert rank.source == "memory_events"
        assert rank.capacity_bytes == 85_028_765_696


def test_expected_memory_by_hand():
    # 4 layers of 12 x 2,048^2 and a table of 8,192 x 2,048 over 2 ranks, 16 bytes a parameter; two layers in bf16 and
    # one in fp32; 34 bytes a token and unit of width in each layer (fused attention), and what follows the layers.
    parameters, tokens = 4 * 12 * 2_048**2 + 8_192 * 2_048, 2 * 4_096
    need = sample("memory_reserved").memory.expected
    assert need.model_state == 16 * parameters // 2
    assert need.gathered == (2 + 2 + 4) * 12 * 2_048**2
    assert need.activations == 34 * 4 * tokens * 2_048 + 4 * tokens * (2_048 + 8_192)
    # The rest is the root unit, which stays gathered, and what is rounded up to whole pages.
    assert 0 <= sample("memory_reserved").memory.gap_bytes <= 2 * 8_192 * 2_048 + 20 * (2 << 20)


def test_without_memory_events_calls_are_counted_and_bytes_unknown():
    found = sample("allocator_retries").memory
    assert {rank.source for rank in found.ranks} == {"calls"}
    assert found.ranks[0].frees_per_step == pytest.approx(3)
    assert found.ranks[0].allocations_per_step == pytest.approx(2)
    assert found.ranks[0].allocated_bytes_per_step is None
    assert (found.peak_bytes, found.spare_bytes, found.gap_bytes) == (None, None, None)
    assert found.expected is not None


def test_what_the_user_says_of_the_gpu_counts():
    assert sample("memory_reserved", gpu=gpu_named("A100 40GB")).memory.ranks[0].capacity_bytes == 40 * GB


def test_a_sum_with_an_unknown_part_is_unknown():
    need = MemoryNeed(weights=1, gradients=2, optimizer=3, gathered=None, activations=4)
    assert (need.model_state, need.total) == (6, None)


events = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans()), max_size=20)


def allocations(rows, kind=MemoryKind.DEVICE):
    rows = sorted(rows, key=lambda row: row[0])
    return Allocations(
        time=np.array([row[0] for row in rows], np.int64),
        device=np.zeros(len(rows), np.int64),
        bytes=np.array([row[1] for row in rows], np.int64),
        freed=np.array([row[2] for row in rows], np.bool_),
        kind=np.full(len(rows), kind, np.int8),
    )


@given(events, st.integers(-1, 31), st.integers(1, 32))
def test_peaks_against_a_loop(rows, start, length):
    course = live(allocations(rows), 0)
    if not rows:
        assert course is None
        return
    rows = sorted(rows, key=lambda row: row[0])
    held, course_by_loop = 0, []
    for at, size, freed in rows:
        held += -size if freed else size
        course_by_loop.append((at, held))
    before = max(0, -min(held for _, held in course_by_loop))

    def at(t):
        return before + next((held for when, held in reversed(course_by_loop) if when <= t), 0)

    assert held_at(*course, start) == at(start)
    inside = [before + held for when, held in course_by_loop if start <= when < start + length]
    assert peak_between(*course, start, start + length) == max([at(start), *inside])


def test_other_memory_and_unknown_sizes():
    assert live(allocations([(0, 5, False)], MemoryKind.PINNED), 0) is None
    assert live(allocations([(0, 5, False)]), 1) is None
    assert live(allocations([(0, 5, False), (1, -1, False)]), 0) is None


def event(export: Export, start, *, size=8 * GB, freed=0, kind=2, address=0x7000, **columns):
    row = {"start": start, "globalPid": global_pid(4000), "deviceId": 0, "contextId": 1, "address": address}
    row |= {"bytes": size, "memKind": kind, "memoryOperationType": freed}
    export.add(TABLE, **row | columns)


def read(export, tmp_path):
    return tracekit.open(export.write(tmp_path / "report.sqlite", shuffled=3))


def test_reading(tmp_path):
    export = small_job()
    event(export, 500, size=2 * GB)
    event(export, 100, size=5 * GB, address=0x9000)
    event(export, 12_000, size=0, freed=1, address=0x9000)  # the size is that of the allocation
    event(export, 300, size=7 * GB, kind=1)
    event(export, 400, size=1, freed=9)
    timeline = read(export, tmp_path)
    memory = timeline.processes[0].memory
    assert memory.time.tolist() == [100, 300, 500, 12_000]
    assert memory.bytes.tolist() == [5 * GB, 7 * GB, 2 * GB, 5 * GB]
    assert memory.freed.tolist() == [False, False, False, True]
    assert MemoryKind(memory.kind[1]) is MemoryKind.PINNED
    assert "memory" not in timeline.captures[0].lacks
    assert any("neither allocate nor free" in note for note in timeline.captures[0].notes)
    # The last step is cut off; picked, it counts.
    found = tracekit.analyze(timeline, Options(steps=frozenset({1, 2}))).memory
    assert found.peak_bytes == 7 * GB
    assert found.ranks[0].last_bytes == 2 * GB


def test_what_was_there_before_the_capture_is_known_when_it_is_freed(tmp_path):
    export = small_job()
    event(export, 15_000, size=3 * GB, freed=1)
    assert tracekit.analyze(read(export, tmp_path)).memory.peak_bytes == 3 * GB


@pytest.mark.parametrize("missing", ["bytes", "memKind", "memoryOperationType", "deviceId", "address", "globalPid"])
def test_any_column_may_be_missing(tmp_path, missing):
    export = small_job()
    event(export, 500)
    del export.rows[TABLE][0][missing]
    found = tracekit.analyze(read(export, tmp_path)).memory
    assert found.peak_bytes == (8 * GB if missing == "address" else None)


def test_damage_is_no_memory(tmp_path):
    export = small_job()
    event(export, 500, size=1 << 62)
    assert tracekit.analyze(read(export, tmp_path)).memory.peak_bytes is None
    (tmp_path / "b").mkdir()
    event(export, 1 << 62)
    with pytest.raises(CaptureError, match=TABLE):
        read(export, tmp_path / "b")


def test_json():
    document = json.loads(render_json(sample("memory_gap")))["memory"]
    assert document["peak_bytes"] == document["ranks"][0]["peak_bytes"]
    assert document["gap_bytes"] == document["peak_bytes"] - document["expected"]["total"]
    assert json.loads(render_json(sample("memory_gap", rules=False)))["memory"] is None
