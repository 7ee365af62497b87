"""Pages in a real browser: what the tests of the page share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "#where b"
LEFT, RIGHT = 140, 1280 - 2 * 24 - 2 - 12
"""Where lanes begin and end on the canvas at a width of 1280, between gutter and margin."""
LEDGER_Y, FIRST_STREAM_Y = 52, 81
"""Where the first rank's ledger (26 high) and first stream (15 high) begin."""


@dataclass
class Opened:
    """A page with what went wrong in it and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def wait_until_ready(self) -> None:
        self.page.locator(READY).wait_for(state="attached")


Open = Callable[..., Opened]


def pixel(page: Any, x: float, y: float) -> str:
    """Colour of the canvas at a point in CSS pixels."""
    return colours_along(page, x, y, 1)[0]


def colours_along(page: Any, x: float, y: float, width: int) -> list[str]:
    """Colours of the canvas along a horizontal line of some pixels."""
    rgba = page.evaluate(
        "([x, y, n]) => [...document.querySelector('#canvas').getContext('2d').getImageData(x, y, n, 1).data]",
        [x, y, width],
    )
    return ["#" + "".join(f"{value:02X}" for value in rgba[i : i + 3]) for i in range(0, len(rgba), 4)]
