"""Writes small SQLite files in the schema of any nsys version, row by row, damage included.

::

    export = Export("2022.4")
    export.kernel("gemm", 1000, 1500, call=(800, 900))
    export.range("step", 0, 2000)
    path = export.write(tmp_path / "report.sqlite")

Tables exist only where they have rows, as nsys makes them. No column is declared NOT NULL and no value is checked, so
that a test can put anything anywhere: `add` takes any table and any column, and returns the row for later changes.
"""

from __future__ import annotations

import sqlite3
import struct
from itertools import groupby
from pathlib import Path
from random import Random

VERSIONS = {
    "2022.2": "2.9.1",
    "2022.4": "3.0.0",
    "2023.3": "3.4.0",
    "2023.4": "3.7.2",
    "2024.5": "3.13.2",
    "2024.6": "3.16.1",
    "2025.1": "3.17.2",
    "2025.5": "3.24.0",
    "2026.2": "3.25.0",
}
"""Export schema by nsys version."""

KERNEL, GRAPH, MEMCPY, MEMSET, RUNTIME, SYNC = (
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
)
_ACTIVITY = "start end deviceId contextId streamId correlationId globalPid "
COLUMNS = {
    "StringIds": "id value",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "TARGET_INFO_GPU": "vmId id name busLocation cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName name nameEnum value",
    "PROCESSES": "globalPid pid name",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text globalPid",
    KERNEL: _ACTIVITY + "demangledName shortName mangledName gridX blockX graphNodeId",
    GRAPH: _ACTIVITY + "graphId graphExecId",
    MEMCPY: _ACTIVITY + "bytes copyKind srcKind dstKind graphNodeId",
    MEMSET: _ACTIVITY + "value bytes graphNodeId memKind",
    RUNTIME: "start end eventClass globalTid correlationId nameId returnValue callchainId",
    SYNC: _ACTIVITY + "syncType eventId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value"
    " int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText",
    "OSRT_API": "start end eventClass globalTid correlationId nameId returnValue nestingLevel callchainId",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
    "EXPORT_META_DATA": "name value",
}
"""Columns of the tables that tracekit reads, as most versions have them."""
_TYPES = dict.fromkeys(
    ("text", "name", "utcTime", "localTime", "busLocation", "uuid", "jsonText", "binaryData"), "TEXT"
)
_TYPES |= {"devStateName": "TEXT", "doubleValue": "REAL", "floatValue": "REAL"}
_TYPED_BY_TABLE = {(MEMSET, "value"): "INTEGER"}

PUSH_POP, START_END, MARK, CATEGORY, DOMAIN_CREATE, DOMAIN_DESTROY = 59, 60, 34, 33, 75, 76
PINNED, PAGEABLE, DEVICE = 1, 0, 2
HTOD, DTOH, DTOD, PTOP = 1, 2, 8, 10
NCCL_DOMAIN = 5
VIRTUAL_MACHINE = 1 << 48
PID = 4000


def global_pid(pid: int) -> int:
    """hw(8) vm(8) pid(24) tid(24) bits, the thread bits zero."""
    return VIRTUAL_MACHINE | pid << 24


def global_tid(pid: int, tid: int | None = None) -> int:
    return global_pid(pid) | (pid if tid is None else tid)


def nccl_header(size: int, number: int, domain: int = NCCL_DOMAIN) -> bytes:
    """The 32 bytes that stand before a payload in ``binaryData``: domain, schema, size, offset."""
    return struct.pack("<QQQQ", domain, (1 << 24) + number, size, 32)


class Export:
    """One export being put together."""

    def __init__(self, version: str = "2023.4") -> None:
        self.version = version
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.columns = {table: columns.split() for table, columns in COLUMNS.items()}
        if version >= "2023.4":
            for table in (KERNEL, GRAPH, MEMCPY, MEMSET, SYNC):
                self.columns[table].insert(4, "greenContextId")
        if version >= "2024.6":
            self.columns["NVTX_EVENTS"].append("binaryData")
        if version >= "2026.2":
            self.columns[SYNC] += ["deprecatedSyncType", "eventSyncId"]
        self._strings: dict[str | bytes, int] = {}
        self._correlation = 100
        for name, value in (("EXPORT_PRODUCT_VERSION", f"{version}.1.1"), ("EXPORT_SCHEMA_VERSION", VERSIONS[version])):
            self.add("EXPORT_META_DATA" if version < "2023" else "META_DATA_EXPORT", name=name, value=value)

    def add(self, table: str, **values: object) -> dict[str, object]:
        """Add a row; columns that it does not name are NULL."""
        self.rows.setdefault(table, []).append(values)
        return values

    def string(self, text: str | bytes) -> int:
        """The id of a text in StringIds. Bytes are stored as text that need not be UTF-8."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def correlation(self) -> int:
        """A correlation id that nothing has yet."""
        self._correlation += 1
        return self._correlation

    def call(
        self,
        start: int,
        end: int,
        correlation: int,
        *,
        name: str = "cudaLaunchKernel_v7000",
        pid: int = PID,
        tid: int | None = None,
    ) -> dict[str, object]:
        """A row of the CUDA API."""
        return self.add(
            RUNTIME,
            start=start,
            end=end,
            globalTid=global_tid(pid, tid),
            correlationId=correlation,
            nameId=self.string(name),
            returnValue=0,
        )

    def op(
        self,
        table: str,
        start: int | None,
        end: int | None,
        *,
        call: tuple[int, int] | None = None,
        pid: int = PID,
        tid: int | None = None,
        device: int = 0,
        stream: int = 7,
        **columns: object,
    ) -> dict[str, object]:
        """A GPU operation, with the call that launched it where ``call`` gives its start and end."""
        correlation = self.correlation()
        if call is not None:
            self.call(*call, correlation, pid=pid, tid=tid)
        row = {
            "start": start,
            "end": end,
            "deviceId": device,
            "contextId": 1,
            "streamId": stream,
            "correlationId": correlation,
            "globalPid": global_pid(pid),
        }
        return self.add(table, **row | columns)

    def kernel(self, name: str, start: int | None, end: int | None, **more: object) -> dict[str, object]:
        """A kernel; ``more`` as for `op`."""
        return self.op(
            KERNEL,
            start,
            end,
            **{"demangledName": self.string(name), "shortName": self.string(name.partition("(")[0])} | more,
        )

    def memcpy(self, start: int, end: int, **more: object) -> dict[str, object]:
        """A copy from pinned host memory; ``more`` as for `op`."""
        return self.op(
            MEMCPY, start, end, **{"bytes": 1024, "copyKind": HTOD, "srcKind": PINNED, "dstKind": DEVICE} | more
        )

    def range(
        self,
        name: str | None,
        start: int,
        end: int | None,
        *,
        pid: int = PID,
        tid: int | None = None,
        domain: int = 0,
        **columns: object,
    ) -> dict[str, object]:
        """A push/pop range with its name in ``text``."""
        row = {
            "start": start,
            "end": end,
            "eventType": PUSH_POP,
            "text": name,
            "globalTid": global_tid(pid, tid),
            "domainId": domain,
        }
        return self.add("NVTX_EVENTS", **row | columns)

    def domain(self, name: str, number: int, *, pid: int = PID) -> dict[str, object]:
        """The row that creates an NVTX domain."""
        return self.range(name, 0, None, pid=pid, domain=number, eventType=DOMAIN_CREATE)

    def write(self, path: Path, *, shuffled: int | None = None, without_rowid: bool = False) -> Path:
        """Write the file; ``shuffled`` is the seed of an order of rows."""
        database = sqlite3.connect(path)
        database.execute("PRAGMA synchronous = OFF")
        for table, rows in self.rows.items():
            columns = list(dict.fromkeys([*self.columns.get(table, ()), *(name for row in rows for name in row)]))
            serial = without_rowid and table != "StringIds"  # which has a key of its own
            declared = [f'"{name}" {_type(table, name)}' for name in columns] + ["serial INTEGER PRIMARY KEY"] * serial
            database.execute(f"CREATE TABLE {table} ({', '.join(declared)}) {'WITHOUT ROWID' if without_rowid else ''}")
            ordered = rows if shuffled is None else Random(shuffled).sample(rows, len(rows))
            numbered = (row | ({"serial": number} if serial else {}) for number, row in enumerate(ordered))
            for form, alike in groupby(numbered, _form):
                _insert(database, table, form, [list(row.values()) for row in alike])
        database.commit()
        database.close()
        return path


JOB_STEP_NS = 10_000
JOB_TOTALS = {
    "wall_ns": 22_700,
    "compute_ns": 4_500,
    "exposed_comm_ns": 1_800,
    "exposed_copy_ns": 600,
    "idle_ns": 15_800,
    "comm_ns": 1_800,
    "overlapped_comm_ns": 0,
    "overlap_ratio": 0.0,
}
"""The totals of `small_job`, by hand: from the first copy at 500 ns to the end of the last all-reduce at 23200."""


def small_job(version: str = "2023.4", *, pid: int = PID, steps: int = 3) -> Export:
    """One rank, ``steps`` steps of 10 us: a copy, a matrix product, an all-reduce, in turn on streams of their own."""
    export = Export(version)
    for step in range(steps):
        t = step * JOB_STEP_NS
        export.range(f"train_step {step}", t, t + 9000, pid=pid)
        export.memcpy(t + 500, t + 700, call=(t + 300, t + 400), stream=9, pid=pid)
        export.kernel("ampere_sgemm_128x64(float*)", t + 1000, t + 2500, call=(t + 800, t + 900), pid=pid)
        export.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            t + 2600,
            t + 3200,
            call=(t + 1810, t + 1910),
            stream=20,
            pid=pid,
        )
    return export


def _form(row: dict[str, object]) -> tuple[tuple[str, bool], ...]:
    """Columns of a row, each with whether it holds raw text."""
    return tuple((name, _is_raw_text(name, value)) for name, value in row.items())


def _insert(
    database: sqlite3.Connection, table: str, form: tuple[tuple[str, bool], ...], rows: list[list[object]]
) -> None:
    names = ", ".join(f'"{name}"' for name, _ in form)
    marks = ", ".join("CAST(? AS TEXT)" if raw else "?" for _, raw in form)
    database.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)


def _type(table: str, column: str) -> str:
    if (table, column) == ("StringIds", "id"):
        return "INTEGER PRIMARY KEY"
    if column == "value":
        return _TYPED_BY_TABLE.get((table, column), "TEXT")
    return _TYPES.get(column, "INTEGER")


def _is_raw_text(column: str, value: object) -> bool:
    """Text that may be invalid UTF-8, rather than a blob."""
    return isinstance(value, bytes) and column != "binaryData"
