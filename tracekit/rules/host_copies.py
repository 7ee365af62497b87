"""TK408, TK414 and TK416: copies between host and GPU that nothing hides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import is_sync
from tracekit.metrics.bubbles import Lost
from tracekit.metrics.copies import TO_DEVICE, TO_HOST, named
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.rules.frameworks import fix_for, runtime_of
from tracekit.rules.loss import Loss
from tracekit.theory.host_links import host_link_of
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
Pick = Callable[[RankView, Int64], Bool]
OF_COPIES = "of their exposed time"
WORK = [PHASES.index(phase) for phase in ("forward", "backward", "optimizer")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The exposed copies of a loss, weighed."""

    loss: Loss
    count: int
    bytes: int
    ns: int
    """Exposed; idle time that belongs to the loss is left out."""
    large_bytes: int
    large_ns: int
    """Of copies that carry tensors: their whole length, hidden or not."""

    @classmethod
    def of(cls, loss: Loss) -> Copied:
        """Each operation counts once, however many bubbles it has."""
        least = loss.context.thresholds.tensor_bytes
        count = size = ns = large_size = large_ns = 0
        for view, rows in zip(loss.views, loss.rows, strict=True):
            rows = rows[view.bubbles.lost[rows] == Lost.EXPOSED_COPY]  # noqa: PLW2901
            op = np.unique(view.bubbles.op[rows])
            large = op[view.ops.bytes[op] >= least]
            count, ns = count + len(op), ns + int(view.bubbles.ns[rows].sum())
            size += int(np.maximum(view.ops.bytes[op], 0).sum())
            large_size += int(view.ops.bytes[large].sum())
            large_ns += int((view.ops.end[large] - view.ops.start[large]).sum())
        return cls(loss=loss, count=count, bytes=size, ns=ns, large_bytes=large_size, large_ns=large_ns)

    @property
    def gb_per_s(self) -> float | None:
        """Of the copies that carry tensors; None without any."""
        return self.large_bytes / self.large_ns if self.large_ns else None

    def share(self, pick: Pick) -> float:
        """Share of the exposed time of the copies that are picked."""
        ns = 0
        for view, rows in zip(self.loss.views, self.loss.rows, strict=True):
            rows = rows[view.bubbles.lost[rows] == Lost.EXPOSED_COPY]  # noqa: PLW2901
            ns += int(view.bubbles.ns[rows][pick(view, view.bubbles.op[rows])].sum())
        return ns / self.ns if self.ns else 0.0

    def part(self, metric: str, pick: Pick) -> Evidence:
        """That share as evidence."""
        return Evidence(metric=metric, value=round(self.share(pick), 4), unit=OF_COPIES)

    def evidence(self) -> Iterable[Evidence]:
        """How many copies, how much, how fast, and how fast the link is."""
        windows = self.loss.windows
        yield Evidence(metric="exposed copies", value=round(self.count / windows, 1), unit="a step")
        yield Evidence(metric="copied", value=round(self.bytes / windows / 1e6, 2), unit="MB a step")
        if self.gb_per_s is None:
            return
        link = host_link_of(self.loss.context.ranks[0].device_name)
        yield Evidence(
            metric=f"rate of copies of 1 MiB or more{f', {link.name} can do' if link else ''}",
            value=round(self.gb_per_s, 2),
            unit="GB/s",
            threshold=link.gb_per_s if link else None,
        )


def pageable(view: RankView, op: Int64) -> Bool:
    """Whether ordinary memory is at one end of each copy."""
    result: Bool = view.ops.pageable[op]
    return result


def synchronous(view: RankView, op: Int64) -> Bool:
    """Whether each operation's launch call waits for it by its name."""
    call = view.ops.call[op]
    waits = np.flatnonzero(view.activity.calls_named(is_sync))
    result: Bool = np.isin(call, waits)
    return result


def on_main_stream(view: RankView, op: Int64) -> Bool:
    """Whether each operation runs on the stream that computes."""
    result: Bool = view.ops.stream[op] == view.main_stream
    return result


def to_host(view: RankView, op: Int64) -> Bool:
    """Whether each copy goes to the host."""
    return named(view.ops, op, view.activity.names, TO_HOST)


class HeldByCopy:
    """TK408: compute waits for copies from or to ordinary memory, or in the way of compute."""

    code = "TK408"
    title = "Compute waits for copies between host and GPU"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed copies that are pageable, synchronous, or to the GPU on the compute stream."""
        loss = Loss.of(context, lambda view: _held(view, context.thresholds.tensor_bytes))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        copied = Copied.of(loss)
        shares = {
            "pageable": copied.share(pageable),
            "synchronous": copied.share(synchronous),
            "on the compute stream": copied.share(on_main_stream),
            "to the host": copied.share(to_host),
        }
        half = context.thresholds.explained_share
        yield loss.report(
            self.code,
            f"Compute waits for copies {_direction(shares['to the host'])} {_kind(shares, half)}: {loss.percent}",
            [
                *copied.evidence(),
                *(Evidence(metric=name, value=round(part, 4), unit=OF_COPIES) for name, part in shares.items()),
            ],
            _fix(context, copied, ordinary=shares["pageable"] >= half),
        )


def _direction(to_the_host: float) -> str:
    if to_the_host == 0:
        return "to the GPU"
    return "to the host" if to_the_host == 1 else "between host and GPU"


def _kind(shares: dict[str, float], half: float) -> str:
    """What most of the time goes to, in words."""
    if shares["pageable"] >= half:
        return "from pageable memory" if shares["to the host"] == 0 else "with pageable memory at one end"
    if shares["synchronous"] >= half:
        return "made by calls that wait for them"
    return "on the stream that computes"


def _fix(context: Context, copied: Copied, *, ordinary: bool) -> str:
    """By the kind of memory that most of the time goes to, in the words of the library that copies."""
    runtime = runtime_of(context.timeline)
    ahead = "Copy one batch ahead on a stream of its own, or move fewer bytes."
    if not ordinary:
        link = host_link_of(context.ranks[0].device_name)
        rate = copied.gb_per_s
        near = link is not None and rate is not None and rate >= context.thresholds.link_near_share * link.gb_per_s
        full = " They run at the speed of the link: only fewer bytes, or compute beside them, help."
        return ahead + (full if near else "")
    if runtime == "torch":
        return (
            "Pin the memory: DataLoader(pin_memory=True), or tensor.pin_memory(), and .to(device, non_blocking=True), "
            "one batch ahead, on a stream of its own; without pinned memory non_blocking has no effect."
        )
    if runtime == "jax":
        return "Put the next batch on the device while this one computes (jax.device_put does not wait)."
    return (
        "Allocate the host memory with cudaHostAlloc (or register it with cudaHostRegister), copy with "
        "cudaMemcpyAsync on a stream of its own, in pieces beside the kernels."
    )


def _held(view: RankView, tensor_bytes: int) -> Bool:
    """Exposed copies that hold up host or compute stream, and the idle time that follows and lies between them."""
    bubbles, ops = view.bubbles, view.ops
    picked: Bool = (bubbles.lost == Lost.EXPOSED_COPY) & ~bubbles.of_cause(Lost.EXPOSED_COPY, "offload", "migration")
    rows = np.flatnonzero(picked)
    picked[rows] = _holds(view, bubbles.op[rows], tensor_bytes)
    # The host has waited for the copy, so that nothing is queued behind it.
    idle = np.flatnonzero(bubbles.of_cause(Lost.IDLE, "sync_call") & (bubbles.before != NONE))
    before = bubbles.before[idle]
    waited = pageable(view, before) | synchronous(view, before)
    picked[idle] = waited & _holds(view, before, tensor_bytes)
    # One copy after the other: what the host takes to prepare the next belongs to them, if it is no longer than they.
    idle = np.flatnonzero((bubbles.lost == Lost.IDLE) & (bubbles.before != NONE) & (bubbles.after != NONE))
    before, after = bubbles.before[idle], bubbles.after[idle]
    large = np.minimum(ops.bytes[before], ops.bytes[after]) >= tensor_bytes
    long = (ops.end - ops.start)[before] + (ops.end - ops.start)[after]
    row = pageable(view, before) & pageable(view, after) & large & (ops.start[after] - ops.end[before] <= long)
    picked[idle] |= row & _holds(view, before, tensor_bytes) & _holds(view, after, tensor_bytes)
    return picked


def _holds(view: RankView, op: Int64, tensor_bytes: int) -> Bool:
    """Copies to the GPU in the way of host or compute stream; to the host only tensors."""
    ops = view.ops
    waits = pageable(view, op) | synchronous(view, op)
    to_gpu = named(ops, op, view.activity.names, TO_DEVICE) & (waits | on_main_stream(view, op))
    # Nothing waits for what is copied behind the last kernel.
    last = view.covers.compute_or_comm.start[-1:]
    waited_for = ops.start[op] < (int(last[0]) if len(last) else 0)
    result: Bool = to_gpu | (to_host(view, op) & waits & (ops.bytes[op] >= tensor_bytes) & waited_for)
    return result


class PinnedCopies:
    """TK416: copies between host and GPU that run asynchronously, and still nothing hides them."""

    code = "TK416"
    title = "Copies between host and GPU are not hidden"

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for what TK408 and TK414 leave of exposed copies to and from the host."""
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.EXPOSED_COPY, "input", "host_copy"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        copied = Copied.of(loss)
        # Where some copy is known to be pageable the capture tells of memory: then the others are not.
        told = any(bool(view.ops.pageable.any()) for view in context.views)
        yield loss.report(
            self.code,
            f"Copies between host and GPU{' from and to pinned memory' if told else ''} are not hidden: {loss.percent}",
            [
                *copied.evidence(),
                copied.part("to the host", to_host),
                copied.part("on the compute stream", on_main_stream),
            ],
            "Copy earlier, on a stream of its own, so that kernels run beside it; or move fewer bytes.",
        )


class OffloadExposed:
    """TK414: the GPU waits for tensors that are kept on the host."""

    code = "TK414"
    title = "The GPU waits for what is offloaded to the host"
    fixes: ClassVar[Mapping[str, str]] = {
        "fsdp2": "CPUOffloadPolicy(pin_memory=True).",
        "deepspeed": 'offload_param and offload_optimizer with "pin_memory": true.',
    }
    general = "Copy on a stream of its own and a layer ahead, or offload less (recompute, or shard over more GPUs)."

    def check(self, context: Context) -> Iterable[Finding]:
        """Fires for exposed copies of tensors inside forward, backward and optimizer."""
        loss = Loss.of(context, lambda view: view.bubbles.of_cause(Lost.EXPOSED_COPY, "offload"))
        if loss.share < context.thresholds.reported_share or loss.cost_ns == 0:
            return
        copied = Copied.of(loss)
        ordinary = copied.share(pageable)
        pin = "Pin the memory. " if ordinary >= context.thresholds.explained_share else ""
        yield loss.report(
            self.code,
            f"Offloading is not hidden: {loss.percent} waits for copies to and from the host"
            if any(np.any(np.isin(view.labels.phase, WORK)) for view in loss.views)
            else f"Large copies to the host are not hidden: {loss.percent}",
            [
                *copied.evidence(),
                copied.part("to the host", to_host),
                copied.part("on the stream that computes", on_main_stream),
                copied.part("pageable", pageable),
            ],
            pin + fix_for(context.timeline, self.fixes if pin else {}, self.general),
        )
