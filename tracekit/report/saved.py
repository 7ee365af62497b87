"""Reads back what ``tracekit analyze --json`` wrote: small files that a project can keep instead of captures."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from tracekit.config import Thresholds
from tracekit.errors import CaptureError
from tracekit.report.json import SCHEMA_VERSION
from tracekit.report.words import clean
from tracekit.results import (
    Account,
    Analysis,
    Capture,
    Collective,
    Efficiency,
    Finding,
    LeftOut,
    Rank,
    Sharding,
    SkippedRule,
    Steady,
    Straggler,
    Volume,
)

LARGEST_FILE = 256 << 20
"""Bytes; a job of a thousand ranks and fifty steps needs about 100 MB."""
LARGEST_INTEGER = 2**63
SECTIONS = ("captures", "ranks", "steady", "collectives", "findings")
"""What every document of ``tracekit analyze`` has."""


def is_saved(path: Path) -> bool:
    """Whether a file looks like JSON rather than like a capture."""
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
    except OSError:
        return False


def read_saved(path: Path) -> Analysis:
    """The analysis in a file, as far as runs are compared by it: no replay, hang, remedies or host ranks.

    Raises `CaptureError` for a file that cannot be read, is not ours, of another schema version, or damaged.
    """
    document = _document(path)
    if not isinstance(document, dict) or "schema_version" not in document or not all(s in document for s in SECTIONS):
        raise CaptureError(
            f"{path}: JSON, but not of tracekit analyze", hint="Write one with: tracekit analyze CAPTURE... --json FILE"
        )
    if document["schema_version"] != SCHEMA_VERSION:
        version = clean(str(document["schema_version"]), 20)
        raise CaptureError(
            f"{path}: schema version {version}; this tracekit reads version {SCHEMA_VERSION}",
            hint="Analyze the captures again with this version, or compare with the version that wrote it.",
        )
    try:
        analysis = _analysis(document)
    except _WrongError as wrong:
        raise CaptureError(
            f"{path}: {clean(str(wrong), 200)}", hint="The file is damaged or was edited: write it anew."
        ) from None
    if not analysis.ranks:
        raise CaptureError(f"{path}: holds no GPU work", hint="Analyze captures of the job's GPUs.")
    return analysis


class _WrongError(Exception):
    """Where a document is not what it should be."""


def _document(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CaptureError(f"{path}: larger than {LARGEST_FILE >> 20} MiB", hint="Compare the captures instead.")
        return json.loads(path.read_bytes(), parse_constant=_no_constant)
    except OSError as error:
        raise CaptureError(
            f"{path}: {error.strerror}", hint="Check the path and your permission to read it."
        ) from error
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else "no valid JSON"
        raise CaptureError(f"{path}: damaged JSON: {said}", hint="Write it anew: tracekit analyze --json.") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _analysis(document: Mapping[str, Any]) -> Analysis:
    captures = [_without(row, "auxiliary") | {"auxiliary": []} for row in _objects(document, "captures")]
    home = {rank: i for i, row in enumerate(captures) for rank in _of(row, "ranks", tuple[int, ...])}
    ranks = [row | {"capture": home.get(_of(row, "rank", int), 0)} for row in _objects(document, "ranks")]
    sharding, efficiency = document.get("sharding"), document.get("efficiency")
    return Analysis(
        captures=_of({"captures": captures}, "captures", tuple[Capture, ...]),
        ranks=_of({"ranks": ranks}, "ranks", tuple[Rank, ...]),
        steady=_of(document, "steady", Steady | None),
        collectives=_of(document, "collectives", tuple[Collective, ...]),
        stragglers=_of(document, "stragglers", tuple[Straggler, ...]),
        findings=_of(document, "findings", tuple[Finding, ...]),
        skipped_rules=_of(document, "skipped_rules", tuple[SkippedRule, ...]),
        world_size=_of(document, "world_size", int | None),
        not_captured=_of(document, "not_captured", tuple[int, ...]),
        sharding=_sharding(sharding) if sharding is not None else None,
        efficiency=_decoded(efficiency, Efficiency, "efficiency") if efficiency is not None else None,
        thresholds=_decoded(document.get("thresholds", {}), Thresholds, "thresholds"),
        left_out=_of({"left_out": document.get("left_out", [])}, "left_out", tuple[LeftOut, ...]),
    )


def _sharding(row: Any) -> Sharding:
    moved = _of(row, "bytes_per_step", dict[str, int | None])
    expected = _of(row, "expected_bytes_per_step", dict[str, int] | None) or {}
    why = _of(row, "explanations", dict[str, str])
    volumes = [
        Volume(op=op, bytes=moved.get(op), expected_bytes=expected.get(op), explanation=why.get(op))
        for op in dict.fromkeys([*moved, *expected])
    ]
    found: Sharding = _decoded(row | {"volumes": []}, Sharding, "sharding")
    return Sharding(**{f.name: getattr(found, f.name) for f in fields(Sharding)} | {"volumes": tuple(volumes)})


def _objects(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = document[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _WrongError(f"{key} is no list of objects")
    return rows


def _without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _of(row: Any, key: str, kind: Any) -> Any:
    if not isinstance(row, dict) or key not in row:
        raise _WrongError(f"{key} is missing")
    return _decoded(row[key], kind, key)


@cache
def _shape(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """(name, type, whether it may be missing) of the fields of one of the result types."""
    hints = get_type_hints(kind)
    return tuple(
        (f.name, hints[f.name], f.default is not MISSING or f.default_factory is not MISSING) for f in fields(kind)
    )


def _decoded(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``: a result type, or a tuple, dict or union of such and of plain values."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        inner = [k for k in get_args(kind) if k is not type(None)]
        return _decoded(value, inner[0], where) if len(inner) == 1 else _plain(value, tuple(inner), where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _WrongError(f"{where} is no list")
        return tuple(_decoded(item, get_args(kind)[0], f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise _WrongError(f"{where} is no object")
        return {key: _decoded(item, get_args(kind)[1], f"{where}.{key}") for key, item in value.items()}
    return (
        _object(value, kind, where) if isinstance(kind, type) and is_dataclass(kind) else _plain(value, (kind,), where)
    )


def _object(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, dict):
        raise _WrongError(f"{where} is no object")
    found = {}
    for name, inner, optional in _shape(kind):
        if inner is Account and name == "account":  # its fields stand in the object that it is of
            found[name] = _object(value, Account, where)
        elif name in value:
            found[name] = _decoded(value[name], inner, f"{where}.{name}")
        elif not optional:
            raise _WrongError(f"{where}.{name} is missing")
    return kind(**found)


def _plain(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    """A number, text, truth value or name of an enumeration; a whole number is a float where that is wanted."""
    if issubclass(kinds[0], Enum):
        if value not in [str(member.value) for member in kinds[0]]:
            raise _WrongError(f"{where} is {clean(repr(value), 40)}")
        return kinds[0](value)
    fine = type(value) in kinds or (type(value) is int and float in kinds)
    if not fine or (isinstance(value, int | float) and (not math.isfinite(value) or abs(value) >= LARGEST_INTEGER)):
        raise _WrongError(f"{where} is {clean(repr(value), 40)}")
    return value
