"""TK417 and TK418: migrations of unified memory, and copies that stay on the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.copies import MIGRATIONS, named
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.host_copies import Copied, on_main_stream, to_host
from tracekit.rules.loss import Loss, milliseconds
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]


class Migrations:
    """TK417: pages of unified memory move when they are touched."""

    code = "TK417"
    title = "Unified memory migrates page by page"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed migrations and the idle time between two of them."""
        loss = Loss.of(context, _migrating)
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        copied = Copied.of(loss)
        between = sum(
            int(view.bubbles.ns[rows][view.bubbles.lost[rows] == Lost.IDLE].sum())
            for view, rows in zip(loss.views, loss.rows, strict=True)
        )
        yield loss.report(
            self.code,
            f"The GPU waits while unified memory moves page by page: {loss.percent}",
            [
                Evidence(metric="migrations", value=round(copied.count / loss.windows, 1), unit="a step"),
                Evidence(metric="moved", value=round(copied.bytes / loss.windows / 1e6, 2), unit="MB a step"),
                Evidence(metric="in migrations", value=milliseconds(copied.ns / loss.windows), unit="ms a step"),
                Evidence(metric="idle between them", value=milliseconds(between / loss.windows), unit="ms a step"),
                copied.part("to the host", to_host),
            ],
            "Move what is needed in one piece before it is touched (cudaMemPrefetchAsync to the GPU, and back to "
            "cudaCpuDeviceId), say where it belongs (cudaMemAdvise), or copy explicitly.",
        )


def _migrating(view: RankView) -> Bool:
    """Exposed migrations, and idle time with one on both sides: the host touches page after page."""
    bubbles = view.bubbles
    picked = bubbles.of_cause(Lost.EXPOSED_COPY, "migration")
    if not picked.any():
        return picked
    idle = np.flatnonzero((bubbles.lost == Lost.IDLE) & (bubbles.before != NONE) & (bubbles.after != NONE))
    before, after = (
        named(view.ops, side[idle], view.activity.names, MIGRATIONS) for side in (bubbles.before, bubbles.after)
    )
    picked[idle] = before & after
    return picked


class CopiesOnDevice:
    """TK418: copies within a GPU or between GPUs while nothing computes."""

    code = "TK418"
    title = "Copies on the GPU take time of their own"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed copies from GPU memory to GPU memory, and memsets."""
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.EXPOSED_COPY, "on_device", "peer_copy"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        copied = Copied.of(loss)
        yield loss.report(
            self.code,
            f"Copies {_where(loss)}, with no kernel beside them: {loss.percent}",
            [
                *(row for row in copied.evidence() if "rate" not in row.metric),
                copied.part("on the compute stream", on_main_stream),
            ],
            "Such copies change a layout or join tensors (contiguous, cat, clone, padding): do without them, write "
            "results where they are needed, or let the kernel before or after do it (fusion).",
        )


def _where(loss: Loss) -> str:
    picked = zip(loss.views, loss.rows, strict=True)
    between = any(bool(view.bubbles.of_cause(Lost.EXPOSED_COPY, "peer_copy")[rows].any()) for view, rows in picked)
    return "within a GPU and between GPUs" if between else "within the GPU"
