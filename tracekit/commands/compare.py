"""``tracekit compare``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.commands.kernels import chosen_classes
from tracekit.commands.output import can_encode, check_outputs, print_text, progress, size_words, write
from tracekit.commands.status import ExitStatus
from tracekit.commands.types import Share
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.comparison import Comparison
    from tracekit.results import Analysis
    from tracekit.settings import Settings


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("new", nargs=-1, required=True, metavar="NEW...")
@click.option(
    "--max-regression",
    type=Share(),
    help="Exit with status 1 if a typical step of NEW is longer than BASE's by more than this, beyond noise.",
)
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write the comparison as JSON; - for standard output, then nothing else is printed there.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "md", "json"]),
    default="text",
    show_default=True,
    help="What to print on standard output.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show all causes, and the tables of every NEW.")
@click.option("-q", "--quiet", is_flag=True, help="Print no text and no progress.")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR set.")
def compare(
    base: str,
    new: tuple[str, ...],
    max_regression: float | None,
    json_path: str | None,
    output: str,
    verbose: bool,
    quiet: bool,
    no_color: bool,
) -> int:
    """Say what changed from one run to others: step time, causes, collectives, findings, and what of it is noise.

    BASE and each NEW are one run: a capture, a folder of captures (the ranks of one job), or a file that tracekit
    analyze --json wrote.
    """
    from tracekit.compare import compare as compare_analyses
    from tracekit.report.comparison_formats import render_comparison_json, render_comparison_markdown
    from tracekit.settings import find_settings

    settings = find_settings(Path.cwd())
    paths = [base, *new]
    check_outputs([json_path] if json_path is not None and json_path != "-" else [], list(map(Path, paths)))
    if json_path == "-":
        if output == "md":
            raise UsageError("--json - and --format md both print", hint="Name a file for the JSON.")
        json_path, output = None, "json"
    names = run_names(paths)
    runs = [_run(path, settings, quiet) for path in paths]
    comparisons = [
        compare_analyses(runs[0], run, names=(names[0], name), thresholds=settings.thresholds)
        for run, name in zip(runs[1:], names[1:], strict=True)
    ]
    document = (render_comparison_json(comparisons, max_regression) + "\n").encode("utf-8", "backslashreplace")
    wrote = ""
    if json_path:
        from tracekit.report.files import write_whole

        wrote = f"Wrote {json_path} ({size_words(write_whole(Path(json_path), document))})"
    if output == "json":
        write(document)
    elif output == "md":
        write(render_comparison_markdown(comparisons).encode("utf-8", "backslashreplace"))
    elif not quiet:
        _print(comparisons, verbose, no_color, wrote)
    return ExitStatus.DONE if max_regression is None else _gate(comparisons, max_regression)


def run_names(paths: Sequence[str]) -> list[str]:
    """A short name for each run: its file or folder, with as many folders above it as tell the runs apart."""
    parts = [Path(os.path.abspath(path)).with_suffix("").parts for path in paths]  # noqa: PTH100 - no link followed
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _run(path: str, settings: Settings, quiet: bool) -> Analysis:
    """One run, analyzed now or before."""
    from tracekit.analysis import analyze as analyze_timeline
    from tracekit.capture import open_captures
    from tracekit.options import Options
    from tracekit.report.saved import is_saved, read_saved
    from tracekit.rules import known_codes

    if is_saved(Path(path)):
        return read_saved(Path(path))
    options = Options(
        select=known_codes(settings.select), ignore=known_codes(settings.ignore), thresholds=settings.thresholds
    )
    with progress(quiet) as (progressing, shown):
        kernels = chosen_classes(settings, (), ())
        timeline = open_captures(path, progressing=progressing, show_export=shown, kernels=kernels)
    with progress(quiet, "Measuring") as (progressing, _):
        return analyze_timeline(timeline, options, progressing=progressing)


def _print(comparisons: Sequence[Comparison], verbose: bool, no_color: bool, wrote: str) -> None:
    from tracekit.report.comparison_formats import render_comparison
    from tracekit.report.words import clean

    text = render_comparison(
        comparisons,
        width=max(40, min(shutil.get_terminal_size((80, 24)).columns, 120)),
        color=sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR"),
        unicode=can_encode("·–−→×µ…"),
        verbose=verbose,
    )
    print_text("\n".join([text.rstrip("\n"), *(["", clean(wrote)] if wrote else [])]))


def _gate(comparisons: Sequence[Comparison], limit: float) -> int:
    """The exit status; complains of what cannot be told, which is not the same as passed."""
    if any(c.regression is not None and c.regression > limit for c in comparisons):
        return ExitStatus.FINDING
    for comparison in comparisons:
        if comparison.regression is None:
            few = "from so few steps" if comparison.base.steps and comparison.new.steps else "without steps in both"
            why = f"between different jobs ({', '.join(comparison.unlike)} differ)" if comparison.unlike else few
            raise UsageError(
                f"--max-regression: whether {comparison.new.name} regressed cannot be told {why}",
                hint="Capture 3 steady steps of each run at least; 10 are better.",
            )
        if comparison.hides(limit):
            click.echo(
                f"tracekit: --max-regression: the noise of {comparison.new.name} hides a regression of {limit:.1%}\n"
                "  Capture more steps of both runs: the more there are, the narrower it gets.",
                err=True,
            )
    return ExitStatus.DONE
