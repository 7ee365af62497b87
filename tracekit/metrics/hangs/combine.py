"""Evidence of one job from dumps and captures together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.evidence import Activity, Entries, Evidence, RankEvidence


def combine(dumps: Evidence, captures: Evidence) -> Evidence:
    """The collectives as the dumps tell them, with what the captures tell of each rank's last activity.

    Dumps name process groups and captures NCCL communicators, which cannot be told to be the same: a rank that has only
    a capture counts as one whose collectives are not known. Where captures tell of more ranks' collectives than the
    dumps do, it is the other way round.
    """
    if _ranks_told(captures) > _ranks_told(dumps):
        return _from_captures(dumps, captures)
    captured = {rank.rank: rank for rank in captures.ranks}
    dumped = {rank.rank for rank in dumps.ranks}
    ranks = [
        replace(rank, activity=_together(rank.activity, captured[rank.rank].activity))
        if rank.rank in captured
        else rank
        for rank in dumps.ranks
    ]
    ranks += [_without_collectives(rank) for rank in captures.ranks if rank.rank not in dumped]
    notes = []
    for there, word, other in (
        (captured.keys() - dumped, "a capture", "dump"),
        (dumped - captured.keys(), "a dump", "capture"),
    ):
        if there:
            notes.append(f"{len(there):,} of the ranks have {word} and no {other}")
    return replace(
        dumps,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        world_size=dumps.world_size or captures.world_size,
        interrupted=captures.interrupted or None,  # the capture may have ended before the job stood still
        notes=(*dumps.notes, *captures.notes, *notes),
    )


def _ranks_told(evidence: Evidence) -> int:
    return sum(len(rank.entries) > 0 for rank in evidence.ranks)


def _from_captures(dumps: Evidence, captures: Evidence) -> Evidence:
    """The collectives as the captures tell them, with the stacks of the dumps."""
    frames = {rank.rank: rank.activity.frames for rank in dumps.ranks}
    ranks = [
        replace(rank, activity=replace(rank.activity, frames=frames.get(rank.rank, ()))) for rank in captures.ranks
    ]
    note = f"{len(frames):,} of the ranks have a dump: the collectives are those of the captures"
    return replace(captures, ranks=tuple(ranks), notes=(*dumps.notes, *captures.notes, note))


def _together(dump: Activity, capture: Activity) -> Activity:
    return replace(capture, frames=dump.frames, last_collective=dump.last_collective or capture.last_collective)


def _without_collectives(rank: RankEvidence) -> RankEvidence:
    none = np.empty(0, np.int64)
    small = np.empty(0, np.int32)
    entries = Entries(
        communicator=small,
        seq=none,
        op=small,
        elements_in=none,
        elements_out=none,
        dtype=small,
        state=np.empty(0, np.int8),
        step=none,
    )
    return replace(rank, entries=entries, wrapped=True)
