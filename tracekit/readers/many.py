"""Captures of one job, side by side in processes of their own where that pays.

Each process has names of its own, put together afterwards in the order of the captures: the result is what reading one
capture after another gives. The columns stay in a temporary file, mapped: a job of many ranks costs memory for what is
measured, not for all its events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit import workers as processes
from tracekit.errors import CaptureError
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
) -> tuple[list[RawCapture], tuple[str, ...]]:
    """(captures in the order of ``paths``, their names). ``workers`` as in `tracekit.capture.open_captures`.

    Raises `CaptureError` for the first of the captures that cannot be read.
    """
    progress = progressing("captures") if len(paths) > 1 else None

    def report(done: int) -> None:
        if progress:
            progress(done, len(paths))

    count = _workers(paths) if workers is None else workers
    if count:
        return _merged(_read_apart(paths, count, report))
    names, captures = Names(), []
    for index, path in enumerate(paths):
        captures.append(read_capture(path, names, index, progressing, show_export))
        report(len(captures))
    return captures, names.as_tuple()


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


Read = tuple[RawCapture, tuple[str, ...]]


def _read_apart(paths: Sequence[Path], count: int, report: Callable[[int], None]) -> list[Read]:
    try:
        return processes.run(_read_alone, [(path, index) for index, path in enumerate(paths)], count, report)
    except processes.WorkerEndedError as error:
        raise CaptureError(
            f"{paths[error.task]}: the process that read it was ended by {error.how}",
            hint="If memory ran out: analyze fewer captures at once.",
        ) from error


def _read_alone(path: Path, index: int) -> Read:
    names = Names()
    capture = read_capture(path, names, index, lambda _: None, show_export=False)
    return capture, names.as_tuple()


def _merged(read: Sequence[Read]) -> tuple[list[RawCapture], tuple[str, ...]]:
    """The captures with indices into names that they share."""
    names, captures = Names(), []
    for capture, own in read:
        # NONE, -1, finds the last entry.
        index = np.array([*names.add_all(own), NONE], np.int32)
        if not np.array_equal(index[:-1], np.arange(len(own))):
            for column in _name_columns(capture):
                column[:] = index[column]  # in the mapped file: a copy would stay in memory
        release()
        captures.append(capture)
    return captures, names.as_tuple()


def _name_columns(capture: RawCapture) -> Iterator[NDArray[Any]]:
    for track in capture.tracks:
        yield track.ops.name
    for process in capture.processes:
        yield from (process.calls.name, process.ranges.name, process.ranges.domain)
