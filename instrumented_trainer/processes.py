"""Processes that a launcher has started, found through /proc, so that none stays behind."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_S = 5.0


class Process(NamedTuple):
    """A process, told apart from a later one with the same number by its start."""

    pid: int
    start: int
    """Clock ticks after boot."""


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start) of a process, or None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[1]), int(fields[19])


def descendants(root: int) -> list[Process]:
    """Every living process below ``root``."""
    children: dict[int, list[Process]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))) is not None:
            children[found[1]].append(Process(int(entry.name), found[2]))
    below, todo = [], [root]
    while todo:
        found_here = children[todo.pop()]
        below += found_here
        todo += [process.pid for process in found_here]
    return below


def alive(process: Process) -> bool:
    """Whether it still runs; a process that has ended and waits for its parent does not."""
    found = _stat(process.pid)
    return found is not None and found[0] not in "ZX" and found[2] == process.start


def end(processes: list[Process]) -> None:
    """End these processes: asked first, killed after GRACE_S."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in filter(alive, processes):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + GRACE_S
        while any(map(alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.05)
