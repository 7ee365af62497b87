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
    """The steps without the first, further leading ones longer than 1.5 × the median, and those that were cut off.

    ``skip`` leaves out exactly that many leading steps instead; ``all_of_them`` none, at either end. One step always
    stays; None without steps.
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
    mean_of = dict(zip(order, means, strict=True))
    cut_off = () if all_of_them else _cut_off(by_rank, order[warm_up:], mean_of, thresholds)
    steady = tuple(number for number in order[warm_up:] if number not in cut_off)
    kept = set(steady)
    chosen = [step.account for steps in by_rank for step in steps if step.step in kept]
    times = np.array([a.wall_ns for a in chosen], np.int64)
    return Steady(
        steps=steady,
        left_out=tuple(order[:warm_up]),
        step_time_ns=round(float(np.median(times))),
        step_time_p95_ns=round(float(np.percentile(times, 95))),
        account=mean(chosen),
        cut_off=cut_off,
    )


def _cut_off(
    by_rank: Sequence[Sequence[Step]], kept: Sequence[int], means: dict[int, float], thresholds: Thresholds
) -> tuple[int, ...]:
    """The steps of ``kept`` that the end of a capture cut off, never all of them.

    Where captures end in different steps, what counts is how long a step is on those ranks whose last it is.
    """
    ends: dict[int, list[int]] = {}
    for steps in by_rank:
        for step in steps:
            if not step.followed:
                ends.setdefault(step.step, []).append(step.account.wall_ns)
    found: list[int] = []
    for number in reversed([number for number in kept if number in ends]):
        others = [means[other] for other in kept if other not in (number, *found)]
        if others:
            usual = float(np.median(others))
            if sum(ends[number]) / len(ends[number]) < (1 - thresholds.cut_off_share) * usual:
                found.append(number)
    return tuple(reversed(found))


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
