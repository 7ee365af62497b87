"""TK105, TK109 and TK114: transfers that start in time and still last too long: too many, too large, or needless."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.exposure import many_and_short
from tracekit.metrics.roles import roles_of
from tracekit.metrics.views import RankView
from tracekit.metrics.work import work_of
from tracekit.results import Collective, Evidence, Finding, Severity, SkippedRule
from tracekit.rules.base import Context
from tracekit.rules.loss import Loss, milliseconds
from tracekit.rules.schedule import CauseRule, collectives_a_step, exposed_share, in_backward
from tracekit.theory.gpus import gpu_of

Bool = NDArray[np.bool_]


class LatencyBound(CauseRule):
    """TK105: many collectives so short that most of each is latency."""

    code = "TK105"
    title = "Many small collectives"
    causes = ("latency_bound",)
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "Wrap whole transformer blocks (transformer_auto_wrap_policy), not single linear layers.",
        "fsdp2": "Call fully_shard on whole blocks, not on single linear layers.",
        "deepspeed": (
            "Raise stage3_param_persistence_threshold and reduce_bucket_size; mark blocks with set_z3_leaf_modules."
        ),
        "ddp": "Raise bucket_cap_mb.",
    }
    general = "Move the same bytes with fewer collectives."

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Small collectives that are exposed for another reason as well are told without a cost: that rule has it."""
        own = list(super().check(context))
        yield from own
        if own:
            return
        loss = Loss.of(context, lambda view: _small(view, context.thresholds))
        ns = int(loss.lengths().sum()) / loss.windows
        if not loss.views or ns < context.thresholds.warning_share * context.step.wall_ns:
            return
        yield Finding(
            rule=self.code,
            severity=Severity.INFO,
            title=self.claim(loss),
            ranks=loss.ranks,
            steps=loss.steps,
            cost_ns=None,
            gain_ns=None,
            evidence=(
                *self._lengths(loss),
                Evidence(metric="exposed, under other findings", value=milliseconds(ns), unit="ms a step"),
            ),
            fix=self.fix(context),
        )

    def claim(self, loss: Loss) -> str:
        """How short they are."""
        return f"Many collectives last {_median_us(loss):.0f} us, mostly latency, and are exposed"

    def evidence(self, loss: Loss) -> Iterable[Evidence]:
        """Number and length."""
        yield from self._lengths(loss)
        yield exposed_share(loss)

    def _lengths(self, loss: Loss) -> Iterable[Evidence]:
        limit = loss.context.thresholds.latency_bound_ns / 1_000
        yield Evidence(metric="median duration", value=round(_median_us(loss), 2), unit="us", threshold=limit)
        yield collectives_a_step(loss)


def _small(view: RankView, thresholds: Thresholds) -> Bool:
    """(n,) mask of the exposed bubbles, but for waiting, of collectives that are many a step and mostly latency."""
    small = np.zeros(len(view.bubbles), np.bool_)
    found = view.collectives
    sizes = np.bincount(found.of, minlength=len(found.group))
    if not np.any(sizes >= thresholds.latency_bound_count):
        return small
    roles = roles_of(view, work_of(view, thresholds), thresholds)
    rows = found.row[many_and_short(view, roles, thresholds)]
    small = (view.bubbles.lost == Lost.EXPOSED_COMM) & np.isin(view.bubbles.op, rows)
    result: Bool = small & ~view.bubbles.of_cause(Lost.EXPOSED_COMM, "start_up", "peer_wait")
    return result


def _median_us(loss: Loss) -> float:
    """Median duration of the operations that own the bubbles, µs."""
    parts = []
    for view, rows in zip(loss.views, loss.rows, strict=True):
        op = np.unique(view.bubbles.op[rows])
        parts.append(view.ops.end[op] - view.ops.start[op])
    return float(np.median(np.concatenate(parts))) / 1_000


class TransferBound(CauseRule):
    """TK109: the link is busy as fast as it can, and compute does not hide it."""

    code = "TK109"
    title = "Bound by the transfer"
    causes = ("bandwidth",)
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "ShardingStrategy.HYBRID_SHARD; MixedPrecision(param_dtype=torch.bfloat16).",
        "fsdp2": "fully_shard over a mesh of two dimensions; MixedPrecisionPolicy(param_dtype=torch.bfloat16).",
        "deepspeed": "ZeRO++ (zero_hpz_partition_size, zero_quantized_weights), or a lower stage.",
        "ddp": "The bf16 compression hook (register_comm_hook).",
    }
    general = "Move fewer bytes (shard inside a host only, lower precision), or compute more for each (larger batch)."

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where the exposed collectives run at 80 % of their link or more."""
        loss = Loss.of(context, self.pick)
        if loss.share < context.thresholds.warning_share:
            return
        fast, reason = _at_the_limit(context)
        if reason:
            yield reason
            return
        keys = {(row.communicator, row.op) for row, _ in fast}
        loss = Loss.of(context, lambda view: self.pick(view) & _of_groups(view, keys))
        if loss.share >= context.thresholds.warning_share:
            evidence = [*self.evidence(loss), *_speeds(context, fast)]
            yield loss.report(self.code, self.claim(loss), evidence, self.fix(context))

    def claim(self, loss: Loss) -> str:
        """One sentence for all."""
        return "Collectives start in time and run at the speed of the link, and compute is too short to hide them"


def _of_groups(view: RankView, keys: set[tuple[str | None, str]]) -> Bool:
    """(n,) mask of the bubbles whose collective is of one of the (communicator, op)."""
    found = view.collectives
    rows = found.row[np.isin(found.of, [i for i, key in enumerate(found.group) if key in keys])]
    result: Bool = np.isin(view.bubbles.op, rows)
    return result


def _at_the_limit(context: Context) -> tuple[list[tuple[Collective, float]], SkippedRule | None]:
    """(collectives near their link's peak, each with its share of it; why it cannot be told)."""
    gpu = gpu_of(context.ranks[0].device_name)
    hosts = {rank.host or context.timeline.captures[rank.capture].path for rank in context.ranks}
    known = [row for row in context.collectives if row.busbw_gbps is not None]
    if not known:
        return [], SkippedRule(
            rule="TK109",
            reason="no bus bandwidth: it needs message sizes and the captures of all ranks",
            capture_with="nsys 2024.6 or newer, nsys export --include-blobs=true, all ranks analyzed together",
        )
    if gpu is None or gpu.nvlink_gb_per_s is None or len(hosts) > 1:
        what = "between hosts" if len(hosts) > 1 else f"of {context.ranks[0].device_name or 'this GPU'}"
        reason = f"the peak of the link {what} is not known"
        return [], SkippedRule(rule="TK109", reason=reason, capture_with=None)
    shares = [(row, (row.busbw_gbps or 0.0) / gpu.nvlink_gb_per_s) for row in known]
    return [(row, share) for row, share in shares if share >= context.thresholds.link_bound_share], None


def _speeds(context: Context, fast: list[tuple[Collective, float]]) -> Iterable[Evidence]:
    for row, share in fast[:3]:
        yield Evidence(
            metric=f"bus bandwidth of {row.op.replace('_', '-')} over the link's peak",
            value=round(share, 4),
            unit="ratio",
            threshold=context.thresholds.link_bound_share,
        )


def _gigabytes(size: int) -> float:
    return round(size / 1e9, 3)


def _memory_unknown(context: Context) -> tuple[str, str | None]:
    """(why it is not known whether there is room, what to capture)."""
    memory = context.memory
    if any(rank.peak_bytes is None for rank in memory.ranks):
        return "how much memory the GPUs have to spare is not known", "nsys profile --cuda-memory-usage=true"
    if memory.spare_bytes is None:
        return "how much memory the GPUs have is not known", None
    return "how large the units are that are gathered again is not known", None


class GatheredTwice(CauseRule):
    """TK114: parameters are gathered again for the backward pass though memory is to spare."""

    code = "TK114"
    title = "Parameters are gathered twice"
    causes = ("no_prefetch", "queued_behind_comm", "bandwidth", "latency_bound")

    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp1": "ShardingStrategy.SHARD_GRAD_OP.",
        "fsdp2": "fully_shard(..., reshard_after_forward=False).",
        "deepspeed": "stage 2, or a higher stage3_max_live_parameters and stage3_max_reuse_distance.",
    }
    general = "Keep the parameters gathered between the forward and the backward pass."

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Fires where gathers of the backward pass are exposed and what they bring would fit."""
        ledger, wall = context.ledger, context.step.wall_ns
        again = sum(int(v.bubbles.ns[self.pick(v) & ledger.counted(v)].sum()) for v in context.views)
        if not again or again < context.thresholds.warning_share * wall * ledger.windows:
            return
        memory = context.memory
        if memory.spare_bytes is None or memory.kept_bytes is None:
            reason, remedy = _memory_unknown(context)
            yield SkippedRule(rule=self.code, reason=reason, capture_with=remedy)
            return
        unusable = sum(rank.capacity_bytes or 0 for rank in memory.ranks) / len(memory.ranks)
        unusable *= 1 - context.thresholds.usable_memory_share
        if memory.kept_bytes > memory.spare_bytes - unusable:
            return
        yield Loss.of(context, self.pick).report(
            self.code,
            "Parameters are gathered again for the backward pass, and there is room to keep them",
            [
                Evidence(
                    metric="exposed gathers of the backward pass",
                    value=milliseconds(again / ledger.windows),
                    unit="ms a step",
                ),
                Evidence(metric="units that are gathered again", value=_gigabytes(memory.kept_bytes), unit="GB"),
                Evidence(metric="memory to spare on the fullest GPU", value=_gigabytes(memory.spare_bytes), unit="GB"),
            ],
            self.fix(context),
        )

    def pick(self, view: RankView) -> Bool:
        """Exposed gathers of the backward pass."""
        gathers = _of_groups(view, {key for key in view.collectives.group if key[1] == "all_gather"})
        return super().pick(view) & gathers & in_backward(view)
