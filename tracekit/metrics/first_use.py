"""When the host begins, in an idle gap, to load what the operation that ends it needs: code, a library, a graph.

A kernel's first launch loads its code inside the call; a library's first use is found and linked by the host (no CUDA
call), asks the driver for its functions, and loads its kernels. What follows in the gap is part of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import Activity, Doing
from tracekit.timeline import NONE, Ops, Source

Int64 = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


def first_use_from(ops: Ops, activity: Activity, start: Int64, returned: Int64, after: Int64, slow_ns: int) -> Int64:
    """For each gap, from its start to the return of the call that launched what ends it, since when; NEVER if not.

    The gap's start where a library is set up in it; else the first call that loads; else the launch, where it is the
    first of its kernel and took ``slow_ns`` or longer.
    """
    calls = activity.process.calls
    launch = ops.call[after]
    since = np.full(len(start), NEVER, np.int64)
    lasted = calls.end[launch] - calls.start[launch]
    slow = np.flatnonzero((lasted >= slow_ns) & (ops.source[after] == Source.KERNEL))
    if len(slow):
        slow = slow[_is_first(ops, after[slow])]
        since[slow] = np.maximum(calls.start[launch[slow]], start[slow])
    thread = calls.thread[launch]
    loading = np.flatnonzero(activity.doing == Doing.FIRST_USE)
    library = activity.library
    for each in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == each)
        for rows, from_start in ((loading, False), (library, True)):
            own = rows[(calls.thread[rows] == each) | (calls.thread[rows] == activity.speaker)]
            if len(own) == 0:
                continue
            at = np.searchsorted(calls.start[own], start[mine])
            found = at < len(own)
            first = calls.start[own[np.minimum(at, len(own) - 1)]]
            found &= first < returned[mine]
            hit = mine[found]
            since[hit] = np.minimum(since[hit], start[hit] if from_start else first[found])
    return since


def _is_first(ops: Ops, rows: Int64) -> NDArray[np.bool_]:
    """Which of the operations are the first of their names."""
    names = np.unique(ops.name[rows])
    wanted = np.zeros(int(names[-1]) + 2, np.bool_)  # the last entry is NONE's
    wanted[names] = True
    inside = np.where(ops.name < len(wanted) - 1, ops.name, NONE)
    candidates = np.flatnonzero(wanted[inside])
    found, first = np.unique(ops.name[candidates], return_index=True)
    result: NDArray[np.bool_] = candidates[first][np.searchsorted(found, ops.name[rows])] == rows
    return result
