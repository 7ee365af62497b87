"""The rules' pages of the documentation, for ``tracekit explain`` and for machines that show help beside a finding."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from tracekit.rules import RULES

LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def rule_titles() -> dict[str, str]:
    """Title by code, in the order of codes."""
    return {rule.code: rule.title for rule in sorted(RULES, key=lambda rule: rule.code)}


def rule_page(code: str) -> str:
    """The page of one rule as Markdown, without links to other pages; "" where there is none."""
    return _sections().get(code, "")


@cache
def _sections() -> dict[str, str]:
    found = re.findall(r"^## ((TK\d{3}) [^\n]*\n.*?)(?=^## |\Z)", _text(), re.MULTILINE | re.DOTALL)
    return {code: "## " + LINK.sub(r"\1", page).strip() + "\n" for page, code in found}


def _text() -> str:
    packaged = files("tracekit") / "reference" / "rules.md"
    if packaged.is_file():
        return packaged.read_text("utf-8")
    # In a checkout the page is where it is written.
    return (Path(__file__).resolve().parents[2] / "docs" / "reference" / "rules.md").read_text("utf-8")
