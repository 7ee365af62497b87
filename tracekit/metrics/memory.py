"""GPU memory: what was taken from the driver, and what model state, gathered units and activations should take.

Sources of the formulas are in `theory.memory`. What a caching allocator has taken is reserved, not all in use: the
measured figures are what the job keeps from others, not what its tensors hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics import sharding as strategies
from tracekit.metrics.activity import is_allocation, is_free
from tracekit.metrics.run import RunFacts
from tracekit.metrics.sharding import ITEM_BYTES
from tracekit.metrics.traffic import BACKWARD, Traffic
from tracekit.metrics.views import RankView
from tracekit.results import Memory, MemoryNeed, Rank, RankMemory, Sharding, Steady, Step
from tracekit.theory.gpus import Gpu, gpu_of
from tracekit.theory.memory import layer_activations, model_state, output_activations, precision
from tracekit.timeline import NONE, Allocations, MemoryKind, RankTrack

Int64 = NDArray[np.int64]

FORMULA = {
    strategies.NONE_AT_ALL: "DDP",
    strategies.DDP: "DDP",
    strategies.ZERO1: "ZeRO-1",
    strategies.ZERO2: "ZeRO-2",
    strategies.FULL: "ZeRO-3",
    strategies.HYBRID: "HSDP",
}
"""The strategy whose model state a recognised one has at its peak. SHARD_GRAD_OP holds whole weights while it needs
them."""
FUSED_ATTENTION = re.compile(r"flash|fmha|fused_attention|cudnn_generated_fort_native_sdpa", re.IGNORECASE)


def memory(
    ranks: Sequence[Rank],
    tracks: Sequence[RankTrack],
    views: Sequence[RankView],
    steady: Steady | None,
    traffic: Traffic,
    found: Sharding,
    facts: RunFacts,
    kernel_names: Sequence[str],
    gpu: Gpu | None,
) -> Memory:
    """The memory of every rank and what it should be; ``gpu`` overrides the one that the captures name."""
    measured = tuple(
        _rank(rank, track, view, steady, gpu) for rank, track, view in zip(ranks, tracks, views, strict=True)
    )
    need, lacking = _need(found, facts, views, kernel_names)
    return Memory(
        ranks=measured,
        expected=need,
        lacking=lacking,
        kept_bytes=_kept(traffic, found, facts),
    )


def live(events: Allocations, device: int) -> tuple[Int64, Int64] | None:
    """(times, bytes held from each on) of a GPU's memory; None where there are no events, or a size is missing.

    The first time is before all others. What is freed without having been taken was there before: so much is held from
    the beginning.
    """
    mine = (events.device == device) & (events.kind == MemoryKind.DEVICE)
    size = events.bytes[mine]
    if not mine.any() or np.any(size == NONE):
        return None
    held = np.concatenate([[0], np.cumsum(np.where(events.freed[mine], -size, size))])
    return np.concatenate([[np.iinfo(np.int64).min], events.time[mine]]), held - held.min()


def held_at(times: Int64, held: Int64, t: int) -> int:
    """What is held at ``t``."""
    return int(held[np.searchsorted(times, t, side="right") - 1])


def peak_between(times: Int64, held: Int64, start: int, end: int) -> int:
    """The most that is held in ``[start, end)``."""
    inside = (times >= start) & (times < end)
    return max(held_at(times, held, start), int(held[inside].max(initial=0)))


def _rank(rank: Rank, track: RankTrack, view: RankView, steady: Steady | None, gpu: Gpu | None) -> RankMemory:
    kept = [step for step in rank.steps if steady and step.step in steady.steps]
    start, end = _host_window(view, kept) or (rank.start_ns, rank.end_ns)
    events = view.process.memory
    course = live(events, rank.device)
    windows = len(kept)
    mine = (events.device == rank.device) & (events.kind == MemoryKind.DEVICE)
    mine &= (events.time >= start) & (events.time < end)
    taken: float | None = None
    given: float | None = None
    size: float | None = None
    source = None
    if windows and len(events):
        source = "memory_events"
        taken, given = (np.count_nonzero(mine & (events.freed == way)) / windows for way in (False, True))
        sizes = events.bytes[mine & ~events.freed]
        size = None if np.any(sizes == NONE) else float(sizes.sum()) / windows
    elif windows and len(view.process.calls):
        source = "calls"
        taken, given = (_calls(view, start, end, way) / windows for way in (is_allocation, is_free))
    return RankMemory(
        rank=rank.rank,
        capacity_bytes=_capacity(track, gpu),
        peak_bytes=peak_between(*course, rank.start_ns, rank.end_ns) if course else None,
        steady_peak_bytes=peak_between(*course, start, end) if course and windows else None,
        first_bytes=held_at(*course, start) if course and windows else None,
        last_bytes=held_at(*course, end) if course and windows else None,
        allocations_per_step=taken,
        frees_per_step=given,
        allocated_bytes_per_step=size,
        source=source,
    )


def _host_window(view: RankView, steps: Sequence[Step]) -> tuple[int, int] | None:
    """The host's time of these steps, which runs ahead of the GPU's.

    From the last launch of what comes before them to their own last launch.
    """
    if not steps:
        return None
    launched = (view.labels.step != NONE) & (view.ops.call != NONE)
    mine = np.isin(view.labels.step, [step.step for step in steps]) & launched
    if not mine.any():
        return steps[0].start_ns, steps[-1].end_ns
    calls = view.process.calls
    first, last = (int(t) for t in (calls.start[view.ops.call[mine]].min(), calls.end[view.ops.call[mine]].max()))
    before = calls.end[view.ops.call[launched & ~mine]]
    before = before[before <= first]
    return int(before.max(initial=min(first, int(calls.start[0])))), last


def _calls(view: RankView, start: int, end: int, named: Callable[[str], bool]) -> int:
    calls = view.process.calls
    return int(np.count_nonzero(view.activity.calls_named(named) & (calls.end > start) & (calls.start < end)))


def _capacity(track: RankTrack, gpu: Gpu | None) -> int | None:
    if gpu is None and track.device_memory is not None:
        return track.device_memory
    known = gpu or gpu_of(track.device_name)
    return round(known.memory_gb * 1e9) if known else None


def _need(
    found: Sharding, facts: RunFacts, views: Sequence[RankView], kernel_names: Sequence[str]
) -> tuple[MemoryNeed | None, tuple[str, ...]]:
    """(what a rank should hold, what is lacking to know all of it)."""
    lacking = []
    model, width = facts.model, ITEM_BYTES.get(facts.dtype or "")
    weights = gradients = optimizer = None
    if found.strategy not in FORMULA:
        lacking.append("the strategy")
    if model is None:
        lacking.append("the model's size")
    if width is None:
        lacking.append("the type that forward computes in")
    if model is not None and width is not None and found.strategy in FORMULA:
        trained = model.trained or model.parameters
        state = model_state(
            FORMULA[found.strategy],
            trained=trained,
            frozen=model.parameters - trained,
            frozen_bytes=width,
            shards=found.shards or 1,
            each=precision("fp32" if width == 4 else "bf16"),
        )
        weights, gradients, optimizer = state.weights, state.gradients, state.optimizer
    gathered = (
        _in_flight(views, facts.accumulation or 1) if found.strategy in (strategies.FULL, strategies.HYBRID) else 0
    )
    if gathered is None:
        lacking.append("sizes of collectives")
    activations = _activations(facts, fused=any(FUSED_ATTENTION.search(name) for name in kernel_names))
    if activations is None:
        lacking.append("layers, width, batch, sequence and whether activations are recomputed")
    known = (weights, gradients, optimizer, gathered, activations)
    if all(part is None for part in known[:3]) and activations is None:
        return None, tuple(lacking)
    return MemoryNeed(
        weights=weights, gradients=gradients, optimizer=optimizer, gathered=gathered, activations=activations
    ), tuple(lacking)


def _in_flight(views: Sequence[RankView], microbatches: int) -> int | None:
    """The two largest units as they are gathered, and the largest unit's gradients as they are reduced.

    None where a size is not known.
    """
    most = 0
    for view in views:
        gathers, reductions = (_sizes(view, op) for op in ("all_gather", "reduce_scatter"))
        if np.any(gathers == NONE) or np.any(reductions == NONE) or not len(gathers):
            return None
        largest, others = int(gathers.max()), gathers[gathers < gathers.max()]
        steps = max(1, len(np.unique(view.labels.step)) - 1)
        # A unit is gathered once or twice in each microbatch: what comes more often is the size of several units.
        several = len(gathers) - len(others) > 2 * microbatches * steps
        second = largest if several else int(others.max(initial=0))
        most = max(most, largest + second + int(reductions.max(initial=0)))
    return most or None


def _sizes(view: RankView, op: str) -> Int64:
    found = view.collectives
    return found.full_bytes[np.isin(found.of, [i for i, (_, name) in enumerate(found.group) if name == op])]


def _activations(facts: RunFacts, *, fused: bool) -> int | None:
    model = facts.model
    if model is None or facts.checkpointing is None or not (facts.sequence and facts.batch):
        return None
    if not (model.layers and model.hidden and model.heads and model.vocab):
        return None
    shape = {"sequence": facts.sequence, "batch": facts.batch, "hidden": model.hidden}
    recompute = "full" if facts.checkpointing else "none"
    layers = model.layers * layer_activations(**shape, heads=model.heads, recompute=recompute, flash=fused)
    if facts.checkpointing:  # the layer that is being recomputed is there in full
        layers += layer_activations(**shape, heads=model.heads, recompute="none", flash=fused)
    return round(layers + output_activations(**shape, vocab=model.vocab))


def _kept(traffic: Traffic, found: Sharding, facts: RunFacts) -> int | None:
    """Bytes of the units that are gathered again for the backward pass: what keeping them would take."""
    if found.strategy not in (strategies.FULL, strategies.HYBRID):
        return None
    sizes = [flow.bytes for flow in traffic.flows if flow.op == "all_gather" and flow.part == BACKWARD]
    if not sizes or any(size is None for size in sizes):
        return None
    return round(sum(size or 0.0 for size in sizes) / (facts.accumulation or 1))
