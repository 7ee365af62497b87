"""Scripts and styles as they go into the page: without comments and needless spaces. Names stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)"""
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<regex>(?<=[(,=:!&|?;\[{}])\s*/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*)"
    r"|(?P<word>[\w$.]+)|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_OPENS, _CLOSES = frozenset("{([,;:?=&|<>*%^"), frozenset("}),;:]?=&|<>*%^")
"""Beside these, a line end means nothing; elsewhere it may end a statement."""


def script(text: str) -> str:
    """Return JavaScript without comments and needless spaces; strings, templates and regular expressions stay whole.

    A slash after one of ``( , = : ! & | ? ; [ { }`` begins a regular expression; nowhere else.
    """
    made: list[str] = []
    gap = ""
    for token in _tokens(text):
        if token.isspace():
            gap = "\n" if "\n" in gap + token else " "
            continue
        if gap and made:
            made.append(_needed(made[-1][-1], token[0], gap))
        made.append(token)
        gap = ""
    return "".join(made)


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "comment":
            yield "\n" if "\n" in match.group() else " "
        elif match.lastgroup == "regex":
            yield match.group().lstrip()
        else:
            yield match.group()


def _needed(before: str, after: str, gap: str) -> str:
    """What must stay of a gap between two characters."""
    if gap == "\n":
        return "" if before in _OPENS or after in _CLOSES else "\n"
    words = (before.isalnum() or before in "_$") and (after.isalnum() or after in "_$")
    return " " if words or (before == after and before in "+-") else ""


def style(text: str) -> str:
    """Return a style sheet without comments, line ends, and spaces beside its punctuation."""
    flat = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)).strip()
    return re.sub(r"(?<=[:;,{}]) | (?=[{}])|;(?= ?})", "", flat)
