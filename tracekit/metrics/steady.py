"""The steady steps: those that figures are quoted for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.accounting import mean
from tracekit.results import Steady, Step


def steady_steps(
    by_rank: Sequence[Sequence[Step]], thresholds: Thresholds, skip: int | None, *, all_of_them: bool = False
) -> Steady | None:
    """The steps without the first and without further leading ones longer than 1.5 × the median; None without steps.

    ``skip`` leaves out exactly that many leading steps instead; ``all_of_them`` none. A capture of one step keeps it.
    """
    walls: dict[int, list[int]] = {}
    for steps in by_rank:
        for step in steps:
            walls.setdefault(step.step, []).append(step.account.wall_ns)
    if not walls:
        return None
    order = _in_time(by_rank)
    means = [sum(walls[n]) / len(walls[n]) for n in order]
    if all_of_them:
        warm_up = 0
    elif skip is not None:
        warm_up = min(skip, len(order) - 1)
    else:
        warm_up = min(1, len(order) - 1)
        limit = thresholds.warm_up_ratio * float(np.median(means))
        while warm_up < len(order) - 1 and means[warm_up] > limit:
            warm_up += 1
    kept = set(order[warm_up:])
    chosen = [step.account for steps in by_rank for step in steps if step.step in kept]
    times = np.array([a.wall_ns for a in chosen], np.int64)
    return Steady(
        steps=tuple(order[warm_up:]),
        left_out=tuple(order[:warm_up]),
        step_time_ns=round(float(np.median(times))),
        step_time_p95_ns=round(float(np.percentile(times, 95))),
        account=mean(chosen),
    )


def steady_windows(steps: Sequence[Step], steady: Steady | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(starts, ends) of a rank's steady steps, ns."""
    kept = set(steady.steps) if steady else set()
    chosen = [step for step in steps if step.step in kept]
    return (
        np.array([step.start_ns for step in chosen], np.int64),
        np.array([step.end_ns for step in chosen], np.int64),
    )


def _in_time(by_rank: Sequence[Sequence[Step]]) -> list[int]:
    """Step numbers in the order in which they ran; ranks may start and end at different steps."""
    longest = max(by_rank, key=len)
    order = [step.step for step in longest]
    for n in sorted({step.step for steps in by_rank for step in steps} - set(order)):
        order.insert(next((at for at, later in enumerate(order) if later > n), len(order)), n)
    return order
