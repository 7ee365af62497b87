"""Captures of one job, side by side in processes of their own where that pays.

Each process has names of its own, put together afterwards in the order of the captures: the result is what reading one
capture after another gives. The columns stay in a temporary file, mapped: a job of many ranks costs memory for what is
measured, not for all its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit import workers as processes
from tracekit.errors import CaptureError
from tracekit.kernel_classes import BY_NAME, KernelClasses
from tracekit.readers.database import Progress
from tracekit.readers.files import read_capture
from tracekit.readers.raw import Names, RawCapture
from tracekit.spool import release
from tracekit.timeline import NONE

BYTES_A_WORKER = 32 << 20
"""Starting a process takes as long as reading so much (benchmarks/many_ranks.py): fewer bytes are not shared out."""


def read_captures(
    paths: Sequence[Path],
    *,
    progressing: Callable[[str], Progress | None],
    show_export: bool,
    workers: int | None = None,
    classes: KernelClasses = BY_NAME,
    strict: bool = True,
) -> tuple[list[RawCapture], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(captures in the order of ``paths``, their names, path and reason of those left out).

    ``workers`` as in `tracekit.capture.open_captures`. Raises `CaptureError` for the first of the captures that cannot
    be read; where not ``strict`` only if none can.
    """
    progress = progressing("captures") if len(paths) > 1 else None

    def report(done: int) -> None:
        if progress:
            progress(done, len(paths))

    count = _workers(paths) if workers is None else workers
    names = Names()
    if count:
        read = _read_apart(paths, count, classes, report)
    else:
        read = []
        for path in paths:
            known, index = len(names), sum(not isinstance(each, Failure) for each in read)
            try:
                read.append((read_capture(path, names, index, progressing, show_export, classes), ()))
            except CaptureError as error:
                names.shorten(known)
                read.append(Failure(error.message, error.hint))
            if strict and isinstance(read[-1], Failure):
                break
            report(len(read))
    failed = {str(path): each for path, each in zip(paths, read, strict=False) if isinstance(each, Failure)}
    whole = [each for each in read if not isinstance(each, Failure)]
    if failed and (strict or not whole):
        first = next(iter(failed.values()))
        raise CaptureError(first.message, hint=first.hint)
    left_out = tuple((path, each.message.removeprefix(f"{path}: ")) for path, each in failed.items())
    if count:
        return *_merged(whole), left_out
    return [capture for capture, _ in whole], names.as_tuple(), left_out


def _workers(paths: Sequence[Path]) -> int:
    if not processes.POSSIBLE or len(paths) < 2:
        return 0
    try:
        size = sum(path.stat().st_size for path in paths)
    except OSError:
        return 0  # what is wrong is told by whoever reads it
    if size < 2 * BYTES_A_WORKER:
        return 0
    return min(processes.cores(), len(paths), size // BYTES_A_WORKER)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a capture cannot be read."""

    message: str
    hint: str | None


Read = tuple[RawCapture, tuple[str, ...]]


def _read_apart(
    paths: Sequence[Path], count: int, classes: KernelClasses, report: Callable[[int], None]
) -> list[Read | Failure]:
    tasks = [(path, index, classes) for index, path in enumerate(paths)]
    try:
        return processes.run(_read_alone, tasks, count, report)
    except processes.WorkerEndedError as error:
        raise CaptureError(
            f"{paths[error.task]}: the process that read it was ended by {error.how}",
            hint="If memory ran out: analyze fewer captures at once.",
        ) from error


def _read_alone(path: Path, index: int, classes: KernelClasses) -> Read | Failure:
    names = Names()
    try:
        capture = read_capture(path, names, index, lambda _: None, show_export=False, classes=classes)
    except CaptureError as error:
        return Failure(error.message, error.hint)
    return capture, names.as_tuple()


def _merged(read: Sequence[Read]) -> tuple[list[RawCapture], tuple[str, ...]]:
    """The captures with indices into names that they share."""
    names, captures = Names(), list[RawCapture]()
    for capture, own in read:
        # NONE, -1, finds the last entry.
        index = np.array([*names.add_all(own), NONE], np.int32)
        if not np.array_equal(index[:-1], np.arange(len(own))):
            for column in _name_columns(capture):
                column[:] = index[column]  # in the mapped file: a copy would stay in memory
        release()
        at = len(captures)  # captures before it can have been left out
        if any(process.capture != at for process in capture.processes):
            capture = replace(capture, processes=tuple(replace(p, capture=at) for p in capture.processes))  # noqa: PLW2901
        captures.append(capture)
    return captures, names.as_tuple()


def _name_columns(capture: RawCapture) -> Iterator[NDArray[Any]]:
    for track in capture.tracks:
        yield track.ops.name
    for process in capture.processes:
        yield from (process.calls.name, process.ranges.name, process.ranges.domain)
