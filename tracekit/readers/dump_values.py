"""Plain values out of dumps: bounded, whatever the file holds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tracekit.evidence import UNKNOWN
from tracekit.readers.collective_ops import LONGEST_NAME
from tracekit.readers.raw import LARGEST_RANK

LARGEST = np.iinfo(np.int64).max >> 16
"""Numbers beyond this are taken for damage; sums over 65,536 ranks still fit."""
MOST_TENSORS = 100_000
MOST_DIMENSIONS = 64
MOST_FRAMES = 24


def text(value: Any) -> str | None:
    """A text or number as text. None for all else: lists that hold one another can be a text without end."""
    if isinstance(value, str):
        return value[:LONGEST_NAME]
    return str(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def number(value: Any) -> int:
    """A number, or a text that is one; UNKNOWN for all else and for what is negative or too large."""
    if type(value) is int:
        return value if 0 <= value < LARGEST else UNKNOWN
    told = (value if isinstance(value, str) else "")[:20]
    return number(int(told)) if re.fullmatch(r"\d{1,18}", told) else UNKNOWN


def rank(value: Any) -> int | None:
    """A number that can be a rank's."""
    told = text(value) or ""
    found = int(told) if re.fullmatch(r"\d{1,9}", told) else LARGEST_RANK
    return found if found < LARGEST_RANK else None


def elements(shapes: Any) -> int:
    """Elements of all tensors together; UNKNOWN where they are not told."""
    if type(shapes) not in (list, tuple) or len(shapes) > MOST_TENSORS:
        return UNKNOWN
    total = 0
    for shape in shapes:
        if type(shape) not in (list, tuple) or len(shape) > MOST_DIMENSIONS:
            return UNKNOWN
        count = 1
        for size in shape:  # not math.prod, which multiplies lists and texts as well
            if type(size) is not int or not 0 <= size < LARGEST:
                return UNKNOWN
            count *= size
        total += count
    return total if shapes and total < LARGEST else UNKNOWN


def total(members: list[dict[str, Any]], key: str) -> int:
    """Elements of several entries; UNKNOWN where one does not tell."""
    sizes = [elements(member.get(key)) for member in members]
    return UNKNOWN if UNKNOWN in sizes else min(sum(sizes), LARGEST)


def dtype(entry: dict[str, Any]) -> str | None:
    """The dtype of an entry's tensors, or all of them."""
    told = entry.get("input_dtypes") or entry.get("output_dtypes")
    if not isinstance(told, list | tuple) or len(told) > MOST_TENSORS:
        return None
    if len(told) == 1:
        return text(told[0])
    return "+".join(sorted({text(each) or "?" for each in told}))[:LONGEST_NAME] or None


def frames(told: Any) -> tuple[str, ...]:
    """A stack as ``name (file:line)``, innermost first."""
    found = [frame for frame in told[:MOST_FRAMES] if isinstance(frame, dict)] if isinstance(told, list) else []
    return tuple(
        f"{text(frame.get('name'))} ({text(frame.get('filename'))}:{text(frame.get('line'))})" for frame in found
    )
