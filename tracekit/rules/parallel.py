"""TK100 of tensor parallelism, TK116 to TK118: communication that a split model needs at once, by its nature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.parallelism import BACKWARD, CONTEXT, EXPERT, FORWARD, PARALLELISMS, PIPELINE, expert_work
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss
from tracekit.rules.schedule import CauseRule, collectives_a_step, exposed_share

Bool = NDArray[np.bool_]


def tensor_parallel(context: Context) -> Iterable[Finding]:
    """The finding of TK100 about collectives within layers."""
    loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.EXPOSED_COMM, "tensor_parallel"))
    if loss.share < context.thresholds.warning_share:
        return
    ops = _ops(loss)
    which = " and ".join(f"{op}s" for op in ops)
    title = f"Tensor-parallel {which} stand between the kernels of each layer: {loss.percent}"
    fix = (
        "Compute needs these collectives at once: no prefetch hides them. Cut them up and run each piece beside its "
        "matrix product (async tensor parallelism: torch._inductor's micro-pipeline, Megatron's --tp-comm-overlap)"
    )
    if ops == ["all-reduce"]:
        fix += ", use sequence parallelism, whose all-gathers and reduce-scatters can be cut up (--sequence-parallel)"
    fix += ", or split over fewer ranks, all of one NVLink domain."
    yield loss.report("TK100", title, (collectives_a_step(loss), exposed_share(loss)), fix)


def _ops(loss: Loss) -> list[str]:
    """The ops that have a good share of the loss."""
    time: dict[str, int] = {}
    for view, rows in zip(loss.views, loss.rows, strict=True):
        found = view.collectives
        of = found.of[np.searchsorted(found.row, view.bubbles.op[rows])]
        for group in np.unique(of).tolist():
            op = found.group[group][1].replace("_", "-")
            time[op] = time.get(op, 0) + int(view.bubbles.ns[rows][of == group].sum())
    return sorted(op for op, ns in time.items() if ns >= 0.2 * sum(time.values()))


class ByNature(CauseRule):
    """Exposed bubbles of one parallelism, and what is left of the waiting in its collectives."""

    serves: str

    def pick(self, view: RankView) -> Bool:
        """Waits that a straggler or an unequal stage explains are claimed before."""
        bubbles = view.bubbles
        own = np.isin(bubbles.op, view.collectives.row[view.parallel == PARALLELISMS.index(self.serves)])
        result: Bool = super().pick(view) | (bubbles.of_cause(Lost.EXPOSED_COMM, "peer_wait") & own)
        return result


class PipelineBubble(ByNature):
    """TK116: a pipeline's stages wait for one another's activations and gradients."""

    code = "TK116"
    title = "Pipeline bubble"
    causes = ("pipeline",)
    serves = PIPELINE
    general = (
        "Split the batch into more micro-batches: the fill and the drain of the pipeline are shared by all of them. "
        "Interleave the stages (virtual pipeline stages) or use a zero-bubble schedule, give each stage equal work "
        "(embedding and head count), and send and receive beside compute (Megatron's overlap_p2p_comm)."
    )

    def claim(self, loss: Loss) -> str:
        """How much, and on which ranks most."""
        worst = _worst(loss)
        return f"Pipeline stages wait for one another for {loss.percent}, most of it on {worst}"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """Micro-batches, what the schedule takes at best, and each stage's share."""
        yield collectives_a_step(loss, "sends and receives")
        yield exposed_share(loss)
        stages, micro = len(loss.context.stages), _microbatches(loss)
        if micro:
            yield Evidence(metric="micro-batches a step", value=micro, unit="micro-batches")
        if micro and stages > 1:
            best = (stages - 1) / (stages - 1 + micro)
            yield Evidence(metric=f"fill and drain of {stages} equal stages", value=round(best, 4), unit="of the step")
        for name, share in _by_stage(loss):
            yield Evidence(metric=f"exposed on {name}", value=round(share, 4), unit="of the step")


def _by_stage(loss: Loss) -> list[tuple[str, float]]:
    """(who, share of their time) by stage; by rank where stages are not known and ranks are few."""
    share = _by_rank(loss)
    groups = [group for group in loss.context.stages if set(group) <= set(share)]
    if groups:
        return [(f"ranks {_few(group)}", sum(share[r] for r in group) / len(group)) for group in groups]
    return [(f"rank {rank}", value) for rank, value in share.items()] if len(share) <= 8 else []


def _by_rank(loss: Loss) -> dict[int, float]:
    wall = loss.context.step.wall_ns
    return {
        view.rank: float(view.bubbles.ns[rows].sum()) / max(loss.context.ledger.steps_of(view), 1) / max(wall, 1)
        for view, rows in zip(loss.views, loss.rows, strict=True)
    }


def _worst(loss: Loss) -> str:
    return max(_by_stage(loss) or [(f"rank {r}", s) for r, s in _by_rank(loss).items()], key=lambda item: item[1])[0]


def _few(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks[:4]))
    return named if len(ranks) <= 4 else f"{named} and {len(ranks) - 4} more"


def _microbatches(loss: Loss) -> int:
    """How often backward follows forward in a step of the first rank."""
    view = loss.views[0]
    rows = view.ops.call != -1
    launched = np.argsort(view.process.calls.start[view.ops.call[rows]], kind="stable")
    phase, step = view.labels.phase[rows][launched], view.labels.step[rows][launched]
    kept = np.isin(phase, (FORWARD, BACKWARD)) & (step == (loss.steps[0] if loss.steps else -1))
    phase = phase[kept]
    return int(np.count_nonzero((phase[1:] == BACKWARD) & (phase[:-1] == FORWARD)))


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Whose experts have most to do."""

    rank: int
    ratio: float
    """Over the mean of all ranks."""


class ExpertExchange(ByNature):
    """TK117: all-to-alls that bring tokens to their experts and back."""

    code = "TK117"
    title = "All-to-alls of experts are exposed"
    causes = ("expert_parallel",)
    serves = EXPERT
    general = (
        "Run the all-to-all of one half of the batch beside the experts of the other, or beside the shared experts "
        "(Megatron's --overlap-moe-expert-parallel-comm, --moe-shared-expert-overlap); send tokens as fp8; keep the "
        "experts of a token's group within one NVLink domain."
    )

    def claim(self, loss: Loss) -> str:
        """How much, and who has most tokens where that differs."""
        most = _imbalance(loss)
        text = f"All-to-alls of experts take {loss.percent}"
        if most is None or most.ratio < loss.context.thresholds.slow_compute_ratio:
            return text
        return f"{text}: rank {most.rank}'s experts have {most.ratio:.2f} × the mean to do, and the others wait"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """Count, share and imbalance."""
        yield collectives_a_step(loss, "all-to-alls")
        yield exposed_share(loss)
        most = _imbalance(loss)
        if most is not None:
            yield Evidence(
                metric=f"expert compute of rank {most.rank}",
                value=round(most.ratio, 3),
                unit="× the mean",
                threshold=loss.context.thresholds.slow_compute_ratio,
            )

    def fix(self, context: Context) -> str:
        """Balance comes first where it is missing."""
        return (
            "Where one rank's experts have more tokens than the others', balance them first: a loss or bias for "
            "balance, a capacity factor, or experts placed by their load. " + self.general
        )


def _imbalance(loss: Loss) -> Imbalance | None:
    """The rank with most work between all-to-alls; None where fewer than two ranks have any."""
    work = {view.rank: expert_work(view) for view in loss.views}
    known = {rank: ns for rank, ns in work.items() if ns}
    if len(known) < 2:
        return None
    rank = max(known, key=lambda r: (known[r], -r))
    return Imbalance(rank, known[rank] * len(known) / sum(known.values()))


class ContextRing(ByNature):
    """TK118: keys and values of a context-parallel ring outlast the attention beside them."""

    code = "TK118"
    title = "Context-parallel exchange is exposed"
    causes = ("context_parallel",)
    serves = CONTEXT
    general = (
        "Each rank's part of the sequence is too short for the attention beside it to hide the exchange: split the "
        "sequence over fewer ranks, give all ranks equal shares of the causal mask (zigzag), or exchange heads by "
        "all-to-all within a node and keys and values between nodes."
    )

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return f"Keys and values of the context-parallel groups arrive after the attention beside them: {loss.percent}"
