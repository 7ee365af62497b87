"""Write the table of thresholds in reference/settings.md from tracekit/config.py: run this after changing one."""

import inspect
import re
from pathlib import Path

from tracekit.config import DEFAULT, Thresholds

PAGE = Path(__file__).parent / "reference" / "settings.md"
ROW = re.compile(r'^    (\w+): (?:float|int) = [^\n]+\n    """(.*?)"""', re.MULTILINE | re.DOTALL)


def table() -> str:
    """One row a threshold: name, default, and what its docstring says."""
    rows = ROW.findall(inspect.getsource(Thresholds))
    shown = (f"| `{name}` | {getattr(DEFAULT, name):,} | {' '.join(text.split())} |" for name, text in rows)
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *shown]) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it is now; it is the last thing on the page."""
    return page[: page.index("| name | default |")] + table()


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
