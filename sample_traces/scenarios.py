"""The samples: each a job, the reports that are made of it, and what is wrong (or right) with it."""

from __future__ import annotations

from dataclasses import replace

from hangs import HANGS
from host_variants import Graphs
from jobs import AT_THE_ENDS, HALF_BATCH, OLD_KERNELS, SMALL, TINY, Scenario, lay_out, report_a_rank
from many_ranks import MANY_RANKS
from memory_variants import Churning, Hoarding, Reserving, Resharding
from nsys_schema import NSYS_2022, NSYS_2026
from pairs import PAIRS
from placed import us
from strategies import Ddp, Fsdp2, SmallDdp, Strategy, Zero1, Zero2, Zero3
from variants import Prefetched

FOUR_LAYERS = replace(SMALL, layers=4)


def straggling_job(factor: float = 1.24) -> Strategy:
    """Rank 2 computes everything ``factor`` times as slowly as its peers."""
    return lay_out(
        Fsdp2, seed=3, model=SMALL, steps=5, first_step=200, slowdown=lambda rank, _: factor if rank == 2 else 1.0
    )


STRAGGLER = (
    "Rank 2 computes every kernel 1.24 times as slowly as ranks 0, 1 and 3. The others finish early and wait inside "
    "their collectives: long NCCL kernels on ranks 0, 1 and 3, the shortest ones on rank 2. All collectives are issued "
    "in time on all ranks."
)

SCENARIOS = (
    Scenario(
        name="fsdp2_overlapped",
        truth=(
            "A healthy FSDP2 job: every layer's gather is issued one layer ahead and every reduce-scatter runs under "
            "the next layer's backward pass. Exposed are only the first gathers of a step and its last "
            "reduce-scatters, less than 2 % of a step. The first step is slow, since each kernel "
            "is loaded when it is first used."
        ),
        build=lambda: lay_out(Fsdp2, seed=1),
    ),
    Scenario(
        name="zero3_no_prefetch",
        truth=(
            "ZeRO-3 without prefetch: each layer's gather is issued when the layer is reached and waits for all "
            "compute so far, in the forward and in the backward pass. Every gather is exposed in full; all "
            "reduce-scatters but the last are overlapped. A layer's three tensors are gathered in one group, by one "
            "kernel that is launched inside ncclGroupEnd."
        ),
        build=lambda: lay_out(Zero3, seed=2, model=HALF_BATCH, first_step=10, dtype="bf16"),
        schema=NSYS_2026,
        findings=("TK101", "TK102"),
        may=AT_THE_ENDS,
        fixed_may=AT_THE_ENDS,
        without=lambda: lay_out(Prefetched, seed=2, model=HALF_BATCH, first_step=10, dtype="bf16"),
    ),
    Scenario(
        name="straggler_4ranks",
        truth=STRAGGLER,
        build=straggling_job,
        schema=NSYS_2026,
        findings=("TK201",),
        may=(*AT_THE_ENDS, "TK208"),
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(2,),
        cause="slow_compute",
        without=lambda: straggling_job(factor=1.0),
    ),
    Scenario(
        name="straggler_4ranks_per_rank",
        truth=STRAGGLER
        + " The same job as straggler_4ranks, captured as one report a rank: each has its own time zero, and the wall "
        "clocks in the reports disagree with each other by up to 1.2 ms.",
        build=straggling_job,
        schema=NSYS_2026,
        reports=report_a_rank,
        findings=("TK201",),
        may=(*AT_THE_ENDS, "TK208"),
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(2,),
        cause="slow_compute",
        without=lambda: straggling_job(factor=1.0),
    ),
    Scenario(
        name="launch_bound",
        truth=(
            "Small layers, launched one by one: each kernel is over before the next one has been launched, so the GPU "
            "idles between kernels while the host is busy launching. Communication is small."
        ),
        build=lambda: lay_out(SmallDdp, seed=4, model=TINY, world_size=2, steps=4, between_ns=us(8.6)),
        findings=("TK401",),
        may=AT_THE_ENDS,
        fixed_may=AT_THE_ENDS,
        without=lambda: lay_out(Graphs, seed=4, model=TINY, world_size=2, steps=4, between_ns=us(8.6)),
    ),
    Scenario(
        name="zero1",
        truth=(
            "ZeRO-1: gradients are all-reduced in buckets under the backward pass, each rank updates its share of the "
            "parameters, and the updated parameters are gathered after the optimizer with nothing to hide the "
            "gathers. The last bucket is exposed too."
        ),
        build=lambda: lay_out(Zero1, seed=5, model=SMALL, steps=5, dtype="bf16"),
        schema=NSYS_2026,
        findings=("TK107", "TK110"),
        may=AT_THE_ENDS,
    ),
    Scenario(
        name="zero2",
        truth=(
            "ZeRO-2: gradients are reduce-scattered in buckets under the backward pass, each rank updates its share "
            "of the parameters, and the updated parameters are gathered after the optimizer with nothing to hide the "
            "gathers."
        ),
        build=lambda: lay_out(Zero2, seed=6, model=SMALL, steps=5, dtype="bf16"),
        schema=NSYS_2026,
        findings=("TK110",),
        may=AT_THE_ENDS,
    ),
    Scenario(
        name="ddp",
        truth=(
            "DDP: gradients are all-reduced in buckets under the backward pass; the last bucket (first layer and "
            "embeddings) is ready only when the backward pass is over and is exposed in full."
        ),
        build=lambda: lay_out(Ddp, seed=7, model=SMALL, steps=5, grouped=True),
        findings=("TK107",),
    ),
    Scenario(
        name="fsdp2_nsys_2026",
        truth=(
            "A healthy FSDP2 job, as nsys 2026.2 exports it with blobs: NCCL's payloads carry the communicator and "
            "the message size, TARGET_INFO_CUDA_DEVICE maps CUDA devices, and collectives are launched inside "
            "ncclGroupEnd."
        ),
        build=lambda: lay_out(Fsdp2, seed=8, world_size=2, steps=4, grouped=True),
        schema=NSYS_2026,
    ),
    Scenario(
        name="fsdp2_nsys_2022",
        truth=(
            "A healthy FSDP2 job, as nsys 2022.4 exports it: metadata in EXPORT_META_DATA, no payloads of NCCL, and "
            "two rows, runtime and driver, for each launch, with one correlation id."
        ),
        build=lambda: lay_out(Fsdp2, seed=9, world_size=2, steps=4, collective_kernels=OLD_KERNELS),
        schema=NSYS_2022,
    ),
    Scenario(
        name="fsdp2_profiler_steps",
        truth=(
            "A healthy FSDP2 job that nobody annotated for tracekit: steps are torch's ProfilerStep#N ranges in the "
            "default domain, beside Optimizer.step# ranges, which are not steps. Without payloads or annotations, "
            "bytes and phases are unknown."
        ),
        build=lambda: lay_out(Fsdp2, seed=11, world_size=2, steps=4, first_step=5, annotated=False),
    ),
    Scenario(
        name="fsdp2_cuda_graph",
        truth=(
            "A healthy FSDP2 job whose layers are CUDA graphs, traced as a whole: each graph launch is one row in "
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE and its kernels are hidden. Collectives and FSDP's copies stay outside "
            "the graphs."
        ),
        build=lambda: lay_out(Fsdp2, seed=12, world_size=2, steps=5, graphed=True),
        schema=NSYS_2026,
        findings=("TK903",),
    ),
    Scenario(
        name="memory_reserved",
        truth=(
            "A healthy FSDP2 job, captured with its memory: in the first step the allocator takes from the driver what "
            "model state, gathered units and activations need, and keeps it."
        ),
        build=lambda: lay_out(Reserving, seed=71, world_size=2, steps=4, model=FOUR_LAYERS),
        schema=NSYS_2026,
    ),
    Scenario(
        name="memory_churn",
        truth=(
            "FSDP2 with a library that takes three workspaces from the driver in each layer's forward pass and gives "
            "them back, in the order of the stream: nobody waits for it yet."
        ),
        build=lambda: lay_out(Churning, seed=72, world_size=2, steps=4, model=FOUR_LAYERS),
        findings=("TK501",),
    ),
    Scenario(
        name="memory_gap",
        truth="FSDP2 that holds 21 GiB more than its model state, gathered units and activations take.",
        build=lambda: lay_out(Hoarding, seed=73, world_size=2, steps=4, model=FOUR_LAYERS),
        schema=NSYS_2026,
        findings=("TK502",),
    ),
    Scenario(
        name="gathered_again",
        truth=(
            "ZeRO-3 that gathers each layer again for the backward pass, though nearly all of the memory is free, and "
            "only when the layer is reached: each of these gathers is exposed in full."
        ),
        build=lambda: lay_out(
            Resharding, seed=74, world_size=2, steps=4, model=FOUR_LAYERS, gb_per_s=250.0, dtype="bf16"
        ),
        schema=NSYS_2026,
        findings=("TK102", "TK114"),
        may=AT_THE_ENDS,
    ),
    *MANY_RANKS,
    *HANGS,
    *PAIRS,
)
