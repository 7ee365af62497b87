"""The rules: one stable code each, registered in one explicit tuple."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tracekit.config import Thresholds
from tracekit.errors import UsageError
from tracekit.results import Finding, Severity, SkippedRule
from tracekit.rules.base import Context, Rule, severity_of
from tracekit.rules.capture_quality import (
    ClocksNotAlignable,
    LaunchRowsMissing,
    NoCommunication,
    NoSteps,
    OpaqueGraphs,
    RaggedEnds,
    RankClaimedTwice,
    StartUpSkew,
)
from tracekit.rules.checkpoints import CheckpointSave
from tracekit.rules.confidence import with_confidence
from tracekit.rules.contention import Contention
from tracekit.rules.device_copies import CopiesOnDevice, Migrations
from tracekit.rules.exposed import ExposedCommunication
from tracekit.rules.first_use import LazyLoading
from tracekit.rules.frameworks import own_words
from tracekit.rules.hangs import HANG_RULES
from tracekit.rules.host import DataLoading, SyncCall
from tracekit.rules.host_copies import HeldByCopy, OffloadExposed, PinnedCopies
from tracekit.rules.late_ranks import LateUnexplained, LikelyWaiting
from tracekit.rules.launches import LaunchBound
from tracekit.rules.memory import AllocatorRetries, Churn, MemoryGap
from tracekit.rules.network import NetworkJitter, SlowLink, StageImbalance
from tracekit.rules.overheads import Recompilation, Recompute, UnfusedOptimizer, WarmUpCounted
from tracekit.rules.parallel import ContextRing, ExpertExchange, PipelineBubble
from tracekit.rules.pauses import Pauses
from tracekit.rules.profiler import ProfilerTrouble
from tracekit.rules.reductions import LastReduction, MicrobatchReductions, ReplicaReductions
from tracekit.rules.residue import Unexplained
from tracekit.rules.schedule import (
    FirstGather,
    HeldUpByLaunchOrder,
    NoBackwardPrefetch,
    NoForwardPrefetch,
    OnComputeStream,
    OptimizerGathers,
    QueuedBehindReductions,
    RateLimited,
)
from tracekit.rules.stragglers import (
    EveryKernelSlow,
    HostStall,
    LateLaunch,
    RotatingStalls,
    SequenceLengths,
    SlowCompute,
)
from tracekit.rules.transfers import GatheredTwice, LatencyBound, TransferBound
from tracekit.spool import release

RULES: tuple[Rule, ...] = (
    SlowCompute(),
    HostStall(),
    LateLaunch(),
    RotatingStalls(),
    SequenceLengths(),
    StageImbalance(),
    SlowLink(),
    EveryKernelSlow(),
    NetworkJitter(),
    LateUnexplained(),
    LikelyWaiting(),
    RateLimited(),
    NoForwardPrefetch(),
    NoBackwardPrefetch(),
    QueuedBehindReductions(),
    OnComputeStream(),
    LatencyBound(),
    FirstGather(),
    ReplicaReductions(),
    LastReduction(),
    HeldUpByLaunchOrder(),
    TransferBound(),
    OptimizerGathers(),
    PipelineBubble(),
    ExpertExchange(),
    ContextRing(),
    MicrobatchReductions(),
    Contention(),
    GatheredTwice(),
    *HANG_RULES,
    CheckpointSave(),
    HeldByCopy(),
    OffloadExposed(),
    PinnedCopies(),
    Migrations(),
    CopiesOnDevice(),
    AllocatorRetries(),
    Churn(),
    MemoryGap(),
    SyncCall(),
    DataLoading(),
    LazyLoading(),
    Recompilation(),
    Pauses(),
    UnfusedOptimizer(),
    LaunchBound(),
    WarmUpCounted(),
    Recompute(),
    NoSteps(),
    NoCommunication(),
    OpaqueGraphs(),
    RaggedEnds(),
    RankClaimedTwice(),
    StartUpSkew(),
    LaunchRowsMissing(),
    ClocksNotAlignable(),
    ProfilerTrouble(),
    ExposedCommunication(),
    Unexplained(),
)
"""All rules; TK100 and TK415 are last, for they carry what the others leave unexplained."""
ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def check_all(context: Context) -> tuple[tuple[Finding, ...], tuple[SkippedRule, ...]]:
    """(findings, as `ranked`; rules that could not be checked)."""
    found: list[Finding] = []
    skipped: list[SkippedRule] = []
    for rule in RULES:
        context.ledger.claimed_at()  # of a rule that claimed and did not report
        for result in rule.check(context):
            if isinstance(result, Finding):
                told = result if context.steady else _of_the_capture(result)
                fix = own_words(context.timeline, told.rule, told.fix)
                placed = replace(told, fix=fix, span=result.span or context.ledger.claimed_at())
                found.append(with_confidence(placed, context))
            else:
                skipped.append(result)
        release()
    return ranked(found), tuple(skipped)


def _of_the_capture(finding: Finding) -> Finding:
    """The finding in the words of a capture without steps, which counts as one."""
    evidence = (
        replace(row, metric=_without_steps(row.metric), unit=_without_steps(row.unit)) for row in finding.evidence
    )
    return replace(finding, title=_without_steps(finding.title), evidence=tuple(evidence))


def _without_steps(words: str) -> str:
    return re.sub(r"\b(a|the) step\b", r"\1 capture", words)


def known_codes(codes: Iterable[str]) -> tuple[str, ...]:
    """The codes, or beginnings of codes, in capitals.

    Raises `UsageError` for one that no rule's code begins with.
    """
    wanted = tuple(code.strip().upper() for code in codes)
    for code in wanted:
        if not code or not any(rule.code.startswith(code) for rule in RULES):
            raise UsageError(
                f"there is no rule {code!r}", hint="tracekit rules lists them; TK1 stands for all of TK1xx."
            )
    return wanted


def reported(code: str, select: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether a rule is to be reported. Of a selected and an ignored beginning the longer one counts."""

    def longest(beginnings: Sequence[str]) -> int:
        return max((len(each) for each in beginnings if code.startswith(each)), default=-1)

    return longest(select or [""]) > longest(ignore)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """A hang before all, then largest gain first: by gain where it is known, else by cost."""
    hangs = {rule.code for rule in HANG_RULES}
    return tuple(
        sorted(findings, key=lambda f: (f.rule not in hangs, -(f.saves_ns or 0), ORDER.index(f.severity), f.rule)),
    )


def graded(findings: Iterable[Finding], wall_ns: int, thresholds: Thresholds) -> Iterator[Finding]:
    """Findings about time whose severity follows what fixing them saves, not what they cost."""
    for finding in findings:
        by_cost = severity_of(finding.cost_ns or 0, wall_ns, thresholds)
        if finding.gain_ns is None or finding.severity != by_cost:
            yield finding
        else:
            yield replace(finding, severity=severity_of(finding.gain_ns, wall_ns, thresholds))
