"""Runs one rank's nsys under torchrun so that its report survives whatever ends the job.

torchrun ends the other ranks within half a minute when one fails, which would cut an nsys off while it writes. Here
nsys has a session of its own, and the first signal becomes one interrupt, on which it stops the rank and writes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any


def main(command: list[str]) -> int:
    """Run the command to its end; returns its exit status."""
    profiler = subprocess.Popen(command, start_new_session=True)
    asked = False

    def interrupt_once(_number: int, _frame: Any) -> None:
        nonlocal asked
        if not asked and profiler.poll() is None:
            asked = True
            profiler.send_signal(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    return profiler.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
