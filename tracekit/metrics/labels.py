"""What NVTX says about each GPU operation: which step, phase and module launched it.

Ranges are on host threads, operations on the GPU; the launch call joins them. Backward runs on threads of its own, so
where the launching thread says nothing, the process's main thread speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.annotations import Annotation, describe_range
from tracekit.intervals import innermost
from tracekit.timeline import NONE, Process, Ranges, Timeline

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """What each distinct (domain, name) among a process's ranges means; ``of`` has an entry for every range."""

    annotations: tuple[Annotation | None, ...]
    of: Int64

    def where(self, test: Callable[[Annotation], bool]) -> NDArray[np.bool_]:
        """(ranges,) mask of those whose meaning passes the test."""
        passed = np.array([a is not None and test(a) for a in self.annotations], np.bool_)
        return passed[self.of] if len(self.annotations) else np.zeros(len(self.of), np.bool_)


def vocabulary(timeline: Timeline, ranges: Ranges) -> Vocabulary:
    """Look up the meaning of all ranges of a process, once for each distinct name."""
    if len(ranges) == 0:
        return Vocabulary((), np.empty(0, np.int64))
    pair = (ranges.domain.astype(np.int64) + 1) * (len(timeline.names) + 2) + ranges.name + 1
    distinct, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    del distinct
    found = []
    for row in first.tolist():
        domain, name = int(ranges.domain[row]), int(ranges.name[row])
        text = timeline.names[name] if name != NONE else ""
        found.append(describe_range(timeline.names[domain] if domain != NONE else None, text) if text else None)
    return Vocabulary(tuple(found), inverse.astype(np.int64))


def label_calls(process: Process, marked: NDArray[np.bool_], label: Int64, main_thread: int | None) -> Int64:
    """Label of the innermost marked range around each CUDA call's start, or NONE.

    ``label`` has an entry for every range; ``marked`` picks those that count. A call's own thread is asked first, then
    the main thread.
    """
    calls, ranges = process.calls, process.ranges
    answer = np.full(len(calls), NONE, np.int64)
    rows = np.flatnonzero(marked)
    if len(rows) == 0 or len(calls) == 0:
        return answer
    threads = np.unique(ranges.thread[rows])
    for thread in threads.tolist():
        own = rows[ranges.thread[rows] == thread]
        here = np.flatnonzero(calls.thread == thread)
        found = innermost(ranges.start[own], ranges.end[own], calls.start[here])
        answer[here] = np.where(found >= 0, label[own[np.maximum(found, 0)]], NONE)
    if main_thread is not None:
        own = rows[ranges.thread[rows] == main_thread]
        silent = np.flatnonzero(answer == NONE)
        found = innermost(ranges.start[own], ranges.end[own], calls.start[silent])
        if len(own):
            answer[silent] = np.where(found >= 0, label[own[np.maximum(found, 0)]], NONE)
    return answer


def main_thread(ranges: Ranges, marked: NDArray[np.bool_]) -> int | None:
    """The thread that holds most time of the marked ranges."""
    rows = np.flatnonzero(marked)
    if len(rows) == 0:
        return None
    threads, inverse = np.unique(ranges.thread[rows], return_inverse=True)
    time = np.zeros(len(threads), np.int64)
    np.add.at(time, inverse, ranges.end[rows] - ranges.start[rows])
    return int(threads[np.argmax(time)])
