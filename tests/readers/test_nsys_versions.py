"""Every version of nsys's export, and what may be missing from one."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from nsys_builder import (
    COLUMNS,
    GRAPH,
    JOB_TOTALS,
    KERNEL,
    MEMCPY,
    PID,
    RUNTIME,
    SYNC,
    VERSIONS,
    Export,
    global_pid,
    small_job,
)

import tracekit
from tracekit.errors import CaptureError, NoGpuWorkError
from tracekit.timeline import NONE, Kind, Source, Timeline


def opened(export: Export, folder: Path, name: str = "report.sqlite", **how: Any) -> Timeline:
    return tracekit.open(export.write(folder / name, **how))


def totals(timeline: Timeline) -> dict[str, Any]:
    account = tracekit.analyze(timeline).ranks[0].totals
    return asdict(account) | {"overlap_ratio": account.overlap_ratio}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read_alike_and_named(version: str, tmp_path: Path) -> None:
    timeline = opened(small_job(version), tmp_path)
    (capture,) = timeline.captures
    assert (capture.nsys_version, capture.schema_version) == (f"{version}.1.1", VERSIONS[version])
    assert totals(timeline) == JOB_TOTALS
    assert [step.step for step in tracekit.analyze(timeline).ranks[0].steps] == [0, 1, 2]


@pytest.mark.parametrize("how", [{"shuffled": 1}, {"shuffled": 2}, {"without_rowid": True}])
def test_neither_the_order_of_rows_nor_row_ids_matter(how: dict[str, Any], tmp_path: Path) -> None:
    as_written = opened(small_job(), tmp_path, "a.sqlite")
    timeline = opened(small_job(), tmp_path, "b.sqlite", **how)
    assert totals(timeline) == JOB_TOTALS
    first, second = as_written.ranks[0].ops, timeline.ranks[0].ops
    assert [as_written.names[i] for i in first.name] == [timeline.names[i] for i in second.name]
    assert first.start.tolist() == second.start.tolist()
    assert first.call.tolist() == second.call.tolist()


def test_columns_are_found_by_name_not_by_place(tmp_path: Path) -> None:
    export = small_job()
    for columns in export.columns.values():
        columns.reverse()
        columns.insert(1, "columnOfALaterVersion")
    export.add("TABLE_OF_A_LATER_VERSION", start=1, value="x")
    assert totals(opened(export, tmp_path)) == JOB_TOTALS


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("StringIds", {"comm_ns": 0, "exposed_comm_ns": 0, "compute_ns": 6_300, "overlap_ratio": None}),
        (RUNTIME, {}),
        ("NVTX_EVENTS", {}),
        ("META_DATA_EXPORT", {}),
        # Without the copies the window starts at the first kernel.
        (MEMCPY, {"wall_ns": 22_200, "exposed_copy_ns": 0, "idle_ns": 15_900}),
    ],
)
def test_a_missing_table_costs_only_what_it_held(table: str, changed: dict[str, Any], tmp_path: Path) -> None:
    export = small_job()
    del export.rows[table]
    timeline = opened(export, tmp_path)
    assert totals(timeline) == JOB_TOTALS | changed
    (capture,) = timeline.captures
    assert ("launch_rows" in capture.lacks) == (table == RUNTIME)
    assert ("nvtx" in capture.lacks) == (table == "NVTX_EVENTS")
    assert (capture.nsys_version is None) == (table == "META_DATA_EXPORT")


def test_without_kernels_only_the_copies_are_left_and_they_make_no_rank(tmp_path: Path) -> None:
    export = small_job()
    del export.rows[KERNEL]
    with pytest.raises(NoGpuWorkError, match="only copies"):
        opened(export, tmp_path)


def test_optional_tables_may_all_be_missing(tmp_path: Path) -> None:
    timeline = opened(small_job(), tmp_path)
    (capture,), (process,), (rank,) = timeline.captures, timeline.processes, timeline.ranks
    assert (capture.host, capture.start_epoch_ns, capture.stop_ns, capture.diagnostics) == (None, None, None, ())
    assert (process.name, rank.device_name, rank.host) == (None, None, None)
    assert set(capture.lacks) == {"nccl_payload", "memory"}


def test_facts_about_the_machine(tmp_path: Path) -> None:
    export = small_job()
    export.add("PROCESSES", globalPid=global_pid(PID), pid=PID, name="python3")
    export.add("PROCESSES", globalPid=global_pid(1), pid=1, name="systemd")
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node-7")
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_001_000)
    export.add("ANALYSIS_DETAILS", duration=30_000, startTime=1_000, stopTime=31_000)
    for severity, text in ((1, "chatter"), (2, "a warning"), (3, "an error"), (2, "a warning"), (3, None)):
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text)
    timeline = opened(export, tmp_path)
    (capture,) = timeline.captures
    assert [process.name for process in timeline.processes] == ["python3"]
    assert (capture.host, timeline.ranks[0].host, capture.stop_ns) == ("node-7", "node-7", 31_000)
    assert (
        capture.start_epoch_ns == 1_700_000_000_000_000_000
    )  # the wall clock belongs to startTime, 1000 ns after zero
    assert capture.diagnostics == ("an error", "a warning")


@pytest.mark.parametrize(
    ("gpus", "devices", "name"),
    [
        ([(0, 0, "NVIDIA H100")], [], "NVIDIA H100"),
        ([(3, None, "NVIDIA H100")], [], "NVIDIA H100"),  # all alike: which one does not matter
        ([(0, None, "Intel UHD"), (1, 0, "NVIDIA H100"), (2, None, "Microsoft Basic Render")], [], "NVIDIA H100"),
        ([(0, 1, "NVIDIA T4"), (1, 0, "NVIDIA H100")], [], "NVIDIA H100"),  # by CUDA ordinal, not by place
        ([(0, 0, "NVIDIA T4"), (1, 1, "NVIDIA H100")], [(1, 0, PID)], "NVIDIA H100"),  # CUDA_VISIBLE_DEVICES=1
        ([(0, 0, "NVIDIA H100"), (1, 1, "NVIDIA T4")], [(1, 0, PID + 1)], "NVIDIA H100"),  # another process's mapping
        ([(0, 0, None)], [], None),
        ([], [], None),
    ],
)
def test_name_of_the_gpu(
    gpus: list[tuple[int, int | None, str | None]],
    devices: list[tuple[int, int, int]],
    name: str | None,
    tmp_path: Path,
) -> None:
    export = small_job("2026.2")
    for number, ordinal, text in gpus:
        export.add("TARGET_INFO_GPU", id=number, cuDevice=ordinal, name=text)
    for number, ordinal, pid in devices:
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=ordinal, pid=pid)
    assert opened(export, tmp_path).ranks[0].device_name == name


NULLABLE = [
    (table, column)
    for table in (KERNEL, MEMCPY, RUNTIME, "NVTX_EVENTS", "StringIds", "META_DATA_EXPORT")
    for column in COLUMNS[table].split()
    if (table, column) != ("StringIds", "id")  # the key
]


@pytest.mark.parametrize(("table", "column"), NULLABLE)
def test_null_in_any_column_and_a_missing_column_are_survived(table: str, column: str, tmp_path: Path) -> None:
    one, every, missing = small_job(), small_job(), small_job()
    one.rows[table][0][column] = None
    for row in every.rows[table]:
        row[column] = None
    missing.columns[table].remove(column)
    for row in missing.rows[table]:
        row.pop(column, None)
    read = []
    for name, export in (("one", one), ("every", every), ("missing", missing)):
        timeline = tracekit.open(export.write(tmp_path / name), require_ranks=False)
        accounts = [rank.totals for rank in tracekit.analyze(timeline).ranks] if timeline.ranks else []
        for account in accounts:
            parts = account.compute_ns + account.exposed_comm_ns + account.exposed_copy_ns + account.idle_ns
            assert parts == account.wall_ns
        read.append(accounts)
    assert read[1] == read[2]  # a column full of NULL and none at all are the same


def test_null_and_unknown_ids_of_strings(tmp_path: Path) -> None:
    export = Export()
    export.kernel("a", 0, 10, demangledName=None)  # the short name stands in
    export.kernel("b", 20, 30, demangledName=None, shortName=None)
    export.kernel("c", 40, 50, demangledName=4711)
    timeline = opened(export, tmp_path)
    assert [timeline.names[i] for i in timeline.ranks[0].ops.name] == ["a", "(unnamed kernel)", "(unnamed kernel)"]


def test_text_that_is_not_utf8_is_read_with_replacement(tmp_path: Path) -> None:
    export = Export("2026.2")
    export.kernel("", 0, 10, demangledName=export.string(b"gemm_\xe9\xff"))
    export.kernel("", 20, 30, demangledName=export.string(b"ncclDevKernel_AllReduce_\xff"))
    export.range(b"train_step \xfc", 0, 100)  # type: ignore[arg-type]
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=b"caf\xe9")
    export.add("DIAGNOSTIC_EVENT", severity=2, text=b"bad \xff")
    export.add("PROCESSES", globalPid=global_pid(PID), pid=PID, name=b"py\xff")
    timeline = opened(export, tmp_path)
    ops, ranges = timeline.ranks[0].ops, timeline.processes[0].ranges
    assert [timeline.names[i] for i in ops.name] == ["gemm_��", "ncclDevKernel_AllReduce_�"]
    assert ops.kind.tolist() == [Kind.COMPUTE, Kind.COMM]
    assert timeline.names[ranges.name[0]] == "train_step �"
    assert (timeline.captures[0].host, timeline.captures[0].diagnostics) == ("caf�", ("bad �",))
    assert timeline.processes[0].name == "py�"


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("TARGET_INFO_GPU", {"id": 0, "name": "H100", "cuDevice": 0}),
        ("TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": PID}),
        ("TARGET_INFO_SYSTEM_ENV", {"name": "Hostname", "value": "node1"}),
        ("TARGET_INFO_SYSTEM_ENV", {"name": "DeviceEnvironment", "value": "RANK=3"}),
        ("META_DATA_CAPTURE", {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'RANK="3"'}),
        ("META_DATA_EXPORT", {"name": "EXPORT_PRODUCT_VERSION", "value": "2023.4"}),
        ("PROCESSES", {"globalPid": global_pid(PID), "pid": PID, "name": "python3"}),
        ("DIAGNOSTIC_EVENT", {"severity": 2, "text": "a warning"}),
        ("ANALYSIS_DETAILS", {"duration": 40_000, "startTime": 0, "stopTime": 40_000}),
        ("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 1_700_000_000_000_000_000}),
    ],
)
def test_facts_of_any_type_are_survived(table: str, row: dict[str, Any], tmp_path: Path) -> None:
    odd = [None, "text", memoryview(b"\xff\xfe"), 1.5, 2**63 - 1, "RANK=" + "9" * 5000]
    for column in row:
        for i, value in enumerate(odd):
            export = small_job("2026.2")
            export.range("open", 50, None)
            export.add(table, **(row | {column: value}))
            timeline = opened(export, tmp_path, f"{column}{i}.sqlite")
            assert totals(timeline) == JOB_TOTALS
            json.dumps([str(timeline.captures), timeline.ranks[0].rank], allow_nan=False)


@pytest.mark.parametrize("value", [3, None])
def test_type_of_a_synchronisation_may_stand_in_the_deprecated_column(value: int | None, tmp_path: Path) -> None:
    export = small_job("2026.2")
    export.op(SYNC, 100, 200, call=(90, 210), syncType=value, deprecatedSyncType=3)
    export.op(SYNC, 300, 400, syncType=None, deprecatedSyncType=None)
    export.op(SYNC, 500, None, syncType=4)
    (process,) = (timeline := opened(export, tmp_path)).processes
    assert process.syncs.type.tolist() == [3, 0]
    assert (process.syncs.call != NONE).tolist() == [True, False]
    assert timeline.captures[0].notes == ("1 synchronisation records have no start or end and are left out",)


def test_graphs_traced_as_a_whole_are_opaque_compute(tmp_path: Path) -> None:
    export = small_job()
    for row in export.rows[KERNEL]:
        row["graphNodeId"] = 0
    export.op(GRAPH, 30_000, 31_000, call=(29_000, 29_100), graphId=1, graphExecId=2)
    # CUDA_GRAPH_EVENTS is about making graphs on the host, whichever version wrote it.
    export.add(
        "CUDA_GRAPH_EVENTS", start=28_000, end=28_100, nameId=export.string("cudaGraphInstantiate"), graphNodeId=7
    )
    timeline = opened(export, tmp_path)
    ops = timeline.ranks[0].ops
    graphs = ops.source == Source.GRAPH
    assert graphs.sum() == 1
    assert ops.kind[graphs].tolist() == [Kind.COMPUTE]
    assert "graph_nodes" in timeline.captures[0].lacks
    assert tracekit.analyze(timeline).ranks[0].opaque_ns == 1000


def test_kernels_inside_graphs_are_ordinary_kernels(tmp_path: Path) -> None:
    export = small_job()
    for row in export.rows[KERNEL]:
        row["graphNodeId"] = 12
    timeline = opened(export, tmp_path)
    assert totals(timeline) == JOB_TOTALS
    assert "graph_nodes" not in timeline.captures[0].lacks


def test_a_capture_of_graphs_alone_is_a_rank(tmp_path: Path) -> None:
    export = Export()
    export.op(GRAPH, 100, 200)
    timeline = opened(export, tmp_path)
    assert tracekit.analyze(timeline).ranks[0].totals.compute_ns == 100


def test_sqlite_that_is_no_export_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE cookies (host, value)")
    database.close()
    with pytest.raises(CaptureError, match="not an nsys export"):
        tracekit.open(path)


def test_an_export_without_gpu_work_says_what_it_holds_instead(tmp_path: Path) -> None:
    silent, calls, ranges = Export(), Export(), Export()
    silent.add("DIAGNOSTIC_EVENT", severity=3, text="No CUDA events collected.\nDoes the process use CUDA?")
    for number in range(1695):
        calls.call(number * 10, number * 10 + 5, number + 1)
    ranges.range("step", 0, 10)
    for name, export, said in (
        ("silent", silent, "no GPU work. The profiler said: No CUDA events collected. Does the process use CUDA?"),
        ("calls", calls, "1,695 CUDA API calls and no GPU work"),
        ("ranges", ranges, r"no GPU work \(1 NVTX ranges\)"),
    ):
        with pytest.raises(NoGpuWorkError, match=said) as caught:
            opened(export, tmp_path, name)
        assert caught.value.hint
