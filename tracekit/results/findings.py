"""What rules report, and what replays predict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, by what fixing it saves: error from 10 % of the step, warning from 2 %, else info."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Confidence(StrEnum):
    """How sure a finding is. One of low confidence never leads a report and fails no gate unless asked to."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


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
    """By how much a step gets shorter when it is fixed, by replay; None where no model of that holds."""
    evidence: tuple[Evidence, ...]
    fix: str
    span: Span | None = None
    """Where to look first; None where the finding is not about lost time."""
    confidence: Confidence = Confidence.HIGH
    confidence_reason: str | None = None
    """What limits it; None where the confidence is high."""

    @property
    def saves_ns(self) -> int | None:
        """What findings are ranked and graded by: the gain where it is known, else the cost."""
        return self.cost_ns if self.gain_ns is None else self.gain_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRule:
    """A rule that could not be checked, and the capture flags that would let it."""

    rule: str
    reason: str
    capture_with: str | None
    extra: bool = False
    """It needs what an ordinary capture does not hold: a summary need not say so."""


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
