"""TK407, TK408 and TK414: copies that the GPU waits for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover
from tracekit.metrics.activity import is_sync
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.copies import TO_DEVICE, TO_HOST, named
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss, milliseconds
from tracekit.timeline import NONE, Kind

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
WORK = [PHASES.index(phase) for phase in ("forward", "backward", "optimizer")]


class CheckpointSave:
    """TK407: training stands still while its state is saved."""

    code = "TK407"
    title = "Training waits while a checkpoint is saved"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for gaps between steps with large copies to the host in them."""
        found = {view.rank: _saves(view, context) for view in context.views}
        loss = Loss.of(context, lambda view: found[view.rank][0])
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        saves = sum(found[rank][1] for rank in loss.ranks)
        copied = sum(found[rank][2] for rank in loss.ranks)
        longest = max(found[rank][3] for rank in loss.ranks)
        yield loss.report(
            self.code,
            f"Training waits {milliseconds(longest):.0f} ms for each checkpoint"
            if saves == len(loss.ranks)
            else f"Training waits up to {milliseconds(longest):.0f} ms for a checkpoint",
            [
                Evidence(
                    metric="gaps between steps with copies of tensors to the host", value=saves, unit="over all ranks"
                ),
                Evidence(metric="copied to the host each time", value=round(copied / saves / 1e6, 1), unit="MB a rank"),
                Evidence(metric="longest gap", value=milliseconds(longest), unit="ms"),
            ],
            "Save beside training (torch.distributed.checkpoint.async_save stages the state in pinned memory), or less "
            "often. Spread over the few steps of a capture a save weighs more than in a long run.",
        )


def _saves(view: RankView, context: Context) -> tuple[Bool, int, int, int]:
    """(bubbles of the gaps in which state is saved, number of gaps, bytes copied in them, longest gap in ns).

    A gap is a time without compute and communication, with large copies to the host, between operations of two steps
    (outside of all phases where the capture has no steps).
    """
    ops, bubbles, labels, working = view.ops, view.bubbles, view.labels, view.covers.compute_or_comm
    none = np.zeros(len(bubbles), np.bool_)
    copies = np.flatnonzero(
        named(ops, np.arange(len(ops)), view.activity.names, TO_HOST) & (ops.bytes >= context.thresholds.tensor_bytes)
    )
    copies = copies[~np.isin(labels.phase[copies], WORK)]
    if len(copies) == 0 or len(working.start) == 0:
        return none, 0, 0, 0
    back = np.flatnonzero(named(ops, np.arange(len(ops)), view.activity.names, TO_DEVICE))
    copied, returned = _by_gap(view, copies), _by_gap(view, back)
    # What comes back before work goes on was offloaded, not saved.
    gaps = np.flatnonzero((copied >= context.thresholds.checkpoint_bytes) & (2 * returned < copied))
    low, high = working.end[gaps - 1], working.start[gaps]
    rows = np.flatnonzero(ops.kind != Kind.COPY)
    by_end = rows[np.argsort(ops.end[rows], kind="stable")]
    before = by_end[np.searchsorted(ops.end[by_end], low, side="right") - 1]
    after = rows[np.searchsorted(ops.start[rows], high)]
    steps = bool(np.any(labels.step != NONE))
    between = labels.step[before] != labels.step[after] if steps else np.ones(len(gaps), np.bool_)
    gaps, low, high = gaps[between], low[between], high[between]
    counted = context.ledger.counted(view)
    ours = counted & (bubbles.lost != Lost.EXPOSED_COMM) & ~bubbles.of_cause(Lost.IDLE, "data_loading")
    saving = ours & (Cover.of(low, high).within(bubbles.start, bubbles.end) > 0)
    met = Cover.of(bubbles.start[saving], bubbles.end[saving]).within(low, high) > 0
    return saving, int(np.count_nonzero(met)), int(copied[gaps[met]].sum()), int((high - low)[met].max(initial=0))


def _by_gap(view: RankView, copies: NDArray[np.intp]) -> Int64:
    """Bytes of the copies that start in the gap before each stretch of work; 0 before the first and after the last."""
    working, start = view.covers.compute_or_comm, view.ops.start[copies]
    at = np.searchsorted(working.start, start, side="right")
    inside = (at > 0) & (at < len(working.start)) & (start >= working.end[np.maximum(at - 1, 0)])
    size = np.zeros(len(working.start) + 1, np.int64)
    np.add.at(size, at[inside], np.maximum(view.ops.bytes[copies[inside]], 0))
    return size


class HeldByCopy:
    """TK408: compute waits for input that is copied from ordinary memory, or on its own stream."""

    code = "TK408"
    title = "Compute waits for copies to the GPU"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed copies to the GPU that are pageable, synchronous, or on the compute stream."""
        loss = Loss.of(context, _held)
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        ns = {"pageable": 0, "synchronous": 0, "on the compute stream": 0}
        size = count = 0
        for view, rows in zip(loss.views, loss.rows, strict=True):
            bubbles = view.bubbles
            copies = rows[bubbles.lost[rows] == Lost.EXPOSED_COPY]
            op, length = bubbles.op[copies], bubbles.ns[copies]
            ns["pageable"] += int(length[view.ops.pageable[op]].sum())
            ns["synchronous"] += int(length[_synchronous(view, op)].sum())
            ns["on the compute stream"] += int(length[view.ops.stream[op] == view.main_stream].sum())
            size, count = size + int(np.maximum(view.ops.bytes[np.unique(op)], 0).sum()), count + len(np.unique(op))
        whole = max(sum(int(view.bubbles.ns[rows].sum()) for view, rows in zip(loss.views, loss.rows, strict=True)), 1)
        pageable = ns["pageable"] > 0
        kind = "from pageable memory" if pageable else "on the stream that computes"
        yield loss.report(
            self.code,
            f"Compute waits for copies to the GPU {kind}: {loss.percent}",
            [
                Evidence(metric="exposed copies", value=round(count / loss.windows, 1), unit="a step"),
                Evidence(metric="copied", value=round(size / loss.windows / 1e6, 2), unit="MB a step"),
                *(
                    Evidence(metric=name, value=round(part / whole, 4), unit="of this time")
                    for name, part in ns.items()
                ),
            ],
            "DataLoader(pin_memory=True) and .to(device, non_blocking=True), one batch ahead, on a stream of its own"
            + ("; without pinned memory non_blocking has no effect." if pageable else "."),
        )


def _synchronous(view: RankView, op: Int64) -> Bool:
    """Whether each operation's launch call waits for it by its name."""
    call = view.ops.call[op]
    waits = np.flatnonzero(view.activity.calls_named(is_sync))
    result: Bool = np.isin(call, waits)
    return result


def _held(view: RankView) -> Bool:
    """Exposed copies to the GPU that hold up host or compute stream, and the idle time that follows."""
    bubbles, ops = view.bubbles, view.ops
    picked: Bool = (bubbles.lost == Lost.EXPOSED_COPY) & ~bubbles.of_cause(Lost.EXPOSED_COPY, "offload")
    rows = np.flatnonzero(picked)
    op = bubbles.op[rows]
    held = ops.pageable[op] | _synchronous(view, op) | (ops.stream[op] == view.main_stream)
    picked[rows] = held & named(ops, op, view.activity.names, TO_DEVICE)
    # The host has waited for the copy, so that nothing is queued behind it.
    idle = np.flatnonzero(bubbles.of_cause(Lost.IDLE, "sync_call") & (bubbles.before != NONE))
    before = bubbles.before[idle]
    waited = ops.pageable[before] | _synchronous(view, before)
    picked[idle] = waited & named(ops, before, view.activity.names, TO_DEVICE)
    return picked


class OffloadExposed:
    """TK414: the GPU waits for tensors that are kept on the host."""

    code = "TK414"
    title = "The GPU waits for what is offloaded to the host"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed copies of tensors inside forward, backward and optimizer."""
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.EXPOSED_COPY, "offload"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        out = size = on_main = pageable = whole = 0
        for view, rows in zip(loss.views, loss.rows, strict=True):
            op, ns = view.bubbles.op[rows], view.bubbles.ns[rows]
            to_host = named(view.ops, op, view.activity.names, TO_HOST)
            out, whole = out + int(ns[to_host].sum()), whole + int(ns.sum())
            size += int(view.ops.bytes[np.unique(op)].sum())
            on_main += int(ns[view.ops.stream[op] == view.main_stream].sum())
            pageable += int(ns[view.ops.pageable[op]].sum())
        yield loss.report(
            self.code,
            f"Offloading is not hidden: {loss.percent} waits for copies to and from the host"
            if any(np.any(np.isin(view.labels.phase, WORK)) for view in loss.views)
            else f"Large copies to the host are not hidden: {loss.percent}",
            [
                Evidence(
                    metric="copied while nothing else runs", value=round(size / loss.windows / 1e6, 1), unit="MB a step"
                ),
                Evidence(metric="to the host", value=round(out / whole, 4), unit="of this time"),
                Evidence(metric="on the stream that computes", value=round(on_main / whole, 4), unit="of this time"),
                Evidence(metric="pageable", value=round(pageable / whole, 4), unit="of this time"),
            ],
            "Pin the memory (FSDP2: CPUOffloadPolicy(pin_memory=True); DeepSpeed: offload_param and offload_optimizer "
            'with "pin_memory": true; save_on_cpu(pin_memory=True)), copy on a stream of its own and a layer ahead, or '
            "offload less: recompute activations, or shard over more GPUs.",
        )
