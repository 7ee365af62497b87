"""Holds an analysis of a simulated job against its labels, and adds up over jobs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Score:
    """What one job, or several, adds up to."""

    right: list[tuple[str, str]] = field(default_factory=list)
    """(job, rule), as in the other two."""
    missed: list[tuple[str, str]] = field(default_factory=list)
    false: list[tuple[str, str]] = field(default_factory=list)
    stragglers: list[tuple[str, bool, bool]] = field(default_factory=list)
    """(job, whether the verdict is right, whether there is a straggler)."""
    hangs: list[tuple[str, bool, bool]] = field(default_factory=list)
    """(job, whether the verdict is right, whether there is a hang)."""
    gains: list[tuple[str, float | None]] = field(default_factory=list)
    """(job, error of the gain as a share of the true one; None where none is given)."""

    def add(self, other: Score) -> None:
        for name in ("right", "missed", "false", "stragglers", "hangs", "gains"):
            getattr(self, name).extend(getattr(other, name))

    @property
    def recall(self) -> float:
        return len(self.right) / max(len(self.right) + len(self.missed), 1)

    @property
    def precision(self) -> float:
        return len(self.right) / max(len(self.right) + len(self.false), 1)

    @property
    def median_gain_error(self) -> float:
        return statistics.median([error for _, error in self.gains if error is not None] or [float("inf")])

    def by_rule(self) -> dict[str, Counter[str]]:
        """How often each rule was right, missed and false."""
        rules: dict[str, Counter[str]] = defaultdict(Counter)
        for what in ("right", "missed", "false"):
            for _, rule in getattr(self, what):
                rules[rule][what] += 1
        return dict(sorted(rules.items()))


def judge(name: str, want: Mapping[str, Any], result: Mapping[str, Any]) -> Score:
    """Score one job by the JSON of its analysis."""
    score = Score()
    findings = result["findings"]
    fired = {finding["rule"] for finding in findings}
    choices = [*([rule] for rule in want["must"]), *want["must_any"]]
    for choice in choices:
        hit = sorted(fired & set(choice))
        (score.right if hit else score.missed).append((name, hit[0] if hit else choice[0]))
    score.false = [(name, rule) for rule in sorted(fired & set(want["must_not"]))]
    if want["straggler_judged"]:
        wanted = _numbers(want["straggler_rank"])
        named = {s["rank"] for s in result["stragglers"] if s["verdict"] == "persistent"}
        right = wanted <= named <= wanted | set(want["straggler_also"])
        score.stragglers.append((name, right, bool(wanted)))
    verdict = (result["hang"] or {}).get("verdict")
    if want["hang"] is None:
        right = verdict in (None, "not_a_hang", "undecided")
    else:
        right = verdict == want["hang"]["verdict"]
        missing = want["hang"]["missing_ranks"]
        right &= missing is None or (result["hang"] or {}).get("missing_ranks") == missing
    score.hangs.append((name, right, want["hang"] is not None))
    if want["gain_judged"]:
        score.gains.append(
            (name, _gain_error(findings, {rule for choice in choices for rule in choice}, want["gain_ns"]))
        )
    return score


def _numbers(value: int | Iterable[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)


def _gain_error(findings: Iterable[Mapping[str, Any]], rules: set[str], truth: int) -> float | None:
    gains = [f["gain_ns"] for f in findings if f["rule"] in rules and f["gain_ns"] is not None]
    return min(abs(gain - truth) / truth for gain in gains) if gains else None
