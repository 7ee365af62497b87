"""With one seed every strategy trains the same model: the losses of one process, step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trainer_jobs as jobs

pytestmark = pytest.mark.torch

STEPS = ["--device", "cpu", "--steps", "5", "--seed", "7"]
TWO_RANKS = {
    "ddp": ["--strategy", "ddp"],
    "zero1": ["--strategy", "zero1"],
    "fsdp1": ["--strategy", "fsdp1"],
    "fsdp1 grad-op": ["--strategy", "fsdp1", "--fsdp1-sharding", "grad-op"],
    "fsdp1 wrapped by size": ["--strategy", "fsdp1", "--wrap", "size:100000", "--backward-prefetch", "post"],
    "fsdp1 flat": ["--strategy", "fsdp1", "--no-use-orig-params", "--backward-prefetch", "none"],
    "fsdp2": ["--strategy", "fsdp2"],
    "fsdp2 never resharded": ["--strategy", "fsdp2", "--reshard", "never"],
    "fsdp2 prefetching, recomputing": ["--strategy", "fsdp2", "--prefetch", "2", "--activation-checkpointing"],
    "hsdp": ["--strategy", "hsdp"],
}
FOUR_RANKS = {
    "hsdp": ["--strategy", "hsdp", "--batch", "2"],
    "fsdp1 hybrid": ["--strategy", "fsdp1", "--fsdp1-sharding", "hybrid", "--batch", "2"],
    "fsdp2 resharded to two": ["--strategy", "fsdp2", "--reshard", "2", "--batch", "2"],
}
ACCUMULATED = ["--batch", "2", "--grad-accumulation", "2", "--clip", "0.5"]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    path = tmp_path_factory.mktemp("one") / "losses.json"
    single = [*STEPS, "--strategy", "single", "--batch", "8"]
    long = ["--device", "cpu", "--steps", "30", "--strategy", "single", "--batch", "8"]
    accumulated = [*STEPS, "--strategy", "single", "--batch", "4", "--grad-accumulation", "2", "--clip", "0.5"]
    plain, falling, clipped = jobs.train_many([single, long, accumulated], 1, path)
    return {"plain": plain["losses"], "falling": falling["losses"], "accumulated": clipped["losses"]}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    path = tmp_path_factory.mktemp("two") / "losses.json"
    accumulated = [[*flags, *ACCUMULATED, *more] for flags, more in (
        (TWO_RANKS["fsdp2"], []), (TWO_RANKS["fsdp2"], ["--no-defer-reduction"]), (TWO_RANKS["fsdp1"], []),
        (TWO_RANKS["ddp"], []), (TWO_RANKS["ddp"], ["--no-defer-reduction"]),
    )]  # fmt: skip
    runs = [[*STEPS, *flags] for flags in [*TWO_RANKS.values(), *accumulated]]
    results = [result["losses"] for result in jobs.train_many(runs, 2, path)]
    return dict(zip([*TWO_RANKS, *(f"accumulated {i}" for i in range(len(accumulated)))], results, strict=True))


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    path = tmp_path_factory.mktemp("four") / "losses.json"
    results = jobs.train_many([[*STEPS, *flags] for flags in FOUR_RANKS.values()], 4, path)
    return dict(zip(FOUR_RANKS, [result["losses"] for result in results], strict=True))


def test_the_loss_of_one_process_starts_at_the_uniform_guess_and_falls(one_process: dict[str, list[float]]) -> None:
    losses = one_process["falling"]
    assert losses[0] == pytest.approx(6.931, abs=0.05)  # ln 1024
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_have_the_losses_of_one_process(
    name: str, two_ranks: dict[str, list[float]], one_process: dict[str, list[float]]
) -> None:
    assert two_ranks[name] == pytest.approx(one_process["plain"], abs=1e-4)
    assert two_ranks[name][-1] < two_ranks[name][0]


@pytest.mark.parametrize("name", [f"accumulated {i}" for i in range(5)])
def test_accumulated_and_clipped_too(
    name: str, two_ranks: dict[str, list[float]], one_process: dict[str, list[float]]
) -> None:
    assert two_ranks[name] == pytest.approx(one_process["accumulated"], abs=1e-4)


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks_too(name: str, four_ranks: dict[str, list[float]], one_process: dict[str, list[float]]) -> None:
    assert four_ranks[name] == pytest.approx(one_process["plain"], abs=1e-4)


@pytest.mark.parametrize("strategy", ["zero1-ds", "zero2", "zero3"])
def test_deepspeed_too(
    strategy: str, deepspeed_python: str, one_process: dict[str, list[float]], tmp_path: Path
) -> None:
    results = jobs.train_many([[*STEPS, "--strategy", strategy]], 2, tmp_path / "losses.json", deepspeed_python)
    assert results[0]["losses"] == pytest.approx(one_process["plain"], abs=1e-4)


def test_low_precision_and_shards_drawn_apart_still_learn(tmp_path: Path) -> None:
    runs = [
        ["--device", "cpu", "--steps", "12", "--bf16", "--strategy", strategy, *more]
        for strategy, more in (
            ("fsdp2", []),
            ("fsdp1", []),
            ("ddp", []),
            ("fsdp2", ["--meta-init"]),
            ("ddp", ["--tied"]),
        )
    ]
    for flags, result in zip(runs, jobs.train_many(runs, 2, tmp_path / "losses.json"), strict=True):
        assert sum(result["losses"][-3:]) / 3 < result["losses"][0] - 0.05, flags


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_layers_train_alike(tmp_path: Path) -> None:
    small = ["--device", "cpu", "--steps", "3", "--layers", "1", "--dim", "32", "--heads", "2", "--hidden", "32"]
    runs = [[*small, "--strategy", "fsdp2", *more] for more in ([], ["--compile"])]
    eager, compiled = jobs.train_many(runs, 2, tmp_path / "losses.json")
    assert compiled["losses"] == pytest.approx(eager["losses"], abs=1e-4)
    assert [row[1:5] for row in compiled["last_step"]] == [row[1:5] for row in eager["last_step"]]
