"""Exit statuses of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What the exit status says; see docs/reference/exit-status.md."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    UNREADABLE = 3
    LEFT_OUT = 4
    INTERNAL = 70
    INTERRUPTED = 130
