"""TK401: a host that has not launched the next kernel when the one before is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.frameworks import in_words_of
from tracekit.rules.host import without_launches
from tracekit.rules.loss import Loss, Weights, add_places, milliseconds
from tracekit.rules.one_offs import one_offs
from tracekit.timeline import NONE, Kind

Bool = NDArray[np.bool_]


class LaunchBound:
    """TK401: kernels are over before the next ones have been launched."""

    code = "TK401"
    title = "The host launches too slowly for the GPU"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where most idle gaps end with a late launch and cost 2 % of the step: many short ones, or some long."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        found = self._small_kernels(context) or self._late_host(context)
        if found:
            yield found

    def _small_kernels(self, context: Context) -> Finding | None:
        """The host is late for many kernels of each step."""
        limits = context.thresholds
        counts = {view.rank: _gaps(view, context.ledger.counted(view)) for view in context.views}
        bound = {rank for rank, (_, late, all_) in counts.items() if all_ and late >= limits.late_gaps_share * all_}

        def pick(view: RankView) -> Bool:
            bubbles = view.bubbles
            ours = bubbles.of_cause(Lost.IDLE, "host_other") & (bubbles.ns < limits.pause_ns) & ~_first_uses(view)
            return (ours | counts[view.rank][0]) if view.rank in bound else np.zeros(len(bubbles), np.bool_)

        loss = Loss.of(context, pick)
        late = sum(counts[rank][1] for rank in loss.ranks)
        if not _costs(loss, bound) or late < limits.late_gaps * loss.windows * len(loss.ranks) / len(context.ranks):
            return None
        kernel, launch = _pace(loss)
        return loss.report(
            self.code,
            f"The host launches too slowly: the GPU idles {loss.percent} between kernels",
            [
                Evidence(
                    metric="idle gaps that end with a late launch",
                    value=round(late / sum(counts[rank][2] for rank in loss.ranks), 4),
                    unit="of gaps",
                    threshold=limits.late_gaps_share,
                ),
                Evidence(metric="late launches", value=round(late / loss.windows, 1), unit="a step"),
                Evidence(metric="median kernel", value=round(kernel / 1e3, 1), unit="us"),
                Evidence(metric="median time from launch to launch", value=round(launch / 1e3, 1), unit="us"),
            ],
            in_words_of(
                context.timeline,
                "Launch less, not faster: CUDA graphs, fused kernels, more work in each. Check first that tracing "
                "itself is not the load.",
                torch='torch.compile(mode="reduce-overhead") or torch.cuda.graph, a fused optimizer (fused=True), a '
                "larger microbatch.",
                jax="Put more of the step under one jax.jit, or "
                "XLA_FLAGS=--xla_gpu_enable_command_buffer=FUSION,CUBLAS.",
            ),
        )

    def _late_host(self, context: Context) -> Finding | None:
        """The host is late seldom, but again and again and for long.

        Ranks that stall alone have findings of their own.
        """
        limits = context.thresholds
        stalling = {s.rank for s in context.stragglers if s.cause in ("host_stall", "late_launch")}
        counts = {
            view.rank: _gaps(view, context.ledger.counted(view), kinds=(Kind.COMPUTE, Kind.COMM))
            for view in context.views
            if view.rank not in stalling
        }
        late_on = {rank for rank, (_, late, all_) in counts.items() if all_ and late >= limits.late_gaps_share * all_}
        regular = {view.rank: ~one_offs(view, context) & ~_first_uses(view) for view in context.views}
        loss = Loss.of(
            context,
            lambda view: (
                view.bubbles.of_cause(Lost.IDLE, "host_other") & np.bool_(view.rank in late_on) & regular[view.rank]
            ),
        )
        if not _costs(loss, late_on) or not _recurs(loss, limits.pauses_share):
            return None
        places = Weights()
        for view, rows in zip(loss.views, loss.rows, strict=True):
            add_places(places, view, view.bubbles.after[rows], view.bubbles.ns[rows])
        late = sum(counts[rank][1] for rank in loss.ranks)
        gaps = sum(counts[rank][2] for rank in loss.ranks)
        return loss.report(
            self.code,
            f"The host is late: the GPU idles {loss.percent} before the next kernel is launched",
            [
                Evidence(
                    metric="idle gaps that end with a late launch",
                    value=round(late / gaps, 4),
                    unit="of gaps",
                    threshold=limits.late_gaps_share,
                ),
                Evidence(metric="late launches", value=round(late / loss.windows, 1), unit="a step"),
                Evidence(metric="longest wait", value=milliseconds(float(loss.lengths().max())), unit="ms"),
                Evidence(metric="most of it before", value=places.heaviest(), unit=""),
            ],
            in_words_of(
                context.timeline,
                "See what the host does there. Logging, metrics and other work between launches go behind the "
                "launches, to another thread, or into every hundredth step.",
                python="nsys profile --python-sampling=true shows it, or py-spy dump --pid PID.",
                native="nsys profile --sample=process-tree shows it.",
            ),
        )


def _recurs(loss: Loss, share: float) -> bool:
    """Whether it comes in more than this share of the steps; without steps, several times a rank."""
    if loss.context.steps:
        return len(loss.steps) > share * len(loss.context.steps)
    return len(loss.lengths()) >= loss.context.thresholds.repeated_pauses * len(loss.ranks)


def _gaps(view: RankView, counted: Bool, kinds: Sequence[Kind] = (Kind.COMPUTE,)) -> tuple[Bool, int, int]:
    """(short bubbles that a late launch ended, number of gaps that one ended, number of gaps in all).

    Gaps that end with an operation of ``kinds`` whose launch is known; short ones that were launched in time are no
    gaps, but what starting a kernel takes.
    """
    bubbles, calls = view.bubbles, view.process.calls
    rows = np.flatnonzero((bubbles.lost == Lost.IDLE) & counted & ~_first_uses(view))
    call = np.where(bubbles.after[rows] != NONE, view.ops.call[np.maximum(bubbles.after[rows], 0)], NONE)
    known = (call != NONE) & np.isin(view.ops.kind[np.maximum(bubbles.after[rows], 0)], kinds)
    rows, call = rows[known], call[known]
    latency = np.zeros(len(bubbles), np.bool_)
    if len(rows) == 0:
        return latency, 0, 0
    # The pieces of one gap have one operation after them, and the first begins where the one before ended.
    first = np.append(True, bubbles.after[rows[1:]] != bubbles.after[rows[:-1]])
    gap_start = bubbles.start[rows[np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))]]
    late = calls.end[call] > gap_start
    short = bubbles.of_cause(Lost.IDLE, "launch_latency")[rows]
    latency[rows[late & short]] = True
    return latency, int(np.count_nonzero(first & late)), int(np.count_nonzero(first & (late | ~short)))


def _costs(loss: Loss, late_on: Set[int]) -> bool:
    """Whether the lateness is worth a finding; communication that runs meanwhile hides a part of it from idle time."""
    limits = loss.context.thresholds
    beside = Loss.of(
        loss.context,
        lambda view: view.bubbles.of_cause(Lost.EXPOSED_COMM, "host_late") & np.bool_(view.rank in late_on),
    )
    return loss.cost_ns > 0 and loss.share + beside.share >= limits.warning_share


def _first_uses(view: RankView) -> Bool:
    """The pieces of gaps in which code is loaded or a communicator set up: they tell of no rate of launches."""
    bubbles = view.bubbles
    ended = np.unique(bubbles.after[bubbles.of_cause(Lost.IDLE, "first_use", "comm_init")])
    result: Bool = np.isin(bubbles.after, ended[ended != NONE]) & (bubbles.lost == Lost.IDLE)
    return result


def _pace(loss: Loss) -> tuple[float, float]:
    """(median compute kernel, median time from one launch of one to the next on the same thread), ns."""
    view = loss.views[0]
    rows = np.flatnonzero((view.ops.kind == Kind.COMPUTE) & (view.ops.call != NONE))
    calls = view.process.calls
    order = np.lexsort((calls.start[view.ops.call[rows]], calls.thread[view.ops.call[rows]]))
    begun = calls.start[view.ops.call[rows[order]]]
    apart = np.diff(begun)
    apart = apart[apart > 0]
    lengths = view.ops.end[rows] - view.ops.start[rows]
    return float(np.median(lengths)), float(np.median(apart)) if len(apart) else 0.0
