"""Which steps are replayed: a few consecutive ones, as long as all are in the mean, that all ranks have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.one_rank import RankMeasures
from tracekit.results import Steady


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The replayed steps of one rank, on its own clock."""

    starts: NDArray[np.int64]
    """(steps,) when each begins, ns."""
    end: int
    """When the last one ends."""
    stream: int | None
    """The stream whose operations begin the steps; None: any."""


def choose_steps(measured: Sequence[RankMeasures], steady: Steady, thresholds: Thresholds) -> list[int]:
    """Numbers of consecutive steady steps that all ranks have, as many as may be replayed together; [] without any.

    Of several such windows it is the one whose mean step is nearest to that of all: costs are means over all as well.
    """
    walls: dict[int, list[int]] = {}
    for m in measured:
        for step in m.steps:
            walls.setdefault(step.step, []).append(step.account.wall_ns)
    runs: list[list[int]] = [[]]
    for number in steady.steps:
        if len(walls.get(number, ())) == len(measured):
            runs[-1].append(number)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    if not longest:
        return []
    operations = sum(_operations(m, longest[0], longest[-1]) for m in measured) / len(longest)
    count = int(min(len(longest), thresholds.replay_steps, thresholds.replay_operations // max(operations, 1)))
    if count == 0:
        count = 1 if operations <= 3 * thresholds.replay_operations else 0
    means = {n: float(np.mean(walls[n])) for n in longest}
    usual = float(np.mean(list(means.values())))
    windows = [longest[i : i + count] for i in range(len(longest) - count + 1)] if count else []
    return min(windows, key=lambda w: abs(float(np.mean([means[n] for n in w])) - usual), default=[])


def _operations(m: RankMeasures, first: int, last: int) -> int:
    """How many operations start in the rank's steps between two of them, both included."""
    starts = {step.step: step.start_ns for step in m.steps}
    ends = {step.step: step.end_ns for step in m.steps}
    return int(np.diff(np.searchsorted(m.track.ops.start, [starts[first], ends[last]]))[0])


def step_windows(measured: Sequence[RankMeasures], numbers: Sequence[int]) -> list[Window]:
    """Each rank's window of the numbered steps, which it has."""
    windows = []
    for m in measured:
        by_number = {step.step: step for step in m.steps}
        starts = np.array([by_number[n].start_ns for n in numbers], np.int64)
        windows.append(Window(starts=starts, end=by_number[numbers[-1]].end_ns, stream=m.stream))
    return windows


def whole_capture(measured: Sequence[RankMeasures]) -> list[Window]:
    """Everything as one step: from the first operation's start to the last one's end."""
    return [Window(starts=m.track.ops.start[:1], end=int(m.track.ops.end.max()), stream=None) for m in measured]
