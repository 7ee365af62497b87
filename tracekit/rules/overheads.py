"""TK410 to TK413: work that is done again, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover
from tracekit.kernels import describe_kernel
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.results import Evidence, Finding, Severity, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss, milliseconds
from tracekit.timeline import NONE, Kind, Source

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(phase) for phase in ("forward", "backward", "optimizer"))
COMPILING = ("(dynamo_timed)", "compile_inner", "compile_fx")
"""Parts of names of ranges that torch.compile opens while it compiles."""
FEWEST = 3
"""What fewer steps take says nothing about the ones before them: one can be cut off, or the odd one."""
NO_PHASES = "no range tells forward from backward"


class Recompilation:
    """TK410: torch.compile compiles again in steady steps."""

    code = "TK410"
    title = "The model is compiled again during training"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for idle time inside the ranges that torch.compile opens while it compiles."""
        loss = Loss.of(context, _compiling)
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        yield loss.report(
            self.code,
            f"torch.compile compiles again in {len(loss.steps) or 1} of {len(context.steps) or 1} steps",
            [Evidence(metric="idle while it compiles", value=milliseconds(loss.cost_ns), unit="ms a step")],
            "TORCH_LOGS=recompiles says why: mostly shapes that change. Pad or bucket sequences, or mark the dimension "
            "with torch._dynamo.mark_dynamic.",
        )


def _compiling(view: RankView) -> Bool:
    ranges, bubbles = view.process.ranges, view.bubbles
    named = [
        i for i in np.unique(ranges.name).tolist() if i != NONE and any(mark in view.names[i] for mark in COMPILING)
    ]
    rows = np.isin(ranges.name, np.array(named, ranges.name.dtype))
    picked: Bool = bubbles.of_cause(Lost.IDLE, "host_other")
    if rows.any():
        picked &= Cover.of(ranges.start[rows], ranges.end[rows]).within(bubbles.start, bubbles.end) > 0
    return picked if rows.any() else np.zeros(len(bubbles), np.bool_)


class UnfusedOptimizer:
    """TK411: the optimizer launches kernels for each tensor."""

    code = "TK411"
    title = "The optimizer is not fused"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where the optimizer launches many kernels a step and the GPU idles between them."""
        if not any(np.any(view.labels.phase == OPTIMIZER) for view in context.views):
            yield SkippedRule(
                rule=self.code, reason="no range tells of the optimizer", capture_with=REMEDIES["nvtx"][1]
            )
            return
        limits = context.thresholds
        counts = {view.rank: _optimizer_kernels(view, context) for view in context.views}

        def pick(view: RankView) -> Bool:
            bubbles = view.bubbles
            late = bubbles.of_cause(Lost.IDLE, "host_other", "launch_latency") & (bubbles.ns < limits.pause_ns)
            inside = view.labels.phase[np.maximum(bubbles.after, 0)] == OPTIMIZER
            picked: Bool = late & inside & (bubbles.after != NONE)
            return picked if counts[view.rank] >= limits.optimizer_kernels else np.zeros(len(bubbles), np.bool_)

        loss = Loss.of(context, pick)
        if loss.share < limits.reported_share or loss.cost_ns == 0:
            return
        yield loss.report(
            self.code,
            f"The optimizer launches kernels one by one, and the GPU idles between them: {loss.percent}",
            [
                Evidence(
                    metric="kernels of the optimizer",
                    value=round(median(counts[rank] for rank in loss.ranks), 1),
                    unit="a step",
                    threshold=limits.optimizer_kernels,
                ),
                Evidence(metric="idle between them", value=milliseconds(loss.cost_ns), unit="ms a step"),
            ],
            "torch.optim.AdamW(fused=True), or foreach=True; DeepSpeed: FusedAdam.",
        )


def _optimizer_kernels(view: RankView, context: Context) -> float:
    """Compute kernels that a rank's optimizer launches a steady step."""
    rows = (view.labels.phase == OPTIMIZER) & (view.ops.kind == Kind.COMPUTE)
    if context.steps:
        rows &= np.isin(view.labels.step, np.array(context.steps))
    return int(np.count_nonzero(rows)) / max(context.ledger.steps_of(view), 1)  # a rank can have none


class WarmUpCounted:
    """TK412: steps that look like warm-up are in the figures."""

    code = "TK412"
    title = "Warm-up steps are in the figures"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires where the first of the steady steps are much longer than the others."""
        ratio, order = context.thresholds.warm_up_ratio, context.steps
        walls: dict[int, list[int]] = {n: [] for n in order}
        for rank in context.ranks:
            for step in rank.steps:
                if step.step in walls:
                    walls[step.step].append(step.account.wall_ns)
        means = [sum(walls[n]) / len(walls[n]) for n in order if walls[n]]
        slow = 0
        while slow < len(means) - FEWEST and means[slow] > ratio * median(means[slow + 1 :]):
            slow += 1
        if slow == 0:
            return
        rest = sum(means[slow:]) / len(means[slow:])
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=f"The first {slow} of {len(means)} steps in the figures look like warm-up",
            ranks=tuple(rank.rank for rank in context.ranks),
            steps=order[:slow],
            cost_ns=None,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric="longest of them",
                    value=round(max(means[:slow]) / rest, 2),
                    unit="x the others",
                    threshold=ratio,
                ),
                Evidence(metric="mean step without them", value=milliseconds(rest), unit="ms"),
            ),
            fix="Leave them out with --skip-warmup, or start the capture later.",
        )


class Recompute:
    """TK413: the forward pass runs again inside the backward pass."""

    code = "TK413"
    title = "Time goes into recomputing activations"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Compares the kernels of forward and backward; says how much of the step it is, and has no cost of its own."""
        views = [v for v in context.views if np.any(v.labels.phase == FORWARD) and np.any(v.labels.phase == BACKWARD)]
        if not views:
            yield SkippedRule(rule=self.code, reason=NO_PHASES, capture_with=REMEDIES["nvtx"][1])
            return
        found = {view.rank: _recomputed(view, context) for view in views}
        again = {rank: result for rank, result in found.items() if result[0]}
        if not again:
            return
        ns = sum(result[0] for result in again.values()) / context.ledger.windows
        share = ns / context.step.wall_ns if context.step.wall_ns else 0.0
        if share < context.thresholds.reported_share:
            return
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=f"{100 * share:.0f} % of the step recomputes activations in the backward pass",
            ranks=tuple(again),
            steps=context.steps,
            cost_ns=None,
            gain_ns=None,
            evidence=(
                Evidence(metric="recomputing", value=milliseconds(ns), unit="ms a step"),
                Evidence(
                    metric="forward time whose kernels come again in backward",
                    value=round(median(result[1] for result in again.values()), 4),
                    unit="of forward",
                    threshold=context.thresholds.recompute_share,
                ),
            ),
            fix="It is the price of activation checkpointing. With memory to spare checkpoint fewer layers, or only "
            "what is cheap to run again (torch.utils.checkpoint.create_selective_checkpoint_contexts).",
        )


def _recomputed(view: RankView, context: Context) -> tuple[int, float]:
    """(ns of forward kernels that run again in backward, share of forward time whose kernels do); 0 ns where none do.

    Kernels are the same by name and grid. A matrix product can well occur in both passes; nearly all of the forward
    pass cannot, nor can the forward kernel of attention. Gradients take twice as long as the forward pass: where hardly
    any kernel is the backward pass's own, names do not tell the passes apart.
    """
    ops, phase = view.ops, view.labels.phase
    rows = np.flatnonzero((ops.kind == Kind.COMPUTE) & ((phase == FORWARD) | (phase == BACKWARD)))
    if context.steps:
        rows = rows[np.isin(view.labels.step[rows], np.array(context.steps))]
    if np.any(ops.source[rows] == Source.GRAPH):  # what runs in it is not known
        return 0, 0.0
    key, inverse = np.unique(
        (ops.name[rows].astype(np.int64) << 32) + (ops.grid[rows] & 0xFFFFFFFF), return_inverse=True
    )
    n = len(key)
    count = np.zeros((2, n), np.int64)
    time = np.zeros((2, n), np.int64)
    for i, each in enumerate((FORWARD, BACKWARD)):
        mine = phase[rows] == each
        np.add.at(count[i], inverse[mine], 1)
        np.add.at(time[i], inverse[mine], (ops.end - ops.start)[rows[mine]])
    again = (count[0] > 0) & (2 * count[1] >= count[0])
    share = float(time[0][again].sum() / max(int(time[0].sum()), 1))
    own = int(time[1][count[0] == 0].sum())
    told_apart = own >= context.thresholds.explained_share * int(time[1][again].sum())
    if share < context.thresholds.recompute_share or not told_apart:
        again &= np.array([_forward_attention(view.names[i]) for i in (key >> 32).tolist()], np.bool_)
    once = time[1] // np.maximum(count[1], 1)
    return int((np.minimum(count[0], count[1]) * once)[again].sum()), share


def _forward_attention(name: str) -> bool:
    return describe_kernel(name).family == "attention" and ("fwd" in name or "forward" in name)
