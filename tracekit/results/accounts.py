"""Where the time of ranks and steps goes: the account, the ranks, the captures and the steady steps."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    followed: bool = True
    """Whether another step begins where this one ends; else it ends with its last operation."""


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
    """Which ranges the steps come from, e.g. ``ProfilerStep#``, or ``period``; None without steps."""
    steps: tuple[Step, ...]
    step_confidence: float | None = None
    """How sure the steps are, 0 to 1, where no ranges mark them (``step_source`` is ``period``); None otherwise."""
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
    gpu: int | None = None
    """The machine's number of its GPU, where known: ``device`` counts only those that the process may see."""
    pci_bus: str | None = None
    """Where its GPU is, such as ``0000:1a:00.0``."""


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
class LeftOut:
    """A capture that was named and is in no figure."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The steps that figures are quoted for: without the first, slow leading ones, and those that were cut off."""

    steps: tuple[int, ...]
    left_out: tuple[int, ...]
    """Leading steps left out as warm-up."""
    step_time_ns: int
    """Median over steps and ranks."""
    step_time_p95_ns: int
    account: Account
    """Mean a step over ranks, rounded so that the identity still holds."""
    cut_off: tuple[int, ...] = ()
    """Steps left out because the capture ended in them: no step follows, and they are too short."""

    @property
    def all_steps(self) -> tuple[int, ...]:
        """Every step, whatever is left out; those that were cut off come last."""
        return (*self.left_out, *self.steps, *self.cut_off)

    @property
    def not_averaged(self) -> frozenset[int]:
        """Steps that are shown and in no mean: warm-up, and those that were cut off."""
        return frozenset((*self.left_out, *self.cut_off))
