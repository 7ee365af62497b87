"""The page's colours: one table for style sheet, canvas and charts. Contrast is checked in the tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")


@cache
def palette() -> dict[str, dict[str, str]]:
    """Return colours by theme (``light``, ``dark``) and role, as hex."""
    loaded: dict[str, dict[str, str]] = json.loads((STATIC / "palette.json").read_text("utf-8"))
    return loaded


def stylesheet() -> str:
    """Return the colours as custom properties: light by default and in print, dark where the reader asks for it."""
    light, dark = (_properties(palette()[theme]) for theme in ("light", "dark"))
    return (
        f":root{{{light};color-scheme:light}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark};color-scheme:dark}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark};color-scheme:dark}}}}\n"
    )


def _properties(colours: dict[str, str]) -> str:
    return ";".join(f"--{role}:{colour}" for role, colour in colours.items())
