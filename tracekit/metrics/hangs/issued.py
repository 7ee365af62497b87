"""The collectives that a process called, in the order of the calls, as its NVTX ranges tell: no GPU work is needed.

Four vocabularies, the most telling first: NCCL's ranges with their payload (communicator and message size), the
instrumented trainer's annotations (group, ordinal, type, bytes), NCCL's ranges without payload, torch's ``nccl:``
ranges. The last two do not name communicators: then all collectives of a rank count as one sequence. Sends and
receives are left out, for ranks do not call them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import mark_fields
from tracekit.evidence import BYTE, UNKNOWN
from tracekit.intervals import innermost
from tracekit.metrics.identity import GROUP, UNKNOWN_OP, NcclCalls
from tracekit.readers.raw import Names
from tracekit.timeline import NO_VALUE, NONE, Process, Timeline

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

ITEM_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "complex64": 8, "int32": 4}
ITEM_BYTES |= {"float32": 4, "int64": 8, "float64": 8, "complex128": 16}
ITEM_BYTES |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1)
UNNAMED = "all collectives"
"""What stands for the communicators where no source tells them apart."""

Group = tuple[str, tuple[int, ...] | None]
"""(name of a communicator, its global ranks where the process tells them)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issued:
    """Collectives of one process in the order of the calls; all columns have one length, n."""

    row: Int64
    """Row in the process's `Ranges` of the range inside which the collective is launched."""
    group: Int32
    """Index into ``groups``."""
    groups: tuple[Group, ...]
    seq: Int64
    """Ordinal in its communicator, from 1."""
    exact: tuple[bool, ...]
    """By group: the ordinals count from the communicator's first collective, not from the capture's."""
    op: Int32
    """Index into the names, as ``dtype``; UNKNOWN."""
    elements_in: Int64
    elements_out: Int64
    dtype: Int32

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class _Call:
    row: int
    group: Group
    op: str
    bytes: int
    """Of the whole tensor, or UNKNOWN."""
    dtype: str | None
    seq: int = UNKNOWN
    """UNKNOWN: to be counted."""


def _columns(
    calls: list[_Call], names: Names, exact: Callable[[Group], bool], ranks_in: Callable[[Group], int | None]
) -> Issued | None:
    """The calls as arrays; None without a call."""
    if not calls:
        return None
    groups = list(dict.fromkeys(call.group for call in calls))
    index = {group: i for i, group in enumerate(groups)}
    counted = [0] * len(groups)
    seqs = []
    for call in calls:
        at = index[call.group]
        counted[at] = counted[at] + 1 if call.seq == UNKNOWN else call.seq
        seqs.append(counted[at])
    sizes = [_elements(call.op, call.bytes, call.dtype, ranks_in(call.group)) for call in calls]
    return Issued(
        row=np.array([call.row for call in calls], np.int64),
        group=np.array([index[call.group] for call in calls], np.int32),
        groups=tuple(groups),
        seq=np.array(seqs, np.int64),
        exact=tuple(exact(group) for group in groups),
        op=np.array([UNKNOWN if call.op == UNKNOWN_OP else names.add(call.op) for call in calls], np.int32),
        elements_in=np.array([size[0] for size in sizes], np.int64),
        elements_out=np.array([size[1] for size in sizes], np.int64),
        dtype=np.array([UNKNOWN if call.dtype is None else names.add(call.dtype) for call in calls], np.int32),
    )


def _elements(op: str, size: int, dtype: str | None, ranks: int | None) -> tuple[int, int]:
    """(elements in, elements out) on one rank, of the whole tensor's bytes; UNKNOWN where it cannot be told."""
    item = 1 if dtype == BYTE else ITEM_BYTES.get(dtype or "")
    if size == UNKNOWN or item is None:
        return UNKNOWN, UNKNOWN
    whole = size // item
    part = whole // ranks if ranks else UNKNOWN
    if op == "all_gather":
        return part, whole
    if op == "reduce_scatter":
        return whole, part
    return (whole, whole) if op in ("all_reduce", "broadcast") else (whole, UNKNOWN)


def by_nccl_payload(
    timeline: Timeline, process: Process, names: Names, sizes: dict[int, int], created: frozenset[int]
) -> Issued | None:
    """From NCCL's payloads; ``created`` are the communicators whose creation is in the capture."""
    calls = []
    for row, call in NcclCalls(timeline, process).issued():
        if call.communicator is None or call.op == "send_recv":
            continue
        ranks = sizes.get(call.communicator)
        share = call.op in ("all_gather", "reduce_scatter")
        size = UNKNOWN if call.bytes is None or (share and not ranks) else call.bytes * (ranks or 1 if share else 1)
        calls.append(_Call(row, (f"{call.communicator:#018x}", None), call.op, size, BYTE))
    of_hash = {f"{value:#018x}": value for value in sizes}
    exact = {f"{value:#018x}" for value in created}
    return _columns(
        calls, names, lambda group: group[0] in exact, lambda group: sizes.get(of_hash.get(group[0], UNKNOWN))
    )


def by_annotation(timeline: Timeline, process: Process, names: Names) -> Issued | None:
    """From the instrumented trainer's ranges ``tracekit.comm`` with ``tracekit.comm.detail`` inside."""
    ranges = process.ranges
    outer, inner = (
        np.flatnonzero(ranges.domain == _domain(timeline, d)) for d in ("tracekit.comm", "tracekit.comm.detail")
    )
    inner = inner[ranges.value[inner] != NO_VALUE]
    if len(outer) == 0 or len(inner) == 0:
        return None
    around = np.full(len(inner), NONE, np.int64)
    for thread in np.unique(ranges.thread[inner]).tolist():
        own, here = outer[ranges.thread[outer] == thread], np.flatnonzero(ranges.thread[inner] == thread)
        found = innermost(ranges.start[own], ranges.end[own], ranges.start[inner[here]])
        around[here] = np.where(found >= 0, own[np.maximum(found, 0)], NONE) if len(own) else NONE
    members = _annotated_groups(process)
    calls = []
    for row, detail in zip(around.tolist(), inner.tolist(), strict=True):
        if row == NONE:
            continue
        label, _, dtype = timeline.names[int(ranges.name[detail])].rpartition("/")
        size = int(ranges.value[row]) if ranges.value[row] != NO_VALUE else UNKNOWN
        op = timeline.names[int(ranges.name[row])]
        known = dtype if dtype in ITEM_BYTES else None
        calls.append(_Call(row, (label, members.get(label)), op, size, known, int(ranges.value[detail])))
    return _columns(calls, names, lambda _: True, lambda group: len(group[1]) if group[1] else None)


def _annotated_groups(process: Process) -> dict[str, tuple[int, ...]]:
    """Global ranks of each group that the trainer has marked."""
    found: dict[str, tuple[int, ...]] = {}
    for domain, text in process.marks:
        if domain != "tracekit.comm":
            continue
        fields = mark_fields(text)
        label, ranks = fields.get("group"), fields.get("ranks")
        if isinstance(label, str) and isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            found[label] = tuple(sorted(ranks))
    return found


def by_nccl_names(timeline: Timeline, process: Process, names: Names) -> Issued | None:
    """From NCCL's ranges without payload."""
    calls = []
    for row, call in NcclCalls(timeline, process).issued():
        if call.op not in ("send_recv", GROUP):
            calls.append(_Call(row, (UNNAMED, None), call.op, UNKNOWN, None))
    return _columns(calls, names, lambda _: False, lambda _: None)


def by_torch_names(timeline: Timeline, process: Process, names: Names) -> Issued | None:
    """From torch's own ranges around its process groups' collectives."""
    ranges = process.ranges
    ops = {i: op for i in np.unique(ranges.name).tolist() if i != NONE and (op := torch_op(timeline.names[i]))}
    calls = []
    for row in np.flatnonzero(np.isin(ranges.name, list(ops))).tolist():
        calls.append(_Call(row, (UNNAMED, None), ops[int(ranges.name[row])], UNKNOWN, None))
    return _columns(calls, names, lambda _: False, lambda _: None)


TORCH_OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "barrier",
    "reduce",
    "gather",
    "scatter",
)


def torch_op(name: str) -> str | None:
    """The collective behind a range such as ``nccl:_all_gather_base``; None for other names, sends and receives."""
    backend, colon, call = name.partition(":")
    if not colon or backend not in ("nccl", "gloo") or call.startswith(("send ", "recv ")):
        return None
    call = call.strip("_ ").replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    call = call.replace("alltoall", "all_to_all")
    return next((op for op in TORCH_OPS if call.startswith(op)), None)


def _domain(timeline: Timeline, name: str) -> int:
    return timeline.names.index(name) if name in timeline.names else NONE - 1


def issued_by_all(
    timeline: Timeline, processes: list[Process], created: list[frozenset[int]], sizes: dict[int, int], names: Names
) -> tuple[str, list[Issued | None]]:
    """(vocabulary, what each process issued by it): the most telling vocabulary that most processes speak.

    ``created``: by process, the communicators whose creation it holds; ``sizes``: number of ranks by communicator.
    """
    vocabularies: dict[str, Callable[[int, Process], Issued | None]] = {
        "nccl_payload": lambda i, p: by_nccl_payload(timeline, p, names, sizes, created[i]),
        "annotation": lambda _, p: by_annotation(timeline, p, names),
        "nccl": lambda _, p: by_nccl_names(timeline, p, names),
        "torch": lambda _, p: by_torch_names(timeline, p, names),
    }
    best: tuple[str, list[Issued | None]] = ("none", [None] * len(processes))
    for vocabulary, read in vocabularies.items():
        found = [read(i, process) for i, process in enumerate(processes)]
        told = sum(each is not None for each in found)
        if told > sum(each is not None for each in best[1]):
            best = vocabulary, found
        if told == len(processes):
            break
    return best
