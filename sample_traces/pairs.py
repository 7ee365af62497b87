"""The samples in pairs: a job with one fault in its communication or on its hosts, and the same job without it.

Each is laid out so that nothing else costs it 2 % of a step. The twin is not kept: ``make.py --fixed`` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from host_variants import (
    Frames,
    KeepingValues,
    Offloading,
    OffloadingBeside,
    OutOfMemory,
    PageableFrames,
    ReadingValues,
    Saving,
    SavingBeside,
)
from jobs import HALF_BATCH, MODEL, Scenario, lay_out, lay_out_hsdp, report_a_host
from model import Model
from nsys_schema import NSYS_2026
from placed import Rank, ms
from strategies import Ddp, Fsdp2, Hsdp, Strategy, Zero2
from variants import (
    Accumulating,
    Deferring,
    FrozenRoot,
    Fsdp1,
    GatheredInFp8,
    GatheredUnderForward,
    KeptAfterForward,
    LargeBuckets,
    LastKept,
    OnComputeStream,
    Prefetched,
    PrefetchedBackward,
    PrefetchedForward,
    RateLimited,
    Recomputing,
    ReplicasAtTheEnd,
    SeparateGroups,
    SplitHead,
    TensorByTensor,
)

DEEP = replace(MODEL, layers=6, vocab=4_096)
DEEP_HALF = replace(DEEP, batch=2)
EXPERTS = replace(MODEL, layers=5, vocab=4_096, batch=2, experts=6)
"""A first layer that is dense, then mixtures of experts: much to move for each layer, and little at both ends."""
MANY_EXPERTS = replace(EXPERTS, batch=4, experts=11, vocab=2_048)
SMALL_LAYERS = Model(layers=6, hidden=1_024, vocab=4_096, batch=2, sequence=4_096)
WIDE_EXPERTS = replace(EXPERTS, experts=26)
LARGE_HEAD = replace(MODEL, batch=2, vocab=2_048, head_rows=262_144, frozen_root=True)
NARROW = Model(layers=4, hidden=1_024, vocab=4_096, batch=8, sequence=4_096)
SHALLOW = Model(layers=2, hidden=1_024, vocab=4_096, batch=10, sequence=4_096)
MICROBATCH = replace(HALF_BATCH, layers=2, vocab=4_096)


def pair(strategy: type[Strategy], **job: object) -> Callable[[], Strategy]:
    """A job of two ranks and four steps, unless told."""
    return lambda: lay_out(strategy, **{"world_size": 2, "steps": 4, "model": MODEL, **job})  # type: ignore[arg-type]


def replicated(strategy: type[Hsdp]) -> Callable[[], Strategy]:
    """A job on two hosts of two ranks, with three microbatches a step."""
    return lambda: lay_out_hsdp(
        seed=59, model=SHALLOW, hosts=2, devices_per_host=2, steps=3, strategy=strategy, microbatches=3
    )


def slow_loader(rank: Rank, place: str) -> int:
    """Every rank waits for its data loader, longer than the device has work left."""
    return ms(42) if place == "data" and rank.step else 0


PAIRS = (
    Scenario(
        name="forward_prefetch_off",
        truth=(
            "ZeRO-3 that gathers ahead in the backward pass only: in the forward pass each layer's gather is issued "
            "when the layer is reached, waits for all compute so far and is exposed in full."
        ),
        build=pair(PrefetchedBackward, seed=41, steps=3, model=DEEP_HALF, gb_per_s=250.0, dtype="bf16"),
        findings=("TK101",),
        without=pair(Prefetched, seed=41, steps=3, model=DEEP_HALF, gb_per_s=250.0, dtype="bf16"),
    ),
    Scenario(
        name="backward_prefetch_off",
        truth=(
            "ZeRO-3 that gathers ahead in the forward pass only: in the backward pass each layer's gather is issued "
            "when the layer is reached, waits for all compute so far and is exposed in full."
        ),
        build=pair(PrefetchedForward, seed=42, steps=3, model=DEEP_HALF, gb_per_s=250.0, dtype="bf16"),
        findings=("TK102",),
        without=pair(Prefetched, seed=42, steps=3, model=DEEP_HALF, gb_per_s=250.0, dtype="bf16"),
    ),
    Scenario(
        name="launch_order",
        truth=(
            "FSDP2 with CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one hardware queue, whose items start in the "
            "order of their launches. Behind each reduce-scatter a small kernel adds the gradients; it has to wait for "
            "the reduce-scatter, and with it all compute that was launched later. Every reduce-scatter is exposed."
        ),
        build=pair(Accumulating, seed=43, steps=3, model=DEEP, gb_per_s=250.0, single_queue=True),
        findings=("TK108",),
        without=pair(Accumulating, seed=43, steps=3, model=DEEP, gb_per_s=250.0),
    ),
    Scenario(
        name="shared_communicator",
        truth=(
            "FSDP2 of a mixture of experts: a reduce-scatter takes nearly as long as a layer's backward pass. "
            "All-gathers and reduce-scatters share one communicator, which runs one at a time, so that each gather of "
            "the backward pass is queued behind the reduce-scatter that was issued before it and is late."
        ),
        schema=NSYS_2026,
        build=pair(LastKept, seed=44, model=MANY_EXPERTS, gb_per_s=120.0),
        findings=("TK103",),
        without=pair(SeparateGroups, seed=44, model=MANY_EXPERTS, gb_per_s=120.0),
    ),
    Scenario(
        name="tiny_collectives",
        truth=(
            "ZeRO-3 across hosts that gathers each of a layer's twenty tensors by itself, ahead of time: every gather "
            "is little more than latency, and together they take longer than the layer before them computes."
        ),
        build=pair(TensorByTensor, seed=45, model=SMALL_LAYERS, steps=3, gb_per_s=300.0, latency_us=45.0, dtype="bf16"),
        findings=("TK105",),
        without=pair(Prefetched, seed=45, model=SMALL_LAYERS, steps=3, gb_per_s=300.0, latency_us=45.0, dtype="bf16"),
    ),
    Scenario(
        name="root_gather",
        truth=(
            "FSDP2 with a large output matrix in the root unit, which is not trained: the first gather of each step "
            "brings it, and nothing can hide that, although only the small embedding is needed at once."
        ),
        build=pair(FrozenRoot, seed=46, model=LARGE_HEAD, gb_per_s=215.0),
        findings=("TK106",),
        without=pair(SplitHead, seed=46, model=LARGE_HEAD, gb_per_s=215.0),
    ),
    Scenario(
        name="last_bucket",
        truth=(
            "DDP with buckets of three layers: the last one (three layers and the embeddings) is ready only when the "
            "backward pass is over and is exposed in full."
        ),
        build=pair(LargeBuckets, seed=47, steps=3, model=DEEP, gb_per_s=250.0),
        findings=("TK107",),
        without=pair(Ddp, seed=47, steps=3, model=DEEP, gb_per_s=250.0),
    ),
    Scenario(
        name="nccl_on_compute_stream",
        truth=(
            "Whole replicas whose gradients are all-reduced by hand on the stream that computes: each all-reduce waits "
            "for the compute before it, and the compute behind it waits for the all-reduce."
        ),
        build=pair(OnComputeStream, seed=48, steps=3, model=DEEP),
        findings=("TK104",),
        without=pair(Ddp, seed=48, steps=3, model=DEEP),
    ),
    Scenario(
        name="transfer_bound",
        truth=(
            "FSDP2 of a mixture of experts that keeps its parameters gathered after the forward pass. Every gather is "
            "issued a layer ahead and reaches 84 % of what NVLink can carry, but moves so many bytes that the layer "
            "before it cannot hide it."
        ),
        build=pair(KeptAfterForward, seed=49, steps=3, model=WIDE_EXPERTS, gb_per_s=380.0, dtype="bf16"),
        findings=("TK109",),
        without=pair(GatheredInFp8, seed=49, steps=3, model=WIDE_EXPERTS, gb_per_s=380.0, dtype="bf16"),
    ),
    Scenario(
        name="gather_after_step",
        truth=("ZeRO-2 whose updated parameters are gathered after the optimizer, with nothing to hide the gathers."),
        build=pair(Zero2, seed=50, steps=3, model=DEEP, gb_per_s=100.0, dtype="bf16"),
        findings=("TK110",),
        without=pair(GatheredUnderForward, seed=50, steps=3, model=DEEP, gb_per_s=100.0, dtype="bf16"),
    ),
    Scenario(
        name="accumulation",
        truth=(
            "DDP with four microbatches a step, which reduces gradients in each: the last bucket of every microbatch "
            "is exposed, where only that of the last microbatch need be."
        ),
        build=pair(Ddp, seed=51, model=MICROBATCH, steps=3, microbatches=4),
        findings=("TK111",),
        without=pair(Deferring, seed=51, model=MICROBATCH, steps=3, microbatches=4),
    ),
    Scenario(
        name="hsdp_accumulation",
        truth=(
            "HSDP on two hosts with three microbatches a step: gradients are all-reduced across hosts in each, and the "
            "last all-reduces of every microbatch are exposed. One report a host."
        ),
        build=replicated(Hsdp),
        schema=NSYS_2026,
        reports=report_a_host,
        findings=("TK112",),
        without=replicated(ReplicasAtTheEnd),
    ),
    Scenario(
        name="contention",
        truth=(
            "FSDP2 of a mixture of experts whose collectives are hidden well, but every kernel that runs beside one "
            "takes 1.35 times as long as the same kernel alone."
        ),
        build=pair(Fsdp2, seed=52, model=replace(EXPERTS, experts=14), contention=1.35),
        findings=("TK113",),
        without=pair(Fsdp2, seed=52, model=replace(EXPERTS, experts=14)),
    ),
    Scenario(
        name="sync_call",
        truth=(
            "FSDP2 whose forward pass reads a value of each layer with .item(): the host waits for the stream, and "
            "when it goes on nothing is left for the GPU to do."
        ),
        build=pair(ReadingValues, seed=53),
        findings=("TK402",),
        without=pair(KeepingValues, seed=53),
    ),
    Scenario(
        name="allocator_retries",
        truth=(
            "FSDP2 at the end of its memory: in the third layer of each forward pass an allocation fails, cached "
            "blocks are freed, for which the GPU must be idle, and memory is allocated again."
        ),
        build=pair(OutOfMemory, seed=54),
        findings=("TK403",),
        without=pair(Fsdp2, seed=54),
    ),
    Scenario(
        name="rate_limiter",
        truth=(
            "FSDP with an adapter wrapped behind each layer. The rate limiter lets the host issue a gather only when "
            "the second last unit has been used; the adapters count as units, so that a layer's gather is issued when "
            "the layer before it is over and has nothing but the adapter's kernel to hide it."
        ),
        build=pair(RateLimited, seed=55, model=EXPERTS),
        findings=("TK404",),
        without=pair(Fsdp1, seed=55, model=EXPERTS),
    ),
    Scenario(
        name="slow_loader",
        truth=(
            "The data loaders of all ranks are late in every step: the hosts wait in the data phase without a CUDA "
            "call until the GPUs have nothing left to do."
        ),
        build=pair(Fsdp2, seed=56, pause=slow_loader),
        findings=("TK405",),
        without=pair(Fsdp2, seed=56),
    ),
    Scenario(
        name="checkpoint_save",
        truth=(
            "FSDP2 that saves a checkpoint after every second step: the state is copied to ordinary memory and written "
            "while training waits."
        ),
        build=pair(Saving, seed=57, model=NARROW, steps=6),
        findings=("TK407",),
        without=pair(SavingBeside, seed=57, model=NARROW, steps=6),
    ),
    Scenario(
        name="pageable_copy",
        truth=(
            "FSDP2 on pictures: each step begins with a copy of the batch from ordinary memory, on the stream that "
            "computes, while the host waits for it."
        ),
        build=pair(PageableFrames, seed=58),
        findings=("TK408",),
        without=pair(Frames, seed=58),
    ),
    Scenario(
        name="offload",
        truth=(
            "FSDP2 that keeps activations in host memory: each layer's are copied out behind its forward pass and back "
            "before its backward pass, on the stream that computes."
        ),
        build=pair(Offloading, seed=60, model=replace(MODEL, batch=8)),
        findings=("TK414",),
        without=pair(OffloadingBeside, seed=60, model=replace(MODEL, batch=8)),
    ),
    Scenario(
        name="recompute",
        truth=(
            "A healthy FSDP2 job with activation checkpointing: each layer's forward pass runs again in its backward "
            "pass, a fifth of the step."
        ),
        build=pair(Recomputing, seed=61),
        findings=("TK413",),
        without=pair(Fsdp2, seed=61),
    ),
)
