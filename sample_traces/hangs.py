"""The samples of jobs that stand still, or only look as if they did: who is in which collective, and who is not."""

from __future__ import annotations

from dataclasses import replace

from captured import interrupt_capture
from jobs import AT_THE_ENDS, HALF_BATCH, NVLINK_GB_PER_S, Hang, Scenario, kernel_names, lay_out, report_a_rank
from layout import Job
from nsys_schema import NSYS_2026
from placed import REDUCE, Communicator, Rank, ms
from strategies import Fsdp2, Strategy
from train import train

SHALLOW = replace(HALF_BATCH, layers=3, batch=1)
STOOD_NS = ms(9_000)
"""How long a job stood still before somebody ended it."""
NORMS = "norms"


def stopped(trainer: Strategy) -> Strategy:
    """The job, ended after it stood still for a while."""
    trainer.job.interrupt(STOOD_NS)
    return trainer


def missing_rank() -> Strategy:
    """The host of rank 2 gets no further than its second layer in the third step."""

    def stops(rank: Rank, place: str) -> bool:
        return place == "fwd/layers.1" and rank.rank == 2 and rank.step == 22

    return stopped(lay_out(Fsdp2, seed=31, model=SHALLOW, steps=4, first_step=20, stops=stops))


class TwoNorms(Fsdp2):
    """Two groups of all ranks, in each of which a norm is reduced before the optimizer, the host waiting for it."""

    second: Communicator
    swaps_at: tuple[int, int] = (-1, -1)
    """(step, rank) where one rank takes the second group first."""

    def before_optimizer(self) -> None:
        """Reduce both norms."""
        groups = (self.communicator, self.second)
        step, swapping = self.swaps_at
        everyone = tuple(range(self.job.world_size))
        if step not in {rank.step for rank in self.job.live}:
            self._reduce(everyone, groups)
            return
        self._reduce(tuple(rank for rank in everyone if rank != swapping), groups)
        self._reduce((swapping,), groups[::-1])

    def _reduce(self, ranks: tuple[int, ...], groups: tuple[Communicator, ...]) -> None:
        with self.job.only(ranks):
            for group in groups:
                self.job.collective(group, REDUCE, 4, NORMS)
                self.job.synchronize(self.job.record(NORMS))


def order_inversion() -> Strategy:
    """In step 2 rank 3 reduces in the second group first."""
    job = Job(seed=32, world_size=4, collective_kernels=kernel_names("f32"))
    first, second = (job.communicator(0x9C3E_0000_51A7_2100 + 0x31 * n, NVLINK_GB_PER_S) for n in range(2))
    trainer = TwoNorms(job, SHALLOW, first)
    trainer.second, trainer.swaps_at = second, (2, 3)
    train(trainer, 4)
    return stopped(trainer)


class LargerVocabulary(Fsdp2):
    """In step 3 one rank gathers a root unit of another size, as if it had been built with another vocabulary."""

    def gather(self, unit: int) -> None:
        """Gather a unit; the root of rank 1 is larger from step 3 on."""
        self.differs = unit < 0 and any(rank.step == 3 for rank in self.job.live)
        super().gather(unit)

    def among_shards(self, op: str, full_bytes: int, stream: str) -> None:
        """Issue a collective, of another size on rank 1 where it differs."""
        larger = {1: full_bytes + 2 * 512 * self.model.hidden} if self.differs else {}
        self.job.collective(self.communicator, op, full_bytes, stream, bytes_of=larger)


def size_mismatch() -> Strategy:
    """Rank 1 calls a gather with another size than the others."""
    return stopped(lay_out(LargerVocabulary, seed=33, model=SHALLOW, steps=4))


def skipped_step() -> Strategy:
    """Rank 3 leaves step 2 out and is through when the others begin their last step."""

    def renumber(rank: Rank, number: int) -> int | None:
        if rank.rank != 3 or number < 2:
            return number
        return number + 1 if number < 4 else None

    return stopped(lay_out(Fsdp2, seed=34, model=SHALLOW, steps=5, renumber=renumber))


def truncated() -> Strategy:
    """A healthy job whose captures are interrupted 50 ms apart, in the middle of steps."""
    trainer = lay_out(Fsdp2, seed=35, model=replace(SHALLOW, batch=8), steps=5)
    job = trainer.job
    last = max(op.end for op in job.ranks[0].ops)
    for rank, before_ns in zip(job.ranks, (ms(60), ms(110), ms(62), ms(61)), strict=True):
        interrupt_capture(job, rank, last - before_ns)
    return trainer


HANGS = (
    Scenario(
        name="hang_missing_rank",
        truth=(
            "The host of rank 2 stops in its second layer in the forward pass of step 22, outside any CUDA call. It "
            "has launched the gather of that layer, which was issued ahead, but never launches the next one: the other "
            "three wait in it, their hosts in an event synchronisation at the step's end. After nine seconds the job "
            "was interrupted: ranges are open, and kernels that never ended are not in the capture."
        ),
        build=missing_rank,
        schema=NSYS_2026,
        may=AT_THE_ENDS,
        findings=("TK301",),
        hang=Hang(verdict="missing_rank", culprits=(2,)),
    ),
    Scenario(
        name="hang_order_inversion",
        truth=(
            "Two communicators of the same four ranks. Before the optimizer of step 2 ranks 0, 1 and 2 reduce in the "
            "first one and rank 3 in the second one; each host waits for its own reduction before it would launch the "
            "other. Nobody is slow and nobody is absent: the ranks call in different orders."
        ),
        build=order_inversion,
        schema=NSYS_2026,
        may=AT_THE_ENDS,
        findings=("TK305",),
        hang=Hang(verdict="order_inversion", culprits=(3,)),
    ),
    Scenario(
        name="hang_size_mismatch",
        truth=(
            "All four ranks launch the first gather of step 3, but rank 1 with a larger tensor than the others, as if "
            "it had been built with another vocabulary. The gather never ends. One report a rank."
        ),
        build=size_mismatch,
        schema=NSYS_2026,
        may=AT_THE_ENDS,
        reports=report_a_rank,
        findings=("TK303",),
        hang=Hang(verdict="size_mismatch", culprits=(1,)),
    ),
    Scenario(
        name="hang_skipped_step",
        truth=(
            "Rank 3 leaves step 2 out. Its collectives of step 3 pair with the others' of step 2 without an error, "
            "since they have the same shapes, and so on, until rank 3 is through with its last step and the others "
            "wait for it in the first gather of theirs."
        ),
        build=skipped_step,
        schema=NSYS_2026,
        may=AT_THE_ENDS,
        findings=("TK307",),
        hang=Hang(verdict="step_desync", culprits=(3,)),
    ),
    Scenario(
        name="truncated_captures",
        truth=(
            "A healthy job, one report a rank, each interrupted in the middle of a step and that of rank 1 50 ms "
            "before the others: ranges are open, kernels that still ran are not in the captures, and rank 1 lacks "
            "the others' last collectives. Not a hang."
        ),
        build=truncated,
        schema=NSYS_2026,
        may=AT_THE_ENDS,
        reports=report_a_rank,
        findings=("TK904",),
    ),
)
