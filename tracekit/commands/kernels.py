"""Options by which the user says what kernels are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tracekit.kernel_classes import KernelClasses
    from tracekit.settings import Settings


def kernel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--comm-kernel`` and ``--compute-kernel`` to a command."""
    command = click.option(
        "--compute-kernel",
        "compute_kernels",
        multiple=True,
        metavar="PATTERN",
        help="Kernels whose names match (a regular expression) compute, whatever the names seem to say.",
    )(command)
    return click.option(
        "--comm-kernel",
        "comm_kernels",
        multiple=True,
        metavar="PATTERN[=OP]",
        help="Kernels whose names match (a regular expression) communicate, e.g. my_exchange=all_to_all.",
    )(command)


def chosen_classes(settings: Settings, comm: Sequence[str], compute: Sequence[str]) -> KernelClasses:
    """What the command line says, then what the project's settings say."""
    from tracekit.kernel_classes import kernel_classes

    return kernel_classes((*comm, *settings.comm_kernels), (*compute, *settings.compute_kernels))
