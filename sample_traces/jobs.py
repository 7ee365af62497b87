"""What a sample is, the reports that are made of a job, and laying a job out in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from layout import Job
from model import Model
from nsys_schema import NSYS_2023, Schema
from placed import EPOCH_NS, GATHER, REDUCE, SCATTER, Capture, ms, us
from strategies import Hsdp, Strategy
from train import train

AT_THE_ENDS = ("TK100", "TK106", "TK107")
"""What small jobs show beside their fault: the first gather and the last reduction of a step are not hidden."""
NVLINK_GB_PER_S = 352.0
NETWORK_GB_PER_S = 45.0
MODEL = Model(layers=4, hidden=2_048, vocab=8_192, batch=4, sequence=4_096)
HALF_BATCH = replace(MODEL, batch=2)
SMALL = replace(HALF_BATCH, layers=3)
TINY = Model(layers=6, hidden=256, vocab=4_096, batch=1, sequence=512)

DEV_KERNELS = {
    GATHER: "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    SCATTER: "ncclDevKernel_ReduceScatter_Sum_{dtype}_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    REDUCE: "ncclDevKernel_AllReduce_Sum_{dtype}_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
}
OLD_KERNELS = {
    GATHER: "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm *, unsigned long, ncclWork *)",
    SCATTER: "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm *, unsigned long, ncclWork *)",
    REDUCE: "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *, unsigned long, ncclWork *)",
}


def kernel_names(dtype: str) -> dict[str, str]:
    """Names of NCCL's kernels, of 2.19 and later, for reductions of a type."""
    return {op: name.format(dtype=dtype) for op, name in DEV_KERNELS.items()}


def one_report(name: str, job: Job) -> list[Capture]:
    """All ranks in one report."""
    started = ms(11.7)
    return [
        Capture(
            path=f"{name}.sqlite",
            ranks=tuple(rank.rank for rank in job.ranks),
            zero_ns=started,
            start_ns=ms(3_141.5),
            epoch_ns=EPOCH_NS + started,
        )
    ]


def report_a_rank(
    name: str, job: Job, clock_error_ns: Mapping[int, int] = {}, drift_ppm: Mapping[int, float] = {}
) -> list[Capture]:
    """Each rank in a report of its own, in a folder: started at another moment, by a wall clock that is a little off.

    By rank, a clock can be wrong by more than that, and drift.
    """
    wall_clock_error = (0, 418_220, -733_105, 190_486, -61_309, 902_777, -377_440, 55_018)
    made = []
    for number in range(job.world_size):
        started = 3_217_411 + 5_310_977 * number
        error = wall_clock_error[number % 8] + clock_error_ns.get(number, 0)
        made.append(
            Capture(
                path=f"{name}/{name.removesuffix('_per_rank')}.rank{number}.sqlite",
                ranks=(number,),
                zero_ns=started,
                start_ns=1_907_331 * number,
                epoch_ns=EPOCH_NS + started + error,
                drift_ppm=drift_ppm.get(number, 0.0),
            )
        )
    return made


def report_a_host(name: str, job: Job) -> list[Capture]:
    """Each host in a report of its own, in a folder: the hosts' clocks disagree by tens of ms, and drift."""
    made = []
    for host, first in enumerate(range(0, job.world_size, job.devices_per_host)):
        started = 2_113_907 + 7_310_533 * host
        made.append(
            Capture(
                path=f"{name}/node{host}.sqlite",
                ranks=tuple(range(first, first + job.devices_per_host)),
                zero_ns=started,
                start_ns=913_204_511 * host,
                epoch_ns=EPOCH_NS + started + (0, 38_204_118, -21_377_902, 9_710_446)[host],
                drift_ppm=(0.0, 12.5, -17.0, 20.0)[host],
            )
        )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What keeps a job from going on."""

    verdict: str
    """missing_rank, size_mismatch, order_inversion or step_desync."""
    culprits: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One sample."""

    name: str
    truth: str
    """What is the matter, in words."""
    build: Callable[[], Strategy]
    """Lays the job out."""
    schema: Schema = NSYS_2023
    reports: Callable[[str, Job], list[Capture]] = one_report
    """The reports of a job, by the sample's name."""
    findings: tuple[str, ...] = ()
    """Codes of the rules that the layout was made for."""
    verdict: str = "none"
    """Whether a rank keeps the others waiting: persistent (always the same one), rotating or none."""
    fault_ranks: tuple[int, ...] = ()
    """The ranks that something is the matter with."""
    cause: str | None = None
    hang: Hang | None = None
    may: tuple[str, ...] = ()
    """Codes that the fault can bring along, or that a reader may take it for."""
    fixed_may: tuple[str, ...] = ()
    """The same of the job without the fault."""
    without: Callable[[], Strategy] | None = None
    """Lays the job out without what is the matter."""

    def fixed(self) -> Scenario:
        """The twin: the same job without what is the matter."""
        if self.without is None:
            raise ValueError(f"nothing is known of {self.name} without what is the matter")
        return Scenario(
            name=f"{self.name}_fixed",
            truth=f"The job of {self.name} without what is the matter with it.",
            build=self.without,
            schema=self.schema,
            reports=self.reports,
            may=self.fixed_may,
        )

    @property
    def fault_rank(self) -> int | None:
        """The rank that is at fault, where it is one."""
        return self.fault_ranks[0] if len(self.fault_ranks) == 1 else None


def lay_out(
    strategy: type[Strategy],
    *,
    seed: int,
    model: Model = MODEL,
    world_size: int = 4,
    steps: int = 6,
    first_step: int = 0,
    dtype: str = "f32",
    graphed: bool = False,
    microbatches: int = 1,
    gb_per_s: float = NVLINK_GB_PER_S,
    latency_us: float | None = None,
    **job: object,
) -> Strategy:
    """Lay out a job of one communicator over all ranks, joined by NVLink unless told."""
    made = Job(seed=seed, world_size=world_size, **{"collective_kernels": kernel_names(dtype), **job})  # type: ignore[arg-type]
    communicator = made.communicator(0x9C3E_0000_51A7_0000 + seed * 0x1_0F35, gb_per_s)
    if latency_us is not None:
        communicator.latency_ns = us(latency_us)
    trainer = strategy(made, model, communicator, graphed=graphed)
    train(trainer, steps, first_step, microbatches)
    return trainer


def lay_out_hsdp(
    *,
    seed: int,
    model: Model,
    hosts: int,
    devices_per_host: int,
    steps: int,
    replicas_gb_per_s: Mapping[int, float] = {},
    strategy: type[Hsdp] = Hsdp,
    microbatches: int = 1,
    **job: object,
) -> Strategy:
    """Lay out a job that is sharded inside each host and replicated across hosts, between equal local ranks.

    ``replicas_gb_per_s`` is the bandwidth between hosts of a local rank where that is not the usual one.
    """
    made = Job(
        seed=seed,
        world_size=hosts * devices_per_host,
        devices_per_host=devices_per_host,
        collective_kernels=kernel_names("f32"),
        **job,  # type: ignore[arg-type]
    )
    hash_of = 0x9C3E_0000_51A7_0000 + seed * 0x1_0F35
    first_ranks = range(0, made.world_size, devices_per_host)
    shards = [
        made.communicator(hash_of + 0x1D3 * number, NVLINK_GB_PER_S, tuple(range(first, first + devices_per_host)))
        for number, first in enumerate(first_ranks, start=1)
    ]
    replicas = [
        made.communicator(
            hash_of + 0x7_0B19 * number,
            replicas_gb_per_s.get(number - 1, NETWORK_GB_PER_S),
            tuple(first + number - 1 for first in first_ranks),
        )
        for number in range(1, devices_per_host + 1)
    ]
    trainer = strategy(made, model, tuple(shards), tuple(replicas))
    train(trainer, steps, microbatches=microbatches)
    return trainer
