"""The rules: one stable code each, registered in one explicit tuple."""

from __future__ import annotations

from tracekit.results import Finding, Severity, SkippedRule
from tracekit.rules.base import Context, Rule
from tracekit.rules.capture_quality import LaunchRowsMissing, NoCommunication, NoSteps, OpaqueGraphs, RankClaimedTwice
from tracekit.rules.exposed import ExposedCommunication

RULES: tuple[Rule, ...] = (
    ExposedCommunication(),
    NoSteps(),
    NoCommunication(),
    OpaqueGraphs(),
    RankClaimedTwice(),
    LaunchRowsMissing(),
)
ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def check_all(context: Context) -> tuple[tuple[Finding, ...], tuple[SkippedRule, ...]]:
    """(findings, costliest first; rules that could not be checked)."""
    found: list[Finding] = []
    skipped: list[SkippedRule] = []
    for rule in RULES:
        for result in rule.check(context):
            if isinstance(result, Finding):
                found.append(result)
            else:
                skipped.append(result)
    found.sort(key=lambda f: (-(f.gain_ns or f.cost_ns or 0), ORDER.index(f.severity), f.rule))
    return tuple(found), tuple(skipped)
