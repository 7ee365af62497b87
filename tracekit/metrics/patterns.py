"""In which steps a rank is late: in all, from one on, or in every third."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

ALWAYS, FROM_STEP, PERIODIC = "always", "from_step", "periodic"
FEWEST_TIMES = 3
"""A rank that is late fewer times than this shows no period."""
FEWEST_BEFORE = 2
"""A rank that is late from a step on was in time for at least so many before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """When a rank is late."""

    kind: str | None
    """always, from_step or periodic; None where its late steps show none of these."""
    steps: tuple[int, ...]
    """The steps in which it is late."""
    from_step: int | None = None
    period: int | None = None


def pattern_of(late_ns: Float, numbers: Sequence[int], step_ns: float, thresholds: Thresholds) -> Pattern:
    """When a rank is late: ``late_ns`` is by how much in each of the steps with these ``numbers``, in order."""
    late = _late(late_ns, step_ns, thresholds)
    which = tuple(number for number, is_late in zip(numbers, late.tolist(), strict=True) if is_late)
    at = np.flatnonzero(late)
    if len(at) == 0:
        return Pattern(kind=None, steps=())
    first, count = int(at[0]), len(late)
    if first >= FEWEST_BEFORE and len(at) >= FEWEST_BEFORE and late[first:].mean() >= thresholds.late_steps_share:
        return Pattern(kind=FROM_STEP, steps=tuple(numbers[first:]), from_step=numbers[first])
    apart = np.unique(np.diff(at))
    if len(at) >= FEWEST_TIMES and len(apart) == 1 and apart[0] > 1 and first < apart[0] and count - at[-1] <= apart[0]:
        return Pattern(kind=PERIODIC, steps=which, period=int(apart[0]))
    if late.mean() >= thresholds.late_steps_share:
        return Pattern(kind=ALWAYS, steps=tuple(numbers))
    return Pattern(kind=None, steps=which)


def _late(late_ns: Float, step_ns: float, thresholds: Thresholds) -> Bool:
    """In which steps the lateness matters, and is not small beside what it usually is when it matters."""
    matters = late_ns >= thresholds.wait_share * step_ns
    if not matters.any():
        return matters
    result: Bool = late_ns >= max(float(np.median(late_ns[matters])) / 4, thresholds.wait_share * step_ns / 2)
    return result
