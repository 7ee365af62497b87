from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from tracekit.errors import TracekitError
from tracekit.report.files import write_whole


def test_writes_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert write_whole(path, "µ".encode()) == 2
    assert path.read_bytes() == "µ".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "report.html"
    plain.write_text("")
    write_whole(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    write_whole(path, b"y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def fail(_: int) -> NoReturn:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    expected = TracekitError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_whole(path, b"after")
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    if isinstance(caught.value, TracekitError):
        assert caught.value.message == f"cannot write {path}: No space left on device"
        assert caught.value.hint


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(TracekitError) as caught:
        write_whole(tmp_path / "missing" / "report.html", b"x")
    assert "create it first" in (caught.value.hint or "")
    with pytest.raises(TracekitError, match="folder"):
        write_whole(tmp_path, b"x")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"through")
    reader.join(timeout=10)
    assert read == [b"through"]
    assert pipe.is_fifo()
