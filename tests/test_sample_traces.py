"""The sample traces: that they can be made again, and that they are what they say they are."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
MIB = 2**20
COLLECTIVE_END_SPREAD_NS = 50
EXPORT_KEYS_THAT_NAME_SOMEONE = ("HOST", "USER", "PATH", "FILE", "ENVIRONMENT")


def expected(name, folder=SAMPLES):
    return json.loads((folder / f"{name}.expected.json").read_text())


def captures(name, folder=SAMPLES):
    return [folder / path for path in expected(name, folder)["captures"]]


def query(path, sql):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()


def tables(path):
    return [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def dump(path):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return list(database.iterdump())
    finally:
        database.close()


@pytest.fixture(scope="module")
def remade(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return folder


def test_every_sample_is_committed(remade):
    made = {path.relative_to(remade) for path in remade.rglob("*") if path.is_file()}
    committed = {path.relative_to(SAMPLES) for path in SAMPLES.rglob("*") if path.suffix in (".sqlite", ".json")}
    assert made == committed


@pytest.mark.parametrize("name", NAMES)
def test_making_a_sample_again_gives_the_same(name, remade):
    assert expected(name, remade) == expected(name)
    for again, committed in zip(captures(name, remade), captures(name), strict=True):
        assert dump(again) == dump(committed)


def test_one_sample_can_be_made_alone(tmp_path):
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(tmp_path), "launch_bound"]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch_bound.expected.json", "launch_bound.sqlite"]


def test_an_unknown_sample_is_named(tmp_path):
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(tmp_path), "nonsense"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "nonsense" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_program_does_not_import_what_it_checks():
    for source in SAMPLES.glob("*.py"):
        lines = [line.split() for line in source.read_text().splitlines()]
        assert not [line for line in lines if line[:1] in (["import"], ["from"]) and "tracekit" in line[1]], source.name


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_small_and_name_nobody(name):
    for path in captures(name):
        assert path.stat().st_size <= MIB
        assert "TARGET_INFO_SYSTEM_ENV" not in tables(path)
        for table in {"META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA"} & set(tables(path)):
            for key, _ in query(path, f"SELECT name, value FROM {table}"):
                assert not any(word in key for word in EXPORT_KEYS_THAT_NAME_SOMEONE), key
        assert {name for (name,) in query(path, "SELECT DISTINCT name FROM PROCESSES")} == {"python3"}


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_adds_up(name):
    truth = expected(name)
    for rank in truth["ranks"].values():
        phases = [phase for step in rank["steps"] for phase in step.get("by_phase", {}).values()]
        for window in [rank["totals"], *rank["steps"], *phases]:
            parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
            assert sum(window[part] for part in parts) == window["wall_ns"]
            assert window["comm_ns"] == window["exposed_comm_ns"] + window["overlapped_comm_ns"]
        for step, following in zip(rank["steps"], rank["steps"][1:], strict=False):
            assert step["end_ns"] == following["start_ns"]
        for step in rank["steps"]:
            assert step["wall_ns"] == step["end_ns"] - step["start_ns"]
            if "by_phase" in step:
                assert sum(phase["wall_ns"] for phase in step["by_phase"].values()) == step["wall_ns"]
    exposed = sum(rank["totals"]["exposed_comm_ns"] for rank in truth["ranks"].values())
    assert sum(item["exposed_ns"] for item in truth["collectives"]) == exposed


GPU_TABLES = {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")}


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_agrees_with_the_rows(name):
    """By SQL over the written rows: the window, the measure of all communication and how often each ran."""
    truth = expected(name)
    for rank in truth["ranks"].values():
        path = SAMPLES / rank["capture"]
        mine = f"WHERE deviceId = {rank['device']} AND globalPid >> 24 & 0xFFFFFF = {rank['pid']}"
        present = GPU_TABLES & set(tables(path))
        spans = [query(path, f'SELECT min(start), max("end") FROM {table} {mine}')[0] for table in present]
        assert max(end for _, end in spans) - min(start for start, _ in spans) == rank["totals"]["wall_ns"]
        nccl = query(
            path,
            f"""SELECT count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL
                JOIN StringIds ON id = demangledName {mine} AND value LIKE 'nccl%'""",
        )
        # One communicator runs one collective at a time, so here the sum is the measure.
        assert nccl == [(sum(item["count"] for item in truth["collectives"]), rank["totals"]["comm_ns"])]


@pytest.mark.parametrize("name", [name for name in NAMES if len(captures(name)) == 1])
def test_correlation_ids_repeat_across_processes(name):
    (path,) = captures(name)
    sql = "SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid >> 24 & 0xFFFFFF = {}"
    ids = [set(query(path, sql.format(rank["pid"]))) for rank in expected(name)["ranks"].values()]
    assert all(a & b for a, b in combinations(ids, 2))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_has_its_launch_before_it(name):
    for path in captures(name):
        for table in GPU_TABLES & set(tables(path)):
            sql = f"""SELECT count(*), sum(launch.start < op.start) FROM {table} AS op
                      JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS launch ON launch.correlationId = op.correlationId
                      AND launch.globalTid >> 24 = op.globalPid >> 24 AND launch.eventClass = 0"""
            (operations,) = query(path, f"SELECT count(*) FROM {table}")
            assert query(path, sql) == [(operations[0], operations[0])]


@pytest.mark.parametrize("name", NAMES)
def test_collectives_end_together(name):
    """Each rank's k-th NCCL kernel, on rank 0's clock, ends when the others' do."""
    truth = expected(name)
    ends = []
    for rank in truth["ranks"].values():
        sql = f"""SELECT "end" - {rank["clock_offset_ns"]} FROM CUPTI_ACTIVITY_KIND_KERNEL
                  JOIN StringIds ON id = demangledName
                  WHERE value LIKE 'nccl%' AND globalPid >> 24 & 0xFFFFFF = {rank["pid"]} ORDER BY 1"""
        ends.append([end for (end,) in query(SAMPLES / rank["capture"], sql)])
    for together in zip(*ends, strict=True):
        assert max(together) - min(together) <= COLLECTIVE_END_SPREAD_NS


def nccl_payloads(path):
    sql = """SELECT value, binaryData FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE binaryData IS NOT NULL"""
    return query(path, sql)


def test_payloads_carry_communicator_and_message_bytes():
    """GIVEN zero1, WHEN the blobs are unpacked by hand, THEN they hold what NCCL's payload is documented to hold."""
    truth = expected("zero1")
    by_op = {item["op"]: item for item in truth["collectives"]}
    (path,) = captures("zero1")
    seen = set()
    for name, blob in nccl_payloads(path):
        schema, size, offset = (int.from_bytes(blob[at : at + 8], "little") for at in (8, 16, 24))
        assert (offset, len(blob)) == (32, 32 + size)
        communicator = f"0x{int.from_bytes(blob[32:40], 'little'):016x}"
        seen.add((name, schema - 2**24, communicator, int.from_bytes(blob[40:48], "little")))
    gather, reduce = by_op["all_gather"], by_op["all_reduce"]
    assert ("ncclAllGather", 4, gather["communicator"], gather["full_bytes"] // 4) in seen
    assert ("ncclAllReduce", 5, reduce["communicator"], reduce["full_bytes"]) in seen
    assert {name for name, *_ in seen} == {"ncclAllGather", "ncclAllReduce", "ncclCommInitRankConfig"}


KERNEL_REPORTS = ("cuda_gpu_kern_sum", "gpukernsum")


def kernel_sum(path, report):
    """Total time of the kernel summary that `nsys stats` prints; None where this nsys does not know the report."""
    command = ["nsys", "stats", "--report", report, "--format", "csv", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = run.stdout.splitlines()
    header = next((at for at, line in enumerate(lines) if "Total Time (ns)" in line), None)
    if header is None:
        return None
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))
    return sum(int(row["Total Time (ns)"]) for row in rows if row["Total Time (ns)"])


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="the nsys command is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_nsys_stats_reads_the_same_kernel_time(name, tmp_path):
    for path in captures(name):
        copy = shutil.copy(path, tmp_path / path.name)  # nsys may write beside or into what it reads
        totals = [total for report in KERNEL_REPORTS if (total := kernel_sum(copy, report)) is not None]
        assert totals == [expected(name)["kernels"][str(path.relative_to(SAMPLES))]["sum_ns"]]
