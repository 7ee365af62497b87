"""Starts jobs of several processes for the tests, and looks for what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("trainer_worker.py")
TOKEN = "TRAINER_TEST_TOKEN"
DEEPSPEED_PYTHON = os.environ.get("TRACEKIT_DEEPSPEED_PYTHON", sys.executable)
"""A Python that has DeepSpeed, where the one that runs the tests has not."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    out: str
    err: str
    token: str

    def said(self, program: str = "instrumented_trainer") -> list[str]:
        """The program's own lines on standard error."""
        return [line for line in self.err.splitlines() if line.startswith(f"{program}: ")]


def environment(token: str, **more: str) -> dict[str, str]:
    """The environment of a test's command: this checkout first, one thread a process, and a token to find it by."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", TOKEN: token, **more}


def run(command: Sequence[str], *, timeout_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """Run a command to its end; past its time everything that it started is ended, and TimeoutExpired raised."""
    token = uuid.uuid4().hex
    try:
        done = subprocess.run(
            list(command), env=environment(token, **env), cwd=cwd,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        end_all(token)
        raise
    return Finished(done.returncode, done.stdout, done.stderr, token)


def end_all(token: str) -> None:
    """Kill what a command of this token has left running."""
    for pid in _living(token):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def capture(command: Sequence[str], *, timeout_s: float, cwd: Path) -> Finished:
    """Run a command that runs nsys, again if need be: nsys 2022.4 sometimes spins instead of ending."""
    for _ in range(2):
        try:
            return run(command, timeout_s=timeout_s, cwd=cwd, PYTHONPATH="" if command[0] == "nsys" else str(ROOT))
        except subprocess.TimeoutExpired:
            continue
    return run(command, timeout_s=timeout_s, cwd=cwd)


def torchrun(*arguments: str, ranks: int = 2, python: str = sys.executable) -> list[str]:
    """The command line that starts the trainer, or another program, on several ranks."""
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *arguments]


def train(*flags: str, ranks: int = 2, timeout_s: float = 120) -> Finished:
    """The trainer under torchrun."""
    return run(torchrun("-m", "instrumented_trainer", *flags, ranks=ranks), timeout_s=timeout_s)


def train_many(
    runs: Sequence[Sequence[str]], ranks: int, path: Path, python: str = sys.executable
) -> list[dict[str, Any]]:
    """Several trainings one after another in one job: rank 0's losses and collectives of each."""
    done = run(
        torchrun(str(WORKER), str(path), json.dumps(runs), ranks=ranks, python=python),
        timeout_s=240,
        DS_ACCELERATOR="cpu",
    )
    assert done.status == 0, done.err
    results: list[dict[str, Any]] = json.loads(path.read_text())
    return results


def _living(token: str) -> dict[int, str]:
    """Command lines of the living processes of this token, by process id."""
    mark = f"{TOKEN}={token}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes()
                found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def leftovers(token: str, *, wait_s: float = 5) -> list[str]:
    """Command lines of living processes that a finished command of this token left behind."""
    deadline = time.monotonic() + wait_s
    while (found := _living(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return list(found.values())
