"""What fixing a finding saves, in words: the figure that findings are ordered by, beside what they cost."""

from __future__ import annotations

from tracekit.report.words import Scale
from tracekit.results import Analysis, Confidence, Finding

HOURS_A_DAY = 24
LESS, MORE = 0.75, 1.25
"""A gain between these times its cost needs no word of why they differ."""


def saves_words(finding: Finding, scale: Scale, wall_ns: float, whole: str) -> str:
    """Return cost and gain as far as the leading figure does not say them; empty for what is not about time."""
    if finding.gain_ns is None:
        return "that is its cost: the gain is not known" if finding.cost_ns is not None else ""
    after = f"without it {scale.with_unit(wall_ns - finding.gain_ns)} a {whole}"
    if finding.cost_ns is None:
        return after
    cost, gain = scale.with_unit(finding.cost_ns), scale.with_unit(finding.gain_ns)
    return after if cost == gain else f"costs {cost}{_why_they_differ(finding)}; {after}"


def _why_they_differ(finding: Finding) -> str:
    cost, gain = finding.cost_ns or 0, finding.gain_ns or 0
    if gain < LESS * cost:
        return ", other work then takes that time" if gain < (1 - LESS) * cost else ", other work then takes the rest"
    return " and holds up more" if gain > MORE * cost else ""


def confidence_words(finding: Finding) -> str:
    """Return how sure the finding is and why; empty where nothing limits it."""
    if finding.confidence is Confidence.HIGH:
        return ""
    why = f": {finding.confidence_reason}" if finding.confidence_reason else ""
    return f"{finding.confidence} confidence{why}"


def gpu_hours_a_day(analysis: Analysis, ns: float, wall_ns: float) -> float:
    """Return what a loss costs a job of this size that runs all day: lost share x ranks x 24."""
    ranks = max(analysis.world_size or 0, len(analysis.ranks))
    return ns / wall_ns * ranks * HOURS_A_DAY if wall_ns else 0.0


def hours(value: float) -> str:
    """Return GPU-hours with two figures."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
