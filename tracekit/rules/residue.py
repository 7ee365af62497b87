"""TK415: idle time and copies that no other rule explains, with all that is known of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import EXPOSED_COPY_CAUSES, IDLE_CAUSES, Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss, Weights, milliseconds, thread_of
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

IDLE_WORDS = {
    "launch_latency": "in gaps of a few microseconds between kernels",
    "sync_call": "in and after calls that wait for the GPU",
    "allocator": "in calls that take or give back memory",
    "first_use": "while code is loaded at its first use",
    "comm_init": "while communicators are set up",
    "data_loading": "while data is loaded",
    "host_other": "before launches that come late",
    "dependency": "with the next operation launched and waiting for another",
    "unknown": "before operations whose launch the capture does not show",
}
COPY_WORDS = {
    "offload": "in copies of offloaded tensors",
    "input": "in copies of input",
    "pageable": "in copies from or to pageable memory",
    "peer_copy": "in copies between GPUs",
    "migration": "in migrations of unified memory",
    "on_device": "in copies within the GPU",
    "host_copy": "in copies between host and GPU",
    "unknown": "in copies of an unknown kind",
}
WORDS = {
    **{(Lost.IDLE, cause): words for cause, words in IDLE_WORDS.items()},
    **{(Lost.EXPOSED_COPY, cause): words for cause, words in COPY_WORDS.items()},
}
PARTS = [
    *((Lost.IDLE, cause) for cause in IDLE_CAUSES),
    *((Lost.EXPOSED_COPY, cause) for cause in EXPOSED_COPY_CAUSES),
]


LONGEST, SHOWN = 50, 80
"""Gaps whose host calls are looked at, which hold most of the time; characters shown of a kernel's name."""


class Unexplained:
    """TK415: what is left of idle time and exposed copies."""

    code = "TK415"
    title = "Idle time and copies that no rule explains"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires from 5 % of the step or 20 % of what is lost on, naming where most is and what stands around it."""
        step, limits = context.step, context.thresholds
        loss = Loss.of(context, lambda view: _free(context, view, Lost.IDLE, Lost.EXPOSED_COPY))
        lost = step.exposed_comm_ns + step.exposed_copy_ns + step.idle_ns
        large = lost >= limits.residue_share * step.wall_ns and loss.cost_ns >= limits.residue_of_lost * lost
        if loss.cost_ns == 0 or (loss.share < limits.residue_share and not large):
            return
        parts = _parts(context)
        place, most = parts[0]
        where = ("mostly " if most >= limits.explained_share * loss.cost_ns else "most of it ") + WORDS[place]
        yield loss.report(
            self.code,
            f"Idle time and copies that no rule explains: {loss.percent}, {where}",
            [*_evidence(context, parts), *_gaps(Loss.of(context, lambda view: _free(context, view, Lost.IDLE)))],
            FIXES.get(place[1], "Look at the longest one in the timeline: what ends it, and what the host did before."),
        )


FIXES = {
    "dependency": "Look at the longest one in the timeline: the operation that ends it was launched and waited for "
    "something on another stream, GPU or the host (an event, a callback, a semaphore).",
    "unknown": "Capture the CUDA calls too (nsys profile -t cuda): then the host's part is known.",
}


def _free(context: Context, view: RankView, *losses: Lost) -> Bool:
    """Bubbles of these kinds that no finding has claimed."""
    result: Bool = np.isin(view.bubbles.lost, losses) & context.ledger.free(view)
    return result


def _parts(context: Context) -> list[tuple[tuple[Lost, str], int]]:
    """ns a step by term and cause, most first, where there is any."""
    left = {
        (lost, cause): context.ledger.left(lambda view, lost=lost, cause=cause: view.bubbles.of_cause(lost, cause))  # type: ignore[misc]
        for lost, cause in PARTS
    }
    return sorted(((place, ns) for place, ns in left.items() if ns), key=lambda part: -part[1])


def _evidence(context: Context, parts: list[tuple[tuple[Lost, str], int]]) -> Iterable[Evidence]:
    whole = sum(ns for _, ns in parts)
    for place, ns in parts:
        if ns >= 0.1 * whole:
            yield Evidence(metric=WORDS[place], value=round(ns / context.step.wall_ns, 4), unit="of the step")


def _gaps(loss: Loss) -> Iterable[Evidence]:
    """How many gaps there are, how long, in how many steps, between what, and what the host did in the longest."""
    lengths = loss.lengths()
    if len(lengths) == 0:
        return
    pause = loss.context.thresholds.pause_ns
    long = lengths >= pause
    yield Evidence(metric="idle gaps", value=round(len(lengths) / loss.windows, 1), unit="a step")
    yield Evidence(metric="longest gap", value=milliseconds(float(lengths.max())), unit="ms")
    share = int(lengths[long].sum()) / int(lengths.sum())
    yield Evidence(metric=f"in gaps of {pause / 1e6:g} ms or more", value=round(share, 4), unit="of these gaps")
    before, after, calls = Weights(), Weights(), Weights()
    for view, rows in zip(loss.views, loss.rows, strict=True):
        bubbles, ns = view.bubbles, view.bubbles.ns[rows]
        for weights, side in ((before, bubbles.before), (after, bubbles.after)):
            names = np.where(side[rows] != NONE, view.ops.name[np.maximum(side[rows], 0)], NONE).astype(np.int64)
            weights.add(names, ns, view.names.__getitem__)
        _add_calls(calls, view, rows[np.argsort(-ns, kind="stable")[:LONGEST]])
    for metric, weights in (("most of it behind", before), ("most of it before", after), ("host, mostly", calls)):
        if name := weights.heaviest():
            yield Evidence(metric=metric, value=name[:SHOWN], unit="")


def _add_calls(weights: Weights, view: RankView, rows: NDArray[np.intp]) -> None:
    """Add what the launching thread did in each idle gap: its CUDA calls, and the time outside of them."""
    calls, bubbles = view.process.calls, view.bubbles
    thread = thread_of(view, bubbles.after[rows])
    for each in np.unique(thread[thread != NONE]).tolist():
        own = np.flatnonzero(calls.thread == each)
        for row in rows[thread == each].tolist():
            low, high = int(bubbles.start[row]), int(bubbles.end[row])
            first = max(int(np.searchsorted(calls.start[own], low)) - 1, 0)
            inside = own[first : int(np.searchsorted(calls.start[own], high))]
            ns = np.maximum(np.minimum(calls.end[inside], high) - np.maximum(calls.start[inside], low), 0)
            weights.add(calls.name[inside].astype(np.int64), ns, view.names.__getitem__)
            weights.add(np.zeros(1, np.int64), np.array([high - low - int(ns.sum())]), lambda _: "no CUDA call")
