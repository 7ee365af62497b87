"""Who differs where a communicator's own ranks are divided evenly: what other communicators like it called there."""

from __future__ import annotations

import numpy as np

from tracekit.metrics.hangs.compare import key_of
from tracekit.metrics.hangs.cycles import elsewhere
from tracekit.metrics.hangs.examine import Examined
from tracekit.results import Mismatch

FEWEST = 2
"""Communicators that have to agree."""


def decided_by_peers(examined: Examined, group: int, mismatch: Mismatch) -> tuple[int, ...]:
    """Ranks that call something else than all other communicators of this description and size do under this number.

    () where these do not agree with one another, are too few, or agree with none or all of the ranks.
    """
    table = examined.table
    others = elsewhere(examined, group)
    ways = {key_of(table, entry, mismatch.verdict) for at in others for entry in range(at.start, at.stop)}
    if len(others) < FEWEST or len(ways) != 1:
        return ()
    right = ways.pop()
    at = table.entries_of(group)
    differs = np.array([key_of(table, entry, mismatch.verdict) != right for entry in range(at.start, at.stop)])
    return () if differs.all() else examined.ranks(table.row[at][differs])
