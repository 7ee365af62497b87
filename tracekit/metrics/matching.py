"""Which operations on different ranks are one collective: the k-th of its kind on each rank.

The kind is the communicator where NCCL tells it. Without, it is the op; where a rank runs one op on several streams,
the stream's place in the order of first use tells the roles apart (tensor-parallel beside data-parallel all-reduces).
Captures can start and end at different collectives: ranks are put beside each other by when the collectives end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.clocks import ClockFit, fit_captures, lag_at, overlap
from tracekit.metrics.identity import RankCollectives
from tracekit.timeline import NONE, RankTrack, Timeline

Int64 = NDArray[np.int64]

FINISH_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter"}
"""Ops that end at one instant on all ranks: not rooted ops, send/recv, or all-to-all of unequal parts."""

Key = tuple[str | None, str, int]
"""(communicator, op, role)."""


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
    ops = {op for keys in by_rank for communicator, op, _ in keys if communicator is None}
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


def measure_clocks(
    timeline: Timeline,
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    kinds: Sequence[dict[Key, Int64]],
    thresholds: Thresholds,
) -> dict[int, ClockFit | None]:
    """The clock of each capture against that of the first rank, by capture index; None where it cannot be told."""
    order: list[int] = []
    for track in tracks:
        capture = timeline.processes[track.process].capture
        if capture not in order:
            order.append(capture)
    ends: list[dict[object, Int64]] = [{} for _ in order]
    for track, each, keys in zip(tracks, found, kinds, strict=True):
        mine = ends[order.index(timeline.processes[track.process].capture)]
        for key, index in keys.items():
            # One rank of a capture speaks for a kind of collective: all of the capture's ranks share its clock.
            if key[1] in FINISH_TOGETHER and len(index) > len(mine.get(key, ())):
                # In order of end: of several streams, what starts first need not end first.
                mine[key] = np.sort(track.ops.end[each.row[index]])
    starts = [timeline.captures[c].start_epoch_ns for c in order]
    coarse = [starts[0] - s if s is not None and starts[0] is not None else None for s in starts]
    return dict(zip(order, fit_captures(ends, coarse, thresholds), strict=True))


def match(
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    kinds: Sequence[dict[Key, Int64]],
    clocks: Sequence[ClockFit | None],
    thresholds: Thresholds,
) -> tuple[Matched, ...]:
    """Match every kind of collective over the ranks that have it, each rank's clock given."""
    result: list[Matched] = []
    for nodes in _alike(kinds):
        ends = {}
        for i, key in nodes:
            raw, clock = tracks[i].ops.end[found[i].row[kinds[i][key]]], clocks[i]
            ends[i, key] = clock.to_reference(raw) if clock is not None else raw
        told = [c for i, _ in nodes if (c := clocks[i]) is not None]
        communicator, op, _ = nodes[0][1]
        on_one_clock = op in FINISH_TOGETHER and len(told) == len(nodes)
        if on_one_clock and communicator is None:
            doubt = max(c.uncertainty_ns or 0 for c in told)
            groups = _groups(nodes, ends, thresholds.clock_tolerance_ns + 3 * doubt)
        else:
            groups = [[n for n in nodes if n[1] == key] for key in dict.fromkeys(key for _, key in nodes)]
        for group in groups:
            members = [i for i, _ in group]
            own = {i: kinds[i][key] for i, key in group}
            its_ends = {i: ends[i, key] for i, key in group}
            index, end = (
                _by_end(members, its_ends, own, thresholds.clock_residual_ns)
                if on_one_clock
                else _by_order(members, its_ends, own, clocks)
            )
            result.append(
                Matched(
                    communicator=communicator,
                    op=op,
                    role=group[0][1][2],
                    members=tuple(members),
                    index=index,
                    end=end.max(axis=0),
                )
            )
    return tuple(result)


Node = tuple[int, Key]
"""One rank's share of a kind of collective: (rank, key)."""


def _alike(kinds: Sequence[dict[Key, Int64]]) -> list[list[Node]]:
    """All ranks' kinds by communicator and op, roles and ranks in order."""
    by_op: dict[tuple[str | None, str], list[Node]] = {}
    for i, keys in enumerate(kinds):
        for key in keys:
            by_op.setdefault(key[:2], []).append((i, key))
    return [sorted(by_op[each], key=lambda node: (node[1][2], node[0])) for each in sorted(by_op, key=str)]


def _groups(nodes: Sequence[Node], ends: Mapping[Node, Int64], tolerance_ns: int) -> list[list[Node]]:
    """Ranks whose collectives end at the same instants: the groups of ranks that communicate.

    Without NCCL's payload the capture does not name communicators. Ranks of one leave each collective together; those
    of another, such as the next shard group of a hybrid-sharded job, do not. Nor need streams be used first in the same
    order on all ranks, so that any role of a rank can be the one that ends with the others'.
    """
    groups: list[list[Node]] = []
    for node in nodes:
        for group in groups:
            taken = any(node[0] == i for i, _ in group)
            if not taken and _end_together(ends[node], ends[group[0]], tolerance_ns):
                group.append(node)
                break
        else:
            groups.append([node])
    return [sorted(group) for group in groups]


def _end_together(own: Int64, other: Int64, tolerance_ns: int) -> bool:
    """Whether most ends are the same: pair by pair, or where records are lost, each beside the nearest."""
    own, other = np.sort(own), np.sort(other)
    a, b = overlap(own, other, lag_at(own, other, 0.0))
    if len(a) and np.median(np.abs(a - b)) <= tolerance_ns:
        return True
    inside = own[(own >= other[0]) & (own <= other[-1])]
    if len(inside) < 2 or len(other) < 2:
        return False
    # What has nothing to do with each other is a quarter of a gap apart.
    closest = min(tolerance_ns, float(np.median(np.diff(other))) / 16)
    return bool(np.median(np.abs(inside - other[_nearest(other, inside)])) <= closest)


MISSING = np.iinfo(np.int64).min // 2


def _by_order(
    members: Sequence[int], ends: Mapping[int, Int64], own: Mapping[int, Int64], clocks: Sequence[ClockFit | None]
) -> tuple[Int64, Int64]:
    """(members, k) matrices of index and of end; rows are shifted by each member's lag against the longest."""
    longest = max(members, key=lambda i: len(ends[i]))
    lags = {i: lag_at(ends[i], ends[longest], 0.0) if clocks[i] is not None else 0 for i in members}
    # own[i + lag] is longest[i]: own's first operation stands at position -lag.
    first = min(-lag for lag in lags.values())
    last = max(-lags[i] + len(ends[i]) for i in members)
    index = np.full((len(members), last - first), NONE, np.int64)
    end = np.full(index.shape, MISSING, np.int64)
    for row, i in enumerate(members):
        at = -lags[i] - first
        index[row, at : at + len(ends[i])] = own[i]
        end[row, at : at + len(ends[i])] = ends[i]
    used = np.any(index != NONE, axis=0)
    return index[:, used], end[:, used]


def _by_end(
    members: Sequence[int], ends: Mapping[int, Int64], own: Mapping[int, Int64], doubt_ns: int
) -> tuple[Int64, Int64]:
    """(members, k) matrices of index and of end; what ends nearest to each other is one collective.

    A record that the profiler dropped leaves a hole, and does not shift what comes after it.
    """
    longest = max(members, key=lambda i: len(ends[i]))
    at = np.sort(ends[longest])
    farthest = max(doubt_ns, int(np.median(np.diff(at))) // 2 if len(at) > 1 else 0)
    index = np.full((len(members), len(at)), NONE, np.int64)
    end = np.full(index.shape, MISSING, np.int64)
    for row, i in enumerate(members):
        order = np.argsort(ends[i], kind="stable")
        mine = ends[i][order]
        column = _nearest(at, mine)
        both = (_nearest(mine, at)[column] == np.arange(len(mine))) & (np.abs(at[column] - mine) <= farthest)
        index[row, column[both]], end[row, column[both]] = own[i][order[both]], mine[both]
        # What the members so far lack gets columns of its own.
        rest = order[~both]
        if len(rest):
            index = np.pad(index, ((0, 0), (0, len(rest))), constant_values=NONE)
            end = np.pad(end, ((0, 0), (0, len(rest))), constant_values=MISSING)
            index[row, len(at) :], end[row, len(at) :] = own[i][rest], ends[i][rest]
            at = np.append(at, ends[i][rest])
            by_end = np.argsort(at, kind="stable")
            at, index, end = at[by_end], index[:, by_end], end[:, by_end]
    return index, end


def _nearest(among: Int64, t: Int64) -> NDArray[np.intp]:
    """Where in the sorted, non-empty ``among`` stands what is nearest to each t."""
    after = np.clip(np.searchsorted(among, t), 1, max(len(among) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(among) - 1)
    return np.where(t - among[before] <= among[after] - t, before, after)
