"""`tracekit plan` as users call it."""

import json

import pytest
from click.testing import CliRunner

from tracekit.cli import main


def run(*arguments):
    return CliRunner().invoke(main, ["plan", *arguments])


def table(*arguments):
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return {row["strategy"]: row for row in json.loads(result.stdout)}


def recommended(rows):
    return [name for name, row in rows.items() if row["recommended"]]


def test_70_billion_parameters_on_64_gpus():
    rows = table("--params", "70e9", "--gpus", "64")
    state = {name: row["model_state_bytes_per_gpu"] for name, row in rows.items()}
    assert state == {
        "DDP": 1_120_000_000_000,
        "ZeRO-1": 4 * 70 * 10**9 + 12 * 70 * 10**9 // 64,
        "ZeRO-2": 2 * 70 * 10**9 + 14 * 70 * 10**9 // 64,
        "ZeRO-3": 17_500_000_000,
        "FSDP": 17_500_000_000,
        "HSDP": 140_000_000_000,
    }
    assert rows["FSDP"]["activation_bytes_per_gpu"] is None, "no shape, no activations"
    assert rows["FSDP"]["fits"] is None
    assert rows["ZeRO-2"]["fits"] is False
    assert recommended(rows) == ["FSDP"]


def test_a_small_model_with_lora_takes_zero_2():
    rows = table("--model", "llama-7b", "--gpus", "8", "--lora", "16")
    assert recommended(rows) == ["ZeRO-2"]
    # 6.74 B frozen parameters of 2 bytes on every GPU; 39,976,960 trained ones, 2 + 14/8 bytes each.
    assert rows["ZeRO-2"]["model_state_bytes_per_gpu"] == pytest.approx(2 * 6_738_415_616 + 39_976_960 * 3.75, abs=9)


def test_large_full_training_takes_fsdp():
    assert recommended(table("--model", "llama-3-70b", "--gpus", "64", "--checkpointing", "full")) == ["FSDP"]


def test_little_memory_offloads():
    rows = table("--model", "llama-13b", "--gpus", "2", "--gpu", "L40S")
    assert recommended(rows) == ["FSDP"]
    assert "offloaded" in rows["FSDP"]["change_first"]
    assert all(row["fits"] is False for row in rows.values())
    # What is offloaded is named, for the host has to hold it.
    assert "GB of its host's memory" in rows["FSDP"]["reason"]


def test_what_fits_nowhere_is_said():
    result = run("--model", "llama-70b", "--gpus", "1", "--seq", "1000000")
    assert result.exit_code == 0
    assert "Nothing fits on these GPUs" in result.output
    assert "Try more GPUs" in result.output


def test_qlora_holds_four_bits_a_frozen_parameter():
    rows = table("--model", "llama-65b", "--gpus", "8", "--qlora", "16")
    # The adapters of 80 layers: 16 x (in + out) of four matrices of 8,192 x 8,192 and three of 8,192 x 22,016.
    adapters = 80 * 16 * (4 * (8_192 + 8_192) + 3 * (8_192 + 22_016))
    expected = 65_285_660_672 * 4.127 / 8 + 16 * adapters
    assert rows["DDP"]["model_state_bytes_per_gpu"] == pytest.approx(expected, abs=9)


def test_traffic_and_its_time_by_hand():
    rows = table("--params", "7e9", "--gpus", "8", "--link", "100", "--gpu", "a100")
    # 3P x 2 bytes x 7/8 at 100 GB/s.
    assert rows["FSDP"]["wire_bytes_per_gpu"] == 36_750_000_000
    assert rows["FSDP"]["comm_ns"] == 367_500_000
    # 6 x 7e9 x 4,096 FLOPs at half of 312 TFLOP/s.
    assert rows["FSDP"]["compute_ns"] == pytest.approx(6 * 7e9 * 4096 / 156e12 * 1e9, abs=2)
    assert rows["FSDP"]["mfu"] < 0.5


def test_the_network_is_what_nodes_share():
    near = table("--params", "7e9", "--gpus", "16", "--network", "40")
    # All-reduce over both nodes: 2P x 2 bytes x 15/16 at 40 GB/s of a node.
    assert near["DDP"]["comm_ns"] == pytest.approx(2 * 14e9 * 15 / 16 / 40, abs=2)
    # HSDP's replicas: 2 x (P/8) x 2 bytes x 1/2 at 5 GB/s for each of 8 places, and 3P in the node at 450 GB/s.
    assert near["HSDP"]["comm_ns"] == pytest.approx(14e9 / 8 / 5 + 3 * 14e9 * 7 / 8 / 450, abs=3)


def test_faster_compute_hides_less():
    slow, fast = (
        table("--model", "llama-7b", "--gpus", "8", "--link", "20", "--mfu", m)["FSDP"] for m in ("0.1", "0.9")
    )
    assert slow["overlap_bound"] > fast["overlap_bound"]
    assert slow["step_ns"] > fast["step_ns"]
    assert fast["step_ns"] >= max(fast["comm_ns"], fast["compute_ns"])


def test_a_config_of_hugging_face(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "intermediate_size": 11008,
                "vocab_size": 32000,
            }
        )
    )
    assert table("--config", str(config), "--gpus", "8") == table("--model", "llama-7b", "--gpus", "8")


def test_one_gpu_shards_nothing():
    rows = table("--model", "gpt2", "--gpus", "1")
    assert {row["wire_bytes_per_gpu"] for row in rows.values()} == {0}
    assert {row["overlap_bound"] for row in rows.values()} == {None}
    assert recommended(rows) == ["DDP"]


def test_the_table_for_people():
    result = run("--model", "llama-70b", "--gpus", "64", "--checkpointing", "full")
    lines = result.output.splitlines()
    assert lines[0] == "llama-70b of 69 B parameters, on 64 x H100 in 8 nodes"
    fsdp = next(line for line in lines if line.startswith("FSDP "))
    assert fsdp.split()[:2] == ["FSDP", "17.2"]
    assert max(map(len, lines)) <= 110
    assert any(line.startswith("FSDP: it fits") for line in lines)


def test_the_file(tmp_path):
    path = tmp_path / "plan.json"
    assert run("--params", "7B", "--gpus", "8", "--json", str(path)).exit_code == 0
    assert [row["strategy"] for row in json.loads(path.read_text())] == ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--gpus", "8"],
        ["--params", "7e9"],
        ["--params", "7e9", "--gpus", "0"],
        ["--params", "0", "--gpus", "8"],
        ["--params", "-7e9", "--gpus", "8"],
        ["--params", "1e30", "--gpus", "8"],
        ["--params", "nan", "--gpus", "8"],
        ["--params", "many", "--gpus", "8"],
        ["--params", "7e9", "--model", "llama-7b", "--gpus", "8"],
        ["--model", "lama", "--gpus", "8"],
        ["--params", "7e9", "--gpus", "8", "--gpu", "H101"],
        ["--params", "7e9", "--gpus", "8", "--batch", "0"],
        ["--params", "7e9", "--gpus", "8", "--seq", "-1"],
        ["--params", "7e9", "--gpus", "8", "--memory", "nan"],
        ["--params", "7e9", "--gpus", "8", "--mfu", "40"],
        ["--params", "7e9", "--gpus", "8", "--nodes", "3"],
        ["--params", "7e9", "--gpus", "8", "--nodes", "2", "--gpus-per-node", "8"],
        ["--params", "7e9", "--gpus", "8", "--lora", "8"],
        ["--model", "gpt2", "--gpus", "8", "--lora", "8", "--qlora", "8"],
        ["--params", "7e9", "--gpus", "8", "--trained-params", "8e9"],
        ["--config", "/nonexistent/config.json", "--gpus", "8"],
        ["--params", "7e9", "--gpus", "8", "--json", "/nonexistent/plan.json"],
    ],
)
def test_wrong_usage_is_said_and_ends_with_2(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.output.strip()
