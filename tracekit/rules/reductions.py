"""TK107, TK111, TK112: reductions of gradients that nothing hides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss
from tracekit.rules.schedule import CauseRule, collectives_a_step, exposed_share

Bool = NDArray[np.bool_]


class LastReduction(CauseRule):
    """TK107: the reduction that ends the backward pass."""

    code = "TK107"
    title = "The step's last reduction is exposed"
    causes = ("last_reduce",)
    fixes: ClassVar[Mapping[str, str]] = {
        "ddp": "Lower bucket_cap_mb, so that less is left for the last bucket.",
        "fsdp1": "Wrap the first layers and the embedding as units of their own, so that the last one is small.",
        "fsdp2": "Call fully_shard on the embedding too, so that the root's reduce-scatter is small.",
        "deepspeed": "Lower reduce_bucket_size, and set overlap_comm: true.",
    }
    general = "Make the last unit small, or start the optimizer on the units that are ready (optimizer in backward)."

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "The last reduction of the step has no compute left to hide behind"


def _of_ops(view: RankView, *ops: str) -> Bool:
    """(n,) mask of the bubbles whose collective is one of the ops."""
    found = view.collectives
    rows = found.row[np.isin(found.of, [i for i, (_, op) in enumerate(found.group) if op in ops])]
    result: Bool = np.isin(view.bubbles.op, rows)
    return result


def is_hybrid(view: RankView) -> bool:
    """Whether gradients are reduce-scattered and then all-reduced: at least half as many of the one as of the other."""
    found = view.collectives
    counts = dict.fromkeys(("reduce_scatter", "all_reduce"), 0)
    for i, (_, op) in enumerate(found.group):
        if op in counts:
            counts[op] += int(np.count_nonzero(found.of == i))
    scatters, reduces = counts["reduce_scatter"], counts["all_reduce"]
    return scatters > 0 and 0.5 * scatters <= reduces <= 2 * scatters


class MicrobatchReductions(CauseRule):
    """TK111: gradients are reduced for every microbatch."""

    code = "TK111"
    title = "Gradients are reduced for every microbatch"
    causes = ("microbatch_reduce",)
    fixes: ClassVar[Mapping[str, str]] = {
        "ddp": "Run all microbatches but the last under model.no_sync().",
        "fsdp1": "Run all microbatches but the last under model.no_sync(), if memory allows.",
        "fsdp2": "Call model.set_requires_gradient_sync(False) for all microbatches but the last, if memory allows.",
        "deepspeed": "Reduce at the boundary of accumulation only: ZeRO-1 does, ZeRO-2 and 3 reduce every microbatch.",
    }
    general = "Add up gradients locally and reduce once a step."

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Needs ranges that tell forward from backward."""
        if not _phases_told(context):
            if any(np.any(_of_ops(view, "reduce_scatter", "all_reduce")) for view in context.views):
                yield _no_phases(self.code)
            return
        yield from super().check(context)

    def pick(self, view: RankView) -> Bool:
        """Of a hybrid job only its reduce-scatters: TK112 has the rest."""
        picked = super().pick(view)
        return picked & ~_of_ops(view, "all_reduce") if is_hybrid(view) else picked

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "Gradients are reduced after every microbatch, not once a step"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How many reductions before the last microbatch."""
        yield collectives_a_step(loss, "reductions")
        yield exposed_share(loss)


class ReplicaReductions(CauseRule):
    """TK112: a hybrid job all-reduces among replicas too often, or one after the other with its reduce-scatters."""

    code = "TK112"
    title = "Replicas all-reduce for every microbatch, or behind each reduce-scatter"
    causes = ("microbatch_reduce",)
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Run all microbatches but the last under model.no_sync().",
        "fsdp2": "Call model.set_requires_all_reduce(False) for all microbatches but the last.",
    }
    general = "Reduce among replicas once a step, on a stream of its own, beside the next unit's reduce-scatter."

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Only for jobs that do both kinds of reductions."""
        if not any(is_hybrid(view) for view in context.views):
            return
        yield from super().check(context)

    def pick(self, view: RankView) -> Bool:
        """All-reduces of early microbatches; on the reduce-scatters' own stream also those that queue there."""
        if not is_hybrid(view):
            return np.zeros(len(view.bubbles), np.bool_)
        causes = (*self.causes, "bandwidth", "last_reduce") if _serial(view) else self.causes
        return view.bubbles.of_cause(Lost.EXPOSED_COMM, *causes) & _of_ops(view, "all_reduce")

    def claim(self, loss: Loss) -> str:
        """Which of the two it is."""
        if any(_serial(view) for view in loss.views):
            return "Replicas all-reduce one after the other with the reduce-scatters, on one stream"
        return "Replicas all-reduce their gradients after every microbatch, not once a step"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How many all-reduces."""
        yield collectives_a_step(loss, "all-reduces")
        yield exposed_share(loss)


def _serial(view: RankView) -> bool:
    """Whether all-reduces of gradients run on the streams of the reduce-scatters."""
    found = view.collectives
    op = np.array([name for _, name in found.group] or [""])[found.of]
    stream = view.ops.stream[found.row]
    reduces = stream[op == "all_reduce"]
    return bool(np.count_nonzero(np.isin(reduces, stream[op == "reduce_scatter"])) > 0.5 * max(len(reduces), 1))


def _phases_told(context: Context) -> bool:
    wanted = (PHASES.index("forward"), PHASES.index("backward"))
    return all(any(np.any(view.labels.phase == phase) for view in context.views) for phase in wanted)


def _no_phases(rule: str) -> SkippedRule:
    return SkippedRule(
        rule=rule,
        reason="no ranges tell forward from backward",
        capture_with="nsys profile -t cuda,nvtx, with NVTX ranges around forward and backward",
    )
