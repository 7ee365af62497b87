"""TK113: kernels that run slower beside a collective. What that costs is hidden in compute time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.timeline import Kind

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slowed:
    """Kernels of one rank that a collective slows down."""

    hidden_ns: int
    """Σ over those that run beside one: length less the median length alone."""
    alone_ns: float
    """Σ of that median over the same kernels."""
    count: int


class Contention:
    """TK113: the same kernel takes longer under a collective than alone."""

    code = "TK113"
    title = "Collectives slow down the compute beside them"

    def check(self, context: Context) -> Iterable[Finding]:
        """Compares kernels of one name and grid; the cost is compute time, not exposed time."""
        limits = context.thresholds
        slowed = {view.rank: _slowed(view, *_windows(context, view), limits) for view in context.views}
        windows = sum(len([s for s in r.steps if s.step in set(context.steps)]) or 1 for r in context.ranks)
        hidden = sum(each.hidden_ns for each in slowed.values())
        cost = hidden // windows
        if context.step.wall_ns == 0 or cost < limits.warning_share * context.step.wall_ns:
            return
        ratio = 1 + hidden / sum(each.alone_ns for each in slowed.values())
        yield Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"Kernels take {ratio:.2f} x as long beside a collective as alone",
            ranks=tuple(rank for rank, each in slowed.items() if each.hidden_ns > 0),
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="same kernels, beside a collective over alone",
                    value=round(ratio, 4),
                    unit="x",
                    threshold=limits.slow_compute_ratio,
                ),
                Evidence(metric="hidden cost, inside compute time", value=hidden, unit="ns in all"),
                Evidence(metric="kernels slowed", value=sum(each.count for each in slowed.values()), unit="kernels"),
            ),
            fix=(
                "Give NCCL fewer SMs (NCCL_MAX_CTAS; before 2.17 NCCL_MAX_NCHANNELS), or move data with copy engines "
                "(NCCL_CTA_POLICY=2 with symmetric memory), and compare the step time: overlap that hides more than "
                "this costs is still worth it."
            ),
        )


def _windows(context: Context, view: RankView) -> tuple[Int64, Int64]:
    """(starts, ends) of the rank's steady steps; without steps its whole window."""
    (rank,) = [rank for rank in context.ranks if rank.rank == view.rank]
    kept = set(context.steps)
    spans = [(s.start_ns, s.end_ns) for s in rank.steps if s.step in kept] or [(rank.start_ns, rank.end_ns)]
    start, end = zip(*spans, strict=True)
    return np.array(start, np.int64), np.array(end, np.int64)


def _slowed(view: RankView, start: Int64, end: Int64, limits: Thresholds) -> _Slowed:
    ops = view.ops
    inside = np.searchsorted(start, ops.start, side="right") - 1
    counted = (inside >= 0) & (ops.start < end[np.maximum(inside, 0)])
    rows = np.flatnonzero((ops.kind == Kind.COMPUTE) & counted & (ops.end > ops.start))
    length = ops.end[rows] - ops.start[rows]
    covered = view.covers.comm.within(ops.start[rows], ops.end[rows]) / length
    # A kernel that a collective touches only in part is neither beside it nor alone.
    beside, alone = covered >= limits.beside_share, covered == 0
    key = ops.name[rows].astype(np.int64) * (1 << 32) + (ops.grid[rows] & 0xFFFFFFFF)
    ours = beside | alone
    _, group = np.unique(key[ours], return_inverse=True)
    beside, length = beside[ours], length[ours]
    kinds = int(group.max(initial=-1)) + 1
    with_it, without = (
        _Lengths.of(group[beside], length[beside], kinds),
        _Lengths.of(group[~beside], length[~beside], kinds),
    )
    enough = np.minimum(with_it.count, without.count) >= limits.contention_kernels
    median = without.quantile(0.5)
    # Lengths that differ among kernels alone are different work under one name.
    same_work = without.quantile(0.9) <= limits.same_work_ratio * without.quantile(0.1)
    slow = enough & same_work & (with_it.quantile(0.5) >= limits.slow_compute_ratio * median)
    count, alone_ns = with_it.count[slow], (median * with_it.count)[slow]
    return _Slowed(
        hidden_ns=int(np.rint(with_it.total[slow] - alone_ns).sum()),
        alone_ns=float(alone_ns.sum()),
        count=int(count.sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lengths:
    """Lengths of kernels by what they are, ns."""

    sorted_ns: Int64
    """By kind of kernel, then by length."""
    first: Int64
    """(kinds,) where each kind begins."""
    count: Int64
    """(kinds,)"""
    total: Int64
    """(kinds,)"""

    @classmethod
    def of(cls, kind: Int64, length: Int64, kinds: int) -> _Lengths:
        count = np.bincount(kind, minlength=kinds)
        first = np.cumsum(count) - count
        ordered = length[np.lexsort((length, kind))]
        before = np.append(0, np.cumsum(ordered))
        return cls(sorted_ns=ordered, first=first, count=count, total=before[first + count] - before[first])

    def quantile(self, q: float) -> NDArray[np.float64]:
        """(kinds,) with linear interpolation, as `numpy.percentile` has it; 0 for a kind without kernels."""
        if len(self.sorted_ns) == 0:
            return np.zeros(len(self.count))
        place = q * np.maximum(self.count - 1, 0)
        low = np.floor(place).astype(np.int64)
        last = len(self.sorted_ns) - 1
        below = self.sorted_ns[np.minimum(self.first + low, last)]
        above = self.sorted_ns[np.minimum(self.first + np.minimum(low + 1, np.maximum(self.count - 1, 0)), last)]
        return np.where(self.count > 0, below + (above - below) * (place - low), 0.0)
