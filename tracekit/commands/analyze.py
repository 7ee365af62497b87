"""``tracekit analyze``."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.commands.kernels import chosen_classes, kernel_options
from tracekit.commands.output import can_encode, check_outputs, print_text, progress, size_words, write
from tracekit.commands.status import ExitStatus
from tracekit.commands.types import SEVERITIES, Count, Numbers, Window
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.metrics.run import ModelFacts
    from tracekit.metrics.views import Detail
    from tracekit.options import Options
    from tracekit.results import Analysis
    from tracekit.settings import Settings
    from tracekit.timeline import Timeline


@click.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Write the results as JSON; - for standard output, then nothing else is printed there.",
)
@click.option("--html", "html_path", metavar="FILE", help="Write a self-contained HTML report.")
@click.option(
    "--perfetto", "perfetto_path", metavar="FILE", help="Write a trace for Perfetto; gzipped if it ends in .gz."
)
@click.option(
    "--html-detail",
    type=click.Choice(["auto", "all", "summary"]),
    default="auto",
    show_default=True,
    help="What the HTML report keeps event by event: up to a limit, all, or nothing.",
)
@click.option("--steps", type=Numbers(), help="Only these steps, e.g. 2-5,8; they are then the steady ones.")
@click.option("--ranks", type=Numbers(), help="Only these ranks, e.g. 0,4-7.")
@click.option(
    "--window",
    type=Window(),
    default=":",
    show_default=False,
    help="Only this time on the first rank's clock, e.g. 1.2s:1.5s.",
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
@click.option(
    "--what-if",
    multiple=True,
    metavar="CHANGES",
    help="Replay steps with changes made, e.g. bandwidth=2x,straggler=off; can be given several times.",
)
@click.option("--force", is_flag=True, help="Take the captures as one job, though they seem to be of several.")
@click.option("--no-rules", is_flag=True, help="Account only; check no rules.")
@click.option(
    "--allow-no-gpu", is_flag=True, help="Report steps, phases and collectives by NVTX where no GPU work was captured."
)
@kernel_options
@click.option("--model", metavar="NAME", help="The model: a known name such as llama-70b, or a config.json.")
@click.option("--params", type=Count(), help="Its number of parameters, e.g. 70e9 or 7B, in place of that.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Tokens of a step, over all GPUs.")
@click.option("--gpu", metavar="NAME", help="Kind of GPU, where the capture does not tell.")
@click.option("--select", metavar="CODES", help="Report only these rules, e.g. TK1,TK201; TK1 is all of TK1xx.")
@click.option("--ignore", metavar="CODES", help="Do not report these rules.")
@click.option("--threshold", "thresholds", multiple=True, metavar="NAME=VALUE", help="Set a threshold of the rules.")
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), help="Exit with status 1 if a finding is this severe or more."
)
@click.option("--fail-on-low", is_flag=True, help="Let findings of low confidence count for --fail-on too.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "md", "json", "sarif"]),
    default="text",
    show_default=True,
    help="What to print on standard output.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show all findings and collectives, with their evidence.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary and no progress.")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR set.")
def analyze(
    captures: tuple[str, ...],
    json_path: str | None,
    html_path: str | None,
    perfetto_path: str | None,
    html_detail: str,
    allow_no_gpu: bool,
    fail_on: str | None,
    fail_on_low: bool,
    output: str,
    verbose: bool,
    quiet: bool,
    no_color: bool,
    comm_kernels: tuple[str, ...],
    compute_kernels: tuple[str, ...],
    force: bool,
    **given: Any,
) -> int:
    """Account for every nanosecond of a step and say what exposes communication.

    CAPTURE is an nsys SQLite export, an .nsys-rep (needs nsys), a folder of them, or a quoted glob pattern; several are
    taken as the ranks of one job.
    """
    from tracekit.analysis import examine
    from tracekit.capture import find_captures, open_captures
    from tracekit.settings import find_settings

    settings = find_settings(Path.cwd())
    files = find_captures(captures)
    outputs = (json_path, html_path, perfetto_path)
    check_outputs([path for path in outputs if path is not None and path != "-"], files)
    for option, path, what in (("--html", html_path, "report"), ("--perfetto", perfetto_path, "trace")):
        if path == "-":
            raise UsageError(f"{option}: a {what} goes to a file, not to standard output", hint="Name a file.")
    if json_path == "-":
        if output not in ("text", "json"):
            raise UsageError(f"--json - and --format {output} both print", hint="Name a file for the JSON.")
        json_path, output = None, "json"
    if fail_on is not None and given["no_rules"]:
        raise UsageError("--no-rules and --fail-on exclude each other", hint="Nothing could fail: give one of them.")
    if output == "sarif" and given["no_rules"]:
        raise UsageError("--format sarif with --no-rules: a run without findings would pass", hint="Leave one out.")
    options = _options(settings, allow_no_gpu, given)
    with progress(quiet) as (progressing, shown):
        timeline = open_captures(
            *files,
            progressing=progressing,
            show_export=shown,
            require_ranks=not allow_no_gpu,
            kernels=chosen_classes(settings, comm_kernels, compute_kernels),
            strict=False,
            one_job=None if force else options.thresholds,
        )
    with progress(quiet, "Measuring") as (progressing, _):
        detailed = html_path is not None or perfetto_path is not None
        analysis, detail = examine(timeline, options, progressing=progressing, detailed=detailed)
    for option, path in (("--html", html_path), ("--perfetto", perfetto_path)):
        drawable = analysis.ranks or (option == "--html" and analysis.hang is not None)
        if path and not drawable:
            raise UsageError(f"{option}: there is no GPU work to draw", hint="Use --json for the NVTX view.")
    wrote = _write_files(analysis, timeline, detail, json_path, html_path, html_detail)
    if perfetto_path and detail is not None:
        from tracekit.report.perfetto.trace import write_perfetto

        size = write_perfetto(analysis, timeline, detail, options, Path(perfetto_path))
        wrote.append((perfetto_path, size))
    if output != "text":
        write(_document(analysis, output))
    elif not quiet:
        _print_summary(analysis, verbose, no_color, wrote)
    return _status(analysis, fail_on or settings.fail_on, low_too=fail_on_low)


def _options(settings: Settings, allow_no_gpu: bool, given: dict[str, Any]) -> Options:
    from tracekit.metrics.replay.what_if import parse_changes
    from tracekit.options import Options
    from tracekit.rules import known_codes
    from tracekit.settings import with_thresholds
    from tracekit.theory.gpus import gpu_named

    return Options(
        steps=given["steps"],
        ranks=given["ranks"],
        window=given["window"],
        step_marker=given["step_marker"],
        skip_warmup=given["skip_warmup"],
        rules=not given["no_rules"],
        what_if=tuple(",".join(parse_changes(changes)) for changes in given["what_if"]),
        align=not given["no_align"],
        allow_no_gpu=allow_no_gpu,
        model=_model(given["model"], given["params"]),
        tokens_per_step=given["tokens"],
        gpu=gpu_named(given["gpu"]) if given["gpu"] is not None else None,
        select=known_codes(settings.select if given["select"] is None else given["select"].split(",")),
        ignore=known_codes(settings.ignore if given["ignore"] is None else given["ignore"].split(",")),
        thresholds=with_thresholds(settings.thresholds, _thresholds(given["thresholds"]), "--threshold"),
    )


def _thresholds(given: tuple[str, ...]) -> dict[str, float]:
    """``NAME=VALUE`` pairs of the command line."""
    found = {}
    for pair in given:
        name, _, value = pair.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"--threshold {pair!r} is not NAME=VALUE", hint="Such as wait_share=0.03.") from None
    return found


def _write_files(
    analysis: Analysis,
    timeline: Timeline,
    detail: Detail | None,
    json_path: str | None,
    html_path: str | None,
    html_detail: str,
) -> list[tuple[str, int]]:
    """Write what is asked for; (path, bytes) of each file."""
    wrote: list[tuple[str, int]] = []
    if json_path:
        from tracekit.report.files import write_whole

        wrote.append((json_path, write_whole(Path(json_path), _document(analysis, "json"))))
    if html_path and not analysis.ranks:
        from tracekit.report.host_page import write_host_html

        wrote.append((html_path, write_host_html(analysis, Path(html_path))))
    elif html_path:
        from tracekit.report.html import write_html
        from tracekit.report.timeline.kept import HtmlDetail

        size = write_html(analysis, timeline, Path(html_path), detail=detail, level=HtmlDetail(html_detail))
        wrote.append((html_path, size))
    return wrote


def _document(analysis: Analysis, output: str) -> bytes:
    """The analysis in a format for machines, or for other people's pages."""
    if output == "json":
        from tracekit.report.json import render_json

        text = render_json(analysis) + "\n"
    elif output == "sarif":
        from tracekit.report.sarif import render_sarif

        text = render_sarif(analysis) + "\n"
    elif analysis.ranks:
        from tracekit.report.markdown import render_markdown

        text = render_markdown(analysis)
    else:
        from tracekit.report.host import render_host

        text = f"```text\n{render_host(analysis)}\n```\n"
    # A path that is not UTF-8 holds lone surrogates, which JSON can only escape.
    return text.encode("utf-8", "backslashreplace")


def _model(name: str | None, parameters: int | None) -> ModelFacts | None:
    from tracekit.metrics.run import ModelFacts, facts_of_shape
    from tracekit.theory.shapes import model_named, shape_of_config

    if name is not None and parameters is not None:
        raise UsageError("--model and --params exclude each other", hint="Give one of them.")
    if parameters is not None:
        return ModelFacts(source="option", parameters=parameters, multiplied=parameters)
    if name is None:
        return None
    return facts_of_shape(shape_of_config(name) if name.endswith(".json") or os.sep in name else model_named(name))


def _print_summary(analysis: Analysis, verbose: bool, no_color: bool, wrote: list[tuple[str, int]]) -> None:
    from tracekit.report.words import clean

    if analysis.ranks:
        from tracekit.report.text import render_text

        text = render_text(
            analysis,
            width=max(40, min(shutil.get_terminal_size((80, 24)).columns, 120)),
            color=sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR"),
            unicode=can_encode("█▚▒░·"),
            verbose=verbose,
        )
    else:
        from tracekit.report.host import render_host

        text = render_host(analysis)
    said = [f"Wrote {clean(path)} ({size_words(size)})" for path, size in wrote]
    print_text("\n".join([text.rstrip("\n"), *([""] if wrote else []), *said]))


def _status(analysis: Analysis, fail_on: str | None, *, low_too: bool) -> int:
    counting = [f.severity for f in analysis.findings if low_too or f.confidence != "low"]
    worst = max(map(SEVERITIES.index, counting), default=-1)
    if fail_on is not None and worst >= SEVERITIES.index(fail_on):
        return ExitStatus.FINDING
    return ExitStatus.LEFT_OUT if analysis.left_out else ExitStatus.DONE
