"""Which ranks communicate with each other where no communicator is named: those that leave their collectives together.

How closely ranks leave together follows from the data. Within 2 us they do on the made-up and on some real jobs; rings
and trees of real ones end up to milliseconds apart. What gives a group away there: its ranks arrive at very different
times, and yet they leave at nearly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.lags import lag_at, overlap

Int64 = NDArray[np.int64]

Key = tuple[str | None, str, int]
"""(communicator, op, role)."""

FEW = 2
"""Fewer collectives than this say nothing about how ranks leave them."""
FEW_ARRIVALS = 4
"""Nor do fewer than this say how ranks arrive."""
REPRESENTATIVES = 3
"""Members of a group that a further rank is held against."""
MOST_PAIRED = 64
"""More ranks than this are not all held against each other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One rank's share of a kind of collective: its operations on the reference's clock, in order of end."""

    rank: int
    key: Key
    index: Int64
    """Into the rank's `RankCollectives`."""
    start: Int64
    end: Int64
    capture: int
    doubt_ns: int
    """About the clock of its capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How two ranks' operations stand to each other, paired by their ends; ns."""

    count: int
    ends: float
    """Median difference of the ends."""
    starts: float
    """Upper quartile of the difference of the starts."""
    gap: float
    """Median time from one end to the next on the rank with fewer: unrelated operations are a quarter of it apart."""
    nearest: bool
    """Each was put beside the nearest, and not in order: records are lost."""
    together: float
    """Share of the pairs in which nobody leaves before the other has arrived."""

    def agree(self, tolerance_ns: float) -> bool:
        """Whether ends are the same but for this."""
        return self.count > 0 and self.ends <= tolerance_ns

    def alike(self, thresholds: Thresholds) -> bool:
        """Whether both arrive at different times and leave at nearly the same."""
        return (
            self.count >= FEW_ARRIVALS
            and self.possible(thresholds)
            and self.starts >= thresholds.arrival_spread_ratio * self.ends
        )

    def possible(self, thresholds: Thresholds) -> bool:
        """Whether nothing speaks against one communicator."""
        return self.together >= thresholds.together_share and self.ends <= self.gap * thresholds.end_spread_share


NOTHING = Beside(count=0, ends=0.0, starts=0.0, gap=0.0, nearest=False, together=0.0)


def tolerance_of(own: Share, other: Share, thresholds: Thresholds) -> int:
    """By how much the ends of one collective may differ on two ranks, in ns.

    A clock that is known no better than to several times of that tells no groups apart: it does not make them one.
    """
    if own.capture == other.capture:
        return thresholds.clock_tolerance_ns
    return thresholds.clock_tolerance_ns + 3 * min(max(own.doubt_ns, other.doubt_ns), thresholds.clock_tolerance_ns)


def beside(own: Share, other: Share, thresholds: Thresholds) -> Beside:
    """Pair by pair, or where records are lost, each beside the nearest."""
    tolerance_ns = tolerance_of(own, other, thresholds)
    n, m = len(own.end), len(other.end)
    if not n or not m:
        return NOTHING
    lag = lag_at(own.end, other.end, 0.0)
    a, b = overlap(np.arange(n), np.arange(m), lag)
    paired = _measured(own, other, a, b, tolerance_ns, nearest=False)
    if paired.agree(tolerance_ns) or n < 2 or m < 2:
        return paired
    inside = np.flatnonzero((own.end >= other.end[0]) & (own.end <= other.end[-1]))
    if len(inside) < 2:
        return paired
    closest = nearest_to(other.end, own.end[inside])
    nearest = _measured(own, other, inside, closest, tolerance_ns, nearest=True)
    return nearest if nearest.ends < paired.ends or not paired.count else paired


def _measured(
    own: Share, other: Share, a: NDArray[np.intp], b: NDArray[np.intp], tolerance_ns: float, *, nearest: bool
) -> Beside:
    if not len(a):
        return NOTHING
    fewer = own.end if len(own.end) <= len(other.end) else other.end
    left = np.minimum(own.end[a], other.end[b]) + tolerance_ns
    return Beside(
        count=len(a),
        ends=float(np.median(np.abs(own.end[a] - other.end[b]))),
        starts=float(np.percentile(np.abs(own.start[a] - other.start[b]), 75)),
        gap=float(np.median(np.diff(fewer))) if len(fewer) > 1 else 0.0,
        nearest=nearest,
        together=float(np.mean(left >= np.maximum(own.start[a], other.start[b]))),
    )


def nearest_to(among: Int64, t: Int64) -> NDArray[np.intp]:
    """Where in the sorted, non-empty ``among`` stands what is nearest to each t."""
    after = np.clip(np.searchsorted(among, t), 1, max(len(among) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(among) - 1)
    return np.where(t - among[before] <= among[after] - t, before, after)


Group = list[Share]


def leaving_together(shares: Sequence[Share], thresholds: Thresholds) -> list[Group]:
    """The groups of ranks that one op tells apart, each rank once in a group; who is alone stays alone.

    Nor need streams be used first in the same order on all ranks, so that any role of a rank can be the one that ends
    with the others'.
    """
    groups: list[Group] = []
    for share in shares:
        for group in groups:
            if not _holds(group, share) and _same(share, group[0], thresholds):
                group.append(share)
                break
        else:
            groups.append([share])
    together = [group for group in groups if len(group) > 1]
    return _alike(together, [group[0] for group in groups if len(group) == 1], thresholds)


def _same(own: Share, other: Share, thresholds: Thresholds) -> bool:
    """Whether two ranks' operations end at the same instants."""
    pair = beside(own, other, thresholds)
    # Where records are lost, what has nothing to do with each other is a quarter of a gap apart.
    near = not pair.nearest or pair.ends <= pair.gap * thresholds.end_spread_share
    return near and pair.agree(tolerance_of(own, other, thresholds))


def _alike(groups: list[Group], alone: Sequence[Share], thresholds: Thresholds) -> list[Group]:
    """The groups with ranks that arrive far apart and leave close together; of several such groups the closest."""
    for share in alone:
        found: list[tuple[float, int]] = []
        for i, group in enumerate(groups):
            pairs = _of_one(group, [share], thresholds)
            if pairs:
                found.append((min(p.ends for p in pairs), i))
        if found:
            groups[min(found)[1]].append(share)
        else:
            groups.append([share])
    if len(groups) > MOST_PAIRED:
        return groups
    result: list[Group] = []
    for group in groups:
        for other in result:
            if _of_one(other, group, thresholds):
                other.extend(group)
                break
        else:
            result.append(group)
    return result


def _of_one(group: Group, other: Group, thresholds: Thresholds) -> list[Beside]:
    """How members of two groups stand to each other where that shows them to be one; else []."""
    if any(_holds(group, share) for share in other):
        return []
    pairs = [beside(a, b, thresholds) for a in other[:REPRESENTATIVES] for b in group[:REPRESENTATIVES]]
    if not any(p.alike(thresholds) for p in pairs) or not all(p.possible(thresholds) for p in pairs):
        return []
    # Ranks that leave within the tick of each other do not leave far from others of their group.
    scale = [_spread(g, thresholds) for g in (group, other) if len(g) > 1]
    limit = thresholds.equal_spread_ratio * max(*scale, thresholds.timestamp_tick_ns) if scale else None
    return pairs if limit is None or min(p.ends for p in pairs) <= limit else []


def _holds(group: Group, share: Share) -> bool:
    return any(each.rank == share.rank for each in group)


def corroborated(by_op: Sequence[list[Group]], thresholds: Thresholds, *, whole: bool) -> list[list[Group]]:
    """The groups of each op, with ranks put together that another op shows to be a group; ``by_op`` is left as it is.

    At some ops ranks arrive as close to each other as they leave: they say nothing themselves. Where no op says
    anything, ranks that are all equally close are one group, if all ranks of the job are here (``whole``).
    """
    known: dict[tuple[int, ...], float] = {}
    for groups in by_op:
        for group in groups:
            if len(group) > 1:
                ranks = tuple(sorted(share.rank for share in group))
                known[ranks] = max(known.get(ranks, 0.0), _spread(group, thresholds))
    result = []
    for groups in by_op:
        alone = [group[0] for group in groups if len(group) == 1]
        kept = [group for group in groups if len(group) > 1]
        for ranks in sorted(known, key=lambda ranks: (-len(ranks), ranks)):
            group = [share for share in alone if share.rank in ranks]
            limit = 2 * known[ranks]
            if len(group) == len({share.rank for share in group}) > 1 and _all_near(group, limit, thresholds):
                kept.append(group)
                alone = [share for share in alone if share not in group]
        if whole and not known and 1 < len(alone) <= MOST_PAIRED:
            kept += _equally_close(alone, thresholds)
            alone = []
        result.append(kept + [[share] for share in alone])
    return result


def _spread(group: Group, thresholds: Thresholds) -> float:
    """How far apart the first members leave, ns."""
    return max(beside(share, group[0], thresholds).ends for share in group[1 : REPRESENTATIVES + 1])


def _all_near(group: Group, limit_ns: float, thresholds: Thresholds) -> bool:
    pairs = [beside(share, group[0], thresholds) for share in group[1:]]
    return all(p.count >= FEW and p.ends <= limit_ns and p.possible(thresholds) for p in pairs)


def _equally_close(shares: Sequence[Share], thresholds: Thresholds) -> list[Group]:
    """Groups of ranks that are about as far apart as the closest two, and far closer than one end is to the next."""
    pairs = [
        (p.ends, i, j)
        for i in range(len(shares))
        for j in range(i + 1, len(shares))
        if shares[i].rank != shares[j].rank
        and (p := beside(shares[i], shares[j], thresholds)).count >= FEW_ARRIVALS
        and p.possible(thresholds)
        and p.ends <= p.gap * thresholds.end_spread_share / 4
    ]
    if not pairs:
        return [[share] for share in shares]
    closest = max(min(pairs)[0], 1.0)
    groups = [[share] for share in shares]
    for ends, i, j in sorted(pairs):
        if ends > thresholds.equal_spread_ratio * closest:
            break
        a, b = (next(g for g in groups if shares[k] in g) for k in (i, j))
        if a is not b and not any(_holds(a, share) for share in b):
            a.extend(b)
            groups.remove(b)
    return groups
