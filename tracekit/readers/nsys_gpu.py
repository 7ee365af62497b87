"""GPU operations from an nsys export: kernels, CUDA graphs, copies, memsets, as one set of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.kernel_classes import KernelClasses
from tracekit.kernels import describe_kernel
from tracekit.readers.database import Column, integers
from tracekit.readers.nsys_tables import NULL, Columns, Int32, Int64, Tables, distinct_values
from tracekit.timeline import NONE, Kind, Source

TABLES = {
    Source.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    Source.GRAPH: "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    Source.MEMCPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    Source.MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
}
WORDS = {Source.KERNEL: "kernels", Source.GRAPH: "CUDA graphs", Source.MEMCPY: "copies", Source.MEMSET: "memsets"}
COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD",
}  # fmt: skip
"""ENUM_CUDA_MEMCPY_OPER, which every version numbers alike."""
PEER_COPY = "memcpy PtoP"
PAGEABLE = 0
"""ENUM_CUDA_MEM_KIND: 0 is pageable host memory, 1 pinned."""

BASE = (
    Column("start", ("start",), NULL),
    Column("end", ("end",), NULL),
    *integers("deviceId", "globalPid", "correlationId"),
    Column("streamId", ("streamId",), NONE),
)
EXTRA = {
    Source.KERNEL: (
        Column("nameId", ("demangledName", "shortName", "mangledName"), NULL),
        Column("grid", ("gridX", "gridY", "gridZ"), NONE, product=True),
    ),
    Source.GRAPH: (),
    Source.MEMCPY: (Column("bytes", ("bytes",), NONE), *integers("copyKind", "srcKind", "dstKind", fill=NONE)),
    Source.MEMSET: (Column("bytes", ("bytes",), NONE),),
}


def read_gpu(tables: Tables) -> tuple[Columns, Columns]:
    """(all GPU operations, globalPid and correlationId of those that began and never ended), unsorted.

    The columns are those of `BASE` and name, source, grid, bytes, pageable. Rows without start are passed over with a
    note, as are those without an end.
    Raises `CaptureError` for times that cannot be true.
    """
    parts: list[Columns] = []
    unfinished: dict[str, list[Int64]] = {"globalPid": [], "correlationId": []}
    for source, table in TABLES.items():
        part = tables.read(table, BASE + EXTRA[source], WORDS[source])
        if len(part["start"]) == 0 and (parts or source is not Source.MEMSET):
            continue
        lasting = (part["start"] != NULL) & (part["end"] == NULL)
        for key, column in unfinished.items():
            column.append(part[key][lasting])
        parts.append(_uniform(tables, source, tables.finished(table, part, WORDS[source])))
    gpu = {key: _joined([part.pop(key) for part in parts]) for key in list(parts[0])}
    return gpu, {key: _joined(columns) for key, columns in unfinished.items()}


def _uniform(tables: Tables, source: Source, part: Columns) -> Columns:
    """The same columns for every source."""
    n = len(part["start"])
    if source is Source.KERNEL:
        name = tables.strings(part.pop("nameId"))
        name[name == NONE] = tables.names.add("(unnamed kernel)")
    elif source is Source.MEMCPY:
        name = _copy_names(tables, part.pop("copyKind"))
    else:
        name = np.full(n, tables.names.add("CUDA graph" if source is Source.GRAPH else "memset"), np.int32)
    ends = [part.pop(side) for side in ("srcKind", "dstKind") if side in part]
    return part | {
        "name": name,
        "source": np.full(n, source, np.int8),
        "grid": part.get("grid", np.full(n, NONE, np.int64)),
        "bytes": part.get("bytes", np.full(n, NONE, np.int64)),
        "pageable": (ends[0] == PAGEABLE) | (ends[1] == PAGEABLE) if ends else np.zeros(n, np.bool_),
    }


def _copy_names(tables: Tables, kinds: Int64) -> Int32:
    if len(kinds) == 0:
        return np.empty(0, np.int32)
    distinct, inverse = distinct_values(kinds)
    names = [f"memcpy {COPY_KINDS.get(kind, '')}".strip() for kind in distinct.tolist()]
    return np.array(tables.names.add_all(names), np.int32)[inverse]


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def kinds(
    tables: Tables, gpu: Columns, nccl: Int32, peer_to_peer: NDArray[np.bool_], classes: KernelClasses
) -> NDArray[np.int8]:
    """`Kind` of each operation.

    ``nccl`` is the NCCL range around its launch, or NONE; ``peer_to_peer`` marks copies between GPUs that were launched
    inside a range that names a collective.
    """
    source = gpu["source"]
    kernels = source == Source.KERNEL
    known = {}
    if kernels.any():
        distinct, _ = distinct_values(gpu["name"][kernels].astype(np.int64))
        known = {index: classes.describe(tables.names[index]) for index in distinct.tolist()}
    by_name = np.zeros(len(tables.names), np.bool_)
    by_name[[index for index, kernel in known.items() if kernel.comm]] = True
    kind = np.where(source >= Source.MEMCPY, Kind.COPY, Kind.COMPUTE).astype(np.int8)
    launched_by_nccl = (nccl != NONE) & (kernels | (source == Source.MEMCPY))
    kind[(kernels & by_name[gpu["name"]]) | launched_by_nccl | peer_to_peer] = Kind.COMM
    if classes.compute:
        by_user = [index for index in known if classes.says_compute(tables.names[index])]
        kind[kernels & np.isin(gpu["name"], by_user)] = Kind.COMPUTE
    suspected = [index for index, kernel in known.items() if kernel.suspected]
    fused = [index for index, kernel in known.items() if kernel.comm and kernel.fused]
    _note_share(tables, gpu, kernels & (kind == Kind.COMPUTE), suspected, SUSPECTED)
    _note_share(tables, gpu, kernels & (kind == Kind.COMM), fused, FUSED)
    return kind


SUSPECTED = "of kernel time is named like communication and counts as compute: {}. To change it: --comm-kernel NAME=OP"
FUSED = "of kernel time communicates and computes in one kernel, and counts as communication: {}"


def _note_share(tables: Tables, gpu: Columns, rows: NDArray[np.bool_], names: list[int], text: str) -> None:
    """Say what share of the kernels' time the rows with some names have, and their largest names."""
    if not names:
        return
    length = np.where(rows & np.isin(gpu["name"], names), gpu["end"] - gpu["start"], 0)
    by_name = np.bincount(gpu["name"], weights=length, minlength=len(tables.names))
    largest = [index for index in sorted(names, key=lambda i: (-by_name[i], i)) if by_name[index]]
    whole = float((gpu["end"] - gpu["start"])[gpu["source"] == Source.KERNEL].sum())
    if largest:
        shown = ", ".join(describe_kernel(tables.names[i]).short for i in largest[:3])
        more = f" and {len(largest) - 3} more" if len(largest) > 3 else ""
        tables.notes.append(f"{100 * float(length.sum()) / whole:.1f} % {text.format(shown + more)}")
