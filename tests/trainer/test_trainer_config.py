"""The command line: what it accepts, and what it refuses in one line."""

from __future__ import annotations

import pytest

from instrumented_trainer.config import PRESETS, check_world, parse, shard_size
from instrumented_trainer.errors import TrainerError

PUBLISHED_PARAMETERS = {"llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-70b": 68_976_648_192}
"""Llama 2's checkpoints, by their own index files."""


@pytest.mark.parametrize(("model", "parameters"), PUBLISHED_PARAMETERS.items())
def test_presets_have_the_published_number_of_parameters(model: str, parameters: int) -> None:
    assert PRESETS[model].parameters == parameters


def test_every_preset_divides() -> None:
    for model in PRESETS.values():
        model.check()


def test_flops_of_a_token_by_hand() -> None:
    model = parse(["--layers", "1", "--dim", "4", "--heads", "2", "--hidden", "8", "--vocab", "10", "--seq", "3"]).model
    # layer: qkv 4·12, out 4·4, mlp 3·4·8, norms 2·4 = 168; head 10·4 and norm 4; no look-up table: 212
    assert model.layer_parameters == 168
    assert model.parameters == 168 + 2 * 40 + 4
    assert model.flops_per_token() == 6 * 212 + 12 * 1 * 4 * 3


def test_the_default_is_the_tiny_model_under_fsdp2() -> None:
    config = parse([])
    assert (config.model.name, config.strategy, config.wrap_size) == ("tiny", "fsdp2", None)


def test_sizes_change_a_preset() -> None:
    model = parse(["--model", "llama-7b", "--layers", "2", "--tied"]).model
    assert (model.layers, model.dim, model.tied) == (2, 4096, True)


REFUSED = {
    "--stratgy ddp": "unrecognized arguments",
    "--strategy fsdp3": "invalid choice",
    "--model huge": "invalid choice",
    "--steps 0": "--steps must be at least 1",
    "--steps many": "invalid int value",
    "--lr nan": "--lr must be a positive number",
    "--timeout inf": "--timeout must be a positive number",
    "--fault-step -1": "--fault-step must not be negative",
    "--dim 100 --heads 3": "does not divide into 3 heads",
    "--heads 4 --kv-heads 3": "is not a multiple of --kv-heads 3",
    "--layers 0": "--layers must be at least 1",
    "--reshard sometimes": "none of auto, always, never",
    "--strategy fsdp1 --wrap size:x": "neither block nor size:N",
    "--steps 5 --capture-after 5": "leaves none",
    "--strategy ddp --prefetch 1": "--prefetch is FSDP2's",
    "--strategy fsdp1 --reshard never": "--reshard is FSDP2's",
    "--strategy hsdp --reshard 2": "one-dimensional mesh",
    "--strategy ddp --meta-init": "--meta-init needs sharding",
    "--strategy fsdp2 --meta-init --tied": "two storages",
    "--strategy ddp --cpu-offload": "cannot offload",
    "--strategy fsdp2 --cpu-offload --device cpu": "nothing to offload",
    "--strategy fsdp1 --cpu-offload --grad-accumulation 2 --no-defer-reduction": "overwrites reduced gradients",
    "--strategy fsdp1 --cpu-offload --clip 1": "NCCL cannot reduce",
    "--strategy fsdp1 --compile --no-use-orig-params": "needs --use-orig-params",
    "--strategy fsdp1 --tied --wrap size:10": "tied weights in two units",
    "--strategy zero3 --compile": "a compiled layer does not run",
    "--strategy zero2 --no-defer-reduction": "DeepSpeed decides itself",
    "--fault hang --dry-world 4": "runs no step",
}


@pytest.mark.parametrize(("flags", "reason"), REFUSED.items())
def test_what_cannot_work_is_refused_with_its_reason_in_one_line(flags: str, reason: str) -> None:
    with pytest.raises(TrainerError) as refused:
        parse(flags.split())
    assert reason in refused.value.message
    assert "\n" not in refused.value.line()


WRONG_WORLDS = {
    ("--strategy single", 2): "for one process",
    ("--strategy hsdp", 7): "cannot split 7 ranks into two shard groups",
    ("--strategy hsdp --shard-size 3", 8): "shard groups of 3",
    ("--strategy fsdp1 --fsdp1-sharding hybrid --shard-size 1", 4): "shard groups of 1",
    ("--strategy fsdp1 --fsdp1-sharding hybrid", 5): "cannot split 5 ranks",
    ("--reshard 3", 8): "not a divisor",
    ("--reshard 8", 8): "not a divisor",
    ("--fault hang --fault-rank 2", 2): "does not exist",
    ("--fault reorder", 1): "needs at least two ranks",
    ("--cpu-offload", 2): "needs a GPU",
}


@pytest.mark.parametrize(("flags", "world", "reason"), [(*key, reason) for key, reason in WRONG_WORLDS.items()])
def test_impossible_world_sizes_are_refused(flags: str, world: int, reason: str) -> None:
    config = parse(flags.split())
    with pytest.raises(TrainerError, match=reason):
        check_world(config, world, device="cpu")


@pytest.mark.parametrize(("world", "size"), [(1, 1), (2, 2), (4, 2), (8, 4), (6, 3)])
def test_hsdp_halves_the_ranks(world: int, size: int) -> None:
    assert shard_size(parse(["--strategy", "hsdp"]), world) == size


def test_a_refused_split_lists_those_that_work() -> None:
    with pytest.raises(TrainerError) as refused:
        shard_size(parse(["--strategy", "hsdp", "--shard-size", "4"]), 6)
    assert refused.value.hint == "--shard-size can be 1, 2, 3, 6"
