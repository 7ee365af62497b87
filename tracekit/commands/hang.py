"""``tracekit hang``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.commands.output import can_encode, check_outputs, print_text, progress, write
from tracekit.commands.status import ExitStatus
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from tracekit.evidence import Evidence
    from tracekit.results import Hang

WHAT_CAN_BE_READ = (
    "An nsys SQLite export, an .nsys-rep, or a dump of PyTorch's flight recorder such as nccl_trace_rank_3."
)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="CAPTURE_OR_DUMP...")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write the verdict as JSON; - for standard output, then nothing else is printed there.",
)
@click.option("--html", "html_path", metavar="FILE", help="Write the verdict as a page: one file, without scripts.")
@click.option("--step-marker", metavar="NAME", help="NVTX range that marks a step: its name, or a regular expression.")
@click.option("-v", "--verbose", is_flag=True, help="Show all groups of ranks and all mismatched collectives.")
@click.option("-q", "--quiet", is_flag=True, help="Print no text and no progress.")
def hang(
    paths: tuple[str, ...],
    json_path: str | None,
    html_path: str | None,
    step_marker: str | None,
    verbose: bool,
    quiet: bool,
) -> int:
    """Say why a job stands still: who never arrived where, who waits, and what each rank was doing.

    CAPTURE_OR_DUMP is a capture as for analyze, a dump of PyTorch's flight recorder (pickle or JSON), a folder of
    either or both, or a quoted glob pattern; several are the ranks of one job. Exit status 1 if a hang is found.
    """
    from tracekit.config import DEFAULT
    from tracekit.metrics.hangs import diagnose

    paths, skipped = _without_special(paths)
    dumps, captures = _sorted_out(paths)
    outputs = [path for path in (json_path, html_path) if path is not None and path != "-"]
    check_outputs(outputs, [*dumps, *captures])
    evidence = _evidence(dumps, captures, step_marker, quiet)
    verdict = diagnose(replace(evidence, notes=(*evidence.notes, *skipped)), DEFAULT)
    if json_path:
        from tracekit.report.files import write_whole
        from tracekit.report.json import hang_dict

        text = json.dumps(hang_dict(verdict), ensure_ascii=False, allow_nan=False) + "\n"
        document = text.encode("utf-8", "backslashreplace")
        if json_path == "-":
            write(document)
        else:
            write_whole(Path(json_path), document)
    if html_path:
        from tracekit.report.hang_page import write_hang_html

        write_hang_html(verdict, Path(html_path))
    if json_path != "-" and not quiet:
        _print(verdict, verbose)
    return ExitStatus.FINDING if verdict.is_hang else ExitStatus.DONE


def _without_special(paths: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """(the paths that are not pipes, sockets or devices, a word about each of those): they are never opened."""
    from tracekit.readers.dump_files import is_special

    special = [path for path in paths if is_special(path)]
    if special and len(special) == len(paths):
        raise CaptureError(f"{special[0]}: a pipe, socket or device, which is not opened", hint=WHAT_CAN_BE_READ)
    words = [f"{path} was passed over: it is a pipe, socket or device" for path in special]
    return tuple(path for path in paths if path not in special), words


def _sorted_out(paths: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """(dumps, captures) that paths name; a folder or pattern can hold both."""
    from tracekit.capture import SUFFIXES, find_captures
    from tracekit.readers.dump_files import find_dumps

    dumps, others = find_dumps(paths)
    captures: list[Path] = []
    for path in paths:
        if path in others:
            captures += _named(path)
        elif Path(path) not in dumps:
            with suppress(CaptureError):  # there are dumps, so there need be no captures
                captures += [found for found in find_captures([path]) if found.suffix in SUFFIXES]
    return dumps, captures


def _named(path: str) -> list[Path]:
    """The captures that a path without dumps names."""
    from tracekit.capture import SUFFIXES, find_captures
    from tracekit.readers.database import MAGIC

    try:
        found = find_captures([path])
    except CaptureError as error:
        if not Path(path).is_dir():
            raise
        raise CaptureError(f"{path}: no captures and no dumps in this folder", hint=WHAT_CAN_BE_READ) from error
    for file in found:
        with suppress(OSError), file.open("rb") as opened:  # what cannot be read is said by who reads it
            if file.suffix not in SUFFIXES and opened.read(len(MAGIC)) != MAGIC:
                raise CaptureError(f"{file}: neither a capture nor a dump", hint=WHAT_CAN_BE_READ)
    return found


def _evidence(dumps: Sequence[Path], captures: Sequence[Path], step_marker: str | None, quiet: bool) -> Evidence:
    from tracekit.capture import open_captures
    from tracekit.metrics.hangs.combine import combine
    from tracekit.metrics.hangs.from_captures import evidence_of
    from tracekit.readers.dumps import read_dumps

    with progress(quiet) as (progressing, shown):
        of_dumps = read_dumps(dumps, progressing("dumps")) if dumps else None
        if not captures:
            assert of_dumps is not None  # find_captures fails rather than find nothing
            return of_dumps
        timeline = open_captures(*captures, progressing=progressing, show_export=shown, require_ranks=False)
    of_captures = evidence_of(timeline, step_marker=step_marker, asked=True)
    return of_captures if of_dumps is None else combine(of_dumps, of_captures)


def _print(verdict: Hang, verbose: bool) -> None:
    from tracekit.report.hang import render_hang
    from tracekit.rules.hangs import finding_of

    width = max(40, min(shutil.get_terminal_size((80, 24)).columns, 120))
    unicode = can_encode("┌│└─>×µ")
    print_text(render_hang(verdict, finding_of(verdict), width=width, unicode=unicode, verbose=verbose))
