"""TK101 to TK104, TK106, TK108, TK110: communication that could have been hidden, had it been issued otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tracekit.config import DEFAULT
from tracekit.metrics.activity import EVENT_SYNCS
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.results import Evidence, Finding, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.frameworks import fix_for
from tracekit.rules.loss import Loss
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Delay = Callable[[RankView, NDArray[np.intp]], NDArray[np.int64]]
"""ns for each of some rows of a rank's bubbles."""
BACKWARD = PHASES.index("backward")


class CauseRule:
    """Reports the exposed bubbles of some causes, from 2 % of the step on."""

    code: str
    title: str
    causes: tuple[str, ...]
    fixes: ClassVar[Mapping[str, str]] = {}
    general = ""

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """One finding for all ranks; where launches were not recorded it cannot be told."""
        loss = Loss.of(context, self.pick)
        if loss.share >= context.thresholds.warning_share:
            yield loss.report(self.code, self.claim(loss), self.evidence(loss), self.fix(context))
        elif skipped := without_launches(context, self.code):
            yield skipped

    def pick(self, view: RankView) -> Bool:
        """The rank's bubbles that the rule is about."""
        return view.bubbles.of_cause(Lost.EXPOSED_COMM, *self.causes)

    def claim(self, loss: Loss) -> str:
        """The title of the finding."""
        raise NotImplementedError

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """What proves it: how many collectives a step, and their exposed time."""
        yield collectives_a_step(loss)
        yield exposed_share(loss)

    def fix(self, context: Context) -> str:
        """What to try, in the words of the job's framework."""
        return fix_for(context.timeline, self.fixes, self.general)


def without_launches(context: Context, rule: str) -> SkippedRule | None:
    """Why a rule about the order of launch cannot be checked."""
    known = sum(rank.kernels_launched for rank in context.ranks)
    if known >= context.thresholds.launch_rows_share * sum(rank.kernels for rank in context.ranks):
        return None
    reason = "the launch calls of too many kernels are missing"
    return SkippedRule(rule=rule, reason=reason, capture_with=REMEDIES["launch_rows"][1])


def collectives_a_step(loss: Loss, words: str = "collectives") -> Evidence:
    """How many different operations are exposed, a step and rank."""
    count = sum(len(np.unique(v.bubbles.op[rows])) for v, rows in zip(loss.views, loss.rows, strict=True))
    return Evidence(metric=f"{words} exposed so, a step", value=round(count / loss.windows, 2), unit=words)


def exposed_share(loss: Loss) -> Evidence:
    """Their share of the step."""
    threshold = loss.context.thresholds.warning_share
    return Evidence(metric="exposed so", value=round(loss.share, 4), unit="of the step", threshold=threshold)


def median_delay(loss: Loss, metric: str, of_view: Delay) -> Evidence:
    """Median over bubbles of a delay, µs, beside the threshold for "at once"."""
    parts = [of_view(view, rows) for view, rows in zip(loss.views, loss.rows, strict=True)]
    limit = loss.context.thresholds.handover_ns / 1_000
    value = round(float(np.median(np.concatenate(parts))) / 1_000, 2)
    return Evidence(metric=metric, value=value, unit="us", threshold=limit)


def _after_compute(view: RankView, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """ns from the end of the compute before each bubble's collective to its start."""
    return _since(view.covers.compute.end, view.ops.start[view.bubbles.op[rows]])


def _since(ends: NDArray[np.int64], t: NDArray[np.int64]) -> NDArray[np.int64]:
    """ns from the last of sorted ends to each t; an end up to a clock's tick after t counts as at t."""
    at = np.searchsorted(ends, t + DEFAULT.clock_tolerance_ns, side="right") - 1
    result: NDArray[np.int64] = np.maximum(t - ends[np.maximum(at, 0)], 0)
    return result


class NoPrefetch(CauseRule):
    """TK101 and TK102: gathers that are issued only when they are needed."""

    causes = ("no_prefetch",)
    backward: bool

    def pick(self, view: RankView) -> Bool:
        """Of one direction; where no range tells the direction it is TK101's."""
        picked = super().pick(view)
        result: Bool = picked & (in_backward(view) == self.backward)
        return result

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How soon after compute, and that nothing was issued ahead."""
        yield collectives_a_step(loss, "gathers")
        yield median_delay(loss, "start after the end of the compute before, median", _after_compute)
        yield exposed_share(loss)


def _phase(view: RankView) -> NDArray[np.int64]:
    """Phase of each bubble's operation, NONE where not known."""
    op = view.bubbles.op
    return np.where(op != NONE, view.labels.phase[np.maximum(op, 0)], NONE)


def in_backward(view: RankView) -> Bool:
    """(n,) mask of the bubbles whose operation was launched in the backward pass."""
    result: Bool = _phase(view) == BACKWARD
    return result


class NoForwardPrefetch(NoPrefetch):
    """TK101: no gather of the forward pass is issued ahead."""

    code = "TK101"
    title = "No prefetch in the forward pass"
    backward = False
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Pass forward_prefetch=True to FullyShardedDataParallel.",
        "fsdp2": "Call set_modules_to_forward_prefetch([next layer]) on each layer, or keep the host ahead of the GPU.",
        "deepspeed": "Raise stage3_prefetch_bucket_size (and stage3_max_live_parameters), and set overlap_comm: true.",
    }
    general = "Issue each unit's gather before the unit ahead of it computes."

    def claim(self, loss: Loss) -> str:
        """Says where no range tells the direction."""
        told = any(np.any(_phase(v)[rows] != NONE) for v, rows in zip(loss.views, loss.rows, strict=True))
        where = "of the forward pass" if told else "(forward or backward: no range tells)"
        return f"All-gathers {where} are issued only when their parameters are needed"

    def fix(self, context: Context) -> str:
        """Both directions where no range tells them apart."""
        text = super().fix(context)
        if any(np.any(view.labels.phase != NONE) for view in context.views):
            return text
        return text + " In the backward pass: backward_prefetch=BackwardPrefetch.BACKWARD_PRE (FSDP1)."


class NoBackwardPrefetch(NoPrefetch):
    """TK102: no gather of the backward pass is issued ahead."""

    code = "TK102"
    title = "No prefetch in the backward pass"
    backward = True
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Pass backward_prefetch=BackwardPrefetch.BACKWARD_PRE to FullyShardedDataParallel.",
        "fsdp2": "Call set_modules_to_backward_prefetch([previous layer]) on each layer.",
        "deepspeed": "Raise stage3_prefetch_bucket_size, and set overlap_comm: true.",
    }
    general = "Issue each unit's gather before the unit that comes ahead of it in the backward pass computes."

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "All-gathers of the backward pass are issued only when their parameters are needed"


class QueuedBehindReductions(CauseRule):
    """TK103: gathers wait for reductions of the same communicator."""

    code = "TK103"
    title = "Gathers queue behind reductions"
    causes = ("queued_behind_comm",)
    general = (
        "Give gathers and reductions communicators of their own: a second process group over the same ranks for one of "
        "them (torch.distributed.new_group). A communicator runs one operation at a time, on whatever stream it is."
    )

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "All-gathers wait for reduce-scatters, with which they never run together"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How soon after the reduction's end."""
        yield collectives_a_step(loss, "gathers")
        yield median_delay(loss, "start after the end of a reduction on another stream, median", _after_reduction)
        yield exposed_share(loss)


def _after_reduction(view: RankView, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """ns from the latest end of a communication on another stream to the start of each bubble's collective."""
    return _since(np.sort(view.ops.end[view.collectives.row]), view.ops.start[view.bubbles.op[rows]])


class OnComputeStream(CauseRule):
    """TK104: collectives on the stream that computes."""

    code = "TK104"
    title = "Communication on the compute stream"
    causes = ("on_compute_stream",)
    general = (
        "Issue these collectives with async_op=True and wait for the returned work only where the result is needed, or "
        "under torch.cuda.stream(a stream of their own): on the compute stream nothing can run beside them."
    )

    def claim(self, loss: Loss) -> str:
        """Says which stream."""
        view, rows = loss.views[0], loss.rows[0]
        streams = np.unique(view.ops.stream[view.bubbles.op[rows]]).tolist()
        return f"Collectives run on the compute stream ({', '.join(map(str, streams[:3]))}), where nothing hides them"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How much of all communication is there."""
        yield collectives_a_step(loss)
        ours = [np.unique(view.bubbles.op[rows]) for view, rows in zip(loss.views, loss.rows, strict=True)]
        on = sum(int((v.ops.end[op] - v.ops.start[op]).sum()) for v, op in zip(loss.views, ours, strict=True))
        share = on / sum(int(view.collectives.duration.sum()) for view in loss.context.views)
        yield Evidence(metric="their time", value=round(share, 4), unit="of all communication")
        yield exposed_share(loss)


class FirstGather(CauseRule):
    """TK106: the gather that begins the step."""

    code = "TK106"
    title = "The step's first gather is exposed"
    causes = ("first_gather",)
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Wrap the embedding and the head as units of their own (auto_wrap_policy), so that the root is small.",
        "fsdp2": "Call fully_shard on the embedding and the head too, so that the root is small.",
        "deepspeed": "Raise stage3_param_persistence_threshold, so that small parameters are never gathered.",
    }
    general = "Nothing of the step can hide its first gather: make it small, or keep those parameters gathered."

    def claim(self, loss: Loss) -> str:
        """Says where it is not one but many."""
        count = sum(len(np.unique(v.bubbles.op[rows])) for v, rows in zip(loss.views, loss.rows, strict=True))
        if count >= loss.context.thresholds.first_gathers * loss.windows:
            return f"{count / loss.windows:.0f} gathers begin the step, one behind another, with no compute beside them"
        return "The gather that begins the step is exposed"

    def fix(self, context: Context) -> str:
        """Many gathers before any compute are many small units."""
        loss = Loss.of(context, self.pick)
        count = sum(len(np.unique(v.bubbles.op[rows])) for v, rows in zip(loss.views, loss.rows, strict=True))
        units = (
            "Wrap larger units: whole blocks, not their layers. "
            if count >= context.thresholds.first_gathers * loss.windows
            else ""
        )
        return units + super().fix(context)


class HeldUpByLaunchOrder(CauseRule):
    """TK108: reductions hold up compute that does not need them."""

    code = "TK108"
    title = "Launch order rules"
    causes = ("launch_order",)
    general = (
        "Unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 8 to 32. With 1, operations of all streams start in the order "
        "of launch, and compute that was launched after a reduction waits for it. Megatron asks for 1 where "
        "tensor or sequence parallelism overlaps: then use fewer, larger buckets."
    )

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "Compute waits for reductions that it does not need: all streams start in the order of launch"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How many, and how soon compute goes on."""
        yield collectives_a_step(loss, "reductions")
        yield median_delay(loss, "next compute starts after their end, median", _to_next_compute)
        yield exposed_share(loss)


def _to_next_compute(view: RankView, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """ns from each bubble's end to the next compute; 0 at the end."""
    starts, end = view.covers.compute.start, view.bubbles.end[rows]
    at = np.searchsorted(starts, end)
    return np.where(at < len(starts), np.append(starts, 0)[at] - end, 0)


class OptimizerGathers(CauseRule):
    """TK110: parameters are gathered after the optimizer, with nothing to hide it."""

    code = "TK110"
    title = "Gathers after the optimizer's step are exposed"
    causes = ("optimizer_phase",)
    fixes: ClassVar[Mapping[str, str]] = {
        "deepspeed": "ZeRO-1/2: set overlap_comm: true, and raise allgather_bucket_size: fewer, larger gathers.",
        "ddp": "ZeroRedundancyOptimizer: overlap_with_ddp=True, or parameters_as_bucket_view=True.",
    }
    general = (
        "Gather each bucket of parameters as soon as it is updated, under the rest of the update or the next forward."
    )

    def claim(self, loss: Loss) -> str:
        """Names what runs there."""
        return "Updated parameters are communicated after the optimizer's step, with nothing beside it"


class RateLimited(CauseRule):
    """TK404: the host holds gathers back until earlier ones have been used."""

    code = "TK404"
    title = "A rate limiter holds gathers back"
    causes = ("rate_limiter",)
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Pass limit_all_gathers=False to FullyShardedDataParallel, if memory allows.",
    }
    general = "The host waits for an event before it issues a gather: let it issue the gather first."

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "The host waits for the GPU before it issues a gather, and the gather comes too late"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """How soon after the wait the gather is launched."""
        yield collectives_a_step(loss, "gathers")
        limit = loss.context.thresholds.rate_limiter_ns / 1_000
        parts = [_after_wait(view, rows) for view, rows in zip(loss.views, loss.rows, strict=True)]
        value = round(float(np.median(np.concatenate(parts))) / 1_000, 2)
        yield Evidence(metric="launched after a wait for an event, median", value=value, unit="us", threshold=limit)
        yield exposed_share(loss)


def _after_wait(view: RankView, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """ns from the end of the last wait for an event to the launch of each bubble's collective."""
    calls = view.process.calls
    waits = [i for i, name in enumerate(view.names) if name in EVENT_SYNCS]
    ends = np.sort(calls.end[np.isin(calls.name, waits)])
    return _since(ends, calls.start[view.ops.call[view.bubbles.op[rows]]])
