"""Whether a job stood still at the end of its captures, or the captures merely end."""

from __future__ import annotations

from enum import Enum

from tracekit.evidence import Int32
from tracekit.metrics.hangs.examine import Examined


class Still(Enum):
    """The answer."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def stands_still(examined: Examined, waiting: Int32, awaited: Int32) -> Still:
    """Whether ranks have waited for others for long enough, while these were watched.

    A rank that waits has been idle for a while when its capture ends; a rank that it waits for has been seen not to
    come for as long as the captures of both go on. Where no times are known (dumps), a job that was asked for its dumps
    is taken to stand still.
    """
    evidence, thresholds = examined.evidence, examined.thresholds
    if evidence.interrupted is False:
        return Still.NO
    waits = [evidence.ranks[row] for row in waiting.tolist()]
    others = [evidence.ranks[row] for row in awaited.tolist()]
    idle = [rank.activity.idle_ns for rank in waits if rank.activity.idle_ns is not None]
    ends = [rank.end_ns for rank in waits if rank.end_ns is not None]
    watched = [rank.end_ns for rank in others if rank.end_ns is not None]
    if not idle:
        if watched and ends and min(watched) < max(ends) and not evidence.interrupted:
            return Still.NO
        return Still.YES if evidence.interrupted or not ends else Still.UNKNOWN
    if max(idle) < thresholds.still_ns:
        return Still.NO
    if not watched or not ends:
        return Still.YES
    seen = max(
        min(*watched, rank.end_ns) - (rank.end_ns - rank.activity.idle_ns)
        for rank in waits
        if rank.end_ns is not None and rank.activity.idle_ns is not None
    )
    return Still.YES if seen >= thresholds.still_ns else Still.UNKNOWN
