"""The samples about ranks that wait for each other: who keeps whom waiting, why, and by which clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from captured import cut
from jobs import AT_THE_ENDS, HALF_BATCH, Scenario, lay_out, lay_out_hsdp, report_a_host, report_a_rank
from model import Model, at_length
from nsys_schema import NSYS_2026
from placed import Kernel, Rank, ms
from strategies import Fsdp2, Strategy

SHALLOW = replace(HALF_BATCH, layers=2)
SHORT = replace(SHALLOW, batch=1)
LONG_BATCH = Model(layers=2, hidden=1_024, vocab=4_096, batch=32, sequence=4_096)
"""So much compute for each parameter that a slow network hardly shows."""

Pause = Callable[[Rank, str], int]


def no_pause(_rank: Rank, _place: str) -> int:
    """Hosts that never pause."""
    return 0


def four_nodes(factor: float = 1.15) -> Strategy:
    """Rank 19, on the third of four hosts, computes everything ``factor`` times as slowly."""
    return lay_out_hsdp(
        seed=13,
        model=SHALLOW,
        hosts=4,
        devices_per_host=8,
        steps=4,
        slowdown=lambda rank, _: factor if rank == 19 else 1.0,
    )


PAUSING_RANKS = (2, 0, 3, 1, 0, 2, 1, 3)
PAUSES_MS = (7.4, 14.4, 12.2, 13.3, 12.8, 13.7, 14.0, 12.5)


def collector_pause(rank: Rank, place: str) -> int:
    """In each step after the first, another rank's host stops once, for 7 to 15 ms."""
    if place != "fwd/layers.1" or not rank.step or PAUSING_RANKS[rank.step - 1] != rank.rank:
        return 0
    return ms(PAUSES_MS[rank.step - 1])


def late_data(rank: Rank, place: str) -> int:
    """Rank 3 waits for its data loader in every step."""
    return ms(8.4) if place == "data" and rank.rank == 3 else 0


def slow_host(rank: Rank, place: str) -> int:
    """The host of rank 1 loses 2.6 ms in each layer, forward and backward."""
    return ms(2.6) if "/layers." in place and rank.rank == 1 else 0


def short_job(seed: int, pause: Pause, steps: int = 5) -> Strategy:
    """A job with steps of few milliseconds, so that a pause of its host shows on the GPU."""
    return lay_out(Fsdp2, seed=seed, model=SHORT, steps=steps, pause=pause)


def slow_link(gigabytes_per_s: float = 15.0) -> Strategy:
    """Two hosts with two GPUs each; between ranks 1 and 3 the network is three times as slow as between 0 and 2."""
    return lay_out_hsdp(
        seed=15,
        model=LONG_BATCH,
        hosts=2,
        devices_per_host=2,
        steps=5,
        replicas_gb_per_s={1: gigabytes_per_s},
    )


BLOCKS_OF_TOKENS = ((32, 25, 19, 22), (20, 32, 24, 18), (26, 19, 21, 31), (17, 24, 32, 22))
"""Lengths of the ranks' sequences, in 1/32 of the longest, step after step."""


def own_sequences(rank: Rank, kernel: Kernel) -> Kernel:
    """Each rank has sequences of another length in each step."""
    return at_length(kernel, BLOCKS_OF_TOKENS[(rank.step or 0) % 4][rank.rank] / 32)


def sequences(reshape: Callable[[Rank, Kernel], Kernel]) -> Strategy:
    """A job whose sequences are as long as told."""
    return lay_out(Fsdp2, seed=17, model=replace(SHALLOW, lengths_vary=True), steps=9, reshape=reshape)


def equal_sequences(_rank: Rank, kernel: Kernel) -> Kernel:
    """All sequences of the mean length."""
    return at_length(kernel, 24 / 32)


SPEEDS = (0.9985, 0.9989, 0.9993, 0.9987, 0.9995, 1.0015, 0.9991, 0.9993)
"""What a kernel takes on each rank, in the mean over ranks: no two GPUs are quite alike."""


def ragged(factor: float = 1.24) -> Strategy:
    """Rank 2 is slow; rank 1 is captured from the middle of its second step on, rank 3 until its last step."""
    trainer = lay_out(Fsdp2, seed=19, model=SHALLOW, steps=7, slowdown=lambda rank, _: factor if rank == 2 else 1.0)
    job = trainer.job
    backwards = [item for item in job.ranks[1].ranges if item.name == "bwd/layers.0"]
    cut(job, job.ranks[1], begin_ns=backwards[1].start)
    steps = [item for item in job.ranks[3].ranges if item.name == "step"]
    cut(job, job.ranks[3], end_ns=steps[-1].start)
    return trainer


MANY_RANKS = (
    Scenario(
        name="straggler_32ranks_4nodes",
        truth=(
            "32 ranks on four hosts, sharded over the eight ranks of each host and replicated across hosts: gathers "
            "and reduce-scatters inside a host, then an all-reduce between equal local ranks. Rank 19 computes every "
            "kernel 1.15 times as slowly as the others. The other ranks of its host wait for it in their gathers and "
            "reduce-scatters, and so all of them arrive late at the all-reduces: every rank of the other hosts waits "
            "there, most of them for a rank that itself had to wait for rank 19. One report a host, each with its own "
            "time zero; the hosts' wall clocks disagree by up to 60 ms, and their clocks drift by up to 37 ppm against "
            "each other."
        ),
        build=four_nodes,
        schema=NSYS_2026,
        reports=report_a_host,
        findings=("TK201",),
        may=(*AT_THE_ENDS, "TK208"),
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(19,),
        cause="slow_compute",
        without=lambda: four_nodes(1.0),
    ),
    Scenario(
        name="gc_pauses",
        truth=(
            "In each step after the first another rank's host stops for 7 to 15 ms in its forward pass, as a "
            "garbage collection does: no CUDA call on the launching thread, its GPU runs dry, and all others wait for "
            "it. No rank is to blame more than another."
        ),
        build=lambda: short_job(14, collector_pause, steps=9),
        schema=NSYS_2026,
        findings=("TK204",),
        may=(*AT_THE_ENDS, "TK406"),
        fixed_may=AT_THE_ENDS,
        verdict="rotating",
        fault_ranks=(0, 1, 2, 3),
        cause="host_stall",
        without=lambda: short_job(14, no_pause, steps=9),
    ),
    Scenario(
        name="slow_link",
        truth=(
            "Four ranks on two hosts, sharded inside a host and replicated across. The all-reduces between ranks 1 "
            "and 3 take three times as long as those of the same bytes between ranks 0 and 2, although both arrive at "
            "the same time: the link is slow, not a rank. Ranks 1 and 3 get out of their last all-reduce later, and so "
            "their neighbours wait a little for them, for less than 2 % of a step. One report a host."
        ),
        build=slow_link,
        schema=NSYS_2026,
        reports=report_a_host,
        findings=("TK207",),
        may=AT_THE_ENDS,
        fixed_may=AT_THE_ENDS,
        fault_ranks=(1, 3),
        cause="link",
        without=lambda: slow_link(45.0),
    ),
    Scenario(
        name="data_stall",
        truth=(
            "The data loader of rank 3 is late in every step: its host waits 8 ms in the data phase without a CUDA "
            "call, its GPU idles at the start of the step, and the others wait for it in their first gathers. Its "
            "kernels are as fast as the others'."
        ),
        build=lambda: short_job(16, late_data),
        schema=NSYS_2026,
        findings=("TK405",),
        may=(*AT_THE_ENDS, "TK202"),
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(3,),
        cause="data",
        without=lambda: short_job(16, no_pause),
    ),
    Scenario(
        name="sequence_length",
        truth=(
            "Each rank gets sequences of another length in each step, so that forward and backward pass take longer or "
            "shorter together, and a different rank is the last from step to step. Kernels of the same name have other "
            "grids. All GPUs are equally fast."
        ),
        build=lambda: sequences(own_sequences),
        schema=NSYS_2026,
        findings=("TK205",),
        may=AT_THE_ENDS,
        fixed_may=AT_THE_ENDS,
        verdict="rotating",
        fault_ranks=(0, 1, 2, 3),
        cause="sequence_length",
        without=lambda: sequences(equal_sequences),
    ),
    Scenario(
        name="healthy_8ranks",
        truth=(
            "A healthy FSDP2 job of eight ranks whose GPUs differ in speed by 0.3 %, as they do. Rank 5 is the slowest "
            "by a hair and so, wherever anyone is late, nearly always the last, but what the others wait for it is not "
            "worth a word."
        ),
        build=lambda: lay_out(
            Fsdp2,
            seed=18,
            model=replace(SHALLOW, batch=10),
            world_size=8,
            steps=5,
            slowdown=lambda rank, _: SPEEDS[rank],
        ),
        schema=NSYS_2026,
    ),
    Scenario(
        name="straggler_ragged",
        truth=(
            "Rank 2 computes every kernel 1.24 times as slowly as the others. One report a rank, which do not begin "
            "and end together: rank 1 is captured from the middle of its second step on (without the trainer's start "
            "mark and without the creation of its communicator), rank 3 only until its last step begins. The wall "
            "clock of rank 3 is 5 s off, and its clock drifts by 50 ppm."
        ),
        build=ragged,
        schema=NSYS_2026,
        reports=partial(report_a_rank, clock_error_ns={3: ms(5_000)}, drift_ppm={3: 50.0}),
        findings=("TK201", "TK904"),
        may=(*AT_THE_ENDS, "TK208"),
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(2,),
        cause="slow_compute",
        without=lambda: ragged(1.0),
    ),
    Scenario(
        name="host_stall_rank",
        truth=(
            "The host of rank 1 loses 2.6 ms in every layer of every step: it launches late, its GPU idles before its "
            "launches, and the others wait for it. Its kernels are as fast as the others'."
        ),
        build=lambda: short_job(20, slow_host),
        schema=NSYS_2026,
        findings=("TK202",),
        may=AT_THE_ENDS,
        fixed_may=AT_THE_ENDS,
        verdict="persistent",
        fault_ranks=(1,),
        cause="host_stall",
        without=lambda: short_job(20, no_pause),
    ),
)
