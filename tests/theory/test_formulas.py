"""The formulas against the figures that the papers print."""

import pytest

from tracekit.theory.flops import flops_per_token, hardware_factor, utilisation
from tracekit.theory.memory import layer_activations, model_state, output_activations, precision
from tracekit.theory.shapes import model_named
from tracekit.theory.volume import BUS_FACTOR, step_volume

GB = 1e9
ZERO_TABLE_1 = [
    # parameters, GPUs, GB a GPU of stage 1, 2, 3 (ZeRO, table 1, in the paper's rounding)
    (7.5e9, 64, 31.4, 16.6, 1.88),
    (128e9, 64, 536, 284, 32),
    (1e12, 64, 4187, 2218, 250),
]


def state_of(strategy, parameters, shards, **options):
    return model_state(
        strategy,
        trained=round(parameters),
        frozen=0,
        frozen_bytes=0,
        shards=shards,
        each=options.pop("each", precision("bf16")),
        **options,
    )


@pytest.mark.parametrize("row", ZERO_TABLE_1, ids=["7.5B", "128B", "1T"])
def test_model_state_as_zero_prints_it(row):
    parameters, gpus, *expected = row
    for strategy, gigabytes in zip(("ZeRO-1", "ZeRO-2", "ZeRO-3"), expected, strict=True):
        assert state_of(strategy, parameters, gpus).gpu / GB == pytest.approx(gigabytes, rel=0.003)
    assert state_of("DDP", parameters, gpus).gpu == 16 * parameters


@pytest.mark.parametrize(("parameters", "gigabytes"), [(7e9, 112), (70e9, 1120)])
def test_model_state_of_whole_models(parameters, gigabytes):
    assert state_of("DDP", parameters, 1).gpu == gigabytes * GB


@pytest.mark.parametrize("strategy", ["ZeRO-3", "FSDP"])
def test_70_billion_on_64_gpus(strategy):
    assert state_of(strategy, 70e9, 64).gpu == 17_500_000_000


def test_13_billion_without_master_weights():
    state = state_of("DDP", 13e9, 1, each=precision("bf16", master_weights=False))
    assert (state.weights, state.gradients, state.optimizer) == (26 * GB, 26 * GB, 104 * GB)


def test_offloaded_state_is_on_the_host():
    state = state_of("ZeRO-2", 7.5e9, 64, offload="optimizer")
    assert state.gpu == 2 * 7.5 * GB + 2 * 7.5 * GB / 64
    assert state.host == 12 * 7.5 * GB / 64
    assert state_of("FSDP", 7.5e9, 64, offload="all").gpu == 0


KORTHIKANTI = [
    # hidden, layers, batch, GPUs, seconds, MFU, HFU: table 5 of arXiv:2205.05198
    (12_288, 96, 64, 64, 13.75, 51.4, 52.8),
    (20_480, 105, 280, 280, 37.83, 56.0, 57.0),
    (25_600, 128, 512, 512, 71.49, 56.3, 57.0),
]


@pytest.mark.parametrize("row", KORTHIKANTI, ids=["175B", "530B", "1T"])
def test_utilisation_as_korthikanti_prints_it(row):
    hidden, layers, batch, gpus, seconds, mfu, hfu = row
    sequence, vocab = 2_048, 51_200
    multiplied = 12 * layers * hidden**2 + vocab * hidden
    model = batch * sequence * flops_per_token(multiplied, layers, hidden, sequence)
    hardware = model * hardware_factor("selective", hidden=hidden, sequence=sequence)
    assert 100 * utilisation(model, seconds, gpus, 312) == pytest.approx(mfu, abs=0.06)
    assert 100 * utilisation(hardware, seconds, gpus, 312) == pytest.approx(hfu, abs=0.06)


def test_full_recomputation_is_a_third_more():
    assert hardware_factor("full", hidden=12_288, sequence=2_048) == pytest.approx(4 / 3)


@pytest.mark.parametrize(("tokens_per_s", "mfu"), [(5_762, 33.7), (6_667, 39.0)])
def test_utilisation_as_torchtitan_prints_it(tokens_per_s, mfu):
    # Llama 3.1 8B, sequences of 8,192 tokens on H100 (arXiv:2410.06511).
    shape = model_named("llama-3.1-8b")
    flops = flops_per_token(shape.multiplied_parameters, shape.layers, shape.hidden, 8_192)
    assert 100 * utilisation(flops * tokens_per_s, 1, 1, 989) == pytest.approx(mfu, abs=0.06)


def test_activations_of_a_gpt3_layer():
    # Korthikanti et al.: 5as/h is 80 for GPT-3 (a = 96, s = 2,048, h = 12,288), so that 34 + 80 = 114 s·b·h.
    size = {"sequence": 2_048, "batch": 1, "hidden": 12_288, "heads": 96}
    sbh = 2_048 * 12_288
    assert layer_activations(**size, recompute="none", flash=False) == 114 * sbh
    assert layer_activations(**size, recompute="none", flash=True) == 34 * sbh
    assert layer_activations(**size, recompute="selective", flash=False) == 34 * sbh
    assert layer_activations(**size, recompute="full", flash=False) == 2 * sbh
    assert output_activations(sequence=2_048, batch=1, hidden=12_288, vocab=51_200) == 4 * 2_048 * (12_288 + 51_200)


def test_bus_bandwidth_as_nccl_tests_prints_it():
    algbw = 16_777_216 / 121.33e3  # bytes in ns: GB/s
    assert algbw == pytest.approx(138.28, abs=0.01)
    assert algbw * BUS_FACTOR["all_reduce"](8) == pytest.approx(242.00, abs=0.02)


def volume(strategy, **options):
    options = {"shards": 8, "replicas": 1, "accumulation": 1} | options
    moved = step_volume(
        strategy, trained=1_000_000, frozen=0, weight_bytes=2, frozen_bytes=2, gradient_bytes=2, **options
    )
    return sum(item.wire_bytes for item in moved)


@pytest.mark.parametrize(
    ("strategy", "parameters_moved"), [("DDP", 2), ("ZeRO-1", 2), ("ZeRO-2", 2), ("ZeRO-3", 3), ("FSDP", 3)]
)
def test_volume_by_the_papers(strategy, parameters_moved):
    assert volume(strategy) == parameters_moved * 2_000_000 * 7 / 8
    assert volume(strategy, shards=1) == 0


def test_volume_of_hybrid_sharding():
    # 3P in the shard group of 8, and the all-reduce of P/8 over 4 replicas.
    assert volume("HSDP", replicas=4) == 3 * 2_000_000 * 7 / 8 + 2 * 2_000_000 / 8 * 3 / 4


def test_volume_of_accumulation():
    # Gathers twice and reductions once a microbatch where no GPU holds whole gradients.
    assert volume("FSDP", accumulation=4) == 4 * volume("FSDP")
    assert volume("DDP", accumulation=4) == volume("DDP")
    assert volume("ZeRO-2", accumulation=4) == (4 + 1) * 2_000_000 * 7 / 8
