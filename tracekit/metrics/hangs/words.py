"""Ranks in words, and what is lacking of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.evidence import Int32
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.table import is_silent


def silent(examined: Examined) -> list[str]:
    """What is lacking of the ranks whose source says nothing."""
    ranks = [rank.rank for rank in examined.evidence.ranks if is_silent(rank)]
    return lacking_ranks(examined, ranks) if ranks else []


def lacking_ranks(examined: Examined, ranks: Iterable[int]) -> list[str]:
    """What is lacking of ranks, told by whether they have an empty source or none."""
    empty = {rank.rank for rank in examined.evidence.ranks if is_silent(rank)}
    here = {rank.rank for rank in examined.evidence.ranks} - empty
    told = []
    for words, some in (
        ("a capture or dump of", [r for r in ranks if r not in empty and r not in here]),
        ("collectives of (the source holds none)", [r for r in ranks if r in empty]),
        ("earlier collectives (lost from the buffer) of", [r for r in ranks if r in here]),
    ):
        if some:
            told.append(f"{words} {listed(some)}")
    return told


def newer(examined: Examined) -> str:
    """What is lacking where dumps are older than the others."""
    ranks = examined.ranks(examined.stale)
    which = f"{'a dump' if len(ranks) == 1 else 'dumps'} of {listed(ranks)}"
    why = "those have completed what is not begun there, so it is older, or of another job"
    return f"{which} of the same moment as the others: {why}"


def ranks_in_words(examined: Examined, rows: Int32) -> str:
    """Rows as ``ranks 1, 2``."""
    return listed(examined.ranks(rows))


def listed(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``, the first eight of many."""
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
