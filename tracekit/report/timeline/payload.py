"""The scene as it travels inside the page: a small header as JSON, columns as deflated numbers in base64.

The reader of this format is static/timeline/unpack.js. A column begins with a byte that says how it is written:

0. constant: one varint, the value of all entries (columns without entries, too, with value 0);
1. plain: a varint for each entry, whole numbers >= 0;
2. differences: a zigzag varint (2d for d >= 0, -2d - 1 below) for each entry less the one before (the first less 0).

A varint has seven bits a byte, low bits first, the high bit set on all bytes but the last. In order: for each kind of
collective its ``seqs``; for each rank the lengths of the ledger's pieces, their codes, the steps' numbers, starts and
lengths; then for each of its lanes starts (the first counts from the lane's ``base``), lengths, the columns that
`LANE_COLUMNS` has for its kind, and the occupancy where the lane has one.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.kernels import describe_kernel
from tracekit.metrics.phases import PHASES
from tracekit.report.causes import FAMILIES
from tracekit.report.timeline.lanes import LANE_KINDS, Lane
from tracekit.report.timeline.pieces import CAUSE_TABLE, COARSE
from tracekit.report.timeline.scene import CollectiveKind, Place, RankScene, Scene
from tracekit.report.words import clean
from tracekit.timeline import Int64

LANE_COLUMNS = {
    "compute": ("name", "kind", "module", "phase", "call", "wait", "collective", "bytes"),
    "comm": ("name", "kind", "module", "phase", "call", "wait", "collective", "bytes"),
    "copy": ("name", "kind", "module", "phase", "call", "wait", "collective", "bytes"),
    "host": ("name",),
    "nvtx": ("name", "kind"),
}
"""Columns by kind of lane.

``name`` counts in the header's names; ``kind`` is a `Kind`, of an NVTX range what it names (0 step, 1 phase, 2 module).
From 1, 0 where not known: ``module`` and ``phase`` in the header's lists, ``call`` among the rank's kept CUDA calls in
the order of its lanes, ``collective`` through all kinds; ``wait`` (ns) and ``bytes``, each with 1 added.
"""
BYTES_AN_EVENT = 8
"""About what one takes in the page: the sample captures and a made-up job of a million kernels took 6 to 8."""
_NAME_LIMIT = 400
_CONSTANT, _PLAIN, _DIFFERENCES = 0, 1, 2
_ORDERED = frozenset({"call", "collective"})
"""Columns whose entries mostly count up."""


def header(scene: Scene) -> dict[str, Any]:
    """Return what `columns` needs to be read, and the names, as a JSON-ready value."""
    return {
        "step": scene.step,
        "steady": list(scene.steady),
        "cutOff": list(scene.cut_off),
        "origin": scene.origin_ns,
        "span": scene.span_ns,
        "focus": list(scene.focus),
        "aligned": scene.aligned,
        "stand": None
        if scene.stand is None
        else {"start": scene.stand.start, "end": scene.stand.end, "ns": scene.stand.length_ns},
        "families": [{"key": family.key, "label": family.label} for family in FAMILIES],
        "causes": [list(row) for row in CAUSE_TABLE],
        "coarse": COARSE,
        "kinds": list(LANE_KINDS),
        "columns": LANE_COLUMNS,
        "phaseNames": list(PHASES),
        "phases": [list(column) for column in scene.phases],
        "names": [_name(name) for name in scene.names],
        "modules": [clean(module, _NAME_LIMIT) for module in scene.modules],
        "collectives": [_collective(kind) for kind in scene.collectives],
        "places": [_place(place) for place in scene.places],
        "ranks": [_rank_header(rank) for rank in scene.ranks],
    }


def _name(name: str) -> list[str]:
    """Return a name in short, in full, and which of three blues a compute kernel of that name gets."""
    full = clean(name, _NAME_LIMIT)
    known = describe_kernel(name)
    short = known.op.replace("_", "-") if known.op not in {None, "unknown"} else known.short
    return [clean(short), full, known.family]


def _collective(kind: CollectiveKind) -> dict[str, Any]:
    return {
        "op": clean(kind.op.replace("_", "-"), 40),
        "communicator": clean(kind.communicator, 40) if kind.communicator is not None else None,
        "ranks": list(kind.ranks),
        "count": len(kind.seqs),
        "factor": kind.bus_factor,
        "peak": kind.peak_gbps,
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "rule": clean(place.rule, 12),
        "title": clean(place.title),
        "rank": place.rank,
        "start": place.start,
        "end": place.end,
        "cause": place.cause,
    }


def _rank_header(rank: RankScene) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "pending": [[mark.start, clean(mark.label, 60)] for mark in rank.pending],
        "start": int(rank.edges[0]),
        "pieces": len(rank.codes),
        "steps": len(rank.steps),
        "lanes": [
            {
                "kind": LANE_KINDS[lane.kind],
                "label": lane.label,
                "count": len(lane.start),
                "base": int(lane.start[0]) if len(lane.start) else 0,
                "buckets": 0 if lane.occupancy is None else len(lane.occupancy),
            }
            for lane in rank.lanes
        ],
    }


def columns(scene: Scene) -> str:
    """Return all columns of the scene: varints, deflated, base64."""
    return pack(b"".join(_columns(scene)))


def pack(raw: bytes) -> str:
    """Return bytes deflated (zlib format) and in base64."""
    return base64.b64encode(zlib.compress(raw, 9 if len(raw) < 1_000_000 else 6)).decode("ascii")


def _columns(scene: Scene) -> Iterator[bytes]:
    for kind in scene.collectives:
        yield differences(kind.seqs)
    for rank in scene.ranks:
        number, start, end = np.array(rank.steps, np.int64).reshape(-1, 3).T
        yield plain(np.diff(rank.edges))
        yield plain(rank.codes.astype(np.int64))
        yield differences(number)
        yield differences(start)
        yield plain(end - start)
        for lane in rank.lanes:
            yield from _lane(lane)


def _lane(lane: Lane) -> Iterator[bytes]:
    yield plain(np.diff(lane.start, prepend=lane.start[:1]))
    yield plain(lane.end - lane.start)
    for name in LANE_COLUMNS[LANE_KINDS[lane.kind]]:
        yield (differences if name in _ORDERED else plain)(lane.columns[name])
    if lane.occupancy is not None:
        yield plain(lane.occupancy.astype(np.int64))


def plain(values: Int64) -> bytes:
    """Return whole numbers >= 0 as a column."""
    if len(values) == 0 or np.all(values == values[0]):
        return bytes([_CONSTANT]) + varints(values[:1] if len(values) else np.zeros(1, np.int64))
    return bytes([_PLAIN]) + varints(values)


def differences(values: Int64) -> bytes:
    """Return whole numbers as a column of differences; constant ones as a constant."""
    if len(values) == 0 or (values[0] >= 0 and np.all(values == values[0])):
        return plain(values)
    steps = np.diff(values, prepend=0)
    return bytes([_DIFFERENCES]) + varints(np.where(steps >= 0, 2 * steps, -2 * steps - 1))


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
