"""Which range of the host encloses the launch of an operation, on the launching thread."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tracekit.collective_ranges import range_op
from tracekit.intervals import innermost
from tracekit.timeline import NONE, Calls, Int32, Ranges


def range_around(calls: Calls, ranges: Ranges, picked: NDArray[np.bool_], launched_by: Int32) -> Int32:
    """Row of the innermost picked range around the call that launched each operation, on the same thread; or NONE."""
    answer = np.full(len(launched_by), NONE, np.int32)
    rows = np.flatnonzero(picked)
    launched = np.flatnonzero(launched_by != NONE)
    if len(rows) == 0 or len(launched) == 0:
        return answer
    call = launched_by[launched]
    for thread in np.unique(ranges.thread[rows]).tolist():
        own = rows[ranges.thread[rows] == thread]
        here = calls.thread[call] == thread
        found = innermost(ranges.start[own], ranges.end[own], calls.start[call[here]])
        answer[launched[here]] = np.where(found >= 0, own[np.maximum(found, 0)], NONE)
    return answer


class NameTable(Protocol):
    """Names by index, being read or read."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> str: ...


def ops_by_name(ranges: Ranges, names: NameTable) -> dict[int, str]:
    """The collectives that names of ranges say, by index into ``names``."""
    present = np.zeros(len(names) + 1, np.bool_)  # the last entry is NONE's
    present[ranges.name] = True
    found = ((i, range_op(names[i])) for i in np.flatnonzero(present[:-1]).tolist())
    return {i: op for i, op in found if op is not None}


def named_ops(calls: Calls, ranges: Ranges, names: NameTable, launched_by: Int32) -> list[str | None]:
    """What the innermost range that names a collective says around the call that launched each operation."""
    ops = ops_by_name(ranges, names)
    if not ops:
        return [None] * len(launched_by)
    row = range_around(calls, ranges, np.isin(ranges.name, list(ops)), launched_by)
    return [ops[int(ranges.name[at])] if at != NONE else None for at in row.tolist()]
