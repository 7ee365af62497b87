"""Files of PyTorch's Flight Recorder: known by content, loaded as plain data without running anything in them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from tracekit.errors import CaptureError

PICKLE_START = b"\x80"
LARGEST_PROTOCOL = 5
LARGEST_FILE = 4 << 30
NEAR = 1 << 16
READ_AHEAD = 1 << 17
"""Bytes that the unpickler gets at once. From a file that cannot be peeked at it takes each value by itself."""
ROOM = 1 << 30
ROOM_PER_BYTE = 64
"""Memory that loading one file may take: so much, and so much for each of its bytes."""
DAMAGED = (
    pickle.UnpicklingError,
    ValueError,
    EOFError,
    AttributeError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
)
"""What broken pickles and JSON texts raise."""


def is_dump(path: Path) -> bool:
    """Whether a file begins as dumps do: a pickle or a JSON object. False for what cannot be read, or is no file."""
    if is_special(str(path)):
        return False
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return _is_pickle(start) or start.lstrip().startswith(b"{")


def is_special(path: str) -> bool:
    """Whether a path names a pipe, a socket or a device: to open one can wait forever, or ask a job for its dump."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)  # noqa: PTH110, PTH112, PTH113


def dumps_in(folder: Path) -> list[Path]:
    """The dumps directly in a folder, in order of name; pickles and JSON files of something else are passed over."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and is_dump(path) and _has_their_keys(path))
    except OSError as error:
        raise CaptureError(f"{folder}: {error.strerror}", hint="Ask for read permission on it.") from error


def find_dumps(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(the dumps that files, folders and glob patterns name, each once; the paths that hold or are something else).

    A folder, or a pattern, is something else if it holds no dump.
    """
    found: dict[str, Path] = {}
    others: list[str] = []
    for given in paths:
        if os.path.isdir(given):  # noqa: PTH112 - answers False where Path raises
            dumps = dumps_in(Path(given))
            others += [] if dumps else [given]
        elif not os.path.exists(given) and any(sign in given for sign in "*?["):  # noqa: PTH110
            matches = sorted(map(Path, glob(given, recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
            dumps = [path for path in matches if path.is_file() and is_dump(path)]
            others += [] if dumps else [given]
        elif is_dump(Path(given)):
            dumps = [Path(given)]
        else:
            dumps = []
            others.append(given)
        for path in dumps:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values()), others


def _has_their_keys(path: Path) -> bool:
    """Whether the names of a dump's parts are near its beginning or end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        near = file.read(NEAR)
        file.seek(max(0, size - NEAR))
        near += file.read(NEAR)
    return any(key in near for key in (b"pg_config", b"pg_status", b"collective_seq_id"))


class DamagedDumpError(CaptureError):
    """A dump that was cut off, as by the end of the job while it was written."""


def load_dump(path: Path) -> dict[str, Any]:
    """The content of a dump.

    Raises `CaptureError` for what is none or is a pickle that refers to any code, and `DamagedDumpError` for what is
    cut off.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CaptureError(f"{path}: too large for a dump of the flight recorder", hint="Name the dump itself.")
        content = path.read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}", hint="Check the path and its permissions.") from error
    try:
        with _memory_limit(ROOM + ROOM_PER_BYTE * len(content)):
            data = Plain(content, path).load() if _is_pickle(content[:2]) else json.loads(content)
    except MemoryError:
        raise CaptureError(f"{path}: needs far more memory than its size warrants", hint=COPY_AGAIN) from None
    except DAMAGED as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise DamagedDumpError(f"{path}: a damaged or cut-off dump ({why})", hint=COPY_AGAIN) from error
    if not isinstance(data, dict) or not isinstance(data.get("entries", []), list):
        raise CaptureError(f"{path}: not a dump of PyTorch's flight recorder", hint=WHAT_IS_ONE)
    if "entries" not in data and "pg_config" not in data:
        raise CaptureError(f"{path}: not a dump of PyTorch's flight recorder (it has no entries)", hint=WHAT_IS_ONE)
    return data


COPY_AGAIN = "Copy it again, or leave it out: a job that is killed while it writes leaves half a file."
WHAT_IS_ONE = "torch writes one a rank where TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, such as nccl_trace_rank_3."


class Plain(pickle.Unpickler):
    """Loads containers, numbers and strings, and refuses every name of a class or function.

    Without one, a pickle cannot run anything.
    """

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BufferedReader(io.BytesIO(content), READ_AHEAD))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise CaptureError(
            f"{self.path}: this pickle wants to load {module}.{name}, which a dump of the flight recorder never does",
            hint="It may be made to run code. Nothing of it was run. Take the dump from the job itself.",
        )

    def persistent_load(self, pid: Any) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError("a reference to something outside of the file")


def _is_pickle(start: bytes) -> bool:
    return start[:1] == PICKLE_START and len(start) > 1 and start[1] <= LARGEST_PROTOCOL


@contextlib.contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    """Let this process grow by so many bytes and no more, where the system can hold it to that.

    A few bytes of a pickle can ask for a table of many gigabytes.
    """
    try:
        import resource  # noqa: PLC0415 - not on all systems

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + more
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
