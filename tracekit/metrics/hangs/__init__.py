"""Why a job stands still: from what each rank issued to where they part, and who is behind.

Numbers only grow: in each communicator, the last one that a rank launched says that it launched all before. A rank that
waits in a later one waits for those whose last is lower; these are inside other collectives, or inside none. The ends
of that wait graph are the causes: ranks that do not come and are inside nothing, collectives that were called
differently, ranks that wait for one another, and collectives that all have begun and that do not end.
"""

from __future__ import annotations

from tracekit.config import Thresholds
from tracekit.evidence import Evidence
from tracekit.metrics.hangs.causes import find_causes
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
    return conclude(examined, find_causes(examined))
