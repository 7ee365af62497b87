"""Columns kept in an unnamed temporary file and mapped: they cost memory only while somebody looks at them.

The file has no name from the start, so nothing has to be removed: it is gone when the last process that has it open or
mapped is.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from tracekit.errors import TracekitError

T = TypeVar("T")

ALIGNED = 64
LARGE_FILES = "/var/tmp"
"""By the Filesystem Hierarchy Standard on a disk, where /tmp is memory on many systems."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A value whose arrays lie in a spool: its pickle without them, and where each begins and how long it is, bytes."""

    rest: bytes
    arrays: tuple[tuple[int, int], ...]


def temporary_file() -> IO[bytes]:
    """An unnamed file: in TMPDIR if that is set, else on a disk if there is one. Raises `TracekitError`."""
    large = None if "TMPDIR" in os.environ or not os.access(LARGE_FILES, os.W_OK) else LARGE_FILES
    try:
        return tempfile.TemporaryFile(prefix="tracekit-", dir=large)
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> TracekitError:
    return TracekitError(
        f"cannot keep columns in a temporary file: {error.strerror or error}",
        hint="Set TMPDIR to a folder with room, on a disk.",
    )


_MAPS: WeakSet[mmap.mmap] = WeakSet()


class Spool:
    """Writes values to the end of a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def put(self, value: object) -> Spooled:
        """Write the arrays of a value. Raises `TracekitError` where there is no room."""
        buffers: list[pickle.PickleBuffer] = []
        rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        try:
            arrays = tuple(self._write(buffer) for buffer in buffers)
            self._file.flush()
        except OSError as error:
            raise _no_room(error) from error
        return Spooled(rest, arrays)

    def _write(self, buffer: pickle.PickleBuffer) -> tuple[int, int]:
        start = self._file.seek(-(-self._file.seek(0, os.SEEK_END) // ALIGNED) * ALIGNED)
        with buffer.raw() as raw:
            self._file.write(raw)
            return start, raw.nbytes


def restore(file: IO[bytes], spooled: Sequence[Spooled]) -> list[Any]:
    """The values that were put into a file, their arrays mapped. The file may be closed afterwards."""
    size = file.seek(0, os.SEEK_END)
    # One map for all: each one holds a file descriptor.
    whole = memoryview(_map(file, size)) if size else memoryview(b"")
    return [
        pickle.loads(each.rest, buffers=[whole[start : start + length] for start, length in each.arrays])
        for each in spooled
    ]


def _map(file: IO[bytes], size: int) -> mmap.mmap:
    mapped = mmap.mmap(file.fileno(), size)
    _MAPS.add(mapped)
    return mapped


def keep(values: Iterable[T], beside: NDArray[Any]) -> list[T]:
    """The values, one after another; where ``beside`` is mapped from a file, their arrays are too.

    Raises `TracekitError` where there is no room for them.
    """
    if not _is_mapped(beside):
        return list(values)
    with temporary_file() as file:
        spool, spooled = Spool(file), []
        for value in values:
            spooled.append(spool.put(value))
            release()
        return restore(file, spooled)


def release() -> None:
    """Let go of the memory that mapped arrays take; what is looked at again is read again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in list(_MAPS):
            each.madvise(mmap.MADV_DONTNEED)


def _is_mapped(array: NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
