"""Which collective each communication operation of a rank is: op, communicator, bytes, and its exposed share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import mark_fields
from tracekit.intervals import innermost, owned
from tracekit.kernels import nccl_call_op
from tracekit.launch_ranges import named_ops
from tracekit.metrics.accounting import Covers
from tracekit.metrics.lost_payloads import joined_by_stream
from tracekit.readers.nccl_payload import parse_message
from tracekit.timeline import NO_VALUE, NONE, Kind, Process, Ranges, RankTrack, Timeline

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

UNKNOWN_OP = "unknown"
GROUP = "group"
EXCHANGE = 3
"""So many sends and receives in one group are an all-to-all: a pipeline's neighbours are two."""
ENTRY_OPS = {UNKNOWN_OP, "send_recv"}
"""What a kernel's name says where it may carry out another collective, made of sends and receives or of anything."""
FULL_TENSOR_OPS = {"all_gather", "reduce_scatter", "all_to_all"}
"""Ops whose message size is one rank's share: the full tensor is that × ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCollectives:
    """The communication operations of one rank, each with what it is; all columns have one length."""

    rank: int
    row: NDArray[np.intp]
    """Row in the rank's `Ops`; sorted by start."""
    group: tuple[tuple[str | None, str], ...]
    """Distinct (communicator, op)."""
    of: Int64
    """Index into ``group``."""
    full_bytes: Int64
    """Bytes of the full tensor, or NONE."""
    bytes_source: tuple[str | None, ...]
    """By ``group``."""
    duration: Int64
    own_start: Int64
    own_end: Int64
    """The instants that count for this operation: an instant that several share counts for the earliest."""
    exposed: Int64
    """ns of its own instants that no compute hides."""
    begins: bool
    """Whether the first operation here is the rank's first of the whole capture."""


def communicator_sizes(timeline: Timeline) -> dict[int, int]:
    """Number of ranks by communicator hash; a rank whose capture began later learns it from the others.

    Captures mostly begin long after communicators are made. Where no rank is known to be missing, a communicator then
    has the ranks that call it, if that is more than one.
    """
    told = {communicator: size for track in timeline.ranks for communicator, size, _ in track.communicators}
    processes = {track.process for track in timeline.ranks}
    size = world_size(timeline)
    if len(processes) < len(timeline.ranks) or (size is not None and size > len(processes)):
        return told
    callers: dict[int, int] = {}
    for index in processes:
        for communicator in _called(timeline, timeline.processes[index]):
            callers[communicator] = callers.get(communicator, 0) + 1
    return {communicator: count for communicator, count in callers.items() if count > 1} | told


def _called(timeline: Timeline, process: Process) -> set[int]:
    """Hashes of the communicators that a process calls collectives on."""
    ranges = process.ranges
    distinct = {(int(ranges.name[row]), blob) for row, blob in ranges.payload.items()}
    found: set[int] = set()
    for name, blob in distinct:
        op = nccl_call_op(timeline.names[name]) if name != NONE else None
        message = parse_message(op, blob) if op else None
        if message is not None and message.communicator is not None:
            found.add(message.communicator)
    return found


def world_size(timeline: Timeline) -> int | None:
    """Number of ranks of the job, as a trainer's mark or NCCL's largest communicator tells it; None where none does."""
    sizes = [size for track in timeline.ranks for _, size, _ in track.communicators]
    for process in timeline.processes:
        for _, text in process.marks:
            size = mark_fields(text).get("world_size")
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                sizes.append(size)
    return max(sizes, default=None)


def rank_collectives(
    timeline: Timeline, track: RankTrack, covers: Covers, window: tuple[int, int], sizes: dict[int, int]
) -> RankCollectives:
    """Identify the communication operations of one rank inside a window."""
    ops, process = track.ops, timeline.processes[track.process]
    rows = np.flatnonzero((ops.kind == Kind.COMM) & (ops.start < window[1]) & (ops.end > window[0]))
    own_start, own_end = owned(ops.start[rows], ops.end[rows])
    own_start, own_end = np.clip(own_start, *window), np.clip(own_end, *window)
    exposed = own_end - own_start - covers.compute.within(own_start, own_end)
    calls = NcclCalls(timeline, process)
    by_name = _ops_by_name(timeline, ops.name[rows])
    by_range = _ops_by_range(timeline, process, ops.call[rows], by_name)
    exchanged = _all_to_alls(calls, ops.nccl[rows], ops.stream[rows])
    annotated = _annotated_bytes(timeline, process, ops.call[rows])
    groups: dict[tuple[str | None, str], int] = {}
    sources: dict[int, str | None] = {}
    of, full = np.empty(len(rows), np.int64), np.full(len(rows), NONE, np.int64)
    for i, (name_op, nccl) in enumerate(zip(by_name, ops.nccl[rows].tolist(), strict=True)):
        call = calls.at(nccl)
        op = _most_exact(name_op, by_range[i], call.op)
        op = "all_to_all" if exchanged[i] and op == "send_recv" else op
        key = (f"{call.communicator:#018x}" if call.communicator is not None else None, op)
        group = groups.setdefault(key, len(groups))
        of[i] = group
        n = sizes.get(call.communicator) if call.communicator is not None else None
        size = call.full_bytes(op, n)
        if size is not None:
            full[i] = size
            sources[group] = "nccl_payload"
        elif annotated[i] >= 0:
            full[i] = annotated[i]
            sources.setdefault(group, "annotation")
    told, of, sources = joined_by_stream(tuple(groups), of, ops.stream[rows], sources)
    return RankCollectives(
        rank=track.rank,
        row=rows,
        group=told,
        of=of,
        full_bytes=full,
        bytes_source=tuple(sources.get(g) for g in range(len(told))),
        duration=ops.end[rows] - ops.start[rows],
        own_start=own_start,
        own_end=own_end,
        exposed=exposed,
        begins=bool(len(rows)) and bool(rows[0] == np.argmax(ops.kind == Kind.COMM)),
    )


@dataclass(frozen=True, slots=True)
class NcclCall:
    """What NCCL was asked for: op, communicator hash and message bytes, as far as its ranges tell."""

    op: str
    communicator: int | None
    bytes: int | None
    sent: int | None = None
    """Bytes of the sends alone, of a group of sends and receives."""

    def full_bytes(self, op: str, ranks: int | None) -> int | None:
        """Bytes of the full tensor where the call carries out ``op`` among so many ranks; None where it is not told."""
        if self.sent is not None and (op != self.op or op == "all_to_all"):
            return self.sent  # an all-to-all made of sends: all that one rank sends
        if self.bytes is None or op not in FULL_TENSOR_OPS:
            return self.bytes
        return self.bytes * ranks if ranks else None


class NcclCalls:
    """What NCCL's ranges say about the operation that was launched inside one of them.

    A grouped operation is launched inside ncclGroupEnd: it is what the calls before it in the group asked for.
    """

    def __init__(self, timeline: Timeline, process: Process) -> None:
        self._ranges = process.ranges
        self._names = timeline.names
        self._known: dict[int, NcclCall] = {}
        self._grouped: dict[int, list[int]] | None = None
        self._inner_ends: set[int] = set()

    def issued(self) -> list[tuple[int, NcclCall]]:
        """(row of the range inside which it is launched, call) of everything that was asked for, in order.

        A group counts once, at its outermost end; calls of a group that was never ended count one by one.
        """
        grouped = self._groups()
        inside = {call for calls in grouped.values() for call in calls}
        rows = np.flatnonzero(np.isin(self._ranges.name, self._nccl_names())).tolist()
        ends = set(grouped) - {row for row in grouped if not grouped[row] or row in self._inner_ends}
        return [
            (row, self.at(row))
            for row in rows
            if row in ends or (row not in inside and row not in grouped and self._op(row) != GROUP)
        ]

    def at(self, row: int) -> NcclCall:
        """The call behind the NCCL range in ``row`` (NONE: no range)."""
        if row == NONE:
            return NcclCall(UNKNOWN_OP, None, None)
        if row not in self._known:
            op = self._op(row)
            self._known[row] = self._group(row) if op == GROUP else self._single(row, op)
        return self._known[row]

    def exchanges(self, row: int) -> bool:
        """Whether it is a group that sends to three ranks or more, and receives from as many."""
        if row == NONE or self._op(row) != GROUP:
            return False
        names = [self._names[int(self._ranges.name[call])].lower() for call in self._groups().get(row, [])]
        sends, receives = names.count("ncclsend"), names.count("ncclrecv")
        return sends >= EXCHANGE and receives >= EXCHANGE

    def _op(self, row: int) -> str:
        return nccl_call_op(self._names[int(self._ranges.name[row])]) or UNKNOWN_OP

    def _single(self, row: int, op: str) -> NcclCall:
        message = parse_message(op, self._ranges.payload.get(row, b""))
        size = message.bytes if message else None
        sent = size if self._names[int(self._ranges.name[row])].lower() == "ncclsend" else None
        return NcclCall(op, message.communicator if message else None, size, sent)

    def _group(self, row: int) -> NcclCall:
        inside = [self._single(call, self._op(call)) for call in self._groups().get(row, [])]
        if not inside:
            return NcclCall(UNKNOWN_OP, None, None)
        ops = {call.op for call in inside}
        communicators = {call.communicator for call in inside}
        sizes = [call.bytes for call in inside if call.bytes is not None]
        sent = [call.sent for call in inside if call.sent is not None]
        whole = len(sizes) == len(inside)
        return NcclCall(
            ops.pop() if len(ops) == 1 else UNKNOWN_OP,
            communicators.pop() if len(communicators) == 1 else None,
            sum(sizes) if whole else None,
            sum(sent) if whole and sent else None,
        )

    def _nccl_names(self) -> list[int]:
        return [i for i in np.unique(self._ranges.name).tolist() if i != NONE and nccl_call_op(self._names[i])]

    def _groups(self) -> dict[int, list[int]]:
        """By row of a ncclGroupEnd: the rows of the calls since its ncclGroupStart, on one thread."""
        if self._grouped is None:
            self._grouped = self._calls_in_groups()
        return self._grouped

    def _calls_in_groups(self) -> dict[int, list[int]]:
        grouped: dict[int, list[int]] = {}
        stacks: dict[int, list[list[int]]] = {}
        for row in np.flatnonzero(np.isin(self._ranges.name, self._nccl_names())).tolist():
            name, stack = self._names[int(self._ranges.name[row])], stacks.setdefault(int(self._ranges.thread[row]), [])
            if "GroupStart" in name:
                stack.append([])
            elif "GroupEnd" in name:
                inside = stack.pop() if stack else []
                grouped[row] = inside
                if stack:  # only the outermost end launches: it launches all
                    stack[-1].extend(inside)
                    self._inner_ends.add(row)
            elif stack:
                stack[-1].append(row)
        return grouped


def _ops_by_name(timeline: Timeline, name: NDArray[np.int32]) -> list[str]:
    describe = timeline.kernel_classes.describe
    known = {i: describe(timeline.names[i]).op or UNKNOWN_OP for i in np.unique(name).tolist()}
    return [known[i] for i in name.tolist()]


def _ops_by_range(
    timeline: Timeline, process: Process, call: NDArray[np.int32], by_name: list[str]
) -> list[str | None]:
    """What the innermost range that names a collective around each launch says, for names that leave it open."""
    found: list[str | None] = [None] * len(by_name)
    wanted = np.array([i for i, op in enumerate(by_name) if op in ENTRY_OPS and call[i] != NONE], np.int64)
    if len(wanted) == 0:
        return found
    named = named_ops(process.calls, process.ranges, timeline.names, call[wanted])
    for i, op in zip(wanted.tolist(), named, strict=True):
        found[i] = op
    return found


def _all_to_alls(calls: NcclCalls, nccl: Int32, stream: Int64) -> NDArray[np.bool_]:
    """Operations of streams most of whose groups send to three ranks or more and receive from as many.

    NCCL's all-to-all is such a group. Sends to two ranks can be those of a pipeline to its neighbours.
    """
    many = {row: calls.exchanges(row) for row in np.unique(nccl).tolist()}
    one = np.array([many[row] for row in nccl.tolist()], np.bool_)
    result = np.zeros(len(nccl), np.bool_)
    for each in np.unique(stream).tolist():
        mine = stream == each
        result[mine] = np.count_nonzero(one[mine]) > 0.5 * np.count_nonzero(mine)
    return result


def _most_exact(by_name: str, by_range: str | None, by_call: str) -> str:
    """One op of what a kernel's name, the range around its launch and NCCL's call say."""
    if by_name not in ENTRY_OPS:
        return by_name
    said = [op for op in (by_range, by_call, by_name) if op is not None and op != UNKNOWN_OP]
    return next((op for op in said if op not in ENTRY_OPS), said[0] if said else UNKNOWN_OP)


def _annotated_bytes(timeline: Timeline, process: Process, call: NDArray[np.int32]) -> Int64:
    """Bytes of the full tensor from the trainer's annotation (domain ``tracekit.comm``) around each launch, or NONE."""
    answer = np.full(len(call), NONE, np.int64)
    ranges: Ranges = process.ranges
    domain = timeline.names.index("tracekit.comm") if "tracekit.comm" in timeline.names else None
    if domain is None:
        return answer
    rows = np.flatnonzero((ranges.domain == domain) & (ranges.value != NO_VALUE))
    known = np.flatnonzero(call != NONE)
    if len(rows) == 0 or len(known) == 0:
        return answer
    thread, start = process.calls.thread[call[known]], process.calls.start[call[known]]
    for each in np.unique(ranges.thread[rows]).tolist():
        own, here = rows[ranges.thread[rows] == each], np.flatnonzero(thread == each)
        found = innermost(ranges.start[own], ranges.end[own], start[here])
        answer[known[here]] = np.where(found >= 0, ranges.value[own[np.maximum(found, 0)]], NONE)
    return answer
