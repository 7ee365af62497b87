"""Steps by the period of the main stream, where no range marks them."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from handmade import Sketch

import tracekit
from tracekit import Options

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FORWARD = ["embedding_kernel", "gemm_qkv", "flash_fwd_kernel", "gemm_mlp", "softmax_loss_kernel"]
BACKWARD = ["gemm_mlp_wgrad", "flash_bwd_kernel", "layer_norm_backward_kernel"]
OPTIMIZER = ["multi_tensor_apply_kernel<L2Norm>", "multi_tensor_apply_kernel<AdamFunctor>"]
STEP = [*FORWARD, *BACKWARD, *OPTIMIZER]


def run(*ranks, **options):
    """Analyze ranks, each given as the names (or names and sizes) of the kernels of its main stream, in order."""
    job = Sketch()
    for kernels in ranks:
        rank = job.process()
        for i, kernel in enumerate(kernels):
            name, grid = kernel if isinstance(kernel, tuple) else (kernel, 8)
            rank.kernel(100 * i + 50, 100 * i + 140, called=100 * i, name=name, grid=grid)
        rank.comm(20, 60, called=5)
    return tracekit.analyze(job.timeline(), Options(rules=False, **options))


def starts(found, rank=0):
    return [step.start_ns for step in found.ranks[rank].steps]


def test_a_loop_has_steps_from_kernel_to_kernel():
    found = run(STEP * 5)
    (rank,) = found.ranks
    assert starts(found) == [1000 * k + 50 for k in range(5)]
    assert [step.account.wall_ns for step in rank.steps] == [1000, 1000, 1000, 1000, 990]
    assert [step.followed for step in rank.steps] == [True] * 4 + [False]
    assert (rank.step_source, rank.step_confidence) == ("period", 0.9)
    assert any("period" in note for note in found.captures[0].notes)


def test_what_comes_before_the_loop_is_in_no_step():
    assert starts(run(["fill", "normal_kernel", "fill"] + STEP * 6)) == [1000 * k + 350 for k in range(6)]


def test_a_step_that_is_not_whole_is_none_but_ends_the_one_before():
    found = run(STEP * 4 + STEP[:3])
    assert len(starts(found)) == 4
    assert all(step.followed for step in found.ranks[0].steps)


def test_a_capture_that_begins_within_a_step():
    """GIVEN a capture from the backward pass on, THEN steps begin behind the optimizer."""
    assert starts(run(STEP[6:] + STEP * 4)) == [1000 * k + 450 for k in range(4)]


def test_what_follows_the_optimizer_shortly_is_of_its_step():
    """GIVEN a loop that clears its gradients last, and a capture that begins with a step."""
    step = [*FORWARD * 4, *BACKWARD * 4, *OPTIMIZER, "fill_zero"]
    assert starts(run(step * 4)) == [100 * len(step) * k + 50 for k in range(4)]


def test_a_step_of_microbatches_is_one_step():
    step = [*(FORWARD + BACKWARD) * 4, *OPTIMIZER]
    assert starts(run(step * 4)) == [3400 * k + 50 for k in range(4)]


def test_kernels_that_come_now_and_then_do_not_hide_the_period():
    """GIVEN a short kernel that logs something in every other step."""
    job = Sketch()
    rank = job.process()
    names = [name for k in range(6) for name in STEP + ["log_kernel"] * (k % 2)]
    for i, name in enumerate(names):
        rank.kernel(100 * i + 50, 100 * i + (51 if name == "log_kernel" else 140), called=100 * i, name=name)
    found = tracekit.analyze(job.timeline(), Options(rules=False))
    expected = [100 * i + 50 for i, name in enumerate(names) if name == STEP[0]]
    assert starts(found) == expected


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(["gemm_wgrad"] * 100, id="one kernel again and again"),
        pytest.param(["gemm_a", "gemm_b_wgrad"] * 50, id="two kernels again and again"),
        pytest.param(FORWARD * 20, id="inference"),
        pytest.param(STEP * 2, id="two steps are too few"),
        pytest.param(STEP * 3 + [f"other_{i}" for i in range(60)], id="most of the capture does not repeat"),
        pytest.param([(name, 8 * k) for k in range(1, 6) for name in STEP], id="a benchmark of changing sizes"),
        pytest.param([f"gemm_{i}_wgrad" for i in range(60)], id="nothing repeats"),
    ],
)
def test_what_is_no_training_loop_has_no_steps(kernels):
    found = run(kernels)
    assert starts(found) == []
    assert (found.ranks[0].step_source, found.ranks[0].step_confidence) == (None, None)


def test_a_backward_pass_counts_where_ranks_communicate():
    """GIVEN forward and backward without an optimizer that has a name, with a collective and without any."""
    loop = (FORWARD + BACKWARD) * 5
    assert len(starts(run(loop))) == 5
    job = Sketch()
    rank = job.process()
    for i, name in enumerate(loop):
        rank.kernel(100 * i + 50, 100 * i + 140, called=100 * i, name=name)
    assert starts(tracekit.analyze(job.timeline(), Options(rules=False))) == []


def test_ranges_go_before_the_period():
    job = Sketch()
    rank = job.process()
    for i, name in enumerate(STEP * 4):
        rank.kernel(100 * i + 50, 100 * i + 140, called=100 * i, name=name)
    rank.range("step 7", 0, 1500)
    rank.range("step 8", 1500, 4000)
    found = tracekit.analyze(job.timeline(), Options(rules=False)).ranks[0]
    assert ([step.step for step in found.steps], found.step_confidence) == ([7, 8], None)


def test_ranks_that_repeat_differently_have_no_steps():
    """GIVEN a rank whose period is longer than the other's, THEN neither is taken for a step."""
    found = run(STEP * 6, [*(FORWARD + BACKWARD) * 2, *OPTIMIZER] * 3)
    assert (starts(found), starts(found, 1)) == ([], [])
    assert found.captures[0].notes == ()


def test_a_marker_that_is_asked_for_is_not_replaced():
    with pytest.raises(tracekit.errors.UsageError, match="no NVTX range"):
        run(STEP * 5, step_marker="epoch")


@pytest.mark.parametrize(
    "name", ["ddp", "straggler_4ranks", "zero3_no_prefetch", "data_stall", "fsdp2_cuda_graph", "recompute", "zero1"]
)
def test_samples_without_nvtx_have_the_same_steps(name, tmp_path):
    path = shutil.copyfile(SAMPLES / f"{name}.sqlite", tmp_path / "bare.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM NVTX_EVENTS")
    db.close()
    found = tracekit.analyze(tracekit.open(path), Options(rules=False))
    true = json.loads((SAMPLES / f"{name}.expected.json").read_text())["ranks"]
    for rank, expected in zip(found.ranks, true.values(), strict=True):
        assert rank.step_source == "period"
        assert [(s.start_ns, s.end_ns) for s in rank.steps] == [(s["start_ns"], s["end_ns"]) for s in expected["steps"]]


def test_samples_whose_inputs_differ_in_length_have_none(tmp_path):
    path = shutil.copyfile(SAMPLES / "sequence_length.sqlite", tmp_path / "bare.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM NVTX_EVENTS")
    db.close()
    assert tracekit.analyze(tracekit.open(path), Options(rules=False)).steady is None
