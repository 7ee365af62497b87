"""Which operations the page holds one by one: all, those of chosen steps, or the longest. The rest is occupancy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tracekit.results import Analysis
from tracekit.timeline import Int64

Bool = NDArray[np.bool_]


class HtmlDetail(StrEnum):
    """How much of a job the page holds one by one."""

    ALL = "all"
    """Every event, however large the page becomes."""
    AUTO = "auto"
    """Every event up to a limit; beyond it those of chosen steps."""
    SUMMARY = "summary"
    """None: where time went, and how busy each stream was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept one by one."""

    whole: bool = False
    steps: tuple[int, ...] = ()
    """Where not everything is, these steps are kept in full."""
    shortest_ns: int | None = None
    """Without such steps, what lasts so long is kept."""

    def mask(self, start: Int64, end: Int64, windows: dict[int, tuple[int, int]]) -> Bool:
        """(n,) which intervals are kept; ``windows`` has a rank's steps on the intervals' clock."""
        if self.whole:
            return np.ones(len(start), np.bool_)
        if self.shortest_ns is not None:
            long: Bool = end - start >= self.shortest_ns
            return long
        kept = np.zeros(len(start), np.bool_)
        for first, last in (windows[step] for step in self.steps if step in windows):
            kept |= (start < last) & (end > first)
        return kept


NOTHING = Kept()


def keep(
    total: int, budget: int, steps: Sequence[int], count: Callable[[int], int], lengths: Callable[[], Int64]
) -> Kept:
    """Keep all of ``total`` if it fits the budget, else the first of ``steps`` that fit together, else the longest.

    ``count`` returns the number of events of a step, ``lengths`` those of all events in ns.
    """
    if total <= budget:
        return Kept(whole=True)
    chosen, left = [], budget
    for step in steps:
        if (size := count(step)) <= left:
            chosen.append(step)
            left -= size
    if chosen or budget <= 0:
        return Kept(steps=tuple(sorted(chosen)))
    every = lengths()
    cut = len(every) - budget
    return Kept(shortest_ns=int(np.partition(every, cut - 1)[cut - 1]) + 1)


def median_step(analysis: Analysis) -> int | None:
    """Return the steady step whose mean length over ranks is the median (the lower of two)."""
    means = _mean_lengths(analysis)
    return means[(len(means) - 1) // 2][1] if means else None


def telling_steps(analysis: Analysis) -> list[int]:
    """Return the steps to keep in full, most telling first: the median one, those that prove findings, the worst."""
    means = _mean_lengths(analysis)
    if not means:
        return []
    cited = [finding.span.step for finding in analysis.findings if finding.span and finding.span.step is not None]
    return list(dict.fromkeys([means[(len(means) - 1) // 2][1], *cited, means[-1][1]]))


def _mean_lengths(analysis: Analysis) -> list[tuple[float, int]]:
    """(mean length over ranks, number) of the steady steps, shortest first."""
    if not analysis.steady:
        return []
    lengths: dict[int, list[int]] = {number: [] for number in analysis.steady.steps}
    for rank in analysis.ranks:
        for step in rank.steps:
            if step.step in lengths:
                lengths[step.step].append(step.account.wall_ns)
    return sorted((sum(walls) / len(walls), number) for number, walls in lengths.items() if walls)
