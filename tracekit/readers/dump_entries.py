"""The entries of one dump as rows.

Collectives count by ``collective_seq_id`` in their process group. The members of a coalesced group share one; they
become one collective here. Sends and receives count by ``p2p_seq_id``, which each rank counts for itself, over all its
peers in the process group: each (sender, receiver) becomes a *way* of its own, whose two ends are put beside each other
where all ranks are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracekit.evidence import UNKNOWN, State
from tracekit.readers.collective_ops import GROUP_END, SEND_RECV, op_of, peers_of
from tracekit.readers.dump_groups import Group
from tracekit.readers.dump_values import LARGEST, dtype, elements, number, text, total

STATES = {"scheduled": State.ISSUED, "started": State.STARTED, "completed": State.COMPLETED}
COLUMNS = ("communicator", "seq", "op", "elements_in", "elements_out", "dtype", "state", "launch", "created")
MOST_UNREAD = 100
BACKENDS = ("nccl", "nccl2", "ncclx", "rccl", "rcclx", "xccl", "mccl", "hccl", "ucc", "gloo")
GROUP_ENDS = frozenset({GROUP_END, *(f"{backend}:{GROUP_END}" for backend in BACKENDS)})

Key = tuple[str, bool, int, int | None]
"""(group, whether it is a message, its number, the collectives before it)."""
Unread = tuple[str, int, str | None, int]
"""(group, seq or UNKNOWN, op, state) of an entry that is not finished and cannot be put beside the others."""


class Rows:
    """Gathers the entries of one dump."""

    def __init__(self, known: Mapping[str, Group], *, rank: int | None, status: Any) -> None:
        self.known, self.rank = known, rank
        self.status = status if isinstance(status, dict) else {}
        self.groups: list[Group] = []
        self.names: list[str] = []
        self.passed_over = 0
        self.unread: list[Unread] = []
        self.id_of: dict[str, str] = {}
        """Group name by ``pg_id``."""
        self.last: dict[str, tuple[int, int]] = {}
        """(seq, op_id) of the last collective by group name."""
        self.mixed: set[str] = set()
        """Names of groups with sends and receives."""
        self._rows: list[tuple[int, ...]] = []
        self._group_of: dict[Any, int] = {}
        self._name_of: dict[str, int] = {}
        self._op_of: dict[str, str] = {}
        self._launch = 0

    def add(self, entries: list[dict[str, Any]]) -> None:
        """All entries, oldest first; the members of a coalesced group become one row, or one launch."""
        members: list[dict[str, Any]] = []
        key: Key | None = None
        for entry in entries:
            own, name = _key(entry), entry.get("profiling_name")
            ends = type(name) is str and name in GROUP_ENDS
            # The end of a batch of messages may be written down as a collective.
            of_batch = ends and own is not None and key is not None and key[1] and own[0] == key[0]
            if members and key is not None and (own == key or of_batch):
                members.append(entry)
            else:
                self._close(key, members)
                key, members = own, [entry]
            if ends:
                self._close(key, members)
                members = []
        self._close(key, members)

    def _close(self, key: Key | None, members: list[dict[str, Any]]) -> None:
        if not members:
            return
        self._launch += 1
        if key is None:
            for member in members:
                self._pass_over(member, UNKNOWN)
        elif key[1]:
            self._point_to_point(members, key[2])
        else:
            self._collective(members, key[2])

    def group(self, name: str, description: str) -> int:
        """Index of a process group."""
        if (index := self._group_of.get((name, description))) is None:
            known = self.known.get(name)
            ranks = known.ranks if known else None
            words = None if description in ("", "undefined") else description
            index = self._add((name, description), Group(name=name, description=words, ranks=ranks))
        return index

    def columns(self) -> dict[str, np.typing.NDArray[np.int64]]:
        """What was gathered, by name of column."""
        table = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS)).T
        return dict(zip(COLUMNS, table, strict=True))

    def _collective(self, members: list[dict[str, Any]], seq: int) -> None:
        group = self._group(members[0]["process_group"])
        if len(members) == 1:
            single = members[0]
            op = self._op(single.get("profiling_name"))
            sizes = elements(single.get("input_sizes")), elements(single.get("output_sizes"))
            kind = dtype(single)
        else:
            inner = [m for m in members if self._op(m.get("profiling_name")) != GROUP_END] or members
            ops = {self._op(m.get("profiling_name")) for m in inner}
            op = ops.pop() if len(ops) == 1 else GROUP_END
            sizes = total(inner, "input_sizes"), total(inner, "output_sizes")
            kind = dtype(inner[0])
        state = max([self._state(m, seq) for m in members])  # only one of a group is followed to its end
        self.last[self.groups[group].name] = seq, number(members[-1].get("op_id"))
        self._rows.append((group, seq, self._name(op), *sizes, self._name(kind), state, *self._when(members[0])))

    def _point_to_point(self, members: list[dict[str, Any]], seq: int) -> None:
        state = max(self._state(m, None) for m in members)
        for member in members:
            peers = peers_of(text(member.get("profiling_name")) or "")
            if peers is None:
                if self._op(member.get("profiling_name")) != GROUP_END:
                    self._pass_over(member, seq)
                continue
            sends, own, other = peers
            way = self._way(member["process_group"], *((own, other) if sends else (other, own)), sends=sends)
            size = elements(member.get("input_sizes" if sends else "output_sizes"))
            names = self._name(SEND_RECV), size, size, self._name(dtype(member))
            self._rows.append((way, seq, *names, state, *self._when(member)))

    def _when(self, member: dict[str, Any]) -> tuple[int, int]:
        """(launch, time) and remembers the group's number."""
        created = member.get("time_created_ns")
        pg_id = member.get("pg_id")
        if type(pg_id) is int and abs(pg_id) < LARGEST:
            self.id_of.setdefault(str(pg_id), text(member["process_group"][0]) or "")
        return self._launch, created if type(created) is int and 0 <= created < 1 << 62 else UNKNOWN

    def _pass_over(self, member: dict[str, Any], seq: int) -> None:
        """An entry that cannot be put beside others; one that is not finished is kept in mind."""
        self.passed_over += 1
        state = self._state(member, None)
        if state is not State.COMPLETED and len(self.unread) < MOST_UNREAD:
            told = member.get("process_group")
            name = text(told[0]) if type(told) in (list, tuple) and told else None
            self.unread.append((name or "?", seq, self._op(member.get("profiling_name")), state))

    def _group(self, told: Any) -> int:
        return self.group(text(told[0]) or "", (text(told[1]) or "") if len(told) > 1 else "")

    def _way(self, told: Any, source: int, target: int, *, sends: bool) -> int:
        """The way between two ranks, who are numbered in their group, or (where that fits this rank) in the job."""
        group = self.groups[self._group(told)]
        self.mixed.add(group.name)
        if group.ranks is not None and max(source, target) < len(group.ranks):
            there = group.ranks[source], group.ranks[target]
            mine = 0 if sends else 1
            if self.rank is None or there[mine] == self.rank or (source, target)[mine] != self.rank:
                source, target = there
        key = (group.name, group.ranks, source, target)
        if (index := self._group_of.get(key)) is None:
            made = Group(
                name=f"{group.name}: {source} to {target}",
                description=group.description and f"{group.description}, send and receive",
                ranks=(source, target),
                of=len(group.ranks) if group.ranks is not None else None,
                is_way=True,
            )
            index = self._add(key, made)
        return index

    def _add(self, key: Any, group: Group) -> int:
        self._group_of[key] = len(self.groups)
        self.groups.append(group)
        return len(self.groups) - 1

    def _name(self, told: str | None) -> int:
        if told is None:
            return UNKNOWN
        if told not in self._name_of:
            self._name_of[told] = len(self.names)
            self.names.append(told)
        return self._name_of[told]

    def _op(self, told: Any) -> str | None:
        if not isinstance(told, str):
            return None
        if told not in self._op_of:
            self._op_of[told] = op_of(told)
        return self._op_of[told]

    def _state(self, entry: dict[str, Any], seq: int | None) -> State:
        """By what is told last: completed, retired by the watchdog, or not over yet."""
        told = entry.get("state")
        state = STATES.get(told, State.UNKNOWN) if isinstance(told, str) else State.UNKNOWN
        if state is State.COMPLETED or entry.get("time_discovered_completed_ns"):
            return State.COMPLETED
        if entry.get("retired") and state is not State.STARTED:
            return State.COMPLETED
        if state is State.UNKNOWN and seq is not None:
            status = self.status.get(text(entry["process_group"][0]))
            done = (text(status.get("last_completed_collective")) or "")[:20] if isinstance(status, dict) else ""
            if re.fullmatch(r"-?\d+", done):  # a number in pickles, a text in JSON
                return State.COMPLETED if seq <= int(done) else State.ISSUED
        return state


def _key(entry: dict[str, Any]) -> Key | None:
    """What the members of one coalesced group share; None for an entry that is not one.

    Versions of torch count a batch of messages among the messages, or among the collectives.
    """
    group = entry.get("process_group")
    to_one = bool(entry.get("is_p2p"))
    seq = entry.get("p2p_seq_id" if to_one else "collective_seq_id")
    if type(seq) is not int or not 0 <= seq < LARGEST or type(group) not in (list, tuple) or not group:
        return None
    name = group[0] if type(group[0]) is str else text(group[0])
    among = entry.get("collective_seq_id") if to_one else None
    return None if name is None else (name, to_one, seq, among if type(among) is int else None)
