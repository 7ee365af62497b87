"""The results of an analysis, as frozen values. What each figure means is defined in docs/explanation/accounting.md.

Times are int ns on the clock of the rank's own capture. None means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError
from tracekit.evidence import Activity

if TYPE_CHECKING:
    import pandas as pd


class Severity(StrEnum):
    """How much a finding matters: error from 10 % of the step, warning from 2 %, else info."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the time of one window goes on one GPU; compute + exposed_comm + exposed_copy + idle = wall."""

    wall_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    comm_ns: int
    overlapped_comm_ns: int

    @property
    def overlap_ratio(self) -> float | None:
        """Overlapped over total communication, 0 to 1; None where there is no communication."""
        return self.overlapped_comm_ns / self.comm_ns if self.comm_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank: the window from its anchor to the next step's."""

    step: int
    start_ns: int
    end_ns: int
    account: Account
    by_phase: dict[str, Account] = field(default_factory=dict)
    """forward, backward, optimizer, data, other; their windows tile the step. Empty without phase ranges."""
    exposed_comm_by_cause: dict[str, int] = field(default_factory=dict)
    exposed_copy_by_cause: dict[str, int] = field(default_factory=dict)
    idle_by_cause: dict[str, int] = field(default_factory=dict)
    caused_wait_ns: int | None = None
    """Exposed time, mean over ranks, that the others waited here for this rank; None where it cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The share of one module (layer) in a rank's steady steps; its account sums over those steps."""

    module: str
    account: Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a rank's clock relates to the first rank's: there an instant t is t - offset - drift × (t - origin)."""

    offset_ns: int | None
    drift_ppm: float | None
    uncertainty_ns: int | None
    method: str | None
    """``same_capture``; ``collectives`` (measured from their ends); ``session_start`` (coarse: the captures' wall-clock
    start); None where it cannot be told."""
    origin_ns: int | None = None
    """When the offset holds, on this rank's own clock: drift counts from here; None where no drift was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank's figures."""

    rank: int
    rank_source: str
    host: str | None
    pid: int
    device: int
    device_name: str | None
    capture: int
    """Index into `Analysis.captures`."""
    clock: Clock
    totals: Account
    start_ns: int
    end_ns: int
    """The window of ``totals``: first GPU operation's start to last one's end (cut to --window)."""
    main_stream: int | None
    """The compute stream with most compute time, which anchors the steps."""
    step_source: str | None
    """Which ranges the steps come from, e.g. ``ProfilerStep#``; None without steps."""
    steps: tuple[Step, ...]
    steps_renumbered: bool = False
    """The collectives say that these are other steps of the first rank's than their own marks' numbers say: the numbers
    are the first rank's."""
    wait_caused_ns: int | None = None
    """Exposed time a step, mean over ranks, that the others wait for it; None where waiting cannot be told."""
    caused_share: float | None = None
    """Share of all exposed waiting that it causes (P)."""
    last_arrivals_share: float | None = None
    """Share of collectives where it arrives last (for information)."""
    compute_ratio: float | None = None
    """Its compute over the median of the ranks that it is compared with (W); None with one rank."""
    modules: tuple[Module, ...]
    """Costliest first; empty where NVTX tells of none."""
    kernels: int
    kernels_launched: int
    """How many kernels have their launch row: the share that NVTX can be attributed to."""
    opaque_ns: int
    """Time of CUDA graphs traced as a whole: compute of unknown content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One capture file, as far as results need it."""

    path: str
    format: str
    nsys_version: str | None
    schema_version: str | None
    ranks: tuple[int, ...]
    auxiliary: tuple[tuple[int, int], ...]
    """(pid, device) pairs with copies only."""
    diagnostics: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The steps that figures are quoted for: without the first, and without slow leading ones."""

    steps: tuple[int, ...]
    left_out: tuple[int, ...]
    """Leading steps left out as warm-up."""
    step_time_ns: int
    """Median over steps and ranks."""
    step_time_p95_ns: int
    account: Account
    """Mean a step over ranks, rounded so that the identity still holds."""


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
    """Exposed time a step, mean over ranks, in collectives where this rank arrived last."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured fact behind a finding."""

    metric: str
    value: float | int | str | None
    unit: str
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One interval of one rank: the longest instance of what a finding is about."""

    rank: int
    step: int | None
    """None without steps."""
    start_ns: int
    end_ns: int
    cause: str
    """As in the causes of exposed and idle time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule reports: a claim, what it costs, the proof, and what to try."""

    rule: str
    severity: Severity
    title: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    cost_ns: int | None
    """Recoverable time a step, mean over ranks; None where the rule is not about time."""
    gain_ns: int | None
    """By how much a step gets shorter when mended, by replay; None without one."""
    evidence: tuple[Evidence, ...]
    fix: str
    span: Span | None = None
    """Where to look first; None where the finding is not about lost time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a step would take with something changed, by replay."""

    change: str
    """What was changed, e.g. ``straggler=off``; several together with commas between."""
    step_time_ns: int
    """Mean over the replayed steps and ranks."""
    gain_ns: int
    """Mean of those steps as measured, less ``step_time_ns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Steps replayed through their dependency graph: whether that works, and what it predicts."""

    steps: tuple[int, ...]
    """The steps replayed, consecutive; () where none could be."""
    step_time_ns: int | None
    """Their mean over ranks, as measured."""
    unexplained_share: float | None
    """By how much the replay of a step misses when only known dependencies are kept (the worst step's share)."""
    reason: str | None
    """Why nothing is predicted; None where something is."""
    predictions: tuple[Prediction, ...]
    """For the fixes of findings."""
    what_if: tuple[Prediction, ...] = ()
    """For the changes that were asked for."""
    together: Prediction | None = None
    """With the fixes of all findings that gain something; None for less than two different ones."""
    not_made: tuple[str, ...] = ()
    """Changes that were asked for and that do not apply to this job, or cannot be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain of operations that the length of the replayed steps hangs on; sums over those steps, ns."""

    length_ns: int
    """From the first rank's beginning of the first step to the last one's end of the last."""
    by_category: dict[str, int]
    """compute, comm (transfers), copy, host (work of the host, launches, waking up) and idle (what nothing known
    explains, and the start of GPU work after what it waited for); they add up to the length."""
    by_rank: dict[int, int]
    """The same by the rank that the path leads over."""
    by_module: tuple[tuple[str | None, int], ...]
    """The same by module, most time first; None: outside of all modules, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRule:
    """A rule that could not be checked, and the capture flags that would let it."""

    rule: str
    reason: str
    capture_with: str | None
    extra: bool = False
    """It needs what an ordinary capture does not hold: a summary need not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """One step as a host thread saw it: the NVTX range itself, not GPU time."""

    step: int
    start_ns: int
    end_ns: int
    open: bool
    """The range was never closed: the capture ended, or the job hung, inside it."""
    by_phase_ns: dict[str, int]
    """Time inside phase ranges on the step's own thread (innermost phase); the rest of the step is in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCollective:
    """Annotated collectives of one op on one rank, as the host issued them: issue time is not transfer time."""

    op: str
    count: int
    bytes: int | None
    """Sum of the annotated full tensors; None if an annotation lacks its size."""
    issue_ns: int
    open: int
    """How many were never left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRank:
    """What NVTX alone says about one process, for captures without GPU work."""

    rank: int
    rank_source: str
    pid: int
    capture: int
    step_source: str | None
    steps: tuple[HostStep, ...]
    collectives: tuple[HostCollective, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One edge of the wait-for graph: a rank is inside a collective that another rank has not launched."""

    rank: int
    communicator: str
    seq: int
    op: str | None
    waits_for: int
    """The rank that has not launched it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One collective that its ranks called with different arguments, or with sizes that cannot be."""

    verdict: str
    """type_mismatch, size_mismatch or dtype_mismatch."""
    communicator: str
    seq: int
    op: str | None
    """What the majority called; None where no op has one."""
    ranks: tuple[int, ...]
    """Who differs from the majority; all ranks where none has one, or where all agree on something impossible."""
    expected: str
    """What the majority called (or what would fit), in words."""
    found: tuple[tuple[tuple[int, ...], str], ...]
    """(ranks, what they called) for each way of calling it, the most frequent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastActivity:
    """What one rank was doing last."""

    rank: int
    communicator: str | None
    """Of its last collective."""
    seq: int | None
    op: str | None
    state: str | None
    """issued, started, completed, or None where the source does not tell."""
    activity: Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRanks:
    """Ranks that got equally far in the collectives around the point where a job parts."""

    ranks: tuple[int, ...]
    states: tuple[str, ...]
    """By collective: completed, started, issued or unknown (launched, no more is told); absent (never launched);
    differs (launched, but called differently from the others); lost (before what is known of these ranks)."""
    steps: tuple[int | None, ...]
    """By collective: the training step it was launched in; None where it was not, and where that is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The collectives of one communicator around the point where its ranks part."""

    communicator: str
    seqs: tuple[int, ...]
    ops: tuple[str | None, ...]
    """By collective, what most ranks called; None where that is not told."""
    rows: tuple[SameRanks, ...]
    """Ranks that are furthest behind first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Why a job stands still: where its ranks part, and who is on which side."""

    verdict: str
    """missing_rank, type_mismatch, size_mismatch, dtype_mismatch, state_mismatch, order_inversion, unfinished,
    step_desync, host_blocked, not_a_hang or undecided."""
    communicator: str | None
    """Where they part; None where no collective can be named (as for the four fields below)."""
    description: str | None
    """What the job calls the communicator."""
    seq: int | None
    op: str | None
    missing_ranks: tuple[int, ...]
    """Ranks that never launched this collective."""
    waiting_ranks: tuple[int, ...]
    """Ranks that launched it and have not completed it."""
    ahead_ranks: tuple[int, ...]
    """The side that got further in this communicator (which may be the smaller one)."""
    behind_ranks: tuple[int, ...]
    culprits: tuple[int, ...]
    """Ranks to look at first: the absent ones, or those that differ from the majority; () where nobody stands out."""
    cycle: tuple[Waiting, ...]
    """The shortest cycle of the wait-for graph; () where there is none."""
    mismatches: tuple[Mismatch, ...]
    """All mismatched collectives, not only the one that the verdict is about; earliest first."""
    last_activity: tuple[LastActivity, ...]
    """One for each rank with evidence, by rank."""
    step: int | None
    """Training step of the ranks that are behind (of all, where none is); None where unknown or various."""
    module: str | None
    lacking: tuple[str, ...]
    """What would decide it, where something is missing: dumps of ranks, flags of nsys, sizes."""
    notes: tuple[str, ...]
    """What the readers passed over, and what else was seen, in words."""
    around: tuple[Around, ...] = ()
    """Who launched and who finished what, around the point where the ranks part; for a cycle, in each of its
    communicators."""

    @property
    def is_hang(self) -> bool:
        """Whether a hang was found: neither ``not_a_hang`` nor ``undecided``."""
        return self.verdict not in ("not_a_hang", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything `tracekit.analyze` found out about a timeline."""

    captures: tuple[Capture, ...]
    ranks: tuple[Rank, ...]
    steady: Steady | None
    """None where the capture has no steps."""
    collectives: tuple[Collective, ...]
    """Most exposed time first."""
    stragglers: tuple[Straggler, ...]
    """Ranks with a verdict, most waiting caused first; () where nobody stands out."""
    findings: tuple[Finding, ...]
    """Costliest first."""
    skipped_rules: tuple[SkippedRule, ...]
    world_size: int | None = None
    """Number of ranks of the job, as a trainer's mark or NCCL tells it."""
    not_captured: tuple[int, ...] = ()
    """Ranks of the job that no capture holds; () also where the captures do not tell which ranks they are of."""
    host_ranks: tuple[HostRank, ...] = ()
    """The NVTX view, only for captures without GPU work (and only if asked for)."""
    sharding: Sharding | None = None
    """None where it was not looked for."""
    efficiency: Efficiency | None = None
    memory: Memory | None = None
    remedies: tuple[tuple[str, str], ...] = ()
    """What could not be told from these captures, each with the nsys flag (or change) that would tell it."""
    hang: Hang | None = None
    """Why the job stands still, where the captures end in a hang; None where they do not, or it was not examined."""
    replay: Replay | None = None
    """What steps would take with something changed; None where no replay was asked for."""
    critical_path: CriticalPath | None = None
    """Of the replayed steps; None where there are none."""

    def frames(self, detail: Any = None) -> dict[str, pd.DataFrame]:
        """The same as `tracekit.frames`."""
        if not _PRESENTERS:
            raise TracekitError("nothing is loaded that makes tables", hint="Use tracekit.frames(analysis).")
        return _PRESENTERS[-1].frames(self, detail)

    def _repr_html_(self) -> str | None:
        return _PRESENTERS[-1].html(self) if _PRESENTERS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Presenters:
    """How an analysis shows itself. Renderers come after results, so whoever knows both hands them in."""

    html: Callable[[Analysis], str]
    frames: Callable[[Analysis, Any], dict[str, pd.DataFrame]]


_PRESENTERS: list[Presenters] = []


def present_with(presenters: Presenters) -> None:
    """Let analyses show themselves by these from now on."""
    _PRESENTERS[:] = [presenters]
