"""What other communicators like one called under the same numbers: who differs where its ranks are divided evenly."""

from __future__ import annotations

import numpy as np

from tracekit.metrics.hangs.compare import SIZE, key_of
from tracekit.metrics.hangs.examine import Examined
from tracekit.results import Mismatch

LOOKED_BACK = 16
"""Numbers before one that are compared."""
FEWEST = 4
"""Numbers that have to be the same, of two kinds at least."""
FEWEST_FROM_FIRST = 2
"""Numbers that have to be the same where all from the first one are."""


def decided_by_peers(examined: Examined, group: int, mismatch: Mismatch) -> tuple[int, ...]:
    """Ranks that call something else than all communicators do that called the same before.

    () where there are none, or these do not agree with one another, or agree with none of the ranks.
    """
    table = examined.table
    communicator, seq = examined.communicator_of(group), examined.seq_of(group)
    others = [entries_at(examined, index, seq) for index in in_step(examined, communicator, seq)]
    ways = {key_of(table, entry, mismatch.verdict) for at in others for entry in range(at.start, at.stop)}
    if len(ways) != 1:
        return ()
    right = ways.pop()
    at = table.entries_of(group)
    differs = np.array([key_of(table, entry, mismatch.verdict) != right for entry in range(at.start, at.stop)])
    return () if differs.all() else examined.ranks(table.row[at][differs])


def in_step(examined: Examined, communicator: int, seq: int) -> list[int]:
    """Other communicators of the same description and size that called the same under the numbers before ``seq``.

    Stages of a pipeline call different things under one number: what is not known to be the same does not count.
    """
    communicators = examined.evidence.communicators
    own = communicators[communicator]
    if own.description is None or own.ranks is None or own.is_way:
        return []
    before = _calls_before(examined, communicator, seq)
    if len(before) < FEWEST_FROM_FIRST:
        return []
    return [
        index
        for index, other in enumerate(communicators)
        if index != communicator
        and other.description == own.description
        and other.ranks is not None
        and len(other.ranks) == len(own.ranks)
        and _same(before, _calls_before(examined, index, seq), seq)
    ]


def _same(one: dict[int, tuple[int, ...]], other: dict[int, tuple[int, ...]], seq: int) -> bool:
    common = one.keys() & other.keys()
    from_first = len(common) == seq - 1 and len(common) >= FEWEST_FROM_FIRST
    varied = len(common) >= FEWEST and len({one[number] for number in common}) > 1
    return (from_first or varied) and all(one[number] == other[number] for number in common)


def _calls_before(examined: Examined, communicator: int, seq: int) -> dict[int, tuple[int, ...]]:
    """What all ranks of a communicator called under the numbers before one; without those they did not agree on."""
    table = examined.table
    low, high = np.searchsorted(table.communicator, [communicator, communicator + 1])
    start, stop = low + np.searchsorted(table.seq[low:high], [seq - LOOKED_BACK, seq])
    calls: dict[int, set[tuple[int, ...]]] = {}
    for entry in range(int(start), int(stop)):
        key = int(table.op[entry]), *key_of(table, entry, SIZE)
        calls.setdefault(int(table.seq[entry]), set()).add(key)
    return {number: keys.pop() for number, keys in calls.items() if len(keys) == 1}


def entries_at(examined: Examined, communicator: int, seq: int) -> slice:
    """The entries of a communicator under a number."""
    table = examined.table
    low, high = np.searchsorted(table.communicator, [communicator, communicator + 1])
    start, stop = np.searchsorted(table.seq[low:high], [seq, seq + 1])
    return slice(int(low + start), int(low + stop))
