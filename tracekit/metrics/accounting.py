"""The account of a window: compute, exposed communication, exposed copies and idle, which add up to its length.

Definitions: docs/explanation/accounting.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover
from tracekit.results import Account
from tracekit.timeline import Kind, Ops

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Covers:
    """What one rank's GPU does when, as sets of instants."""

    compute: Cover
    comm: Cover
    compute_or_comm: Cover
    busy: Cover
    """Any GPU operation."""

    @classmethod
    def of(cls, ops: Ops) -> Covers:
        """From a rank's operations."""
        compute, copy = ops.kind == Kind.COMPUTE, ops.kind == Kind.COPY
        comm = ops.kind == Kind.COMM
        computing = Cover.of(ops.start[compute], ops.end[compute])
        communicating = Cover.of(ops.start[comm], ops.end[comm])
        either = _joined(computing, communicating)
        return cls(computing, communicating, either, _joined(either, Cover.of(ops.start[copy], ops.end[copy])))


def _joined(a: Cover, b: Cover) -> Cover:
    if len(b.start) == 0:
        return a
    return Cover.of(np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end]))


def accounts(covers: Covers, start: Int64, end: Int64) -> list[Account]:
    """The account of each window ``[start, end)``."""
    compute = covers.compute.within(start, end)
    comm = covers.comm.within(start, end)
    compute_or_comm = covers.compute_or_comm.within(start, end)
    busy = covers.busy.within(start, end)
    columns = {
        "wall_ns": end - start,
        "compute_ns": compute,
        "exposed_comm_ns": compute_or_comm - compute,
        "exposed_copy_ns": busy - compute_or_comm,
        "idle_ns": end - start - busy,
        "comm_ns": comm,
        "overlapped_comm_ns": compute + comm - compute_or_comm,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [Account(**dict(zip(columns, row, strict=True))) for row in rows]


def account(covers: Covers, start: int, end: int) -> Account:
    """The account of one window."""
    return accounts(covers, np.array([start], np.int64), np.array([end], np.int64))[0]


FIELDS = tuple(field.name for field in fields(Account))
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
"""What adds up to the wall time."""


def total(parts: Iterable[Account]) -> Account:
    """The sum of accounts, field by field."""
    sums = dict.fromkeys(FIELDS, 0)
    for part in parts:
        for name in FIELDS:
            sums[name] += getattr(part, name)
    return Account(**sums)


def mean(parts: Sequence[Account]) -> Account:
    """The mean of accounts in whole ns, each field off by less than 1, so rounded that both identities still hold.

    These are compute + exposed_comm + exposed_copy + idle = wall, and exposed_comm + overlapped_comm = comm.
    """
    sums, n = total(parts), len(parts)
    wall = round_share(sums.wall_ns, n)
    split = dict(zip(PARTS, apportion([getattr(sums, name) for name in PARTS], n, wall), strict=True))
    exposed = split["exposed_comm_ns"]
    least, most = sums.overlapped_comm_ns // n, -(-sums.overlapped_comm_ns // n)
    overlapped = min(max(round_share(sums.comm_ns, n) - exposed, least), most)
    return Account(wall_ns=wall, **split, comm_ns=exposed + overlapped, overlapped_comm_ns=overlapped)


def round_share(value: int, n: int) -> int:
    """value / n to the nearest integer, in integers: floats lose nanoseconds beyond 2^53."""
    return (2 * value + n) // (2 * n)


def apportion(amounts: Sequence[int], n: int, whole: int) -> list[int]:
    """Each amount / n in whole numbers that add up to ``whole``, their sum / n rounded up or down.

    By largest remainder, so each is off by less than 1.
    """
    shares = [divmod(amount, n) for amount in amounts]
    parts = [quotient for quotient, _ in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: -shares[i][1])
    for i in by_remainder[: whole - sum(parts)]:
        parts[i] += 1
    return parts
