"""The results of an analysis, as frozen values. What each figure means is defined in docs/explanation/accounting.md.

Times are int ns on the clock of the rank's own capture. None means unknown, never zero.
"""

from tracekit.results.accounts import Account, Capture, Clock, LeftOut, Module, Rank, Steady, Step
from tracekit.results.analysis import Analysis, Presenters, present_with
from tracekit.results.findings import (
    Confidence,
    CriticalPath,
    Evidence,
    Finding,
    Prediction,
    Replay,
    Severity,
    SkippedRule,
    Span,
)
from tracekit.results.hang import (
    Around,
    Hang,
    LastActivity,
    Launched,
    Mismatch,
    ProcessGroup,
    SameRanks,
    Unfinished,
    Wait,
    Waiting,
)
from tracekit.results.host import HostCollective, HostRank, HostStep
from tracekit.results.job import (
    Collective,
    Efficiency,
    Memory,
    MemoryNeed,
    RankMemory,
    Sharding,
    SizeClass,
    Straggler,
    Volume,
)

__all__ = [
    "Account",
    "Analysis",
    "Around",
    "Capture",
    "Clock",
    "Collective",
    "Confidence",
    "CriticalPath",
    "Efficiency",
    "Evidence",
    "Finding",
    "Hang",
    "HostCollective",
    "HostRank",
    "HostStep",
    "LastActivity",
    "Launched",
    "LeftOut",
    "Memory",
    "MemoryNeed",
    "Mismatch",
    "Module",
    "Prediction",
    "Presenters",
    "ProcessGroup",
    "Rank",
    "RankMemory",
    "Replay",
    "SameRanks",
    "Severity",
    "Sharding",
    "SizeClass",
    "SkippedRule",
    "Span",
    "Steady",
    "Step",
    "Straggler",
    "Unfinished",
    "Volume",
    "Wait",
    "Waiting",
    "present_with",
]
