"""What host threads did, from an nsys export: CUDA API calls, NVTX ranges and marks, synchronisations."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.annotations import base_name
from tracekit.kernels import nccl_call_op
from tracekit.readers.database import Column, as_numpy, integers
from tracekit.readers.nsys_tables import (
    NULL,
    PID_MASK,
    TIME_LIMIT,
    Columns,
    Int32,
    RowIndex,
    Tables,
    distinct_values,
    sorted_rows,
)
from tracekit.timeline import NONE, Calls, OsCall, Ranges, Syncs

PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
"""NVTX event types, as every version numbers them."""
DEFAULT_DOMAIN = 0
UNKNOWN_DOMAIN = -2
VERSION_SUFFIX = re.compile(r"_v\d+$|_ptsz$")
LONG_OS_CALL_NS = 500_000
"""Shorter calls of the operating system name no pause of a host."""
OS_CALLS_KEPT = 20_000
MARKS_KEPT = 1000
"""A run's description is one mark a process; more than this many JSON marks are somebody's log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NvtxRows:
    """NVTX of the whole capture: columns of ranges, sorted by (start, longest first), and what goes with them."""

    columns: Columns
    """start, end, open, thread, domain, name, value, nccl: the last marks ranges of NCCL's collective calls."""
    payload: dict[int, bytes]
    """Binary payload by row of ``columns``."""
    marks: dict[int, list[tuple[str | None, str]]]
    """(domain, text) of marks that hold JSON, by globalPid."""


def read_calls(tables: Tables, stop_ns: int | None) -> Columns:
    """CUDA API calls: start, end, thread, correlationId, name, open; sorted by (start, longest first).

    ``stop_ns`` is where calls end that never returned.
    """
    columns = tables.read(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        (
            Column("start", ("start",), NULL),
            Column("end", ("end",), NULL),
            *integers("globalTid", "correlationId", "nameId"),
        ),
        "CUDA API calls",
    )
    open_, columns["end"] = _closed(tables, stop_ns, columns["start"], columns["end"])
    columns["open"] = open_
    columns = tables.finished("CUPTI_ACTIVITY_KIND_RUNTIME", columns, "CUDA API calls")
    order = sorted_rows(columns["start"], -columns["end"])
    if order is not None:
        columns = {name: column[order] for name, column in columns.items()}
    columns["name"] = tables.strings(columns.pop("nameId"), lambda name: VERSION_SUFFIX.sub("", name))
    columns["thread"] = columns.pop("globalTid")
    return columns


def process_calls(columns: Columns) -> tuple[Calls, RowIndex, Int32]:
    """One process's calls, one row for each correlation id; the index that finds a call by it; which never returned.

    nsys 2022 writes a runtime and a driver row for one launch: the outer one, which starts first, stands.
    """
    ids = columns["correlationId"]
    # Id 0 is shared by all that was not launched (unified-memory migrations): never joined on.
    index = RowIndex(ids)
    first = index.find(ids.copy()) == np.arange(len(ids))
    first |= ids == 0
    if not first.all():
        columns = {name: column[first] for name, column in columns.items()}
        index = RowIndex(columns["correlationId"])
    calls = Calls(start=columns["start"], end=columns["end"], thread=columns["thread"], name=columns["name"])
    return calls, index, np.flatnonzero(columns["open"]).astype(np.int32)


def launching_call(index: RowIndex, correlation: NDArray[np.int64], calls: Calls) -> Int32:
    """Row of the call that launched each operation, or NONE."""
    if len(calls) == 0:
        return np.full(len(correlation), NONE, np.int32)
    found = index.find(correlation.copy())
    found[correlation == 0] = NONE
    return found


def read_nvtx(tables: Tables, stop_ns: int | None) -> NvtxRows:
    """All NVTX ranges and JSON marks. ``stop_ns`` is where ranges end that were never popped."""
    columns = tables.read(
        "NVTX_EVENTS",
        (
            Column("start", ("start",), NULL),
            Column("end", ("end",), NULL),
            Column("eventType", ("eventType",), PUSH_POP),
            *integers("globalTid", "domainId"),
            Column("textId", ("textId",), NULL),
            Column("text", ("text",), b""),
            Column("value", ("int64Value", "uint64Value", "int32Value", "uint32Value"), NULL),
            Column("payload", ("binaryData",), b""),
        ),
        "NVTX ranges",
    )
    name = _names(tables, columns.pop("textId"), columns.pop("text"))
    payload = columns.pop("payload")
    domain = _domains(columns, name)
    marks = _marks(tables, columns, name, domain)
    keep = np.flatnonzero((columns["start"] != NULL) & np.isin(columns["eventType"], (PUSH_POP, START_END)))
    start, end = columns["start"][keep], columns["end"][keep]
    open_, end = _closed(tables, stop_ns, start, end)
    if stop_ns is not None:
        open_ |= end == stop_ns
    sound = (start <= end) & (start >= -TIME_LIMIT) & (end <= TIME_LIMIT)
    if not sound.all():
        tables.note(int(np.count_nonzero(~sound)), "NVTX ranges have times that cannot be true and are left out")
        keep, start, end, open_ = keep[sound], start[sound], end[sound], open_[sound]
    order = sorted_rows(start, -end)
    if order is not None:
        keep, start, end, open_ = keep[order], start[order], end[order], open_[order]
    ranges = {
        "start": start,
        "end": end,
        "open": open_,
        "thread": columns["globalTid"][keep],
        "domain": domain[keep],
        "name": name[keep],
        "value": columns["value"][keep],
    }
    ranges["nccl"] = _is_nccl_call(tables, ranges)
    ranges["domain"] = np.maximum(ranges["domain"], NONE).astype(np.int32)
    return NvtxRows(columns=ranges, payload=_payloads(payload, keep), marks=marks)


def _names(tables: Tables, text_id: NDArray[np.int64], text: pa.BinaryArray) -> Int32:
    """Name of each row: its own text, else its registered string; NONE where it has neither."""
    name = tables.strings(text_id, base_name)
    encoded = text.dictionary_encode()
    own = tables.texts(encoded.dictionary, base_name)
    codes = as_numpy(encoded.indices)
    if len(codes) == 0:
        return name
    empty = tables.names.add("")
    picked = own[codes]
    return np.where(picked != empty, picked, np.where(name == empty, NONE, name)).astype(np.int32)


def _domains(columns: Columns, name: Int32) -> Int32:
    """Domain name of each row; NONE in the default domain, UNKNOWN_DOMAIN where its creation is not in the capture."""
    pid, domain_id = columns["globalTid"] & PID_MASK, columns["domainId"]
    answer = np.where(domain_id == DEFAULT_DOMAIN, NONE, UNKNOWN_DOMAIN).astype(np.int32)
    created = np.flatnonzero(columns["eventType"] == DOMAIN_CREATE)
    for row in created.tolist():
        if domain_id[row] != DEFAULT_DOMAIN and name[row] != NONE:
            answer[(domain_id == domain_id[row]) & (pid == pid[row])] = name[row]
    return answer


def _marks(tables: Tables, columns: Columns, name: Int32, domain: Int32) -> dict[int, list[tuple[str | None, str]]]:
    marks: dict[int, list[tuple[str | None, str]]] = {}
    rows = np.flatnonzero((columns["eventType"] == MARK) & (name != NONE))
    for row in rows.tolist():
        text = tables.names[int(name[row])]
        if not text.startswith("{"):
            continue
        where = tables.names[int(domain[row])] if domain[row] >= 0 else None
        kept = marks.setdefault(int(columns["globalTid"][row]) & PID_MASK, [])
        if len(kept) < MARKS_KEPT:
            kept.append((where, text))
    return marks


def _closed(
    tables: Tables, stop_ns: int | None, start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(which rows were open when the capture ended, the ends with theirs put in).

    Such a row ends at NULL, or at the capture's duration (which is no time of its clock unless that starts at 0).
    """
    durations = [row[0] for row in tables.db.small("ANALYSIS_DETAILS", "duration") if isinstance(row[0], int)]
    latest = int(max(start.max(initial=0), end.max(initial=0)))
    open_ = (start != NULL) & ((end == NULL) | (end == (durations[0] if durations else NULL)))
    return open_, np.where(open_, np.maximum(latest if stop_ns is None else stop_ns, start), end)


def read_os_calls(tables: Tables) -> dict[int, list[OsCall]]:
    """The last traced operating-system call of each thread, by globalPid."""
    found: dict[int, list[OsCall]] = {}
    durations = [row[0] for row in tables.db.small("ANALYSIS_DETAILS", "duration")]
    rows = [
        row
        for row in tables.db.latest("OSRT_API", "globalTid", "start", "end", "nameId")
        if all(isinstance(value, int) for value in (row[0], row[1], row[3]))
    ]
    names = tables.strings(np.array([row[3] for row in rows], np.int64))
    for (thread, start, end, _), name in zip(rows, names.tolist(), strict=True):
        open_ = end is None or end in durations
        call = OsCall(thread=thread, name=tables.names[name], start=start, end=None if open_ else end)
        if name != NONE:
            found.setdefault(thread & PID_MASK, []).append(call)
    return found


def read_long_os_calls(tables: Tables) -> dict[int, list[OsCall]]:
    """The operating-system calls that last long enough to be what a host pauses in, by globalPid."""
    found: dict[int, list[OsCall]] = {}
    rows = [
        row
        for row in tables.db.longest("OSRT_API", "start", "end", LONG_OS_CALL_NS, OS_CALLS_KEPT, "globalTid", "nameId")
        if all(isinstance(value, int) and abs(value) < (1 << 62) for value in row)
    ]
    names = tables.strings(np.array([row[3] for row in rows], np.int64))
    for (start, end, thread, _), name in zip(rows, names.tolist(), strict=True):
        if name != NONE:
            call = OsCall(thread=thread, name=tables.names[name], start=start, end=end)
            found.setdefault(thread & PID_MASK, []).append(call)
    return found


def _is_nccl_call(tables: Tables, ranges: Columns) -> NDArray[np.bool_]:
    """Ranges of NCCL's collective, send/recv and group calls; by name alone where the domain is not known."""
    if len(ranges["name"]) == 0:
        return np.empty(0, np.bool_)
    distinct, inverse = distinct_values(ranges["name"].astype(np.int64) + 1)
    named = np.array([i > 0 and nccl_call_op(tables.names[i - 1]) is not None for i in distinct.tolist()], np.bool_)
    in_domain = ranges["domain"] == tables.names.add("NCCL")
    result: NDArray[np.bool_] = named[inverse] & (in_domain | (ranges["domain"] == UNKNOWN_DOMAIN))
    return result


def _payloads(payload: pa.BinaryArray, keep: NDArray[np.intp]) -> dict[int, bytes]:
    length = as_numpy(pc.binary_length(payload))
    rows: list[int] = np.flatnonzero(length[keep] > 0).tolist()
    return {row: payload[int(keep[row])].as_py() for row in rows}


def process_ranges(nvtx: NvtxRows, rows: NDArray[np.intp]) -> Ranges:
    """One process's ranges."""
    columns = nvtx.columns
    payload = (
        {i: nvtx.payload[row] for i, row in enumerate(rows.tolist()) if row in nvtx.payload} if nvtx.payload else {}
    )
    return Ranges(
        start=columns["start"][rows],
        end=columns["end"][rows],
        open=columns["open"][rows],
        thread=columns["thread"][rows],
        domain=columns["domain"][rows],
        name=columns["name"][rows],
        value=columns["value"][rows],
        payload=payload,
    )


def read_syncs(tables: Tables) -> Columns:
    """Synchronisation records, unsorted: start, end, globalPid, correlationId, streamId, syncType."""
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    columns = (
        Column("start", ("start",), NULL),
        Column("end", ("end",), NULL),
        *integers("globalPid", "correlationId", "streamId"),
        # Newer versions have both columns, and fill the deprecated one from older reports.
        Column("syncType", ("syncType", "deprecatedSyncType")),
    )
    return tables.finished(table, tables.read(table, columns), "synchronisation records")


def process_syncs(columns: Columns, rows: NDArray[np.intp], calls: Calls, index: RowIndex) -> Syncs:
    """One process's synchronisation records."""
    rows = rows[np.argsort(columns["start"][rows], kind="stable")]
    return Syncs(
        start=columns["start"][rows],
        end=columns["end"][rows],
        type=np.clip(columns["syncType"][rows], 0, 127).astype(np.int8),
        stream=columns["streamId"][rows],
        call=launching_call(index, columns["correlationId"][rows], calls),
    )
