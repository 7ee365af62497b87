"""What the measures mean, computed the slow and plain way: sets of integer instants, and loops.

Shares no code with tracekit: an interval is a tuple ``(start, end, ...)``, a set of instants a Python set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

FIELDS = ("wall_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "comm_ns", "overlapped_comm_ns")


def instants(intervals: Iterable[tuple[int, ...]]) -> set[int]:
    """Every integer instant t with start <= t < end for one of the intervals."""
    return {t for start, end, *_ in intervals for t in range(start, end)}


def runs(covered: set[int]) -> list[tuple[int, int]]:
    """The maximal runs of neighbouring instants, as intervals in order."""
    starts = sorted(t for t in covered if t - 1 not in covered)
    ends = sorted(t + 1 for t in covered if t + 1 not in covered)
    return list(zip(starts, ends, strict=True))


def measure(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of the union in Python's integers: between neighbouring end points, so that long ones are no trouble."""
    points = sorted({t for start, end in intervals if start < end for t in (start, end)})
    return sum(
        later - earlier
        for earlier, later in pairwise(points)
        if any(start <= earlier and later <= end for start, end in intervals)
    )


def innermost(intervals: Sequence[tuple[int, int]], t: int) -> tuple[int, int] | None:
    """The shortest interval that contains t, or None."""
    around = [(end - start, start, end) for start, end in intervals if start <= t < end]
    return min(around)[1:] if around else None


def account(ops: Iterable[tuple[int, int, str]], start: int, end: int) -> dict[str, int]:
    """Where the instants of ``[start, end)`` go; ops are (start, end, "compute" | "comm" | "copy")."""
    found = dict.fromkeys(FIELDS, 0)
    by_kind = {kind: instants(op for op in ops if op[2] == kind) for kind in ("compute", "comm", "copy")}
    for t in range(start, end):
        computing, communicating, copying = (t in by_kind[kind] for kind in ("compute", "comm", "copy"))
        found["wall_ns"] += 1
        found["comm_ns"] += communicating
        if computing:
            found["compute_ns"] += 1
            found["overlapped_comm_ns"] += communicating
        elif communicating:
            found["exposed_comm_ns"] += 1
        elif copying:
            found["exposed_copy_ns"] += 1
        else:
            found["idle_ns"] += 1
    return found


def exposed_by_label(ops: Sequence[tuple[int, int, str, str]], start: int, end: int) -> dict[str, int]:
    """Exposed communication by the label of the collective that had it first; ops are (start, end, kind, label).

    Of collectives that start together the one listed first has it.
    """
    found: dict[str, int] = {}
    computing = instants(op for op in ops if op[2] == "compute")
    comms = sorted((op for op in ops if op[2] == "comm"), key=lambda op: op[0])
    for t in range(start, end):
        around = [op for op in comms if op[0] <= t < op[1]]
        if around and t not in computing:
            found[around[0][3]] = found.get(around[0][3], 0) + 1
    return found


def account_by_label(ops: Sequence[tuple[int, int, str, str]], start: int, end: int) -> dict[str, dict[str, int]]:
    """The account of ``[start, end)`` by label; ops are (start, end, kind, label), sorted by start.

    An instant belongs to the earliest op of the kind that it counts as; an idle one to the next op that starts (the
    last op where none does). ``comm_ns`` counts an instant for the earliest collective.
    """
    found: dict[str, dict[str, int]] = {}

    def add(label: str, *names: str) -> None:
        row = found.setdefault(label, dict.fromkeys(FIELDS, 0))
        for name in names:
            row[name] += 1

    for t in range(start, end):
        around = {kind: [op[3] for op in ops if op[0] <= t < op[1] and op[2] == kind] for kind in ("compute", "comm")}
        copies = [op[3] for op in ops if op[0] <= t < op[1] and op[2] == "copy"]
        if around["comm"]:
            add(around["comm"][0], "comm_ns")
        if around["compute"]:
            add(around["compute"][0], "wall_ns", "compute_ns")
            if around["comm"]:
                add(around["comm"][0], "overlapped_comm_ns")
        elif around["comm"]:
            add(around["comm"][0], "wall_ns", "exposed_comm_ns")
        elif copies:
            add(copies[0], "wall_ns", "exposed_copy_ns")
        else:
            following = [op[3] for op in ops if op[0] > t]
            add(following[0] if following else ops[-1][3], "wall_ns", "idle_ns")
    return found
