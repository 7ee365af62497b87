"""MFU and its like against hand calculation; when they are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import Sketch

import tracekit
from tracekit.metrics.efficiency import efficiency
from tracekit.metrics.run import ModelFacts, RunFacts, facts_of_shape, run_facts
from tracekit.options import Options
from tracekit.results import Account, Steady
from tracekit.theory.gpus import gpu_named
from tracekit.theory.shapes import model_named

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
ACCOUNT = Account(
    wall_ns=10**9,
    compute_ns=10**9,
    exposed_comm_ns=0,
    exposed_copy_ns=0,
    idle_ns=0,
    comm_ns=0,
    overlapped_comm_ns=0,
)
LLAMA = facts_of_shape(model_named("llama-3.1-8b"))


def used(tokens_per_rank, *, seconds=1.0, names=(), gpu="H100", **facts):
    facts = {"model": LLAMA, "sequence": 8_192, "world_size": 8} | facts
    steady = Steady(
        steps=(1,),
        left_out=(),
        step_time_ns=round(seconds * 1e9),
        step_time_p95_ns=round(seconds * 1e9),
        account=ACCOUNT,
    )
    run = RunFacts(tokens_per_rank=tokens_per_rank, **facts)
    return efficiency((), steady, run, names, gpu_named(gpu) if gpu else None)


@pytest.mark.parametrize(("tokens_per_s", "mfu"), [(5_762, 33.7), (6_667, 39.0)])
def test_as_torchtitan_prints_it(tokens_per_s, mfu):
    found = used(tokens_per_s)
    assert 100 * found.mfu == pytest.approx(mfu, abs=0.06)
    assert found.tokens_per_s == 8 * tokens_per_s
    assert "8,192" in found.formula or "8192" in found.formula
    assert found.reason is None


def test_hfu_counts_recomputation():
    assert used(5_762).hfu is None
    assert used(5_762, checkpointing=False).hfu == used(5_762).mfu
    assert used(5_762, checkpointing=True).hfu == pytest.approx(used(5_762).mfu * 4 / 3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": None}, "model's size"),
        ({"model": ModelFacts(source="mark", parameters=10**9, multiplied=None)}, "tied"),
        ({"tokens_per_rank": None}, "tokens"),
        ({"gpu": None}, "peak"),
        ({"names": ("nvjet_e4m3_gemm", "nvjet_bf16_gemm")}, "fp8"),
        ({"tokens_per_rank": 1_000_000}, "of the peak"),
    ],
)
def test_refused_with_the_reason(changed, reason):
    found = used(**({"tokens_per_rank": 5_762} | changed))
    assert found.mfu is None
    assert found.hfu is None
    assert found.formula is None
    assert reason in found.reason


def test_without_steps_nothing_is_said():
    found = efficiency((), None, RunFacts(model=LLAMA, tokens_per_rank=1), (), gpu_named("H100"))
    assert (found.mfu, found.tokens_per_s, found.bound_by) == (None, None, None)
    assert "no steps" in found.reason


def test_tokens_of_a_sample():
    # Batch 4 of 4,096 tokens on each of 4 ranks.
    analysis = tracekit.analyze(tracekit.open(SAMPLES / "fsdp2_overlapped.sqlite"))
    assert analysis.efficiency.tokens_per_s == pytest.approx(4 * 4 * 4_096 / (analysis.steady.step_time_ns / 1e9))
    assert analysis.efficiency.bound_by == "compute"


def test_tokens_that_the_user_gives_are_of_the_whole_job():
    analysis = tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"), Options(tokens_per_step=4_000))
    assert analysis.efficiency.tokens_per_s == pytest.approx(4_000 / (analysis.steady.step_time_ns / 1e9))


def test_launches_bound_a_job_of_small_kernels():
    analysis = tracekit.analyze(tracekit.open(SAMPLES / "launch_bound.sqlite"))
    assert analysis.efficiency.bound_by == "launch"


def marked(*texts):
    timeline = tracekit.open(SAMPLES / "ddp.sqlite")
    process = replace(timeline.processes[0], marks=tuple(("tracekit", text) for text in texts))
    return run_facts(replace(timeline, processes=(process,), ranks=()))


def test_the_trainers_mark():
    facts = marked(
        '{"rank": 0, "world_size": 8, "strategy": "fsdp2", "batch": 2, "seq": 4096, "grad_accumulation": 3,'
        ' "dtype": "bfloat16", "activation_checkpointing": true, "model": {"layers": 32, "dim": 4096, "heads": 32,'
        ' "kv_heads": 32, "hidden": 11008, "vocab": 32000, "tied": false}}'
    )
    assert facts.tokens_per_rank == 2 * 4096 * 3
    assert facts.model.parameters == 6_738_415_616
    assert facts.model.multiplied == 6_738_415_616 - 32_000 * 4_096
    assert (facts.world_size, facts.checkpointing, facts.dtype) == (8, True, "bfloat16")


def test_later_marks_do_not_take_back_what_an_earlier_one_said():
    first = '{"rank": 0, "batch": 2, "sequence_length": 64, "activation_checkpointing": true}'
    assert marked(first, '{"rank": 1}', '{"rank": 2, "activation_checkpointing": false}') == marked(first)
    assert marked(first).checkpointing is True


def described(**model):
    described = {"layers": 2, "hidden": 8, "heads": 1, "vocab": 10, "parameters": 2_000} | model
    return marked(json.dumps({"rank": 0, "model": described})).model


def test_parameters_that_a_token_goes_through():
    assert described().multiplied is None
    assert described(tied=True).multiplied == 2_000
    assert described(tied=False).multiplied == 2_000 - 10 * 8
    # Of a mixture of experts, a token sees a part.
    assert described(tied=True, active_parameters=900).multiplied == 900
    assert described(tied=True, active_parameters=9_000).multiplied is None


def test_frozen_parameters_have_no_gradients_to_count():
    model = described(tied=True, trained_parameters=500)
    assert model.trained == 500
    assert "frozen" in used(5_762, model=model).reason


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[1]",
        "{}",
        '{"rank": 0, "batch": "4", "seq": -1, "world_size": true, "model": 7}',
        '{"rank": 0, "batch": 1e99, "dtype": 3, "model": {"layers": "x"}}',
        "[" * 100_000,
    ],
)
def test_marks_that_say_nothing(text):
    assert marked(text) == RunFacts()


def test_idle_time_by_its_cause():
    """A kernel that was launched in time and waits 300 us is not the host's: bound by what it waits for."""
    made = Sketch()
    rank = made.process()
    for step in range(3):
        at = 1_000_000 * (step + 1)
        rank.range(f"step {step}", at - 30_000, at + 900_000)
        rank.kernel(at, at + 100_000, called=at - 25_000)
        rank.kernel(at + 900_000, at + 1_000_000, called=at - 15_000)
    found = tracekit.analyze(made.timeline()).efficiency
    assert found.bound_by == "dependency"
    assert found.shares["dependency"] == pytest.approx(0.8, abs=0.001)
    assert sum(found.shares.values()) == pytest.approx(1)
