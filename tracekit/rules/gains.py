"""What mending each finding gains: which change of the replayed steps stands for its fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tracekit.metrics.replay.what_if import NO_STRAGGLER
from tracekit.results import Finding
from tracekit.rules import ranked

CHANGE_OF_RULE: Mapping[str, str] = {
    "TK201": NO_STRAGGLER,
    "TK202": NO_STRAGGLER,
    "TK203": NO_STRAGGLER,
    "TK204": NO_STRAGGLER,
    "TK205": NO_STRAGGLER,
}
"""By code of the rule. Rules that carry no cost of their own, or that no change stands for, have none."""


def changes_for(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The changes to replay for these findings, each once."""
    return tuple(dict.fromkeys(CHANGE_OF_RULE[f.rule] for f in findings if f.rule in CHANGE_OF_RULE))


def with_gains(findings: Iterable[Finding], gains: Mapping[str, int]) -> tuple[Finding, ...]:
    """The findings, ranked again, with what their mending gains a step; ``gains`` are by change, ns."""
    by_rule = {rule: max(gains[change], 0) for rule, change in CHANGE_OF_RULE.items() if change in gains}
    return ranked(replace(f, gain_ns=by_rule.get(f.rule)) for f in findings)
