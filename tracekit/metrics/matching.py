"""A kind of collective on the ranks that have it: which operation of each rank stands beside which of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.groups import Key, Share, nearest_to
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.lags import lag_at
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]

FINISH_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter"}
"""Ops that end at one instant on all ranks: not rooted ops, send/recv, or all-to-all of unequal parts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """One kind of collective on all ranks that have it."""

    communicator: str | None
    op: str
    role: int
    members: tuple[int, ...]
    """Indices into the ranks of the analysis."""
    index: Int64
    """(members, k) index into each member's `RankCollectives`, or NONE where a member has no such operation."""
    end: Int64
    """(k,) when each ends, on the first rank's clock (the latest of the members' ends)."""
    arrival: Int64
    """(members, k) when each member arrives, on the first rank's clock; MISSING where it has no such operation."""
    meets: bool
    """Nobody leaves before all have arrived: what a member runs before the last arrival is waiting."""
    by_arrival: bool
    """Members leave apart, and their arrivals are known on one clock: who arrives last tells the transfer. Else it is
    the shortest duration."""
    uncertainty_ns: int
    """Of each wait: how far apart members leave (median), or by arrival the doubt about their clocks."""
    point_to_point: bool = False
    """Sends and receives between two ranks: one waits for the other by the order of the work, as in pipelines."""

    def shared(self, member: int) -> int:
        """How many of these one of the members has together with any other."""
        there = self.index != NONE
        return int(np.count_nonzero(there[self.members.index(member)] & (np.count_nonzero(there, axis=0) > 1)))

    @property
    def complete(self) -> NDArray[np.bool_]:
        """(k,) whether all members have the operation."""
        result: NDArray[np.bool_] = np.all(self.index != NONE, axis=0)
        return result


def keys_of(each: RankCollectives, track: RankTrack) -> dict[Key, Int64]:
    """The operations of one rank by kind, each in order of start; values index `RankCollectives`."""
    found: dict[Key, Int64] = {}
    for group, (communicator, op) in enumerate(each.group):
        mine = np.flatnonzero(each.of == group)
        if communicator is not None:
            found[communicator, op, 0] = mine
            continue
        streams = track.ops.stream[each.row[mine]]
        _, first = np.unique(streams, return_index=True)
        for role, at in enumerate(np.sort(first).tolist()):
            found[None, op, role] = mine[streams == streams[at]]
    return found


def same_roles(by_rank: Sequence[dict[Key, Int64]]) -> list[dict[Key, Int64]]:
    """Roles by stream only where they mean the same on all ranks; else operations of one op are one kind.

    They mean the same if every rank that has the op spreads it over as many streams in the same proportions.
    """
    ops = sorted({op for keys in by_rank for communicator, op, _ in keys if communicator is None})
    merged = [dict(keys) for keys in by_rank]
    for op in ops:
        shares = []
        for keys in by_rank:
            counts = [len(keys[key]) for key in sorted((k for k in keys if k[:2] == (None, op)), key=lambda k: k[2])]
            if counts:
                shares.append(np.array(counts) / sum(counts))
        alike = len({len(s) for s in shares}) == 1 and float(np.ptp(np.stack(shares), axis=0).max()) < 0.02
        if alike:
            continue
        for keys in merged:
            parts = [keys.pop(k) for k in list(keys) if k[:2] == (None, op)]
            if parts:
                keys[None, op, 0] = np.sort(np.concatenate(parts))
    return merged


MISSING = np.iinfo(np.int64).min // 2
"""When an operation ends that a member does not have."""


def spread_of(end: Int64) -> int:
    """Median over what all members have of the time from the first to the last to leave, ns."""
    whole = end[:, np.all(end != MISSING, axis=0)]
    return round(float(np.median(whole.max(axis=0) - whole.min(axis=0)))) if whole.shape[1] and len(whole) > 1 else 0


def by_order(group: Sequence[Share], on_clock: Sequence[bool]) -> tuple[Int64, Int64]:
    """(members, k) matrices of index and of end; rows are shifted by each member's lag against the longest."""
    in_order = [np.argsort(share.index, kind="stable") for share in group]
    ends = [share.end[order] for share, order in zip(group, in_order, strict=True)]
    longest = max(range(len(group)), key=lambda row: len(ends[row]))
    lags = [lag_at(own, ends[longest], 0.0) if told else 0 for own, told in zip(ends, on_clock, strict=True)]
    # own[i + lag] is longest[i]: own's first operation stands at position -lag.
    first = min(-lag for lag in lags)
    last = max(len(own) - lag for own, lag in zip(ends, lags, strict=True))
    index = np.full((len(group), last - first), NONE, np.int64)
    end = np.full(index.shape, MISSING, np.int64)
    for row, share in enumerate(group):
        at = -lags[row] - first
        index[row, at : at + len(ends[row])] = share.index[in_order[row]]
        end[row, at : at + len(ends[row])] = ends[row]
    used = np.any(index != NONE, axis=0)
    return index[:, used], end[:, used]


def by_end(group: Sequence[Share], doubt_ns: int) -> tuple[Int64, Int64]:
    """(members, k) matrices of index and of end; what ends nearest to each other is one collective.

    A record that the profiler dropped leaves a hole, and does not shift what comes after it.
    """
    at = max((share.end for share in group), key=len)
    farthest = max(doubt_ns, int(np.median(np.diff(at))) // 2 if len(at) > 1 else 0)
    index = np.full((len(group), len(at)), NONE, np.int64)
    end = np.full(index.shape, MISSING, np.int64)
    for row, share in enumerate(group):
        mine = share.end
        column = nearest_to(at, mine)
        both = (nearest_to(mine, at)[column] == np.arange(len(mine))) & (np.abs(at[column] - mine) <= farthest)
        index[row, column[both]], end[row, column[both]] = share.index[both], mine[both]
        # What the members so far lack gets columns of its own.
        rest = np.flatnonzero(~both)
        if len(rest):
            index = np.pad(index, ((0, 0), (0, len(rest))), constant_values=NONE)
            end = np.pad(end, ((0, 0), (0, len(rest))), constant_values=MISSING)
            index[row, len(at) :], end[row, len(at) :] = share.index[rest], mine[rest]
            at = np.append(at, mine[rest])
            by_end = np.argsort(at, kind="stable")
            at, index, end = at[by_end], index[:, by_end], end[:, by_end]
    return index, end
