"""What NVTX alone says, for captures without GPU work."""

from __future__ import annotations

from dataclasses import dataclass


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
