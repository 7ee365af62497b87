"""The strategy of each sample is what its program laid out; volumes by hand from the model's size."""

import json
from pathlib import Path

import pytest

import tracekit
from tracekit.metrics.run import ModelFacts, RunFacts
from tracekit.metrics.sharding import sharding
from tracekit.metrics.traffic import AFTER, BACKWARD, FORWARD, Flow, Traffic
from tracekit.options import Options
from tracekit.report.json import render_json

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
LAID_OUT = {
    "ddp.sqlite": ("DDP", 1, 4),
    "launch_bound.sqlite": ("DDP", 1, 2),
    "zero1.sqlite": ("ZeRO-1", 4, 1),
    "zero2.sqlite": ("ZeRO-2 / SHARD_GRAD_OP", 4, 1),
    "zero3_no_prefetch.sqlite": ("ZeRO-3 / FSDP", 4, 1),
    "fsdp2_nsys_2022.sqlite": ("ZeRO-3 / FSDP", 2, 1),
    "healthy_8ranks.sqlite": ("ZeRO-3 / FSDP", 8, 1),
    "slow_link": ("HSDP", 2, 2),
    "straggler_32ranks_4nodes": ("HSDP", 8, 4),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_strategy_of_samples(name):
    found = tracekit.analyze(tracekit.open(SAMPLES / name)).sharding
    assert (found.strategy, found.shards, found.replicas) == LAID_OUT[name]
    assert found.confidence == 0.9


def test_a_job_that_nobody_annotated_is_recognised_with_less_confidence():
    found = tracekit.analyze(tracekit.open(SAMPLES / "fsdp2_profiler_steps.sqlite")).sharding
    assert (found.strategy, found.confidence) == ("ZeRO-3 / FSDP", 0.6)
    assert found.bytes_per_step == {"all_gather": None, "reduce_scatter": None}
    assert found.expected_bytes_per_step is None


def test_volumes_of_a_sample_by_hand():
    # 4 layers of 12 x 2,048^2 and a table of 8,192 x 2,048; gathers in bf16, the root unit stays whole, gradients are
    # reduced in fp32.
    layers, root = 4 * 12 * 2_048**2, 8_192 * 2_048
    found = tracekit.analyze(tracekit.open(SAMPLES / "fsdp2_overlapped.sqlite")).sharding
    assert found.parameters == layers + root
    assert found.bytes_per_step == {"all_gather": 2 * (2 * layers + root), "reduce_scatter": 4 * (layers + root)}
    assert found.expected_bytes_per_step == {
        "all_gather": 2 * 2 * (layers + root),
        "reduce_scatter": 4 * (layers + root),
    }
    said = {row.op: row.explanation for row in found.volumes}
    assert "stay gathered" in said["all_gather"]
    assert "fp32" in said["reduce_scatter"]


def flow(op, part, count, size=1_000_000, communicator="0xa"):
    return Flow(communicator=communicator, op=op, part=part, count=count, bytes=count * size, weight=count * size)


def recognised(*flows, world=8, steps=4, **facts):
    return sharding(
        Traffic(flows=flows, by_bytes=True, phases_known=True, steps=steps),
        RunFacts(world_size=world, **facts),
        {"0xa": 4, "0xb": 2},
    )


@pytest.mark.parametrize(
    ("flows", "strategy"),
    [
        ([flow("all_reduce", BACKWARD, 5)], "DDP"),
        ([flow("all_reduce", BACKWARD, 5), flow("broadcast", AFTER, 5)], "ZeRO-1"),
        ([flow("all_reduce", BACKWARD, 5), flow("all_gather", AFTER, 5)], "ZeRO-1"),
        ([flow("reduce_scatter", BACKWARD, 5), flow("all_gather", AFTER, 5)], "ZeRO-2 / SHARD_GRAD_OP"),
        ([flow("all_gather", FORWARD, 5), flow("reduce_scatter", BACKWARD, 5)], "ZeRO-2 / SHARD_GRAD_OP"),
        (
            [flow("all_gather", FORWARD, 5), flow("all_gather", BACKWARD, 4), flow("reduce_scatter", BACKWARD, 5)],
            "ZeRO-3 / FSDP",
        ),
        (
            [
                flow("all_gather", FORWARD, 5),
                flow("all_gather", BACKWARD, 4),
                flow("reduce_scatter", BACKWARD, 5),
                flow("all_reduce", BACKWARD, 5, 250_000, "0xb"),
            ],
            "HSDP",
        ),
        # Among the replicas only at the last of three microbatches.
        (
            [
                flow("all_gather", FORWARD, 15),
                flow("all_gather", BACKWARD, 12),
                flow("reduce_scatter", BACKWARD, 15),
                flow("all_reduce", BACKWARD, 5, 250_000, "0xb"),
            ],
            "HSDP",
        ),
        # Tiny all-reduces in a group of their own, as many as there are scatters: norms by unit.
        (
            [
                flow("all_gather", FORWARD, 5),
                flow("all_gather", BACKWARD, 4),
                flow("reduce_scatter", BACKWARD, 5),
                flow("all_reduce", AFTER, 5, 4, "0xb"),
            ],
            "ZeRO-3 / FSDP",
        ),
        # A norm of gradients and a loss: two tiny all-reduces in the same group are no replicas.
        (
            [
                flow("all_gather", FORWARD, 5),
                flow("all_gather", BACKWARD, 4),
                flow("reduce_scatter", BACKWARD, 5),
                flow("all_reduce", AFTER, 2, 4),
            ],
            "ZeRO-3 / FSDP",
        ),
        # Tensor parallelism: activations are reduced in forward.
        ([flow("all_reduce", FORWARD, 10), flow("all_reduce", BACKWARD, 15)], "undecided"),
        ([flow("all_gather", FORWARD, 5)], "undecided"),
        ([flow("reduce_scatter", BACKWARD, 5)], "undecided"),
        ([flow("send_recv", FORWARD, 5)], "undecided"),
        ([], "undecided"),
    ],
)
def test_patterns(flows, strategy):
    found = recognised(*flows, accumulation=3)
    assert found.strategy == strategy
    assert found.evidence
    assert (found.confidence is None) == (strategy == "undecided")


def test_one_gpu_without_communication_is_not_sharded():
    assert recognised(world=1).strategy == "none"


def test_without_steps_nothing_is_said():
    assert recognised(flow("all_reduce", FORWARD, 73), steps=0).strategy == "undecided"


def test_a_mark_that_says_otherwise_is_named():
    found = recognised(flow("all_reduce", BACKWARD, 5), strategy="fsdp2")
    assert found.strategy == "DDP"
    assert found.confidence == 0.3
    assert "the trainer's mark says fsdp2" in found.evidence


MODEL = ModelFacts(source="option", parameters=1_000_000, multiplied=1_000_000)


@pytest.mark.parametrize(
    ("gathered", "scattered", "accumulation", "said"),
    [
        (4_000_000, 2_000_000, 1, {}),
        (6_000_000, 2_000_000, 1, {"all_gather": "gathered 3.0 times"}),
        (4_040_000, 2_000_000, 1, {}),
        (4_200_000, 2_100_000, 1, {"all_gather": "padding", "reduce_scatter": "padding"}),
        (3_000_000, 4_000_000, 1, {"all_gather": "stay gathered", "reduce_scatter": "fp32"}),
        (16_000_000, 2_000_000, 4, {"reduce_scatter": "reduced once"}),
        (16_000_000, 8_000_000, 4, {}),
    ],
)
def test_deviations_are_explained(gathered, scattered, accumulation, said):
    found = recognised(
        flow("all_gather", FORWARD, 1, gathered / 2),
        flow("all_gather", BACKWARD, 1, gathered / 2),
        flow("reduce_scatter", BACKWARD, 1, scattered),
        model=MODEL,
        dtype="bfloat16",
        accumulation=accumulation,
    )
    explained = {row.op: row.explanation for row in found.volumes if row.explanation}
    assert explained.keys() == said.keys()
    for op, words in said.items():
        assert words in explained[op]


def test_options_stand_in_for_the_mark():
    options = Options(model=ModelFacts(source="option", parameters=123_456_789, multiplied=123_456_789))
    found = tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"), options).sharding
    assert (found.parameters, found.parameters_source) == (123_456_789, "option")


def test_json():
    document = json.loads(render_json(tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"))))
    assert document["sharding"]["strategy"] == "DDP"
    assert document["sharding"]["bytes_per_step"] == {"all_reduce": 4 * (3 * 12 * 2_048**2 + 8_192 * 2_048)}
    assert "sharding" not in document["not_examined"]
    bare = json.loads(render_json(tracekit.analyze(tracekit.open(SAMPLES / "ddp.sqlite"), Options(rules=False))))
    assert bare["sharding"] is None
    assert "sharding" in bare["not_examined"]
