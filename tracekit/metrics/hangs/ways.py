"""Puts both ends of each way between two ranks beside each other.

A sender and a receiver number what they launch each for itself. Where both list all they have launched, the first send
meets the first receive. In a process group of two, where every number of one has its counterpart on the other, the
numbers are the same. Otherwise the ends are known by what is unfinished: messages do not overtake, so the oldest
unfinished send and the oldest unfinished receive are one message; and a receive that waits without an unfinished send
has a sender that never launched it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.evidence import UNKNOWN, Evidence, Int64, State
from tracekit.metrics.hangs.table import Raw, is_silent, joined

SIZES = ("elements_in", "elements_out")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """One end of a way."""

    row: int | None
    """None where there is no source of the rank."""
    whole: bool
    """The source lists all that the rank has launched."""
    entries: Int64
    """Indices into the raw entries, in order of launch."""
    open: Int64
    """Those that are not over."""


def aligned(evidence: Evidence, raw: Raw, until: Int64) -> tuple[Raw, dict[int, dict[int, int]]]:
    """(the entries of ways with numbers that both ends share, the last that each row launched, by way).

    ``until``: the position up to which each row's unfinished entries are over.
    """
    first = next((i for i, c in enumerate(evidence.communicators) if c.is_way), len(evidence.communicators))
    here = np.flatnonzero(raw.communicator >= first)
    ways = raw.pick(here[np.lexsort((raw.position[here], raw.row[here], raw.communicator[here]))])
    ways.state[ways.position <= until[ways.row]] = State.COMPLETED
    row_of = {rank.rank: row for row, rank in enumerate(evidence.ranks) if not is_silent(rank)}
    same = _same_numbers(evidence, ways, row_of)
    parts: list[Raw] = []
    last: dict[int, dict[int, int]] = {}
    bounds = np.searchsorted(ways.communicator, np.arange(first, len(evidence.communicators) + 1))
    for index in range(first, len(evidence.communicators)):
        own = np.arange(bounds[index - first], bounds[index - first + 1])
        ranks = evidence.communicators[index].ranks or ()
        if len(own) == 0 or len(set(ranks)) != 2:
            continue
        ends = [_end(evidence, ways, own, row_of.get(rank)) for rank in ranks]
        made = _joined_ends(ways, ends, by_number=_pair(evidence, index) in same)
        if made is not None:
            parts.append(made[0])
            last[index] = {end.row: number for end, number in zip(ends, made[1], strict=True) if end.row is not None}
    return joined(parts) if parts else raw.pick(here[:0]), last


def _end(evidence: Evidence, ways: Raw, own: Int64, row: int | None) -> End:
    entries = own[ways.row[own] == row] if row is not None else own[:0]
    whole = row is not None and not evidence.ranks[row].wrapped and not evidence.only_unfinished
    return End(row=row, whole=whole, entries=entries, open=entries[ways.state[entries] != State.COMPLETED])


def _joined_ends(raw: Raw, ends: list[End], *, by_number: bool) -> tuple[Raw, list[int]] | None:
    """(entries of both ends, the last number that each launched); None where nothing is known to be unfinished."""
    if all(end.whole for end in ends):
        numbers = [np.arange(1, len(end.entries) + 1) for end in ends]
        return _numbered(raw, [end.entries for end in ends], numbers), [len(end.entries) for end in ends]
    if not any(len(end.open) for end in ends):
        return None
    numbers = [raw.seq[end.entries] for end in ends]
    if by_number and all(len(number) and np.all(np.diff(number) > 0) for number in numbers):
        lasts = [int(number[-1]) for number in numbers]
        return _numbered(raw, [end.entries for end in ends], numbers), lasts
    longest = max(ends, key=lambda end: len(end.open))
    own = raw.seq[longest.open]
    shared = np.maximum.accumulate(own - np.arange(len(own))) + np.arange(len(own))
    numbers = [shared[: len(end.open)] for end in ends]
    lasts = [int(number[-1]) if len(number) else int(shared[0]) - 1 for number in numbers]
    return _numbered(raw, [end.open for end in ends], numbers, with_sizes=False), lasts


def _numbered(raw: Raw, entries: list[Int64], numbers: list[NDArray[np.int64]], *, with_sizes: bool = True) -> Raw:
    made = raw.pick(np.concatenate(entries))
    columns = dict(made.columns)
    if not with_sizes:  # which message is which is known by the order alone
        columns |= {name: np.full(len(made.seq), UNKNOWN, np.int64) for name in SIZES}
    return Raw(
        row=made.row,
        communicator=made.communicator,
        seq=np.concatenate(numbers),
        state=made.state,
        position=made.position,
        columns=columns,
    )


def _pair(evidence: Evidence, index: int) -> tuple[str, tuple[int, ...]]:
    """The process group of a way between its only two ranks."""
    way = evidence.communicators[index]
    return way.name.rpartition(": ")[0], tuple(sorted(way.ranks or ()))


def _same_numbers(evidence: Evidence, ways: Raw, row_of: dict[int, int]) -> set[tuple[str, tuple[int, ...]]]:
    """Process groups of two ranks in which what one sends under a number, the other receives under it."""
    open_ = np.unique(ways.communicator[ways.state != State.COMPLETED]).tolist()
    wanted = {_pair(evidence, index) for index in open_ if evidence.communicators[index].of == 2}
    there = [i for i, c in enumerate(evidence.communicators) if c.is_way and c.of == 2 and _pair(evidence, i) in wanted]
    wrong: set[tuple[str, tuple[int, ...]]] = set()
    sends: dict[tuple[tuple[str, tuple[int, ...]], int, int], bool] = {}
    for index in there:
        pair, source = _pair(evidence, index), (evidence.communicators[index].ranks or (None,))[0]
        own = slice(*np.searchsorted(ways.communicator, [index, index + 1]).tolist())
        for row, number in zip(ways.row[own].tolist(), ways.seq[own].tolist(), strict=True):
            sending = row_of.get(source) == row if source is not None else False
            if sends.setdefault((pair, row, number), sending) != sending:
                wrong.add(pair)  # a batch sends and receives under one number
    for (pair, row, number), sending in sends.items():
        other = next((row_of.get(rank, -1) for rank in pair[1] if row_of.get(rank) != row), -1)
        if sends.get((pair, other, number)) == sending:
            wrong.add(pair)
    return wanted - wrong
