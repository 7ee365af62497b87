"""Settings of a project: the table ``[tool.tracekit]`` of the nearest ``pyproject.toml``.

::

    [tool.tracekit]
    select = ["TK1", "TK201"]       # codes, or beginnings of codes
    ignore = ["TK904"]
    fail-on = "warning"
    comm-kernels = ["my_exchange=all_to_all"]   # PATTERN[=op]: kernels that communicate
    compute-kernels = ["a2a_layout"]            # and kernels that do not

    [tool.tracekit.thresholds]
    wait_share = 0.03               # names and defaults: docs/reference/settings.md

An option on the command line counts before it, and it before the default.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tracekit.config import DEFAULT, Thresholds
from tracekit.errors import UsageError

SEVERITIES = ("info", "warning", "error")
KEYS = ("select", "ignore", "fail-on", "comm-kernels", "compute-kernels", "thresholds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a project has set."""

    select: tuple[str, ...] = ()
    """Codes, or beginnings of codes, of the rules to report; () for all."""
    ignore: tuple[str, ...] = ()
    fail_on: str | None = None
    comm_kernels: tuple[str, ...] = ()
    """``PATTERN[=op]`` of kernels that communicate, whatever their names tell."""
    compute_kernels: tuple[str, ...] = ()
    thresholds: Thresholds = DEFAULT


def find_settings(folder: Path) -> Settings:
    """The settings of the nearest ``pyproject.toml`` from ``folder`` upwards that has some; else the defaults.

    Raises `UsageError` for a table that holds something else than it may.
    """
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        try:
            table = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("tracekit")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError):
            continue  # not there, or broken: its own tools will say so
        if table is not None:
            return _settings(path, table)
    return Settings()


def _settings(path: Path, table: object) -> Settings:
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: tool.tracekit is no table", hint="Write [tool.tracekit] on a line of its own.")
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{path}: tool.tracekit has no setting {key!r}", hint=_nearest(key, KEYS))
    fail_on = table.get("fail-on")
    if fail_on is not None and fail_on not in SEVERITIES:
        raise UsageError(f"{path}: fail-on is {fail_on!r}", hint=f"It is one of {', '.join(SEVERITIES)}.")
    thresholds = table.get("thresholds", {})
    if not isinstance(thresholds, Mapping):
        raise UsageError(f"{path}: thresholds is no table", hint="Write [tool.tracekit.thresholds].")
    return Settings(
        select=_texts(path, table, "select", "codes", '["TK1", "TK201"]'),
        ignore=_texts(path, table, "ignore", "codes", '["TK1", "TK201"]'),
        fail_on=fail_on,
        comm_kernels=_texts(path, table, "comm-kernels", "patterns", '["my_exchange=all_to_all"]'),
        compute_kernels=_texts(path, table, "compute-kernels", "patterns", '["a2a_layout"]'),
        thresholds=with_thresholds(DEFAULT, thresholds, str(path)),
    )


def _texts(path: Path, table: Mapping[str, Any], key: str, what: str, example: str) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path}: {key} is no list of {what}", hint=f"Write it like {key} = {example}.")
    return tuple(texts)


def with_thresholds(base: Thresholds, given: Mapping[str, object], where: str) -> Thresholds:
    """``base`` with the thresholds that are given by name; ``where`` they come from is for messages.

    Raises `UsageError` for an unknown name, with the nearest ones, and for a value that is no number from 0 on.
    """
    known = {f.name: f for f in fields(Thresholds)}
    changed: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{where}: there is no threshold {name!r}", hint=_nearest(name, known))
        whole = isinstance(getattr(base, name), int)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise UsageError(f"{where}: the threshold {name} is {value!r}", hint="Give a number from 0 on.")
        if whole and value != int(value):
            raise UsageError(f"{where}: the threshold {name} is {value!r}", hint="Give a whole number.")
        changed[name] = int(value) if whole else float(value)
    return replace(base, **changed)


def _nearest(name: object, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.4) or sorted(known)[:8]
    return f"Did you mean {', '.join(near)}?"
