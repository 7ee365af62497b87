"""Gives the bubbles that communication has no part in their causes: idle gaps, cut up by cause, and exposed copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracekit.config import Thresholds
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import Bubbles, Lost
from tracekit.metrics.copies import copy_causes
from tracekit.metrics.idle import Gaps, idle_pieces
from tracekit.metrics.labels import Vocabulary
from tracekit.metrics.steps import StepRanges
from tracekit.timeline import Ops


def with_host_causes(
    bubbles: Bubbles,
    ops: Ops,
    activity: Activity,
    words: Vocabulary,
    marks: StepRanges | None,
    thresholds: Thresholds,
) -> Bubbles:
    """One rank's bubbles with causes of idle time and exposed copies told; an idle bubble can become several."""
    copies = bubbles.op[bubbles.lost == Lost.EXPOSED_COPY]
    bubbles = bubbles.with_causes(Lost.EXPOSED_COPY, copy_causes(ops, copies, activity, words, thresholds))
    idle = np.flatnonzero(bubbles.lost == Lost.IDLE)
    gaps = Gaps(
        start=bubbles.start[idle], end=bubbles.end[idle], before=bubbles.before[idle], after=bubbles.after[idle]
    )
    pieces = idle_pieces(ops, activity, gaps, marks, thresholds)
    # Each piece takes the place of its gap, and inherits the rest from it.
    rows = np.concatenate([np.flatnonzero(bubbles.lost != Lost.IDLE), idle[pieces.gap]])
    start, end, cause = bubbles.start[rows], bubbles.end[rows], bubbles.cause[rows]
    of_idle = slice(len(rows) - len(pieces.gap), len(rows))
    start[of_idle], end[of_idle], cause[of_idle] = pieces.start, pieces.end, pieces.cause
    order = np.argsort(start, kind="stable")
    rows = rows[order]
    return replace(
        bubbles,
        start=start[order],
        end=end[order],
        cause=cause[order],
        **{name: getattr(bubbles, name)[rows] for name in ("lost", "op", "before", "after", "step")},
    )
