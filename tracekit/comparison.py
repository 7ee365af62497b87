"""What two runs differ in, as frozen values. Times are ns a step, mean over ranks; None means unknown, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a difference is more than the spread of steps."""

    DIFFERS = "differs"
    WITHIN_NOISE = "within_noise"
    TOO_FEW_STEPS = "too_few_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of both runs."""

    metric: str
    base: float | None
    new: float | None
    verdict: Verdict | None = None
    """None where the figure has no value for each step, or one of the runs has none at all."""
    low: float | None = None
    high: float | None = None
    """The shift of a typical step lies in between, with the confidence of `Comparison.confidence`; None where steps are
    too few."""
    shift: float | None = None
    """By how much a typical step of NEW is larger: the median of all differences between their steps."""

    @property
    def difference(self) -> float | None:
        """NEW less BASE; None where one of them is unknown."""
        return None if self.base is None or self.new is None else self.new - self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the identity, with its causes; these add up to the term."""

    change: Change
    causes: tuple[Change, ...]
    """Largest change first; () for compute, and where no step tells causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFigures:
    """Collectives of one op in all communicators of one role."""

    communicators: int
    count: int
    """In the whole capture."""
    bytes: int | None
    """Median message; of several communicators, the median weighted by how many collectives they had."""
    transfer_ns: int | None
    busbw_gbps: float | None
    exposed_per_step_ns: int | None
    """Mean over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveChange:
    """The same in both runs; None where a run has none of them."""

    op: str
    role: str
    """``all ranks``, or ``groups of N``."""
    base: CollectiveFigures | None
    new: CollectiveFigures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """The findings of one rule."""

    rule: str
    title: str
    """As the run says it that has them; as NEW says it where both have."""
    base_cost_ns: int | None
    new_cost_ns: int | None
    status: str
    """``came``, ``went`` or ``stayed``; ``not_checked_in_base`` or ``..._new`` where that run's data cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerChange:
    """What both runs say of one rank; None where it holds up nobody."""

    rank: int
    base: str | None
    """Such as ``persistent, slow_compute``."""
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run, in the figures that runs are held against each other by."""

    name: str
    strategy: str | None
    ranks: int
    """Ranks captured."""
    world_size: int | None
    steps: int
    """Steady steps; 0 where the captures hold none."""
    step_time_ns: int | None
    """Mean of the steady steps."""
    median_ns: int | None
    overlap_ratio: float | None
    tokens_per_s: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    """Of the GPU that used most; None: memory events are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that two runs differ in."""

    base: RunFigures
    new: RunFigures
    confidence: float
    """Of the intervals, both sides together."""
    floor_ns: float
    """A smaller difference is called noise even where steps tell it."""
    step_time: Change
    terms: tuple[Term, ...]
    """compute, exposed_comm, exposed_copy, idle: they add up to the step time; () without steps in both."""
    figures: tuple[Change, ...]
    """overlap_ratio, step_time_p95_ns, tokens_per_s, mfu."""
    collectives: tuple[CollectiveChange, ...]
    bytes_per_step: tuple[Change, ...]
    """By op, on one rank."""
    findings: tuple[FindingChange, ...]
    """Costliest first."""
    stragglers: tuple[StragglerChange, ...]
    """Ranks with a verdict in either run."""
    notes: tuple[str, ...]
    """What makes the runs less than comparable."""
    unlike: tuple[str, ...] = ()
    """In what the runs are different jobs, such as ``tokens a step``; their step times then say nothing."""

    @property
    def regression(self) -> float | None:
        """By which share of BASE's median step a typical step of NEW is longer, if that is beyond noise, else 0.

        None where it cannot be told.
        """
        change = self.step_time
        if (
            self.unlike
            or change.verdict in (None, Verdict.TOO_FEW_STEPS)
            or not self.base.median_ns
            or change.shift is None
        ):
            return None
        return max(0.0, change.shift / self.base.median_ns) if change.verdict is Verdict.DIFFERS else 0.0

    def hides(self, regression: float) -> bool:
        """Whether the noise is so wide that a regression of this share of BASE's median step would not be seen."""
        change = self.step_time
        if change.verdict is not Verdict.WITHIN_NOISE or change.high is None or not self.base.median_ns:
            return False
        return change.high > max(regression * self.base.median_ns, self.floor_ns)
