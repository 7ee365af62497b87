"""The point where a job's ranks part, as rows and cells: what the page and the terminal both draw."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.report.words import clean
from tracekit.results import Around, Hang
from tracekit.rules.hang_words import group_name
from tracekit.runs import few_runs, runs

ROWS_SHOWN = 24
"""Groups of equal ranks that are drawn; those furthest behind come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One way in which a rank can stand to a collective."""

    key: str
    label: str
    mark: str
    ascii_mark: str


STATES = {
    state.key: state
    for state in (
        State(key="completed", label="finished", mark="●", ascii_mark="F"),
        State(key="started", label="runs, not finished", mark="◐", ascii_mark="R"),
        State(key="issued", label="launched, not finished", mark="○", ascii_mark="o"),
        State(key="unknown", label="launched, no more is told", mark="◌", ascii_mark="?"),
        State(key="differs", label="called differently", mark="≠", ascii_mark="!"),
        State(key="absent", label="never launched", mark="×", ascii_mark="x"),
        State(key="lost", label="before what is known", mark="·", ascii_mark="."),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One group of ranks in one collective."""

    state: State
    about: str
    """The same in words."""
    parting: bool
    """It is in the collective where the ranks part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Ranks that got equally far."""

    who: str
    cells: tuple[Cell, ...]
    steps: str
    """The training steps that they launched these in; empty where none is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One communicator's collectives around the point."""

    communicator: str
    columns: tuple[tuple[int, str, bool], ...]
    """(seq, op, whether the ranks part there)."""
    rows: tuple[Row, ...]
    left_out: int
    """Groups of ranks beyond the rows."""


def tables(hang: Hang) -> tuple[Table, ...]:
    """One table for each communicator that the verdict is about."""
    parting = {hang.communicator: hang.seq} | {wait.communicator: wait.seq for wait in hang.cycle}
    return tuple(
        _table(around, parting.get(around.communicator), group_name(hang, around.communicator))
        for around in hang.around
    )


def states_of(shown: tuple[Table, ...]) -> tuple[State, ...]:
    """The states that any cell shows, for the legend."""
    seen = {cell.state.key for table in shown for row in table.rows for cell in row.cells}
    return tuple(state for key, state in STATES.items() if key in seen)


def _table(around: Around, parting: int | None, name: str) -> Table:
    ops = [clean((op or "unknown").replace("_", "-"), 40) for op in around.ops]
    rows = []
    for group in around.rows[:ROWS_SHOWN]:
        who = ranks_in_words(group.ranks)
        cells = [
            Cell(
                state=STATES[state],
                about=f"{who}, {op} {seq}: {STATES[state].label}" + (f" (step {step})" if step is not None else ""),
                parting=seq == parting,
            )
            for seq, op, state, step in zip(around.seqs, ops, group.states, group.steps, strict=True)
        ]
        steps = runs(sorted({step for step in group.steps if step is not None}))
        rows.append(Row(who=who, cells=tuple(cells), steps=steps))
    return Table(
        communicator=clean(name, 80),
        columns=tuple((seq, op, seq == parting) for seq, op in zip(around.seqs, ops, strict=True)),
        rows=tuple(rows),
        left_out=len(around.rows) - len(rows),
    )


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-2``, ``ranks 0-11, 14-31 (30)``; the middle left out where it is long."""
    return f"rank{'s' if len(ranks) > 1 else ''} {few_runs(ranks)}" + (f" ({len(ranks):,})" if len(ranks) > 4 else "")


def lines(hang: Hang, *, width: int, unicode: bool) -> list[str]:
    """The tables as text, at most ``width`` cells wide, with a legend; [] where the verdict names no collective."""
    shown = tables(hang)
    made: list[str] = []
    for table in shown:
        title = f"Collectives {table.columns[0][0]} to {table.columns[-1][0]} of {table.communicator}"
        made += textwrap.wrap(title, width)
        room = max(8, width - 2 * len(table.columns) - 4)
        names = [row.who if len(row.who) <= room else row.who[: room - 3] + "..." for row in table.rows]
        longest = max(map(len, names))
        made.append(f"  {'':<{longest}} " + "".join(" v" if parting else "  " for _, _, parting in table.columns))
        for name, row in zip(names, table.rows, strict=True):
            marks = "".join(f" {cell.state.mark if unicode else cell.state.ascii_mark}" for cell in row.cells)
            step = f"   step {row.steps}" if row.steps else ""
            line = f"  {name:<{longest}} {marks}"
            made.append(line + step if len(line + step) <= width else line)
        if table.left_out:
            made.append(f"  and {table.left_out} more groups of ranks")
    legend = "  ".join(
        f"{state.mark if unicode else state.ascii_mark} {state.label}".replace(" ", "\N{NO-BREAK SPACE}")
        for state in states_of(shown)
    )
    wrapped = textwrap.wrap(legend, width, initial_indent="  ", subsequent_indent="  ")
    return [line.rstrip() for line in [*made, *(line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped)]]
