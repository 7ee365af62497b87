"""The analysis as a whole, and how it shows itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.config import DEFAULT, Thresholds
from tracekit.errors import TracekitError
from tracekit.results.accounts import Capture, LeftOut, Rank, Steady
from tracekit.results.findings import CriticalPath, Finding, Replay, SkippedRule
from tracekit.results.hang import Hang
from tracekit.results.host import HostRank
from tracekit.results.job import Collective, Efficiency, Memory, Sharding, Straggler

if TYPE_CHECKING:
    import pandas as pd


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
    """Largest gain first: by gain where it is known, else by cost."""
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
    thresholds: Thresholds = DEFAULT
    """Those that the analysis was made with: what renders it decides by the same ones."""
    left_out: tuple[LeftOut, ...] = ()
    """Captures that could not be read, or hold no GPU work."""

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
