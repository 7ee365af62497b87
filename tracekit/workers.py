"""Processes that run functions of this package, side by side; large results come back by a mapped file.

`multiprocessing` does not fit a library: a process that it spawns runs the caller's script again, and one that it forks
can inherit a lock that another thread holds.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from tracekit.ending import leave
from tracekit.errors import TracekitError
from tracekit.spool import Spool, Spooled, restore, temporary_file

POSSIBLE = hasattr(signal, "pthread_sigmask") and bool(sys.executable) and not getattr(sys, "frozen", False)
"""Whether processes can be started: a POSIX system, and not one program that holds Python inside."""
GRACE_S = 10
"""What a process that was told to end gets for it."""


class WorkerEndedError(Exception):
    """The process of a task ended without an answer: out of memory, or killed."""

    def __init__(self, task: int, status: int) -> None:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        super().__init__(task, how)
        self.task = task
        self.how = how


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], processes: int, done: Callable[[int], None]
) -> list[Any]:
    """``function(*task)`` for each task, in order; ``done`` is called with the number of tasks done.

    Raises what the first task in order that failed has raised, `WorkerEndedError` if its process ended, and
    `TracekitError` where there is no room for a temporary file or no process can be started. No process is left.
    """
    workers: list[_Worker] = []
    pool = ThreadPoolExecutor(processes)
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def one(index: int) -> tuple[_Worker, Spooled]:
        worker = idle.get()
        try:
            return worker, worker.call(index, function, tasks[index])
        finally:
            idle.put(worker)

    try:
        for _ in range(processes):
            workers.append(_Worker())
            idle.put(workers[-1])
        futures = [pool.submit(one, index) for index in range(len(tasks))]
        answers = []
        for future in futures:
            answers.append(future.result())
            done(len(answers))
        return _restored(workers, answers)
    finally:
        for worker in workers:
            worker.end()
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.wait()


def _restored(workers: Sequence[_Worker], answers: Sequence[tuple[_Worker, Spooled]]) -> list[Any]:
    """The results in order, each from the file of the process that made it."""
    results: list[Any] = [None] * len(answers)
    for worker in workers:
        mine = [i for i, (by, _) in enumerate(answers) if by is worker]
        for i, value in zip(mine, restore(worker.file, [answers[i][1] for i in mine]), strict=True):
            results[i] = value
    return results


class _Worker:
    """One process, seen from the one that started it."""

    def __init__(self) -> None:
        self.file = temporary_file()
        descriptor = self.file.fileno()
        # The modules that this process uses, wherever they come from, and none from the working directory beyond them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from tracekit.workers import serve; serve({descriptor})"
        # An interrupt from the terminal reaches all processes; only this one acts on it, and ends the others in order.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(descriptor,),
            )
        except OSError as error:
            self.file.close()
            raise TracekitError(
                f"cannot start a process: {error.strerror}", hint="Analyze fewer captures at once, or raise the limit."
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def call(self, index: int, function: Callable[..., Any], task: tuple[Any, ...]) -> Spooled:
        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
        try:
            process.stdin.write(pickle.dumps((function, task)))
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerEndedError(index, process.wait()) from error
        if isinstance(answer, Exception):
            raise answer
        spooled: Spooled = answer
        return spooled

    def end(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what it never read
                    pipe.close()
        self.file.close()


def serve(descriptor: int) -> None:
    """Be a worker: run what comes in on standard input until that ends; arrays of results go to the file."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, leave)
    answers = os.fdopen(os.dup(1), "wb")
    # What a library or a program prints must not get among the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with os.fdopen(descriptor, "r+b") as file, suppress(EOFError, BrokenPipeError):
        spool = Spool(file)
        while True:
            function, task = pickle.load(sys.stdin.buffer)
            answers.write(pickle.dumps(_answer(spool, function, task)))
            answers.flush()


def _answer(spool: Spool, function: Callable[..., Any], task: tuple[Any, ...]) -> Spooled | Exception:
    try:
        return spool.put(function(*task))
    except Exception as error:
        if not isinstance(error, TracekitError):
            error.add_note(traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error
