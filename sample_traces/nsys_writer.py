"""Writes a laid-out job as Nsight Systems SQLite exports."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from layout import Job
from nsys_schema import ENUMS, Schema
from placed import (
    AUTOGRAD,
    DEFAULT,
    INIT_SCHEMA,
    MAIN,
    NCCL,
    NEVER,
    PAYLOAD_SCHEMA,
    Call,
    Capture,
    Op,
    Range,
    Rank,
    Segment,
    Sync,
)

VIRTUAL_MACHINE = 1 << 48
GPU_NAME = "NVIDIA H100 80GB HBM3"
PAGEABLE, PINNED, DEVICE = 0, 1, 2
"""Kinds of memory."""
NVTX_RANGE, NVTX_MARK, NVTX_DOMAIN = 59, 34, 75
DRIVER_CALLS = {
    "cudaLaunchKernel_v7000": "cuLaunchKernel",
    "cudaLaunchKernelExC_v11060": "cuLaunchKernelEx",
    "cudaGraphLaunch_v10000": "cuGraphLaunch",
}


@dataclass(slots=True)
class Strings:
    """nsys's table of strings."""

    ids: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        """The id of a text."""
        return self.ids.setdefault(text, len(self.ids) + 1)


class Writer:
    """Writes one capture."""

    def __init__(self, job: Job, capture: Capture, schema: Schema) -> None:
        self.job = job
        self.capture = capture
        self.schema = schema
        self.string_id = Strings()
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.duration_ns = 0

    def write(self, folder: Path) -> Path:
        """Write the file, replacing an older one."""
        self._capture_facts()
        for number in self.capture.ranks:
            rank = self.job.ranks[number]
            self._process(rank)
            for op in rank.ops:
                self._op(rank, op)
            for call in rank.calls:
                self._call(rank, call)
            for sync in rank.syncs:
                self._sync(rank, sync)
            for segment in rank.segments:
                self._segment(rank, segment)
            self._nvtx(rank)
        for text, number in self.string_id.ids.items():
            self._add("StringIds", id=number, value=text)
        path = folder / self.capture.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._store(path)
        return path

    def _store(self, path: Path) -> None:
        with sqlite3.connect(path) as database:
            for statement in self.schema.create_statements():
                database.execute(statement)
            for table, rows in self.rows.items():
                columns = self.schema.column_names(table)
                marks = ", ".join("?" * len(columns))
                database.executemany(
                    f"INSERT INTO {table} VALUES ({marks})", ([row.get(c) for c in columns] for row in rows)
                )
            for table, members in ENUMS.items():
                database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", members)
            self._drop_empty(database)
        database.execute("VACUUM")
        database.close()

    def _drop_empty(self, database: sqlite3.Connection) -> None:
        """nsys makes a table only when it has rows for it."""
        for table in self.schema.tables:
            if not self.rows.get(table):
                database.execute(f"DROP TABLE {table}")

    def _add(self, table: str, **values: object) -> None:
        self.rows.setdefault(table, []).append(values)

    def _at(self, op: Op | Call | Range | Sync) -> dict[str, int | None]:
        end = op.end if op.end is None else self.capture.local(op.end)
        if op.end is not None and op.end >= NEVER:  # nsys puts the capture's length where a range was never left
            end = self.duration_ns
        return {"start": self.capture.local(op.start), "end": end}

    def _capture_facts(self) -> None:
        members = [self.job.ranks[number] for number in self.capture.ranks]
        last = max(max(op.end for op in rank.ops) for rank in members)
        stop = self.capture.local(max(last, *(rank.host_ns for rank in members)) + 21_480_337)
        start = self.capture.start_ns
        self.duration_ns = stop - start
        self._add("ANALYSIS_DETAILS", globalVid=VIRTUAL_MACHINE, duration=stop - start, startTime=start, stopTime=stop)
        when = datetime.fromtimestamp(self.capture.epoch_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        self._add(
            "TARGET_INFO_SESSION_START_TIME",
            utcEpochNs=self.capture.epoch_ns,
            utcTime=when,
            localTime=when,
            systemClockNs=start,
        )
        for name, value in self.schema.metadata():
            self._add(self.schema.metadata_table, name=name, value=value)
        if "META_DATA_CAPTURE" in self.schema.tables:
            for event_type in ("NvtxEvents", "Cuda"):
                self._add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=event_type)
            self._add("META_DATA_CAPTURE", name="CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Graph")
        for device in range(min(self.job.devices_per_host, self.job.world_size)):
            self._gpu(device)

    def _gpu(self, device: int) -> None:
        self._add(
            "TARGET_INFO_GPU",
            vmId=VIRTUAL_MACHINE,
            id=device,
            name=GPU_NAME,
            busLocation=f"0000:{0x1B + 0x20 * device:02x}:00.0",
            isDiscrete=1,
            l2CacheSize=52_428_800,
            totalMemory=85_028_765_696,
            memoryBandwidth=3_352_320_000_000,
            clockRate=1_980_000_000,
            smCount=132,
            chipName="GH100",
            cuDevice=device,
            threadsPerWarp=32,
            computeMajor=9,
            computeMinor=0,
        )

    def _process(self, rank: Rank) -> None:
        pid = self._pid(rank)
        self._add("PROCESSES", globalPid=pid, pid=rank.pid, name="python3")
        for thread, name in ((MAIN, "python3"), (AUTOGRAD, f"pt_autograd_{rank.device}")):
            self._add("ThreadNames", nameId=self.string_id(name), priority=20, globalTid=self._tid(rank, thread))
        for stream in rank.stream_ids.values():
            self._add(
                "TARGET_INFO_CUDA_STREAM",
                streamId=stream,
                hwId=0,
                vmId=1,
                processId=rank.pid,
                contextId=1,
                priority=0,
                flag=2,
            )
        if "TARGET_INFO_CUDA_DEVICE" in self.schema.tables:
            self._add(
                "TARGET_INFO_CUDA_DEVICE", gpuId=rank.device, cudaId=rank.device, pid=rank.pid, numMultiprocessors=132
            )

    def _pid(self, rank: Rank) -> int:
        return VIRTUAL_MACHINE | rank.pid << 24

    def _tid(self, rank: Rank, thread: str) -> int:
        return self._pid(rank) | (rank.pid if thread == MAIN else rank.pid + 211)

    def _op(self, rank: Rank, op: Op) -> None:
        common: dict[str, object] = {
            **self._at(op),
            "deviceId": rank.device,
            "contextId": 1,
            "streamId": op.stream,
            "correlationId": op.call.correlation,
            "globalPid": self._pid(rank),
        }
        if op.source == "memcpy":
            host = PINNED if op.pinned else PAGEABLE
            ends = (host, DEVICE) if op.copy_kind == 1 else (DEVICE, host)
            copied = {
                "bytes": op.bytes,
                "copyKind": op.copy_kind,
                "srcKind": ends[0],
                "dstKind": ends[1],
                "copyCount": 1,
            }
            self._add("CUPTI_ACTIVITY_KIND_MEMCPY", **common, **copied)
        elif op.source == "memset":
            self._add("CUPTI_ACTIVITY_KIND_MEMSET", **common, value=0, bytes=op.bytes, memKind=DEVICE)
        elif op.source == "graph":
            self._add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **common, graphId=3, graphExecId=5)
        else:
            self._kernel(op, common)

    def _kernel(self, op: Op, common: dict[str, object]) -> None:
        kernel = op.kernel
        assert kernel is not None
        shape = zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), kernel.grid + kernel.block, strict=True)
        zeros = dict.fromkeys(
            ("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal"), 0
        )
        self._add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **common,
            **dict(shape),
            **zeros,
            demangledName=self.string_id(kernel.name),
            shortName=self.string_id(kernel.short_name),
            launchType=1,
            cacheConfig=0,
            registersPerThread=kernel.registers,
            gridId=op.call.correlation,
            graphNodeId=op.graph_node,
            clusterX=0,
            clusterY=0,
            clusterZ=0,
            tensorSizeMinusOneElements="[]",
        )

    def _call(self, rank: Rank, call: Call) -> None:
        if call.end >= NEVER:  # a call is written down when it returns
            return
        common = {
            "globalTid": self._tid(rank, call.thread),
            "correlationId": call.correlation,
            "returnValue": call.returned,
        }
        self._add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", **self._at(call), eventClass=0, nameId=self.string_id(call.name), **common
        )
        if self.schema.driver_rows and call.name in DRIVER_CALLS:
            inside = {"start": self.capture.local(call.start) + 310, "end": self.capture.local(call.end) - 270}
            name = self.string_id(DRIVER_CALLS[call.name])
            self._add("CUPTI_ACTIVITY_KIND_RUNTIME", **inside, eventClass=1, nameId=name, **common)

    def _sync(self, rank: Rank, sync: Sync) -> None:
        self._add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **self._at(sync),
            deviceId=rank.device,
            contextId=1,
            streamId=sync.stream,
            correlationId=sync.call.correlation,
            globalPid=self._pid(rank),
            syncType=sync.type,
            eventId=sync.event,
            eventSyncId=sync.event,
        )

    def _segment(self, rank: Rank, segment: Segment) -> None:
        for freed, call in enumerate((segment.taken, segment.given_back)):
            if call is None:
                continue
            self._add(
                "CUDA_GPU_MEMORY_USAGE_EVENTS",
                start=self.capture.local(call.start),
                globalPid=self._pid(rank),
                deviceId=rank.device,
                contextId=1,
                address=segment.address,
                pc=0,
                bytes=segment.bytes,
                memKind=DEVICE,
                memoryOperationType=freed,
                correlationId=call.correlation,
            )

    def _nvtx(self, rank: Rank) -> None:
        domains = self._domains(rank)
        for item in rank.ranges:
            row: dict[str, object] = {
                **self._at(item),
                "eventType": NVTX_MARK if item.end is None else NVTX_RANGE,
                "globalTid": self._tid(rank, item.thread),
                "domainId": domains[item.domain],
                "int64Value": item.value,
            }
            if item.domain == DEFAULT:
                row["text"] = item.name
            else:
                row["textId"] = self.string_id(item.name)
            if item.payload and self.schema.payload_blobs:
                row["binaryData"] = _blob(domains[item.domain], *item.payload)
            self._add("NVTX_EVENTS", **row)

    def _domains(self, rank: Rank) -> dict[str, int]:
        """Domain ids, which each process numbers for itself, with the rows that create them."""
        used = list(dict.fromkeys(item.domain for item in rank.ranges if item.domain != DEFAULT))
        if rank.rank % 2:
            used.reverse()
        first = min(item.start for item in rank.ranges)
        ids = {domain: number for number, domain in enumerate(used, start=1)}
        for domain, number in ids.items():
            start = self.capture.local(first) - 9_000 + 700 * number
            tid = self._tid(rank, MAIN)
            self._add("NVTX_EVENTS", start=start, eventType=NVTX_DOMAIN, text=domain, globalTid=tid, domainId=number)
        if NCCL in ids and self.schema.payload_blobs:
            for row in _payload_schemas(ids[NCCL]):
                self._add("NVTX_PAYLOAD_SCHEMAS", **row)
        return ids | {DEFAULT: 0}


def _blob(domain: int, schema_id: int, payload: bytes) -> bytes:
    """A payload as nsys stores it: domain, schema, size and offset in 32 bytes, then the payload."""
    return b"".join(n.to_bytes(8, "little") for n in (domain, schema_id, len(payload), 32)) + payload


def _payload_schemas(domain: int) -> Iterable[dict[str, object]]:
    sizes = {INIT_SCHEMA: (4, 24)} | {
        number: (2, 16) if number & 0xFF == 4 else (3, 24) for number in PAYLOAD_SCHEMA.values()
    }
    for number, (entries, size) in sorted(sizes.items()):
        yield {"domainId": domain, "schemaId": number, "type": 1, "numEntries": entries, "payloadSize": size}
