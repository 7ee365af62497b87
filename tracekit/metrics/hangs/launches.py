"""How far each collective of a rank got: which kernels are its own, and whether they ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, State
from tracekit.intervals import innermost
from tracekit.kernels import describe_kernel
from tracekit.metrics.hangs.activity import Observed, lasting_ops
from tracekit.metrics.hangs.align import NO_END, Member, Progress
from tracekit.metrics.hangs.issued import Issued
from tracekit.timeline import NONE, Kind, Ops, Process, Source, Timeline

Int64 = NDArray[np.int64]


def progress_of(
    timeline: Timeline, member: Member, issued: Issued, seen: Observed, names: Sequence[str], thresholds: Thresholds
) -> Progress | None:
    """How far the collectives of a rank got; None where its kernels cannot be told to be of one or another.

    ``names`` are those that ``issued`` counts in.
    """
    process = timeline.processes[member.process]
    ranges, calls = process.ranges, process.calls
    open_, step = ranges.open[issued.row], seen.step_at(ranges.start[issued.row])
    state = np.where(open_, State.ISSUED, State.UNKNOWN).astype(np.int8)
    end, stream = np.full(len(issued), NO_END, np.int64), np.full(len(issued), NONE, np.int64)
    if member.track is None or len(calls) == 0:
        return Progress(state=state, end=end, stream=stream, step=step)
    ops = member.track.ops
    holds = _holding(process, issued)
    of_op = _collective_of(timeline, ops, issued, holds, names)
    if of_op is None:
        return None
    lasting = lasting_ops(member.track, timeline.captures[process.capture].stop_ns, thresholds)
    ran = np.setdiff1d(np.flatnonzero(of_op != NONE), lasting, assume_unique=True)
    np.maximum.at(end, of_op[ran], ops.end[ran])
    stream[of_op[ran]] = ops.stream[ran]
    started = np.concatenate([holds[process.unfinished], of_op[lasting]])
    called = np.zeros(len(issued), np.bool_)
    called[holds[holds >= 0]] = True
    state[called] = State.ISSUED
    state[started[started >= 0]] = State.STARTED
    state[(end != NO_END) & (state != State.STARTED)] = State.COMPLETED
    # Where collectives before it have their kernels, one that was asked for after them and has none is not through.
    last = np.flatnonzero(end != NO_END)[-1:]
    rest = state[last[0] + 1 :] if len(last) else state[:0]
    rest[rest == State.UNKNOWN] = State.ISSUED
    if np.any(ops.call[ops.kind == Kind.COMM] == NONE):  # every kernel is told by order: what has none is not through
        state[(state == State.UNKNOWN) & (np.arange(len(state)) > np.argmax(end != NO_END))] = State.ISSUED
    return Progress(state=state, end=end, stream=stream, step=step)


def _holding(process: Process, issued: Issued) -> Int64:
    """(calls,) the collective whose range holds each call's start, on its thread; NONE."""
    ranges, calls = process.ranges, process.calls
    answer = np.full(len(calls), NONE, np.int64)
    thread = ranges.thread[issued.row]
    for each in np.unique(thread).tolist():
        own, here = np.flatnonzero(thread == each), np.flatnonzero(calls.thread == each)
        rows = issued.row[own]
        found = innermost(ranges.start[rows], ranges.end[rows], calls.start[here])
        answer[here] = np.where(found >= 0, own[np.maximum(found, 0)], NONE)
    return answer


def _collective_of(timeline: Timeline, ops: Ops, issued: Issued, holds: Int64, names: Sequence[str]) -> Int64 | None:
    """(operations,) the collective of each, NONE for others: by its launch, and where that row is lost, by order.

    On a stream the kernels of an op run in the order of its calls, one for each: those whose launch is known tell how
    the two count against one another. None where they do not tell.
    """
    of_op = np.where(ops.call != NONE, holds[ops.call], NONE)
    kernels = np.flatnonzero((ops.kind == Kind.COMM) & (ops.source == Source.KERNEL))
    if not np.any(ops.call[kernels] == NONE):
        return of_op
    known = {i: describe_kernel(timeline.names[i]).op for i in np.unique(ops.name[kernels]).tolist()}
    code = {name: i for i, name in enumerate(names)}
    op = np.array([code.get(known[i] or "", UNKNOWN) for i in ops.name[kernels].tolist()], np.int64)
    for each in np.unique(op).tolist():
        streams = np.unique(ops.stream[kernels[op == each]]).tolist()
        for stream in streams:
            rows = kernels[(op == each) & (ops.stream[kernels] == stream)]
            if not np.any(ops.call[rows] == NONE):
                continue
            counted = _by_order(of_op[rows], issued, each, alone=len(streams) == 1)
            if counted is None:
                return None
            of_op[rows] = counted
    return of_op


def _by_order(of: Int64, issued: Issued, op: int, *, alone: bool) -> Int64 | None:
    """The collectives of one op's kernels on one stream, some of which are known; ``alone``: on no other stream."""
    anchors = np.flatnonzero(of != NONE)
    groups = np.unique(issued.group[of[anchors]])
    if op == UNKNOWN or len(groups) > 1 or (len(groups) == 0 and not alone):
        return None
    calls = np.flatnonzero(issued.op == op)
    if len(groups):
        calls = calls[issued.group[calls] == groups[0]]
    ahead = np.unique(np.searchsorted(calls, of[anchors]) - anchors)
    if len(ahead) > 1 or len(calls) == 0 or not np.all(np.isin(of[anchors], calls)):
        return None
    first = int(ahead[0]) if len(ahead) else 0
    if first < 0 or first + len(of) > len(calls):
        return None
    return calls[first : first + len(of)]
