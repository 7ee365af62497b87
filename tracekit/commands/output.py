"""What the commands print and where: standard output, progress, checks of output files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tracekit.errors import TracekitError, UsageError


def check_outputs(paths: Sequence[str], captures: Sequence[Path]) -> None:
    """Refuse before the work is done what cannot be written after it."""
    # os.path answers False where Path raises: a name that is too long, a folder that may not be entered.
    for path in paths:
        if not path:
            raise UsageError("an output has an empty name", hint="Name a file, or leave the option out.")
        folder = os.path.dirname(path) or "."  # noqa: PTH120
        if not os.path.isdir(folder):  # noqa: PTH112
            raise UsageError(f"{path}: the folder {folder} does not exist", hint="Create it first.")
        if os.path.isdir(path):  # noqa: PTH112
            raise UsageError(f"{path}: this is a folder", hint="Name a file in it.")
        if any(os.path.realpath(path) == os.path.realpath(capture) for capture in captures):
            raise UsageError(f"{path}: this is the capture itself", hint="Name another file for the output.")
    if len(set(map(os.path.realpath, paths))) < len(paths):
        raise UsageError("two outputs name the same file", hint="Name a file for each.")


@contextlib.contextmanager
def progress(
    quiet: bool, verb: str = "Reading"
) -> Iterator[tuple[Callable[[str], Callable[[int, int], None] | None], bool]]:
    """Bars on standard error while captures are read (or what ``verb`` says), if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield (lambda _: None), False
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn(verb + " {task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bar:

        def progressing(what: str) -> Callable[[int, int], None]:
            task = bar.add_task(what, total=None)

            def update(done: int, expected: int) -> None:
                bar.update(task, completed=done, total=expected, visible=done < expected)

            return update

        yield progressing, True


def print_text(text: str) -> None:
    """Print a text and a line end."""
    write((text + "\n").encode(sys.stdout.encoding or "ascii", "replace"))


def write(content: bytes) -> None:
    """Write to standard output; a reader that has gone is no error.

    Raises `TracekitError` where it cannot be written.
    """
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader (head, less) has gone, content with what it has
        abandon_stdout()
    except OSError as error:
        abandon_stdout()
        raise TracekitError(
            f"cannot write to standard output: {error.strerror}", hint="Free some space, or send it elsewhere."
        ) from error


def can_encode(text: str) -> bool:
    """Whether standard output can show a text."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def size_words(size: int) -> str:
    """Bytes as ``2.1 MB`` or ``12.3 kB``."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def abandon_stdout() -> None:
    """Give standard output up."""
    # What could not be written stays in Python's buffer; it would try once more at exit and complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
