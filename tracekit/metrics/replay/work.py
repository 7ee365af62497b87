"""One rank's side of the replayed steps, as columns on one clock: operations, launch calls, synchronising calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.copies import TO_DEVICE, TO_HOST
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.sends import EXCHANGES
from tracekit.timeline import NONE, Kind, Process, Ranges

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

STREAM_WAIT = 2
STREAM_SYNC, CONTEXT_SYNC = 3, 4
HOST_WAITS = (1, STREAM_SYNC, CONTEXT_SYNC)
"""Types of synchronisation records by which the host waits."""
NEVER_BEGUN = np.iinfo(np.int64).min // 2
"""When the launch of an operation without a launch call began: outside of everything."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWork:
    """Operations of one rank in a window, by start, and what its host did for them; times in ns on one clock."""

    row: NDArray[np.intp]
    """(n,) rows in the rank's `Ops`."""
    start: Int64
    end: Int64
    stream: Int64
    kind: Int8
    name: Int32
    grid: Int64
    pageable: Bool
    """(n,) copies with pageable host memory at one end."""
    call: Int64
    """(n,) index into the calls below, or NONE."""
    launched: Int64
    """(n,) start of the launch call; of an operation without one its own start."""
    call_start: Int64
    """(c,) calls that launch one of the operations or make the host wait, by start."""
    call_end: Int64
    call_thread: Int64
    call_name: Int32
    waits_for: Int8
    """(c,) type of the synchronisation that the call is (1, 3, 4); 0 for others."""
    waits_on: Int64
    """(c,) the stream that a stream synchronisation waits for, else NONE."""
    waits_for_copy: Int64
    """(c,) the copy of pageable memory that the call itself launched and waits for, else NONE."""
    wait_at: Int64
    """(w,) moments at which streams were made to wait for an event, sorted."""
    wait_stream: Int64
    """(w,) the streams that wait."""
    record_at: Int64
    """Moments at which events were recorded, sorted."""
    step: Int64
    """(n,) index of the step range that the operation was launched in, or NONE."""
    gather: Bool
    """(n,) an all-gather."""
    reduction: Bool
    """(n,) a reduce-scatter or an all-reduce."""
    exchange: Bool
    """(n,) a send, a receive or an all-to-all."""
    forward: Bool
    """(n,) launched while the host was inside a forward range, on whatever thread."""
    backward: Bool
    """(n,) the same of backward ranges."""
    optimizer: Bool
    """(n,) the same of optimizer ranges."""
    to_host: Bool
    """(n,) copies of tensors (by size) to the host."""
    to_device: Bool
    """(n,) copies of tensors to the GPU."""
    bytes: Int64
    """(n,) of a copy what it moves, of a collective its full tensor; NONE where not known."""
    communicator: Int64
    """(n,) a number for each communicator that NCCL names, NONE for the rest."""
    deferrable: Bool
    """(n,) a reduction launched in a backward pass after which another one follows in the same step."""
    loading: Cover
    """When the host was inside a data range."""
    between_steps: Cover
    """When it made no call from one step to the next, for so long that a batch may be the reason."""
    allocating: Cover
    """When it was inside a call that gets or frees device memory."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names of calls and copies, as indices into `Timeline.names`."""

    record: Int32
    """Calls that record an event."""
    allocate: Int32
    """Calls that get or free device memory."""
    to_host: Int32
    """Copies to the host."""
    to_device: Int32

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Find them among all names of a timeline."""
        record = [i for i, name in enumerate(names) if re.match(r"cu(da)?EventRecord", name)]
        allocate = [
            i for i, name in enumerate(names) if re.match(r"cu(da)?(Mem)?(Malloc|Alloc|Free)(?!Host|Async)", name)
        ]
        to_host = [i for i, name in enumerate(names) if name in TO_HOST]
        to_device = [i for i, name in enumerate(names) if name in TO_DEVICE]
        return cls(*(np.array(found, np.int32) for found in (record, allocate, to_host, to_device)))


def rank_work(
    m: RankMeasures, process: Process, clock: ClockFit, names: Names, low: int, high: int, thresholds: Thresholds
) -> RankWork:
    """The rank's work that starts in ``[low, high]`` on the reference's clock."""
    track = m.track
    ops, calls, syncs = track.ops, process.calls, process.syncs
    start = clock.to_reference(ops.start)
    row = np.flatnonzero((start >= low) & (start <= high))
    own_call = ops.call[row].astype(np.int64)
    launching = np.unique(own_call[own_call != NONE])
    host_wait = np.isin(syncs.type, HOST_WAITS) & (syncs.call != NONE)
    first = int(launching[0]) if len(launching) else 0
    last = int(launching[-1]) if len(launching) else -1
    kept_sync = np.flatnonzero(host_wait & (syncs.call >= first) & (syncs.call <= last))
    chosen = np.union1d(launching, syncs.call[kept_sync].astype(np.int64))
    call_start = clock.to_reference(calls.start[chosen])
    waits_for, waits_on = np.zeros(len(chosen), np.int8), np.full(len(chosen), NONE, np.int64)
    at = np.searchsorted(chosen, syncs.call[kept_sync])
    waits_for[at] = syncs.type[kept_sync]
    on_stream = syncs.type[kept_sync] == STREAM_SYNC
    waits_on[at[on_stream]] = syncs.stream[kept_sync][on_stream]
    stream_wait = np.flatnonzero((syncs.type == STREAM_WAIT) & (syncs.call >= first) & (syncs.call <= last))
    wait_at = clock.to_reference(calls.start[syncs.call[stream_wait]])
    order = np.argsort(wait_at, kind="stable")
    recording = np.flatnonzero(np.isin(calls.name[first : last + 1], names.record)) + first
    getting = np.flatnonzero(np.isin(calls.name[first : last + 1], names.allocate)) + first
    passes = {name: _ranges_of(m, process.ranges, name) for name in ("forward", "backward", "optimizer", "data")}
    data = passes["data"]
    call = np.where(own_call != NONE, np.searchsorted(chosen, own_call), NONE)
    gather, reduction, exchange, communicator, size = _collectives(m.collectives, row)
    # A call that copies pageable memory returns when that is staged, which is about when the copy ends.
    staged = np.flatnonzero(ops.pageable[row] & (own_call != NONE))
    staged = staged[calls.end[own_call[staged]] >= ops.end[row[staged]] - thresholds.pageable_return_ns]
    slow = np.searchsorted(chosen, own_call[staged])
    waits_for_copy = np.full(len(chosen), NONE, np.int64)
    waits_for_copy[slow] = staged
    waits_for[slow[waits_for[slow] == 0]] = HOST_WAITS[0]
    begun = np.where(own_call != NONE, np.append(calls.start, 0)[own_call], NEVER_BEGUN)
    inside = {name: cover.within(begun, begun + 1) > 0 for name, cover in passes.items()}
    behind = inside["backward"]
    step = np.full(len(row), NONE, np.int64)
    if m.marks is not None and len(calls):
        step = np.where(own_call != NONE, m.marks.containing(begun), NONE)
    which = np.where(behind, np.searchsorted(passes["backward"].start, begun, side="right"), 0)
    last_pass = np.zeros(max(int(step.max(initial=NONE)) + 2, 1), np.int64)
    np.maximum.at(last_pass, step, which)
    tensors = (ops.kind[row] == Kind.COPY) & (ops.bytes[row] >= thresholds.tensor_bytes)
    return RankWork(
        row=row,
        start=start[row],
        end=clock.to_reference(ops.end[row]),
        stream=ops.stream[row],
        kind=ops.kind[row],
        name=ops.name[row],
        grid=ops.grid[row],
        pageable=ops.pageable[row],
        call=call,
        launched=np.where(call != NONE, np.append(call_start, 0)[call], start[row]),
        call_start=call_start,
        call_end=clock.to_reference(calls.end[chosen]),
        call_thread=calls.thread[chosen],
        call_name=calls.name[chosen],
        waits_for=waits_for,
        waits_on=waits_on,
        waits_for_copy=waits_for_copy,
        wait_at=wait_at[order],
        wait_stream=syncs.stream[stream_wait[order]],
        record_at=clock.to_reference(calls.start[recording]),
        step=step,
        gather=gather,
        reduction=reduction,
        exchange=exchange,
        deferrable=reduction & behind & (step != NONE) & (which < last_pass[step]),
        forward=inside["forward"],
        backward=behind,
        optimizer=inside["optimizer"],
        to_host=tensors & np.isin(ops.name[row], names.to_host),
        to_device=tensors & np.isin(ops.name[row], names.to_device),
        bytes=np.where(ops.kind[row] == Kind.COPY, ops.bytes[row], size),
        communicator=communicator,
        loading=Cover.of(clock.to_reference(data.start), clock.to_reference(data.end)),
        between_steps=_between_steps(m, calls.start[chosen], calls.end[chosen], clock, thresholds),
        allocating=Cover.of(clock.to_reference(calls.start[getting]), clock.to_reference(calls.end[getting])),
    )


def _between_steps(m: RankMeasures, start: Int64, end: Int64, clock: ClockFit, thresholds: Thresholds) -> Cover:
    """Long pauses of the host in which a step begins; the calls' times are on the rank's clock, the result's is not."""
    if m.marks is None or len(start) < 2:
        return Cover.of(*(np.empty(0, np.int64),) * 2)
    begun = np.searchsorted(m.marks.start, start, side="right")
    pauses = np.flatnonzero((np.diff(begun) > 0) & (start[1:] - end[:-1] >= thresholds.data_gap_ns))
    return Cover.of(clock.to_reference(end[pauses]), clock.to_reference(start[pauses + 1]))


def _ranges_of(m: RankMeasures, ranges: Ranges, phase: str) -> Cover:
    """When the host, on whatever thread, was inside ranges of a phase; ns on the rank's clock."""
    mine = m.words.where(lambda a: a.phase == phase)
    return Cover.of(ranges.start[mine], ranges.end[mine])


def _collectives(found: RankCollectives, row: NDArray[np.intp]) -> tuple[Bool, Bool, Bool, Int64, Int64]:
    """By operation: (all-gather, reduces, exchanges, number of its named communicator or NONE, bytes or NONE)."""
    names = [communicator for communicator, _ in found.group]
    number = {name: i for i, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
    of_group = np.array([NONE if name is None else number[name] for name in names], np.int64)
    gathers = np.array([op == "all_gather" for _, op in found.group], np.bool_)
    reductions = np.array([op in ("reduce_scatter", "all_reduce") for _, op in found.group], np.bool_)
    exchanges = np.array([op in EXCHANGES for _, op in found.group], np.bool_)
    gather, reduction, exchange = (np.zeros(len(row), np.bool_) for _ in range(3))
    communicator = np.full(len(row), NONE, np.int64)
    at = np.searchsorted(row, found.row)
    there = at < len(row)
    there[there] = row[at[there]] == found.row[there]
    gather[at[there]] = gathers[found.of[there]]
    reduction[at[there]] = reductions[found.of[there]]
    exchange[at[there]] = exchanges[found.of[there]]
    communicator[at[there]] = of_group[found.of[there]]
    size = np.full(len(row), NONE, np.int64)
    size[at[there]] = found.full_bytes[there]
    return gather, reduction, exchange, communicator, size


def main_stream(work: RankWork) -> int:
    """The stream that computes most of the time, or NONE."""
    computing = work.kind == Kind.COMPUTE
    streams, at = np.unique(work.stream[computing], return_inverse=True)
    if not len(streams):
        return NONE
    return int(streams[np.argmax(np.bincount(at, weights=(work.end - work.start)[computing]))])


def before_in_group(group: Int64) -> Int64:
    """(n,) the item before each one in its group, in the order given; NONE for each group's first."""
    order = np.argsort(group, kind="stable")
    previous = np.full(len(group), NONE, np.int64)
    same = group[order[1:]] == group[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def labels(*columns: NDArray[np.generic]) -> Int64:
    """(n,) number of each distinct row of the columns, by order of their values."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        new[1:] |= column[order[1:]] != column[order[:-1]]
    label = np.empty(len(order), np.int64)
    label[order] = np.cumsum(new)
    return label
