"""One rank as the rules see it: its operations row by row, each with its labels and its bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.accounting import Covers
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import Bubbles
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.labels import Vocabulary, label_calls
from tracekit.metrics.matching import Matched
from tracekit.metrics.phases import PHASES
from tracekit.metrics.steps import StepRanges
from tracekit.metrics.waits import RankWaits
from tracekit.timeline import NONE, Ops, Process

Int8 = NDArray[np.int8]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpLabels:
    """What NVTX says about the launch of each operation of a rank; (operations,) columns."""

    phase: Int64
    """Index into `PHASES`; NONE outside of phase ranges, and where the launch is not known."""
    module: Int64
    """Index into ``modules``, or NONE."""
    modules: tuple[str, ...]
    step: Int64
    """Number of the step whose range the operation was launched in, or NONE."""


def label_ops(ops: Ops, process: Process, words: Vocabulary, marks: StepRanges | None, thread: int | None) -> OpLabels:
    """Label the operations of one rank; ``thread`` speaks for launches of silent threads."""
    modules = tuple(sorted({a.module for a in words.annotations if a and a.module}))
    index = {name: i for i, name in enumerate(modules)}
    phase = [PHASES.index(a.phase) if a and a.phase in PHASES else NONE for a in words.annotations]
    module = [index[a.module] if a and a.module else NONE for a in words.annotations]
    known = ops.call != NONE
    call = ops.call[known]

    def of_ops(of_call: Int64) -> Int64:
        column = np.full(len(ops), NONE, np.int64)
        column[known] = of_call[call]
        return column

    def of_ranges(codes: list[int]) -> Int64:
        code = np.array(codes, np.int64)[words.of] if codes else np.empty(0, np.int64)
        return of_ops(label_calls(process, code != NONE, code, thread))

    step = np.full(len(process.calls), NONE, np.int64)
    if marks is not None:
        inside = marks.containing(process.calls.start)
        step = np.where(inside != NONE, marks.number[np.maximum(inside, 0)], NONE)
    return OpLabels(phase=of_ranges(phase), module=of_ranges(module), modules=modules, step=of_ops(step))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankView:
    """What one rank did, for rules that look at single operations."""

    rank: int
    names: Sequence[str]
    """`Timeline.names`."""
    ops: Ops
    process: Process
    covers: Covers
    main_stream: int | None
    collectives: RankCollectives
    labels: OpLabels
    bubbles: Bubbles
    activity: Activity
    """What the process's host threads did."""
    parallel: Int8
    """Which parallelism each communication operation serves: index into `PARALLELISMS`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Detail:
    """What lies behind an analysis row by row, for renderers that draw single operations."""

    views: tuple[RankView, ...]
    """In the order of the analysis' ranks."""
    matched: tuple[Matched, ...]
    """Which collectives are one across ranks; its members are positions in ``views``."""
    waits: tuple[RankWaits, ...]
    """By rank: when each of its collectives waited for a peer."""
