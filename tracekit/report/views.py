"""Values of the page's templates: bars with their classes, findings and key figures as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath

from tracekit.report.causes import FAMILIES
from tracekit.report.details import evidence_text
from tracekit.report.gain import confidence_words, saves_words
from tracekit.report.sheet import Sheet
from tracekit.report.summary import Bar, Summary
from tracekit.report.theory import NO_STRATEGY, SURE, rate, strategy_words
from tracekit.report.words import add_up, clean, plural, ratio, share
from tracekit.results import Analysis, Finding, Severity
from tracekit.runs import runs

_SHAPES = {Severity.ERROR: "◆", Severity.WARNING: "▲", Severity.INFO: "●"}
_LABELS = {family.key: family.label for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class Segment:
    """One family's share of a bar."""

    classes: str
    label: str
    value: str
    label_class: str
    value_class: str


@dataclass(frozen=True, slots=True)
class BarView:
    """A bar and the figures beside it."""

    name: str
    accused: str | None
    segments: tuple[Segment, ...]
    filler: str
    """Class of the empty end of a bar that is shorter than the longest."""
    spoken: str
    loss: str
    compute: str
    overlap: str


@dataclass(frozen=True, slots=True)
class BarViews:
    """All bars, the mean first."""

    identity: tuple[tuple[str, str], ...]
    """Shown figure and name of each part; the figures add up to ``whole``."""
    whole: str
    loss_name: str
    mean: BarView
    ranks: tuple[BarView, ...]


def bar_views(summary: Summary, sheet: Sheet) -> BarViews:
    """Return the bars on one scale."""
    waits = any(bar.wait_ns for bar in summary.bars)
    longest = max([1, summary.mean.wall_ns, *(bar.wall_ns for bar in summary.bars)])
    parts = add_up(summary.mean.parts_ns, summary.scale)
    names = ("compute", "exposed communication", "exposed copy", "idle")
    return BarViews(
        identity=tuple(zip(parts, names, strict=True)),
        whole=summary.scale.with_unit(sum(summary.mean.parts_ns)),
        loss_name="Peer wait" if waits else "Exposed comm",
        mean=_bar(summary.mean, "All ranks", summary, sheet, longest, waits),
        ranks=tuple(_bar(bar, f"Rank {bar.rank}", summary, sheet, longest, waits) for bar in summary.bars),
    )


def _bar(bar: Bar, name: str, summary: Summary, sheet: Sheet, longest: float, waits: bool) -> BarView:
    scale = summary.scale
    shown = bar.shown(scale)
    parts = add_up(bar.parts_ns, scale)
    segments = []
    for key, ns in bar.families.items():
        value = shown[key]
        full = f"{_LABELS[key]} {value}"
        segments.append(
            Segment(
                classes=f"c-{key} {sheet.width(ns / longest)}",
                label=full,
                value=value,
                label_class=sheet.fits(full),
                value_class=f"{sheet.fits(value)} {sheet.fits_not(full)}",
            )
        )
    return BarView(
        name=name,
        accused=bar.accused,
        segments=tuple(segments),
        filler=sheet.width(1 - bar.wall_ns / longest),
        spoken=", ".join(f"{segment.label} {scale.unit}" for segment in segments),
        loss=shown.get("wait", scale.format(0)) if waits else parts[1],
        compute=parts[0],
        overlap=ratio(bar.overlap_ratio),
    )


def key_figures(analysis: Analysis, summary: Summary) -> list[tuple[str, str, str]]:
    """Return (name, figure, unit) of the few that stand beside the verdict; what is unknown is left out."""
    scale, mean = summary.scale, summary.mean
    shown = add_up(mean.parts_ns, scale)
    whole = ("Step, median", analysis.steady.step_time_ns) if analysis.steady else ("Capture", sum(mean.parts_ns))
    figures = [(whole[0], scale.format(whole[1]), scale.unit)]
    if mean.overlap_ratio is not None:
        figures.append(("Overlap ratio", ratio(mean.overlap_ratio), ""))
        figures.append(("Exposed comm", shown[1], scale.unit))
    used = analysis.efficiency
    if used and used.tokens_per_s is not None:
        figures.append(("Tokens/s", rate(used.tokens_per_s), ""))
    if used and used.mfu is not None:
        figures.append(("MFU", f"{100 * used.mfu:.1f}", "%"))
    return figures


def job_parts(analysis: Analysis) -> list[str]:
    """Return what was captured, a part each: files, model, strategy, GPUs, hosts, steps; unknown parts are left out."""
    names = [clean(PurePath(capture.path).name, 60) for capture in analysis.captures]
    parts = [names[0] if len(names) == 1 else plural(len(names), "capture")]
    found = analysis.sharding
    if found is not None and found.parameters is not None:
        parts.append(f"{rate(found.parameters)} parameters")
    if found is not None and (found.confidence or 0) > SURE and found.strategy not in NO_STRATEGY:
        parts.append(strategy_words(found))
    parts.append(_gpus(analysis))
    hosts = sorted({rank.host for rank in analysis.ranks if rank.host})
    if hosts:
        parts.append(clean(hosts[0], 60) if len(hosts) == 1 else plural(len(hosts), "host"))
    if analysis.steady:
        left_out = f", warm-up {runs(analysis.steady.left_out)} left out" if analysis.steady.left_out else ""
        left_out += f", cut off {runs(analysis.steady.cut_off)} left out" if analysis.steady.cut_off else ""
        parts.append(
            f"{'step' if len(analysis.steady.steps) == 1 else 'steps'} {runs(analysis.steady.steps)}{left_out}"
        )
    return parts


def _gpus(analysis: Analysis) -> str:
    names = Counter(clean(rank.device_name or "unknown", 60).removeprefix("NVIDIA ") for rank in analysis.ranks)
    named = [f"{n} × {name}" if name != "unknown" else plural(n, "GPU") for name, n in names.most_common(3)]
    missing = f" of {analysis.world_size} ranks" if analysis.not_captured and analysis.world_size else ""
    return (" + ".join(named) or "no GPU work") + missing


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """A finding as text."""

    rule: str
    which: int
    """Of the findings of this rule, counted from 1."""
    severity: str
    shape: str
    who: str
    title: str
    saves: str | None
    """The leading figure: what fixing it gains, else what it costs."""
    share: str
    rest: str
    """Cost and gain as far as the leading figure does not say them."""
    confidence: str
    """How sure it is and why; empty where nothing limits it."""
    saves_class: str
    rest_class: str
    evidence: tuple[tuple[str, str, str | None], ...]
    fix: str


def finding_views(analysis: Analysis, summary: Summary, sheet: Sheet) -> list[FindingView]:
    """Return all findings, in the analysis' order."""
    rules = [finding.rule for finding in analysis.findings]
    return [
        _finding(finding, 1 + rules[:i].count(finding.rule), analysis, summary, sheet)
        for i, finding in enumerate(analysis.findings)
    ]


def _finding(finding: Finding, which: int, analysis: Analysis, summary: Summary, sheet: Sheet) -> FindingView:
    wall = summary.mean.wall_ns
    portion = min(1.0, (finding.saves_ns or 0) / wall) if wall else 0.0
    if not finding.ranks:
        who = ""
    elif len(finding.ranks) == len(analysis.ranks):
        who = "all ranks" if len(analysis.ranks) > 1 else ""
    else:
        who = f"{'rank' if len(finding.ranks) == 1 else plural(len(finding.ranks), 'rank') + ':'} {runs(finding.ranks)}"
    return FindingView(
        rule=clean(finding.rule, 12),
        which=which,
        severity=finding.severity.value,
        shape=_SHAPES[finding.severity],
        who=who,
        title=clean(finding.title),
        saves=summary.scale.with_unit(finding.saves_ns) if finding.saves_ns is not None else None,
        share=share(finding.saves_ns or 0, wall),
        rest=saves_words(finding, summary.scale, wall, summary.whole),
        confidence=clean(confidence_words(finding)),
        saves_class=sheet.width(portion),
        rest_class=sheet.width(1 - portion),
        evidence=tuple(evidence_text(evidence) for evidence in finding.evidence),
        fix=clean(finding.fix, 2000),
    )
