"""The timeline without script: a still picture of every rank's ledger, and the same in rows of text."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.report.causes import FAMILIES
from tracekit.report.payload import KINDS
from tracekit.report.scene import FAMILY_CODE, RankScene, Scene, coarse
from tracekit.report.words import duration, share

WIDTH, GUTTER, ROW = 1000, 74, 22
_BAR = 14
_SLICES = 400
LONGEST = 12
"""Bubbles in the table."""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One rank: its label and, by family, the outline of all its pieces as SVG path data."""

    label: str
    y: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream in words."""

    rank: int
    stream: int
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
    """Return the rows of the still picture, in an area of `WIDTH` by `ROW` × ranks."""
    return tuple(
        PictureRow(f"rank {rank.rank}", i * ROW, tuple(_paths(rank, scene.span_ns, i * ROW + (ROW - _BAR) // 2)))
        for i, rank in enumerate(scene.ranks)
    )


def _paths(rank: RankScene, span: int, y: int) -> list[tuple[str, str]]:
    edges, families = rank.edges, rank.families
    if len(families) > _SLICES:
        edges, families = coarse(edges, families, _SLICES)
    left = GUTTER + edges[:-1] / span * (WIDTH - GUTTER)
    width = (edges[1:] - edges[:-1]) / span * (WIDTH - GUTTER)
    paths = []
    for family in FAMILIES:
        mine = families == FAMILY_CODE[family.key]
        outline = "".join(
            f"M{x:.1f} {y}h{w:.1f}v{_BAR}h-{w:.1f}z" for x, w in zip(left[mine], width[mine], strict=True)
        )
        if outline:
            paths.append((family.key, outline))
    return paths


def stream_rows(scene: Scene) -> list[StreamRow]:
    """Return every stream that the timeline shows."""
    return [
        StreamRow(
            rank=rank.rank,
            stream=lane.stream,
            kind=KINDS[lane.kind],
            count=lane.count,
            busy=duration(lane.busy_ns),
            share=share(lane.busy_ns, rank.end - rank.start),
        )
        for rank in scene.ranks
        for lane in rank.lanes
    ]


def bubble_rows(scene: Scene) -> list[BubbleRow]:
    """Return the longest stretches without compute over all ranks, longest first."""
    compute = FAMILY_CODE["compute"]
    bubbles = [
        (int(end - start), rank.rank, int(start), FAMILIES[family].label)
        for rank in scene.ranks
        if rank.exact
        for start, end, family in zip(rank.edges[:-1], rank.edges[1:], rank.families, strict=True)
        if family != compute
    ]
    longest = sorted(bubbles, key=lambda bubble: (-bubble[0], bubble[1], bubble[2]))[:LONGEST]
    return [BubbleRow(rank, what, f"+{duration(start)}", duration(ns)) for ns, rank, start, what in longest]
