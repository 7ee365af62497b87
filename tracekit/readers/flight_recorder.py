"""One dump of PyTorch's Flight Recorder as columns (dump versions 2.x, torch 2.4 and later).

A dump has ``entries`` (the ring buffer, oldest first), ``pg_config`` (process groups and their ranks) and, by
version, ``pg_status``, ``nccl_comm_state`` and a ``rank``. Collectives count by ``collective_seq_id`` in their process
group. The members of a coalesced group share one; they become one collective here. Sends and receives count by
``p2p_seq_id``, which is not comparable between ranks: each (sender, receiver) becomes a communicator of its own,
counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.errors import CaptureError
from tracekit.evidence import UNKNOWN, State
from tracekit.readers.dump_files import WHAT_IS_ONE, load_dump
from tracekit.readers.raw import LARGEST_RANK

LARGEST = np.iinfo(np.int64).max >> 16
"""Numbers beyond this are taken for damage; sums over 65,536 ranks still fit."""
MOST_TENSORS = 100_000
MOST_DIMENSIONS = 64
MOST_FRAMES = 24
LONGEST_NAME = 200
GROUP_END = "coalesced"
"""Entry that torch writes at the end of a coalesced group."""
PEERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
TRAILING_NUMBER = re.compile(r"(\d{1,9})(?:\.[A-Za-z]\w*)*$")
OPS = {
    "allreduce": "all_reduce",
    "all_reduce_sparse": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "allgather": "all_gather",
    "all_gather_base": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
    "alltoall": "all_to_all",
    "all_to_all_base": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_reduce_barrier": "barrier",
}
STATES = {"scheduled": State.ISSUED, "started": State.STARTED, "completed": State.COMPLETED}

Row = tuple[int, int, str | None, int, int, str | None, int]
"""(group, seq, op, elements in, elements out, dtype, state)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group, or the way from one of its ranks to another."""

    name: str
    description: str | None
    ranks: tuple[int, ...] | None


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
    """communicator (index into groups), seq, op and dtype (into names), elements_in, elements_out, state."""
    wrapped: bool
    world: tuple[int, ...] | None
    """Ranks of the default process group."""
    last_collective: str | None
    frames: tuple[str, ...]
    passed_over: int
    """Entries that could not be read, or sends and receives whose ordinal the ring buffer has lost."""


def read_dump(path: Path) -> Dump:
    """Read one dump. Raises `CaptureError` for what is none or cannot be read."""
    data = load_dump(path)
    version = data.get("version")
    if version is not None and not re.match(r"2\.\d", _text(version) or ""):
        raise CaptureError(
            f"{path}: a dump of version {(_text(version) or 'that is no text')[:20]}; 2.x can be read",
            hint="torch 2.4 and later write 2.x. Update tracekit for dumps of a newer torch.",
        )
    entries = [entry for entry in data.get("entries", []) if isinstance(entry, dict)]
    groups = _groups(data.get("pg_config"))
    rows = Rows(groups, wrapped=_wrapped(entries), status=data.get("pg_status"))
    rows.add(entries)
    world = next((group.ranks for group in groups.values() if group.description == "default_pg"), None)
    rank, source = _rank(data, world, path)
    last = entries[-1] if entries else {}
    return Dump(
        path=str(path),
        rank=rank,
        rank_source=source,
        version=_text(version),
        groups=tuple(rows.groups),
        names=tuple(rows.names),
        columns=rows.columns(),
        wrapped=rows.wrapped,
        world=world,
        last_collective=_text(last.get("profiling_name")),
        frames=_frames(last.get("frames")),
        passed_over=rows.passed_over + len(data.get("entries", [])) - len(entries),
    )


class Rows:
    """Gathers the entries of one dump."""

    def __init__(self, known: Mapping[str, Group], *, wrapped: bool, status: Any) -> None:
        self.known, self.wrapped = known, wrapped
        self.status = status if isinstance(status, dict) else {}
        self.groups: list[Group] = []
        self.names: list[str] = []
        self.passed_over = 0
        self._rows: list[tuple[int, ...]] = []
        self._group_of: dict[Any, int] = {}
        self._name_of: dict[str, int] = {}
        self._op_of: dict[str, str] = {}
        self._count: dict[int, int] = {}

    def add(self, entries: list[dict[str, Any]]) -> None:
        """All entries, oldest first; the members of a coalesced group become one row."""
        for key, pairs in groupby(zip(map(_key, entries), entries, strict=True), key=itemgetter(0)):
            members = [entry for _, entry in pairs]
            if key is None:
                self.passed_over += len(members)
            elif key[1]:
                self._point_to_point(members)
            else:
                self._collective(members, key[2])

    def columns(self) -> dict[str, np.typing.NDArray[np.int64]]:
        """What was gathered, by name of column."""
        table = np.array(self._rows, np.int64).reshape(-1, 7).T
        names = ("communicator", "seq", "op", "elements_in", "elements_out", "dtype", "state")
        return dict(zip(names, table, strict=True))

    def _collective(self, members: list[dict[str, Any]], seq: int) -> None:
        group = self._group(members[0]["process_group"])
        if len(members) == 1:
            single = members[0]
            op = self._op(single.get("profiling_name"))
            sizes = _elements(single.get("input_sizes")), _elements(single.get("output_sizes"))
            dtype = _dtype(single)
        else:
            inner = [m for m in members if self._op(m.get("profiling_name")) != GROUP_END] or members
            ops = {self._op(m.get("profiling_name")) for m in inner}
            op = ops.pop() if len(ops) == 1 else GROUP_END
            sizes = _total(inner, "input_sizes"), _total(inner, "output_sizes")
            dtype = _dtype(inner[0])
        state = max([self._state(m, seq) for m in members])  # only one of a group is followed to its end
        self._rows.append((group, seq, self._name(op), *sizes, self._name(dtype), state))

    def _point_to_point(self, members: list[dict[str, Any]]) -> None:
        state = max(self._state(m, None) for m in members)
        for member in members:
            peers = PEERS.search(_text(member.get("profiling_name")) or "")
            if self.wrapped or peers is None:
                self.passed_over += self._op(member.get("profiling_name")) != GROUP_END
                continue
            sends = peers[1] == "send"
            source, target = (int(peers[2]), int(peers[3])) if sends else (int(peers[3]), int(peers[2]))
            group = self._way(member["process_group"], source, target)
            seq = self._count[group] = self._count.get(group, 0) + 1
            size = _elements(member.get("input_sizes" if sends else "output_sizes"))
            names = self._name("send_recv"), size, size, self._name(_dtype(member))
            self._rows.append((group, seq, *names, state))

    def _group(self, told: Any) -> int:
        name, description = _text(told[0]) or "", (_text(told[1]) or "") if len(told) > 1 else ""
        if (index := self._group_of.get((name, description))) is None:
            known = self.known.get(name)
            ranks = known.ranks if known else None
            words = None if description in ("", "undefined") else description
            index = self._add((name, description), Group(name=name, description=words, ranks=ranks))
        return index

    def _way(self, told: Any, source: int, target: int) -> int:
        group = self.groups[self._group(told)]
        if group.ranks is not None and max(source, target) < len(group.ranks):
            ordered = sorted(group.ranks)
            source, target = ordered[source], ordered[target]
        key = (group.name, source, target)
        if (index := self._group_of.get(key)) is None:
            name = f"{group.name}: {source} to {target}"
            index = self._add(
                key,
                Group(
                    name=name,
                    description=group.description and f"{group.description}, send and receive",
                    ranks=(source, target),
                ),
            )
        return index

    def _add(self, key: Any, group: Group) -> int:
        self._group_of[key] = len(self.groups)
        self.groups.append(group)
        return len(self.groups) - 1

    def _name(self, text: str | None) -> int:
        if text is None:
            return UNKNOWN
        if text not in self._name_of:
            self._name_of[text] = len(self.names)
            self.names.append(text)
        return self._name_of[text]

    def _op(self, told: Any) -> str | None:
        if not isinstance(told, str):
            return None
        if told not in self._op_of:
            self._op_of[told] = op_of(told)
        return self._op_of[told]

    def _state(self, entry: dict[str, Any], seq: int | None) -> int:
        """By what is told last: completed, retired by the watchdog, or not over yet."""
        told = entry.get("state")
        state = STATES.get(told, State.UNKNOWN) if isinstance(told, str) else State.UNKNOWN
        if state is State.COMPLETED or entry.get("time_discovered_completed_ns"):
            return State.COMPLETED
        if entry.get("retired") and state is not State.STARTED:
            return State.COMPLETED
        if state is State.UNKNOWN and seq is not None:
            status = self.status.get(_text(entry["process_group"][0]))
            done = (_text(status.get("last_completed_collective")) or "")[:20] if isinstance(status, dict) else ""
            if re.fullmatch(r"-?\d+", done):  # a number in pickles, a text in JSON
                return State.COMPLETED if seq <= int(done) else State.ISSUED
        return state


def op_of(profiling_name: str) -> str:
    """The op in the words of this project: ``nccl:_all_gather_base`` is ``all_gather``."""
    name = profiling_name.split(":", 1)[-1].split(" ", maxsplit=1)[0].lower().lstrip("_")[:LONGEST_NAME]
    base = name.removesuffix("_coalesced")
    if base in ("send", "recv"):
        return "send_recv"
    return OPS.get(base, base)


def _key(entry: dict[str, Any]) -> tuple[str, bool, int] | None:
    """What the members of one coalesced group share; None for an entry that is not one."""
    group = entry.get("process_group")
    to_one = bool(entry.get("is_p2p"))
    seq = entry.get("p2p_seq_id" if to_one else "collective_seq_id")
    if type(seq) is not int or not 0 <= seq < LARGEST or type(group) not in (list, tuple) or not group:
        return None
    name = group[0] if type(group[0]) is str else _text(group[0])
    return None if name is None else (name, to_one, seq)


def _groups(config: Any) -> dict[str, Group]:
    """Process groups by name; ranks are a list, or a list as text."""
    found = {}
    for key, facts in config.items() if isinstance(config, dict) else ():
        if not isinstance(facts, dict):
            continue
        told = facts.get("ranks")
        try:
            ranks = _ranks_of(told) if isinstance(told, str) else tuple(sorted({int(rank) for rank in told or ()}))
        except (TypeError, ValueError, OverflowError):
            continue
        if ranks and ranks[0] >= 0 and ranks[-1] < LARGEST_RANK:
            name = _text(key) or ""
            found[name] = Group(name=name, description=_text(facts.get("desc")) or "", ranks=ranks)
    return found


@lru_cache(maxsize=1024)
def _ranks_of(text: str) -> tuple[int, ...]:
    """``[0, 1]`` as numbers. All dumps of a job have the same few texts, of thousands of ranks each."""
    return tuple(sorted({int(number) for number in re.findall(r"\d{1,9}", text)}))


def _rank(data: dict[str, Any], world: tuple[int, ...] | None, path: Path) -> tuple[int | None, str]:
    """(rank, where it is told): the dump's own ``rank``, NCCL's state of the largest communicator, the file's name."""
    if (rank := _number(data.get("rank"))) is not None:
        return rank, "dump"
    state = data.get("nccl_comm_state")
    told: list[tuple[int, int]] = []
    for facts in state.values() if isinstance(state, dict) else ():
        if isinstance(facts, dict):
            size = _number(next((facts[key] for key in ("nRanks", "nranks", "n_ranks") if key in facts), None))
            if (rank := _number(facts.get("rank"))) is not None and size is not None:
                told.append((size, rank))
    largest = {rank for size, rank in told if world is not None and size == len(world)}
    if len(largest) == 1 and world is not None:
        return largest.pop(), "nccl_comm_state"
    match = TRAILING_NUMBER.search(path.name)
    if match and int(match[1]) < LARGEST_RANK:
        return int(match[1]), "file_name"
    return None, "unknown"


def _number(value: Any) -> int | None:
    text = _text(value) or ""
    number = int(text) if re.fullmatch(r"\d{1,9}", text) else LARGEST_RANK
    return number if number < LARGEST_RANK else None


def _wrapped(entries: list[dict[str, Any]]) -> bool:
    """Whether the ring buffer has lost entries: ``record_id`` counts them from 0, a group's collectives from 1."""
    first = entries[0].get("record_id") if entries else 0
    if isinstance(first, int):
        return first > 0
    firsts: dict[str, int] = {}
    for key in filter(None, map(_key, entries)):
        if not key[1]:
            firsts.setdefault(key[0], key[2])
    return any(seq > 1 for seq in firsts.values())


def _elements(shapes: Any) -> int:
    """Elements of all tensors together; UNKNOWN where they are not told."""
    if type(shapes) not in (list, tuple) or len(shapes) > MOST_TENSORS:
        return UNKNOWN
    total = 0
    for shape in shapes:
        if type(shape) not in (list, tuple) or len(shape) > MOST_DIMENSIONS:
            return UNKNOWN
        count = 1
        for size in shape:  # not math.prod, which multiplies lists and texts as well
            if type(size) is not int or not 0 <= size < LARGEST:
                return UNKNOWN
            count *= size
        total += count
    return total if shapes and total < LARGEST else UNKNOWN


def _total(members: list[dict[str, Any]], key: str) -> int:
    sizes = [_elements(member.get(key)) for member in members]
    return UNKNOWN if UNKNOWN in sizes else min(sum(sizes), LARGEST)


def _dtype(entry: dict[str, Any]) -> str | None:
    told = entry.get("input_dtypes") or entry.get("output_dtypes")
    if not isinstance(told, list | tuple) or len(told) > MOST_TENSORS:
        return None
    if len(told) == 1:
        return _text(told[0])
    return "+".join(sorted({_text(dtype) or "?" for dtype in told}))[:LONGEST_NAME] or None


def _frames(told: Any) -> tuple[str, ...]:
    """A stack as ``name (file:line)``, innermost first."""
    frames = [frame for frame in told[:MOST_FRAMES] if isinstance(frame, dict)] if isinstance(told, list) else []
    return tuple(
        f"{_text(frame.get('name'))} ({_text(frame.get('filename'))}:{_text(frame.get('line'))})" for frame in frames
    )


def _text(value: Any) -> str | None:
    """A text or number as text. None for all else: lists that hold one another can be a text without end."""
    if isinstance(value, str):
        return value[:LONGEST_NAME]
    return str(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def unknown_rank(path: str) -> CaptureError:
    """The error for a dump of which nothing tells the rank."""
    return CaptureError(f"{path}: neither the dump nor its name tells which rank it is of", hint=WHAT_IS_ONE)
