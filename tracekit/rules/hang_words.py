"""What a hang is, in one sentence that fits two lines: groups by name and not by hash, few ranks, sizes in a unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tracekit.results import Hang, Mismatch, ProcessGroup, Waiting
from tracekit.runs import few_runs, runs

HASH = re.compile(r"0x[0-9a-f]{8,}")
UNNAMED = "all collectives"
"""What stands for the communicator where no source tells communicators apart."""
BYTES = re.compile(r"([\d,?]+(?: -> [\d,?]+)?) bytes")
NUMBER = re.compile(r"\d[\d,]*")
UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
MOST_RUNS = 3
"""Runs of ranks that are told in a sentence; more are counted."""
MOST_SIDES = 2
MOST_GROUPS = 2


def claim(hang: Hang) -> str:
    """The verdict in one sentence, without its full stop."""
    return CLAIMS[hang.verdict](hang)


def who(ranks: Sequence[int], *, first: bool = True) -> str:
    """Ranks as ``Rank 3``, ``Ranks 12, 13`` or ``30 ranks (0-11, 14-31)``."""
    if not ranks:
        return "No rank" if first else "no rank"
    text = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {few_runs(ranks)}"
    if len(ranks) > 4:
        text = f"{len(ranks):,} ranks" + (f" ({told})" if (told := _few(ranks)) else "")
    return text[0].upper() + text[1:] if first else text


def _few(ranks: Sequence[int]) -> str | None:
    """Ranks as runs, where these are few."""
    told = runs(ranks)
    return told if told.count(",") < MOST_RUNS else None


def group_name(hang: Hang, name: str | None = None) -> str:
    """The hang's communicator, or another one that it names: ``TENSOR_MODEL_PARALLEL_GROUP (0-3)``.

    A hash says nothing: such a communicator is called by its ranks, and by the hash's end where several have these.
    """
    name = hang.communicator if name is None else name
    group = next((g for g in (hang.group, *hang.groups) if g is not None and g.name == name), None)
    group = group or ProcessGroup(name=name or "?", description=None, ranks=None)
    ranks = group.ranks or ()
    members = f" ({_few(ranks) or f'{len(ranks):,} ranks'})" if ranks else ""
    if group.description:
        return group.description + members
    if not HASH.fullmatch(group.name):
        return group.name + members if " " in group.name else f"group {group.name}{members}"
    alone = not any(other.ranks == group.ranks and other.name != group.name for other in hang.groups)
    if ranks and alone:
        return f"the communicator of {f'ranks {told}' if (told := _few(ranks)) else f'{len(ranks):,} ranks'}"
    return f"communicator 0x…{group.name[-4:]}{members}"


def collective(hang: Hang) -> str:
    """The collective as ``all-gather 118 of default_pg (0-7)``."""
    return f"{_numbered(hang.op, hang.seq, hang.communicator)} {_of(hang)}"


def _of(hang: Hang) -> str:
    return "in the order of all collectives" if hang.communicator == UNNAMED else f"of {group_name(hang)}"


def _numbered(op: str | None, seq: int | None, communicator: str | None) -> str:
    name = (op or "collective").replace("_", "-")
    return f"{name} {'at ' if communicator == UNNAMED else ''}{seq}"


def _missing(hang: Hang) -> str:
    waiting = [rank for rank in hang.waiting_ranks if rank not in hang.missing_ranks]
    verb = "wait" if len(waiting) != 1 else "waits"
    few = who(waiting, first=False) if len(waiting) <= 4 else f"{len(waiting):,} ranks"
    return f"{who(hang.missing_ranks)} never launched {collective(hang)}; {few} {verb}"


def _blocked(hang: Hang) -> str:
    calls = {a.activity.last_call for a in hang.last_activity if a.rank in hang.culprits}
    inside = calls.pop() if len(calls) == 1 and None not in calls else "a CUDA call"
    verb = "is" if len(hang.culprits) == 1 else "are"
    return (
        f"The host of {who(hang.culprits, first=False)} {verb} inside {inside} and has not come to {collective(hang)}"
    )


def _mismatch(hang: Hang) -> str:
    at = next(m for m in hang.mismatches if (m.communicator, m.seq) == (hang.communicator, hang.seq))
    if len(at.found) == 1:
        return f"All ranks called {collective(hang)} with sizes that cannot be: {at.found[0][1]}, not {at.expected}"
    return f"Ranks called {collective(hang)} differently: {_sides(at)}"


def _sides(mismatch: Mismatch) -> str:
    """Each way of calling it, the odd ones first; without the op where it is one."""
    op = f"{mismatch.op} " if mismatch.op is not None and mismatch.verdict != "type_mismatch" else ""
    ways = sorted(mismatch.found, key=lambda way: len(way[0]))
    calls = _in_units([call.removeprefix(op).removeprefix("of ") for _, call in ways])
    sides = [f"{who(ranks, first=False)} {call}" for (ranks, _), call in zip(ways, calls, strict=True)]
    told = "; ".join(sides[:MOST_SIDES])
    return told + (f"; and {len(sides) - MOST_SIDES} more ways" if len(sides) > MOST_SIDES else "")


def _in_units(calls: list[str]) -> list[str]:
    """Bytes with a unit, where that keeps apart what differs."""
    short = [BYTES.sub(lambda found: NUMBER.sub(_size, found[1]), call) for call in calls]
    return short if len(set(short)) == len(set(calls)) else calls


def _size(number: re.Match[str]) -> str:
    value = int(number[0].replace(",", ""))
    unit, factor = next(((unit, factor) for unit, factor in UNITS if value >= factor), ("B", 1))
    return f"{value / factor:.4g} {unit}"


def _state(hang: Hang) -> str:
    late = who(hang.culprits) if hang.culprits else "Some ranks"
    return f"{late} did not get as far as the others in {collective(hang)}, which all launched alike"


def _cycle(hang: Hang) -> str:
    ranks = sorted({waiting.rank for waiting in hang.cycle})
    names = list(dict.fromkeys(waiting.communicator for waiting in hang.cycle))
    if len(names) < 2:
        return f"{who(ranks)} wait for one another in {collective(hang)}"
    if all(waiting.op == "send_recv" for waiting in hang.cycle):
        first = (
            f": {who(hang.missing_ranks, first=False)} never launched {collective(hang)}" if hang.missing_ranks else ""
        )
        return f"{who(ranks)} wait for one another in sends and receives{first}"
    firsts = [next(waiting for waiting in hang.cycle if waiting.communicator == name) for name in names]
    shown = " and ".join(_in_cycle(hang, waiting) for waiting in firsts[:MOST_GROUPS])
    more = f" and {len(names) - MOST_GROUPS} more" if len(names) > MOST_GROUPS else ""
    return f"{who(ranks)} wait for one another: {shown}{more} in different order"


def _in_cycle(hang: Hang, waiting: Waiting) -> str:
    """A communicator of a cycle by its name; where it has none, by what is called there."""
    group = next((g for g in hang.groups if g.name == waiting.communicator), None)
    if HASH.fullmatch(waiting.communicator) and not (group and group.description):
        return f"{_numbered(waiting.op, waiting.seq, None)} (0x…{waiting.communicator[-4:]})"
    if " " in waiting.communicator and not (group and group.description):
        return _numbered(waiting.op, waiting.seq, None)
    return group_name(hang, waiting.communicator)


def _desync(hang: Hang) -> str:
    odd = who(hang.culprits) if hang.culprits else "Ranks"
    verb = "pairs" if len(hang.culprits) == 1 else "pair"
    return f"{odd} {verb} with other steps' collectives, from {collective(hang)} on"


def _unfinished(hang: Hang) -> str:
    told = f"{who(hang.waiting_ranks)} launched {collective(hang)} alike, and none has finished it"
    unknown = hang.group is not None and hang.group.ranks is None
    return told + (", if these are all its ranks" if unknown else "")


def _undecided(hang: Hang) -> str:
    at = f" at {collective(hang)}" if hang.communicator else ""
    lacking = f"what is lacking: {'; '.join(hang.lacking)}"
    timed = {row.rank for row in hang.last_activity if row.activity.idle_ns is not None}
    if hang.behind_ranks and hang.waiting_ranks and timed.issuperset(hang.behind_ranks):  # captures that end too early
        suspected = f"{who(hang.behind_ranks, first=False)} had not launched {collective(hang)} when the captures ended"
        return f"Suspected, not certain: {suspected}; {lacking}"
    return f"Undecided{at}; {lacking}"


CLAIMS: dict[str, Callable[[Hang], str]] = {
    "missing_rank": _missing,
    "host_blocked": _blocked,
    "type_mismatch": _mismatch,
    "size_mismatch": _mismatch,
    "dtype_mismatch": _mismatch,
    "state_mismatch": _state,
    "order_inversion": _cycle,
    "unfinished": _unfinished,
    "step_desync": _desync,
    "not_a_hang": lambda hang: "No hang: " + (hang.notes[-1] if hang.notes else "all collectives completed"),
    "undecided": _undecided,
}
