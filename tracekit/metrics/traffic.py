"""What a rank's collectives of parameters and gradients move in a step, and in which part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.dimensions import of_parameters
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.results import Steady
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]

FORWARD, BACKWARD, AFTER = "forward", "backward", "after"
"""Parts of a step: before and during backward, and from the last reduction (or the optimizer) on."""
PARTS = (FORWARD, BACKWARD, AFTER)
REDUCTIONS = ("reduce_scatter", "all_reduce", "reduce")
SMALL_SHARE = 0.01
"""Reductions of less than this share of all bytes (a loss, a norm of gradients) say nothing about sharding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """All collectives of one communicator and op in one part of the step; a step and rank, mean over both."""

    communicator: str | None
    op: str
    part: str
    count: float
    bytes: float | None
    """Of the full tensors; None where a size is unknown."""
    weight: float
    """Bytes where all sizes of the capture are known, else transfer time: for shares only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The flows of a job."""

    flows: tuple[Flow, ...]
    by_bytes: bool
    """Whether weights are bytes."""
    phases_known: bool
    """Whether parts come from NVTX; else from where the reductions are."""
    steps: int
    """Steps that it was taken from."""

    def weight(self, *ops: str, part: str | None = None, communicators: Sequence[str | None] | None = None) -> float:
        """Sum of weights."""
        return sum(
            flow.weight
            for flow in self.flows
            if flow.op in ops
            and (part is None or flow.part == part)
            and (communicators is None or flow.communicator in communicators)
        )


def traffic(views: Sequence[RankView], steady: Steady | None) -> Traffic:
    """Flows of the steady steps; without steps of the whole capture, with one part for all of it."""
    by_bytes = all(bool(np.all(view.collectives.full_bytes != NONE)) for view in views)
    sums: dict[tuple[str | None, str, str], NDArray[np.float64]] = {}
    windows, known = 0, True
    for view in views:
        found = view.collectives
        step, ours = view.labels.step[found.row], of_parameters(view)
        for number in steady.steps if steady else (NONE,):
            rows = np.flatnonzero((step == number) & ours) if steady else np.flatnonzero(ours)
            if steady and not len(rows) and number not in view.labels.step:
                continue
            windows += 1
            part, told = _parts(view, rows)
            known &= told
            _add(sums, view, rows, part, by_bytes=by_bytes)
    flows = [
        Flow(
            communicator=key[0],
            op=key[1],
            part=key[2],
            count=count / windows,
            bytes=None if unsized else size / windows,
            weight=weight / windows,
        )
        for key, (count, size, weight, unsized) in sums.items()
    ]
    return Traffic(flows=tuple(flows), by_bytes=by_bytes, phases_known=known, steps=len(steady.steps) if steady else 0)


def _add(
    sums: dict[tuple[str | None, str, str], NDArray[np.float64]],
    view: RankView,
    rows: NDArray[np.intp],
    part: Int64,
    *,
    by_bytes: bool,
) -> None:
    """Add one step's collectives to the (count, bytes, weight, how many lack their size) of their flow."""
    found = view.collectives
    size = found.full_bytes[rows]
    weight = size if by_bytes else found.duration[rows]
    columns = np.stack([np.ones(len(rows), np.int64), np.maximum(size, 0), weight, size == NONE], axis=1)
    flow = found.of[rows] * len(PARTS) + part
    for key in np.unique(flow).tolist():
        communicator, op = found.group[key // len(PARTS)]
        cell = sums.setdefault((communicator, op, PARTS[key % len(PARTS)]), np.zeros(4))
        cell += columns[flow == key].sum(axis=0)


def _parts(view: RankView, rows: NDArray[np.intp]) -> tuple[Int64, bool]:
    """(index into `PARTS` for each collective, whether NVTX tells it).

    Without phases the reductions tell: what starts before the first of weight is forward, after the last is after.
    """
    found = view.collectives
    reduces = np.isin(found.of[rows], [g for g, (_, op) in enumerate(found.group) if op in REDUCTIONS])
    phase = view.labels.phase[found.row[rows]]
    if len(rows) and np.mean(phase == NONE) <= 0.5:
        # Outside of all phases: before backward it belongs to forward, later to what comes after.
        begun = np.maximum.accumulate((phase == PHASES.index("backward")) | reduces)
        part = np.where(begun, PARTS.index(AFTER), PARTS.index(FORWARD))
        for name, code in (("forward", FORWARD), ("backward", BACKWARD), ("optimizer", AFTER)):
            part[phase == PHASES.index(name)] = PARTS.index(code)
        return part, True
    size = np.where(found.full_bytes[rows] != NONE, found.full_bytes[rows], found.duration[rows])
    heavy = np.flatnonzero(reduces & (size >= SMALL_SHARE * max(int(size.sum()), 1)))
    if not len(heavy):
        return np.full(len(rows), PARTS.index(FORWARD)), False
    at = np.arange(len(rows))  # rows are sorted by start
    part = np.where(at < heavy[0], PARTS.index(FORWARD), PARTS.index(BACKWARD))
    part[at > heavy[-1]] = PARTS.index(AFTER)
    return part, False
