"""The timeline without script: a still picture of every rank's ledger, and the same in rows of text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.report.causes import FAMILIES
from tracekit.report.timeline.lanes import LANE_KINDS
from tracekit.report.timeline.pieces import (
    CAUSE_TABLE,
    COARSE,
    COMPUTE,
    FAMILY_CODE,
    FAMILY_OF_CODE,
    OUTSIDE,
    coarse,
    crop,
)
from tracekit.report.timeline.scene import RankScene, Scene
from tracekit.report.words import duration, share

WIDTH, GUTTER, ROW = 1000, 74, 22
_BAR = 14
_SLICES = 400
RANKS = 32
"""Rows of the picture."""
LONGEST = 12
"""Bubbles in the table."""
STREAMS = 400
"""Rows of the table of streams."""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One rank: its label and, by family, the outline of all its pieces as SVG path data."""

    label: str
    y: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One lane in words."""

    rank: int
    lane: str
    kind: str
    count: int
    busy: str
    share: str


@dataclass(frozen=True, slots=True)
class BubbleRow:
    """One of the longest stretches in which a rank does not compute."""

    rank: int
    what: str
    at: str
    lasts: str


def picture(scene: Scene) -> tuple[PictureRow, ...]:
    """Return the rows of the still picture of the window shown first, in an area of `WIDTH` by `ROW` × ranks."""
    return tuple(
        PictureRow(f"rank {rank.rank}", i * ROW, tuple(_paths(rank, scene.focus, i * ROW + (ROW - _BAR) // 2)))
        for i, rank in enumerate(scene.ranks[:RANKS])
    )


def _paths(rank: RankScene, window: tuple[int, int], y: int) -> list[tuple[str, str]]:
    edges, codes = crop(rank.edges, FAMILY_OF_CODE[rank.codes & ~COARSE], *window)
    edges, codes = coarse(edges, codes, _SLICES)
    scale = (WIDTH - GUTTER) / max(1, window[1] - window[0])
    left, width = GUTTER + (edges[:-1] - window[0]) * scale, np.diff(edges) * scale
    paths = []
    for family in FAMILIES:
        mine = codes == FAMILY_CODE[family.key]
        outline = "".join(
            f"M{x:.1f} {y}h{w:.1f}v{_BAR}h-{w:.1f}z" for x, w in zip(left[mine], width[mine], strict=True)
        )
        if outline:
            paths.append((family.key, outline))
    return paths


def stream_rows(scene: Scene) -> list[StreamRow]:
    """Return the streams and threads that the timeline shows, the first `STREAMS` of them."""
    return [
        StreamRow(
            rank=rank.rank,
            lane=lane.label,
            kind=LANE_KINDS[lane.kind],
            count=lane.count,
            busy=duration(lane.busy_ns),
            share=share(lane.busy_ns, scene.span_ns),
        )
        for rank in scene.ranks
        for lane in rank.lanes
        if LANE_KINDS[lane.kind] != "nvtx"
    ][:STREAMS]


def bubble_rows(scene: Scene) -> list[BubbleRow]:
    """Return the longest stretches without compute in the window shown first, over all ranks, longest first."""
    start, end = scene.focus
    found: list[tuple[int, int, int, str]] = []
    for rank in scene.ranks:
        edges, codes = crop(rank.edges, rank.codes, start, end)
        lasts = np.where((codes == COMPUTE) | (codes == OUTSIDE) | (codes >= COARSE), 0, np.diff(edges))
        for i in np.argsort(-lasts, kind="stable")[:LONGEST].tolist():
            if lasts[i]:
                found.append((int(lasts[i]), rank.rank, int(edges[i]) - start, CAUSE_TABLE[int(codes[i])][2]))
    longest = sorted(found, key=lambda bubble: (-bubble[0], bubble[1], bubble[2]))[:LONGEST]
    return [BubbleRow(rank, what, f"+{duration(at)}", duration(ns)) for ns, rank, at, what in longest]
