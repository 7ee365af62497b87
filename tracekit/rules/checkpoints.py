"""TK407: training stands still while its state is saved."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover
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
