"""Which steps of different ranks are one step: those whose matched collectives are.

Ranks number their steps by their own marks. Captures that start at different steps, or loops that count from 0 and from
1, give one step two numbers. Its collectives say which it is; the first rank's numbers are then taken for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]
UNNUMBERED = np.iinfo(np.int64).min
"""Marks a collective that is in no step of a rank whose numbers are settled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnSteps:
    """The steps of one rank, in order of time, as its own marks number them."""

    number: Int64
    start: Int64
    end: Int64

    def containing(self, t: Int64) -> Int64:
        """Position of the step around each instant, or NONE."""
        if len(self.start) == 0:
            return np.full(len(t), NONE, np.int64)
        at = np.searchsorted(self.start, t, side="right") - 1
        clipped = np.maximum(at, 0)
        return np.where((at >= 0) & (t < self.end[clipped]), clipped, NONE)


def common_numbers(
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    matched: Sequence[Matched],
    steps: Sequence[OwnSteps],
) -> list[Int64]:
    """The numbers of each rank's steps on which all agree: the first rank's, and no number below 0.

    A rank keeps its own where it shares no collectives with the others, or where they contradict one another.
    """
    numbers = [each.number for each in steps]
    place = [each.containing(t.ops.start[f.row]) for each, t, f in zip(steps, tracks, found, strict=True)]
    consensus = [np.full(kind.index.shape[1], UNNUMBERED, np.int64) for kind in matched]
    kinds_of: list[list[tuple[int, int]]] = [[] for _ in tracks]
    for k, kind in enumerate(matched):
        for row, member in enumerate(kind.members):
            kinds_of[member].append((k, row))

    def where(rank: int) -> list[tuple[int, Int64]]:
        """(kind, position of the rank's step or NONE by collective)."""
        pairs = []
        for k, row in kinds_of[rank]:
            index = matched[k].index[row]
            pairs.append((k, np.where(index != NONE, place[rank][np.maximum(index, 0)], NONE)))
        return pairs

    def settle(rank: int) -> None:
        for k, at in where(rank):
            new = (consensus[k] == UNNUMBERED) & (at != NONE)
            consensus[k][new] = numbers[rank][at[new]]

    waiting = [rank for rank, each in enumerate(steps) if len(each.number)]
    while waiting:
        for rank in waiting:
            votes = [(at[both], consensus[k][both]) for k, at in where(rank) if (both := _told(at, consensus[k])).any()]
            if votes:
                break
        else:
            rank, votes = waiting[0], []
        if votes:
            numbers[rank] = _renumbered(numbers[rank], *(np.concatenate(part) for part in zip(*votes, strict=True)))
        settle(rank)
        waiting.remove(rank)
    lowest = min((int(n.min()) for n in numbers if len(n)), default=0)
    changed = any(not np.array_equal(n, each.number) for n, each in zip(numbers, steps, strict=True))
    return [n - lowest for n in numbers] if changed and lowest < 0 else numbers


def _told(at: Int64, consensus: Int64) -> NDArray[np.bool_]:
    told: NDArray[np.bool_] = (at != NONE) & (consensus != UNNUMBERED)
    return told


def _renumbered(own: Int64, at: Int64, number: Int64) -> Int64:
    """A rank's steps by what most of each one's collectives say; ``own`` where that names one step twice.

    ``at`` is the position of the step that holds each collective here, ``number`` the step's elsewhere.
    """
    pairs, count = np.unique(np.stack([at, number]), axis=1, return_counts=True)
    total = np.bincount(at, minlength=len(own))
    clear = 2 * count > total[pairs[0]]
    voted, new = pairs[0][clear], pairs[1][clear]
    if len(voted) == 0:
        return own
    # A step without a vote, such as one that only this rank captured, follows its nearest neighbour.
    after = np.clip(np.searchsorted(voted, np.arange(len(own))), 0, len(voted) - 1)
    before = np.maximum(after - 1, 0)
    here = np.arange(len(own))
    nearest = np.where(np.abs(here - voted[before]) <= np.abs(voted[after] - here), before, after)
    result: Int64 = own + (new - own[voted])[nearest]
    return result if len(np.unique(result)) == len(result) else own
