"""The command line: the group of commands, and how it ends: two lines for an error and an exit status."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import click

from tracekit._version import __version__
from tracekit.commands.analyze import analyze
from tracekit.commands.compare import compare
from tracekit.commands.hang import hang
from tracekit.commands.info import info
from tracekit.commands.plan import plan
from tracekit.commands.rules import explain, rules
from tracekit.commands.status import ExitStatus
from tracekit.ending import leave
from tracekit.errors import TracekitError, UsageError

__all__ = ["ExitStatus", "main"]

LONGEST_LINE = 2000
"""Characters of a message; a file name alone can be longer."""


class Group(click.Group):
    """Turns errors into two lines and an exit status: a traceback is a defect."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line and exit."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller, who does not want to hear
                setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        for ending in ("SIGTERM", "SIGHUP"):  # of a scheduler, of a closed terminal: clean up as for an interrupt
            if hasattr(signal, ending):
                signal.signal(getattr(signal, ending), leave)
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


def _complain(message: str, hint: str | None) -> None:
    # Names in messages come from captures and file systems: no control character may reach the terminal.
    lines = [f"tracekit: {message}"] + ([f"  {hint}"] if hint else [])
    for line in lines:
        short = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
        click.echo(re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", "?", short), err=True)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", prog_name="tracekit", message="%(prog)s %(version)s")
def main() -> None:
    """Where every nanosecond of a sharded training step goes, from an Nsight Systems capture."""


for command in (analyze, compare, hang, info, plan, rules, explain):
    main.add_command(command)
