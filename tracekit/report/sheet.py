"""Style rules made for one page: the content security policy allows no style attributes, so widths become classes."""

from __future__ import annotations

from dataclasses import dataclass, field

_FULL = 10_000
_CHARACTER_PX, _PADDING_PX = 7.2, 16


@dataclass(slots=True)
class Sheet:
    """Collects the classes that a page uses; `css` returns their rules."""

    _widths: set[int] = field(default_factory=set)
    _lengths: set[int] = field(default_factory=set)

    def width(self, share: float) -> str:
        """Return a class that takes this share (0 to 1) of a row, where the row's shares add up to 1."""
        width = round(min(1.0, max(0.0, share)) * _FULL)
        self._widths.add(width)
        return f"w{width}"

    def fits(self, text: str) -> str:
        """Return a class that shows its element only where the enclosing segment is wide enough for ``text``."""
        self._lengths.add(len(text))
        return f"q{len(text)}"

    def fits_not(self, text: str) -> str:
        """Return a class that shows its element only where ``text`` does not fit."""
        self._lengths.add(len(text))
        return f"z{len(text)}"

    def css(self) -> str:
        """Return the rules of all classes handed out."""
        rules = [f".w{width}{{flex:{width} 1 0%}}" for width in sorted(self._widths)]
        for length in sorted(self._lengths):
            least = round(length * _CHARACTER_PX + _PADDING_PX)
            rules.append(f"@container (max-width:{least - 1}px){{.q{length}{{display:none}}}}")
            rules.append(f"@container (min-width:{least}px){{.z{length}{{display:none}}}}")
        return "\n".join(rules)
