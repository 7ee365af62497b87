"""The SQLite layer: that it reads what is there, and that reading leaves no trace."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsys_builder import JOB_TOTALS, KERNEL, PID, global_pid, small_job

import tracekit
from tracekit.errors import CaptureError
from tracekit.readers.database import Column, integers, open_database

LATE_ROWS = 100_000
WALL_NS = JOB_TOTALS["wall_ns"]
EXTRA_KERNEL = f"INSERT INTO {KERNEL} (start, end, deviceId, streamId, globalPid, demangledName) VALUES"


def wall_ns(path: Path) -> int:
    return tracekit.analyze(tracekit.open(path)).ranks[0].totals.wall_ns


def change(path: Path, *statements: str) -> Path:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def with_many_rows(folder: Path) -> Path:
    """A capture whose kernels fill more than one batch of rows."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {LATE_ROWS + 5000})"
    rows = f"SELECT 30000 + 10 * i, 30005 + 10 * i, 0, 7, {global_pid(PID)}, 1 FROM n"
    path = small_job().write(folder / "many.sqlite")
    return change(path, f"{numbers} {EXTRA_KERNEL.removesuffix('VALUES')} {rows}")


# --- rows and values ---


@pytest.mark.parametrize("row", [3, LATE_ROWS])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("'zero'", "holds text"),
        ("x'00ff'", "holds text"),
        ("0.5", "fraction"),
        ("9223372036854775808", "too large|fraction"),
        ("-1e300", "too large|fraction"),
    ],
)
def test_a_value_that_is_no_integer_is_named_wherever_it_stands(
    row: int, value: str, said: str, tmp_path: Path
) -> None:
    path = with_many_rows(tmp_path) if row == LATE_ROWS else small_job().write(tmp_path / "report.sqlite")
    change(path, f"UPDATE {KERNEL} SET end = {value} WHERE rowid = {row}")
    with pytest.raises(CaptureError, match=f"{KERNEL}.*({said})") as caught:
        tracekit.open(path)
    assert "nsys export" in str(caught.value.hint)


def test_a_first_batch_of_nulls_says_nothing_of_the_rest(tmp_path: Path) -> None:
    path = change(with_many_rows(tmp_path), f"UPDATE {KERNEL} SET deviceId = NULL WHERE rowid < 90000")
    change(path, f"UPDATE {KERNEL} SET deviceId = 3 WHERE rowid >= 90000")
    ranks = tracekit.open(path).ranks
    assert {rank.device: len(rank.ops) for rank in ranks} == {0: 89_999 + 3, 3: LATE_ROWS + 5001 + 6 - 89_999}


@pytest.mark.parametrize(
    "moves",
    [
        ["rowid = rowid * 1000000000000"],
        ["rowid = 9223372036854775807 WHERE rowid = 2", "rowid = -9223372036854775808 WHERE rowid = 1"],
        ["rowid = -rowid"],
    ],
)
def test_row_ids_may_be_far_apart(moves: list[str], tmp_path: Path) -> None:
    path = small_job().write(tmp_path / "report.sqlite")
    change(path, *(f"UPDATE {KERNEL} SET {move}" for move in moves))
    assert wall_ns(path) == WALL_NS


def test_a_view_is_as_good_as_a_table(tmp_path: Path) -> None:
    path = small_job().write(tmp_path / "report.sqlite")
    change(path, f"ALTER TABLE {KERNEL} RENAME TO kept", f"CREATE VIEW {KERNEL} AS SELECT * FROM kept")
    assert wall_ns(path) == WALL_NS


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW broken AS SELECT * FROM nowhere",
        f"ALTER TABLE {KERNEL} ADD COLUMN rowid TEXT",
        f"ALTER TABLE {KERNEL} ADD COLUMN ROWID INTEGER DEFAULT 7",
        f"ALTER TABLE {KERNEL} ADD COLUMN made INTEGER GENERATED ALWAYS AS (start + 1) VIRTUAL",
        'CREATE TABLE "odd ""name""; DROP" ("a""b", c FOO, d VARCHAR(30), e)',
        "CREATE INDEX by_start ON StringIds (value)",
    ],
)
def test_what_else_is_in_the_file_does_not_matter(statement: str, tmp_path: Path) -> None:
    assert wall_ns(change(small_job().write(tmp_path / "report.sqlite"), statement)) == WALL_NS


def test_names_in_the_schema_may_be_invalid_utf8(tmp_path: Path) -> None:
    path = change(small_job().write(tmp_path / "report.sqlite"), "CREATE TABLE tabXle (colXumn)")
    path.write_bytes(path.read_bytes().replace(b"tabXle", b"tab\xffle").replace(b"colXumn", b"col\xffumn"))
    assert wall_ns(path) == WALL_NS


def test_names_in_the_schema_may_be_no_text_at_all(tmp_path: Path) -> None:
    path = change(
        small_job().write(tmp_path / "report.sqlite"),
        "CREATE TABLE odd (a)",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET name = CAST(name AS BLOB), tbl_name = CAST(name AS BLOB) WHERE name = 'odd'",
    )
    assert wall_ns(path) == WALL_NS


def test_a_table_of_utf16_is_refused_rather_than_misread(tmp_path: Path) -> None:
    path = tmp_path / "utf16.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA encoding = 'UTF-16'")
    database.execute(f"CREATE TABLE {KERNEL} (start, end)")
    database.close()
    with pytest.raises(CaptureError, match="UTF-16"):
        tracekit.open(path)


def test_columns_come_with_their_fillers(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    change(
        path, "CREATE TABLE t (a INTEGER, b INTEGER, s TEXT)", "INSERT INTO t VALUES (1, NULL, NULL), (NULL, 2, 'x')"
    )
    columns = (*integers("a", "nowhere", fill=-1), Column("either", ("a", "b"), -1), Column("s", ("s",), b""))
    calls: list[tuple[int, int]] = []
    with open_database(path) as database:
        read = database.read("t", columns, lambda done, expected: calls.append((done, expected)))
        empty = database.read("missing", columns)
    assert {name: list(map(_plain, read[name])) for name in ("a", "nowhere", "either", "s")} == {
        "a": [1, -1],
        "nowhere": [-1, -1],
        "either": [1, 2],
        "s": [b"", b"x"],
    }
    assert {len(column) for column in empty.values()} == {0}
    assert calls == [(2, 2)]


def _plain(value: object) -> object:
    return value.as_py() if hasattr(value, "as_py") else value


# --- leaving no trace ---


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def wall_ns_leaving_no_trace(folder: Path, path: Path | None = None) -> int:
    """Read a capture (the folder's only one) twice; fails if anything in the folder is another than before."""
    before = fingerprint(folder)
    answers = {wall_ns(path or folder / "report.sqlite") for _ in range(2)}
    assert fingerprint(folder) == before
    return answers.pop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one capture, report.sqlite."""
    made = tmp_path / "captures"
    made.mkdir()
    small_job().write(made / "report.sqlite")
    return made


LATE_KERNEL = f"{EXTRA_KERNEL} (30000, 31000, 0, 7, {global_pid(PID)}, 1)"
WALL_WITH_LATE_KERNEL_NS = 31_000 - 500


def test_an_ordinary_file_stays_as_it_is(folder: Path) -> None:
    assert wall_ns_leaving_no_trace(folder) == WALL_NS


def test_a_file_in_write_ahead_mode_without_a_log(folder: Path) -> None:
    change(folder / "report.sqlite", "PRAGMA journal_mode = WAL")
    assert [path.name for path in folder.iterdir()] == ["report.sqlite"]  # the log was removed when it was closed
    assert wall_ns_leaving_no_trace(folder) == WALL_NS


@pytest.fixture
def with_a_log(folder: Path) -> Path:
    """The folder, with a kernel that is only in the write-ahead log, as a killed writer leaves it."""
    source = folder.parent / "live.sqlite"
    shutil.copy(folder / "report.sqlite", source)
    database = sqlite3.connect(source)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    database.execute(LATE_KERNEL)
    database.commit()
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", folder / f"report.sqlite{suffix}")
    database.close()
    return folder


def test_what_is_only_in_the_write_ahead_log_is_read(with_a_log: Path) -> None:
    assert wall_ns_leaving_no_trace(with_a_log) == WALL_WITH_LATE_KERNEL_NS


def test_an_empty_write_ahead_log_is_nothing(folder: Path) -> None:
    change(folder / "report.sqlite", "PRAGMA journal_mode = WAL")
    (folder / "report.sqlite-wal").touch()
    assert wall_ns_leaving_no_trace(folder) == WALL_NS


def test_a_change_that_was_never_committed_is_undone_in_a_copy(folder: Path) -> None:
    source = folder.parent / "live.sqlite"
    shutil.copy(folder / "report.sqlite", source)
    database = sqlite3.connect(source, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN")
    database.execute(f"UPDATE {KERNEL} SET end = end + 1000000")
    database.execute("CREATE TABLE filler (a)")
    database.executemany("INSERT INTO filler VALUES (?)", [("x" * 3000,)] * 200)  # spills the change into the file
    for suffix in ("", "-journal"):
        shutil.copy(f"{source}{suffix}", folder / f"report.sqlite{suffix}")
    database.execute("ROLLBACK")
    database.close()
    assert (folder / "report.sqlite").stat().st_size > source.stat().st_size  # the file does hold the change
    assert wall_ns_leaving_no_trace(folder) == WALL_NS


def test_a_link_into_another_folder_finds_the_log_beside_the_file(with_a_log: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "link.sqlite"
    link.symlink_to(with_a_log / "report.sqlite")
    assert wall_ns_leaving_no_trace(with_a_log, link) == WALL_WITH_LATE_KERNEL_NS
    assert [path.name for path in elsewhere.iterdir()] == ["link.sqlite"]


@pytest.mark.parametrize("state", ["ordinary", "write-ahead mode", "write-ahead log"])
def test_a_folder_and_file_that_may_only_be_read(
    state: str, with_a_log: Path, as_nobody: Callable[[Path], None]
) -> None:
    if state != "write-ahead log":
        (with_a_log / "report.sqlite-wal").unlink()
    if state == "ordinary":
        small_job().write(_gone(with_a_log / "report.sqlite"))
    expected = WALL_WITH_LATE_KERNEL_NS if state == "write-ahead log" else WALL_NS
    assert wall_ns(with_a_log / "report.sqlite") == expected  # also imports what may be out of reach below
    as_nobody(with_a_log)
    with pytest.raises(PermissionError):
        (with_a_log / "report.sqlite").open("r+b")
    with pytest.raises(PermissionError):
        (with_a_log / "new").touch()
    assert wall_ns_leaving_no_trace(with_a_log) == expected


def test_a_file_that_may_not_be_read(folder: Path, as_nobody: Callable[[Path], None]) -> None:
    assert wall_ns(folder / "report.sqlite") == WALL_NS
    (folder / "report.sqlite").chmod(0)
    as_nobody(folder)
    with pytest.raises(CaptureError, match="Permission denied") as caught:
        tracekit.open(folder / "report.sqlite")
    assert "permission" in str(caught.value.hint)


def _gone(path: Path) -> Path:
    path.unlink()
    return path


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Takes all rights to write away: call it with the folder that stays readable."""
    opened: list[tuple[Path, int]] = []

    def drop(folder: Path) -> None:
        for path in [folder, *folder.iterdir()]:
            opened.append((path, path.stat().st_mode))
            path.chmod(path.stat().st_mode & 0o555)
        if os.geteuid() == 0:
            for parent in (tmp_path, *tmp_path.parents):
                if not parent.stat().st_mode & 0o001:
                    opened.append((parent, parent.stat().st_mode))
                    parent.chmod(parent.stat().st_mode | 0o011)
            os.seteuid(NOBODY)

    yield drop
    if os.geteuid() == NOBODY != os.getuid():
        os.seteuid(os.getuid())
    for path, mode in opened:
        path.chmod(mode)


NOBODY = 65_534


def hold(path: Path, statement: str) -> subprocess.Popen[bytes]:
    """Another process that holds a lock on the file until its standard input is closed."""
    program = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute(sys.argv[2])\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(path), statement], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_locked_file_is_an_error_soon(folder: Path) -> None:
    before = fingerprint(folder)
    with hold(folder / "report.sqlite", "BEGIN EXCLUSIVE") as process:
        begun = time.monotonic()
        with pytest.raises(CaptureError, match="locked by another process") as caught:
            tracekit.open(folder / "report.sqlite")
        assert time.monotonic() - begun < 5
        process.communicate()
    assert "copy" in str(caught.value.hint)
    assert fingerprint(folder) == before
    assert wall_ns(folder / "report.sqlite") == WALL_NS


def test_a_reader_or_a_waiting_writer_does_not_hinder(folder: Path) -> None:
    with hold(folder / "report.sqlite", "BEGIN IMMEDIATE") as process:
        assert wall_ns(folder / "report.sqlite") == WALL_NS
        process.communicate()


# --- what is no SQLite file ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"hello", "not an SQLite file"),
        (b'{"traceEvents": []}', "not an SQLite file"),
        (b"SQLite format 3\0", "damaged or truncated"),
        (b"SQLite format 3\0" + bytes(5000), "damaged or truncated"),
    ],
)
def test_what_is_no_database_is_said(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=said) as caught:
        tracekit.open(path)
    assert caught.value.hint
    assert [found.name for found in tmp_path.iterdir()] == ["x.sqlite"]


def test_a_pipe_or_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CaptureError, match="neither a file nor a folder"):
            tracekit.open(path)


@pytest.mark.parametrize("name", ["with space.sqlite", "50%?#.sqlite", "caf\udce9.sqlite", "été.sqlite", "-x.sqlite"])
def test_names_with_any_character_are_opened(name: str, tmp_path: Path) -> None:
    assert wall_ns(small_job().write(tmp_path / "plain.sqlite").rename(tmp_path / name)) == WALL_NS
