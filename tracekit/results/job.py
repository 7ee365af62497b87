"""What the ranks of a job do together: collectives, sharding, efficiency, memory, stragglers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Collectives of one communicator and op whose messages are about as long."""

    at_least_bytes: int
    """A power of two; messages are of this size or more, and below twice this size."""
    count: int
    """Collectives with a known size and transfer time."""
    bytes: int
    """Median message: the full tensor."""
    transfer_ns: int
    """Median."""
    algbw_gbps: float | None
    busbw_gbps: float | None
    """Medians of bytes over transfer time; GB/s."""
    peak_gbps: float | None = field(compare=False)
    """What the GPU's link carries in one direction; None where the link or the GPU is not known. No measurement of the
    job: one report says that its ranks share a host where one a rank does not, so that it is not compared."""

    @property
    def peak_share(self) -> float | None:
        """Bus bandwidth over the peak; in-network reduction (NVLS) can exceed 1."""
        return self.busbw_gbps / self.peak_gbps if self.busbw_gbps is not None and self.peak_gbps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All collectives of one communicator and op."""

    communicator: str | None
    """Hash of the NCCL communicator in hex; None where the capture does not tell."""
    op: str
    """all_gather, reduce_scatter, all_reduce, broadcast, reduce, send_recv, all_to_all, or unknown."""
    ranks: tuple[int, ...]
    count: int
    """Collectives, each counted once: the largest number of operations on any one rank."""
    bytes: int | None
    """Median message of one collective: the full tensor (per-rank bytes × ranks for gathers and scatters)."""
    bytes_source: str | None
    """``nccl_payload``, ``annotation`` or None."""
    comm_ns: int
    """Sum over ranks of the measure of these operations' union."""
    exposed_ns: int
    """Sum over ranks; summed over all collectives it equals the ranks' exposed communication."""
    exposed_per_step_ns: int | None
    """The same a steady step, mean over ranks; None without steps."""
    overlap_ratio: float | None
    transfer_ns: int | None
    """Median over collectives of the shortest duration over ranks; None unless all ranks were captured."""
    peer_wait_ns: int | None
    """Sum over ranks and collectives of the time beyond the transfer."""
    algbw_gbps: float | None
    busbw_gbps: float | None
    by_size: tuple[SizeClass, ...] = ()
    """Smallest messages first; () where sizes or transfer times are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What one op moves in a step on one rank, against what the strategy should move."""

    op: str
    bytes: int | None
    """Of the full tensors, a step, mean over ranks; None where some sizes are unknown."""
    expected_bytes: int | None
    """By the paper of the strategy; None without the model's size."""
    explanation: str | None
    """Why the two differ, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Which sharding strategy the collectives of a step are the pattern of."""

    strategy: str
    """DDP, ZeRO-1, ``ZeRO-2 / SHARD_GRAD_OP``, ``ZeRO-3 / FSDP``, HSDP, none or undecided."""
    confidence: float | None
    """0.9: phases, sizes and several steps agree; 0.6: some of these are missing; 0.3: a guess that one more capture
    would settle. None where it is undecided."""
    evidence: tuple[str, ...]
    """What speaks for it, and what against."""
    shards: int | None
    """Ranks that the parameters (or what else is sharded) are spread over."""
    replicas: int | None
    parameters: int | None
    parameters_source: str | None
    """``option``, ``mark`` (the trainer's) or None."""
    volumes: tuple[Volume, ...]

    @property
    def bytes_per_step(self) -> dict[str, int | None]:
        """Observed bytes by op."""
        return {row.op: row.bytes for row in self.volumes}

    @property
    def expected_bytes_per_step(self) -> dict[str, int] | None:
        """Expected bytes by op; None without the model's size."""
        known = {row.op: row.expected_bytes for row in self.volumes if row.expected_bytes is not None}
        return known or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """How well the GPUs are used in a steady step."""

    tokens_per_s: float | None
    """Of all GPUs of the job."""
    mfu: float | None
    """Model FLOPs over the peak, 0 to 1."""
    hfu: float | None
    """The same with recomputation; None where it is not known whether there is any."""
    flops_per_token: int | None
    peak_tflops: float | None
    """Dense bfloat16 peak of the GPU."""
    formula: str | None
    """How the figure comes about, in numbers."""
    reason: str | None
    """Why MFU is unknown, and what would tell it; None where it is known."""
    bound_by: str | None
    """compute, link, wait, launch or copy: what takes most of the step."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of a steady step, by the same words; they add up to 1. link: exposed transfer; launch: idle; {} without steps."""
    tokens_per_step: float | None = None
    """Of all GPUs of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank took of its GPU's memory from the driver; bytes. A caching allocator keeps what it has taken:
    reserved, not all in use. None is unknown."""

    rank: int
    capacity_bytes: int | None
    """Of the GPU."""
    peak_bytes: int | None
    """The most in the window of the totals. What was taken before the capture began is only known where it was given
    back later: else the figure is too small by that."""
    steady_peak_bytes: int | None
    """The most in the steady steps."""
    first_bytes: int | None
    """At the start of the first steady step."""
    last_bytes: int | None
    """At the end of the last one."""
    allocations_per_step: float | None
    """A steady step, as are the two below."""
    frees_per_step: float | None
    allocated_bytes_per_step: float | None
    """None where only calls tell of allocations."""
    source: str | None
    """Of the figures a step: ``memory_events``, ``calls`` (which count pinned memory too) or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """What a rank should hold at its fullest, by the formulas; bytes, None where a part cannot be told."""

    weights: int | None
    gradients: int | None
    optimizer: int | None
    gathered: int | None
    """Units that are whole at one time, and gradients on their way; 0 where parameters are not sharded."""
    activations: int | None

    @property
    def model_state(self) -> int | None:
        """Weights, gradients and optimizer state."""
        return _sum(self.weights, self.gradients, self.optimizer)

    @property
    def total(self) -> int | None:
        """All of it; None where a part is unknown."""
        return _sum(self.model_state, self.gathered, self.activations)


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """GPU memory: measured on each rank, and expected by strategy and model."""

    ranks: tuple[RankMemory, ...]
    expected: MemoryNeed | None
    lacking: tuple[str, ...]
    """What is not known that the expectation needs."""
    kept_bytes: int | None
    """What it would take to keep the units that are gathered again for backward; None where none are, or unknown."""

    @property
    def peak_bytes(self) -> int | None:
        """Of the rank that reserved most; None unless it is known of all."""
        peaks = [rank.peak_bytes for rank in self.ranks]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if known and len(known) == len(peaks) else None

    @property
    def gap_bytes(self) -> int | None:
        """Peak less expectation; None where either is unknown."""
        total = self.expected.total if self.expected else None
        return self.peak_bytes - total if self.peak_bytes is not None and total is not None else None

    @property
    def spare_bytes(self) -> int | None:
        """What the fullest GPU has left; None unless it is known of all."""
        spare = [
            rank.capacity_bytes - rank.peak_bytes
            for rank in self.ranks
            if rank.capacity_bytes is not None and rank.peak_bytes is not None
        ]
        return min(spare) if spare and len(spare) == len(self.ranks) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that others wait for."""

    rank: int
    verdict: str
    """persistent, rotating or undecided."""
    wait_caused_ns: int
    """Exposed time a step, mean over ranks, in collectives where this rank arrived last, or one of its pipeline that is
    late with it."""
    last_arrivals_share: float
    """Share of collectives where it arrived last (for information; ``caused_share`` decides)."""
    caused_share: float
    """Share of all exposed waiting that it caused (P)."""
    compute_ratio: float
    """Its compute over its peers' median (W)."""
    cause: str
    """slow_compute, host_stall, late_launch, data, sequence_length, stage, link or unknown."""
    kernel_ratio: float | None
    """Duration of the same kernels over the peers', by time; None where none are shared, or ranks take turns."""
    slow_kernels_share: float | None
    """Share of the shared kernels' time in kernels that are slow here."""
    idle_excess_ns: int | None
    """Idle time a step beyond its peers' median; None where several ranks take turns."""
    pattern: str | None = None
    """always, from_step (it slows down at one) or periodic; None where its late steps show none of these."""
    from_step: int | None = None
    """The first step in which it is late, where that is not the first of all."""
    period: int | None = None
    """It is late in every so-manieth step."""
    hosts: tuple[str, ...] = ()
    """Hosts all of whose ranks are named, where the named ranks are those of whole hosts."""
