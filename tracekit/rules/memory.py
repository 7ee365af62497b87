"""TK403, TK501 and TK502: what keeping within the GPU's memory costs, and what takes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean as mean

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import is_allocation, is_free
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, Severity, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.frameworks import in_words_of, runtime_of
from tracekit.rules.host import without_launches
from tracekit.rules.loss import Loss, Weights, add_places, milliseconds

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]


class AllocatorRetries:
    """TK403: memory is given back and taken again inside steps."""

    code = "TK403"
    title = "The allocator frees and allocates GPU memory inside steps"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where steady steps both free and allocate, and the GPU waits for it."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.IDLE, "allocator"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        freed, taken = _memory_calls(context, loss.views)
        if not freed or not taken:
            return
        retries = freed >= context.thresholds.fewest_frees
        places = Weights()
        for view, rows in zip(loss.views, loss.rows, strict=True):
            add_places(places, view, view.bubbles.after[rows], view.bubbles.ns[rows])
        yield loss.report(
            self.code,
            "The caching allocator runs out of memory: it frees and allocates inside steps while the GPU waits"
            if retries and runtime_of(context.timeline) == "torch"
            else "Memory is freed and allocated inside steps while the GPU waits"
            if retries
            else f"The GPU waits while memory is allocated: {loss.percent}",
            [
                Evidence(metric="idle in calls of the allocator", value=milliseconds(loss.cost_ns), unit="ms a step"),
                Evidence(metric="calls that free", value=round(freed / loss.windows, 1), unit="a step"),
                Evidence(metric="calls that allocate", value=round(taken / loss.windows, 1), unit="a step"),
                Evidence(metric="most of it before", value=places.heaviest(), unit=""),
            ],
            in_words_of(
                context.timeline,
                "Give the loop memory of its own before it starts.",
                torch="Leave room: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller microbatch, or "
                "activation checkpointing; drop torch.cuda.empty_cache() from the loop. num_alloc_retries in "
                "torch.cuda.memory_stats() counts them.",
                jax="XLA_PYTHON_CLIENT_PREALLOCATE takes the memory at once.",
                native="Allocate once, before the loop, or from a pool (cudaMallocAsync).",
            )
            if retries
            else "Memory that a program takes as it first grows: allocate before what counts, or begin the capture "
            "later.",
        )


def _memory_calls(context: Context, views: Iterable[RankView]) -> tuple[int, int]:
    """(calls that free, calls that allocate) from the first steady step to the last one, over ranks."""
    freed = taken = 0
    ranks = {rank.rank: rank for rank in context.ranks}
    for view in views:
        rank = ranks[view.rank]
        spans = [(step.start_ns, step.end_ns) for step in rank.steps if step.step in context.steps]
        low, high = (spans[0][0], spans[-1][1]) if spans else (rank.start_ns, rank.end_ns)
        calls = view.process.calls
        inside = (calls.end > low) & (calls.start < high)
        freed += int(np.count_nonzero(view.activity.calls_named(is_free) & inside))
        taken += int(np.count_nonzero(view.activity.calls_named(is_allocation) & inside))
    return freed, taken


class MemoryGap:
    """TK502: the job reserves more memory than its strategy and model account for."""

    code = "TK502"
    title = "More GPU memory is reserved than the model accounts for"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Compares the highest peak with model state, gathered units and activations."""
        memory, limits = context.memory, context.thresholds
        if memory.peak_bytes is None:
            yield SkippedRule(
                rule=self.code,
                reason="how much GPU memory is reserved is not known",
                capture_with="nsys profile --cuda-memory-usage=true, from the start of the job",
                extra=True,
            )
            return
        need, gap = memory.expected, memory.gap_bytes
        if need is None or gap is None or need.total is None:
            reason = "how much memory the job should need is not known: it lacks " + "; ".join(memory.lacking)
            yield SkippedRule(rule=self.code, reason=reason, capture_with=None)
            return
        capacity = min((rank.capacity_bytes for rank in memory.ranks if rank.capacity_bytes), default=None)
        if gap < limits.memory_gap_share * need.total or (capacity and gap < limits.memory_gap_of_gpu * capacity):
            return
        full = capacity is not None and memory.peak_bytes >= limits.usable_memory_share * capacity
        parts = (
            ("reserved at the peak", memory.peak_bytes),
            ("model state", need.model_state),
            ("gathered units", need.gathered),
            ("activations", need.activations),
            ("not accounted for", gap),
        )
        yield Finding(
            rule=self.code,
            severity=Severity.WARNING if full else Severity.INFO,
            title=f"{gap / 1e9:.1f} GB more are reserved than model state, gathered units and activations take",
            ranks=tuple(rank.rank for rank in memory.ranks if rank.peak_bytes == memory.peak_bytes),
            steps=(),
            cost_ns=None,
            gain_ns=None,
            evidence=tuple(
                Evidence(metric=name, value=round(size / 1e9, 3), unit="GB") for name, size in parts if size is not None
            ),
            fix="Compare torch.cuda.max_memory_allocated() with max_memory_reserved(): a large difference is "
            "fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True). Else look for tensors that outlive the "
            "step, logits in fp32, whole replicas and workspaces: torch.cuda.memory._record_memory_history().",
        )


class Churn:
    """TK501: memory goes back and forth between the job and the driver in every step."""

    code = "TK501"
    title = "GPU memory is allocated and freed in every step"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Counts calls; what they cost beyond TK403 is the cost here."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        ranks, limits = context.memory.ranks, context.thresholds
        taken = mean([rank.allocations_per_step or 0.0 for rank in ranks])
        freed = mean([rank.frees_per_step or 0.0 for rank in ranks])
        if min(freed, taken) < limits.churn_calls:
            return
        sizes = [rank.allocated_bytes_per_step for rank in ranks]
        told = [size for size in sizes if size is not None]
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.IDLE, "allocator"))
        found = loss.report(
            self.code,
            f"Memory is allocated {taken:.0f} times and freed {freed:.0f} times a step",
            [
                Evidence(
                    metric="calls that allocate",
                    value=round(taken, 1),
                    unit="a step",
                    threshold=limits.churn_calls,
                ),
                Evidence(
                    metric="calls that free",
                    value=round(freed, 1),
                    unit="a step",
                    threshold=limits.churn_calls,
                ),
                *(
                    [Evidence(metric="allocated", value=round(mean(told) / 1e9, 3), unit="GB a step")]
                    if len(told) == len(sizes)
                    else []
                ),
                Evidence(
                    metric="idle in them that no other finding claims",
                    value=milliseconds(loss.cost_ns),
                    unit="ms a step",
                ),
            ],
            "torch's caching allocator should not ask the driver in steady steps: look for empty_cache(), libraries "
            "that allocate for themselves, and shapes that change (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True). "
            "torch.cuda.memory._record_memory_history() names the callers.",
        )
        # It is told by calls, whether or not the GPU idles in them.
        often = tuple(r.rank for r in ranks if min(r.allocations_per_step or 0.0, r.frees_per_step or 0.0) > 0)
        yield replace(found, ranks=often, steps=context.steps)
