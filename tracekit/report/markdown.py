"""The summary as Markdown, for a pull request, an issue or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tracekit._version import __version__
from tracekit.report.details import evidence_text
from tracekit.report.gain import confidence_words
from tracekit.report.summary import Bar, Summary, summarise
from tracekit.report.theory import usage_words
from tracekit.report.words import add_up, clean, duration, ratio, sentence, share
from tracekit.results import Analysis, Finding
from tracekit.runs import runs

FINDINGS_SHOWN = 10
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(analysis: Analysis) -> str:
    """Verdict, identity, findings with what to try, and the ranks; ends with a line end."""
    summary = summarise(analysis)
    blocks = [
        [f"### {escape(summary.headline)}"],
        [escape(summary.lead)] if summary.lead else [],
        list(_identity(analysis, summary)),
        list(_findings(analysis, summary)),
        list(_details(analysis)),
        list(_ranks(summary)),
        [escape(note) for note in summary.notes],
        [f"<sub>tracekit {__version__} · {escape(summary.job)}{' · ' + summary.steps if summary.steps else ''}</sub>"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def escape(text: str) -> str:
    """Text that Markdown (GitHub's, and chat's) shows as it is; names come from captures."""
    return SPECIAL.sub(r"\\\1", clean(text)).replace("@", "@\u200b")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Iterator[str]:
    """A table; the first ``left`` columns are text, the others numbers."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "|".join("---" if i < left else "--:" for i in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _identity(analysis: Analysis, summary: Summary) -> Iterator[str]:
    parts = add_up(summary.mean.parts_ns, summary.scale)
    whole = sum(summary.mean.parts_ns)
    names = ("compute", "exposed communication", "exposed copies", "idle")
    percent = [escape(share(part, whole)) for part in summary.mean.parts_ns]
    yield from table(
        [f"**{'mean step' if summary.whole == 'step' else 'capture'} {summary.scale.with_unit(whole)}**", *names],
        [[summary.scale.unit, *parts], ["share", *percent]],
    )
    facts = [f"overlap ratio {ratio(summary.mean.overlap_ratio)}"] if summary.mean.overlap_ratio is not None else []
    facts += usage_words(analysis)
    if facts:
        yield ""
        yield escape(" · ".join(facts))


def _findings(analysis: Analysis, summary: Summary) -> Iterator[str]:
    if not analysis.findings:
        return
    yield from table(
        ["finding", "", "gain", f"of the {summary.whole}", "cost", f"{summary.whole} without it", "confidence"],
        (_row(finding, summary) for finding in analysis.findings[:FINDINGS_SHOWN]),
        left=2,
    )
    yield ""
    yield "Largest gain first; where it is not known, by cost."
    if len(analysis.findings) > FINDINGS_SHOWN:
        yield ""
        yield f"{len(analysis.findings) - FINDINGS_SHOWN} more."


def _row(finding: Finding, summary: Summary) -> list[str]:
    wall = summary.mean.wall_ns
    gain, cost = ("" if ns is None else summary.scale.with_unit(ns) for ns in (finding.gain_ns, finding.cost_ns))
    return [
        f"{finding.severity} {finding.rule}",
        escape(finding.title),
        gain,
        escape(share(finding.saves_ns, wall)) if finding.saves_ns is not None else "",
        cost,
        duration(wall - finding.gain_ns) if finding.gain_ns is not None else "",
        str(finding.confidence),
    ]


def _details(analysis: Analysis) -> Iterator[str]:
    """Proof and remedy of the findings whose fixes save most, folded."""
    for finding in analysis.findings[:3]:
        yield f"<details><summary>{finding.rule}: what to try, and why</summary>"
        yield ""
        yield f"**Try** {escape(sentence(clean(finding.fix, 2000)))}"
        yield ""
        if words := confidence_words(finding):
            yield f"- {escape(words)}"
        if finding.ranks:
            yield f"- {'rank' if len(finding.ranks) == 1 else 'ranks'} {runs(finding.ranks)}"
        for name, value, limit in map(evidence_text, finding.evidence):
            yield f"- {escape(name)}: **{escape(value)}**" + (f" (threshold {escape(limit)})" if limit else "")
        yield ""
        yield "</details>"


def _ranks(summary: Summary) -> Iterator[str]:
    if len(summary.bars) < 2:
        return
    unit = summary.scale.unit
    yield from table(
        ["rank", f"compute {unit}", f"peer wait {unit}", f"exposed {unit}", f"idle {unit}", "overlap", ""],
        (_bar(bar, summary) for bar in summary.bars),
    )
    if summary.rest:
        yield ""
        yield escape(summary.rest)


def _bar(bar: Bar, summary: Summary) -> list[str]:
    compute, exposed, _, idle = add_up(bar.parts_ns, summary.scale)
    return [
        str(bar.rank),
        compute,
        bar.shown(summary.scale).get("wait", summary.scale.format(0)),
        exposed,
        idle,
        ratio(bar.overlap_ratio),
        escape(bar.accused or ""),
    ]
