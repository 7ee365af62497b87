"""Pauses of a host that come in few steps only: they say something of those steps, and nothing of a typical one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.rules.base import Context

Bool = NDArray[np.bool_]

PAUSE_CALLS = 4
"""A pause may end with the launch, and the event calls before it."""


def one_offs(view: RankView, context: Context) -> Bool:
    """A rank's long quiet gaps that are no regular work: longer by far than what the median step has, in few steps.

    Without steps all long quiet gaps.
    """
    bubbles, limits = view.bubbles, context.thresholds
    causes = ["host_other", "comm_init"] + ([] if view.activity.tells_of_data else ["data_loading"])
    long: Bool = bubbles.of_cause(Lost.IDLE, *causes) & (bubbles.ns >= limits.pause_ns) & context.ledger.counted(view)
    rows = np.flatnonzero(long)
    if len(rows) == 0:
        return long
    # A host that keeps calling CUDA works; one that pauses is silent for nearly all of the gap.
    calls = view.process.calls
    lasted = np.searchsorted(calls.start, bubbles.end[rows]) - np.searchsorted(calls.start, bubbles.start[rows])
    busy = (lasted > PAUSE_CALLS) & ~bubbles.of_cause(Lost.IDLE, "comm_init")[rows]
    long[rows[busy]] = False
    if not context.steps:
        return long
    step, inverse = np.unique(bubbles.step[long], return_inverse=True)
    longest = np.zeros(max(context.ledger.steps_of(view), len(step)), np.int64)
    np.maximum.at(longest, inverse, bubbles.ns[long])
    usual = int(np.sort(longest)[(len(longest) - 1) // 2])
    long &= bubbles.ns >= limits.one_off_ratio * usual
    few = len(np.unique(bubbles.step[long])) <= limits.pauses_share * context.ledger.steps_of(view)
    return long if few else np.zeros(len(bubbles), np.bool_)
