"""Tells communicators apart that no source names: by the streams that their kernels run on, or by what is called.

Without names all collectives of a rank count as one sequence. That is wrong where a rank has several communicators and
the order between these does not matter, or was changed: then each of them is called alike on all ranks, and the one
sequence is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, State
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.hangs.align import NO_END, Member, Progress, aligned, communicators_of
from tracekit.metrics.hangs.issued import Group, Issued
from tracekit.readers.raw import Names
from tracekit.runs import few_runs
from tracekit.timeline import NONE, Process

Int64 = NDArray[np.int64]

TOGETHER_SHARE = 0.9
"""Of the collectives that all callers have ended: fewer are a coincidence."""


def told_apart(
    members: Sequence[Member],
    processes: Sequence[Process],
    issued: list[Issued | None],
    progress: Sequence[Progress | None],
    clocks: dict[int, ClockFit | None],
    names: Names,
) -> tuple[list[Issued | None], list[str]]:
    """(collectives that no source names a communicator for, [how they are compared, what is lacking to compare them]).

    As one sequence where ranks call that alike and end it in order; else by stream, or by op, where that makes them
    alike; else as one sequence where only what is not over differs; else not at all.
    """

    def numbered(some: list[Issued | None]) -> list[Int64]:
        return aligned(members, processes, some, progress, clocks, communicators_of(members, some), [])[0]

    one, ordered = numbered(issued), in_order(progress)
    over_alike = alike(issued, progress, one, all_of_them=False)
    if not (ordered and alike(issued, progress, one, all_of_them=True)):
        by_streams, by_ops = by_stream(issued, progress, names.as_tuple()), None
        if over_alike:
            by_ops = by_op(issued, one, names.as_tuple())
        for parted, how, whole in (
            (by_streams, "by the streams that they run on", True),
            (by_ops, "by op", True),
            # What ends out of order is of several communicators, whatever differs in one of them.
            (None if ordered else by_streams, "by the streams that they run on", False),
        ):
            if parted is not None and alike(parted, progress, numbered(parted), all_of_them=whole):
                return parted, [f"no source names the communicators: collectives are told apart {how}"]
    note = "no source names the communicators: all collectives of a rank count as one sequence"
    if over_alike:
        return issued, [note]
    lacking = (
        "the communicators of the collectives, which ranks do not call alike"
        " (nsys 2024.6 or newer, nsys export --include-blobs=true)"
    )
    return [None] * len(members), [note, lacking]


def ended_together(
    members: Sequence[Member],
    processes: Sequence[Process],
    issued: Sequence[Issued | None],
    progress: Sequence[Progress | None],
    clocks: dict[int, ClockFit | None],
    seqs: Sequence[Int64],
    thresholds: Thresholds,
) -> list[str]:
    """Whether the ranks that call a collective have ended it at one instant, which only its members do; in words."""
    ends: dict[tuple[Group, int], list[int]] = {}
    callers: dict[Group, set[int]] = {}
    for m, process, each, done, seq in zip(members, processes, issued, progress, seqs, strict=True):
        fit = clocks[process.capture]
        if each is None or done is None or fit is None:
            continue
        over = np.flatnonzero(done.end != NO_END)
        for row, end in zip(over.tolist(), fit.to_reference(done.end[over]).tolist(), strict=True):
            group = each.groups[int(each.group[row])]
            callers.setdefault(group, set()).add(m.rank)
            ends.setdefault((group, int(seq[row])), []).append(end)
    told = []
    for group, ranks in callers.items():
        spreads = [max(own) - min(own) for (g, _), own in ends.items() if g == group and len(own) == len(ranks)]
        together = sum(spread <= thresholds.ended_together_ns for spread in spreads)
        if len(ranks) > 1 and together and together >= TOGETHER_SHARE * len(spreads):
            told.append(f"{together:,} earlier collectives ended on all of ranks {few_runs(ranks)} at one instant")
    return told


def in_order(progress: Sequence[Progress | None]) -> bool:
    """Whether on every rank collectives are over in the order of the calls, as those of one communicator are."""
    for done in progress:
        if done is None:
            continue
        over = np.flatnonzero(done.state == State.COMPLETED)
        if len(over) and np.any(done.state[: over[-1]] == State.ISSUED):
            return False
    return True


def alike(
    issued: Sequence[Issued | None], progress: Sequence[Progress | None], seqs: Sequence[Int64], *, all_of_them: bool
) -> bool:
    """Whether collectives are of one op on all ranks, ordinal by ordinal: all of them, or those that are over."""
    known: dict[tuple[Group, int], int] = {}
    for each, done, seq in zip(issued, progress, seqs, strict=True):
        if each is None or done is None:
            continue
        counts = np.ones(len(each), np.bool_)
        if not all_of_them:
            counts = (done.state == State.COMPLETED) | (done.state == State.UNKNOWN)
        rows = np.flatnonzero(counts)
        groups = [each.groups[g] for g in each.group[rows].tolist()]
        for group, number, op in zip(groups, seq[rows].tolist(), each.op[rows].tolist(), strict=True):
            if known.setdefault((group, number), op) != op:
                return False
    return True


def by_stream(
    issued: Sequence[Issued | None], progress: Sequence[Progress | None], names: Sequence[str]
) -> list[Issued | None] | None:
    """The collectives of each rank by the streams that their ops have run on; None where these do not tell.

    Streams have other numbers on other ranks: what names one is the set of ops on it. An op that runs on several
    streams makes one of them all; one that has never run is on no stream, and nothing can be told.
    """
    part: dict[int, int] = {}
    for each, done in zip(issued, progress, strict=True):
        if each is None or done is None:
            continue
        for op in np.unique(each.op).tolist():
            part.setdefault(op, op)
        ran = done.stream != NONE
        for stream in np.unique(done.stream[ran]).tolist():
            ops = np.unique(each.op[ran & (done.stream == stream)]).tolist()
            for op in ops[1:]:
                _join(part, ops[0], op)
        if set(np.unique(each.op).tolist()) - set(np.unique(each.op[ran]).tolist()):
            return None
    return _parted(issued, {op: _root(part, op) for op in part}, names, "the stream of {}")


def by_op(issued: Sequence[Issued | None], seqs: Sequence[Int64], names: Sequence[str]) -> list[Issued | None] | None:
    """The collectives of each rank by op, where ranks differ in nothing but the order of neighbours; else None."""
    sequences = {tuple(each.op[np.argsort(seq, kind="stable")].tolist()): seq.min(initial=0)
                 for each, seq in zip(issued, seqs, strict=True) if each is not None}  # fmt: skip
    if len(set(sequences.values())) != 1:
        return None
    first, *others = sequences
    if any(not _swapped(first, other) for other in others):
        return None
    ops = {op for sequence in sequences for op in sequence}
    return _parted(issued, {op: op for op in ops}, names, "the calls of {}")


def _swapped(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two sequences are one but for a stretch in which each has the same ops in another order."""
    differ = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if not differ:
        return True
    window = slice(differ[0], differ[-1] + 1)
    same = Counter(a[window]) == Counter(b[window])
    # Where the sequences end inside the stretch, one that left a call out looks the same.
    return same and (len(a) == len(b) or differ[-1] + 1 < min(len(a), len(b)))


def _parted(
    issued: Sequence[Issued | None], part: dict[int, int], names: Sequence[str], words: str
) -> list[Issued | None] | None:
    """Each rank's collectives with a group for each part, called by ``words``; None where there is one part alone."""
    if len(set(part.values())) < 2:
        return None
    label = {root: _label([op for op in part if part[op] == root], names, words) for root in set(part.values())}
    return [None if each is None else _regrouped(each, part, label) for each in issued]


def _regrouped(each: Issued, part: dict[int, int], label: dict[int, str]) -> Issued:
    groups: dict[Group, int] = {}
    counted: dict[int, int] = {}
    group, seq = [], []
    for op in each.op.tolist():
        at = groups.setdefault((label[part[op]], None), len(groups))
        counted[at] = counted.get(at, 0) + 1
        group.append(at)
        seq.append(counted[at])
    return replace(
        each,
        group=np.array(group, np.int32),
        groups=tuple(groups),
        seq=np.array(seq, np.int64),
        exact=(False,) * len(groups),
    )


def _label(ops: list[int], names: Sequence[str], words: str) -> str:
    told = sorted("unknown ops" if op == UNKNOWN else names[op].replace("_", "-") for op in ops)
    return words.format(", ".join(told))


def _root(part: dict[int, int], op: int) -> int:
    while part[op] != op:
        op = part[op]
    return op


def _join(part: dict[int, int], a: int, b: int) -> None:
    low, high = sorted((_root(part, a), _root(part, b)))
    part[high] = low
