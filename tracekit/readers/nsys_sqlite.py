"""Reads nsys's SQLite export, any version: tables and columns are discovered, any may be missing, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import mark_fields
from tracekit.errors import CaptureError
from tracekit.intervals import Cover
from tracekit.kernel_classes import BY_NAME, KernelClasses
from tracekit.launch_ranges import named_ops, range_around
from tracekit.readers.database import Column, Database, Progress, as_text
from tracekit.readers.nccl_payload import parse_comm_init
from tracekit.readers.nsys_facts import Gpus, diagnostics, environment_rank, epoch_of_zero, host, stop_time, versions
from tracekit.readers.nsys_gpu import PEER_COPY, kinds, read_gpu
from tracekit.readers.nsys_gpu import TABLES as GPU_TABLES
from tracekit.readers.nsys_host import (
    launching_call,
    process_calls,
    process_ranges,
    process_syncs,
    read_calls,
    read_long_os_calls,
    read_nvtx,
    read_os_calls,
    read_syncs,
)
from tracekit.readers.nsys_memory import process_memory, read_memory
from tracekit.readers.nsys_tables import NULL, PID_MASK, Columns, Tables, all_or, rows_by_value, sorted_rows, take
from tracekit.readers.raw import LARGEST_RANK, Names, RankClaim, RawCapture, RawTrack
from tracekit.timeline import NONE, CaptureInfo, Kind, Ops, Process, Ranges, Source

OTHER_TABLES = (
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "ANALYSIS_DETAILS",
    "StringIds",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_SESSION_START_TIME",
)
REMEDIES = {
    "nvtx": ("steps, phases and modules (no NVTX ranges)", "nsys profile -t cuda,nvtx, and annotate the training loop"),
    "launch_rows": (
        "which host code launched a kernel (no CUDA API rows)",
        "nsys profile -t cuda,nvtx, all API calls kept",
    ),
    "nccl_payload": (
        "message sizes and communicators (no NCCL payloads)",
        "nsys 2024.6 or newer, and nsys export --type sqlite --include-blobs=true",
    ),
    "graph_nodes": ("what runs inside CUDA graphs (traced as a whole)", "nsys profile --cuda-graph-trace=node"),
    "memory": ("GPU memory (no memory events)", "nsys profile --cuda-memory-usage=true"),
}
"""By what a capture may lack: what cannot be told without it, and how to capture it."""


def read_nsys_sqlite(
    database: Database,
    names: Names,
    *,
    capture: int,
    path: str,
    file_format: str = "nsys-sqlite",
    progressing: Callable[[str], Progress | None] = lambda _: None,
    classes: KernelClasses = BY_NAME,
) -> RawCapture:
    """Read one capture. ``capture`` is its index in the job; ``names`` is added to; ``classes`` is the user's word.

    Raises `CaptureError` when it is no nsys export, or its rows cannot be true (an operation that ends before it
    starts).
    """
    if not any(table in database for table in (*GPU_TABLES.values(), *OTHER_TABLES)):
        raise CaptureError(
            f"{path}: an SQLite file, but not an nsys export (none of its tables is there)",
            hint="Make one: nsys export --type sqlite --include-blobs=true REPORT.nsys-rep",
        )
    tables = Tables(database, names, path, progressing)
    gpu, unfinished = read_gpu(tables)
    stop_ns = stop_time(database)
    calls = read_calls(tables, stop_ns)
    nvtx = read_nvtx(tables, stop_ns)
    syncs = read_syncs(tables)
    memory = read_memory(tables)
    os_calls = read_os_calls(tables) if nvtx.columns["open"].any() else {}
    long_os_calls = read_long_os_calls(tables)
    lacks = _lacks(gpu, calls, nvtx.columns, memory, has_payload=bool(nvtx.payload))

    # Launchers and data workers are processes too, but say nothing: only those with GPU work or NVTX are kept. Without
    # any GPU work those that called CUDA are, for they tell what went wrong.
    range_pid, call_pid = nvtx.columns["thread"] & PID_MASK, calls["thread"] & PID_MASK
    pids = np.union1d(gpu["globalPid"] if len(gpu["start"]) else call_pid, range_pid)
    of_gpu, of_range = rows_by_value(gpu["globalPid"], pids), rows_by_value(range_pid, pids)
    of_call, of_sync = rows_by_value(call_pid, pids), rows_by_value(syncs["globalPid"], pids)
    of_memory = rows_by_value(memory["globalPid"], pids)
    called_by = np.full(len(gpu["start"]), NONE, np.int32)
    inside_nccl = np.full(len(gpu["start"]), NONE, np.int32)
    between_gpus = gpu["name"] == names.find(PEER_COPY)
    is_peer_comm = np.zeros(len(between_gpus), np.bool_)
    process_names = {pid: as_text(name) for pid, name in database.small("PROCESSES", "globalPid", "name")}
    processes: list[Process] = []
    claims: list[tuple[RankClaim, ...]] = []
    for i, global_pid in enumerate(pids.tolist()):
        own_calls, index, open_calls = process_calls(take(calls, of_call[i]))
        lasting = launching_call(index, unfinished["correlationId"][unfinished["globalPid"] == global_pid], own_calls)
        ranges = process_ranges(nvtx, of_range[i])
        called_by[of_gpu[i]] = launching_call(index, gpu["correlationId"][of_gpu[i]], own_calls)
        inside_nccl[of_gpu[i]] = range_around(
            own_calls, ranges, nvtx.columns["nccl"][of_range[i]], called_by[of_gpu[i]]
        )
        if len(peers := of_gpu[i][between_gpus[of_gpu[i]]]):
            said = named_ops(own_calls, ranges, names, called_by[peers])
            is_peer_comm[peers] = [op is not None for op in said]
        marks = tuple(nvtx.marks.get(global_pid, ()))
        claims.append(_claims(marks, ranges, names))
        processes.append(
            Process(
                capture=capture,
                pid=(global_pid >> 24) & 0xFFFFFF,
                name=process_names.get(global_pid),
                calls=own_calls,
                ranges=ranges,
                marks=marks,
                syncs=process_syncs(syncs, of_sync[i], own_calls, index),
                claim=next(((each.rank, each.source) for each in claims[i] if each.device is None), None),
                open_calls=open_calls,
                unfinished=lasting[lasting != NONE],
                os_calls=tuple(os_calls.get(global_pid, ())),
                long_os_calls=tuple(long_os_calls.get(global_pid, ())),
                memory=process_memory(memory, of_memory[i]),
            )
        )
    del calls, nvtx
    gpu |= {"kind": kinds(tables, gpu, inside_nccl, is_peer_comm, classes), "call": called_by, "nccl": inside_nccl}
    tracks, auxiliary = _tracks(database, gpu, of_gpu, processes, _overhead(tables))
    return RawCapture(
        info=CaptureInfo(
            path=path,
            format=file_format,
            **versions(database),
            host=host(database),
            start_epoch_ns=epoch_of_zero(database),
            stop_ns=stop_ns,
            lacks=lacks,
            diagnostics=diagnostics(database),
            notes=tuple(tables.notes),
            auxiliary=auxiliary,
        ),
        processes=tuple(processes),
        tracks=tracks,
        claims=dict(enumerate(claims)),
        communicators={i: tuple(found) for i, p in enumerate(processes) if (found := _communicators(p.ranges, names))},
        environment_rank=environment_rank(database),
    )


def _tracks(
    database: Database,
    gpu: Columns,
    of_gpu: Sequence[NDArray[np.intp]],
    processes: Sequence[Process],
    overhead: Cover | None,
) -> tuple[tuple[RawTrack, ...], tuple[tuple[int, int], ...]]:
    """(pairs of process and device that are ranks, pairs that only copy)."""
    tracks, auxiliary = [], []
    gpus = Gpus(database)
    for i, rows in enumerate(of_gpu):
        devices = np.unique(gpu["deviceId"][rows])
        for device, picked in zip(devices.tolist(), rows_by_value(gpu["deviceId"][rows], devices), strict=True):
            own = rows[picked]
            pid = processes[i].pid
            if not np.any(gpu["kind"][own] != Kind.COPY):
                auxiliary.append((pid, device))
                continue
            order = sorted_rows(gpu["start"][own], gpu["end"][own])
            picked_rows = all_or(own if order is None else own[order], len(gpu["start"]))
            ops = Ops(
                start=gpu["start"][picked_rows],
                end=gpu["end"][picked_rows],
                stream=gpu["streamId"][picked_rows],
                kind=gpu["kind"][picked_rows],
                source=gpu["source"][picked_rows],
                name=gpu["name"][picked_rows],
                call=gpu["call"][picked_rows],
                nccl=gpu["nccl"][picked_rows],
                grid=gpu["grid"][picked_rows],
                bytes=gpu["bytes"][picked_rows],
                pageable=gpu["pageable"][picked_rows],
            )
            physical = gpus.of(pid, device)
            window = ops.start[:1], ops.end.max(keepdims=True)
            tracks.append(
                RawTrack(
                    process=i,
                    pid=pid,
                    device=device,
                    device_name=physical.name,
                    ops=ops,
                    device_memory=physical.memory,
                    gpu=physical.number,
                    pci_bus=physical.pci_bus,
                    overhead_ns=int(overhead.within(*window)[0]) if overhead is not None else None,
                )
            )
    return tuple(tracks), tuple(auxiliary)


def _claims(marks: Sequence[tuple[str | None, str]], ranges: Ranges, names: Names) -> tuple[RankClaim, ...]:
    claims = []
    for domain, text in marks:
        rank = _rank_in_mark(text) if domain in ("tracekit", None) else None
        if rank is not None:
            claims.append(RankClaim(rank=rank, source="trainer_mark"))
            break
    largest: dict[int, tuple[int, int]] = {}
    for _, ranks, rank, device in _communicators(ranges, names):
        largest[device] = max(largest.get(device, (0, 0)), (ranks, rank))
    world = max((ranks for ranks, _ in largest.values()), default=0)
    claims += [
        RankClaim(rank=rank, source="nccl_comm_init", device=device if len(largest) > 1 else None)
        for device, (ranks, rank) in largest.items()
        if ranks == world > 1
    ]
    return tuple(claims)


def _rank_in_mark(text: str) -> int | None:
    fields = mark_fields(text)
    rank = fields.get("rank") if "world_size" in fields else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < LARGEST_RANK else None


def _communicators(ranges: Ranges, names: Names) -> list[tuple[int, int, int, int]]:
    found = []
    for row, blob in ranges.payload.items():
        if names[int(ranges.name[row])].startswith("ncclCommInit") and (init := parse_comm_init(blob)):
            found.append((init.communicator, init.ranks, init.rank, init.device))
    return found


def _lacks(gpu: Columns, calls: Columns, ranges: Columns, memory: Columns, *, has_payload: bool) -> tuple[str, ...]:
    missing = {
        "nvtx": len(ranges["start"]) == 0,
        "launch_rows": len(calls["start"]) == 0,
        "nccl_payload": not has_payload,
        "graph_nodes": bool(np.any(gpu["source"] == Source.GRAPH)),
        "memory": len(memory["time"]) == 0,
    }
    return tuple(key for key, lacking in missing.items() if lacking)


def _overhead(tables: Tables) -> Cover | None:
    """When the profiler worked on any thread, by its own record; None where it keeps none."""
    table = "PROFILER_OVERHEAD"
    columns = tables.read(table, (Column("start", ("start",), NULL), Column("end", ("end",), NULL)))
    columns = tables.finished(table, columns, "records of the profiler's overhead")
    return Cover.of(columns["start"], columns["end"]) if len(columns["start"]) else None
