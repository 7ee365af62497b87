"""Who waits for whom: the wait graph, as lines for the terminal and as boxes for the page.

A node is a collective that ranks are inside, whatever their number: thousands of ranks that wait in one collective, or
in the collectives of like groups, are one box.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.report.words import clean
from tracekit.results import Hang, ProcessGroup, Wait
from tracekit.rules.hang_words import HASH
from tracekit.runs import few_runs

MOST_BOXES = 12
LETTERS, LINES = 43, 3
"""Of a line in a box, and lines below its title."""
WIDTH, ROW, GAP = 330, 92, 26
"""Width of a box, height of one with its gap, and room for the edge between two levels (px)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node of the picture."""

    x: int
    y: int
    is_root: bool
    title: str
    lines: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The wait graph: roots on the left, what waits for them to their right."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[str, ...]
    """SVG paths, from who waits to what it waits for."""
    left_out: int
    box_width: int = WIDTH
    box_height: int = ROW - 8


def lines(hang: Hang, *, width: int, most: int | None) -> list[str]:
    """The graph as text: each collective that ranks are inside, and what keeps it, the causes first."""
    shown = hang.waits[:most]
    made = []
    for number, wait in enumerate(shown, 1):
        mark = "cause: " if wait.is_root else ""
        onward = [str(other + 1) for other in wait.waits_for if other < len(shown)]
        keeps = "; ".join(_keeps(wait)) + (f" (see {', '.join(onward)})" if onward else "")
        text = f"{number}. {mark}{_title(wait)}: {_inside(wait)}" + (f"; {keeps}" if keeps else "")
        made += textwrap.wrap(clean(text, 600), width, initial_indent="  ", subsequent_indent="     ")
    left = len(hang.waits) - len(shown) + hang.waits_left_out
    return [*made, *([f"  and {left:,} more collectives"] if left else [])]


def picture(hang: Hang) -> Picture | None:
    """The graph laid out in levels: a node is right of all that it waits for; None where there is nothing to draw."""
    waits = hang.waits[:MOST_BOXES]
    if not waits:
        return None
    level = _levels(waits)
    columns = max(level) + 1
    rows = [0] * columns
    boxes = []
    for wait, at in zip(waits, level, strict=True):
        boxes.append(
            Box(
                x=at * (WIDTH + 2 * GAP),
                y=rows[at] * ROW,
                is_root=wait.is_root,
                title=_called(wait),
                lines=tuple(clean(text, LETTERS) for text in (_whose(wait), _inside(wait), *_keeps(wait))[:LINES]),
                about=clean("; ".join((_title(wait), _inside(wait), *_keeps(wait))), 600),
            )
        )
        rows[at] += 1
    edges = tuple(
        _edge(boxes[i], boxes[onward], back=level[onward] >= level[i])
        for i, wait in enumerate(waits)
        for onward in wait.waits_for
        if onward < len(waits)
    )
    return Picture(
        width=columns * (WIDTH + 2 * GAP) - 2 * GAP + (GAP if any(" C" in edge for edge in edges) else 0),
        height=max(rows) * ROW - 8,
        boxes=tuple(boxes),
        edges=edges,
        left_out=len(hang.waits) - len(waits) + hang.waits_left_out,
    )


def _levels(waits: Sequence[Wait]) -> list[int]:
    """How far from the causes each node is; nodes of a cycle are in a column."""
    level = [0] * len(waits)
    for _ in waits:  # as many rounds as a chain can be long
        for i, wait in enumerate(waits):
            after = [level[onward] for onward in wait.waits_for if onward < len(waits) and not wait.is_root]
            level[i] = min(max([level[i], *(at + 1 for at in after)]), len(waits) - 1) if not wait.is_root else 0
    used = sorted(set(level))
    return [used.index(at) for at in level]


def _edge(box: Box, onward: Box, *, back: bool) -> str:
    """From the left side of who waits to the right side of what it waits for; around the right where that is beside."""
    half = (ROW - 8) // 2
    if back:
        right, y1, y2 = box.x + WIDTH, box.y + half + 6, onward.y + half - 6
        return f"M{right} {y1} C{right + GAP} {y1} {onward.x + WIDTH + GAP} {y2} {onward.x + WIDTH + 4} {y2}"
    return f"M{box.x} {box.y + half} L{onward.x + WIDTH + 4} {onward.y + half}"


def _title(wait: Wait) -> str:
    return f"{_called(wait)} of {_whose(wait)}"


def _called(wait: Wait) -> str:
    return f"{(wait.op or 'collective').replace('_', '-')} {wait.seq}"


def _whose(wait: Wait) -> str:
    names = [_name(group) for group in wait.groups[:1]]
    more = f" and {wait.communicators - 1:,} like it" if wait.communicators > 1 else ""
    return f"{names[0] if names else '?'}{more}"


def _name(group: ProcessGroup) -> str:
    if group.description or not HASH.fullmatch(group.name):
        return group.label
    return f"0x…{group.name[-4:]}" + (f" ({few_runs(group.ranks)})" if group.ranks else "")


def _inside(wait: Wait) -> str:
    return f"{_ranks(wait.waiting)} inside" if wait.waiting else "nobody inside"


def _keeps(wait: Wait) -> list[str]:
    """What the node waits for, in words."""
    told = [f"never launched by {_ranks(wait.missing)}"] if wait.missing else []
    return told + ([f"launched behind another by {_ranks(wait.behind)}"] if wait.behind else [])


def _ranks(ranks: Sequence[int]) -> str:
    text = f"rank{'s' if len(ranks) > 1 else ''} {few_runs(ranks)}"
    return text + (f" ({len(ranks):,})" if len(ranks) > 4 else "")
