"""The table of strategies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trainer_jobs as jobs

from instrumented_trainer import compare, formulas
from instrumented_trainer.config import parse

TINY = 1_053_824


def result(*calls: tuple[str, int, int]) -> dict[str, object]:
    return {
        "step_time_ms": 10.0, "tokens_per_s": 51200.0, "peak_memory_bytes": 3_000_000, "losses": [6.9, 6.5],
        "collectives": [{"op": op, "bytes": size, "group_size": group} for op, size, group in calls],
    }  # fmt: skip


def test_a_row_holds_measured_bytes_beside_the_formula() -> None:
    row = compare.row(
        "ddp", parse(["--strategy", "ddp"]), 4, result(("all_reduce", 4 * TINY, 4)), {"overlap_ratio": 0.5}
    )
    assert row.wire_mb == row.formula_mb == pytest.approx(2 * 3 / 4 * 4 * TINY / 1e6)
    assert (row.step_ms, row.final_loss, row.overlap_ratio, row.mfu) == (10.0, 6.5, 0.5, None)


def test_the_table_leaves_out_what_nobody_knows_and_explains_below() -> None:
    rows = [compare.Row(strategy="ddp", step_ms=1.25, wire_mb=2.0), compare.Row(strategy="zero3", note="it failed")]
    assert compare.markdown(rows) == (
        "| strategy | step ms | MB sent a rank and step |\n| --- | --- | --- |\n"
        "| ddp | 1.2 | 2.000 |\n| zero3 | – | – |\n\n- zero3: it failed"
    )


FORMULAS = {  # by hand, in multiples of P for four ranks: gathers, reduce-scatters, all-reduces, broadcasts
    "--strategy ddp": {"all_reduce": 1.0},
    "--strategy ddp --grad-accumulation 3 --no-defer-reduction": {"all_reduce": 3.0},
    "--strategy zero1": {"all_reduce": 1.0, "broadcast": 1.0},
    "--strategy zero2": {"all_reduce": 1.0, "all_gather": 1.0},
    "--strategy zero3": {"all_gather": 2.0, "reduce_scatter": 1.0},
    "--strategy fsdp2 --reshard always": {"all_gather": 2.0, "reduce_scatter": 1.0},
    "--strategy fsdp2 --reshard never": {"all_gather": 1.0, "reduce_scatter": 1.0},
    "--strategy fsdp1 --fsdp1-sharding grad-op": {"all_gather": 1.0, "reduce_scatter": 1.0},
    "--strategy hsdp --reshard never": {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 0.5},
}


@pytest.mark.parametrize(("flags", "multiples"), FORMULAS.items())
def test_formulas_by_hand(flags: str, multiples: dict[str, float]) -> None:
    volumes = formulas.step_volumes(parse(flags.split()), 4)
    assert volumes is not None
    found: dict[str, float] = {}
    for volume in volumes:
        found[volume.op] = found.get(volume.op, 0) + volume.elements / TINY
    assert found == multiples


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H200", 989), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835),
    ("NVIDIA H20", 148), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA GB200", 2500), ("NVIDIA B200", 2250),
])  # fmt: skip
def test_peaks_are_the_dense_ones(name: str, tflops: float) -> None:
    assert formulas.peak_flops(name) == tflops * 1e12


def test_an_unknown_gpu_has_no_peak() -> None:
    assert formulas.peak_flops("GeForce 256") is None


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--strategies", "fsdp9"], "invalid choice"), (["--strategies", "hsdp", "--nproc", "5"], "cannot split 5 ranks"),
    ([], "required: --strategies"),
])  # fmt: skip
def test_bad_input_is_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert reason in error


@pytest.mark.torch
def test_strategies_run_and_move_what_the_formulas_say(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    done = jobs.run(
        [sys.executable, "-m", "instrumented_trainer.compare", "--strategies", "fsdp2", "ddp --fault exit",
         "--json", str(path), "--", "--device", "cpu", "--steps", "4"],
        timeout_s=150,
    )  # fmt: skip
    fsdp2, broken = json.loads(path.read_text())
    assert done.status == 1  # one of them failed
    assert fsdp2["wire_mb"] == pytest.approx(fsdp2["formula_mb"])
    assert fsdp2["tokens_per_s"] == pytest.approx(2 * 4 * 64 / fsdp2["step_ms"] * 1e3)
    assert 50 < fsdp2["peak_memory_mb"] < 5000
    assert broken["step_ms"] is None
    assert "rank 1 failed first" in broken["note"]
    assert "| fsdp2 |" in done.out
    assert jobs.leftovers(done.token) == []
