"""TK403 and TK501: what keeping within the GPU's memory costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import is_allocation, is_free
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
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
        places = Weights()
        for view, rows in zip(loss.views, loss.rows, strict=True):
            add_places(places, view, view.bubbles.after[rows], view.bubbles.ns[rows])
        yield loss.report(
            self.code,
            "The caching allocator runs out of memory: it frees and allocates inside steps while the GPU waits",
            [
                Evidence(metric="idle in calls of the allocator", value=milliseconds(loss.cost_ns), unit="ms a step"),
                Evidence(metric="calls that free", value=round(freed / loss.windows, 1), unit="a step"),
                Evidence(metric="calls that allocate", value=round(taken / loss.windows, 1), unit="a step"),
                Evidence(metric="most of it before", value=places.heaviest(), unit=""),
            ],
            "Leave room: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller microbatch, or activation "
            "checkpointing; drop torch.cuda.empty_cache() from the loop. num_alloc_retries in "
            "torch.cuda.memory_stats() counts them.",
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


class Churn:
    """TK501: memory goes back and forth between the job and the driver in every step."""

    code = "TK501"
    title = "GPU memory is allocated and freed in every step"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Counts calls; what they cost beyond TK403 is the cost here."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        counts = {view.rank: _memory_calls(context, [view]) for view in context.views}
        freed, taken = (sum(count[i] for count in counts.values()) for i in (0, 1))
        windows, limits = context.ledger.windows, context.thresholds
        if not context.steps or min(freed, taken) < limits.churn_calls * windows:
            return
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.IDLE, "allocator"))
        found = loss.report(
            self.code,
            f"Memory is allocated {taken / windows:.0f} times and freed {freed / windows:.0f} times a step",
            [
                Evidence(
                    metric="calls that allocate",
                    value=round(taken / windows, 1),
                    unit="a step",
                    threshold=limits.churn_calls,
                ),
                Evidence(
                    metric="calls that free",
                    value=round(freed / windows, 1),
                    unit="a step",
                    threshold=limits.churn_calls,
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
        often = tuple(rank for rank, count in counts.items() if min(count))
        yield replace(found, ranks=often, steps=context.steps)
