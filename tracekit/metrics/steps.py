"""Training steps: which NVTX ranges mark them, and the GPU windows that belong to them.

A step's window starts at its anchor, the start of the first kernel on the rank's main compute stream among those whose
launch call starts inside the step's range (on any thread of the process); where most steps launch none there, the first
compute kernel of those. It ends at the next step's anchor; the last one ends with the last GPU operation launched
inside its range. Windows tile the time from the first step on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracekit.intervals import Cover, innermost
from tracekit.metrics.labels import Vocabulary
from tracekit.step_names import STEP_FAMILIES
from tracekit.timeline import NO_VALUE, NONE, Kind, Ops, Process, Ranges, Source, Timeline

Int64 = NDArray[np.int64]
TRAILING_NUMBER = re.compile(r"(\d+)\W*$")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRanges:
    """The host ranges that mark a process's steps, disjoint and sorted."""

    source: str
    """The marker: the name that the ranges share."""
    number: Int64
    start: Int64
    end: Int64
    thread: int
    """The thread that holds them."""
    nested: int = 0
    """Marks that lie inside one of these, and are no steps of their own."""
    elsewhere: int = 0
    """Marks on other threads, which are no steps."""
    numbered: bool = True
    """Whether the marks carry the numbers; else they are counted."""
    confidence: float | None = None
    """How sure it is that these are steps, 0 to 1; None where ranges say so."""
    whole: int | None = None
    """The first so many are whole steps; None: all."""

    def containing(self, t: Int64) -> Int64:
        """Index of the step range around each t, or NONE."""
        at = np.searchsorted(self.start, t, side="right") - 1
        clipped = np.maximum(at, 0)
        return np.where((at >= 0) & (t < self.end[clipped]), clipped, NONE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWindows:
    """The GPU windows of one rank's steps; they tile ``[start[0], end[-1])``."""

    number: Int64
    start: Int64
    end: Int64
    followed: NDArray[np.bool_]
    """Whether another step begins where this one ends; else it ends with its last operation."""

    def inside(self, low: int, high: int) -> StepWindows | None:
        """Only the steps that lie wholly between two instants; None without any."""
        kept = (self.start >= low) & (self.end <= high)
        return self.rows(kept) if kept.any() else None

    def rows(self, kept: NDArray[np.bool_]) -> StepWindows:
        """The steps that a mask picks."""
        return StepWindows(
            number=self.number[kept], start=self.start[kept], end=self.end[kept], followed=self.followed[kept]
        )


def main_stream(ops: Ops) -> int | None:
    """The stream with most compute time (union of its operations), of equals the lowest id; None without compute."""
    rows = np.flatnonzero(ops.kind == Kind.COMPUTE)
    if len(rows) == 0:
        return None
    streams = ops.stream[rows]
    best: tuple[int, int] | None = None
    for stream in np.unique(streams).tolist():
        own = rows[streams == stream]
        time = int(Cover.of(ops.start[own], ops.end[own]).before[-1])
        if best is None or time > best[0]:
            best = time, stream
    return best[1] if best else None


def step_ranges(
    timeline: Timeline, process: Process, words: Vocabulary, marker: str | None, ops: Ops | None = None
) -> StepRanges | None:
    """The ranges that mark steps: those called ``marker``, else the most trusted family that the process has.

    ``marker`` is a name, or a regular expression that matches the whole name. Of several threads with such ranges, as
    where each device of a process has one, that one counts which launches most of ``ops`` inside them.
    """
    ranges = process.ranges
    launches = ops.call[ops.call != NONE] if ops is not None else np.empty(0, np.int32)
    if marker is not None:
        rows = _rows_named(timeline, ranges, marker)
        return _as_steps(timeline, process, rows, launches, marker)
    for family in STEP_FAMILIES:
        marked = words.where(lambda a, family=family: a.step == family)  # type: ignore[misc]
        if marked.any():
            return _as_steps(timeline, process, np.flatnonzero(marked), launches, family, words)
    return None


def _rows_named(timeline: Timeline, ranges: Ranges, marker: str) -> NDArray[np.intp]:
    distinct = np.unique(ranges.name[ranges.name != NONE])
    names = [timeline.names[i] for i in distinct.tolist()]
    try:
        # Arrow's expressions (RE2) take time linear in the name; Python's take for ever on (a+)+$.
        matches = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{marker})\z").to_pylist()
    except pa.ArrowInvalid:
        matches = [False] * len(names)
    wanted = [i for i, name, match in zip(distinct.tolist(), names, matches, strict=True) if match or name == marker]
    return np.flatnonzero(np.isin(ranges.name, wanted))


def _as_steps(
    timeline: Timeline,
    process: Process,
    rows: NDArray[np.intp],
    launches: NDArray[np.int32],
    source: str,
    words: Vocabulary | None = None,
) -> StepRanges | None:
    """Keep the outermost marks of one thread, and number them."""
    ranges = process.ranges
    rows = rows[ranges.end[rows] > ranges.start[rows]]
    if len(rows) == 0:
        return None
    thread = _thread_of(process, rows, launches)
    own = rows[ranges.thread[rows] == thread]
    elsewhere = len(rows) - len(own)
    rows, end = _outermost(ranges, own)
    numbers = []
    for row in rows.tolist():
        if ranges.value[row] != NO_VALUE:
            numbers.append(int(ranges.value[row]))
            continue
        known = words.annotations[int(words.of[row])] if words is not None else None
        found = TRAILING_NUMBER.search(timeline.names[int(ranges.name[row])])
        number = known.step_number if known else int(found[1]) if found and len(found[1]) < 18 else None
        numbers.append(number if number is not None else NONE)
    numbered = len(set(numbers)) == len(numbers) and NONE not in numbers
    if not numbered:
        numbers = list(range(len(rows)))
    return StepRanges(
        source=source,
        number=np.array(numbers, np.int64),
        start=ranges.start[rows],
        end=end,
        thread=thread,
        nested=len(own) - len(rows),
        elsewhere=elsewhere,
        numbered=numbered,
    )


def _thread_of(process: Process, rows: NDArray[np.intp], launches: NDArray[np.int32]) -> int:
    """The thread whose marks hold most of the launches that it makes itself; of equals the one with most marks."""
    ranges, calls = process.ranges, process.calls
    threads, counts = np.unique(ranges.thread[rows], return_counts=True)
    if len(threads) == 1:
        return int(threads[0])
    held = []
    for thread in threads.tolist():
        own = rows[ranges.thread[rows] == thread]
        at = calls.start[launches[calls.thread[launches] == thread]]
        held.append(np.count_nonzero(innermost(ranges.start[own], ranges.end[own], at) >= 0))
    return int(threads[np.lexsort((-np.arange(len(threads)), counts, held))[-1]])


def _outermost(ranges: Ranges, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], Int64]:
    """(marks of one thread that lie inside no other, where each ends).

    ``rows`` are sorted by start, longest first. A mark that was never popped, or that reaches into the next one, ends
    where the next begins: one lost pop must not swallow all steps after it.
    """
    kept: list[int] = []
    ends: list[int] = []
    columns = zip(rows.tolist(), ranges.start[rows].tolist(), ranges.end[rows].tolist(), strict=True)
    for row, start, end in columns:
        if kept and start < ends[-1]:
            if end <= ends[-1] and not ranges.open[kept[-1]]:
                continue
            ends[-1] = start
        kept.append(row)
        ends.append(end)
    full = np.array(ends, np.int64) > ranges.start[kept]
    return np.array(kept, np.intp)[full], np.array(ends, np.int64)[full]


def step_windows(ops: Ops, process: Process, marks: StepRanges, stream: int | None) -> StepWindows | None:
    """The GPU windows of the steps that launched a kernel; None if none did."""
    launched = np.flatnonzero(ops.call != NONE)
    step = marks.containing(process.calls.start[ops.call[launched]])
    launched, step = launched[step != NONE], step[step != NONE]
    kernels = (ops.stream[launched] == stream) & (ops.source[launched] <= Source.GRAPH)
    found, first = np.unique(step[kernels], return_index=True)  # operations are sorted by start: the first is earliest
    first = launched[kernels][first]
    elsewhere = (ops.kind[launched] == Kind.COMPUTE) & ~np.isin(step, found)
    others, other_first = np.unique(step[elsewhere], return_index=True)
    if len(others) > len(found):  # most steps compute on other streams only: they begin with their first kernel there
        found, first = np.append(found, others), np.append(first, launched[elsewhere][other_first])
    if len(found) == 0:
        return None
    anchor = ops.start[first]
    order = np.argsort(anchor, kind="stable")
    found, anchor = found[order], anchor[order]
    last_end = int(ops.end[launched[step == found[-1]]].max())
    end = np.append(anchor[1:], last_end)
    followed = np.arange(len(found)) < len(found) - 1
    windows = StepWindows(number=marks.number[found], start=anchor, end=end, followed=followed)
    whole = found < marks.whole if marks.whole is not None else np.ones(len(found), np.bool_)
    return windows.rows((end > anchor) & whole)
