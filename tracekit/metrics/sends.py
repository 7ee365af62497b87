"""Sends, receives and all-to-alls: which ranks exchange what, told by when they end.

A send and its receive end at one instant on both ranks. An all-to-all is sends and receives among all ranks of a
communicator: parts of unequal size end apart, but nobody is done before all have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.groups import FEW_ARRIVALS, Share, beside, nearest_to, tolerance_of
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]

EXCHANGES = {"send_recv", "all_to_all"}
FEWEST_SENT = 8
"""Ends of two ranks that are the same less often than this may be so by chance."""
MOST_RANKS = 128
"""Exchanges among more ranks than this are not looked at pair by pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """Operations of several ranks in which they exchange data with each other."""

    shares: tuple[Share, ...]
    index: Int64
    """(members, k) into each member's `RankCollectives`."""
    end: Int64
    """(members, k) on the reference's clock."""
    meets: bool
    """Nobody leaves before all have arrived."""
    point_to_point: bool
    """Between two ranks of more."""


def exchanges(shares: Sequence[Share], thresholds: Thresholds) -> list[Exchange]:
    """The exchanges of one communicator, or of all ranks where none is named, on one clock."""
    merged = _merged(shares)
    if len(merged) < 2:
        return [_in_order(merged, meets=False)]
    if len(merged) > 2 and _all_at_once(merged, thresholds):
        return [_in_order(merged, meets=True)]
    pairs = _pairs(merged, thresholds) if len(merged) <= MOST_RANKS else []
    if pairs:
        return pairs
    if len(merged) == 2 and _one_pair(merged[0], merged[1], thresholds):
        return [_in_order(merged, meets=True)]
    return [_in_order(merged, meets=False)]


def _merged(shares: Sequence[Share]) -> list[Share]:
    """One share a rank: what a rank sends on several streams goes to somebody all the same."""
    by_rank: dict[int, list[Share]] = {}
    for share in shares:
        by_rank.setdefault(share.rank, []).append(share)
    result = []
    for _, own in sorted(by_rank.items()):
        index, start, end = (np.concatenate([getattr(s, name) for s in own]) for name in ("index", "start", "end"))
        order = np.argsort(end, kind="stable")
        result.append(replace(own[0], index=index[order], start=start[order], end=end[order]))
    return result


def _in_order(shares: Sequence[Share], *, meets: bool) -> Exchange:
    """The k-th of each rank beside each other, in order of start."""
    longest = max(len(share.index) for share in shares)
    index = np.full((len(shares), longest), NONE, np.int64)
    end = np.full(index.shape, np.iinfo(np.int64).min // 2, np.int64)
    for row, share in enumerate(shares):
        order = np.argsort(share.index, kind="stable")
        index[row, : len(order)], end[row, : len(order)] = share.index[order], share.end[order]
    return Exchange(
        shares=tuple(shares),
        index=index,
        end=end,
        meets=meets,
        point_to_point=meets and shares[0].key[1] == "send_recv" and len(shares) == 2,
    )


def _all_at_once(shares: Sequence[Share], thresholds: Thresholds) -> bool:
    """Whether each k-th operation is an exchange of all: as many everywhere, nobody leaves before all are there."""
    counts = {len(share.index) for share in shares}
    if len(counts) != 1 or counts.pop() < FEW_ARRIVALS:
        return False
    orders = [np.argsort(share.index, kind="stable") for share in shares]
    start = np.stack([share.start[order] for share, order in zip(shares, orders, strict=True)])
    end = np.stack([share.end[order] for share, order in zip(shares, orders, strict=True)])
    tolerance = max(tolerance_of(shares[0], share, thresholds) for share in shares)
    together = end.min(axis=0) + tolerance >= start.max(axis=0)
    return bool(np.mean(together) >= thresholds.together_share)


def _pairs(shares: Sequence[Share], thresholds: Thresholds) -> list[Exchange]:
    """The pairs of ranks whose operations end at the same instants."""
    found = []
    for a, b in combinations(shares, 2):
        if not len(a.end) or not len(b.end):
            continue
        near = nearest_to(b.end, a.end)
        both = (nearest_to(a.end, b.end)[near] == np.arange(len(a.end))) & (
            np.abs(b.end[near] - a.end) <= tolerance_of(a, b, thresholds)
        )
        count = int(np.count_nonzero(both))
        if count < FEWEST_SENT or 4 * count < min(len(a.end), len(b.end)):
            continue
        mine = np.flatnonzero(both)
        found.append(
            Exchange(
                shares=(a, b),
                index=np.stack([a.index[mine], b.index[near[mine]]]),
                end=np.stack([a.end[mine], b.end[near[mine]]]),
                meets=True,
                point_to_point=a.key[1] == "send_recv",
            )
        )
    return found


def _one_pair(a: Share, b: Share, thresholds: Thresholds) -> bool:
    """Whether two ranks that nobody else sends to exchange with each other: as many, and in step."""
    pair = beside(a, b, thresholds)
    return len(a.end) == len(b.end) and pair.count >= FEW_ARRIVALS and pair.possible(thresholds)
