"""Findings in the terminal: what, where, how much, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.text import Text

from tracekit.report.details import evidence_text
from tracekit.report.gain import confidence_words, saves_words
from tracekit.report.summary import Summary
from tracekit.report.words import clean, plural, share
from tracekit.report.wrapping import wrapped
from tracekit.results import Analysis, Finding, Severity
from tracekit.runs import runs

FIRST_SHOWN = 3
"""How many findings lead the summary."""
ADVICE_LINES = 3
"""Lines of advice for each of them; the rest is with --verbose and on the rule's page."""
NOTABLY = 1.1
"""Gains whose sum is more than this times what all fixes gain together do not add up."""
_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_INDENT = 7


def finding_lines(analysis: Analysis, summary: Summary, width: int, *, verbose: bool) -> Iterator[Text]:
    """Yield the three findings whose fixes save most, or with ``verbose`` all of them with their evidence."""
    if not analysis.findings:
        return
    shown = analysis.findings if verbose else leading(analysis.findings)
    if shown:
        yield Text("Findings, largest gain first", style="bold")
    cut = ""
    for number, finding in enumerate(shown, 1):
        yield from _head(number, finding, summary, width)
        yield from wrapped(Text(_place(finding, analysis, summary)), width, 2, Text("  "))
        if verbose:
            yield from _proof(finding, width)
        advice = clean(finding.fix, 2000)
        told = advice if verbose else first_sentences(advice, ADVICE_LINES * (width - _INDENT))
        if told:
            yield from wrapped(Text(told), width, _INDENT, Text.assemble("  ", ("Try", "bold"), "  "))
        cut = cut or (clean(finding.rule, 12) if told != advice else "")
    yield from _together(analysis, summary, width)
    left = len(analysis.findings) - len(shown)
    more = [f"{plural(left, 'more finding' if shown else 'note')} with --verbose"] if left else []
    more += [f"all advice: --verbose, or tracekit explain {cut}"] if cut else []
    if more:
        yield from wrapped(Text("; ".join(more), style="dim"), width)


def _together(analysis: Analysis, summary: Summary, width: int) -> Iterator[Text]:
    """Yield what all fixes gain together where that is less than the sum of what each gains alone."""
    joint = analysis.replay.together if analysis.replay else None
    if joint and sum(finding.gain_ns or 0 for finding in analysis.findings) > NOTABLY * joint.gain_ns:
        whole = "a step" if summary.whole == "step" else "the capture"
        line = (
            f"Gains do not add up: with all of them mended {whole} takes {summary.scale.with_unit(joint.step_time_ns)}."
        )
        yield from wrapped(Text(line), width)


def leading(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The first findings that cost time, or are serious without; notes on the capture come with all of them."""
    told = [f for f in findings if f.cost_ns is not None or f.severity is not Severity.INFO]
    return told[:FIRST_SHOWN]


def first_sentences(text: str, room: int) -> str:
    """As many whole sentences as fit into ``room`` characters, but at least one."""
    sentences = re.split(r"(?<=[.?]) (?=[A-Z])", text)
    told = sentences[0]
    for sentence in sentences[1:]:
        if len(told) + 1 + len(sentence) > room:
            break
        told += f" {sentence}"
    return told


def _head(number: int, finding: Finding, summary: Summary, width: int) -> Iterator[Text]:
    saves = summary.scale.with_unit(finding.saves_ns) if finding.saves_ns is not None else "–"
    part = share(finding.saves_ns, summary.mean.wall_ns) if finding.saves_ns is not None else ""
    head = Text.assemble(
        f"{number} ",
        (f"{finding.severity.value:<8}", _SEVERITY_STYLE[finding.severity]),
        f" {clean(finding.rule, 12):<5} {saves:>9} {part:>5}  ",
    )
    title = Text(clean(finding.title))
    if head.cell_len > width // 2:
        yield head
        yield from wrapped(title, width, 2, Text("  "))
    else:
        yield from wrapped(title, width, head.cell_len, head)


def _place(finding: Finding, analysis: Analysis, summary: Summary) -> str:
    """Where it is, cost and gain beside the figure that leads, and how sure it is."""
    said = []
    if len(finding.ranks) == len(analysis.ranks) > 1:
        said.append("all ranks")
    elif finding.ranks:
        said.append(f"rank{'s' * (len(finding.ranks) > 1)} {runs(finding.ranks)}")
    if finding.steps and analysis.steady:
        all_of_them = set(finding.steps) >= set(analysis.steady.steps)
        said.append("every step" if all_of_them else f"step{'s' * (len(finding.steps) > 1)} {runs(finding.steps)}")
    saves = saves_words(finding, summary.scale, summary.mean.wall_ns, summary.whole)
    return "; ".join(part for part in (", ".join(said), saves, confidence_words(finding)) if part)


def _proof(finding: Finding, width: int) -> Iterator[Text]:
    for evidence in finding.evidence:
        metric, value, threshold = evidence_text(evidence)
        text = Text.assemble(f"{metric}: ", (value, "bold"), f" (threshold {threshold})" if threshold else "")
        yield from wrapped(text, width, 4, Text("  · "))
