"""``tracekit hang``: what it prints, its JSON, its exit status."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.test_project import DOCS, keys_in_table, sections_of
from tracekit.cli import main

SAMPLES = Path(__file__).parent.parent / "sample_traces"
REAL = Path(__file__).parent / "readers" / "flight_recorder"


def run(*arguments):
    return CliRunner().invoke(main, ["hang", *map(str, arguments)])


def write_dumps(folder, entries_of, ranks, groups=None):
    groups = groups or {"0": ("default_pg", ranks)}
    config = {name: {"name": name, "desc": d, "ranks": str(list(r))} for name, (d, r) in groups.items()}
    for rank in ranks:
        entries = [
            {
                "record_id": i,
                "process_group": (group, groups[group][0]),
                "collective_seq_id": seq,
                "profiling_name": f"nccl:{op}",
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": state,
                "is_p2p": False,
                "retired": state == "completed",
            }
            for i, (group, seq, op, state) in enumerate(entries_of(rank))
        ]
        content = {"version": "2.4", "pg_config": config, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def test_a_real_job():
    result = run(REAL)
    assert result.exit_code == 1
    first = " ".join(result.stdout.split("\n\n")[0].split())
    assert first == "Rank 2 never launched all-reduce 7 of default_pg; ranks 0-1 wait."
    for words in ("behind        rank 2", "train_step (job.py:15)", "What to try (TK301)", "TORCH_DISTRIBUTED_DEBUG"):
        assert words in result.stdout


def test_its_json_is_the_documented_object_alone():
    result = run(REAL, "--json", "-")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    sections = sections_of(DOCS / "reference" / "json.md")
    assert document.keys() == keys_in_table(sections["hang"])
    assert document["last_activity"][0].keys() == keys_in_table(sections["last_activity"])
    assert (document["verdict"], document["seq"], document["missing_ranks"]) == ("missing_rank", 7, [2])


def test_a_cycle_is_drawn_and_documented(tmp_path):
    def entries(rank):
        calls = [("a", 1, "all_reduce", "started"), ("b", 1, "all_reduce", "scheduled")]
        return calls if rank == 0 else [("b", 1, "all_reduce", "started"), ("a", 1, "all_reduce", "scheduled")]

    write_dumps(tmp_path, entries, (0, 1), {"a": ("tp", (0, 1)), "b": ("dp", (0, 1))})
    result = run(tmp_path)
    assert result.exit_code == 1
    assert result.stdout.startswith("Ranks 0-1 wait for one another: tp (0-1) and dp (0-1) in different order.")
    drawn = result.stdout.split("Who waits for whom\n")[1].split("\n\n")[0].splitlines()
    assert len(drawn) == 3
    assert drawn[-1].split()[-1] == drawn[0].split("rank ")[1].split()[0]
    cycle = json.loads(run(tmp_path, "--json", "-").stdout)["cycle"]
    assert cycle[0].keys() == keys_in_table(sections_of(DOCS / "reference" / "json.md")["cycle"])


def test_mismatches_are_told_and_documented(tmp_path):
    op = {0: "all_reduce", 1: "_all_gather_base", 2: "all_reduce"}
    write_dumps(tmp_path, lambda rank: [("0", 1, op[rank], "scheduled")], (0, 1, 2))
    result = run(tmp_path)
    assert "rank 1 all_gather 4 -> 4 elements" in " ".join(result.stdout.split("\n\n")[0].split())
    row = json.loads(run(tmp_path, "--json", "-").stdout)["mismatches"][0]
    assert row.keys() == keys_in_table(sections_of(DOCS / "reference" / "json.md")["mismatches"])
    assert row["ranks"] == [1]


def test_thousands_of_ranks_stay_readable(tmp_path):
    def entries(rank):
        calls = [("0", 1, "all_reduce", "completed"), ("0", 2, "all_reduce", "scheduled")]
        return calls[:1] if rank in (7, 1500) else calls

    write_dumps(tmp_path, entries, tuple(range(2000)))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert result.stdout.startswith("Ranks 7, 1500 never launched all-reduce 2")
    assert len(result.stdout) < 2000


@pytest.mark.parametrize("name", ["hang_missing_rank", "hang_order_inversion", "hang_skipped_step"])
def test_captures(name):
    expected = json.loads((SAMPLES / f"{name}.expected.json").read_text())["hang"]
    result = run(SAMPLES / f"{name}.sqlite", "--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == expected["verdict"]
    assert run(SAMPLES / f"{name}.sqlite").exit_code == 1


def test_a_capture_of_a_healthy_job():
    assert run(SAMPLES / "straggler_4ranks.sqlite").exit_code == 0


def test_captures_and_dumps_together(tmp_path):
    """GIVEN dumps of all ranks and a capture, THEN the dumps say what is missing and the capture what a rank did."""
    sample = SAMPLES / "hang_missing_rank.sqlite"
    alone = {row["rank"]: row for row in json.loads(run(sample, "--json", "-").stdout)["last_activity"]}
    ranks = tuple(alone)
    assert len(ranks) > 1

    def entries(rank):
        return [("0", 1, "all_reduce", "completed"), ("0", 2, "all_reduce", "started")][: 1 + (rank != ranks[-1])]

    write_dumps(tmp_path, entries, ranks)
    (tmp_path / "capture.sqlite").write_bytes(sample.read_bytes())
    document = json.loads(run(tmp_path, "--json", "-").stdout)
    assert (document["verdict"], document["seq"], document["missing_ranks"]) == ("missing_rank", 2, [ranks[-1]])
    for row in document["last_activity"]:
        assert row["open_ranges"] == alone[row["rank"]]["open_ranges"]
        assert row["last_collective"] == "nccl:all_reduce"


def test_a_capture_without_its_dump_tells_no_collectives(tmp_path):
    """GIVEN dumps of three ranks and a capture of the fourth, THEN the collectives of that one are not known."""
    write_dumps(tmp_path, lambda rank: [("0", 1, "all_reduce", "started")], (0, 1, 2, 3))
    (tmp_path / "nccl_trace_rank_0").unlink()
    sample = SAMPLES / "hang_size_mismatch" / "hang_size_mismatch.rank0.sqlite"
    document = json.loads(run(tmp_path, sample, "--json", "-").stdout)
    assert document["verdict"] == "undecided"
    assert "0" in document["lacking"][0]


def test_no_hang(tmp_path):
    write_dumps(tmp_path, lambda rank: [("0", 1, "all_reduce", "completed")], (0, 1))
    result = run(tmp_path)
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "No hang")


def test_undecided_says_what_is_lacking(tmp_path):
    write_dumps(tmp_path, lambda rank: [("0", 1, "all_reduce", "scheduled")], (0, 1, 2))
    (tmp_path / "nccl_trace_rank_1").unlink()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "a capture or dump of rank 1" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["--no-such-option", "x"]])
def test_wrong_usage(arguments):
    assert run(*arguments).exit_code == 2


def test_unreadable(tmp_path):
    (tmp_path / "empty_0").write_bytes(b"")
    (tmp_path / "half_1").write_bytes(b"\x80\x02}")
    for path in ("empty_0", "half_1", "not_there"):
        result = run(tmp_path / path)
        assert result.exit_code == 3
        assert len(result.stderr.splitlines()) == 2


def test_what_is_neither_a_capture_nor_a_dump_is_called_so(tmp_path):
    whole = pickle.dumps({"version": "2.4", "entries": []}, protocol=2)
    for name, content in (("trace_0.gz", gzip.compress(whole)), ("trace_1", whole[:1]), ("trace_2", b"[]")):
        (tmp_path / name).write_bytes(content)
        result = run(tmp_path / name)
        assert result.exit_code == 3
        assert "neither a capture nor a dump" in result.stderr
    result = run(tmp_path)
    assert result.exit_code == 3
    assert "no captures and no dumps" in result.stderr


def test_names_cannot_steer_the_terminal(tmp_path):
    write_dumps(tmp_path, lambda rank: [("0", 1, "x\x1b[31m", "scheduled")], (0, 1), {"0": ("\x1b]0;", (0, 1))})
    assert "\x1b" not in run(tmp_path).stdout


def test_pipes_sockets_and_devices_are_never_opened(tmp_path):
    write_dumps(tmp_path, lambda rank: [("0", 1, "all_reduce", "completed"), ("0", 2, "all_reduce", "started")], (0, 1))
    pipe = tmp_path / "fr_dump_pipe_0.pipe"
    os.mkfifo(pipe)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "trace_socket"))
    dumps = sorted(tmp_path.glob("*_rank_*"))
    for special in (pipe, tmp_path / "trace_socket", "/dev/zero"):
        document = json.loads(run(*dumps, special, "--json", "-").stdout)
        assert document["verdict"] == "unfinished"
        assert document["notes"] == [f"{special} was passed over: it is a pipe, socket or device"]
        alone = run(special)
        assert alone.exit_code == 3
        assert "which is not opened" in alone.stderr
    listening.close()
    for several in (tmp_path, tmp_path / "*"):  # a folder or pattern that holds some as well
        assert json.loads(run(several, "--json", "-").stdout)["verdict"] == "unfinished"
