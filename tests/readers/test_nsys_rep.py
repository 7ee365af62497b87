"""`.nsys-rep` reports: exported once by nsys, or a clear error."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nsys_builder import JOB_TOTALS, small_job

import tracekit
from tracekit.errors import CaptureError, NoGpuWorkError

HELP = 'if [ "$2" = --help ]; then echo "  --include-blobs=  true, false"; exit 0; fi\n'
VERSION = 'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2023.4.4.54-123"; exit 0; fi\n'
OUTPUT = 'for word; do case "$word" in --output=*) output="${word#--output=}";; esac; done\n'
COUNT = 'echo run >> "$NSYS_RUNS"\n'


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report that only a fake nsys can read, with a cache and a PATH of the test's own."""
    (tmp_path / "bin").mkdir()
    for command in ("sh", "cp", "sleep", "rm"):
        (tmp_path / "bin" / command).symlink_to(str(shutil.which(command)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NSYS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("NSYS_EXPORT", str(small_job().write(tmp_path / "export.sqlite")))
    (tmp_path / "captures").mkdir()
    path = tmp_path / "captures" / "run.nsys-rep"
    path.write_bytes(b"a report")
    return path


@pytest.fixture
def fake_nsys(report: Path) -> Callable[[str], None]:
    """Puts a script called nsys on the PATH; it is asked for help and version first."""

    def write(body: str) -> None:
        script = report.parents[1] / "bin" / "nsys"
        script.write_text(f"#!/bin/sh\n{HELP}{VERSION}{OUTPUT}{COUNT}{body}")
        script.chmod(0o755)

    return write


def runs(report: Path) -> int:
    log = report.parents[1] / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def cached(report: Path) -> list[str]:
    return sorted(str(p.name) for p in (report.parents[1] / "cache").rglob("*") if p.is_file() or p.name[0] == ".")


EXPORTS = 'cp "$NSYS_EXPORT" "$output"\n'


def test_a_report_is_exported_once(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys(EXPORTS)
    for _ in range(2):
        timeline = tracekit.open(report)
        (capture,) = timeline.captures
        assert (capture.path, capture.format, capture.nsys_version) == (str(report), "nsys-rep", "2023.4.1.1")
        assert tracekit.analyze(timeline).ranks[0].totals.wall_ns == JOB_TOTALS["wall_ns"]
    assert runs(report) == 1
    (report.parents[1] / "bin" / "nsys").unlink()
    assert tracekit.open(report).ranks  # from the cache, without nsys
    assert [path.name for path in report.parent.iterdir()] == ["run.nsys-rep"]
    assert len(cached(report)) == 1


def test_a_report_that_changed_is_exported_again(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys(EXPORTS)
    tracekit.open(report)
    report.write_bytes(b"another report")
    tracekit.open(report)
    os.utime(report, ns=(1, 1))
    tracekit.open(report)
    assert runs(report) == 3


def test_the_call_of_nsys(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys('for word; do echo "$word" >> "$NSYS_RUNS.words"; done\n' + EXPORTS)
    tracekit.open(report)
    words = (report.parents[1] / "runs.words").read_text().splitlines()
    assert words[:3] == ["export", "--type=sqlite", "--include-blobs=true"]
    assert words[-1] == str(report)


def test_an_nsys_that_knows_no_blobs_is_not_asked_for_them(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys('case "$*" in *blobs*) echo "unrecognised option"; exit 1;; esac\n' + EXPORTS)
    script = report.parents[1] / "bin" / "nsys"
    script.write_text(script.read_text().replace("--include-blobs=  true, false", "--type="))
    assert tracekit.open(report).ranks


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'echo "Report was created in Nsight Systems version (2026.3.1), newer than this one." >&2; exit 1\n',
            r"made by a newer Nsight Systems \(2026.3.1\) than the one installed here \(2023.4.4.54-123\)",
        ),
        (
            'echo "The report comes from a version newer than your current version (2022.4)." >&2; exit 1\n',
            r"made by a newer Nsight Systems than the one installed here \(2023.4.4.54-123\)",
        ),
        (
            'echo "Processing 10%"; echo "FATAL ERROR: the file is damaged"; exit 1\n',
            "FATAL ERROR: the file is damaged",
        ),
        ("exit 7\n", "exit status 7"),
        ("kill -9 $$\n", "exit status -9"),
        ('echo "Processing [====100%]"\n', "exit status 0 and no SQLite file"),
        ('echo "{}" > "$output"\n', "exit status 0 and no SQLite file"),
        ('cp "$NSYS_EXPORT" "$output"; echo failed after all; exit 1\n', "failed after all"),
        ('printf "\\033[31m\\nred\\n"; exit 1\n', "red"),
    ],
)
def test_an_export_that_fails_says_why_and_leaves_nothing(
    body: str, said: str, report: Path, fake_nsys: Callable[[str], None]
) -> None:
    fake_nsys(body)
    with pytest.raises(CaptureError, match=said) as caught:
        tracekit.open(report)
    assert str(report) in caught.value.message
    assert caught.value.hint
    assert cached(report) == []
    fake_nsys(EXPORTS)  # nothing of the failure is remembered
    assert tracekit.open(report).ranks


def test_without_nsys_the_user_is_told_how_to_go_on(report: Path) -> None:
    with pytest.raises(CaptureError, match="needs nsys, which is not on the PATH") as caught:
        tracekit.open(report)
    assert "nsys export --type sqlite" in str(caught.value.hint)


def test_an_nsys_that_cannot_be_run(report: Path) -> None:
    script = report.parents[1] / "bin" / "nsys"
    script.write_bytes(b"\x7fELF of another machine")
    script.chmod(0o755)
    with pytest.raises(CaptureError, match=r"nsys cannot export it: Exec format error") as caught:
        tracekit.open(report)
    assert caught.value.hint
    assert cached(report) == []


@pytest.mark.parametrize("damage", [b"", b"SQLite format 3\0 and no more"])
def test_a_damaged_export_in_the_cache_is_made_again(
    damage: bytes, report: Path, fake_nsys: Callable[[str], None]
) -> None:
    fake_nsys(EXPORTS)
    tracekit.open(report)
    (name,) = cached(report)
    next((report.parents[1] / "cache").rglob(name)).write_bytes(damage)
    assert tracekit.open(report).ranks
    assert runs(report) == 2


def test_a_cache_that_cannot_be_written(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys(EXPORTS)
    (report.parents[1] / "cache").write_text("a file, not a folder")
    with pytest.raises(CaptureError, match="cannot write the export") as caught:
        tracekit.open(report)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)


@pytest.mark.parametrize("stem", ["漢" * 80, "-v", "\x1b[31m\n", "a" * 240, "caf\udce9", "50%"])
def test_any_name_of_a_report_will_do(stem: str, report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys(EXPORTS)
    renamed = report.rename(report.with_name(f"{stem}.nsys-rep"))
    assert tracekit.open(renamed).ranks
    (name,) = cached(report)
    assert name.isascii()
    assert name.isprintable()


def test_an_export_beside_its_report_is_taken_instead(report: Path) -> None:
    shutil.copy(report.parents[1] / "export.sqlite", report.with_suffix(".sqlite"))
    (capture,) = tracekit.open(report.parent).captures
    assert (Path(capture.path).name, capture.format) == ("run.sqlite", "nsys-sqlite")


def test_an_sqlite_file_under_the_name_of_a_report_is_read_as_what_it_is(report: Path) -> None:
    shutil.copy(report.parents[1] / "export.sqlite", report)
    assert tracekit.open(report).captures[0].format == "nsys-sqlite"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.qdrep", b"x", "before 2021.4"),
        ("run.qdstrm", b"x", "never imported"),
        ("run.nsys-rep", b"", "an empty file"),
    ],
)
def test_other_files_of_nsys(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CaptureError, match=said) as caught:
        tracekit.open(tmp_path / name)
    assert caught.value.hint


def test_an_interrupt_leaves_no_half_export(report: Path, fake_nsys: Callable[[str], None]) -> None:
    fake_nsys('echo half > "$output"\nexec sleep 60\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "analyze", str(report)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not any(name == "export.sqlite" for name in cached(report)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.strip() == "tracekit: interrupted; no file was left half written"
    assert cached(report) == []


@pytest.mark.nsys
def test_a_real_report_of_a_program_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = str(shutil.which("nsys"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "program.py"
    program.write_text(
        "try:\n    import nvtx\n    nvtx.push_range('step')\n    nvtx.pop_range()\nexcept ImportError: pass\n"
    )
    command = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-o", str(tmp_path / "report")]
    run = subprocess.run([*command, sys.executable, str(program)], capture_output=True, timeout=60, check=False)
    report = tmp_path / "report.nsys-rep"
    assert report.exists(), run.stdout + run.stderr
    for _ in range(2):
        with pytest.raises(NoGpuWorkError, match="no GPU work"):
            tracekit.open(report)
        # The second time the export comes from the cache.
        monkeypatch.setattr(subprocess, "run", None)
    (capture,) = tracekit.open(report, require_ranks=False).captures
    assert capture.format == "nsys-rep"
    assert capture.nsys_version
