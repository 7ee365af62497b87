"""``tracekit info``."""

from __future__ import annotations

from pathlib import Path

import click

from tracekit.commands.kernels import chosen_classes, kernel_options
from tracekit.commands.output import print_text, progress
from tracekit.commands.status import ExitStatus


@click.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...")
@kernel_options
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def info(
    captures: tuple[str, ...], quiet: bool, comm_kernels: tuple[str, ...], compute_kernels: tuple[str, ...]
) -> int:
    """Show what captures hold and lack: ranks, GPUs, NVTX ranges, and what could not be told from them."""
    from tracekit.capture import open_captures
    from tracekit.report.info import render_info
    from tracekit.settings import find_settings

    kernels = chosen_classes(find_settings(Path.cwd()), comm_kernels, compute_kernels)
    with progress(quiet) as (progressing, shown):
        timeline = open_captures(
            *captures,
            progressing=progressing,
            show_export=shown,
            require_ranks=False,
            kernels=kernels,
            strict=False,
        )
    print_text(render_info(timeline))
    return ExitStatus.LEFT_OUT if timeline.left_out else ExitStatus.DONE
