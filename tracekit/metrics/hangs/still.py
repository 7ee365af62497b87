"""Whether a job stood still at the end of its captures, or the captures merely end."""

from __future__ import annotations

from enum import Enum

import numpy as np

from tracekit.evidence import Evidence, Int32
from tracekit.metrics.hangs.examine import Examined
from tracekit.metrics.hangs.quiet import Quiet, how_quiet, standstill_ns

SECOND_NS = 1_000_000_000


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
    quiet = max(how_quiet(rank.activity.idle_ns, rank.activity.usual_step_ns, thresholds) for rank in waits)
    if quiet is Quiet.NO:
        return Still.NO
    if not watched or not ends:
        return Still.YES if quiet is Quiet.STILL else Still.UNKNOWN
    seen = [
        how_quiet(
            min(*watched, rank.end_ns) - (rank.end_ns - rank.activity.idle_ns), rank.activity.usual_step_ns, thresholds
        )
        for rank in waits
        if rank.end_ns is not None and rank.activity.idle_ns is not None
    ]
    return Still.YES if max(seen) is Quiet.STILL else Still.UNKNOWN


def suspicion(examined: Examined, waiting: Int32) -> str | None:
    """How long the ranks that wait were quiet, in seconds and in their own steps, and from when on that is enough."""
    known = [
        (rank.activity.idle_ns, rank.activity.usual_step_ns)
        for row in waiting.tolist()
        if (rank := examined.evidence.ranks[row]).activity.idle_ns is not None
    ]
    if not known:
        return None
    idle_ns, step_ns = max(known, key=lambda pair: pair[0] or 0)
    steps = f", {(idle_ns or 0) / step_ns:,.1f} of their steps" if step_ns else ""
    enough_ns = standstill_ns(step_ns, examined.thresholds)
    quiet = f"they had been quiet for {(idle_ns or 0) / SECOND_NS:,.2f} s{steps}"
    return f"{quiet}; from {enough_ns / SECOND_NS:,.2f} s on it is a standstill"


def at_work(examined: Examined, rows: Int32) -> Int32:
    """Those of some ranks that were not quiet when their captures ended."""
    ranks, thresholds = examined.evidence.ranks, examined.thresholds
    doings = [ranks[row].activity for row in rows.tolist()]
    quiet = [
        doing.idle_ns is None or how_quiet(doing.idle_ns, doing.usual_step_ns, thresholds) > Quiet.NO
        for doing in doings
    ]
    return rows[~np.array(quiet, np.bool_)]


def stopped_outside(evidence: Evidence) -> bool:
    """Whether ranks whose collectives are all over stopped in the middle of something."""
    doings = [rank.activity for rank in evidence.ranks if rank.activity.idle_ns is not None]
    inside = any(doing.open_ranges or doing.last_call_open for doing in doings)
    return bool(doings) and bool(evidence.interrupted or (evidence.interrupted is None and inside))
