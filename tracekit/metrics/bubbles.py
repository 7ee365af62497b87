"""Bubbles: the intervals of a rank in which no compute runs, each with one cause.

The pieces of one rank are disjoint and cover exactly what its windows hold besides compute, so that sums by cause add
up to the account to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import gaps, intersect, owned, subtract
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.waits import RankWaits
from tracekit.results import Step
from tracekit.timeline import NONE, Kind, Ops

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]
Interval = tuple[Int64, Int64]


class Lost(IntEnum):
    """Which term of the account a bubble belongs to."""

    EXPOSED_COMM = 0
    EXPOSED_COPY = 1
    IDLE = 2


EXPOSED_COMM_CAUSES = (
    "start_up",
    "peer_wait",
    "tensor_parallel",
    "expert_parallel",
    "context_parallel",
    "pipeline",
    "rate_limiter",
    "no_prefetch",
    "queued_behind_comm",
    "launched_late",
    "first_gather",
    "microbatch_reduce",
    "last_reduce",
    "optimizer_phase",
    "on_compute_stream",
    "launch_order",
    "latency_bound",
    "serialized",
    "bandwidth",
    "behind_copy",
    "host_late",
    "between_kernels",
    "unknown",
)
EXPOSED_COPY_CAUSES = ("offload", "input", "pageable", "peer_copy", "migration", "on_device", "host_copy", "unknown")
IDLE_CAUSES = (
    "launch_latency",
    "sync_call",
    "allocator",
    "first_use",
    "comm_init",
    "data_loading",
    "host_other",
    "dependency",
    "unknown",
)
CAUSES = {
    Lost.EXPOSED_COMM: EXPOSED_COMM_CAUSES,
    Lost.EXPOSED_COPY: EXPOSED_COPY_CAUSES,
    Lost.IDLE: IDLE_CAUSES,
}
UNKNOWN = {lost: names.index("unknown") for lost, names in CAUSES.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bubbles:
    """One rank's bubbles, sorted by start; all columns have one length, n."""

    start: Int64
    end: Int64
    lost: Int8
    """`Lost`."""
    cause: Int8
    """Index into the causes of its kind."""
    op: Int64
    """Row in the rank's operations of the communication or copy that runs; NONE when idle."""
    before: Int64
    """Row of the operation that ended last before it; NONE where there is none."""
    after: Int64
    """Row of the next operation that starts at its end or later; NONE where there is none."""
    step: Int64
    """Step number; NONE without steps."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def ns(self) -> Int64:
        """Length of each."""
        return self.end - self.start

    def of_cause(self, lost: Lost, *causes: str) -> Bool:
        """(n,) mask of the bubbles of one kind with one of the causes."""
        wanted = [CAUSES[lost].index(cause) for cause in causes]
        result: Bool = (self.lost == lost) & np.isin(self.cause, wanted)
        return result

    def cut(self, at: Int64) -> Bubbles:
        """Cut in two at instants that lie inside; whatever ran before and after stays."""
        row = self._around(at)
        inside = np.unique(at[(row >= 0) & (self.start[row] < at) & (at < self.end[row])])
        whole = np.repeat(np.arange(len(self)), 1 + np.bincount(self._around(inside), minlength=len(self)))
        rest = {f.name: getattr(self, f.name)[whole] for f in fields(self)}
        rest["start"] = np.sort(np.append(self.start, inside))
        rest["end"] = np.sort(np.append(self.end, inside))
        return Bubbles(**rest)

    def _around(self, t: Int64) -> NDArray[np.intp]:
        return np.searchsorted(self.start, t, side="right") - 1

    def with_causes(self, lost: Lost, cause: Int8) -> Bubbles:
        """Give the bubbles of one kind, in their order, these causes."""
        column = self.cause.copy()
        column[self.lost == lost] = cause
        return replace(self, cause=column)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BubbleWindows:
    """The disjoint, sorted windows that bubbles are looked for in, and the step number of each (NONE: no step)."""

    start: Int64
    end: Int64
    step: Int64

    @classmethod
    def of(cls, steps: Sequence[Step], window: tuple[int, int]) -> BubbleWindows:
        """A rank's steps; without steps its whole window counts as one."""
        rows = [(s.start_ns, s.end_ns, s.step) for s in steps] or [(*window, NONE)]
        start, end, step = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        return cls(start=start, end=end, step=step)


def bubbles_of(ops: Ops, covers: Covers, found: RankCollectives, waits: RankWaits, windows: BubbleWindows) -> Bubbles:
    """All bubbles of one rank: who owns each, what ran before and runs after.

    An exposed instant that several collectives share belongs to the earliest. Causes are told only where they follow
    from the peers' arrivals (``start_up``, ``peer_wait``); the others are ``unknown`` until they are looked for.
    """
    compute = covers.compute.start, covers.compute.end
    working = covers.compute_or_comm.start, covers.compute_or_comm.end
    copies = np.flatnonzero(ops.kind == Kind.COPY)
    comm, comm_op = _pieces(found.own_start, found.own_end, found.row.astype(np.int64), compute, windows)
    copy, copy_op = _pieces(*owned(ops.start[copies], ops.end[copies]), copies, working, windows)
    comm, comm_op = _cut(comm, comm_op, (waits.peer_wait.start, waits.peer_wait.end))
    comm, comm_op = _cut(comm, comm_op, (waits.starting.start, waits.starting.end))
    idle = _idle(covers, windows)
    start = np.concatenate([comm[0], copy[0], idle[0]])
    end = np.concatenate([comm[1], copy[1], idle[1]])
    lost = np.repeat(np.array(list(Lost), np.int8), [len(comm[0]), len(copy[0]), len(idle[0])])
    op = np.concatenate([comm_op, copy_op, np.full(len(idle[0]), NONE, np.int64)])
    order = np.argsort(start, kind="stable")
    start, end, lost, op = start[order], end[order], lost[order], op[order]
    cause = np.array([UNKNOWN[kind] for kind in Lost], np.int8)[lost]
    is_comm = lost == Lost.EXPOSED_COMM
    # Where both hold, start-up goes first.
    for name, cover in (("peer_wait", waits.peer_wait), ("start_up", waits.starting)):
        inside = is_comm & (cover.within(start, end) > 0)
        cause[inside] = EXPOSED_COMM_CAUSES.index(name)
    before, after = _neighbours(ops, start, end)
    at = np.searchsorted(windows.start, start, side="right") - 1
    return Bubbles(
        start=start, end=end, lost=lost, cause=cause, op=op, before=before, after=after, step=windows.step[at]
    )


def _pieces(
    start: Int64, end: Int64, row: Int64, hidden_by: Interval, windows: BubbleWindows
) -> tuple[Interval, Int64]:
    """(what of disjoint intervals nothing hides, cut at the windows' edges; the row that each piece is of)."""
    full = end > start
    start, end, row = start[full], end[full], row[full]
    pieces = intersect(subtract((start, end), hidden_by), (windows.start, windows.end))
    return pieces, row[np.searchsorted(start, pieces[0], side="right") - 1]


def _cut(pieces: Interval, row: Int64, at: Interval) -> tuple[Interval, Int64]:
    """Cut disjoint pieces wherever an interval of ``at`` starts or ends inside."""
    if len(pieces[0]) == 0 or len(at[0]) == 0:
        return pieces, row
    edges = np.unique(np.concatenate([at[0], at[1], pieces[0][:1], pieces[1][-1:]]))
    cut = intersect(pieces, (edges[:-1], edges[1:]))
    return cut, row[np.searchsorted(pieces[0], cut[0], side="right") - 1]


def _idle(covers: Covers, windows: BubbleWindows) -> Interval:
    if len(windows.start) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    free = gaps((covers.busy.start, covers.busy.end), int(windows.start[0]), int(windows.end[-1]))
    return intersect(free, (windows.start, windows.end))


def _neighbours(ops: Ops, start: Int64, end: Int64) -> Interval:
    """(row of the operation that ended last at or before each start, of the first that starts at each end or later)."""
    by_end = np.argsort(ops.end, kind="stable")
    ended = np.searchsorted(ops.end[by_end], start, side="right") - 1
    before = np.where(ended >= 0, by_end[np.maximum(ended, 0)], NONE)
    following = np.searchsorted(ops.start, end, side="left")
    return before, np.where(following < len(ops), following, NONE)


def sums_by_cause(bubbles: Bubbles, lost: Lost, steps: Sequence[int]) -> list[dict[str, int]]:
    """For each step its ns by cause, where there are any; they add up to the step's exposed or idle time."""
    names, numbers = CAUSES[lost], np.array(sorted(steps), np.int64)
    rows = np.flatnonzero((bubbles.lost == lost) & np.isin(bubbles.step, numbers))
    sums = np.zeros((len(numbers), len(names)), np.int64)
    np.add.at(sums, (np.searchsorted(numbers, bubbles.step[rows]), bubbles.cause[rows]), bubbles.ns[rows])
    table = {
        number: {name: ns for name, ns in zip(names, row, strict=True) if ns}
        for number, row in zip(numbers.tolist(), sums.tolist(), strict=True)
    }
    return [table[number] for number in steps]


def with_causes(steps: Sequence[Step], bubbles: Bubbles) -> tuple[Step, ...]:
    """The steps with their exposed and idle time by cause."""
    columns = [sums_by_cause(bubbles, lost, [step.step for step in steps]) for lost in Lost]
    return tuple(
        replace(step, exposed_comm_by_cause=comm, exposed_copy_by_cause=copy, idle_by_cause=idle)
        for step, comm, copy, idle in zip(steps, *columns, strict=True)
    )
