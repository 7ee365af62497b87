"""The plan of a step on many ranks, against the formulas and against real runs on two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trainer_jobs as jobs

pytestmark = pytest.mark.torch

SMALL = ["--layers", "2"]
LAYERS, ROOT = 2 * 197_888, 262_272
"""By hand: a tiny layer is 4·128² + 3·128·344 + 2·128, the root 2·1024·128 + 128."""


def planned(tmp_path: Path, *flags: str, world: int = 2, python: str = sys.executable) -> dict[str, Any]:
    path = tmp_path / "plan.json"
    command = [python, "-m", "instrumented_trainer", "--dry-world", str(world), "--json", str(path), *flags]
    done = jobs.run(command, timeout_s=120)
    assert done.status == 0, done.err
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_seventy_billion_parameters_on_64_ranks_within_a_minute_and_a_gigabyte(tmp_path: Path) -> None:
    program = (
        "import resource, subprocess, sys;"
        "status = subprocess.run([sys.executable, '-m', 'instrumented_trainer', *sys.argv[1:]]).returncode;"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print('used', status, used.ru_utime + used.ru_stime, used.ru_maxrss)"  # other work on the machine counts not
    )
    flags = [
        "--model",
        "llama-70b",
        "--strategy",
        "fsdp2",
        "--bf16",
        "--dry-world",
        "64",
        "--json",
        str(tmp_path / "p"),
    ]
    done = jobs.run([sys.executable, "-c", program, *flags], timeout_s=120)
    status, seconds, kilobytes = map(float, done.out.splitlines()[-1].split()[1:])
    assert status == 0
    assert seconds < 60
    assert kilobytes < 1e6
    result = json.loads((tmp_path / "p").read_text())
    assert len(result["collectives"]) == 3 * 80 + 2
    assert result["units"]["layers"]["times_p"] == pytest.approx(3)
    assert result["units"]["root"]["times_p"] == pytest.approx(2)
    # The layer's own numbers: 855,654,400 parameters, gathered in bfloat16 and reduced in float32.
    in_layer_5 = [(c["phase"], c["op"], c["bytes"]) for c in result["collectives"] if c["module"] == "layers.5"]
    assert in_layer_5 == [
        ("forward", "all_gather", 1_711_308_800), ("backward", "all_gather", 1_711_308_800),
        ("backward", "reduce_scatter", 3_422_617_600),
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_layers_move_3p_and_the_root_2p(strategy: str, tmp_path: Path) -> None:
    result = planned(tmp_path, "--strategy", strategy, *SMALL, world=4)
    assert result["units"]["layers"]["wire_elements"] == 3 * LAYERS * 3 / 4
    assert result["units"]["root"]["wire_elements"] == 2 * ROOT * 3 / 4
    assert [row["padding_elements"] for row in result["totals"]] == [0, 0]


def test_hsdp_adds_the_all_reduce_of_the_shards(tmp_path: Path) -> None:
    result = planned(tmp_path, "--strategy", "hsdp", "--shard-size", "4", *SMALL, world=8)
    over_replicas = [c for c in result["collectives"] if c["op"] == "all_reduce"]
    assert sum(c["elements"] for c in over_replicas) == (LAYERS + ROOT) / 4
    assert {(c["group"], c["group_size"]) for c in over_replicas} == {("replicate", 2)}
    assert result["units"]["layers"]["times_p"] == pytest.approx(3)


def test_padding_is_told_apart(tmp_path: Path) -> None:
    result = planned(tmp_path, "--strategy", "fsdp2", *SMALL, world=64)
    gathers = result["totals"][0]
    # FSDP2 pads the first dimension of each parameter: 344 rows of gate and up become 384.
    assert gathers["padding_elements"] == 2 * 2 * 2 * (384 - 344) * 128
    assert gathers["formula_elements"] == 2 * LAYERS + ROOT


@pytest.mark.parametrize(
    ("strategy", "implementation", "paper"), [("zero1", 3, 2), ("zero1-ds", 3, 2), ("zero2", 3, 2)]
)
def test_zero_moves_more_than_the_paper_and_says_why(
    strategy: str, implementation: int, paper: int, tmp_path: Path
) -> None:
    result = planned(tmp_path, "--strategy", strategy, *SMALL, world=4)
    one = (LAYERS + ROOT) * 3 / 4
    assert result["wire_elements"] == implementation * one
    assert result["paper_wire_elements"] == paper * one
    assert "all-reduce" in result["difference"]


def test_a_first_bucket_of_one_mebibyte_then_25(tmp_path: Path) -> None:
    result = planned(tmp_path, "--strategy", "ddp", *SMALL, world=4)
    # From the end: head 131,072 + 128, down and up 44,032 each, gate: past 262,144 elements.
    assert [c["elements"] for c in result["collectives"]] == [131_072 + 128 + 3 * 44_032, 394_752]


TORCH_RUNS = {
    "ddp": ["--strategy", "ddp"],
    "ddp in small buckets": ["--strategy", "ddp", "--bucket-mb", "0.4"],
    "ddp reducing each microbatch": ["--strategy", "ddp", "--grad-accumulation", "2", "--no-defer-reduction"],
    "zero1": ["--strategy", "zero1"],
    "fsdp1": ["--strategy", "fsdp1"],
    "fsdp1 grad-op in bfloat16": ["--strategy", "fsdp1", "--fsdp1-sharding", "grad-op", "--bf16"],
    "fsdp2": ["--strategy", "fsdp2", "--prefetch", "1"],
    "fsdp2 in bfloat16": ["--strategy", "fsdp2", "--bf16", "--reshard", "always"],
    "fsdp2 accumulating": ["--strategy", "fsdp2", "--grad-accumulation", "2"],
    "hsdp": ["--strategy", "hsdp"],
}
DEEPSPEED_RUNS = {
    "zero1-ds": ["--strategy", "zero1-ds"],
    "zero1-ds in small buckets": ["--strategy", "zero1-ds", "--bucket-mb", "0.5"],
    "zero2": ["--strategy", "zero2", "--grad-accumulation", "2"],
    "zero3": ["--strategy", "zero3", "--bf16"],
}


def compare(runs: dict[str, list[str]], python: str, tmp_path: Path) -> None:
    """Each run's last step against its plan: op, dtype, elements, bytes and phase of every collective, in order.

    Scalars (norms, overflow flags) are no part of a plan.
    """
    common = ["--device", "cpu", "--steps", "3", *SMALL]
    results = jobs.train_many([[*flags, *common] for flags in runs.values()], 2, tmp_path / "runs.json", python)
    wanted = json.dumps([["--dry-world", "2", *SMALL, *flags] for flags in runs.values()])
    done = jobs.run([python, str(Path(__file__).with_name("trainer_plans.py")), wanted], timeout_s=120)
    assert done.status == 0, done.err
    plans = json.loads(next(line for line in done.out.splitlines() if line.startswith("PLANS")).removeprefix("PLANS"))
    for name, plan, result in zip(runs, plans, results, strict=True):
        expected = [[c["phase"], c["op"], c["dtype"], c["elements"], c["bytes"]] for c in plan]
        found = [row[:5] for row in result["last_step"] if row[3] > 1]
        assert found == expected, name


def test_the_plan_is_what_two_real_ranks_do(tmp_path: Path) -> None:
    compare(TORCH_RUNS, sys.executable, tmp_path)


def test_the_plan_is_what_deepspeed_does_on_two_real_ranks(deepspeed_python: str, tmp_path: Path) -> None:
    compare(DEEPSPEED_RUNS, deepspeed_python, tmp_path)


def test_the_plan_is_printed_and_saved(tmp_path: Path) -> None:
    done = jobs.run([sys.executable, "-m", "instrumented_trainer", "--strategy", "zero1", "--dry-world", "2"],
                    timeout_s=120, cwd=tmp_path)  # fmt: skip
    assert done.status == 0
    assert "broadcast" in done.out
    assert "the difference: ZeroRedundancyOptimizer" in done.out
    assert (tmp_path / "plan-tiny-zero1-2.json").exists()


@pytest.mark.parametrize(("flags", "reason"), [
    (["--strategy", "hsdp", "--dry-world", "7"], "cannot split 7 ranks"),
    (["--strategy", "zero3", "--dry-world", "4", "--tied"], "is not planned"),
    (["--strategy", "ddp", "--dry-world", "4", "--json", "/nowhere/plan.json"], "cannot write"),
])  # fmt: skip
def test_what_cannot_be_planned_is_one_line(flags: list[str], reason: str) -> None:
    done = jobs.run([sys.executable, "-m", "instrumented_trainer", *flags], timeout_s=120)
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert reason in done.err
