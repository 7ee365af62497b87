"""One dump of PyTorch's Flight Recorder as columns (dump versions 2.x, torch 2.4 and later).

A dump has ``entries`` (the ring buffer, oldest first), ``pg_config`` (process groups and their ranks) and, by
version, ``pg_status``, ``nccl_comm_state`` and a ``rank``. A ring buffer that wrapped has lost its first entries; a job
that runs with ``TORCH_INCLUDE_ONLY_ACTIVE`` dumps the unfinished ones alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.errors import CaptureError
from tracekit.evidence import UNKNOWN, ProcessFacts, State
from tracekit.readers.dump_entries import Rows, Unread
from tracekit.readers.dump_files import WHAT_IS_ONE, load_dump
from tracekit.readers.dump_groups import Count, Group, counts_of, groups_of, is_at_rest
from tracekit.readers.dump_values import frames, number, rank, text
from tracekit.readers.raw import LARGEST_RANK

TRAILING_NUMBER = re.compile(r"(\d{1,9})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
HOST_IN_NAME = re.compile(r"rank_([A-Za-z][\w.-]*?)_\d{1,9}(?:\.[A-Za-z][A-Za-z0-9]*)*$")
WORLD = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dump:
    """One dump."""

    path: str
    rank: int | None
    """None where neither the content nor the name tells."""
    rank_source: str
    version: str | None
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    columns: dict[str, np.typing.NDArray[np.int64]]
    """communicator (index into groups), seq, op and dtype (into names), elements_in, elements_out, state, launch,
    created."""
    wrapped: bool
    """It holds not all that the rank has launched."""
    has_gaps: bool
    """Entries are lacking between others, or before them: finished ones may have been left out."""
    world: tuple[int, ...] | None
    """Ranks of the default process group."""
    last_collective: str | None
    frames: tuple[str, ...]
    passed_over: int
    """Entries that could not be read."""
    unread: tuple[Unread, ...]
    counts: tuple[tuple[int, Count], ...]
    """(index into groups, how far it got by the process's own count)."""
    mixed: frozenset[str]
    """Names of groups in which the rank sends or receives."""
    counts_operations: bool
    """Those counts are of operations of all kinds, which are not comparable."""
    at_rest: bool
    """The process counts all that it has launched as completed."""
    process: ProcessFacts


def read_dump(path: Path) -> Dump:
    """Read one dump. Raises `CaptureError` for what is none or cannot be read."""
    data = load_dump(path)
    version = data.get("version")
    if version is not None and not re.match(r"2\.\d", text(version) or ""):
        raise CaptureError(
            f"{path}: a dump of version {(text(version) or 'that is no text')[:20]}; 2.x can be read",
            hint="torch 2.4 and later write 2.x. Update tracekit for dumps of a newer torch.",
        )
    entries = [entry for entry in data.get("entries", []) if isinstance(entry, dict)]
    known = groups_of(data.get("pg_config"))
    world = next((group.ranks for group in known.values() if group.description == WORLD), None)
    own, source = _rank(data, world, path)
    rows = Rows(known, rank=own, status=data.get("pg_status"))
    rows.add(entries)
    counts = counts_of(data.get("pg_status"), known, rows.id_of)
    last = entries[-1] if entries else {}
    wrapped, has_gaps = _lost(entries, rows, counts)
    indexed = tuple((rows.group(name, known[name].description or ""), count) for name, count in _told(counts, rows))
    return Dump(
        path=str(path),
        rank=own,
        rank_source=source,
        version=text(version),
        groups=tuple(rows.groups),
        names=tuple(rows.names),
        columns=rows.columns(),
        wrapped=wrapped,
        has_gaps=has_gaps,
        world=world,
        last_collective=text(last.get("profiling_name")),
        frames=frames(last.get("frames")),
        passed_over=rows.passed_over + len(data.get("entries", [])) - len(entries),
        unread=tuple(rows.unread),
        counts=indexed,
        mixed=frozenset(rows.mixed),
        counts_operations=any(
            counts[name].launched == op != seq for name, (seq, op) in rows.last.items() if name in counts
        ),
        at_rest=is_at_rest(data.get("pg_status")),
        process=_process(data, last, path),
    )


def _told(counts: dict[str, Count], rows: Rows) -> list[tuple[str, Count]]:
    """Counts that are of collectives: torch counts sends and receives in the same place, whichever came last."""
    found = []
    for name, count in counts.items():
        last = rows.last.get(name)
        agrees = last is None or last[0] == count.launched
        if name in rows.known and name not in rows.mixed and agrees and count.launched != UNKNOWN:
            found.append((name, count))
    return found


def _rank(data: dict[str, Any], world: tuple[int, ...] | None, path: Path) -> tuple[int | None, str]:
    """(rank, where it is told): the dump's own ``rank``, NCCL's state of the largest communicator, the file's name."""
    if (own := rank(data.get("rank"))) is not None:
        return own, "dump"
    state = data.get("nccl_comm_state")
    told: list[tuple[int, int]] = []
    for facts in state.values() if isinstance(state, dict) else ():
        if isinstance(facts, dict):
            size = rank(next((facts[key] for key in ("nRanks", "nranks", "n_ranks") if key in facts), None))
            if (own := rank(facts.get("rank"))) is not None and size is not None:
                told.append((size, own))
    largest = {own for size, own in told if world is not None and size == len(world)}
    if len(largest) == 1 and world is not None:
        return largest.pop(), "nccl_comm_state"
    match = TRAILING_NUMBER.search(path.name)
    if match and int(match[1]) < LARGEST_RANK:
        return int(match[1]), "file_name"
    return None, "unknown"


def _lost(entries: list[dict[str, Any]], rows: Rows, counts: dict[str, Count]) -> tuple[bool, bool]:
    """(whether entries are lost, whether between or after others): ``record_id`` counts all of them, from 0."""
    records = [entry.get("record_id") for entry in entries]
    ids = [record for record in records if type(record) is int]
    if entries and len(ids) == len(records):
        return ids[0] > 0, any(after > before + 1 for before, after in pairwise(ids))
    if entries:
        table = rows.columns()
        first: dict[int, int] = {}
        for group, seq in zip(table["communicator"].tolist(), table["seq"].tolist(), strict=True):
            first.setdefault(group, seq)
        return any(seq > 1 for group, seq in first.items() if not rows.groups[group].is_way), False
    launched = any(count.launched > 0 for count in counts.values())
    return launched, launched


def _process(data: dict[str, Any], last: dict[str, Any], path: Path) -> ProcessFacts:
    """Where the rank runs, as far as the dump or its name tells."""
    in_name = HOST_IN_NAME.search(path.name)
    host = next((told for key in ("hostname", "host", "host_name") if (told := text(data.get(key)))), None)
    pid = number(data.get("pid"))
    thread = " ".join(told for key in ("thread_name", "thread_id") if (told := text(last.get(key))))
    return ProcessFacts(
        host=host or (in_name[1] if in_name else None), pid=None if pid == UNKNOWN else pid, thread=thread or None
    )


def is_unfinished(dump: Dump) -> bool:
    """Whether no entry of a dump is finished."""
    return not np.any(dump.columns["state"] == State.COMPLETED)


def unknown_rank(path: str) -> CaptureError:
    """The error for a dump of which nothing tells the rank."""
    return CaptureError(f"{path}: neither the dump nor its name tells which rank it is of", hint=WHAT_IS_ONE)
