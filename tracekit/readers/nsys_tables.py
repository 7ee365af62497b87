"""Ground that the parts of the nsys reader share: reading a table, resolving strings, splitting by process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.errors import CaptureError
from tracekit.readers.database import Column, Database, Progress, as_arrow
from tracekit.readers.raw import Names
from tracekit.timeline import NO_VALUE, NONE

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Columns = dict[str, Any]
"""Columns of one table by name, all of one length: arrays, or `pyarrow.BinaryArray` for text."""

NULL = NO_VALUE
"""Stands for NULL in integer columns where 0 and -1 are values."""
PID_MASK = ~0xFFFFFF
"""A globalTid without its thread bits is the process's globalPid."""
TIME_LIMIT = 1 << 61
"""Times beyond ±2^61 ns (73 years) are damage: the difference of two such times, on shifted clocks, would overflow."""
DENSE = 1 << 26
"""Ids below this are resolved through a table rather than by sorting."""


class Tables:
    """One capture being read: its database, its strings, and what had to be passed over."""

    def __init__(self, db: Database, names: Names, path: str, progressing: Callable[[str], Progress | None]) -> None:
        self.db = db
        self.names = names
        self.path = path
        self.notes: list[str] = []
        self._progressing = progressing
        self._strings: tuple[Int64, pa.BinaryArray] | None = None

    def read(self, table: str, columns: Sequence[Column], what: str | None = None) -> Columns:
        """Read a table; ``what`` names it on the progress bar."""
        return self.db.read(table, columns, self._progressing(what) if what and table in self.db else None)

    def note(self, count: int, text: str) -> None:
        """Remember that rows were passed over, if any were."""
        if count:
            self.notes.append(f"{count:,} {text}")

    def strings(self, ids: Int64, transform: Callable[[str], str] | None = None) -> Int32:
        """Indices of names for ids of StringIds; NONE where the id is NULL or unknown."""
        if len(ids) == 0:
            return np.empty(0, np.int32)
        distinct, inverse = distinct_values(ids)
        codes = np.full(len(distinct), NONE, np.int32)
        known, values = self._string_table()
        at = np.searchsorted(known, distinct)
        at[at == len(known)] = 0
        hit = np.flatnonzero(known[at] == distinct) if len(known) else np.empty(0, np.int64)
        codes[hit] = self.texts(values.take(as_arrow(at[hit])), transform)
        return codes[inverse]

    def texts(self, values: pa.BinaryArray, transform: Callable[[str], str] | None = None) -> Int32:
        """Indices of names for raw texts, which may be invalid UTF-8."""
        decoded = (value.decode("utf-8", "replace") for value in values.to_pylist())
        return np.array(self.names.add_all(map(transform, decoded) if transform else decoded), np.int32)

    def _string_table(self) -> tuple[Int64, pa.BinaryArray]:
        if self._strings is None:
            table = self.read("StringIds", (Column("id", ("id",), NULL), Column("value", ("value",), b"")), "strings")
            ids, values = table["id"], table["value"]
            if np.any(ids[1:] <= ids[:-1]):
                order = np.argsort(ids, kind="stable")
                ids, values = ids[order], values.take(as_arrow(order))
            self._strings = ids, values
        return self._strings

    def finished(self, table: str, columns: Columns, what: str) -> Columns:
        """The rows with a start and an end; the others never finished in the capture and are noted as ``what``.

        Raises `CaptureError` for times that cannot be true.
        """
        whole = (columns["start"] != NULL) & (columns["end"] != NULL)
        lost = len(whole) - int(np.count_nonzero(whole))
        if lost:
            self.note(lost, f"{what} have no start or end and are left out")
            columns = {name: column[whole] for name, column in columns.items()}
        self.check_times(table, columns["start"], columns["end"])
        return columns

    def check_times(self, table: str, start: Int64, end: Int64) -> None:
        """Refuse times that cannot be true: `CaptureError` naming the table and how many rows."""
        if len(start) == 0:
            return
        if min(start.min(), end.min()) < -TIME_LIMIT or max(start.max(), end.max()) > TIME_LIMIT:
            raise CaptureError(
                f"{self.path}: {table} holds times beyond what 64 bits of nanoseconds can add up",
                hint="The export is damaged: export the report again.",
            )
        backwards = int(np.count_nonzero(end < start))
        if backwards:
            raise CaptureError(
                f"{self.path}: {backwards:,} of {len(start):,} rows of {table} end before they start",
                hint="The export is damaged: export the report again.",
            )


def distinct_values(values: Int64) -> tuple[Int64, Int64]:
    """(sorted distinct values, index of each value among them), as `numpy.unique`, but O(n) for small values."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= DENSE:
        if low == high:
            return values[:1], np.zeros(len(values), np.int64)
        distinct, inverse = np.unique(values, return_inverse=True)
        return distinct, inverse
    present = np.zeros(high + 1, np.bool_)
    present[values] = True
    distinct = np.flatnonzero(present)
    index = np.zeros(high + 1, np.int64)
    index[distinct] = np.arange(len(distinct))
    return distinct, index[values]


def rows_by_value(values: Int64, wanted: Int64) -> list[NDArray[np.intp]]:
    """For each wanted value, the rows that hold it, in their order."""
    if len(wanted) == 1 and len(values) and values[0] == wanted[0] and np.all(values == wanted[0]):
        return [np.arange(len(values))]
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    low, high = np.searchsorted(ordered, wanted, side="left"), np.searchsorted(ordered, wanted, side="right")
    return [order[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def take(columns: Columns, rows: NDArray[np.intp]) -> Columns:
    """The given rows of all columns; the columns themselves where those are all rows in order."""
    picked = all_or(rows, len(next(iter(columns.values()))) if columns else 0)
    return {name: column[picked] for name, column in columns.items()}


def all_or(rows: NDArray[np.intp], n: int) -> NDArray[np.intp] | slice:
    """The rows, or a slice where those are all ``n`` rows in order: picking by a slice copies nothing."""
    every = len(rows) == n and n > 0 and rows[0] == 0 and bool(np.all(rows[1:] == rows[:-1] + 1))
    return slice(None) if every else rows


def sorted_rows(start: Int64, tie: Int64) -> NDArray[np.intp] | None:
    """The order by (start, tie), or None where the rows are in it already."""
    later = start[1:] > start[:-1]
    if np.all(later | ((start[1:] == start[:-1]) & (tie[1:] >= tie[:-1]))):
        return None
    return np.lexsort((tie, start))


class RowIndex:
    """Finds the row of a key among unique keys, for many at once."""

    def __init__(self, keys: Int64) -> None:
        self._low = int(keys.min()) if len(keys) else 0
        span = int(keys.max()) - self._low + 1 if len(keys) else 0
        self._dense = span <= max(8 * len(keys), 1 << 20)
        if self._dense:
            self._rows = np.full(span + 1, NONE, np.int32)  # the last entry answers keys out of range
            # Written backwards: where a key occurs twice, the first row stands.
            self._rows[keys[::-1] - self._low] = np.arange(len(keys), dtype=np.int32)[::-1]
        else:
            self._order = np.argsort(keys, kind="stable")
            self._keys = keys[self._order]

    def find(self, keys: Int64) -> Int32:
        """Row of each key, or NONE."""
        if self._dense:
            at = keys - self._low
            at[(at < 0) | (at >= len(self._rows) - 1)] = len(self._rows) - 1
            return self._rows[at]
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._order[at], NONE).astype(np.int32)
