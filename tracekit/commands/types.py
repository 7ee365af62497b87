"""Types of options and arguments."""

from __future__ import annotations

import re
from typing import Any

import click

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
SEVERITIES = ("info", "warning", "error")
LARGEST_LIST = 10_000_000
LARGEST_COUNT = 10**15
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


class Window(click.ParamType[tuple[int | None, int | None]]):
    """``START:END`` with units, either side may be empty."""

    name = "START:END"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Parse to ns."""
        if isinstance(value, tuple):  # click converts defaults and already converted values again
            return value[0], value[1]
        start, colon, end = str(value).partition(":")
        if not colon:
            self.fail("write it like 1.2s:1.5s or 300ms:", param, ctx)
        window = self._instant(start, param, ctx), self._instant(end, param, ctx)
        if window[0] is not None and window[1] is not None and window[1] <= window[0]:
            self.fail("it ends before it starts", param, ctx)
        return window

    def _instant(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if not text.strip():
            return None
        match = re.fullmatch(r"\s*(\d{1,19})(?:\.(\d{1,9}))?\s*(s|ms|us|ns)\s*", text)
        if not match:
            self.fail(f"{text!r} is not a time with a unit (s, ms, us, ns)", param, ctx)
        unit = UNITS_NS[match[3]]
        fraction = match[2] or ""
        return int(match[1]) * unit + int(fraction.ljust(9, "0")) * unit // UNITS_NS["s"]


class Numbers(click.ParamType[frozenset[int]]):
    """A list of numbers and ranges, such as ``2-5,8``."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        """Parse to a set."""
        if isinstance(value, frozenset):
            return value
        numbers: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
            if not match or int(match[2] or match[1]) < int(match[1]):
                self.fail(f"{part.strip() or value!r} is not a number or a range; write it like 2-5,8", param, ctx)
            low, high = int(match[1]), int(match[2] or match[1])
            if high - low >= LARGEST_LIST:
                self.fail(f"{part.strip()} names more than {LARGEST_LIST:,} numbers", param, ctx)
            numbers.update(range(low, high + 1))
        return frozenset(numbers)


class Count(click.ParamType[int]):
    """A number of parameters: ``70e9``, ``7B`` or ``6738415616``."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse to a whole number from 1 on."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,2})?)\s*([kmbgt]?)\s*", str(value), re.I)
        if not match:
            self.fail(f"{value!r} is not a number of parameters; write it like 70e9 or 7B", param, ctx)
        number = round(float(match[1].replace("_", "")) * COUNTS[match[2].lower()])
        if not 1 <= number <= LARGEST_COUNT:
            self.fail(f"{value!r} is no sensible number of parameters", param, ctx)
        return number


class Share(click.ParamType[float]):
    """A share: ``3%`` or ``0.03``."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse to 0 to 1, or beyond: a step can take twice as long."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})\s*(%?)\s*", str(value))
        if not match:
            self.fail(f"{value!r} is not a share; write it like 3% or 0.03", param, ctx)
        if not match[2] and float(match[1]) > 1:
            self.fail(f"{value!r} would be {100 * float(match[1]):g}%; write it with %, like 3%", param, ctx)
        return float(match[1]) / (100 if match[2] else 1)
