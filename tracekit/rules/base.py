"""What a rule is, and what it gets to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracekit.config import Thresholds
from tracekit.metrics.accounting import mean
from tracekit.metrics.links import Link
from tracekit.metrics.views import RankView
from tracekit.metrics.world import StartUp, World
from tracekit.results import (
    Account,
    Collective,
    Finding,
    Hang,
    Memory,
    Rank,
    Severity,
    Sharding,
    SkippedRule,
    Steady,
    Straggler,
)
from tracekit.rules.ledger import Ledger
from tracekit.timeline import Timeline


def mean_step(ranks: Sequence[Rank], steady: Steady | None) -> Account:
    """The mean steady step over ranks; without steps the mean of the ranks' totals counts as one."""
    return steady.account if steady else mean([rank.totals for rank in ranks])


def severity_of(saves_ns: int, wall_ns: int, thresholds: Thresholds) -> Severity:
    """By the share of the step that fixing a finding saves."""
    share = saves_ns / wall_ns if wall_ns else 0.0
    if share >= thresholds.error_share:
        return Severity.ERROR
    return Severity.WARNING if share >= thresholds.warning_share else Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """The measures of one analysis."""

    timeline: Timeline
    ranks: tuple[Rank, ...]
    steady: Steady | None
    collectives: tuple[Collective, ...]
    stragglers: tuple[Straggler, ...]
    links: tuple[Link, ...]
    """The network as each kind of collective saw it."""
    stages: tuple[tuple[int, ...], ...]
    """Groups of ranks that meet in collectives, where the job also passes tensors from rank to rank; else ()."""
    waits_told: bool
    """Whether waiting can be told from transfer: at least two ranks whose collectives match."""
    world: World
    """How many ranks the job has, and which were not captured."""
    start_up: StartUp
    """What was left out of waits and bandwidth."""
    not_aligned: tuple[str, ...]
    """Captures whose clock does not fit the others'."""
    thresholds: Thresholds
    views: tuple[RankView, ...]
    """The ranks' operations and bubbles row by row, in the order of ``ranks``."""
    ledger: Ledger
    """What of the bubbles no finding has claimed: a rule that states a cost claims it here."""

    sharding: Sharding
    memory: Memory
    hang: Hang | None = None
    """Why the job stands still, where the captures end in a hang."""

    @property
    def step(self) -> Account:
        """The mean steady step over ranks; without steps the mean of the ranks' totals counts as one."""
        return mean_step(self.ranks, self.steady)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steady steps; () without steps."""
        return self.steady.steps if self.steady else ()

    def severity(self, cost_ns: int) -> Severity:
        """By the cost's share of the step, as long as what fixing it gains is not known."""
        return severity_of(cost_ns, self.step.wall_ns, self.thresholds)


class Rule(Protocol):
    """One rule of the catalogue: a stable code, a title, and the check."""

    code: str
    title: str

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Findings, or why the rule could not be checked."""
        ...
