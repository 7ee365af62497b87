"""A capture's SQLite file, opened so that nothing about it changes, and read column by column.

The file is untrusted. It is opened read-only; nothing is created beside it, and a file that another process left with a
write-ahead log or a journal is copied to a temporary folder first and read there.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray

from tracekit.errors import CaptureError

MAGIC = b"SQLite format 3\x00"
UTF_16 = (b"\x00\x00\x00\x02", b"\x00\x00\x00\x03")
"""What bytes 56 to 59 of the header say where text is not UTF-8."""
ROWS_A_TASK = 250_000
"""Rows that one read task covers: enough to amortise opening the file, few enough to share among cores."""
ROWS_A_BATCH = 65_536

Progress = Callable[[int, int], None]
"""Called with (rows done, rows expected)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read: an SQL expression over the table's own columns, and what stands for NULL.

    ``sources`` are tried as one ``coalesce``; those the table lacks are left out. Without any of them the column is
    ``fill`` throughout.
    """

    name: str
    sources: tuple[str, ...]
    fill: int | bytes = 0
    product: bool = False
    """Multiply the sources instead of taking the first that is not NULL."""

    @property
    def is_bytes(self) -> bool:
        """Whether the column holds text (read as bytes, for text may be invalid UTF-8) rather than integers."""
        return isinstance(self.fill, bytes)


def integers(*names: str, fill: int = 0) -> tuple[Column, ...]:
    """Columns of integers called as the table calls them."""
    return tuple(Column(name, (name,), fill) for name in names)


class Database:
    """An open capture. Use `open_database`; safe to read from several threads."""

    def __init__(self, path: Path, uri: str) -> None:
        self.path = path
        self._uri = uri
        self._unnumbered: set[str] = set()
        self._tables = self._discover()

    def _discover(self) -> dict[str, tuple[str, ...]]:
        engine = sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(self._uri, uri=True, timeout=1), poolclass=sa.NullPool
        )
        try:
            with engine.connect() as connection:
                # A name may be invalid UTF-8, as anything else in here.
                connection.connection.driver_connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # type: ignore[union-attr]
                self._unnumbered |= {name for (name,) in connection.execute(_UNNUMBERED)}
                inspector = sa.inspect(connection)
                views = inspector.get_view_names()
                tables = {}
                for table in [*inspector.get_table_names(), *views]:
                    # In a damaged schema a name can be anything.
                    if not isinstance(table, str) or table.startswith(("ENUM_", "sqlite_")):
                        continue
                    # Passed over: a view of what is gone, and what has a name that is not UTF-8.
                    with suppress(sa.exc.OperationalError if table in views else sa.exc.NoSuchTableError):
                        tables[table] = tuple(column["name"] for column in inspector.get_columns(table))
                    if "rowid" in map(str.lower, tables.get(table, ())):
                        self._unnumbered.add(table)
                return tables
        except (sa.exc.SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            raise self._explained(getattr(error, "orig", None) or error) from error
        finally:
            engine.dispose()

    def __contains__(self, table: str) -> bool:
        return table in self._tables

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Columns by table, ENUM tables left out."""
        return self._tables

    def rows_at_most(self, table: str) -> int:
        """An upper bound of the number of rows, without reading them; 0 if the table is missing or empty."""
        if table not in self._tables:
            return 0
        if table in self._unnumbered:
            query: sa.Select[Any] = sa.select(sa.func.count()).select_from(sa.table(table))
            return int(self.rows(str(query.compile(dialect=_DIALECT)))[0][0])
        low, high = self._row_ids(table)
        return high - low + 1

    def _row_ids(self, table: str) -> tuple[int, int]:
        # Two queries: SQLite answers min or max alone from the tree's edge, both together by a scan.
        bounds = []
        for function in (sa.func.min, sa.func.max):
            query: sa.Select[Any] = sa.select(function(sa.literal_column("rowid"))).select_from(sa.table(table))
            bounds.append(self.rows(str(query.compile(dialect=_DIALECT)))[0][0])
        return (0, -1) if bounds[0] is None else (int(bounds[0]), int(bounds[1]))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a small query. Text comes as str; what the file holds as a blob instead, as bytes."""
        try:
            connection = sqlite3.connect(self._uri, uri=True, timeout=1)
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._explained(error) from error

    def small(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of a small table, as Python values, NULL for columns that it lacks; [] if it is missing."""
        if table not in self._tables:
            return []
        have = self._tables[table]
        query = sa.select(
            *(sa.column(name) if name in have else sa.null().label(name) for name in columns)
        ).select_from(sa.table(table))
        return self.rows(str(query.compile(dialect=_DIALECT)))

    def latest(self, table: str, group: str, order: str, *columns: str) -> list[tuple[Any, ...]]:
        """(group, order, columns) of the row with the largest ``order`` of each group; [] where a column is missing."""
        if not {group, order, *columns} <= set(self._tables.get(table, ())):
            return []
        # SQLite takes the other columns from the row that has the largest value.
        latest: sa.ColumnElement[Any] = sa.func.max(sa.column(order)).label("latest")
        query: sa.Select[Any] = (
            sa.select(sa.column(group), latest, *map(sa.column, columns))
            .select_from(sa.table(table))
            .group_by(sa.column(group))
        )
        return self.rows(str(query.compile(dialect=_DIALECT)))

    def longest(
        self, table: str, start: str, end: str, at_least: int, limit: int, *columns: str
    ) -> list[tuple[Any, ...]]:
        """(start, end, columns) of the rows that last so long, longest first; [] where a column is missing."""
        if not {start, end, *columns} <= set(self._tables.get(table, ())):
            return []
        lasted: sa.ColumnElement[int] = sa.column(end, sa.BigInteger) - sa.column(start, sa.BigInteger)
        wanted: list[sa.ColumnClause[Any]] = [sa.column(name) for name in (start, end, *columns)]
        query = (
            sa.select(*wanted)
            .select_from(sa.table(table))
            .where(lasted >= at_least)
            .order_by(lasted.desc(), sa.column(start))
            .limit(limit)
        )
        return self.rows(str(query.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})))

    def read(self, table: str, columns: Sequence[Column], progress: Progress | None = None) -> dict[str, Any]:
        """Read whole columns: int64 arrays, or `pyarrow.BinaryArray` for text. Rows are in no particular order.

        All columns have the same length; it is 0 if the table is missing.
        Raises `CaptureError` when a value is not of the column's kind, or the file is damaged.
        """
        count = self.rows_at_most(table)
        if count <= 0:
            return {c.name: pa.nulls(0, pa.binary()) if c.is_bytes else np.empty(0, np.int64) for c in columns}
        statements = [self._statement(table, columns, span) for span in self._spans(table, count)]
        workers = min(len(statements), os.cpu_count() or 1, 16)
        with ThreadPoolExecutor(workers) as pool:
            parts: list[dict[str, list[Any]]] = []
            for part in pool.map(lambda sql: self._fetch(table, sql, columns), statements):
                parts.append(part)
                if progress:
                    progress(count * len(parts) // len(statements), count)
        return {
            c.name: pa.concat_arrays([piece for part in parts for piece in part.pop(c.name)])
            if c.is_bytes
            else np.concatenate([piece for part in parts for piece in part.pop(c.name)])
            for c in columns
        }

    def _spans(self, table: str, count: int) -> list[tuple[int, int] | None]:
        """(first, last) row id of each piece to read a table in; None for all of a table whose rows have no id."""
        if table in self._unnumbered:
            return [None]
        low, _ = self._row_ids(table)
        pieces = max(1, min(-(-count // ROWS_A_TASK), 256))
        edges = [low + count * i // pieces for i in range(pieces + 1)]
        return [(edges[i], edges[i + 1] - 1) for i in range(pieces)]

    def _statement(self, table: str, columns: Sequence[Column], span: tuple[int, int] | None) -> str:
        have = self._tables[table]
        picked: list[sa.ColumnElement[Any]] = []
        for column in columns:
            terms: list[sa.ColumnElement[Any]] = [sa.column(name) for name in column.sources if name in have]
            if column.is_bytes:
                terms = [sa.cast(term, sa.LargeBinary) for term in terms]
            filler: sa.ColumnElement[Any] = (
                sa.literal_column("x''") if column.is_bytes else sa.literal_column(str(column.fill))
            )
            if column.product and len(terms) == len(column.sources):
                terms = [math.prod(terms[1:], start=terms[0])]
            # Text always gets its filler here: a first batch of NULLs would make the driver expect integers.
            if column.is_bytes or len(terms) != 1:
                terms = [*terms, filler]
            picked.append((sa.func.coalesce(*terms) if len(terms) > 1 else terms[0]).label(column.name))
        query = sa.select(*picked).select_from(sa.table(table))
        if span is not None:
            query = query.where(sa.literal_column("rowid").between(*span))
        return str(query.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True}))

    def _fetch(self, table: str, sql: str, columns: Sequence[Column]) -> dict[str, list[Any]]:
        try:
            with (
                adbc_driver_sqlite.connect(self._uri) as database,
                adbc_driver_manager.AdbcConnection(database) as connection,
                adbc_driver_manager.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(ROWS_A_BATCH)})
                statement.set_sql_query(sql)
                stream, _ = statement.execute_query()
                arrow = pa.RecordBatchReader.from_stream(stream).read_all()
        # Of what is wrong after the first batch, Arrow makes an OSError.
        except (adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._explained(error, table) from error
        return {c.name: self._column(table, c, arrow.column(c.name)) for c in columns}

    def _column(self, table: str, column: Column, values: pa.ChunkedArray) -> list[Any]:
        """The pieces of a column as the driver gave them: they are joined once, with those of all tasks."""
        if column.is_bytes:
            # Of no rows the driver cannot tell the type.
            return [chunk.cast(pa.binary()) for chunk in values.chunks if len(chunk)] or [pa.nulls(0, pa.binary())]
        if not pa.types.is_integer(values.type) and not pa.types.is_null(values.type):
            kind = "fractional or too large numbers" if pa.types.is_floating(values.type) else "text"
            raise CaptureError(
                f"{self.path}: column {column.sources[0]} of {table} holds {kind} where whole numbers belong",
                hint=_EXPORT_AGAIN,
            )
        return [as_numpy(chunk, int(column.fill)) for chunk in values.chunks] or [np.empty(0, np.int64)]

    def _explained(self, error: BaseException, table: str | None = None) -> CaptureError:
        # SQLite's message quotes damaged names, which Python then cannot decode.
        said = error.object.decode("utf-8", "replace") if isinstance(error, UnicodeDecodeError) else str(error)
        text = " ".join(said.split())
        lower = text.lower()
        where, of_table = (f" (table {table})", f" of {table}") if table else ("", "")
        if "locked" in lower or "busy" in lower:
            return CaptureError(
                f"{self.path}: the file is locked by another process",
                hint="Wait until the export has finished, or copy the file and analyze the copy.",
            )
        if "malformed" in lower or "not a database" in lower or "corrupt" in lower or "disk i/o" in lower:
            return CaptureError(f"{self.path}: the SQLite file is damaged or truncated{where}", hint=_EXPORT_AGAIN)
        if "type" in lower or "overflow" in lower or "expected" in lower:
            return CaptureError(
                f"{self.path}: a column{of_table} holds text or fractions where whole numbers belong",
                hint=_EXPORT_AGAIN,
            )
        return CaptureError(f"{self.path}: SQLite cannot read the file{where}: {text[:200]}", hint=_EXPORT_AGAIN)


def as_numpy(array: pa.Array, fill: int = 0) -> NDArray[np.int64]:
    """Whole numbers, ``fill`` where NULL. Arrow's own ways import pandas, which takes longer than a small capture."""
    whole = array.cast(pa.int64())
    if len(whole) == 0:
        return np.empty(0, np.int64)
    validity, values = whole.buffers()
    numbers = np.frombuffer(values, np.int64, len(whole), 8 * whole.offset)
    if whole.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        numbers = np.where(bits[whole.offset : whole.offset + len(whole)], numbers, fill)
    return numbers


def as_arrow(numbers: NDArray[np.int64]) -> pa.Array:
    """The way back, for the same reason."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )


_EXPORT_AGAIN = "Export the report again: nsys export --type sqlite --include-blobs=true -o NEW.sqlite REPORT.nsys-rep"
_DIALECT = sa.create_engine("sqlite://").dialect
_UNNUMBERED = sa.text("SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE '%WITHOUT%ROWID%'")
"""Views and tables whose rows have no id to count by."""


def as_text(value: object) -> str | None:
    """A value of `Database.small` as text, whatever the file holds there; None for NULL."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a capture's SQLite file read-only, without creating anything beside it.

    Raises `CaptureError` when the file cannot be read or is not SQLite.
    """
    header = read_header(path)
    if header[: len(MAGIC)] != MAGIC:
        what = "an empty file" if not header else "not an SQLite file"
        raise CaptureError(
            f"{path}: {what}",
            hint="Give an nsys SQLite export (nsys export --type sqlite REPORT.nsys-rep) or the .nsys-rep itself.",
        )
    if header[56:60] in UTF_16:
        raise CaptureError(f"{path}: its text is stored as UTF-16, which nsys does not write", hint=_EXPORT_AGAIN)
    # SQLite keeps its logs beside the file itself, not beside a link to it.
    real = path.resolve()
    unfinished = [log for suffix in ("-wal", "-journal") if _has_bytes(log := real.with_name(real.name + suffix))]
    if not unfinished:
        # Bytes 18 and 19 say whether the file is in write-ahead mode; opening such a file creates two files beside it
        # unless it is declared immutable. Other files are opened plainly, so that a writer's lock is noticed.
        immutable = len(header) > 19 and header[18:20] == b"\x02\x02"
        yield Database(path, _uri(path, "mode=ro&immutable=1" if immutable else "mode=ro"))
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        try:
            for source in (real, *unfinished):
                shutil.copyfile(source, Path(folder) / source.name)
        except OSError as error:
            raise CaptureError(
                f"{path}: cannot copy it and its write-ahead log to {folder}: {error.strerror}",
                hint="Set TMPDIR to a folder with room, or close the program that has the capture open.",
            ) from error
        yield Database(path, _uri(Path(folder) / real.name, "mode=rw"))


def read_header(path: Path) -> bytes:
    """The first 100 bytes of a file (fewer if it is shorter). Raises `CaptureError` when it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CaptureError(f"{path}: neither a file nor a folder", hint="Write the capture to a file first.")
        with path.open("rb") as file:
            return file.read(100)
    except OSError as error:
        hint = "Ask for read permission on it." if isinstance(error, PermissionError) else "Check the path."
        raise CaptureError(f"{path}: {error.strerror}", hint=hint) from error


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _uri(path: Path, query: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?{query}"
