"""Numbers and names as a reader sees them: rounding that adds up, units, and text from captures made harmless."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, ANSI escapes among them
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible characters, line ends and changes of direction
    "\ud800-\udfff\ufffe\uffff]"  # surrogates that no encoding can hold, non-characters
)
_REPLACEMENT = "\ufffd"
_ASCII = str.maketrans("·×÷µ…–±−", "-x/u~-~-")


def clean(text: str, limit: int = 400) -> str:
    """Return text from a capture with whatever could steer a terminal or a page replaced, cut to ``limit``."""
    safe = _UNSAFE.sub(_REPLACEMENT, text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def to_ascii(text: str) -> str:
    """Return the text in ASCII, each character as one: for terminals without UTF-8."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for a group of figures that are read together."""

    unit: str
    unit_ns: int
    decimals: int

    @classmethod
    def of(cls, whole_ns: float) -> Scale:
        """Choose the unit from the largest figure of the group: ms with one decimal, unless that hides it."""
        if whole_ns >= 100e9:
            return cls("s", 1_000_000_000, 1)
        if whole_ns >= 10e6:
            return cls("ms", 1_000_000, 1)
        if whole_ns >= 1e6:
            return cls("ms", 1_000_000, 3)
        return cls("µs", 1_000, 1)

    @property
    def tick_ns(self) -> int:
        """The smallest step that is shown, in ns."""
        return int(self.unit_ns // 10**self.decimals)

    def format(self, ns: float) -> str:
        """Return ns in this unit, without the unit."""
        return f"{ns / self.unit_ns:.{self.decimals}f}"

    def with_unit(self, ns: float) -> str:
        """Return ns in this unit, with the unit."""
        return f"{self.format(ns)} {self.unit}"


def add_up(parts_ns: Sequence[float], scale: Scale) -> list[str]:
    """Round parts so that what is shown adds up to the shown whole (largest remainder).

    The whole is the sum of the parts, rounded to the scale's last digit; each part is rounded down and the missing
    ticks go to the parts with the largest remainders.
    """
    return [scale.format(count * scale.tick_ns) for count in in_ticks(parts_ns, scale)]


def in_ticks(parts_ns: Sequence[float], scale: Scale, whole: int | None = None) -> list[int]:
    """The parts in whole ticks of the scale that add up to ``whole`` ticks (None: to their sum, rounded)."""
    exact = [Fraction(part) / scale.tick_ns for part in parts_ns]
    floors = [part.numerator // part.denominator for part in exact]
    missing = (int(sum(exact) + Fraction(1, 2)) if whole is None else whole) - sum(floors)
    by_remainder = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in by_remainder[:missing] if missing > 0 else by_remainder[missing:] if missing else ():
        floors[i] += 1 if missing > 0 else -1
    return floors


def duration(ns: float) -> str:
    """Return a single duration with the unit that suits it."""
    size = abs(ns)
    if size >= 1e9:
        return f"{ns / 1e9:.2f} s"
    if size >= 1e6:
        return f"{ns / 1e6:.1f} ms"
    if size >= 1e3:
        return f"{ns / 1e3:.1f} µs"
    return f"{ns:.0f} ns"


def size(count: float) -> str:
    """Return a number of bytes with a decimal unit: 403 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def share(part: float, whole: float) -> str:
    """Return a whole percentage; a share that would round to nothing says so."""
    percent = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals, or a dash where it is unknown. Short of all is never shown as all."""
    if value is None:
        return "–"
    return f"{min(value, 0.99):.2f}" if value < 1 else f"{value:.2f}"


def plural(count: int, noun: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentence(text: str) -> str:
    """Return a claim with a full stop at its end."""
    return text if text.endswith((".", "?")) else text + "."
