"""Processes that a launcher has started, found through /proc, so that none stays behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_S = 5.0
MARK = "TRACEKIT_JOB"
"""Environment variable by which a launcher finds what it has started: a parent can end before its children."""


class Process(NamedTuple):
    """A process, told apart from a later one with the same number by its start."""

    pid: int
    start: int
    """Clock ticks after boot."""


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start) of a process, or None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[19])


def marked(token: str) -> list[Process]:
    """Every living process that was started with ``MARK=token`` in its environment, whoever its parent is by now."""
    wanted = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                stat = _stat(int(entry.name))
                found += [Process(int(entry.name), stat[1])] if stat is not None else []
        except OSError:  # it has just ended, or is another user's
            continue
    return list(filter(alive, found))


def alive(process: Process) -> bool:
    """Whether it still runs; a process that has ended and waits for its parent does not."""
    found = _stat(process.pid)
    return found is not None and found[0] not in "ZX" and found[1] == process.start


def end(processes: list[Process]) -> None:
    """End these processes: asked first, killed after GRACE_S."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in filter(alive, processes):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + GRACE_S
        while any(map(alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.05)
