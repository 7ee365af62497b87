"""Collectives that their ranks called differently: in op, sizes or dtype, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.evidence import BYTE, UNKNOWN, Evidence, Int64, State
from tracekit.metrics.hangs.members import Members
from tracekit.metrics.hangs.table import Bool, Table
from tracekit.results import Mismatch

MISSING = np.iinfo(np.int64).max
TYPE, SIZE, DTYPE = "type_mismatch", "size_mismatch", "dtype_mismatch"


class Groups:
    """Reductions over the entries of each group; values of UNKNOWN take no part."""

    def __init__(self, table: Table) -> None:
        self.first = table.start[:-1]
        self.count = np.diff(table.start)

    def low(self, column: Int64) -> Int64:
        """Least known value of each group; MISSING where none is known."""
        return np.minimum.reduceat(np.where(column == UNKNOWN, MISSING, column), self.first)

    def high(self, column: Int64) -> Int64:
        """Largest known value of each group; UNKNOWN where none is known."""
        return np.maximum.reduceat(column, self.first)

    def total(self, column: Int64) -> Int64:
        """Sum of each group; UNKNOWN where a value is not known."""
        known = np.add.reduceat((column != UNKNOWN).astype(np.int64), self.first) == self.count
        return np.where(known, np.add.reduceat(column, self.first), UNKNOWN)

    def differs(self, column: Int64) -> Bool:
        """Whether two known values of a group differ."""
        high = self.high(column)
        return np.asarray((high != UNKNOWN) & (self.low(column) != high))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flags:
    """Which groups were called with different ops, sizes or dtypes; one of them at most."""

    types: Bool
    sizes: Bool
    dtypes: Bool

    @property
    def any(self) -> Bool:
        """Whether a group was called differently at all."""
        return np.asarray(self.types | self.sizes | self.dtypes)

    def verdict(self, group: int) -> str:
        """Of a group that was."""
        return TYPE if self.types[group] else SIZE if self.sizes[group] else DTYPE


def flags_of(evidence: Evidence, table: Table, sizes: Int64) -> Flags:
    """``sizes``: how many ranks each communicator has, 0 where that is not known. A different op explains different
    sizes, and these a different dtype."""
    if not len(table):
        none = np.zeros(0, np.bool_)
        return Flags(types=none, sizes=none, dtypes=none)
    groups = Groups(table)
    types = groups.differs(table.op.astype(np.int64))
    differ = ~types & _sizes_differ(evidence, table, groups, sizes)
    return Flags(types=types, sizes=differ, dtypes=~types & ~differ & groups.differs(table.dtype.astype(np.int64)))


def unfinished_mismatches(table: Table, flags: Flags) -> dict[int, str]:
    """Verdict by group. What has completed on all ranks was no mismatch."""
    if not len(table):
        return {}
    open_ = np.add.reduceat((table.state != State.COMPLETED).astype(np.int64), table.start[:-1]) > 0
    return {int(group): flags.verdict(int(group)) for group in np.flatnonzero(flags.any & open_)}


def told_mismatches(
    evidence: Evidence, table: Table, members: Sequence[Members], verdicts: dict[int, str], most: int
) -> tuple[tuple[Mismatch, ...], int]:
    """(mismatches by communicator and seq, at most ``most`` of each communicator; how many more)."""
    of_each: dict[int, int] = {}
    told = []
    for group, verdict in verdicts.items():
        communicator = int(table.communicator[table.start[group]])
        of_each[communicator] = of_each.get(communicator, 0) + 1
        if of_each[communicator] <= most:
            told.append(describe(evidence, table, members, group, verdict))
    return tuple(told), len(verdicts) - len(told)


def _sizes_differ(evidence: Evidence, table: Table, groups: Groups, sizes: Int64) -> Bool:
    """Whether each group's sizes cannot belong together.

    All-reduce, broadcast: all equal, in and out. Reduce, gather: inputs equal. Scatter: outputs equal. All-to-all: sums
    equal. All-gather: outputs equal, and the sum of the inputs (so that uneven ones pass); reduce-scatter the reverse.
    Sizes on which all agree and which cannot be are none where the same op got through with such sizes before.
    """
    code = groups.high(table.op.astype(np.int64))
    first = table.communicator[groups.first]
    size = sizes[first]
    inputs, outputs = table.elements_in, table.elements_out
    differ_in, differ_out = groups.differs(inputs), groups.differs(outputs)
    least_in, least_out = groups.low(inputs), groups.low(outputs)
    sum_in, sum_out = groups.total(inputs), groups.total(outputs)
    full = (groups.count == size) & (size > 0)
    done = np.minimum.reduceat(table.state, groups.first) == State.COMPLETED

    def is_op(*wanted: str) -> Bool:
        of = np.array([name in wanted for name in evidence.names] + [False])
        return np.asarray(of[code])

    both = (least_in != MISSING) & (least_out != MISSING)
    differ = is_op("all_reduce", "broadcast") & (differ_in | differ_out)
    differ |= is_op("reduce", "gather", "send_recv") & differ_in
    differ |= is_op("scatter") & differ_out
    wrong = is_op("all_reduce", "broadcast") & both & (least_in != least_out)
    wrong |= is_op("all_to_all") & full & (sum_in != UNKNOWN) & (sum_out != UNKNOWN) & (sum_in != sum_out)
    for op, parts, whole, part_differs, whole_differs, sum_parts in (
        ("all_gather", least_in, least_out, differ_in, differ_out, sum_in),
        ("reduce_scatter", least_out, least_in, differ_out, differ_in, sum_out),
    ):
        adds_up = full & (whole != MISSING) & (sum_parts == whole)
        even = ~part_differs & both & (size > 0)
        differ |= is_op(op) & (whole_differs | (part_differs & ~adds_up))
        wrong |= is_op(op) & even & (np.where(even, parts, 0) * size != np.where(even, whole, 0))
    ops = len(evidence.names) + 1
    kind = first.astype(np.int64) * ops + code
    return np.asarray(differ | (wrong & ~np.isin(kind, kind[wrong & done])))


def describe(evidence: Evidence, table: Table, members: Sequence[Members], group: int, verdict: str) -> Mismatch:
    """A mismatched group in words, each way of calling it with its ranks."""
    at = table.entries_of(group)
    communicator = int(table.communicator[at.start])
    ways: dict[tuple[int, ...], list[int]] = {}
    for entry in range(at.start, at.stop):
        ways.setdefault(key_of(table, entry, verdict), []).append(entry)
    calls = [
        (sorted(evidence.ranks[int(table.row[e])].rank for e in entries), _words(evidence, table, entries, verdict))
        for entries in ways.values()
    ]
    found = sorted(calls, key=lambda call: -len(call[0]))
    present = at.stop - at.start
    has_majority = len(found) > 1 and 2 * len(found[0][0]) > present
    size = members[communicator].size
    if has_majority:
        expected = found[0][1]
    elif len(found) == 1:
        expected = f"sizes that fit {size} ranks"
    else:
        expected = "the same on all ranks"
    ops = {int(code) for code in table.op[at] if code != UNKNOWN}
    op = ops.pop() if len(ops) == 1 else _majority_op(table, at) if has_majority else None
    return Mismatch(
        verdict=verdict,
        communicator=evidence.communicators[communicator].name,
        seq=int(table.seq[at.start]),
        op=None if op is None else evidence.names[op],
        ranks=tuple(sorted(rank for ranks, _ in found[has_majority:] for rank in ranks)),
        expected=expected,
        found=tuple((tuple(ranks), text) for ranks, text in found),
    )


def culprits_of(mismatch: Mismatch) -> tuple[int, ...]:
    """Who differs from the majority; () where there is none."""
    everyone = sum(len(ranks) for ranks, _ in mismatch.found)
    return mismatch.ranks if len(mismatch.ranks) < everyone else ()


def _majority_op(table: Table, at: slice) -> int:
    codes, counts = np.unique(table.op[at], return_counts=True)
    return int(codes[counts.argmax()])


def key_of(table: Table, entry: int, verdict: str) -> tuple[int, ...]:
    """What an entry is compared in."""
    if verdict == TYPE:
        return (int(table.op[entry]),)
    if verdict == DTYPE:
        return (int(table.dtype[entry]),)
    return int(table.elements_in[entry]), int(table.elements_out[entry])


def _words(evidence: Evidence, table: Table, entries: Sequence[int], verdict: str) -> str:
    """How some ranks called it; sizes where they are the same for all of them."""
    first = entries[0]
    code, dtype = int(table.op[first]), int(table.dtype[first])
    op = "unknown op" if code == UNKNOWN else evidence.names[code]
    if verdict == DTYPE:
        return f"{op} of {'unknown dtype' if dtype == UNKNOWN else evidence.names[dtype]}"
    sizes = {(int(table.elements_in[e]), int(table.elements_out[e])) for e in entries}
    known = len(sizes) == 1 and sizes != {(UNKNOWN, UNKNOWN)}
    unit = "bytes" if dtype != UNKNOWN and evidence.names[dtype] == BYTE else "elements"
    return f"{op} {' -> '.join(map(_number, sizes.pop()))} {unit}" if known else op


def _number(value: int) -> str:
    return "?" if value == UNKNOWN else f"{value:,}"
