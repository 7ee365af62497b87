"""The terminal summary: what an engineer needs to know, in the order in which it is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from tracekit._version import __version__
from tracekit.report import hang_views
from tracekit.report.causes import FAMILIES, Family
from tracekit.report.details import collective_rows, unknowns
from tracekit.report.findings_text import finding_lines
from tracekit.report.heat_text import heat_lines
from tracekit.report.summary import Bar, Summary, summarise
from tracekit.report.tables_text import fitted, rank_lines, size_lines
from tracekit.report.theory import roofline, theory_lines, usage_words
from tracekit.report.verdict import UNDECIDED
from tracekit.report.words import Scale, add_up, clean, plural, ratio, share, to_ascii
from tracekit.report.wrapping import wrapped
from tracekit.results import Analysis, Replay

_NARROWEST = 40
_WIDE = 60
"""From this width on there is room for compute beside the bars."""
_SHORT_LIST = 3
"""How many findings, collectives and the like are listed without ``verbose``."""
_CAUSES_SHOWN = 6
_INDENT = 6
"""Of what stands below the identity."""


def render_text(analysis: Analysis, *, width: int, color: bool, unicode: bool, verbose: bool = False) -> str:
    """Return the summary, no line wider than ``width`` cells (at least 40), ending with a line end.

    ``color`` allows ANSI colours; without ``unicode`` the output is ASCII. Names from captures are shown as they are
    except that control characters are replaced: they cannot style or steer the terminal.
    """
    width = max(width, _NARROWEST)
    summary = summarise(analysis)
    blocks: list[Iterable[Text]] = [
        _job(summary, width),
        _verdict(summary, width),
        _parting(analysis, width, unicode),
        _identity(analysis, summary, width),
        finding_lines(analysis, summary, width, verbose=verbose),
        (*_bars(summary, width, unicode), *_causes(summary, width, unicode)),
        heat_lines(analysis, summary.scale, width, unicode) if verbose else (),
        rank_lines(analysis, summary.scale, width) if verbose else (),
        _collectives(analysis, width, verbose),
        size_lines(analysis, width) if verbose else (),
        _theory(analysis, width) if verbose else (),
        _what_if(analysis.replay, summary, width),
        _critical_path(analysis, summary, width) if verbose else (),
        _unknown(analysis, width, verbose),
        _warnings(analysis, width, verbose),
    ]
    output = io.StringIO()
    console = Console(
        file=output,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    written = False
    for block in blocks:
        lines = list(block)
        if not lines:
            continue
        if written:
            console.print()
        for line in lines:
            line.rstrip()
            console.print(line, no_wrap=True, overflow="crop", crop=True)
        written = True
    return output.getvalue() if unicode else to_ascii(output.getvalue())


def _job(summary: Summary, width: int) -> Iterator[Text]:
    text = Text.assemble(("tracekit", "bold"), f" {__version__} · {summary.job}")
    if summary.steps:
        text.append(f" · {summary.steps}")
    yield from wrapped(text, width)


def _verdict(summary: Summary, width: int) -> Iterator[Text]:
    yield from wrapped(Text(summary.headline, style="bold"), width)
    if summary.lead:
        yield from wrapped(Text(summary.lead), width)
    for note in summary.notes:
        yield from wrapped(Text(note, style="dim"), width)


def _parting(analysis: Analysis, width: int, unicode: bool) -> Iterator[Text]:
    """Who launched and who finished what, where the job stands still."""
    if analysis.hang is None:
        return
    for line in hang_views.lines(analysis.hang, width=width, unicode=unicode):
        yield Text(line)
    yield from wrapped(Text("What each rank did last: tracekit hang CAPTURE...", style="dim"), width)


def _identity(analysis: Analysis, summary: Summary, width: int) -> Iterator[Text]:
    scale, mean = summary.scale, summary.mean
    shown = add_up(mean.parts_ns, scale)
    label = "Mean step  " if summary.whole == "step" else "Capture  "
    indent = _INDENT
    whole = scale.with_unit(sum(mean.parts_ns))
    text = Text.assemble(label, (whole, "bold"), " = ")
    for i, (value, name) in enumerate(zip(shown, ("compute", "exposed comm", "copy", "idle"), strict=True)):
        text.append(" + " if i else "").append(value, style="bold").append(f" {name}")
    yield from wrapped(text, width)
    facts = []
    if analysis.steady:
        facts.append(f"median {scale.with_unit(analysis.steady.step_time_ns)}")
        facts.append(f"p95 {scale.with_unit(analysis.steady.step_time_p95_ns)}")
    facts.append(f"overlap {ratio(mean.overlap_ratio)}" if mean.overlap_ratio is not None else "no communication")
    facts += usage_words(analysis)
    yield from wrapped(Text(" · ".join(facts)), width, indent, Text(" " * indent))
    if bounds := roofline(analysis):
        yield from wrapped(Text(bounds), width, indent, Text(" " * indent))


def _bars(summary: Summary, width: int, unicode: bool) -> Iterator[Text]:
    families = [family for family in FAMILIES if family.key in summary.families]
    waits = any(bar.wait_ns for bar in summary.bars)
    heads = (["compute"] if width >= _WIDE else []) + [
        f"{'wait' if waits else 'exposed'} {summary.scale.unit}",
        "overlap",
    ]
    widths = [max(8, len(head)) + 1 for head in heads]
    label_width = max([4, *(len(str(bar.rank)) for bar in summary.bars)]) + 2
    bar_width = width - label_width - sum(widths) - 2
    tail = _cells(heads, widths)
    legend = Text("  ").join(
        Text.assemble((_glyph(family, unicode), family.ansi), f" {family.label}") for family in families
    )
    title = Text("rank".ljust(label_width))
    if legend.cell_len <= bar_width:
        legend.pad_right(bar_width - legend.cell_len)
        yield Text.assemble(title, legend, tail)
    else:
        yield from wrapped(legend, width)
        yield Text.assemble(title, " " * bar_width, tail)
    longest = max(bar.wall_ns for bar in summary.bars)
    for bar in summary.bars:
        parts = add_up(bar.parts_ns, summary.scale)
        loss = bar.shown(summary.scale).get("wait", summary.scale.format(0)) if waits else parts[1]
        figures = _cells([parts[0], loss, ratio(bar.overlap_ratio)][-len(heads) :], widths)
        painted = _bar(bar, families, bar_width, longest, unicode)
        yield Text.assemble(f"{bar.rank:>{label_width - 2}}  ", painted, figures, _mark(bar))
    if summary.rest:
        yield from wrapped(Text(summary.rest, style="dim"), width, label_width, Text(" " * label_width))


def _causes(summary: Summary, width: int, unicode: bool) -> Iterator[Text]:
    """Yield what the lost time of the bars is, by exact cause: the legend names only families."""
    scale = summary.scale
    shown = [(family, cause, ns) for family, cause, ns in summary.causes if ns * 2 >= scale.tick_ns]
    if not shown:
        return
    named = [
        Text.assemble((_glyph(family, unicode), family.ansi), f" {clean(cause, 40)} {scale.format(ns)}")
        for family, cause, ns in shown[:_CAUSES_SHOWN]
    ]
    if len(shown) > len(named):
        named.append(Text(f"{len(shown) - len(named)} more"))
    line = Text(f"Lost, {scale.unit}  ")
    indent = line.cell_len
    for part in named:  # a glyph and its cause stay together
        if line.cell_len > indent and line.cell_len + part.cell_len > width:
            yield line
            line = Text(" " * indent)
        line.append_text(part).append("  ")
    yield line


def _cells(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _mark(bar: Bar) -> tuple[str, str]:
    if bar.accused is None:
        return "", ""
    return (" ?", "bold yellow") if bar.accused == UNDECIDED else (" <", "bold red")


def _glyph(family: Family, unicode: bool) -> str:
    return family.glyph if unicode else family.ascii_glyph


def _bar(bar: Bar, families: Sequence[Family], width: int, longest_ns: float, unicode: bool) -> Text:
    """Paint a bar: cells by largest remainder, so that a bar's length is its time."""
    cell = Scale("cell", max(1, round(longest_ns / width)), 0)
    counts = add_up([bar.families.get(family.key, 0.0) for family in families], cell)
    text = Text()
    for family, count in zip(families, counts, strict=True):
        text.append(_glyph(family, unicode) * int(count), style=family.ansi)
    text.truncate(width)
    text.pad_right(width - text.cell_len)
    return text


def _collectives(analysis: Analysis, width: int, verbose: bool) -> Iterator[Text]:
    rows = collective_rows(analysis)
    if not rows:
        return
    unit = rows[0].scale.unit
    heads = ["in all", f"exposed {unit}", "overlap"] + (["bus GB/s"] if any(row.busbw for row in rows) else [])
    widths = [max(7, len(head)) + 2 for head in heads]
    first = width - sum(widths)
    title = "Collectives, a step" if rows[0].per_step else "Collectives, whole capture, mean a rank"
    title = title if len(title) <= first else "Collectives"
    yield Text.assemble((set_cell_size(title, first), "bold"), _cells(heads, widths))
    shown = rows if verbose else rows[:_SHORT_LIST]
    for row in shown:
        cells = [str(row.count), row.exposed, ratio(row.overlap_ratio), row.busbw or "–"][: len(heads)]
        name = "  " + fitted(f"{row.op} {row.communicator or ''}".rstrip(), first - 3)
        yield Text.assemble(set_cell_size(name, first), _cells(cells, widths))
    if len(shown) < len(rows):
        yield Text(f"  {len(rows) - len(shown)} more with --verbose", style="dim")


def _theory(analysis: Analysis, width: int) -> Iterator[Text]:
    lines = list(theory_lines(analysis))
    if lines:
        yield Text("Sharding and efficiency", style="bold")
    for line in lines:
        yield from wrapped(Text(line), width, 2, Text("  "))


def _critical_path(analysis: Analysis, summary: Summary, width: int) -> Iterator[Text]:
    """Yield what the length of a step hangs on: by category, by rank and by module."""
    path, replay = analysis.critical_path, analysis.replay
    if path is None or replay is None:
        return
    steps = max(len(replay.steps), 1)
    yield Text(f"Critical path, a {summary.whole}", style="bold")
    names = {"comm": "transfer"}
    shown = add_up([ns / steps for ns in path.by_category.values()], summary.scale)
    parts = [
        f"{value} {names.get(category, category)}"
        for value, (category, ns) in zip(shown, path.by_category.items(), strict=True)
        if ns
    ]
    whole = f"{summary.scale.with_unit(path.length_ns / steps)} = "
    yield from wrapped(Text(f"{whole}{' + '.join(parts)}"), width, 2, Text("  "))
    ranks = sorted(path.by_rank.items(), key=lambda pair: -pair[1])
    over = [f"rank {rank} {share(ns, path.length_ns)}" for rank, ns in ranks[:_SHORT_LIST] if ns]
    yield from wrapped(Text("over " + ", ".join(over)), width, 2, Text("  "))
    for module, ns in path.by_module[:_SHORT_LIST]:
        name = clean(module) if module is not None else "outside of modules"
        yield from wrapped(Text(name), width, 12, Text(f"  {summary.scale.with_unit(ns / steps):>9} "))


def _what_if(replay: Replay | None, summary: Summary, width: int) -> Iterator[Text]:
    """Yield what was asked for: the step time with changes made."""
    if replay is None or not (replay.what_if or replay.not_made):
        return
    now = replay.step_time_ns or 0
    before = summary.scale.with_unit(now)
    yield Text(f"What if, by replay of {plural(len(replay.steps), 'step')} of {before}", style="bold")
    for row in replay.what_if:
        rest = f"{share(abs(row.gain_ns), now)} {'less' if row.gain_ns >= 0 else 'more'}"
        head = Text.assemble("  ", (summary.scale.with_unit(row.step_time_ns), "bold"), f", {rest}: ")
        yield from wrapped(Text(row.change.replace(",", ", ")), width, head.cell_len, head)
    if replay.not_made:
        yield from wrapped(Text(f"nothing to change in this job: {'; '.join(replay.not_made)}"), width, 2, Text("  "))


def _unknown(analysis: Analysis, width: int, verbose: bool) -> Iterator[Text]:
    lines = unknowns(analysis, extras=verbose)
    if not lines:
        return
    yield Text("What these captures cannot tell", style="bold")
    shown = lines if verbose else lines[:_SHORT_LIST]
    for what, how in shown:
        text = Text.assemble(what, (f": {how}", "cyan") if how else "")
        yield from wrapped(text, width, 2, Text("  "))
    if len(shown) < len(lines):
        yield Text(f"  {len(lines) - len(shown)} more with --verbose", style="dim")


def _warnings(analysis: Analysis, width: int, verbose: bool) -> Iterator[Text]:
    lines = [
        line
        for capture in analysis.captures
        for line in (*(f"the profiler warns: {text}" for text in capture.diagnostics), *capture.notes)
    ]
    lines = list(dict.fromkeys(clean(line, 1000 if verbose else 200) for line in lines))
    shown = lines if verbose else lines[:_SHORT_LIST]
    for line in shown:
        yield from wrapped(Text(line, style="dim"), width, 2)
    if len(shown) < len(lines):
        yield Text(f"{plural(len(lines) - len(shown), 'more note')} with --verbose", style="dim")
