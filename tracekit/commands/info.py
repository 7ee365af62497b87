"""``tracekit info``."""

from __future__ import annotations

import click

from tracekit.commands.output import print_text, progress
from tracekit.commands.status import ExitStatus


@click.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def info(captures: tuple[str, ...], quiet: bool) -> int:
    """Show what captures hold and lack: ranks, GPUs, NVTX ranges, and what could not be told from them."""
    from tracekit.capture import open_captures
    from tracekit.report.info import render_info

    with progress(quiet) as (progressing, shown):
        timeline = open_captures(*captures, progressing=progressing, show_export=shown, require_ranks=False)
    print_text(render_info(timeline))
    return ExitStatus.DONE
