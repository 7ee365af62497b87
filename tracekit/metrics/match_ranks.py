"""Which operations on different ranks are one collective: the k-th of its kind on each rank.

The kind is the communicator where NCCL tells it. Without, it is the op; where a rank runs one op on several streams,
the stream's place in the order of first use tells the roles apart (tensor-parallel beside data-parallel all-reduces).
Captures can start and end at different collectives: ranks are put beside each other by when the collectives end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.groups import FEW_ARRIVALS, Group, Key, Share, corroborated, leaving_together
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.lags import FEWEST
from tracekit.metrics.matching import FINISH_TOGETHER, MISSING, Matched, by_end, by_order, spread_of
from tracekit.metrics.sends import EXCHANGES, exchanges
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Which ranks' instants can be compared."""

    fits: tuple[ClockFit | None, ...]
    """By rank; None where a clock cannot be told."""
    capture: tuple[int, ...]
    """By rank: where its clock cannot be told, it is comparable with the ranks of its own capture."""
    in_order: frozenset[int]
    """Captures without a clock whose k-th collective may be taken for the k-th of the others: nothing speaks against
    it, as it does where many collectives fit at no lag."""

    coarse_ns: tuple[int | None, ...]
    """By rank: its offset to the first one by the wall clocks, where these are known."""

    def domain(self, rank: int) -> int:
        """Ranks of one domain are on one clock; NONE is the domain of all that are aligned."""
        return NONE if self.fits[rank] is not None else self.capture[rank]

    def doubt_ns(self, ranks: Sequence[int]) -> int:
        """The largest uncertainty of these ranks' clocks; 0 where all of them are on one."""
        if len({self.capture[rank] for rank in ranks}) < 2:
            return 0
        return max((c.uncertainty_ns or 0 for rank in ranks if (c := self.fits[rank]) is not None), default=0)


def match(
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    kinds: Sequence[dict[Key, Int64]],
    clocks: Clocks,
    thresholds: Thresholds,
    *,
    whole: bool,
) -> tuple[Matched, ...]:
    """Match every kind of collective over the ranks that have it, each rank's clock given.

    ``whole``: no rank of the job is known to be missing.
    """
    make = _Matching(tracks, found, kinds, clocks, thresholds)
    result: list[Matched] = []
    nameless: list[list[Group]] = []
    for shares in make.shares():
        communicator, op, _ = shares[0].key
        if op in EXCHANGES:
            result += make.exchanged(shares)
        elif communicator is None and op in FINISH_TOGETHER:
            nameless.append(make.apart(shares))
        else:
            result += [
                make.matched([s for s in shares if s.key == key]) for key in dict.fromkeys(s.key for s in shares)
            ]
    for groups in corroborated(nameless, thresholds, whole=whole):
        result += [make.matched(group) for group in make.across_domains(groups)]
    return tuple(sorted(result, key=lambda kind: (str((kind.communicator, kind.op)), kind.role, kind.members)))


class _Matching:
    """Shares of collectives, and how they become `Matched`."""

    def __init__(
        self,
        tracks: Sequence[RankTrack],
        found: Sequence[RankCollectives],
        kinds: Sequence[dict[Key, Int64]],
        clocks: Clocks,
        thresholds: Thresholds,
    ) -> None:
        self._tracks, self._found, self._kinds = tracks, found, kinds
        self._clocks, self._thresholds = clocks, thresholds

    def shares(self) -> list[list[Share]]:
        """All ranks' shares by communicator and op, roles and ranks in order."""
        by_op: dict[tuple[str | None, str], list[Share]] = {}
        for rank, keys in enumerate(self._kinds):
            for key in keys:
                by_op.setdefault(key[:2], []).append(self._share(rank, key))
        return [sorted(by_op[each], key=lambda s: (s.key[2], s.rank)) for each in sorted(by_op, key=str)]

    def _share(self, rank: int, key: Key) -> Share:
        ops, rows, clock = (
            self._tracks[rank].ops,
            self._found[rank].row[self._kinds[rank][key]],
            self._clocks.fits[rank],
        )
        start, end = ops.start[rows], ops.end[rows]
        if clock is not None:
            start, end = clock.to_reference(start), clock.to_reference(end)
        order = np.argsort(end, kind="stable")
        return Share(
            rank=rank,
            key=key,
            index=self._kinds[rank][key][order],
            start=start[order],
            end=end[order],
            capture=self._clocks.capture[rank],
            doubt_ns=(clock.uncertainty_ns or 0) if clock is not None else 0,
        )

    def apart(self, shares: Sequence[Share]) -> list[Group]:
        """Groups of ranks that communicate, told by who leaves together: only on one clock can that be told."""
        groups: list[Group] = []
        for domain in dict.fromkeys(self._clocks.domain(s.rank) for s in shares):
            here = [s for s in shares if self._clocks.domain(s.rank) == domain]
            groups += leaving_together(here, self._thresholds)
        return groups

    def across_domains(self, groups: Sequence[Group]) -> list[Group]:
        """Groups on different clocks are one where each clock has only one, and nothing but the order is known."""
        by_domain: dict[tuple[int, int], list[Group]] = {}
        for group in groups:
            by_domain.setdefault((group[0].key[2], self._clocks.domain(group[0].rank)), []).append(group)
        result: list[Group] = []
        for role in dict.fromkeys(role for role, _ in by_domain):
            mine = {domain: own for (its, domain), own in by_domain.items() if its == role}
            single = [own[0] for own in mine.values() if len(own) == 1]
            merged = [g for g in single if self._comparable(g, single)] if len(mine) > 1 else []
            result += [g for own in mine.values() for g in own if not any(g is m for m in merged)]
            if merged:
                result.append(sorted((s for g in merged for s in g), key=lambda s: s.rank))
        return [sorted(group, key=lambda s: s.rank) for group in result]

    def _comparable(self, group: Group, others: Sequence[Group]) -> bool:
        """Whether the k-th collective of a group may be that of the others: for want of any other evidence."""
        counts = {len(share.end) for each in others for share in each}
        open_to = self._clocks.domain(group[0].rank) in {NONE, *self._clocks.in_order}
        if max(counts) >= FEWEST:
            return open_to and len(counts) == 1
        return all(self._by_wall_clock(group[0], other[0]) for other in others)

    def _by_wall_clock(self, own: Share, other: Share) -> bool:
        """Whether few collectives end at about the same time in their order, as far as wall clocks tell."""
        shift = [self._clocks.coarse_ns[share.rank] for share in (own, other)]
        count = min(len(own.end), len(other.end))
        if shift[0] is None or shift[1] is None:
            return True
        if count < FEW_ARRIVALS:
            return False
        raw = [self._raw(share)[:count] - ns for share, ns in zip((own, other), shift, strict=True) if ns is not None]
        gap = float(np.median(np.diff(raw[1])))
        return bool(np.median(np.abs(raw[0] - raw[1])) <= gap / 4)

    def _raw(self, share: Share) -> Int64:
        """Ends on the capture's own clock."""
        ends: Int64 = np.sort(self._tracks[share.rank].ops.end[self._found[share.rank].row[share.index]])
        return ends

    def exchanged(self, shares: Sequence[Share]) -> list[Matched]:
        """Sends and receives, and all-to-alls, on one clock; in the order of each rank where there is none."""
        result: list[Matched] = []
        for domain in dict.fromkeys(self._clocks.domain(s.rank) for s in shares):
            here = [s for s in shares if self._clocks.domain(s.rank) == domain]
            for each in exchanges(here, self._thresholds):
                doubt = self._clocks.doubt_ns([s.rank for s in each.shares])
                result.append(
                    self._built(
                        each.shares,
                        each.index,
                        each.end,
                        meets=each.meets,
                        point_to_point=each.point_to_point,
                        by_arrival=True,
                        uncertainty=doubt,
                    )
                )
        return result

    def matched(self, group: Group) -> Matched:
        """One kind of collective of a group of ranks."""
        op = group[0].key[1]
        ranks = [s.rank for s in group]
        told = op in FINISH_TOGETHER and len({self._clocks.domain(r) for r in ranks}) == 1
        aligned = told and all(self._clocks.fits[r] is not None for r in ranks)
        if told:
            index, end = by_end(group, self._thresholds.clock_residual_ns)
        else:
            index, end = by_order(group, [self._clocks.fits[s.rank] is not None for s in group])
        doubt = self._clocks.doubt_ns(ranks)
        spread = spread_of(end) if told else 0
        apart = aligned and spread > self._thresholds.clock_tolerance_ns + 3 * doubt
        return self._built(
            group,
            index,
            end,
            meets=op in FINISH_TOGETHER,
            point_to_point=False,
            by_arrival=apart,
            uncertainty=doubt if apart else max(spread, doubt),
        )

    def _built(
        self,
        group: Sequence[Share],
        index: Int64,
        end: Int64,
        *,
        meets: bool,
        point_to_point: bool,
        by_arrival: bool,
        uncertainty: int,
    ) -> Matched:
        arrival = np.full(index.shape, MISSING, np.int64)
        for row, share in enumerate(group):
            start = np.empty(int(share.index.max()) + 1 if len(share.index) else 0, np.int64)
            start[share.index] = share.start
            there = index[row] != NONE
            arrival[row, there] = start[index[row, there]]
        communicator, op, role = group[0].key
        return Matched(
            communicator=communicator,
            op=op,
            role=role,
            members=tuple(share.rank for share in group),
            index=index,
            end=end.max(axis=0),
            arrival=arrival,
            meets=meets,
            by_arrival=by_arrival,
            uncertainty_ns=uncertainty,
            point_to_point=point_to_point,
        )
