"""The scene as it travels inside the page: a small header as JSON, columns as deflated varints in base64.

The reader of this format is static/unpack.js. Every column holds whole numbers >= 0, each written as a varint (seven
bits a byte, low bits first, the high bit set on all bytes but the last). In order, for each rank: the lengths of the
ledger's pieces, their families; then for each lane: the differences of starts (the first counts from the lane's
``base``), lengths, names, kinds, and the occupancy where the lane has one.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.kernels import describe_kernel
from tracekit.report.causes import FAMILIES
from tracekit.report.scene import RankScene, Scene
from tracekit.report.words import clean
from tracekit.timeline import Int64

_NAME_LIMIT = 400
KINDS = ("compute", "comm", "copy")
"""By `Kind`."""


def header(scene: Scene) -> dict[str, Any]:
    """Return what `columns` needs to be read, and the names, as a JSON-ready value."""
    return {
        "step": scene.step,
        "span": scene.span_ns,
        "aligned": scene.aligned,
        "families": [{"key": family.key, "label": family.label} for family in FAMILIES],
        "kinds": list(KINDS),
        "names": [_name(name) for name in scene.names],
        "ranks": [_rank_header(rank) for rank in scene.ranks],
    }


def _name(name: str) -> list[str]:
    """Return a name in short, in full, and which of three blues a compute kernel of that name gets."""
    full = clean(name, _NAME_LIMIT)
    known = describe_kernel(name)
    short = known.op.replace("_", "-") if known.op not in {None, "unknown"} else known.short
    return [clean(short), full, known.family]


def _rank_header(rank: RankScene) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "start": rank.start,
        "end": rank.end,
        "pieces": len(rank.families),
        "exact": rank.exact,
        "lanes": [
            {
                "stream": str(lane.stream),
                "kind": KINDS[lane.kind],
                "count": len(lane.start),
                "base": int(lane.start[0]) if len(lane.start) else 0,
                "buckets": 0 if lane.occupancy is None else len(lane.occupancy),
            }
            for lane in rank.lanes
        ],
    }


def columns(scene: Scene) -> str:
    """Return all columns of the scene: varints, deflated, base64."""
    raw = b"".join(varints(column) for column in _columns(scene))
    return pack(raw)


def pack(raw: bytes) -> str:
    """Return bytes deflated (zlib format) and in base64."""
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _columns(scene: Scene) -> Iterator[Int64]:
    for rank in scene.ranks:
        yield np.diff(rank.edges)
        yield rank.families.astype(np.int64)
        for lane in rank.lanes:
            yield np.diff(lane.start, prepend=lane.start[:1])
            yield lane.end - lane.start
            yield lane.name
            yield lane.event_kind.astype(np.int64)
            if lane.occupancy is not None:
                yield lane.occupancy.astype(np.int64)


def varints(values: Int64) -> bytes:
    """Return whole numbers >= 0 as varints, one after the other.

    Raises:
        ValueError: a number is negative.
    """
    if len(values) == 0:
        return b""
    if values.min() < 0:
        raise ValueError("varints hold no negative numbers")
    rest = values.astype(np.uint64)
    groups: list[NDArray[np.uint8]] = []
    present: list[NDArray[np.bool_]] = []
    more = np.ones(len(values), np.bool_)
    while more.any():
        groups.append((rest & np.uint64(127)).astype(np.uint8))
        present.append(more)
        rest = rest >> np.uint64(7)
        more = rest > 0
    table, kept = np.stack(groups, axis=1), np.stack(present, axis=1)
    table[:, :-1] |= np.where(kept[:, 1:], 128, 0).astype(np.uint8)
    return table[kept].tobytes()
