"""The command line: parses, calls the library, prints, picks the exit status.

Everything heavy is imported inside the commands, so that ``tracekit --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit._version import __version__
from tracekit.errors import TracekitError, UsageError

if TYPE_CHECKING:
    from tracekit.results import Analysis

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
SEVERITIES = ("info", "warning", "error")
LARGEST_LIST = 10_000_000
LONGEST_LINE = 2000
"""Characters of a message; a file name alone can be longer."""


class ExitStatus(IntEnum):
    """What the exit status says; see docs/reference/exit-status.md."""

    DONE = 0
    FINDING = 1
    USAGE = 2
    UNREADABLE = 3
    INTERNAL = 70
    INTERRUPTED = 130


class Group(click.Group):
    """Turns errors into two lines and an exit status: a traceback is a defect."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line and exit."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller, who does not want to hear
                setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        for ending in ("SIGTERM", "SIGHUP"):  # of a scheduler, of a closed terminal: clean up as for an interrupt
            if hasattr(signal, ending):
                signal.signal(getattr(signal, ending), _end)
        try:
            kwargs["standalone_mode"] = False
            sys.exit(super().main(*args, **kwargs) or ExitStatus.DONE)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(ExitStatus.USAGE)
        except TracekitError as error:
            _complain(error.message, error.hint)
            sys.exit(ExitStatus.USAGE if isinstance(error, UsageError) else ExitStatus.UNREADABLE)
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted; no file was left half written", None)
            sys.exit(ExitStatus.INTERRUPTED)
        except MemoryError:
            _complain("out of memory", "Analyze fewer captures at once.")
            sys.exit(ExitStatus.UNREADABLE)
        except Exception as error:
            if os.environ.get("TRACEKIT_TRACEBACK"):
                raise
            _complain(
                f"internal error: {type(error).__name__}: {error}",
                "This is a defect of tracekit. Please report it with what TRACEKIT_TRACEBACK=1 prints.",
            )
            sys.exit(ExitStatus.INTERNAL)


def _end(number: int, _: object) -> None:
    """Leave by an exception: temporary folders are removed and nsys is stopped on the way out."""
    raise SystemExit(128 + number)


def _complain(message: str, hint: str | None) -> None:
    # Names in messages come from captures and file systems: no control character may reach the terminal.
    lines = [f"tracekit: {message}"] + ([f"  {hint}"] if hint else [])
    for line in lines:
        short = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
        click.echo(re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", "?", short), err=True)


def _abandon_stdout() -> None:
    # What could not be written stays in Python's buffer; it would try once more at exit and complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Window(click.ParamType[tuple[int | None, int | None]]):
    """``START:END`` with units, either side may be empty."""

    name = "START:END"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Parse to ns."""
        if isinstance(value, tuple):  # click converts defaults and already converted values again
            return value[0], value[1]
        start, colon, end = str(value).partition(":")
        if not colon:
            self.fail("write it like 1.2s:1.5s or 300ms:", param, ctx)
        window = self._instant(start, param, ctx), self._instant(end, param, ctx)
        if window[0] is not None and window[1] is not None and window[1] <= window[0]:
            self.fail("it ends before it starts", param, ctx)
        return window

    def _instant(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if not text.strip():
            return None
        match = re.fullmatch(r"\s*(\d{1,19})(?:\.(\d{1,9}))?\s*(s|ms|us|ns)\s*", text)
        if not match:
            self.fail(f"{text!r} is not a time with a unit (s, ms, us, ns)", param, ctx)
        unit = UNITS_NS[match[3]]
        fraction = match[2] or ""
        return int(match[1]) * unit + int(fraction.ljust(9, "0")) * unit // UNITS_NS["s"]


class Numbers(click.ParamType[frozenset[int]]):
    """A list of numbers and ranges, such as ``2-5,8``."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        """Parse to a set."""
        if isinstance(value, frozenset):
            return value
        numbers: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
            if not match or int(match[2] or match[1]) < int(match[1]):
                self.fail(f"{part.strip() or value!r} is not a number or a range; write it like 2-5,8", param, ctx)
            low, high = int(match[1]), int(match[2] or match[1])
            if high - low >= LARGEST_LIST:
                self.fail(f"{part.strip()} names more than {LARGEST_LIST:,} numbers", param, ctx)
            numbers.update(range(low, high + 1))
        return frozenset(numbers)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", prog_name="tracekit", message="%(prog)s %(version)s")
def main() -> None:
    """Where every nanosecond of a sharded training step goes, from an Nsight Systems capture."""


@main.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write the results as JSON; - for standard output, then nothing else is printed there.",
)
@click.option("--html", "html_path", metavar="FILE", help="Write a self-contained HTML report.")
@click.option("--steps", type=Numbers(), help="Only these steps, e.g. 2-5,8; they are then the steady ones.")
@click.option("--ranks", type=Numbers(), help="Only these ranks, e.g. 0,4-7.")
@click.option(
    "--window",
    type=Window(),
    default=":",
    show_default=False,
    help="Only this time on the capture's clock, e.g. 1.2s:1.5s.",
)
@click.option(
    "--skip-warmup",
    type=click.IntRange(min=0),
    metavar="N",
    help="Leave out exactly N leading steps (default: the first and slow ones after it).",
)
@click.option(
    "--step-marker", metavar="NAME", help="Name of the NVTX range that marks a step, or a regular expression for it."
)
@click.option(
    "--no-align", is_flag=True, help="Compare the captures' clocks as they are, not aligned by their collectives."
)
@click.option("--no-rules", is_flag=True, help="Account only; check no rules.")
@click.option(
    "--allow-no-gpu", is_flag=True, help="Report steps, phases and collectives by NVTX where no GPU work was captured."
)
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), help="Exit with status 1 if a finding is this severe or more."
)
@click.option("-v", "--verbose", is_flag=True, help="Show all findings and collectives, with their evidence.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary and no progress.")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR set.")
def analyze(
    captures: tuple[str, ...],
    json_path: str | None,
    html_path: str | None,
    steps: frozenset[int] | None,
    ranks: frozenset[int] | None,
    window: tuple[int | None, int | None],
    skip_warmup: int | None,
    step_marker: str | None,
    no_align: bool,
    no_rules: bool,
    allow_no_gpu: bool,
    fail_on: str | None,
    verbose: bool,
    quiet: bool,
    no_color: bool,
) -> int:
    """Account for every nanosecond of a step and say what exposes communication.

    CAPTURE is an nsys SQLite export, an .nsys-rep (needs nsys), a folder of them, or a quoted glob pattern; several are
    taken as the ranks of one job.
    """
    from tracekit.analysis import Options
    from tracekit.analysis import analyze as analyze_timeline
    from tracekit.capture import find_captures, open_captures

    files = find_captures(captures)
    _check_outputs([path for path in (json_path, html_path) if path is not None and path != "-"], files)
    if html_path == "-":
        raise UsageError("--html: a report goes to a file, not to standard output", hint="Name a file.")
    options = Options(
        steps=steps,
        ranks=ranks,
        window=window,
        step_marker=step_marker,
        skip_warmup=skip_warmup,
        rules=not no_rules,
        align=not no_align,
        allow_no_gpu=allow_no_gpu,
    )
    with _progress(quiet) as (progressing, shown):
        timeline = open_captures(*files, progressing=progressing, show_export=shown, require_ranks=not allow_no_gpu)
    analysis = analyze_timeline(timeline, options)
    if html_path and not analysis.ranks:
        raise UsageError("--html: there is no GPU work to draw", hint="Use --json for the NVTX view.")
    wrote: list[tuple[str, int]] = []
    if json_path:
        from tracekit.report.json import render_json

        # A path that is not UTF-8 holds lone surrogates, which JSON can only escape.
        document = (render_json(analysis) + "\n").encode("utf-8", "backslashreplace")
        if json_path == "-":
            _write(document)
        else:
            from tracekit.report.files import write_whole

            wrote.append((json_path, write_whole(Path(json_path), document)))
    if html_path:
        from tracekit.report.html import write_html

        wrote.append((html_path, write_html(analysis, timeline, Path(html_path))))
    if json_path != "-" and not quiet:
        _print_summary(analysis, verbose, no_color, wrote)
    return _status(analysis, fail_on)


def _check_outputs(paths: Sequence[str], captures: Sequence[Path]) -> None:
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
        raise UsageError("--json and --html name the same file", hint="Name two files.")


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[tuple[Callable[[str], Callable[[int, int], None] | None], bool]]:
    """A bar on standard error while reading, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield (lambda _: None), False
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("Reading {task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bar:

        def progressing(what: str) -> Callable[[int, int], None]:
            task = bar.add_task(what, total=None)

            def update(done: int, expected: int) -> None:
                bar.update(task, completed=done, total=expected, visible=done < expected)

            return update

        yield progressing, True


def _print_summary(analysis: Analysis, verbose: bool, no_color: bool, wrote: list[tuple[str, int]]) -> None:
    from tracekit.report.words import clean

    if analysis.ranks:
        from tracekit.report.text import render_text

        text = render_text(
            analysis,
            width=max(40, min(shutil.get_terminal_size((80, 24)).columns, 120)),
            color=sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR"),
            unicode=_can_encode("█▚▒░·"),
            verbose=verbose,
        )
    else:
        from tracekit.report.host import render_host

        text = render_host(analysis)
    said = [f"Wrote {clean(path)} ({_size(size)})" for path, size in wrote]
    _print_text("\n".join([text.rstrip("\n"), *([""] if wrote else []), *said]))


def _print_text(text: str) -> None:
    _write((text + "\n").encode(sys.stdout.encoding or "ascii", "replace"))


def _write(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader (head, less) has gone, content with what it has
        _abandon_stdout()
    except OSError as error:
        _abandon_stdout()
        raise TracekitError(
            f"cannot write to standard output: {error.strerror}", hint="Free some space, or send it elsewhere."
        ) from error


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _status(analysis: Analysis, fail_on: str | None) -> int:
    if fail_on is None:
        return ExitStatus.DONE
    worst = max((SEVERITIES.index(finding.severity) for finding in analysis.findings), default=-1)
    return ExitStatus.FINDING if worst >= SEVERITIES.index(fail_on) else ExitStatus.DONE


@main.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def info(captures: tuple[str, ...], quiet: bool) -> int:
    """Show what captures hold and lack: ranks, GPUs, NVTX ranges, and what could not be told from them."""
    from tracekit.capture import open_captures
    from tracekit.report.info import render_info

    with _progress(quiet) as (progressing, shown):
        timeline = open_captures(*captures, progressing=progressing, show_export=shown, require_ranks=False)
    _print_text(render_info(timeline))
    return ExitStatus.DONE
