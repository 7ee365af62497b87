"""What a verdict on ranks that called the same takes for granted: that they are all, and that their sizes fit."""

from __future__ import annotations

from tracekit.evidence import UNKNOWN
from tracekit.metrics.hangs.examine import Examined


def unknown_members(examined: Examined, group: int) -> str | None:
    """What is lacking where no source tells who belongs to a communicator, and not all ranks of the job are there.

    Captures of all ranks that anything is known of are taken for all, which is said.
    """
    evidence = examined.evidence
    member = examined.members[examined.communicator_of(group)]
    if member.size is not None:
        return None
    captured = all(rank.end_ns is not None and rank.rank == row for row, rank in enumerate(evidence.ranks))
    of_all = captured and len(member.rows) > 1
    if of_all if evidence.world_size is None else len(evidence.ranks) >= evidence.world_size:
        return None
    name = evidence.communicators[examined.communicator_of(group)].name
    return f"which ranks belong to communicator {name}, and evidence of all of them"


def taken_for_granted(examined: Examined, group: int) -> list[str]:
    """The conditions of the verdict, in words."""
    table = examined.table
    at, member = table.entries_of(group), examined.members[examined.communicator_of(group)]
    notes = []
    if member.size is None and examined.evidence.world_size is None:
        notes.append(
            f"it holds if these are all {len(member.rows):,} ranks of the communicator, which no capture tells:"
            " else a rank without a capture may be missing"
        )
    if (table.elements_in[at] == UNKNOWN).all() and (table.elements_out[at] == UNKNOWN).all():
        notes.append("its size is not known on any rank: ranks may have called it with different sizes")
    return notes
