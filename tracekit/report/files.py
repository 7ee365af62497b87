"""Writing a result file so that it is either whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tracekit.errors import TracekitError


def write_whole(path: Path, content: bytes) -> int:
    """Write ``content`` beside ``path`` and rename it into place; return the number of bytes.

    An interrupt, a full disk or a crash leaves what was there before. A pipe or a device is written to as it is.

    Raises:
        TracekitError: the file cannot be written.
    """
    with whole_file(path) as file:
        file.write(content)
    return len(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Do the same for what is written bit by bit: the file is in its place once the block has ended.

    Raises:
        TracekitError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(path))) as file:
                yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise TracekitError(f"cannot write {path}: {reason}", hint=_hint(path, error)) from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    if path.is_dir():
        raise IsADirectoryError(21, "it is a folder")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=".part")
    part_path = Path(name)
    try:
        with os.fdopen(handle, "wb") as part:
            yield part
            part.flush()
            os.fsync(part.fileno())
        part_path.chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask())
        part_path.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part_path.unlink()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _hint(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"The folder {path.parent} does not exist: create it first."
    if isinstance(error, IsADirectoryError):
        return "Name a file, such as report.html in that folder."
    if isinstance(error, PermissionError):
        return "Choose a folder that you may write to."
    return "Free some space, or choose another folder; nothing was left half written."
