"""Text wrapped at words, with an indent."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text


def wrapped(text: Text, width: int, indent: int = 0, first: Text | None = None) -> Iterator[Text]:
    """Yield the text wrapped at words, lines after the first indented; ``first`` stands before the first line."""
    console = Console(file=io.StringIO(), width=width)
    lead = first or Text()
    for i, line in enumerate(text.wrap(console, width - indent, overflow="fold")):
        line.rstrip()
        if i == 0 and first is not None:
            lead.pad_right(max(0, indent - lead.cell_len))
            yield Text.assemble(lead, line)
        else:
            yield Text.assemble(" " * indent if i or first is not None else "", line)
