"""TK100: communication that no compute hides, and no other rule explains: the pattern of what is left."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracekit.metrics.bubbles import EXPOSED_COMM_CAUSES, Lost
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.loss import Bool, Loss, Weights, add_places
from tracekit.rules.parallel import tensor_parallel

WORDS = {
    "start_up": "first collective of a capture",
    "peer_wait": "waiting for peers",
    "tensor_parallel": "collectives within layers (tensor parallelism)",
    "expert_parallel": "all-to-alls of experts",
    "context_parallel": "keys and values passed on (context parallelism)",
    "pipeline": "sends and receives between pipeline stages",
    "rate_limiter": "gathers that the host held back",
    "no_prefetch": "gathers never issued ahead",
    "queued_behind_comm": "gathers queued behind reductions",
    "launched_late": "launched late by the host",
    "first_gather": "first gather of the step",
    "microbatch_reduce": "reductions of early microbatches",
    "last_reduce": "last reduction of the step",
    "optimizer_phase": "after the optimizer's step",
    "on_compute_stream": "on the compute stream",
    "launch_order": "held up by the order of launch",
    "serialized": "between compute that may need it",
    "latency_bound": "many small collectives",
    "bandwidth": "longer than the compute beside it",
    "behind_copy": "compute waits for a copy",
    "host_late": "compute launched late by the host",
    "between_kernels": "gaps between kernels",
    "unknown": "unknown",
}
"""The causes of exposed communication in words."""

OPS = {
    "all_gather": "All-gathers",
    "reduce_scatter": "Reduce-scatters",
    "all_reduce": "All-reduces",
    "all_to_all": "All-to-alls",
    "send_recv": "Sends and receives",
    "broadcast": "Broadcasts",
}
ADVICE = {
    "tensor_parallel": "Compute needs collectives within layers at once: split fewer ways, or run them in pieces.",
    "expert_parallel": "Run all-to-alls of experts beside other compute.",
    "context_parallel": "Split the sequence over fewer ranks.",
    "pipeline": "Split the batch into more micro-batches.",
    "start_up": "The first collective of a capture waits until all ranks capture: capture further into the run.",
    "peer_wait": "Compare compute between the ranks: where one is slower, the others wait for it.",
    "no_prefetch": "Issue each gather before the compute ahead of it.",
    "queued_behind_comm": "Give gathers and reductions communicators of their own.",
    "launched_late": "Issue them earlier: the host launches them in the middle of the compute that could hide them.",
    "first_gather": "Keep what the first gather of the step moves small.",
    "microbatch_reduce": "Reduce gradients once a step, not for every microbatch.",
    "last_reduce": "Make the last bucket or unit small.",
    "optimizer_phase": "Communicate each bucket of parameters as soon as it is updated.",
    "on_compute_stream": "Issue them on a stream of their own.",
    "serialized": "They run alone, between compute before and compute behind. Where that does not need their result, "
    "wait for it later; where it does, split both so that one half computes while the other communicates.",
    "latency_bound": "Move the same bytes with fewer collectives.",
    "bandwidth": "They start in time and last longer than the compute beside them: move fewer bytes (lower precision, "
    "sharding inside a host), use a faster link, or compute more for each byte (larger batch).",
    "behind_copy": "Compute waits for copies beside them: copy earlier.",
    "host_late": "The host launches the compute behind them too late: fewer, larger kernels, or CUDA graphs.",
    "unknown": "Of the unexplained part look at the longest instance in the timeline.",
}
"""What to do, by cause: the causes inside decide, never the collective alone."""
COMPARE = "Compare compute between the ranks first: where one is slower, the others wait for it."


class ExposedCommunication:
    """TK100: exposed communication that no specific rule explains."""

    code = "TK100"
    title = "Exposed communication without a specific cause"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires from 2 % of the step on, with the pattern of the collectives that most of it is in."""
        yield from tensor_parallel(context)
        step, thresholds = context.step, context.thresholds
        rest = context.ledger.unclaimed(Lost.EXPOSED_COMM)
        if not step.wall_ns or rest < thresholds.warning_share * step.wall_ns:
            return
        whole = "the step" if context.steady else "the capture"
        loss = Loss.of(context, lambda view: _free(context, view))
        causes = _causes(context)
        evidence = [
            Evidence(
                metric="exposed communication that no other finding explains",
                value=round(rest / step.wall_ns, 4),
                unit=f"of {whole}",
                threshold=thresholds.warning_share,
            ),
            Evidence(metric="overlap ratio", value=_rounded(step.overlap_ratio), unit="ratio"),
            *_of_ops(loss),
            *(
                Evidence(metric=WORDS[cause], value=round(ns / step.wall_ns, 4), unit="of the step")
                for cause, ns in causes
                if ns >= 0.1 * rest
            ),
            *_places(loss),
        ]
        share = f"{100 * rest / step.wall_ns:.0f} % of {whole}"
        context.ledger.claim(lambda view: _free(context, view))
        yield Finding(
            rule=self.code,
            severity=context.severity(rest),
            title=f"{_pattern(loss, causes)}: {share}{_what_of_it(context, causes, rest)}",
            ranks=loss.ranks or tuple(rank.rank for rank in context.ranks if rank.totals.exposed_comm_ns),
            steps=context.steps,
            cost_ns=rest,
            gain_ns=None,
            evidence=tuple(evidence),
            fix=_fix(context, causes, rest),
        )


def _free(context: Context, view: RankView) -> Bool:
    """Exposed communication that no finding has claimed."""
    result: Bool = (view.bubbles.lost == Lost.EXPOSED_COMM) & context.ledger.free(view) & context.ledger.counted(view)
    return result


def _causes(context: Context) -> list[tuple[str, int]]:
    """ns a step by cause of what is left, most first."""
    left = {
        cause: context.ledger.left(lambda view, cause=cause: view.bubbles.of_cause(Lost.EXPOSED_COMM, cause))  # type: ignore[misc]
        for cause in EXPOSED_COMM_CAUSES
    }
    return sorted(((cause, ns) for cause, ns in left.items() if ns), key=lambda part: -part[1])


def _by_op(loss: Loss) -> Weights:
    weights = Weights()
    for view, rows in zip(loss.views, loss.rows, strict=True):
        found, ops = view.collectives, [op for _, op in view.collectives.group]
        of = found.of[np.searchsorted(found.row, view.bubbles.op[rows])].astype(np.int64)
        weights.add(of, view.bubbles.ns[rows], ops.__getitem__)
    return weights


def _of_ops(loss: Loss) -> Iterable[Evidence]:
    """The kind of collective that most of the loss is in, and its share."""
    weights = _by_op(loss)
    if op := weights.heaviest():
        share = round(weights.share(op), 4)
        yield Evidence(metric=op.replace("_", "-"), value=share, unit="of exposed communication")


def _places(loss: Loss) -> Iterable[Evidence]:
    """The module, else the phase, that most of it was launched in."""
    places = Weights()
    for view, rows in zip(loss.views, loss.rows, strict=True):
        add_places(places, view, view.bubbles.op[rows], view.bubbles.ns[rows])
    if place := places.heaviest():
        share = f"{place} ({100 * places.share(place):.0f} %)"
        yield Evidence(metric="most of it in", value=share, unit="")


def _pattern(loss: Loss, causes: list[tuple[str, int]]) -> str:
    """How the collectives that most of the loss is in lie beside compute."""
    weights, half = _by_op(loss), loss.context.thresholds.explained_share
    op = weights.heaviest()
    main = op if op is not None and weights.share(op) >= half else None
    rows = [row for row in loss.context.collectives if main is None or row.op == main]
    took, exposed = sum(row.comm_ns for row in rows), sum(row.exposed_ns for row in rows)
    name = OPS.get(main or "", "Collectives")
    if not took:
        return f"{name} run without compute beside them"
    ratio = 1 - exposed / took
    how = "overlap only part of their time with"
    if ratio < half:
        how = "hardly overlap" if ratio >= loss.context.thresholds.no_overlap_share else "never overlap"
    beside = ""
    if causes and causes[0][0] == "bandwidth" and ratio >= loss.context.thresholds.no_overlap_share:
        beside = f", they take {1 / ratio:.1f} x the compute beside them"
    return f"{name} {how} compute ({ratio:.2f}){beside}"


def _what_of_it(context: Context, causes: list[tuple[str, int]], rest: int) -> str:
    """The cause that most of it has, and how much of the exposed time is unexplained."""
    words = ""
    if causes and causes[0][0] != "unknown" and causes[0][1] >= context.thresholds.explained_share * rest:
        words = f", mostly {WORDS[causes[0][0]]}"
    unknown = dict(causes).get("unknown", 0) / max(context.step.exposed_comm_ns, 1)
    return words + (f"; {100 * unknown:.0f} % unexplained" if unknown >= context.thresholds.unexplained_share else "")


def _fix(context: Context, causes: list[tuple[str, int]], rest: int) -> str:
    """What to do about the causes inside, largest first; those of a fifth of it or more."""
    texts = [ADVICE[cause] for cause, ns in causes if cause in ADVICE and 5 * ns >= rest]
    if not context.waits_told:  # Where waiting is told apart, a slow rank has a finding of its own.
        texts.insert(0, COMPARE)
    return " ".join(texts) or "Look at the longest instance in the timeline."


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
