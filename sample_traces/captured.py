"""What the reports hold of a laid-out job: each rank's part of it, as the report's own clock counts."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from layout import Job
from placed import NEVER, Call, Capture, Op, Range, Rank, Sync


def cut(job: Job, rank: Rank, *, begin_ns: int = 0, end_ns: int = NEVER) -> None:
    """Keep of a rank what its host began inside ``[begin_ns, end_ns)``, and the operations that it launched there.

    The profiler is stopped when the device is done. A range that was open at ``begin_ns`` was never seen: what was
    launched inside it belongs to no step and no phase.
    """
    for item in rank.ranges:
        if item.end is not None and item.start < begin_ns < item.end:
            for op in rank.ops:
                if begin_ns <= op.call.start < item.end:
                    op.step = None if item.name == "step" else op.step
                    op.phase = None if item.name == op.phase else op.phase
    rank.ranges = [item for item in rank.ranges if begin_ns <= item.start < end_ns]
    rank.ops = [op for op in rank.ops if begin_ns <= op.call.start < end_ns]
    rank.calls = [call for call in rank.calls if begin_ns <= call.start < end_ns]
    rank.syncs = [sync for sync in rank.syncs if begin_ns <= sync.call.start < end_ns]
    rank.host_ns = min(rank.host_ns, end_ns)
    kept = {id(op) for op in rank.ops}
    for made in job.collectives:
        if rank.rank in made.ops and id(made.ops[rank.rank]) not in kept:
            del made.ops[rank.rank]


def interrupt_capture(job: Job, rank: Rank, at_ns: int) -> None:
    """End the capture of a rank at once: calls and kernels that were not over are not in it, ranges stay open."""
    cut(job, rank, end_ns=at_ns)
    for item in rank.ranges:
        if item.end is not None and item.end > at_ns:
            item.end = NEVER
    rank.ops = [op for op in rank.ops if op.end <= at_ns]
    rank.calls = [call for call in rank.calls if call.end <= at_ns]
    rank.syncs = [sync for sync in rank.syncs if sync.call.end <= at_ns]
    rank.host_ns = at_ns
    kept = {id(op) for op in rank.ops}
    for made in job.collectives:
        if rank.rank in made.ops and id(made.ops[rank.rank]) not in kept:
            del made.ops[rank.rank]
    job.collectives = [made for made in job.collectives if made.ops]


def as_counted(job: Job, captures: Sequence[Capture]) -> Job:
    """The job with every time as the capture's clock counts it; a copy where any of these drifts."""
    if not any(capture.drift_ppm for capture in captures):
        return job
    counted = copy.deepcopy(job)
    for capture in captures:
        for number in capture.ranks:
            _count_by(capture, counted.ranks[number])
    return counted


def _count_by(capture: Capture, rank: Rank) -> None:
    items: list[Op | Call | Range | Sync] = [*rank.ops, *rank.calls, *rank.ranges, *rank.syncs]
    for item in items:
        item.start = capture.ticks(item.start)
        if item.end is not None:
            item.end = capture.ticks(item.end)
    rank.host_ns = capture.ticks(rank.host_ns)
