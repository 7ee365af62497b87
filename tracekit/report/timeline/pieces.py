"""A rank's ledger lane: compute, and every bubble by its cause, as pieces that tile its time."""

from __future__ import annotations

import numpy as np

from tracekit.intervals import Cover, gaps, subtract, union
from tracekit.metrics.bubbles import CAUSES, Lost
from tracekit.report.causes import FAMILIES, family_of_exposed, family_of_idle, label_of_cause
from tracekit.report.timeline.clock import PlacedRank
from tracekit.report.timeline.kept import Kept
from tracekit.timeline import Int8, Int64

COARSE = 64
"""Added to the cause of a piece that stands for several: it is the one with most time among them."""
FAMILY_CODE = {family.key: code for code, family in enumerate(FAMILIES)}


def _cause_table() -> list[tuple[str, str, str]]:
    table = [("compute", "compute", "compute")]
    for lost, names in CAUSES.items():
        for name in names:
            if lost == Lost.EXPOSED_COPY:
                family = "copy"
            else:
                family = family_of_exposed(name) if lost == Lost.EXPOSED_COMM else family_of_idle(name)
            table.append((name, family, label_of_cause(lost, name)))
    return [*table, ("outside", "outside", "between the steps")]


CAUSE_TABLE = _cause_table()
"""(cause, family, label) by code: compute, the causes of each kind of bubble, and the time between windows."""
COMPUTE, OUTSIDE = 0, len(CAUSE_TABLE) - 1
FAMILY_OF_CODE = np.array([FAMILY_CODE.get(family, len(FAMILIES)) for _, family, _ in CAUSE_TABLE], np.int8)
_FIRST = np.cumsum([1, *(len(names) for names in CAUSES.values())])[:-1]


def code_of(lost: int, cause: str) -> int:
    """Return the code of a cause of one kind of bubble."""
    return int(_FIRST[lost]) + CAUSES[Lost(lost)].index(cause)


def tile(placed: PlacedRank) -> tuple[Int64, Int8]:
    """((n + 1,) edges on the rank's own clock, (n,) causes) of its steps; without steps of its whole window."""
    bubbles, (first, last) = placed.view.bubbles, placed.span
    windows = list(placed.windows.values()) or [placed.span]
    domain = union(*(np.array(column, np.int64) for column in zip(*windows, strict=True)))
    inside = np.isin(bubbles.step, list(placed.windows)) if placed.windows else np.ones(len(bubbles), np.bool_)
    start, end = bubbles.start[inside], bubbles.end[inside]
    code = _FIRST[bubbles.lost[inside]] + bubbles.cause[inside]
    compute = subtract(domain, union(start, end))
    outside = gaps(domain, first, last)
    starts = np.concatenate([start, compute[0], outside[0]])
    codes = np.concatenate([code, np.full(len(compute[0]), COMPUTE), np.full(len(outside[0]), OUTSIDE)])
    order = np.argsort(starts, kind="stable")
    return np.append(starts[order], last), codes[order].astype(np.int8)


def coarse(edges: Int64, codes: Int8, pieces: int) -> tuple[Int64, Int8]:
    """Return the ledger in equal slices, each as the code with most time in it; equal neighbours merged."""
    if len(codes) <= pieces:
        return edges, codes
    cuts = np.linspace(edges[0], edges[-1], pieces + 1).astype(np.int64)
    present = np.unique(codes)
    time = np.stack(
        [Cover.of(edges[:-1][codes == c], edges[1:][codes == c]).within(cuts[:-1], cuts[1:]) for c in present]
    )
    largest: Int8 = present[np.argmax(time, axis=0)]
    heads = np.flatnonzero(np.append(True, largest[1:] != largest[:-1]))
    return np.append(cuts[heads], cuts[-1]), largest[heads]


def crop(edges: Int64, codes: Int8, start: int, end: int) -> tuple[Int64, Int8]:
    """Return the part of the ledger in ``[start, end)``, its first and last piece cut."""
    first = int(np.searchsorted(edges, start, side="right")) - 1
    last = int(np.searchsorted(edges, end, side="left"))
    first, last = max(0, first), min(len(codes), max(last, first + 1))
    return np.clip(edges[first : last + 1], start, end), codes[first:last]


def limited(edges: Int64, codes: Int8, most: int, placed: PlacedRank, kept: Kept) -> tuple[Int64, Int8]:
    """Return at most about ``most`` pieces: the kept steps exactly, all else in slices (marked `COARSE`)."""
    if len(codes) <= most:
        return edges, codes
    windows = sorted(placed.windows[step] for step in kept.steps if step in placed.windows)
    exact = [crop(edges, codes, *window) for window in windows]
    left, span = max(most - sum(len(c) for _, c in exact), most // 8), max(1, int(edges[-1] - edges[0]))
    parts: list[tuple[Int64, Int8]] = []
    at = int(edges[0])
    for (start, end), part in zip([*windows, (int(edges[-1]),) * 2], [*exact, None], strict=True):
        if start > at:
            parts.append(_sliced(*crop(edges, codes, at, start), max(1, left * (start - at) // span)))
        if part is not None:
            parts.append(part)
        at = end
    return np.append(np.concatenate([e[:-1] for e, _ in parts]), edges[-1]), np.concatenate([c for _, c in parts])


def _sliced(edges: Int64, codes: Int8, pieces: int) -> tuple[Int64, Int8]:
    if len(codes) <= pieces:
        return edges, codes
    edges, codes = coarse(edges, codes, pieces)
    return edges, (codes | COARSE).astype(np.int8)
