"""Comparisons as text for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from tracekit._version import __version__
from tracekit.comparison import Change, Comparison, Term
from tracekit.report.comparing import Section, certainty, run_words, runs_section, sections, sentence
from tracekit.report.json import SCHEMA_VERSION
from tracekit.report.markdown import escape, table
from tracekit.report.tables_text import table_lines
from tracekit.report.words import clean, to_ascii
from tracekit.report.words import sentence as full_stop


def render_comparison(
    comparisons: Sequence[Comparison], *, width: int, color: bool, unicode: bool, verbose: bool = False
) -> str:
    """The text for the terminal, no line wider than ``width``; of several NEW runs the tables only with ``verbose``."""
    output = io.StringIO()
    console = Console(
        file=output,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for i, block in enumerate(_blocks(comparisons, width, verbose)):
        if i:
            console.print()
        for line in block:
            for part in line.wrap(console, width, overflow="fold"):
                part.rstrip()
                console.print(part, no_wrap=True, overflow="crop", crop=True)
    return output.getvalue() if unicode else to_ascii(output.getvalue().replace("→", ">"))


def _blocks(comparisons: Sequence[Comparison], width: int, verbose: bool) -> Iterator[list[Text]]:
    several = len(comparisons) > 1
    if several:
        yield [Text.assemble(("tracekit", "bold"), f" {__version__} · base {run_words(comparisons[0].base)}")]
        yield _table(runs_section(comparisons), width)
    for comparison in comparisons:
        lead = f"{clean(comparison.new.name, 60)}: " if several else ""
        lines = [Text(f"{lead}{full_stop(sentence(comparison))}", style="bold")]
        lines += [Text(clean(text)) for text in (certainty(comparison), *comparison.notes) if text]
        if not several:
            who = f"base {run_words(comparison.base)} · new {run_words(comparison.new)}"
            yield [Text.assemble(("tracekit", "bold"), f" {__version__} · {who}")]
        yield lines
        if verbose or not several:
            yield from (_table(section, width) for section in sections(comparison, everything=verbose))


def _table(section: Section, width: int) -> list[Text]:
    return list(table_lines(section.heads, section.rows, width))


def render_comparison_markdown(comparisons: Sequence[Comparison]) -> str:
    """The same for a pull request: sentences first, tables below; ends with a line end."""
    several = len(comparisons) > 1
    blocks: list[Iterable[str]] = [_markdown_table(runs_section(comparisons))] if several else []
    for comparison in comparisons:
        lead = f"{escape(comparison.new.name)}: " if several else ""
        blocks.append([f"### {lead}{escape(full_stop(sentence(comparison)))}"])
        blocks += [[escape(text)] for text in (certainty(comparison), *comparison.notes) if text]
        for section in sections(comparison, everything=False):
            blocks.append(_markdown_table(section))
        who = f"base {run_words(comparison.base)} · new {run_words(comparison.new)}"
        blocks.append([f"<sub>tracekit {__version__} · {escape(who)}</sub>"])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _markdown_table(section: Section) -> list[str]:
    # A space that Markdown keeps: it shows which cause belongs to which term.
    rows = ([escape(cell).replace("  ", "&emsp;") for cell in row] for row in section.rows)
    return list(table([escape(head) for head in section.heads], rows))


def render_comparison_json(comparisons: Sequence[Comparison], max_regression: float | None) -> str:
    """One JSON document, without a final newline; its keys are documented in docs/reference/json.md."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "tracekit_version": __version__,
        "runs": [asdict(run) for run in (comparisons[0].base, *(c.new for c in comparisons))],
        "comparisons": [_comparison(comparison, max_regression) for comparison in comparisons],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def _comparison(comparison: Comparison, max_regression: float | None) -> dict[str, Any]:
    regression, passed = comparison.regression, None
    if regression is not None and max_regression is not None and not comparison.hides(max_regression):
        passed = regression <= max_regression
    return {
        "base": comparison.base.name,
        "new": comparison.new.name,
        "sentence": sentence(comparison),
        "confidence": comparison.confidence,
        "floor_ns": comparison.floor_ns,
        "regression": regression,
        "max_regression": max_regression,
        "passed": passed,
        "step_time": _change(comparison.step_time),
        "terms": [_term(term) for term in comparison.terms],
        "figures": [_change(change) for change in comparison.figures],
        "bytes_per_step": [_change(change) for change in comparison.bytes_per_step],
        "collectives": [asdict(row) for row in comparison.collectives],
        "findings": [asdict(row) for row in comparison.findings],
        "stragglers": [asdict(row) for row in comparison.stragglers],
        "notes": list(comparison.notes),
        "unlike": list(comparison.unlike),
    }


def _term(term: Term) -> dict[str, Any]:
    return {**_change(term.change), "causes": [_change(cause) for cause in term.causes]}


def _change(change: Change) -> dict[str, Any]:
    return {**asdict(change), "difference": change.difference}
