"""Why a job stands still: from what each rank issued to where they part, and who is behind.

In each communicator the ranks are aligned from the highest of their first seqs, for early ones may be lost. The first
seq that a member never launched, the collectives that were called differently, and the graph of who waits for whom give
candidates; the cause is the one that the most ranks wait for, directly or by way of others.
"""

from __future__ import annotations

from dataclasses import replace

from tracekit.config import Thresholds
from tracekit.evidence import Evidence
from tracekit.metrics.hangs.around import around
from tracekit.metrics.hangs.causes import find_cause
from tracekit.metrics.hangs.examine import examine
from tracekit.metrics.hangs.verdict import conclude
from tracekit.results import Hang

__all__ = ["diagnose"]


def diagnose(evidence: Evidence, thresholds: Thresholds) -> Hang:
    """The verdict on a job, from all that is known of its ranks.

    Always a value: ``not_a_hang`` where the job did not stand still, ``undecided`` (with what is lacking) where the
    evidence does not tell.
    """
    examined = examine(evidence, thresholds)
    hang = conclude(examined, find_cause(examined))
    return replace(hang, around=around(examined, hang))
