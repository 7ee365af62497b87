"""The process groups of one dump, and how far each got by the process's own count.

``pg_config`` is keyed by the group's name, ``pg_status`` by the rank's own number of it (``pg_id``). The entries map
one to the other. Where a group has none, the order of creation does: both count up, if the names are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tracekit.evidence import UNKNOWN
from tracekit.readers.dump_values import number, text
from tracekit.readers.raw import LARGEST_RANK

MOST_GROUPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group, or the way from one of its ranks to another."""

    name: str
    description: str | None
    ranks: tuple[int, ...] | None
    """Of a way: the sender and the receiver."""
    of: int | None = None
    """Of a way: how many ranks its process group has."""
    is_way: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How far one process group got, by its process's count."""

    launched: int
    """UNKNOWN where it is not told, as for the others."""
    started: int
    completed: int
    mapped: bool
    """An entry says which group it is of; otherwise the order of creation does."""


def groups_of(config: Any) -> dict[str, Group]:
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
            name = text(key) or ""
            found[name] = Group(name=name, description=text(facts.get("desc")) or "", ranks=ranks)
    return found


def counts_of(status: Any, groups: Mapping[str, Group], names: Mapping[str, str]) -> dict[str, Count]:
    """The counts of ``pg_status`` by group name; ``names``: the name of each ``pg_id`` that an entry tells."""
    told = {text(key) or "": facts for key, facts in status.items()} if isinstance(status, dict) else {}
    told = {key: facts for key, facts in told.items() if isinstance(facts, dict)}
    if len(told) > MOST_GROUPS:
        return {}
    by_order = _by_order(list(told), list(groups), names)
    found = {}
    for key, facts in told.items():
        name = names.get(key) or by_order.get(key)
        if name is not None:
            found[name] = Count(
                launched=_count(facts.get("last_enqueued_collective")),
                started=number(facts.get("last_started_collective")),
                completed=_count(facts.get("last_completed_collective")),
                mapped=key in names,
            )
    return found


def is_at_rest(status: Any) -> bool:
    """Whether all that the process has launched is completed, by its count of each group."""
    counts = [facts for facts in status.values() if isinstance(facts, dict)] if isinstance(status, dict) else []
    pairs = [(_count(c.get("last_enqueued_collective")), _count(c.get("last_completed_collective"))) for c in counts]
    return bool(pairs) and all(launched == completed != UNKNOWN for launched, completed in pairs)


def _count(told: Any) -> int:
    """A count; torch begins at -1, before the first."""
    return 0 if text(told) == "-1" else number(told)


def _by_order(ids: list[str], groups: list[str], names: Mapping[str, str]) -> dict[str, str]:
    """Group name by id, both in order of creation; {} where that contradicts the entries, or cannot be told."""
    if len(ids) != len(groups) or not all(re.fullmatch(r"\d{1,9}", key) for key in ids):
        return {}
    if len(groups) > 1 and not all(re.fullmatch(r"\d{1,9}", name) for name in groups):
        return {}
    pairs = dict(zip(sorted(ids, key=int), sorted(groups, key=lambda name: (len(name), name)), strict=True))
    return pairs if all(pairs.get(key, name) == name for key, name in names.items()) else {}


@lru_cache(maxsize=1024)
def _ranks_of(told: str) -> tuple[int, ...]:
    """``[0, 1]`` as numbers. All dumps of a job have the same few texts, of thousands of ranks each."""
    return tuple(sorted({int(each) for each in re.findall(r"\d{1,9}", told)}))
