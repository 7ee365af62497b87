"""How many ranks the job has, and which of them were not captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.metrics.identity import RankCollectives, world_size
from tracekit.metrics.waits import RankWaits
from tracekit.timeline import Timeline

MOST_NAMED = 1 << 17
"""Missing ranks are not listed for a job that claims more than this: a claim is cheap, and no job is that large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks of the job beside those of the captures."""

    size: int | None
    """Number of ranks, as a trainer's mark or NCCL's largest communicator tells it; None where neither does."""
    captured: int
    missing: tuple[int, ...]
    """Ranks that were not captured; () where none is missing, or where the captures do not tell who they are of."""

    @property
    def complete(self) -> bool:
        """Whether no rank is known to be missing."""
        return self.size is None or self.captured >= self.size


def world(timeline: Timeline) -> World:
    """What the captures say about ranks that are not in them."""
    size, ranks = world_size(timeline), timeline.ranks
    named = not timeline.rank_conflicts and all(track.rank_source != "order" for track in ranks)
    missing: tuple[int, ...] = ()
    if size is not None and len(ranks) < size <= MOST_NAMED and named:
        missing = tuple(sorted(set(range(size)) - {track.rank for track in ranks}))
    return World(size=size, captured=len(ranks), missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What was left out of waits and bandwidth as start-up: the first collectives of a capture."""

    collectives: int
    """The largest number on any rank."""
    time_ns: tuple[int, ...]
    """By rank: time in them."""
    wait_ns: tuple[int, ...]
    """By rank: of that, from its own arrival to the last rank's."""


def start_up_left_out(found: Sequence[RankCollectives], waits: Sequence[RankWaits]) -> StartUp:
    """Sum up the collectives that count as start-up."""
    return StartUp(
        collectives=max((int(np.count_nonzero(own.start_up)) for own in waits), default=0),
        time_ns=tuple(int(each.duration[own.start_up].sum()) for each, own in zip(found, waits, strict=True)),
        wait_ns=tuple(int(own.wait[own.start_up].sum()) for own in waits),
    )
