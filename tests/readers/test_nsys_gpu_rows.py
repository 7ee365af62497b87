"""GPU operations: their times, the calls that launched them, and which of them communicate."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsys_builder import (
    DEVICE,
    DTOD,
    DTOH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NCCL_DOMAIN,
    PAGEABLE,
    PID,
    PINNED,
    PTOP,
    RUNTIME,
    Export,
    global_pid,
    small_job,
)

import tracekit
from tracekit.errors import CaptureError
from tracekit.timeline import NONE, Kind, RankTrack, Timeline

GEMM, ALL_REDUCE = "ampere_sgemm(float*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"


def opened(export: Export, folder: Path) -> Timeline:
    return tracekit.open(export.write(folder / "report.sqlite"))


def launches(timeline: Timeline, rank: RankTrack) -> list[str | None]:
    """Name of the call that launched each operation."""
    calls = timeline.processes[rank.process].calls
    return [timeline.names[calls.name[call]] if call != NONE else None for call in rank.ops.call.tolist()]


# --- times ---


@pytest.mark.parametrize(("start", "end"), [(None, 500), (500, None), (None, None)])
@pytest.mark.parametrize(("table", "what"), [(KERNEL, "kernels"), (MEMCPY, "copies"), (MEMSET, "memsets")])
def test_what_never_started_or_finished_is_left_out_and_noted(
    table: str, what: str, start: int | None, end: int | None, tmp_path: Path
) -> None:
    export = small_job()
    export.op(table, start, end)
    timeline = opened(export, tmp_path)
    assert len(timeline.ranks[0].ops) == 9
    assert timeline.captures[0].notes == (f"1 {what} have no start or end and are left out",)


@pytest.mark.parametrize("table", [KERNEL, MEMCPY, RUNTIME])
def test_what_ends_before_it_starts_is_damage(table: str, tmp_path: Path) -> None:
    export = small_job()
    row = export.rows[table][1]
    row["start"], row["end"] = row["end"], row["start"]
    with pytest.raises(CaptureError, match=f"1 of . rows of {table} end before they start") as caught:
        opened(export, tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("start", "end"),
    [(2**61 + 1, 2**61 + 2), (0, 2**62), (-(2**61) - 1, 0), (-(2**63) + 1, -(2**63) + 2), (2**63 - 2, 2**63 - 1)],
)
def test_times_that_would_overflow_are_damage(start: int, end: int, tmp_path: Path) -> None:
    export = small_job()
    export.kernel(GEMM, start, end)
    with pytest.raises(CaptureError, match="times beyond") as caught:
        opened(export, tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    "zero", [-(2**61), 2**61 - 30_000, -5_000, 1_700_000_000_000_000_000], ids=["least", "most", "around zero", "epoch"]
)
def test_any_other_time_zero_gives_the_same_answer(zero: int, tmp_path: Path) -> None:
    export = small_job()
    for table in (KERNEL, MEMCPY, RUNTIME, "NVTX_EVENTS"):
        for row in export.rows[table]:
            row["start"] += zero  # type: ignore[operator]
            row["end"] += zero  # type: ignore[operator]
    shifted = tracekit.analyze(opened(export, tmp_path)).ranks[0]
    plain = tracekit.analyze(tracekit.open(small_job().write(tmp_path / "plain.sqlite"))).ranks[0]
    assert shifted.totals == plain.totals
    assert [step.account for step in shifted.steps] == [step.account for step in plain.steps]
    assert shifted.start_ns == plain.start_ns + zero


def test_the_longest_span_that_is_accepted_adds_up(tmp_path: Path) -> None:
    export = Export()
    export.kernel(GEMM, -(2**61), -(2**61) + 10)
    export.kernel(ALL_REDUCE, 0, 2**61)
    account = tracekit.analyze(opened(export, tmp_path)).ranks[0].totals
    assert (account.wall_ns, account.compute_ns, account.exposed_comm_ns) == (2**62, 10, 2**61)
    assert account.idle_ns == 2**61 - 10


def test_operations_of_no_length_are_kept(tmp_path: Path) -> None:
    export = Export()
    export.kernel(GEMM, 100, 100)
    rank = tracekit.analyze(opened(export, tmp_path)).ranks[0]
    assert (rank.kernels, rank.totals.wall_ns) == (1, 0)


def test_a_kernel_may_start_before_its_launch_call(tmp_path: Path) -> None:
    export = Export()
    export.range("train_step 0", 0, 20_000)
    export.kernel(GEMM, 5_000, 12_000, call=(10_500, 10_600))  # 5.5 us: two clocks, converted
    timeline = opened(export, tmp_path)
    assert timeline.ranks[0].ops.start.tolist() == [5_000]
    assert launches(timeline, timeline.ranks[0]) == ["cudaLaunchKernel"]
    assert [step.start_ns for step in tracekit.analyze(timeline).ranks[0].steps] == [5_000]


# --- who launched it ---


def test_processes_may_share_correlation_ids(tmp_path: Path) -> None:
    export = Export()
    for pid, name in ((100, "cudaLaunchKernel_v7000"), (200, "cudaLaunchKernelExC_v11060")):
        export.kernel(GEMM, 1000 + pid, 2000 + pid, pid=pid, correlationId=7)
        export.call(500 + pid, 600 + pid, 7, pid=pid, name=name)
    timeline = opened(export, tmp_path)
    assert [len(rank.ops) for rank in timeline.ranks] == [1, 1]
    assert [launches(timeline, rank) for rank in timeline.ranks] == [["cudaLaunchKernel"], ["cudaLaunchKernelExC"]]
    assert [timeline.processes[rank.process].calls.start.tolist() for rank in timeline.ranks] == [[600], [700]]


@pytest.mark.parametrize("correlation", [0, None])
def test_nothing_is_joined_on_no_correlation_id(correlation: int | None, tmp_path: Path) -> None:
    export = small_job()
    export.call(10, 20, 0, name="cudaMemPrefetchAsync_v8000")
    export.call(30, 40, 0, name="cudaMemPrefetchAsync_v8000")
    export.memcpy(25_000, 25_100, correlationId=correlation, copyKind=11)  # a unified-memory migration
    timeline = opened(export, tmp_path)
    assert launches(timeline, timeline.ranks[0])[-1] is None
    assert len(timeline.processes[0].calls) == 11  # both are kept


@pytest.mark.parametrize("driver_first", [False, True])
def test_of_a_runtime_and_a_driver_row_the_outer_one_counts(driver_first: bool, tmp_path: Path) -> None:
    export = Export("2022.4")
    rows = [(100, 200, "cudaLaunchKernel_v7000"), (110, 190, "cuLaunchKernel")]
    for start, end, name in reversed(rows) if driver_first else rows:
        export.call(start, end, 7, name=name)
    export.kernel(GEMM, 1000, 2000, correlationId=7)
    timeline = opened(export, tmp_path)
    calls = timeline.processes[0].calls
    assert (calls.start.tolist(), calls.end.tolist()) == ([100], [200])
    assert launches(timeline, timeline.ranks[0]) == ["cudaLaunchKernel"]


def test_a_trimmed_capture_lacks_launch_rows_and_loses_no_kernel(tmp_path: Path) -> None:
    export = small_job()
    export.rows[RUNTIME] = export.rows[RUNTIME][:3]
    timeline = opened(export, tmp_path)
    rank = tracekit.analyze(timeline).ranks[0]
    assert launches(timeline, timeline.ranks[0]) == ["cudaLaunchKernel"] * 3 + [None] * 6
    assert (rank.kernels, rank.kernels_launched) == (6, 2)
    assert rank.totals.compute_ns == 4_500


@pytest.mark.parametrize("spread", [1, 1_000_000_007])
def test_correlation_ids_may_be_sparse_and_in_any_order(spread: int, tmp_path: Path) -> None:
    export = Export()
    for number in range(5):
        export.kernel(GEMM, 1000 * number, 1000 * number + 500, correlationId=(5 - number) * spread)
        export.call(1000 * number - 100, 1000 * number - 50, (5 - number) * spread, name=f"call{number}")
    timeline = opened(export, tmp_path)
    assert launches(timeline, timeline.ranks[0]) == [f"call{number}" for number in range(5)]


def test_calls_of_processes_without_gpu_work_are_not_kept(tmp_path: Path) -> None:
    export = small_job()
    export.call(0, 10, 1, pid=999)
    timeline = opened(export, tmp_path)
    assert [process.pid for process in timeline.processes] == [PID]


# --- ranks of one capture ---


def test_devices_of_one_process_are_ranks_of_their_own(tmp_path: Path) -> None:
    export = Export()
    for device in (1, 0, 3):
        export.kernel(GEMM, 100 * device, 100 * device + 50, device=device)
    timeline = opened(export, tmp_path)
    assert [(rank.rank, rank.pid, rank.device) for rank in timeline.ranks] == [(0, PID, 0), (1, PID, 1), (2, PID, 3)]
    assert {rank.process for rank in timeline.ranks} == {0}


def test_a_stray_context_that_only_copies_is_no_rank(tmp_path: Path) -> None:
    export = Export()
    export.kernel(GEMM, 100, 200, device=1)
    export.memcpy(50, 60, device=0)
    export.op(MEMSET, 70, 80, device=0, bytes=16)
    timeline = opened(export, tmp_path)
    assert [rank.device for rank in timeline.ranks] == [1]
    assert timeline.captures[0].auxiliary == ((PID, 0),)


def test_containers_repeat_pids(tmp_path: Path) -> None:
    paths = []
    for host, length in (("node-1", 100), ("node-2", 300)):
        export = Export()
        export.kernel(GEMM, 0, length, pid=7)
        export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=host)
        paths.append(export.write(tmp_path / f"{host}.sqlite"))
    timeline = tracekit.open(*paths)
    assert [(rank.pid, rank.device, rank.host) for rank in timeline.ranks] == [(7, 0, "node-1"), (7, 0, "node-2")]
    assert [rank.totals.compute_ns for rank in tracekit.analyze(timeline).ranks] == [100, 300]


def test_virtual_machines_of_one_capture_repeat_pids(tmp_path: Path) -> None:
    export = Export()
    for machine in (1, 2):
        row = export.kernel(GEMM, 100 * machine, 100 * machine + 50, pid=7)
        row["globalPid"] = machine << 48 | 7 << 24
    timeline = opened(export, tmp_path)
    assert [len(rank.ops) for rank in timeline.ranks] == [1, 1]
    assert [rank.pid for rank in timeline.ranks] == [7, 7]


# --- kinds ---


@pytest.mark.parametrize(
    ("source", "destination", "pageable"),
    [(PINNED, DEVICE, False), (PAGEABLE, DEVICE, True), (DEVICE, PAGEABLE, True), (None, None, False)],
)
def test_memory_kind_0_is_pageable(source: int | None, destination: int | None, pageable: bool, tmp_path: Path) -> None:
    export = small_job()
    export.memcpy(24_000, 24_100, srcKind=source, dstKind=destination, bytes=77, copyKind=DTOH)
    timeline = opened(export, tmp_path)
    ops = timeline.ranks[0].ops
    assert (ops.pageable.tolist()[-1], int(ops.bytes[-1])) == (pageable, 77)
    assert timeline.names[ops.name[-1]] == "memcpy DtoH"


@pytest.mark.parametrize("kind", [99, None])
def test_a_kind_of_copy_that_nobody_knows_is_a_copy(kind: int | None, tmp_path: Path) -> None:
    export = small_job()
    export.memcpy(24_000, 24_100, copyKind=kind, bytes=None)
    timeline = opened(export, tmp_path)
    ops = timeline.ranks[0].ops
    assert (timeline.names[ops.name[-1]], int(ops.kind[-1]), int(ops.bytes[-1])) == ("memcpy", Kind.COPY, NONE)


def inside(name: str, *, domain: int = NCCL_DOMAIN, created: bool = True, tid: int = 11, **columns: object) -> Export:
    """An export with one NCCL range at 1000 to 2000 ns on thread 11, and a matrix product so that there is a rank."""
    export = Export()
    export.kernel(GEMM, 0, 10)
    if created:
        export.domain("NCCL", NCCL_DOMAIN)
    export.range(name, 1000, 2000, tid=11, domain=domain, **columns)
    export.memcpy(3000, 3100, call=(1500, 1510), tid=tid, copyKind=PTOP)
    export.kernel("symmetric_copy_kernel(int)", 3200, 3300, call=(1600, 1610), tid=tid)
    export.op(MEMSET, 3400, 3500, call=(1700, 1710), tid=tid, bytes=8)
    return export


def kinds(timeline: Timeline) -> list[Kind]:
    """Kinds of the copy, the kernel and the memset of `inside`."""
    return [Kind(kind) for kind in timeline.ranks[0].ops.kind.tolist()[1:]]


COMM, PLAIN = [Kind.COMM, Kind.COMM, Kind.COPY], [Kind.COPY, Kind.COMPUTE, Kind.COPY]
ONLY_COPY = [Kind.COMM, Kind.COMPUTE, Kind.COPY]
"""A copy between GPUs in a range that names a collective is one; a kernel there may be anything."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, COMM) for name in ("ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclGroupEnd", "ncclSend")),
        *((name, COMM) for name in ("ncclRecv", "ncclAlltoAll", "ncclBroadcast", "ncclReduce", "ncclGroupStart")),
        *((name, PLAIN) for name in ("ncclCommInitRank", "ncclCommInitAll", "ncclCommSplit", "ncclMemAlloc", "other")),
    ],
)
def test_what_a_collective_call_launches_is_communication(name: str, expected: list[Kind], tmp_path: Path) -> None:
    timeline = opened(inside(name), tmp_path)
    assert kinds(timeline) == expected
    assert (timeline.ranks[0].ops.nccl != NONE).tolist() == [False] + [expected is COMM] * 3


def test_the_call_must_be_on_the_thread_of_the_range(tmp_path: Path) -> None:
    timeline = opened(inside("ncclAllGather", tid=12), tmp_path)
    assert kinds(timeline) == PLAIN
    assert timeline.ranks[0].ops.nccl.tolist() == [NONE] * 4


def test_the_call_must_start_inside_the_range(tmp_path: Path) -> None:
    export = inside("ncclAllGather")
    for start, at in ((999, 4000), (1000, 4100), (1999, 4200), (2000, 4300)):
        export.memcpy(at, at + 50, call=(start, 2100), tid=11)
    assert kinds(opened(export, tmp_path))[3:] == [Kind.COPY, Kind.COMM, Kind.COMM, Kind.COPY]


def test_a_kernel_in_a_range_of_that_name_in_another_domain_is_somebody_elses(tmp_path: Path) -> None:
    export = inside("ncclAllGather", domain=6)
    export.domain("my library", 6)
    assert kinds(opened(export, tmp_path)) == ONLY_COPY


def test_torchs_own_range_in_the_default_domain_tells_of_copies_between_gpus(tmp_path: Path) -> None:
    assert kinds(opened(inside("nccl:all_gather", domain=0), tmp_path)) == ONLY_COPY
    (tmp_path / "report.sqlite").unlink()
    assert kinds(opened(inside("ncclAllGather", domain=0), tmp_path)) == ONLY_COPY


def test_without_the_row_that_creates_the_domain_the_name_tells(tmp_path: Path) -> None:
    assert kinds(opened(inside("ncclAllGather", created=False), tmp_path)) == COMM
    (tmp_path / "report.sqlite").unlink()
    assert kinds(opened(inside("allGather", created=False), tmp_path)) == PLAIN
    (tmp_path / "report.sqlite").unlink()
    export = inside("ncclAllGather", created=False)
    export.domain("", NCCL_DOMAIN)["text"] = None  # created, and its name lost
    assert kinds(opened(export, tmp_path)) == COMM


def test_domain_ids_belong_to_a_process(tmp_path: Path) -> None:
    export = Export()
    for pid, names in ((100, {1: "NCCL", 2: "mine"}), (200, {1: "mine", 2: "NCCL"})):
        for number, name in names.items():
            export.domain(name, number, pid=pid)
        export.kernel(GEMM, 0, 10, pid=pid)
        export.range("ncclAllGather", 1000, 2000, pid=pid, domain=1)
        export.memcpy(3000, 3100, call=(1500, 1510), pid=pid, copyKind=DTOD)
    timeline = opened(export, tmp_path)
    assert [rank.ops.kind.tolist()[-1] for rank in timeline.ranks] == [Kind.COMM, Kind.COPY]


def test_nccl_by_name_needs_no_launch_and_no_stream_of_its_own(tmp_path: Path) -> None:
    export = Export()
    export.kernel(GEMM, 0, 10, stream=7)
    export.kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t(a, b)", 20, 30, stream=7)
    export.kernel("ncclAllReduceRingLLKernel_sum_f32(args)", 40, 50, stream=9)
    export.kernel("ncclDevKernel_SendRecv(args)", 60, 70, stream=7)
    export.kernel("void vllm::cross_device_reduce_1stage<float, 8>(args)", 80, 90, stream=7)
    export.kernel("void at::native::reduce_kernel<512>(args)", 100, 110, stream=9)
    kinds_ = opened(export, tmp_path).ranks[0].ops.kind.tolist()
    assert kinds_ == [Kind.COMPUTE, *[Kind.COMM] * 4, Kind.COMPUTE]


def test_a_negative_or_missing_process_is_a_process(tmp_path: Path) -> None:
    export = Export()
    export.kernel(GEMM, 0, 10)["globalPid"] = None
    export.kernel(GEMM, 20, 30)["globalPid"] = global_pid(PID) | 1 << 62
    assert [len(rank.ops) for rank in opened(export, tmp_path).ranks] == [1, 1]
