"""Tables of accounts for the page: by rank, step, phase and module, each row adding up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracekit.metrics.accounting import total
from tracekit.report.summary import steady_steps
from tracekit.report.words import Scale, add_up, clean, ratio
from tracekit.results import Account, Analysis

MAX_ROWS = 400


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One account as it is shown; the four parts add up to the whole."""

    name: str
    whole: str
    parts: tuple[str, ...]
    overlap: str


@dataclass(frozen=True, slots=True)
class AccountTable:
    """Accounts in one unit."""

    title: str
    about: str
    first: str
    unit: str
    rows: tuple[AccountRow, ...]
    left_out: int


_Entry = tuple[str, Account, int]
"""Name, summed account, and over how many it is a sum."""


def account_tables(analysis: Analysis) -> list[AccountTable]:
    """Return the tables that the analysis has figures for."""
    if analysis.steady is None:
        entries = [(f"{rank.rank}", rank.totals, 1) for rank in analysis.ranks]
        return [_table("Ranks", "whole capture", "rank", entries)]
    tables = [
        _table("Ranks", "mean steady step", "rank", list(_by_rank(analysis))),
        _table("Steps", "mean over ranks; also those left out of means", "step", list(_by_step(analysis))),
        _table("Phases", "mean steady step over ranks", "phase", list(_by_phase(analysis))),
        _table("Modules", "mean steady step over ranks", "module", list(_by_module(analysis))),
    ]
    return [table for table in tables if table.rows]


def exposed_by_module(analysis: Analysis) -> list[tuple[str, float]]:
    """Return (module, exposed communication in ns a steady step, mean over ranks), most first."""
    rows = [(clean(name, 120), account.exposed_comm_ns / over) for name, account, over in _by_module(analysis)]
    return sorted(rows, key=lambda row: -row[1])


def _table(title: str, about: str, first: str, entries: Sequence[_Entry]) -> AccountTable:
    scale = Scale.of(max((account.wall_ns / over for _, account, over in entries), default=0))
    return AccountTable(
        title=title,
        about=about,
        first=first,
        unit=scale.unit,
        rows=tuple(_row(entry, scale) for entry in entries[:MAX_ROWS]),
        left_out=max(0, len(entries) - MAX_ROWS),
    )


def _row(entry: _Entry, scale: Scale) -> AccountRow:
    name, account, over = entry
    parts = (account.compute_ns, account.exposed_comm_ns, account.exposed_copy_ns, account.idle_ns)
    return AccountRow(
        name=clean(name, 120),
        whole=scale.format(sum(parts) / over),
        parts=tuple(add_up([part / over for part in parts], scale)),
        overlap=ratio(account.overlap_ratio),
    )


def _by_rank(analysis: Analysis) -> Iterable[_Entry]:
    for rank in analysis.ranks:
        steps = steady_steps(analysis, rank)
        if steps:
            yield str(rank.rank), total([step.account for step in steps]), len(steps)


def _by_step(analysis: Analysis) -> Iterable[_Entry]:
    by_step: dict[int, list[Account]] = {}
    for rank in analysis.ranks:
        for step in rank.steps:
            by_step.setdefault(step.step, []).append(step.account)
    for number in sorted(by_step):
        yield str(number), total(by_step[number]), len(by_step[number])


def _by_phase(analysis: Analysis) -> Iterable[_Entry]:
    steps = [step for rank in analysis.ranks for step in steady_steps(analysis, rank)]
    by_phase: dict[str, list[Account]] = {}
    for step in steps:
        for phase, account in step.by_phase.items():
            by_phase.setdefault(phase, []).append(account)
    for phase, accounts in by_phase.items():
        yield phase, total(accounts), len(steps)


def _by_module(analysis: Analysis) -> Iterable[_Entry]:
    steps = sum(len(steady_steps(analysis, rank)) for rank in analysis.ranks)
    by_module: dict[str, list[Account]] = {}
    for rank in analysis.ranks:
        for module in rank.modules:
            by_module.setdefault(module.module, []).append(module.account)
    entries = [(name, total(accounts), max(1, steps)) for name, accounts in by_module.items()]
    yield from sorted(entries, key=lambda entry: -entry[1].wall_ns)
