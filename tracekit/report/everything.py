"""The page's folded tables: lost time by cause, sharding against theory, efficiency, critical path, what-if, hang."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tracekit.report.summary import Summary
from tracekit.report.theory import memory_lines, rate, strategy_words
from tracekit.report.words import Scale, add_up, clean, duration, plural, sentence, share, size
from tracekit.results import (
    Analysis,
    CriticalPath,
    Efficiency,
    Hang,
    LastActivity,
    Memory,
    Prediction,
    RankMemory,
    Replay,
    Sharding,
    Volume,
)
from tracekit.runs import runs

MAX_ROWS = 400
_UNKNOWN = "–"
_PATH = {"comm": "transfer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A fold's content: sentences, then rows; the first ``left`` columns and the last one hold words where told so."""

    title: str
    about: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: frozenset[int] = frozenset({0})
    """Columns that are set flush left."""
    left_out: int = 0
    """Rows beyond the table."""


def causes_table(summary: Summary) -> Table | None:
    """Return the lost time of a mean steady step by exact cause; None without steps."""
    if not summary.causes:
        return None
    wall_ns = summary.mean.wall_ns
    return Table(
        title="Lost time by cause",
        about=f"mean steady step over ranks, {summary.scale.unit}",
        heads=("Cause", "Kind", "Lost", "Of a step"),
        rows=tuple(
            (_plain(cause), family.label, summary.scale.format(ns), share(ns, wall_ns))
            for family, cause, ns in summary.causes
        ),
        words=frozenset({0, 1}),
    )


def theory_tables(analysis: Analysis, summary: Summary) -> list[Table]:
    """Return what is known of strategy, efficiency, critical path and replays, each where there is anything to tell."""
    found = [
        _sharding(analysis.sharding) if analysis.sharding else None,
        _efficiency(analysis.efficiency) if analysis.efficiency else None,
        _memory(analysis.memory) if analysis.memory else None,
        _critical_path(analysis, summary),
        _what_if(analysis.replay, summary.scale) if analysis.replay else None,
        _hang(analysis.hang) if analysis.hang else None,
    ]
    return [table for table in found if table]


def json_line(analysis: Analysis) -> str:
    """Return the command that writes every figure as JSON, its file names without their folders."""
    names = [shlex.quote(clean(PurePath(capture.path).name, 80)) for capture in analysis.captures[:4]]
    more = " …" if len(analysis.captures) > len(names) else ""
    return f"tracekit analyze {' '.join(names)}{more} --json analysis.json"


def _plain(word: str) -> str:
    return clean(word, 80).replace("_", " ")


def _sharding(found: Sharding) -> Table:
    words = strategy_words(found)
    lines = [
        f"{words[:1].upper()}{words[1:]}." if not found.confidence else f"{words}, confidence {found.confidence:g}."
    ]
    lines += [sentence(clean(text)) for text in found.evidence]
    if found.parameters is not None:
        source = {"option": "as the options tell", "mark": "as the trainer's mark tells"}.get(
            found.parameters_source or ""
        )
        lines.append(f"{rate(found.parameters)} parameters{f', {source}' if source else ''}.")
    elif found.volumes:
        lines.append("What it should move is not known without the model's size: --model tells it.")
    return Table(
        title="Sharding against theory",
        about=strategy_words(found),
        lines=tuple(lines),
        heads=("Op", "Moved a step", "Expected", "Moved over expected", "Why they differ") if found.volumes else (),
        rows=tuple(_volume(row) for row in found.volumes),
        words=frozenset({0, 4}),
    )


def _volume(row: Volume) -> tuple[str, ...]:
    both = row.bytes is not None and row.expected_bytes
    return (
        clean(row.op, 40).replace("_", "-"),
        "unknown" if row.bytes is None else size(row.bytes),
        "unknown" if row.expected_bytes is None else size(row.expected_bytes),
        f"{(row.bytes or 0) / (row.expected_bytes or 1):.2f}" if both else _UNKNOWN,
        clean(row.explanation or "", 400),
    )


def _efficiency(used: Efficiency) -> Table:
    figures = [
        ("Tokens a second", None if used.tokens_per_s is None else rate(used.tokens_per_s)),
        ("MFU", None if used.mfu is None else f"{100 * used.mfu:.1f} %"),
        ("HFU", None if used.hfu is None else f"{100 * used.hfu:.1f} %"),
        ("Model GFLOPs per token", None if used.flops_per_token is None else f"{used.flops_per_token / 1e9:.3g}"),
        ("Peak of the GPU, dense bfloat16", None if used.peak_tflops is None else f"{used.peak_tflops:g} TFLOP/s"),
        ("Bound by", used.bound_by),
        *((f"Of a step: {name}", share(part, 1)) for name, part in used.shares.items()),
    ]
    lines = []
    if used.formula and used.mfu is not None:
        lines.append(f"MFU {100 * used.mfu:.1f} % = {clean(used.formula)}.")
    elif used.reason:
        lines.append(sentence(f"MFU is not known: {clean(used.reason)}"))
    return Table(
        title="Efficiency",
        about="tokens a second, MFU, and what they rest on",
        lines=tuple(lines),
        heads=("Figure", "Value"),
        rows=tuple((name, value if value is not None else "unknown") for name, value in figures),
    )


def _memory(found: Memory) -> Table:
    rows = tuple(_memory_row(row) for row in found.ranks[:MAX_ROWS])
    return Table(
        title="GPU memory",
        about="what each rank took from the driver, and what strategy and model take",
        lines=(
            *(sentence(line[:1].upper() + line[1:]) for line in memory_lines(found)),
            *(sentence(f"Not known: {clean(text)}") for text in found.lacking),
        ),
        heads=(
            "Rank",
            "Of the GPU",
            "Peak",
            "Peak, steady steps",
            "First steady step",
            "Last one",
            "Allocations a step",
        )
        if rows
        else (),
        rows=rows,
        left_out=max(0, len(found.ranks) - MAX_ROWS),
    )


def _memory_row(row: RankMemory) -> tuple[str, ...]:
    sizes = (row.capacity_bytes, row.peak_bytes, row.steady_peak_bytes, row.first_bytes, row.last_bytes)
    calls = _UNKNOWN if row.allocations_per_step is None else f"{row.allocations_per_step:.1f}"
    return (str(row.rank), *(_UNKNOWN if value is None else size(value) for value in sizes), calls)


def _critical_path(analysis: Analysis, summary: Summary) -> Table | None:
    path, replay = analysis.critical_path, analysis.replay
    if path is None or replay is None:
        return None
    steps, scale = max(1, len(replay.steps)), summary.scale
    parts = list(path.by_category.items())
    shown = add_up([ns / steps for _, ns in parts], scale)
    whole = " + ".join(f"{text} {_PATH.get(name, name)}" for text, (name, ns) in zip(shown, parts, strict=True) if ns)
    rows = list(_path_rows(path, steps, scale))
    return Table(
        title="Critical path",
        about=f"what the length of a {summary.whole} hangs on, {scale.unit} a {summary.whole}",
        lines=(f"{scale.with_unit(path.length_ns / steps)} = {whole}.",),
        heads=("By", "Over", "Time", "Of the path"),
        rows=tuple(rows[:MAX_ROWS]),
        words=frozenset({0, 1}),
        left_out=max(0, len(rows) - MAX_ROWS),
    )


def _path_rows(path: CriticalPath, steps: int, scale: Scale) -> Iterator[tuple[str, ...]]:
    by_rank = sorted(path.by_rank.items(), key=lambda pair: (-pair[1], pair[0]))
    ranks = [("rank", str(rank), ns) for rank, ns in by_rank]
    modules = [("module", "outside of all" if name is None else clean(name, 120), ns) for name, ns in path.by_module]
    for by, name, ns in (*ranks, *modules):
        if ns:
            yield by, name, scale.format(ns / steps), share(ns, path.length_ns)


def _what_if(replay: Replay, scale: Scale) -> Table:
    lines = []
    if replay.step_time_ns is not None:
        missed = (
            ""
            if replay.unexplained_share is None
            else f"; the replay misses it by {share(replay.unexplained_share, 1)}"
        )
        noun = "Step" if len(replay.steps) == 1 else "Steps"
        lines.append(f"{noun} {runs(replay.steps)} as measured: {scale.with_unit(replay.step_time_ns)}{missed}.")
    if replay.reason:
        lines.append(sentence(f"Nothing is predicted: {clean(replay.reason)}"))
    elif not replay.predictions and not replay.what_if:
        lines.append("No finding has a change that can be replayed; --what-if asks for one.")
    return Table(
        title="What if",
        about="how long it takes with something changed, by replay",
        lines=tuple(lines),
        heads=("Change", "Takes", "Shorter by", "Share") if replay.predictions or replay.what_if else (),
        rows=tuple(_prediction(row, replay.step_time_ns or 0, scale) for row in _once(replay)),
    )


def _once(replay: Replay) -> Iterable[Prediction]:
    """What was asked for first, then what findings were replayed with, each change once."""
    return {row.change: row for row in (*replay.what_if, *replay.predictions)}.values()


def _prediction(row: Prediction, now_ns: int, scale: Scale) -> tuple[str, ...]:
    part = share(abs(row.gain_ns), now_ns)
    return (
        clean(row.change, 200).replace(",", ", "),
        scale.with_unit(row.step_time_ns),
        scale.with_unit(row.gain_ns),
        part if row.gain_ns >= 0 else f"{part} longer",
    )


def _hang(hang: Hang) -> Table:
    lines = [sentence(clean(note)) for note in hang.notes]
    for wait in hang.cycle:
        what = f"{_plain(wait.op or 'a collective')} {wait.seq} of {clean(wait.communicator, 60)}"
        lines.append(f"Rank {wait.rank} is inside {what} and waits for rank {wait.waits_for}.")
    for row in hang.mismatches:
        calls = "; ".join(f"{_ranks(ranks)} {clean(call, 200)}" for ranks, call in row.found)
        lines.append(f"{_plain(row.verdict)} at {row.seq} of {clean(row.communicator, 60)}: {calls}.")
    return Table(
        title="What each rank did last",
        about=plural(len(hang.last_activity), "rank"),
        lines=tuple(lines),
        heads=("Rank", "Last collective", "State", "Step", "Inside", "Host call", "Quiet for")
        if hang.last_activity
        else (),
        rows=tuple(_last(row) for row in hang.last_activity[:MAX_ROWS]),
        words=frozenset({0, 1, 2, 4, 5}),
        left_out=max(0, len(hang.last_activity) - MAX_ROWS),
    )


def _last(row: LastActivity) -> tuple[str, ...]:
    doing = row.activity
    last = (
        _UNKNOWN
        if row.seq is None
        else f"{_plain(row.op or 'unknown')} {row.seq} of {clean(row.communicator or '?', 60)}"
    )
    call = doing.os_call or doing.last_call
    return (
        str(row.rank),
        last,
        row.state or _UNKNOWN,
        _UNKNOWN if doing.step is None else str(doing.step),
        " > ".join(clean(name, 60) for name in doing.open_ranges) or _UNKNOWN,
        _UNKNOWN if call is None else clean(call, 80) + (", not returned" if doing.last_call_open else ""),
        _UNKNOWN if doing.idle_ns is None else duration(doing.idle_ns),
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {runs(ranks)}"
