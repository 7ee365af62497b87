"""A diagnosed hang as text: one sentence, both sides, what each rank was doing, what to try."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tracekit.report import hang_views, wait_graph
from tracekit.report.hang_views import ranks_in_words
from tracekit.report.words import clean, duration, plural, sentence, to_ascii
from tracekit.results import Finding, Hang, LastActivity
from tracekit.rules.hang_steps import next_steps
from tracekit.rules.hang_words import claim, group_name
from tracekit.runs import few_runs

MOST_GROUPS = 12
MOST_MISMATCHES = 8
MOST_FRAMES = 6
MOST_NODES = 6
LABEL = 14


def render_hang(hang: Hang, finding: Finding | None, *, width: int, unicode: bool, verbose: bool) -> str:
    """The whole text. Ranks that were doing the same are one line, however many they are."""
    lines = [*_wrap(sentence(clean(claim(hang), 2000)), width), ""]
    for other in hang.others:
        lines += [*_wrap(sentence(clean(f"Apart from that: {_lower(claim(other))}", 2000)), width), ""]
    lines += _facts(hang, width)
    if steps := next_steps(hang):
        lines += ["", "What to do next", *(line for step in steps for line in _indented(step, width))]
    if hang.around:
        lines += ["", "Who launched and who finished what", *_table(hang, width, unicode)]
    if hang.cycle:
        lines += ["", "Who waits for whom", *_cycle(hang, unicode)]
    elif len(hang.waits) > 1:
        lines += ["", "Who waits for whom", *wait_graph.lines(hang, width=width, most=None if verbose else MOST_NODES)]
    if hang.mismatches:
        lines += ["", "Collectives that were called differently", *_mismatches(hang, width, verbose)]
    if hang.last_activity:
        lines += ["", "What each rank did last", *_activities(hang, width, verbose)]
    for heading, texts in (("What is lacking", hang.lacking), ("Notes", hang.notes)):
        if texts:
            lines += ["", heading, *(line for text in texts for line in _indented(text, width))]
    if finding is not None:
        lines += ["", f"What to try ({finding.rule})", *_indented(finding.fix, width)]
    text = "\n".join(clean(line.rstrip(), 2000) for line in lines)  # names come from captures and dumps
    return text if unicode else to_ascii(text)


def _facts(hang: Hang, width: int) -> Iterator[str]:
    yield from _fact("verdict", hang.verdict, width)
    if hang.communicator is not None:
        named = f" ({hang.description})" if hang.description else ""
        members = f", ranks {few_runs(hang.group.ranks)}" if hang.group is not None and hang.group.ranks else ""
        yield from _fact("communicator", hang.communicator + named + members, width)
        yield from _fact("collective", f"{hang.op or _no_op(hang)}, number {hang.seq}", width)
    for label, ranks in (
        ("ahead", hang.ahead_ranks),
        ("behind", hang.behind_ranks),
        ("missing", hang.missing_ranks),
        ("waiting", hang.waiting_ranks),
        ("look at", hang.culprits),
    ):
        if ranks:
            yield from _fact(label, ranks_in_words(ranks), width)
    for label, value in (("step", hang.step), ("module", hang.module)):
        if value is not None:
            yield from _fact(label, str(value), width)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _no_op(hang: Hang) -> str:
    return "of different ops" if hang.verdict == "type_mismatch" else "of unknown op"


def _table(hang: Hang, width: int, unicode: bool) -> list[str]:
    return [f"  {line}" for line in hang_views.lines(hang, width=width - 2, unicode=unicode)]


def _cycle(hang: Hang, unicode: bool) -> Iterator[str]:
    top, side, bottom = ("┌─> ", "│   ", "└── ") if unicode else ("+-> ", "|   ", "+-- ")
    for i, wait in enumerate(hang.cycle):
        what = f"{wait.op or 'a collective'} {wait.seq} of {clean(group_name(hang, wait.communicator), 60)}"
        yield f"  {side if i else top}rank {wait.rank} is inside {what} and waits for"
    yield f"  {bottom}rank {hang.cycle[0].rank}"


def _mismatches(hang: Hang, width: int, verbose: bool) -> Iterator[str]:
    shown = hang.mismatches if verbose else hang.mismatches[:MOST_MISMATCHES]
    for row in shown:
        yield from _indented(f"{row.verdict} at {row.seq} of {clean(row.communicator, 60)}:", width)
        for ranks, call in row.found:
            yield from _wrap(f"{ranks_in_words(ranks)}: {clean(call)}", width, "      ")
        if len(row.found) == 1:
            yield from _wrap(f"expected {row.expected}", width, "      ")
    if len(hang.mismatches) > len(shown):
        yield f"  and {len(hang.mismatches) - len(shown)} more (--verbose)"


def doings(hang: Hang) -> list[tuple[tuple[str, ...], list[int]]]:
    """(what ranks did last in words, the ranks) of ranks that did the same, those to look at first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in hang.last_activity:
        groups.setdefault(tuple(_doing(row)), []).append(row.rank)
    first = set(hang.culprits) or set(hang.behind_ranks)
    return sorted(groups.items(), key=lambda group: (first.isdisjoint(group[1]), -len(group[1]), group[1]))


def _activities(hang: Hang, width: int, verbose: bool) -> Iterator[str]:
    order = doings(hang)
    shown = order if verbose else order[:MOST_GROUPS]
    for doing, ranks in shown:
        yield from _indented(f"{ranks_in_words(ranks)}:", width)
        for text in doing:
            yield from _wrap(text, width, "      ")
    if len(order) > len(shown):
        rest = sum(len(ranks) for _, ranks in order[len(shown) :])
        yield f"  and {plural(rest, 'rank')} in {plural(len(order) - len(shown), 'further group')} (--verbose)"


def _doing(row: LastActivity) -> Iterator[str]:
    doing = row.activity
    if row.seq is None:
        yield "no collective is known of it"
    else:
        state = f", {row.state}" if row.state else ""
        yield f"last collective {row.op or 'of unknown op'} {row.seq} of {clean(row.communicator or '?', 60)}{state}"
    if doing.open_ranges:
        yield "inside " + " > ".join(clean(name, 80) for name in doing.open_ranges)
    where = [("step", doing.step), ("phase", doing.phase), ("module", doing.module)]
    if any(value is not None for _, value in where):
        yield "in " + ", ".join(f"{label} {clean(str(value), 80)}" for label, value in where if value is not None)
    if doing.last_call:
        yield f"last CUDA call {clean(doing.last_call, 80)}" + (
            ", which never returned" if doing.last_call_open else ""
        )
    if doing.os_call:
        yield f"blocked in {clean(doing.os_call, 80)}"
    if doing.idle_ns is not None:
        yield f"idle for {duration(_coarse(doing.idle_ns))} or more"
    if doing.frames:
        yield "called from " + ", ".join(clean(frame, 120) for frame in doing.frames[:MOST_FRAMES])


def _coarse(ns: int) -> int:
    """A duration cut to one digit, so that ranks that differ by a little are told together."""
    text = str(max(ns, 0))
    return int(text[0] + "0" * (len(text) - 1))


def _fact(label: str, value: str, width: int) -> list[str]:
    indent = " " * (LABEL + 2)
    return textwrap.wrap(
        clean(value, 2000),
        width,
        initial_indent=f"  {label:<{LABEL}}",
        subsequent_indent=indent,
        break_long_words=False,
    )


def _indented(text: str, width: int) -> list[str]:
    return _wrap(text, width, "  ")


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  " * bool(indent), break_long_words=False
    )
