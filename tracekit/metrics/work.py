"""A rank's work: the compute that communication can hide behind."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.timeline import Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

OPTIMIZER = PHASES.index("optimizer")
_FEEDERS = re.compile("CatArrayBatchedCopy|split_with_sizes_copy|chunk_cat")
"""Copies that fill or empty the buffers of collectives (FSDP): beside the main stream they hide nothing."""
_OPTIMIZERS = re.compile("multi_tensor_apply|[Aa]dam|FusedOptimizer|lamb_|LAMB|Adafactor|adafactor|[Mm]uon")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """A rank's compute but for what serves collectives, sorted by start.

    Left out are copies that feed collectives, and kernels in line with collectives on a stream that is no compute
    stream: they wait for the collective before them (gradients are added up behind their reduction) and hide nothing.
    """

    row: NDArray[np.intp]
    start: Int64
    end: Int64
    cover: Cover
    optimizer: Bool
    streams: tuple[int, ...]
    """The compute streams: those that carry a good share of the compute."""


def work_of(view: RankView, thresholds: Thresholds) -> Work:
    """The rank's work."""
    ops = view.ops
    feeds, updates = (_named(view, pattern) for pattern in (_FEEDERS, _OPTIMIZERS))
    compute = (ops.kind == Kind.COMPUTE) & ~(feeds & (ops.stream != view.main_stream))
    streams = _compute_streams(view, np.flatnonzero(compute), thresholds)
    in_line = np.setdiff1d(ops.stream[view.collectives.row], streams)
    row = np.flatnonzero(compute & ~np.isin(ops.stream, in_line))
    start, end = ops.start[row], ops.end[row]
    return Work(
        row=row,
        start=start,
        end=end,
        cover=Cover.of(start, end),
        optimizer=updates[row] | (view.labels.phase[row] == OPTIMIZER),
        streams=tuple(streams),
    )


def _named(view: RankView, pattern: re.Pattern[str]) -> Bool:
    """(operations,) whose name the pattern finds; asked once for each distinct name."""
    distinct, inverse = np.unique(view.ops.name, return_inverse=True)
    found = np.array([pattern.search(view.names[i]) is not None for i in distinct.tolist()], np.bool_)
    result: Bool = found[inverse] if len(distinct) else np.zeros(0, np.bool_)
    return result


def _compute_streams(view: RankView, rows: NDArray[np.intp], thresholds: Thresholds) -> list[int]:
    """The streams that carry a good share of the compute."""
    ops = view.ops
    streams, inverse = np.unique(ops.stream[rows], return_inverse=True)
    time = np.zeros(len(streams), np.int64)
    np.add.at(time, inverse, ops.end[rows] - ops.start[rows])
    kept: list[int] = streams[time >= thresholds.compute_stream_share * max(int(time.sum()), 1)].tolist()
    return kept


HOPS = 8
"""Copies and small kernels, one behind the other, between a collective and the work before or after it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Serving:
    """What is neither communication nor work: copies, and kernels that serve collectives. Two orders of the same."""

    by_end: tuple[Int64, Int64]
    """(starts, ends), sorted by end."""
    by_start: tuple[Int64, Int64]
    """Likewise, sorted by start."""

    @classmethod
    def of(cls, view: RankView, work: Work) -> Serving:
        """All such operations of a rank."""
        ops = view.ops
        serves = ops.kind != Kind.COMM
        serves[work.row] = False
        start, end = ops.start[serves], ops.end[serves]
        order = np.argsort(end, kind="stable")
        return cls(by_end=(start[order], end[order]), by_start=(start, end))

    def begin(self, t: Int64, earliest: Int64 | int, thresholds: Thresholds) -> Int64:
        """Where a chain of them that ends at t began, each started at ``earliest`` or later; t where there is none."""
        start, end = self.by_end
        t = t.copy()
        for _ in range(HOPS if len(start) else 0):
            at = np.searchsorted(end, t + thresholds.clock_tolerance_ns, side="right") - 1
            before = np.maximum(at, 0)
            hop = (at >= 0) & (t - end[before] <= thresholds.handover_ns) & (start[before] < t)
            hop &= start[before] >= earliest
            if not hop.any():
                break
            t[hop] = start[before[hop]]
        return t

    def finish(self, t: Int64, thresholds: Thresholds) -> Int64:
        """Where a chain of them that begins at t has ended; t where there is none."""
        start, end = self.by_start
        t = t.copy()
        for _ in range(HOPS if len(start) else 0):
            at = np.searchsorted(start, t - thresholds.clock_tolerance_ns)
            after = np.minimum(at, len(start) - 1)
            hop = (at < len(start)) & (start[after] - t <= thresholds.handover_ns) & (end[after] > t)
            if not hop.any():
                break
            t[hop] = end[after[hop]]
        return t
