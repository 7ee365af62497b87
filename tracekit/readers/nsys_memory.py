"""Allocations and frees of GPU memory from an nsys export made with --cuda-memory-usage=true, any column missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.readers.database import Column, integers
from tracekit.readers.nsys_tables import NULL, Columns, Tables
from tracekit.timeline import NONE, Allocations, MemoryKind

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
ALLOCATION, FREE = 0, 1
"""ENUM_CUDA_DEV_MEM_EVENT_OPER, which every version numbers alike."""
KINDS = {
    0: MemoryKind.PAGEABLE,
    1: MemoryKind.PINNED,
    2: MemoryKind.DEVICE,
    3: MemoryKind.DEVICE,  # arrays
    4: MemoryKind.MANAGED,
    5: MemoryKind.DEVICE,  # __device__ variables
    6: MemoryKind.MANAGED,
}
"""By ENUM_CUDA_MEM_KIND."""
LARGEST = 1 << 44
"""No GPU has 16 TiB: what says so is damage."""


def read_memory(tables: Tables) -> Columns:
    """Memory events of all processes, unsorted: time, globalPid, device, bytes, freed, kind.

    Rows without a time are passed over with a note, as are those of an operation that is neither. A free whose row
    lacks its size has that of the last allocation at its address. Raises `CaptureError` for times that cannot be true.
    """
    columns = tables.read(
        TABLE,
        (
            Column("start", ("start",), NULL),
            *integers("globalPid"),
            *integers("deviceId", "contextId", "address", "bytes", "memKind", "memoryOperationType", fill=NONE),
        ),
        "memory events",
    )
    operation = columns["memoryOperationType"]
    known = (columns["start"] != NULL) & ((operation == ALLOCATION) | (operation == FREE))
    tables.note(
        int(np.count_nonzero(~known)), "memory events have no time, or neither allocate nor free, and are left out"
    )
    columns = {name: column[known] for name, column in columns.items()}
    tables.check_times(TABLE, columns["start"], columns["start"])
    freed = columns["memoryOperationType"] == FREE
    kind = np.full(len(freed), MemoryKind.UNKNOWN, np.int8)
    for number, meaning in KINDS.items():
        kind[columns["memKind"] == number] = meaning
    return {
        "time": columns["start"],
        "globalPid": columns["globalPid"],
        "device": columns["deviceId"],
        "bytes": _sizes(columns, freed),
        "freed": freed,
        "kind": kind,
    }


def _sizes(columns: Columns, freed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Bytes of each event, NONE where they cannot be told."""
    size: NDArray[np.int64] = columns["bytes"].copy()
    size[(size < 0) | (size > LARGEST)] = NONE
    lacking = freed & (size <= 0)
    if not lacking.any():
        return size
    place = (columns["globalPid"], columns["contextId"], columns["address"])
    order = np.lexsort((columns["start"], *place))
    before = np.roll(order, 1)
    same = np.logical_and.reduce([key[order] == key[before] for key in place]) & (columns["address"][order] > 0)
    same[:1] = False
    told = np.full(len(size), NONE, np.int64)
    told[order] = np.where(same & ~freed[before], size[before], NONE)
    size[lacking] = told[lacking]
    return size


def process_memory(columns: Columns, rows: NDArray[np.intp]) -> Allocations:
    """One process's events."""
    rows = rows[np.argsort(columns["time"][rows], kind="stable")]
    return Allocations(
        time=columns["time"][rows],
        device=columns["device"][rows],
        bytes=columns["bytes"][rows],
        freed=columns["freed"][rows],
        kind=columns["kind"][rows],
    )
