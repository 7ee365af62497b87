"""Whole numbers in words, such as ranks and steps: what follows one another as a run."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 8
"""Runs that `few_runs` names."""


def runs(numbers: Iterable[int]) -> str:
    """Return numbers in order as runs: ``2-11``, ``0, 2-4``."""
    return ", ".join(_runs(numbers))


def few_runs(numbers: Iterable[int]) -> str:
    """Return the same with the middle left out where there are many runs: ``0, 2, 4, 6, ..., 12, 14, 16``."""
    found = _runs(numbers)
    return ", ".join(found if len(found) <= MOST else [*found[:4], "...", *found[-3:]])


def _runs(numbers: Iterable[int]) -> list[str]:
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in found]
