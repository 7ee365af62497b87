"""``tracekit rules`` and ``tracekit explain``."""

from __future__ import annotations

import difflib
import os
import shutil
import sys

import click

from tracekit.commands.output import print_text
from tracekit.commands.status import ExitStatus
from tracekit.errors import UsageError


@click.command()
def rules() -> int:
    """List the rules: code and what each finds."""
    from tracekit.report.pages import rule_titles

    print_text("\n".join(f"{code}  {title}" for code, title in rule_titles().items()))
    return ExitStatus.DONE


@click.command()
@click.argument("code")
@click.option("--no-color", is_flag=True, help="No colours, as with NO_COLOR set.")
def explain(code: str, no_color: bool) -> int:
    """Show the page of one rule, such as TK201: what it means, how it is told apart, what to try."""
    from tracekit.report.pages import rule_page, rule_titles

    known = rule_titles()
    wanted = code.strip().upper()
    page = rule_page(wanted)
    if wanted not in known or not page:
        near = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.5) or list(known)[:3]
        raise UsageError(
            f"there is no rule {code!r}", hint=f"Did you mean {', '.join(near)}? tracekit rules lists them all."
        )
    print_text(_rendered(page, color=sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR")))
    return ExitStatus.DONE


def _rendered(page: str, *, color: bool) -> str:
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    output = io.StringIO()
    console = Console(
        file=output,
        width=max(40, min(shutil.get_terminal_size((80, 24)).columns, 100)),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        _environ={},
    )
    title, _, body = page.partition("\n")
    console.print(title.removeprefix("## "), style="bold", highlight=False)
    console.print(Markdown(body))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n")
