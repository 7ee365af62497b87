"""What a simulated job's captures hold, counted from the simulation itself: times, steps, waits."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from lab.engine import Op, Rank
from lab.job import Job

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Union of intervals."""
    made: list[Span] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        elif end > start:
            made.append((start, end))
    return made


def without(spans: Sequence[Span], covers: Sequence[Span]) -> list[Span]:
    """What of merged intervals lies outside of others."""
    made, first = [], 0
    for start, end in spans:
        while first < len(covers) and covers[first][1] <= start:
            first += 1
        at, here = start, first
        while here < len(covers) and covers[here][0] < end:
            if covers[here][0] > at:
                made.append((at, covers[here][0]))
            at = max(at, covers[here][1])
            here += 1
        if at < end:
            made.append((at, end))
    return made


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def placed(rank: Rank) -> list[Op]:
    """Operations that ran."""
    return [op for op in rank.ops if op.start is not None and op.end is not None]


def span(op: Op) -> Span:
    assert op.start is not None
    assert op.end is not None
    return op.start, op.end


def totals(rank: Rank, at: Callable[[int], int] = lambda ns: ns) -> dict[str, object]:
    """The account of a rank's whole capture; ``at`` says what its clock reads."""
    ops = placed(rank)
    kinds = {
        kind: merged((at(start), at(end)) for start, end in (span(op) for op in ops if op.kind == kind))
        for kind in ("compute", "comm", "copy")
    }
    wall = at(max(op.end or 0 for op in ops)) - at(min(op.start or 0 for op in ops))
    compute, comm = kinds["compute"], kinds["comm"]
    busy = merged([*compute, *comm])
    exposed = length(without(comm, compute))
    copies = length(without(kinds["copy"], busy))
    total = length(comm)
    return {
        "wall_ns": wall,
        "compute_ns": length(compute),
        "exposed_comm_ns": exposed,
        "exposed_copy_ns": copies,
        "idle_ns": wall - length(compute) - exposed - copies,
        "comm_ns": total,
        "overlapped_comm_ns": total - exposed,
        "overlap_ratio": (total - exposed) / total if total else None,
    }


def step_times(rank: Rank) -> list[int]:
    """Length of each step: from its first kernel on the main stream to the next one's."""
    anchors: dict[int, int] = {}
    last: dict[int, int] = defaultdict(int)
    for op in placed(rank):
        last[op.step] = max(last[op.step], op.end or 0)
        if op.stream == "main" and op.copy is None:
            anchors.setdefault(op.step, op.start or 0)
    numbers = sorted(anchors)
    ends = [anchors[n] for n in numbers[1:]] + [last[numbers[-1]]]
    return [end - anchors[n] for n, end in zip(numbers, ends, strict=True)]


def steady(job: Job) -> list[list[int]]:
    """Step times a captured rank, without the first step, and without a last one that is cut short."""
    kept = []
    for rank in captured(job):
        times = step_times(rank)[1:]
        if len(times) > 2 and times[-1] < 0.95 * statistics.median(times[:-1]):
            times = times[:-1]
        kept.append(times)
    return kept


def captured(job: Job) -> list[Rank]:
    only = job.settings.only
    return [rank for rank in job.ranks if only is None or rank.number in only]


def step_time(job: Job) -> int:
    return round(statistics.median(t for times in steady(job) for t in times))


def mean_step(job: Job) -> float:
    return statistics.fmean(t for times in steady(job) for t in times)


def exposed_by_role(job: Job) -> dict[str, float]:
    """Exposed communication by what it is for, as a share of the step, mean over ranks."""
    sums: dict[str, int] = defaultdict(int)
    wall = 0
    for rank in captured(job):
        ops = [op for op in placed(rank) if op.step > 0]
        compute = merged(span(op) for op in ops if op.kind == "compute")
        wall += sum(step_times(rank)[1:])
        for role in dict.fromkeys(op.role for op in ops if op.kind == "comm"):
            spans = merged(span(op) for op in ops if op.role == role)
            sums[role] += length(without(spans, compute))
    return {role: round(value / wall, 5) for role, value in sums.items()}


def idle_share(job: Job) -> float:
    """Idle time as a share of the whole, mean over ranks."""
    known = [totals(rank) for rank in captured(job)]
    return statistics.fmean(float(str(t["idle_ns"])) / float(str(t["wall_ns"])) for t in known)


def waits(job: Job) -> tuple[float, dict[int, float]]:
    """(mean wait for others a rank as a share of its time, share of all waiting by who came last)."""
    caused: dict[int, int] = defaultdict(int)
    ranks = {rank.number for rank in captured(job)}
    wall = sum(sum(step_times(rank)) for rank in captured(job))
    for communicator in job.communicators.values():
        for meeting in communicator.meetings.values():
            ops = [op for op in meeting.ops.values() if op.start is not None and op.rank in ranks and op.step > 0]
            if len(ops) < 2:
                continue
            last = max(ops, key=lambda op: op.start or 0)
            caused[last.rank] += sum((last.start or 0) - (op.start or 0) for op in ops)
    total = sum(caused.values())
    return total / wall, {rank: value / total for rank, value in sorted(caused.items())} if total else {}
