"""Steps without step ranges: the period in which a rank's main compute stream repeats itself exactly.

A training loop launches the same kernels step after step. What repeats is accepted as steps only where it is training,
covers most of what the stream runs, and comes often enough. It is training where an optimizer is in it, or a backward
pass on a rank that communicates. Inference loops and benchmarks repeat too: they have no steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.steps import StepRanges
from tracekit.timeline import NONE, Kind, Ops, Process, Source

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

PERIOD = "period"
"""The source of steps that were found so."""
OPTIMIZER = re.compile(
    r"multi_tensor_apply|multi_tensor_(?:adam|sgd|lamb|lars)|[Oo]ptimizer|Adam(?![a-z])"
    r"|(?<![A-Za-z])(?:adamw?|sgd|lamb)(?![a-z])|SGD|LAMB|LARS|[Aa]dagrad|[Aa]dafactor|RMSprop|[Ss]hampoo"
)
"""Kernels of torch's foreach and fused optimizers, apex, DeepSpeed and Transformer Engine; ``lambda`` is none."""
BACKWARD = re.compile(r"backward|bwd|dgrad|wgrad|grad_input|gradinput|bprop", re.IGNORECASE)
TAIL_SHARE = 0.05
"""What follows the optimizer for up to this share of a cycle (clearing gradients, logging) belongs to its step."""
SURE_COVERAGE, SURE_REPEATS = 0.9, 5
CANDIDATES = 24
"""So many of the rarest kinds of kernels are asked after what distance they come again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Period:
    """How a rank's main stream repeats itself."""

    anchors: Int64
    """Rows, in the rank's operations, of the first kernel of each step, and of the one that ends the last whole step
    where there is one."""
    whole: int
    """How many steps are whole; one anchor more than this ends the last of them."""
    coverage: float
    """Share of the compared kernels that repeats."""

    @property
    def confidence(self) -> float:
        """0.9 where nearly all that runs repeats, five times or more; else 0.6."""
        return 0.9 if self.coverage >= SURE_COVERAGE and self.whole >= SURE_REPEATS else 0.6


@dataclass(frozen=True, slots=True)
class _Run:
    """The longest exact repetition in a sequence: where it begins, its period, and how many kernels it covers."""

    start: int
    length: int
    covered: int


def find_period(ops: Ops, names: Sequence[str], stream: int | None, thresholds: Thresholds) -> Period | None:
    """The period of a rank's main stream; None where nothing repeats, or what repeats is no training."""
    rows = np.flatnonzero((ops.stream == stream) & (ops.source <= Source.GRAPH) & (ops.call != NONE))
    if len(rows) < thresholds.period_repeats * thresholds.period_kernels:
        return None
    distinct, name = np.unique(ops.name[rows], return_inverse=True)
    texts = [names[i] for i in distinct.tolist()]
    optimizer = np.array([bool(OPTIMIZER.search(text)) for text in texts], np.bool_)
    # A microbatch repeats itself too: where there is an optimizer, a step has one.
    needed = optimizer if optimizer.any() else np.array([bool(BACKWARD.search(text)) for text in texts], np.bool_)
    if not needed.any() or not (optimizer.any() or np.any(ops.kind == Kind.COMM)):
        return None
    grids, grid = np.unique(ops.grid[rows], return_inverse=True)
    stream_kernels = _Kernels(name=name, token=name * len(grids) + grid, optimizer=optimizer[name])
    found = [
        _steps_of(run, rows, picked, stream_kernels, thresholds)
        for picked in (np.arange(len(rows)), _long(ops, rows, name, thresholds))
        if (run := _repetition(stream_kernels.token[picked], name[picked], needed, thresholds)) is not None
    ]
    # What comes in every other step only makes a period of two steps, as long as it is compared.
    return max(filter(None, found), key=lambda period: period.whole, default=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kernels:
    """The kernels of the stream, in order."""

    name: Int64
    token: Int64
    """Name and size together."""
    optimizer: Bool


def _long(ops: Ops, rows: NDArray[np.intp], name: Int64, thresholds: Thresholds) -> NDArray[np.intp]:
    """Which of the kernels to compare where not all of them repeat: those of the names that take most time."""
    time = np.bincount(name, ops.end[rows] - ops.start[rows])
    order = np.argsort(-time, kind="stable")
    long = np.zeros(len(time), np.bool_)
    long[order[np.cumsum(time[order]) - time[order] < thresholds.period_time_share * time.sum()]] = True
    return np.flatnonzero(long[name])


def _repetition(token: Int64, name: Int64, needed: Bool, thresholds: Thresholds) -> _Run | None:
    """The repetition of the shortest period that covers most of the sequence, often enough, and is training."""
    for length in _distances(token, thresholds):
        same = token[length:] == token[:-length]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
        if len(edges) == 0:
            continue
        runs = edges[1::2] - edges[::2]
        longest = int(np.argmax(runs))
        run = _Run(int(edges[2 * longest]), length, int(runs[longest]) + length)
        kinds = np.unique(name[run.start : run.start + length])
        often = run.covered >= max(thresholds.period_repeats * length, thresholds.period_coverage * len(token))
        if often and len(kinds) >= thresholds.period_kernels and needed[kinds].any():
            return run
    return None


def _distances(token: Int64, thresholds: Thresholds) -> list[int]:
    """After how many kernels the rarest kinds mostly come again, shortest first."""
    _, of, counts = np.unique(token, return_inverse=True, return_counts=True)
    by_kind, ends = np.argsort(of, kind="stable"), np.cumsum(counts)
    rarest = np.argsort(counts, kind="stable")
    found: set[int] = set()
    for kind in rarest[counts[rarest] >= thresholds.period_repeats][:CANDIDATES].tolist():
        at = by_kind[ends[kind] - counts[kind] : ends[kind]]
        for a_cycle in range(1, len(at) // thresholds.period_repeats + 1):
            usual, times = np.unique(at[a_cycle:] - at[:-a_cycle], return_counts=True)
            if 2 * int(times.max()) > len(at) - a_cycle:
                found.add(int(usual[np.argmax(times)]))
                break
    return sorted(found)


def _steps_of(
    run: _Run, rows: NDArray[np.intp], picked: NDArray[np.intp], kernels: _Kernels, thresholds: Thresholds
) -> Period | None:
    """Where steps begin: behind the optimizer; where the repetition begins, if that is hardly later, or there is none.

    ``rows`` are the stream's kernels, of which ``picked`` were compared.
    """
    phase = _behind_optimizer(kernels.optimizer[picked[run.start : run.start + run.length]])
    if run.length - phase <= TAIL_SHARE * run.length:
        phase = 0
    starts = np.arange(run.start + phase, run.start + run.covered + 1, run.length)
    whole = int(np.count_nonzero(starts + run.length <= run.start + run.covered))
    starts = starts[: whole + 1]
    starts = starts[starts < len(picked)]
    if whole < thresholds.period_repeats:
        return None
    at = picked[starts] - _common_lead(kernels.token, picked[starts], np.append(-1, picked)[starts] + 1)
    return Period(anchors=rows[at], whole=whole, coverage=run.covered / len(picked))


def _common_lead(token: Int64, at: NDArray[np.intp], lowest: NDArray[np.intp]) -> int:
    """How many kernels before each step's first compared one all steps have alike, none of them before ``lowest``."""
    lead = 0
    while np.all(at - lead > lowest) and len(np.unique(token[at - lead - 1])) == 1:
        lead += 1
    return lead


def _behind_optimizer(optimizer: Bool) -> int:
    """Place behind the last optimizer kernel of a cycle, which may begin anywhere; 0 without any."""
    at = np.flatnonzero(optimizer)
    if len(at) == 0:
        return 0
    gaps = np.diff(np.append(at, at[0] + len(optimizer)))
    return (int(at[np.argmax(gaps)]) + 1) % len(optimizer)


def period_ranges(ops: Ops, process: Process, period: Period) -> StepRanges | None:
    """The host's part of each step: from the launch of its first kernel to the next step's. None if out of order."""
    calls = ops.call[period.anchors]
    start = process.calls.start[calls]
    if np.any(start[1:] <= start[:-1]):
        return None
    return StepRanges(
        source=PERIOD,
        number=np.arange(len(start)),
        start=start,
        end=np.append(start[1:], process.calls.end.max() + 1),
        thread=int(process.calls.thread[calls[0]]),
        numbered=False,
        confidence=period.confidence,
        whole=period.whole,
    )
