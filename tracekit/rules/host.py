"""TK402 and TK405: a host that waits, and lets its GPU run dry."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import EVENT_SYNCS, Doing
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.copies import TO_HOST, named
from tracekit.metrics.views import RankView
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.frameworks import in_words_of
from tracekit.rules.loss import Loss, Weights, add_places, blocking_calls, milliseconds
from tracekit.rules.one_offs import one_offs
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]


def without_launches(context: Context, rule: str) -> SkippedRule | None:
    """Why a rule about the host cannot be checked: no capture tells of its calls."""
    if all("launch_rows" in capture.lacks for capture in context.timeline.captures):
        return SkippedRule(
            rule=rule, reason="the captures hold no CUDA API calls", capture_with=REMEDIES["launch_rows"][1]
        )
    return None


class SyncCall:
    """TK402: a call that waits for the GPU lets it run dry."""

    code = "TK402"
    title = "A synchronising call lets the GPU run dry"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Names the call, and the range around it."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        loss = Loss.of(context, _waiting)
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        call, where, reads = _sync_calls(context, loss)
        name = call or "A synchronising call"
        yield loss.report(
            self.code,
            f"{name}{f' in {where}' if where else ''} lets the GPU run dry",
            [
                Evidence(
                    metric="idle in and after synchronising calls", value=milliseconds(loss.cost_ns), unit="ms a step"
                ),
                Evidence(
                    metric="gaps that they begin", value=round(len(loss.lengths()) / loss.windows, 1), unit="a step"
                ),
                Evidence(metric="most of it", value=f"{name}, {where or 'outside of ranges'}", unit=""),
                Evidence(
                    metric="after a copy of a single value to the host", value=round(reads, 4), unit="of the time"
                ),
            ],
            _sync_fix(context, where or "", reads),
        )


def _waiting(view: RankView) -> Bool:
    """Idle time of synchronising calls; what the limiter of gathers (TK404) holds the host for is not such a call."""
    bubbles = view.bubbles
    picked = bubbles.of_cause(Lost.IDLE, "sync_call")
    limited = bubbles.of_cause(Lost.EXPOSED_COMM, "rate_limiter")
    rows = np.flatnonzero(picked)
    if limited.any() and len(rows):
        call = blocking_calls(view, rows, Doing.SYNC)
        on_event = (call != NONE) & view.activity.calls_named(EVENT_SYNCS.__contains__)[np.maximum(call, 0)]
        picked[rows] &= ~(on_event & np.isin(bubbles.after[rows], np.unique(bubbles.op[limited])))
    return picked


def _sync_calls(context: Context, loss: Loss) -> tuple[str | None, str | None, float]:
    """(call, where it is made, share of the time right after a single value was copied to the host).

    Where: the innermost range around it, else the module or phase of what is launched next.
    """
    calls, read = Weights(), 0
    for view, rows in zip(loss.views, loss.rows, strict=True):
        names, bubbles, before = view.activity.names, view.bubbles, np.maximum(view.bubbles.before[rows], 0)
        call = blocking_calls(view, rows, Doing.SYNC)
        calls.add(_name_of(view.process.calls.name, call), bubbles.ns[rows], names.__getitem__)
        value = named(view.ops, before, names, TO_HOST) & (bubbles.before[rows] != NONE)
        value &= view.ops.bytes[before] <= context.thresholds.single_value_bytes
        read += int(bubbles.ns[rows][value].sum())
    worst, ranges, next_in = calls.heaviest(), Weights(), Weights()
    for view, rows in zip(loss.views, loss.rows, strict=True):
        names, call = view.activity.names, blocking_calls(view, rows, Doing.SYNC)
        name = _name_of(view.process.calls.name, call)
        mine = np.array([i != NONE and names[i] == worst for i in np.unique(name).tolist()])
        mine = mine[np.searchsorted(np.unique(name), name)]
        ns = view.bubbles.ns[rows[mine]]
        around = view.activity.range_of(call[mine], view.activity.named_ranges)
        ranges.add(_name_of(view.process.ranges.name, around), ns, names.__getitem__)
        add_places(next_in, view, view.bubbles.after[rows[mine]], ns)
    where = ranges if ranges.heaviest() else next_in
    others = f" and {where.others} other place{'s' * (where.others > 1)}" if where.others else ""
    place = where.heaviest()
    return worst, place + others if place else None, read / max(int(loss.lengths().sum()), 1)


def _name_of(name: NDArray[np.int32], rows: Int64) -> Int64:
    """Name index of each row; NONE for no row."""
    if len(name) == 0:
        return np.full(len(rows), NONE, np.int64)
    return np.where(rows != NONE, name[np.maximum(rows, 0)], NONE).astype(np.int64)


def _sync_fix(context: Context, where: str, reads: float) -> str:
    if "clip" in where.lower() or "norm" in where.lower():
        return in_words_of(
            context.timeline,
            "Keep the norm of the gradients on the GPU, and log it every few hundred steps.",
            torch="torch.nn.utils.clip_grad_norm_ with error_if_nonfinite=False does not wait; .item() on its result "
            "does.",
        )
    if reads >= 0.5:
        return in_words_of(
            context.timeline,
            "A single value is read. Keep it on the GPU and read it every few hundred steps, or copy it asynchronously "
            "and look a step later.",
            torch="It is .item(), float(), print or an if on a tensor; "
            'torch.cuda.set_sync_debug_mode("warn") names the line.',
            jax="It is float(), print or an if on an array: read it a step later, or keep it in the compiled function.",
        )
    return in_words_of(
        context.timeline,
        "Move the call behind the launches, or do without it.",
        torch='Find the line with torch.cuda.set_sync_debug_mode("warn"): .item(), .cpu(), nonzero, a mask as index, '
        "torch.cuda.synchronize().",
        jax="block_until_ready() and reading an array wait like this.",
    )


def _late_otherwise(context: Context) -> int:
    """Idle time a step in which the host is late for no known reason."""
    return context.ledger.left(lambda view: view.bubbles.of_cause(Lost.IDLE, "host_other") & ~one_offs(view, context))


class DataLoading:
    """TK405: the GPU waits for its next batch."""

    code = "TK405"
    title = "The GPU waits for data"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where the waits are long, and together 1 % of the step."""
        if skipped := without_launches(context, self.code):
            yield skipped
            return
        limits = context.thresholds
        loss = Loss.of(
            context, lambda view: view.bubbles.of_cause(Lost.IDLE, "data_loading") & ~one_offs(view, context)
        )
        if loss.share < limits.reported_share or float(np.median(loss.lengths())) < limits.data_gap_ns:
            return
        ranges = any(view.activity.tells_of_data for view in loss.views)
        if not ranges and loss.cost_ns < _late_otherwise(context):
            return  # a host that is late all the time is late between two steps as well
        ranks = "" if len(loss.ranks) == len(context.ranks) else f" on {len(loss.ranks)} of {len(context.ranks)} ranks"
        yield loss.report(
            self.code,
            f"The GPU waits for data {loss.percent}{ranks}"
            if ranges
            else f"The host is quiet between steps, as where it loads data: the GPU idles {loss.percent}{ranks}",
            [
                Evidence(metric="idle while data is loaded", value=milliseconds(loss.cost_ns), unit="ms a step"),
                Evidence(metric="longest wait", value=milliseconds(float(loss.lengths().max())), unit="ms"),
                Evidence(
                    metric="told by",
                    value="ranges that load data" if ranges else "gaps between steps without a CUDA call",
                    unit="",
                ),
            ],
            in_words_of(
                context.timeline,
                "Load ahead of the GPU, beside the launching thread. Then the storage, and decoding in advance."
                + ("" if ranges else " A range around the loading would tell whether that is it."),
                torch="More loader workers and deeper prefetch: DataLoader(num_workers=..., prefetch_factor=..., "
                "persistent_workers=True, pin_memory=True).",
            ),
        )
