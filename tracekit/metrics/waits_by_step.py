"""The causes of lost time that follow from the waits alone, for steps whose other causes are not looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.intervals import Cover
from tracekit.metrics.waits import RankWaits
from tracekit.results import Step


def with_waits(steps: Sequence[Step], waits: RankWaits) -> tuple[Step, ...]:
    """The steps with what they wait for peers; all other lost time is ``unknown``, so that causes add up."""
    start, end = (np.array([getattr(step, side) for step in steps], np.int64) for side in ("start_ns", "end_ns"))
    starting, waiting = waits.starting, waits.peer_wait
    both = Cover.of(np.concatenate([starting.start, waiting.start]), np.concatenate([starting.end, waiting.end]))
    start_up = starting.within(start, end)
    peer_wait = both.within(start, end) - start_up  # where both hold, start-up goes first
    return tuple(
        replace(
            step,
            exposed_comm_by_cause=_without_zeros(
                start_up=begun, peer_wait=waited, unknown=step.account.exposed_comm_ns - begun - waited
            ),
            exposed_copy_by_cause=_without_zeros(unknown=step.account.exposed_copy_ns),
            idle_by_cause=_without_zeros(unknown=step.account.idle_ns),
        )
        for step, begun, waited in zip(steps, start_up.tolist(), peer_wait.tolist(), strict=True)
    )


def _without_zeros(**causes: int) -> dict[str, int]:
    return {cause: ns for cause, ns in causes.items() if ns}
