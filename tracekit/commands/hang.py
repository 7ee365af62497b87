"""``tracekit hang``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.commands.output import can_encode, check_outputs, print_text, progress, write
from tracekit.commands.status import ExitStatus
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from tracekit.results import Hang


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="CAPTURE_OR_DUMP...")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write the verdict as JSON; - for standard output, then nothing else is printed there.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show all groups of ranks and all mismatched collectives.")
@click.option("-q", "--quiet", is_flag=True, help="Print no text and no progress.")
def hang(paths: tuple[str, ...], json_path: str | None, verbose: bool, quiet: bool) -> int:
    """Say why a job stands still: who never arrived where, who waits, and what each rank was doing.

    CAPTURE_OR_DUMP is a dump of PyTorch's flight recorder (pickle or JSON), a folder of them, or a quoted glob pattern;
    several are the ranks of one job. Exit status 1 if a hang is found.
    """
    from tracekit.config import DEFAULT
    from tracekit.metrics.hangs import diagnose
    from tracekit.readers.dump_files import find_dumps
    from tracekit.readers.dumps import read_dumps

    dumps, captures = find_dumps(paths)
    if captures:
        raise CaptureError(
            f"{captures[0]}: no dump of PyTorch's flight recorder", hint="Name dumps, or a folder that holds some."
        )
    check_outputs([json_path] if json_path is not None and json_path != "-" else [], dumps)
    with progress(quiet) as (progressing, _):
        evidence = read_dumps(dumps, progressing("dumps"))
    verdict = diagnose(evidence, DEFAULT)
    if json_path:
        from tracekit.report.files import write_whole
        from tracekit.report.json import hang_dict

        text = json.dumps(hang_dict(verdict), ensure_ascii=False, allow_nan=False) + "\n"
        document = text.encode("utf-8", "backslashreplace")
        if json_path == "-":
            write(document)
        else:
            write_whole(Path(json_path), document)
    if json_path != "-" and not quiet:
        _print(verdict, verbose)
    return ExitStatus.FINDING if verdict.is_hang else ExitStatus.DONE


def _print(verdict: Hang, verbose: bool) -> None:
    from tracekit.report.hang import render_hang
    from tracekit.rules.hangs import claim, finding_of

    width = max(40, min(shutil.get_terminal_size((80, 24)).columns, 120))
    unicode = can_encode("┌│└─>×µ")
    print_text(render_hang(verdict, finding_of(verdict), claim(verdict), width=width, unicode=unicode, verbose=verbose))
