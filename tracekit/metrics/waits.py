"""Waiting apart from transfer, for collectives that nobody leaves before all have arrived.

The last rank to arrive does not wait: its duration is the transfer, and what others run longer is their wait. No clock
is needed where all leave at one instant. Where they leave apart, and their arrivals are known on one clock, each waits
from its own arrival to the last. The first collective of a capture is start-up: ranks begin to capture at different
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover, owned, subtract, union
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.spool import release
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWaits:
    """The waits of one rank; columns have an entry for each of its communication operations."""

    wait: Int64
    """ns from this rank's arrival to the last rank's; NONE where it cannot be told."""
    start_up: NDArray[np.bool_]
    exposed_wait: Int64
    """The part of ``wait`` that no compute hides: what several share counts once, and start-up for nothing."""
    peer_wait: Cover
    """The instants of exposed waiting, start-up left out."""
    starting: Cover
    """The exposed instants of start-up collectives."""


def split(matched: Matched, found: Sequence[RankCollectives]) -> tuple[Int64, Int64]:
    """((members, k) waits, (k,) transfers) in ns; NONE where a member lacks the operation, or is alone."""
    durations = np.full(matched.index.shape, NONE, np.int64)
    for row, member in enumerate(matched.members):
        have = matched.index[row] != NONE
        durations[row, have] = found[member].duration[matched.index[row, have]]
    usable = matched.complete & (len(matched.members) > 1) & matched.meets
    if matched.by_arrival:
        last = np.argmax(matched.arrival, axis=0)
        columns = np.arange(matched.index.shape[1])
        transfer = durations[last, columns]
        waits = np.clip(matched.arrival[last, columns] - matched.arrival, 0, durations)
    else:
        transfer = durations.min(axis=0, initial=np.iinfo(np.int64).max)
        waits = durations - transfer
    return np.where(usable, waits, NONE), np.where(usable, transfer, NONE)


def start_up(matched: Matched, found: Sequence[RankCollectives]) -> NDArray[np.bool_]:
    """(k,) whether a collective is the first of a member's capture: start-up for all of them."""
    begins = np.array([found[member].begins for member in matched.members], np.bool_)
    result: NDArray[np.bool_] = np.any((matched.index == 0) & begins[:, None], axis=0)
    return result


def rank_waits(
    tracks: Sequence[RankTrack], found: Sequence[RankCollectives], covers: Sequence[Covers], matched: Sequence[Matched]
) -> tuple[RankWaits, ...]:
    """Split each rank's communication into waiting for peers and the rest."""
    waits = [np.full(len(each.row), NONE, np.int64) for each in found]
    starting = [np.zeros(len(each.row), np.bool_) for each in found]
    for kind in matched:
        waited, transfer = split(kind, found)
        told = transfer != NONE
        begins = start_up(kind, found) & told
        for row, member in enumerate(kind.members):
            index = kind.index[row]
            # A send to one rank and a receive from another can be one operation: it waits for both.
            waits[member][index[told]] = np.maximum(waits[member][index[told]], waited[row, told])
            starting[member][index[begins]] = True
    result = []
    for track, each, cover, wait, begun in zip(tracks, found, covers, waits, starting, strict=True):
        result.append(_rank(track, each, cover, wait, begun))
        release()
    return tuple(result)


def _rank(
    track: RankTrack, each: RankCollectives, covers: Covers, wait: Int64, starting: NDArray[np.bool_]
) -> RankWaits:
    start, end = track.ops.start[each.row], track.ops.end[each.row]
    # An instant of several waits counts for the earliest. Where one collective waits and another moves data, it waits.
    low, high = owned(start, start + np.maximum(wait, 0))
    if len(start):  # operations are cut to the window that was asked for
        low, high, start, end = (np.clip(t, each.own_start.min(), each.own_end.max()) for t in (low, high, start, end))
    begun = union(start[starting], end[starting])
    hidden = Cover.of(np.append(covers.compute.start, begun[0]), np.append(covers.compute.end, begun[1]))
    return RankWaits(
        wait=wait,
        start_up=starting,
        exposed_wait=high - low - hidden.within(low, high),
        peer_wait=Cover.of(*subtract(union(low, high), (hidden.start, hidden.end))),
        starting=Cover.of(*subtract(begun, (covers.compute.start, covers.compute.end))),
    )
