"""The command line: what it prints, what it writes, how it ends. Bad input above all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from nsys_builder import JOB_TOTALS, KERNEL, Export, small_job

import tracekit.readers.database
from tracekit import __version__
from tracekit.cli import main
from tracekit.results import Confidence

DONE, FINDING, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 3, 130
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""Python keeps what it could not write, and tries again at its end."""


def process(*words: object, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **how)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return small_job().write(tmp_path / "report.sqlite")


def check_refusal(result: Result, status: int, said: str, hint: str) -> None:
    """One line on what is wrong and one on what to do, on standard error, without anything that steers a terminal."""
    assert result.exit_code == status, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith("tracekit: ")
    assert re.search(said, lines[0]), lines[0]
    assert lines[1].startswith("  ")
    assert re.search(hint, lines[1]), lines[1]
    assert not CONTROL.search(result.stderr)
    assert result.stdout == ""


# --- bad captures ---


def _text(folder: Path) -> Path:
    (folder / "notes.txt").write_text("step 1 took 3 s\n")
    return folder / "notes.txt"


def _json(folder: Path) -> Path:
    (folder / "trace.json").write_text('{"traceEvents": []}')
    return folder / "trace.json"


def _empty(folder: Path) -> Path:
    (folder / "report.sqlite").touch()
    return folder / "report.sqlite"


def _truncated(folder: Path) -> Path:
    path = small_job().write(folder / "report.sqlite")
    path.write_bytes(path.read_bytes()[:9000])
    return path


def _empty_folder(folder: Path) -> Path:
    (folder / "captures").mkdir()
    return folder / "captures"


def _no_gpu(folder: Path) -> Path:
    export = Export()
    export.add("DIAGNOSTIC_EVENT", severity=3, text="No CUDA events collected.\n\x1b[31mDoes the process use CUDA?")
    return export.write(folder / "report.sqlite")


def _only_calls(folder: Path) -> Path:
    export = Export()
    for number in range(1, 8):
        export.call(number, number + 1, number)
    return export.write(folder / "report.sqlite")


def _only_copies(folder: Path) -> Path:
    export = small_job()
    del export.rows[KERNEL]
    return export.write(folder / "report.sqlite")


def _backwards(folder: Path) -> Path:
    export = small_job()
    export.kernel("gemm", 20, 10)
    return export.write(folder / "report.sqlite")


def _not_nsys(folder: Path) -> Path:
    export = Export()
    export.rows = {"cookies": [{"host": 1}]}
    return export.write(folder / "report.sqlite")


def _named(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


def _old(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(b"x")
        return folder / name

    return write


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (_text, "notes.txt: not an SQLite file", "nsys export"),
        (_json, "trace.json: not an SQLite file", "nsys export"),
        (_empty, "an empty file", "nsys export"),
        (_truncated, "damaged or truncated", "nsys export"),
        (_not_nsys, "not an nsys export", "nsys export"),
        (_empty_folder, "no captures in this folder", "Name the files"),
        (_no_gpu, r"no GPU work. The profiler said: No CUDA events collected. \?\[31mDoes", "nsys profile"),
        (_only_calls, "7 CUDA API calls and no GPU work", "nsys profile"),
        (_only_copies, "only copies", "nsys profile"),
        (_backwards, "1 of 7 rows of CUPTI_ACTIVITY_KIND_KERNEL end before they start", "export"),
        (_named("nowhere.sqlite"), "No such file or directory", "Check the path"),
        (_named("*.sqlite"), "no file matches", "Check the pattern"),
        (_named("x" * 100_000), "File name too long", "Check the path"),
        (_named("\x1b[31mred\x1b[0m\nnext line\r.sqlite"), r"\?.31mred\?.0m\?next line\?.sqlite", "Check"),
        (_old("run.qdrep"), "before 2021.4", "nsys export"),
        (_old("run.qdstrm"), "never imported", "nsys export"),
        (_named("/dev/null"), "neither a file nor a folder", "file"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
@pytest.mark.parametrize("command", ["analyze", "analyze --json", "analyze to files"])
def test_a_bad_capture(make: Callable[[Path], Path], said: str, hint: str, command: str, tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    path = make(inputs)
    before = sorted(inputs.rglob("*"))
    more: Sequence[object] = {
        "analyze": (),
        "analyze --json": ("--json", "-"),
        "analyze to files": ("--json", outputs / "a.json", "--html", outputs / "a.html"),
    }[command]
    check_refusal(run("analyze", path, *more), UNREADABLE, said, hint)
    assert list(outputs.iterdir()) == []
    assert sorted(inputs.rglob("*")) == before


def test_a_report_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "run.nsys-rep").write_bytes(b"x")
    check_refusal(run("analyze", tmp_path / "run.nsys-rep"), UNREADABLE, "needs nsys", "nsys export --type sqlite")


def test_a_message_of_any_length_is_cut(tmp_path: Path) -> None:
    result = run("analyze", tmp_path / ("x" * 100_000))
    assert max(map(len, result.stderr.splitlines())) < 2100
    assert result.stderr.splitlines()[0].endswith("File name too long")


def test_an_error_nobody_thought_of_is_not_a_traceback(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("something\x1b[31m odd")

    monkeypatch.setattr(tracekit.readers.database.Database, "read", broken)
    check_refusal(run("analyze", capture), 70, r"internal error: RuntimeError: something\?\[31m odd", "report it")
    monkeypatch.setenv("TRACEKIT_TRACEBACK", "1")
    assert isinstance(run("analyze", capture).exception, RuntimeError)


def test_too_little_memory_is_said(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(tracekit.readers.database.Database, "read", hungry)
    check_refusal(run("analyze", capture), UNREADABLE, "out of memory", "fewer captures")


# --- wrong usage ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 99", "there is no rank 99"),
        ("--steps 99", "there is no step 99"),
        ("--window 5s:6s", "no GPU work in it"),
        ("--window 9999999999999999999s:", "no GPU work in it"),
        ("--step-marker nothing", "no NVTX range of this name"),
        ("--step-marker ([", "no NVTX range of this name"),
    ],
)
def test_options_that_pick_nothing(words: str, said: str, capture: Path, tmp_path: Path) -> None:
    outputs = ("--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    check_refusal(run("analyze", capture, *words.split(), *outputs), USAGE, said, ".")
    assert list(tmp_path.iterdir()) == [capture]


@pytest.mark.parametrize(
    "words",
    [
        ["--window", "5"],
        ["--window", "a:b"],
        ["--window", "2s:1s"],
        ["--window", "1s:1s"],
        ["--window", "1e3s:"],
        ["--window", "-1s:2s"],
        ["--window", "1.0000000001s:"],
        ["--window", "1.5:2.5"],
        ["--steps", ""],
        ["--steps", "a"],
        ["--steps", "5-2"],
        ["--steps", "1,,2"],
        ["--steps", "1-"],
        ["--ranks", "-1"],
        ["--ranks", "1;2"],
        ["--ranks", "\x1b[31m"],
        ["--skip-warmup", "-1"],
        ["--skip-warmup", "two"],
        ["--fail-on", "fatal"],
        ["--nonsense"],
        ["--\x1b[31m"],
    ],
    ids=" ".join,
)
def test_wrong_options(words: list[str], capture: Path) -> None:
    result = run("analyze", capture, *words)
    assert result.exit_code == USAGE
    assert "Error: " in result.stderr
    assert not CONTROL.search(result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize("words", [[], ["analyze"], ["nonsense"], ["\x1b[31m"], ["info"]])
def test_wrong_commands(words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == USAGE
    assert not CONTROL.search(result.output)


@pytest.mark.parametrize("marker", ["(a+)+$", "(a|a)*b", "(.*)*x", "(?:a{1,30}){1,30}$"])
def test_a_hostile_step_marker_takes_no_time(marker: str, tmp_path: Path) -> None:
    export = small_job()
    export.range("a" * 5000 + "!", 0, 5)
    path = export.write(tmp_path / "report.sqlite")
    begun = time.monotonic()
    check_refusal(run("analyze", path, "--step-marker", marker), USAGE, "no NVTX range of this name", "info")
    assert time.monotonic() - begun < 5


# --- outputs ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json", "{folder}/missing/a.json"], "the folder .*missing does not exist"),
        (["--html", "{folder}/missing/a.html"], "the folder .*missing does not exist"),
        (["--json", "{folder}"], "this is a folder"),
        (["--json", ""], "empty name"),
        (["--html", "-"], "not to standard output"),
        (["--perfetto", "-"], "not to standard output"),
        (["--perfetto", "{folder}/missing/a.pftrace"], "the folder .*missing does not exist"),
        (["--perfetto", "{folder}/same", "--html", "{folder}/same"], "name the same file"),
        (["--json", "{folder}/same", "--html", "{folder}/same"], "name the same file"),
        (["--json", "{capture}"], "this is the capture itself"),
        (["--html", "{capture}"], "this is the capture itself"),
        (["--json", "{folder}/link"], "this is the capture itself"),
        (["--json", "{folder}/./report.sqlite"], "this is the capture itself"),
    ],
)
@pytest.mark.parametrize("named", ["file", "folder", "pattern"])
def test_outputs_that_cannot_be(options: list[str], said: str, named: str, capture: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(capture)
    before = capture.read_bytes(), sorted(tmp_path.iterdir())
    given = {"file": capture, "folder": tmp_path, "pattern": tmp_path / "*.sqlite"}[named]
    words = [word.format(folder=tmp_path, capture=capture) for word in options]
    check_refusal(run("analyze", given, *words), USAGE, said, ".")
    assert (capture.read_bytes(), sorted(tmp_path.iterdir())) == before


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_disk_that_is_full(option: str, capture: Path) -> None:
    check_refusal(run("analyze", capture, option, "/dev/full"), UNREADABLE, "No space left on device", ".")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_disk_that_fills_up_while_writing(
    option: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "result"
    target.parent.mkdir()
    target.write_text("of an earlier run")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    check_refusal(run("analyze", capture, option, target), UNREADABLE, "No space left on device", ".")
    assert [path.read_text() for path in target.parent.iterdir()] == ["of an earlier run"]


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_an_output_with_a_name_that_is_too_long(option: str, capture: Path, tmp_path: Path) -> None:
    for length in (300, 100_000):
        result = run("analyze", capture, option, tmp_path / ("x" * length))
        check_refusal(result, UNREADABLE, "File name too long", ".")
    assert list(tmp_path.iterdir()) == [capture]


def test_outputs_replace_those_of_an_earlier_run(capture: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "a.json", tmp_path / "a.html"):
        path.write_text("of an earlier run" * 100_000)
    result = run("analyze", capture, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert result.exit_code == DONE
    assert json.loads((tmp_path / "a.json").read_text())["ranks"][0]["totals"] == JOB_TOTALS
    assert "<html" in (tmp_path / "a.html").read_text()[:2000]
    assert f"Wrote {tmp_path / 'a.json'} (" in result.stdout
    assert f"Wrote {tmp_path / 'a.html'} (" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "report.sqlite"]


def test_json_on_standard_output_comes_alone(capture: Path) -> None:
    result = run("analyze", capture, "--json", "-")
    assert (result.exit_code, result.stderr) == (DONE, "")
    assert json.loads(result.stdout)["ranks"][0]["totals"] == JOB_TOTALS


def test_json_into_a_pipe(capture: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        assert run("analyze", "-q", capture, "--json", tmp_path / "pipe").exit_code == DONE
        assert reader.stdout is not None
        assert json.loads(reader.stdout.read())["schema_version"] == 1


# --- names from captures and file systems ---


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    red = "\x1b[31mred\x07\x9b2J\r\n\u202e"
    export = small_job()
    export.kernel(f"gemm{red}", 24_000, 90_000, call=(23_000, 23_100))
    export.kernel(f"ncclDevKernel_AllReduce{red}", 91_000, 99_000, call=(23_200, 23_300), stream=8)
    export.range(f"train_step {red} 7", 23_000, 24_000)
    export.range(f"forward{red}", 0, 9000)
    export.add("TARGET_INFO_GPU", id=0, cuDevice=0, name=f"H100{red}")
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=f"node{red}")
    export.add("DIAGNOSTIC_EVENT", severity=3, text=f"Not all{red}")
    export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=f"2023.4{red}")
    path = export.write(tmp_path / f"a{red}.sqlite")
    for words in (("analyze", "-v", path, "--json", tmp_path / f"b{red}.json"), ("info", path)):
        result = run(*words)
        assert result.exit_code == DONE, result.output
        assert not CONTROL.search(result.output)
        assert "\u202e" not in result.output
        assert not any(line.startswith("2J") for line in result.output.splitlines())


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    path = small_job().write(tmp_path / "a.sqlite").rename(tmp_path / "caf\udce9.sqlite")
    result = run("analyze", path, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert result.exit_code == DONE, result.output
    (capture,) = json.loads((tmp_path / "a.json").read_text())["captures"]
    assert os.fsencode(capture["path"]) == os.fsencode(path)
    (tmp_path / "a.html").read_text(encoding="utf-8")
    assert run("info", path).exit_code == DONE


# --- what is read ---


def test_one_file_under_many_names_is_read_once(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(capture)
    result = run("analyze", capture, capture, tmp_path / "link", tmp_path / "*.sqlite", tmp_path, "--json", "-")
    assert [rank["rank"] for rank in json.loads(result.stdout)["ranks"]] == [0]


def test_captures_are_listed_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        small_job(pid=100 + number).write(tmp_path / f"run{number}.sqlite")
    document = json.loads(run("analyze", tmp_path / "*.sqlite", "--json", "-").stdout)
    assert [Path(capture["path"]).name for capture in document["captures"]] == [
        "run1.sqlite",
        "run9.sqlite",
        "run10.sqlite",
    ]
    assert [(rank["rank"], rank["pid"]) for rank in document["ranks"]] == [(1, 101), (9, 109), (10, 110)]


def test_two_captures_that_claim_one_rank_are_a_finding(tmp_path: Path) -> None:
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        small_job().write(tmp_path / folder / "rank0.sqlite")
    result = run("analyze", tmp_path / "monday", tmp_path / "tuesday", "--json", "-")
    document = json.loads(result.stdout)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert "TK905" in [finding["rule"] for finding in document["findings"]]


def test_options_pick_ranks_steps_and_windows(tmp_path: Path) -> None:
    for rank in range(3):
        small_job(pid=100 + rank, steps=5).write(tmp_path / f"rank{rank}.sqlite")

    def document(*words: str) -> Any:
        result = run("analyze", tmp_path, "--json", "-", *words)
        assert result.exit_code == DONE, result.output
        return json.loads(result.stdout)

    assert [rank["rank"] for rank in document("--ranks", "0,2")["ranks"]] == [0, 2]
    assert [step["step"] for step in document("--steps", "1-2,4")["ranks"][0]["steps"]] == [1, 2, 4]
    assert document("--window", "10us:20us")["ranks"][0]["totals"]["compute_ns"] == 1_500
    assert document("--window", "0.0000105s:")["ranks"][0]["totals"]["wall_ns"] == 43_200 - 10_500
    assert document("--window", ":3200ns")["ranks"][0]["totals"]["wall_ns"] == 2_700
    assert document("--step-marker", "train_step [0-9]")["ranks"][0]["steps"]
    assert document("--no-rules")["findings"] == []


@pytest.mark.parametrize(
    ("words", "status"),
    [("", DONE), ("--fail-on info", FINDING), ("--fail-on warning", FINDING), ("--fail-on error", FINDING)],
)
def test_findings_change_the_status_only_when_asked(words: str, status: int, tmp_path: Path) -> None:
    """In steps of 10 us, 1.6 us of exposed communication is more than a tenth: an error."""
    export = small_job()
    for row in export.rows[KERNEL][1::2]:
        row["end"] += 1_000  # type: ignore[operator]
    path = export.write(tmp_path / "report.sqlite")
    assert run("analyze", "-q", path, *words.split()).exit_code == status


@pytest.mark.parametrize(
    ("confidence", "words", "expected"),
    [("low", "", DONE), ("low", "--fail-on-low", FINDING), ("medium", "", FINDING), ("high", "", FINDING)],
)
def test_what_is_hardly_known_fails_no_gate_unless_asked(
    confidence: str, words: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN all findings of one confidence."""
    sure = Confidence(confidence)
    monkeypatch.setattr("tracekit.rules.with_confidence", lambda finding, _: replace(finding, confidence=sure))
    path = small_job().write(tmp_path / "report.sqlite")
    assert run("analyze", "-q", path, "--fail-on", "info", *words.split()).exit_code == expected


def test_without_findings_that_severe_the_status_is_0(tmp_path: Path) -> None:
    export = Export()
    export.kernel("gemm", 0, 10)  # no steps, no communication: notes about the capture
    path = export.write(tmp_path / "report.sqlite")
    assert run("analyze", "-q", path, "--fail-on", "error").exit_code == DONE
    assert run("analyze", "-q", path, "--fail-on", "info").exit_code == FINDING


# --- what is printed ---


def test_quiet_prints_nothing(capture: Path, tmp_path: Path) -> None:
    result = run("analyze", "-q", capture, "--json", tmp_path / "a.json")
    assert (result.exit_code, result.output) == (DONE, "")


def test_version_and_help() -> None:
    assert run("--version").output == f"tracekit {__version__}\n"
    for words in (["--help"], ["-h"], ["analyze", "--help"], ["info", "-h"]):
        assert run(*words).exit_code == DONE


def test_every_option_has_help() -> None:
    for command in main.commands.values():
        assert command.help
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, parameter.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, capture: Path) -> None:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["analyze", "-v", str(capture)])
    assert result.exit_code == DONE
    assert max(map(len, result.stdout.splitlines())) <= columns


# --- as a process ---


def test_as_a_module_and_as_a_command(capture: Path) -> None:
    ran = process("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (DONE, f"tracekit {__version__}\n".encode(), b"")
    command = shutil.which("tracekit", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("the command is not installed beside this Python")
    ran = subprocess.run([command, "analyze", "-q", capture, "--json", "-"], capture_output=True, check=False)
    assert json.loads(ran.stdout)["ranks"][0]["totals"] == JOB_TOTALS


def test_a_locale_without_utf8(capture: Path, tmp_path: Path) -> None:
    shutil.copy(capture, tmp_path / "été.sqlite")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = process("analyze", tmp_path / "été.sqlite", "--html", tmp_path / "ü.html", env=environment)
    assert (ran.returncode, ran.stderr) == (DONE, b"")
    assert ran.stdout.isascii()
    assert (tmp_path / "ü.html").exists()
    ran = process("analyze", "nowhere-é", env=environment)
    assert ran.returncode == UNREADABLE
    assert len(ran.stderr.splitlines()) == 2


def on_a_terminal(*words: object, env: dict[str, str]) -> bytes:
    """What the command writes to standard output when that is a terminal."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=env) as child:
        os.close(follower)
        said = b""
        try:
            while chunk := os.read(leader, 65536):
                said += chunk
        except OSError:  # the terminal's other end is closed
            pass
        os.close(leader)
    assert child.returncode == DONE
    return said


def test_colour_only_where_it_is_wanted(capture: Path) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm-256color"}
    assert b"\x1b[" in on_a_terminal("analyze", capture, env=plain)
    assert b"\x1b[" not in on_a_terminal("analyze", capture, env=plain | {"NO_COLOR": "1"})
    assert b"\x1b[" not in on_a_terminal("analyze", capture, "--no-color", env=plain)
    assert "\x1b[" not in run("analyze", capture).output


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    for rank in range(40):  # more than a pipe holds
        small_job(pid=100 + rank, steps=40).write(tmp_path / f"rank{rank}.sqlite")
    command = [sys.executable, "-m", "tracekit", "analyze", str(tmp_path), "--json", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert len(child.stdout.read(100)) == 100
        child.stdout.close()
        said = child.stderr.read()
    assert (child.returncode, said) == (DONE, b"")


@pytest.mark.parametrize("words", [("--json", "-"), ()])
def test_standard_output_on_a_full_disk(words: tuple[str, ...], capture: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "analyze", str(capture), *words]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, env=BUFFERED)
    assert ran.returncode == UNREADABLE
    assert ran.stderr.splitlines()[0] == b"tracekit: cannot write to standard output: No space left on device"
    assert len(ran.stderr.splitlines()) == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_standard_streams(closed: str, capture: Path, tmp_path: Path) -> None:
    line = f'exec "{sys.executable}" -m tracekit analyze "{capture}" --json "{tmp_path}/a.json" {closed}'
    ran = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (DONE, b"")
    assert json.loads((tmp_path / "a.json").read_text())["ranks"][0]["totals"] == JOB_TOTALS


def test_an_interrupt_while_reading(capture: Path, tmp_path: Path) -> None:
    """Stopped in the middle: standing in for a large capture, reading takes its time."""
    program = (
        "import sys, threading, time\n"
        "from tracekit.cli import main\n"
        "from tracekit.readers.database import Database\n"
        "fetch = Database._fetch\n"
        "def slow(*words):\n"
        "    print('reading', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    return fetch(*words)\n"
        "Database._fetch = slow\n"
        "main(sys.argv[1:])\n"
    )
    words = ["analyze", str(capture), "--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"reading\n"
        child.send_signal(signal.SIGINT)
        begun = time.monotonic()
        said = child.stderr.read().strip()
        child.wait(timeout=20)
    assert time.monotonic() - begun < 5
    assert (child.returncode, said) == (INTERRUPTED, b"tracekit: interrupted; no file was left half written")
    assert list(tmp_path.iterdir()) == [capture]


def test_an_interrupt_while_modules_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(20)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-P", "-m", "tracekit", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"loading\n"
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=10)
    assert (child.returncode, said) == (INTERRUPTED, (b"", b""))


# --- captures without GPU work ---


@pytest.fixture
def host_only(tmp_path: Path) -> Path:
    """Two steps of one process, of which the second was never left."""
    export = Export()
    for number, (start, end) in enumerate([(0, 100), (100, None)]):
        export.range(f"step {number}", start, end)
        export.range("forward", start + 10, start + 40)
    return export.write(tmp_path / "host.sqlite")


def test_the_nvtx_view(host_only: Path) -> None:
    result = run("analyze", host_only, "--allow-no-gpu", "--json", "-")
    (rank,) = json.loads(result.stdout)["host_ranks"]
    assert [(step["step"], step["start_ns"], step["open"]) for step in rank["steps"]] == [(0, 0, False), (1, 100, True)]
    assert [step["by_phase_ns"] for step in rank["steps"]] == [{"forward": 30}, {"forward": 30}]
    picked = run("analyze", host_only, "--allow-no-gpu", "--steps", "1", "--json", "-")
    assert [step["step"] for step in json.loads(picked.stdout)["host_ranks"][0]["steps"]] == [1]
    text = run("analyze", host_only, "--allow-no-gpu").stdout
    assert "No GPU work in this capture" in text
    assert "step 1 was never left" in text


@pytest.mark.parametrize(
    ("options", "about"),
    [
        (["--steps", "9"], "there is no step 9"),
        (["--ranks", "9"], "there is no rank 9"),
        (["--window", "1s:2s"], "there is no GPU work"),
        (["--step-marker", "zzz"], "there is no NVTX range of this name"),
        (["--html", "report.html"], "there is no GPU work to draw"),
    ],
)
def test_what_the_nvtx_view_cannot_give(
    options: list[str], about: str, host_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refusal(run("analyze", host_only, "--allow-no-gpu", *options), USAGE, about, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.sqlite"]


# --- endings ---


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_scheduler_ends_leaves_no_copy_behind(ending: signal.Signals, tmp_path: Path) -> None:
    """GIVEN a capture with a write-ahead log, which is read from a copy, WHEN the program is ended, THEN it is gone."""
    path = small_job().write(tmp_path / "report.sqlite")
    path.with_name("report.sqlite-wal").write_bytes(b"not a log")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"""
import os, sys, tracekit.readers.files as files
def read_nsys_sqlite(*_, **__):
    print("copied" if os.listdir({str(scratch)!r}) else "not copied", flush=True)
    import time; time.sleep(60)
files.read_nsys_sqlite = read_nsys_sqlite
from tracekit.cli import main
main(["analyze", {str(path)!r}])
"""
    environment = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"copied\n"
        running.send_signal(ending)
        assert running.wait(timeout=20) == 128 + ending
    assert list(scratch.iterdir()) == []


# --- a newcomer's first tries ---


def test_a_capture_without_steps_is_not_told_in_steps(tmp_path: Path) -> None:
    """GIVEN kernels that the host launches late and no step ranges THEN no figure is called one of a step."""
    export = Export()
    for each in range(200):
        export.kernel(
            "gemm", each * 100_000 + 5_000, each * 100_000 + 15_000, call=(each * 100_000, each * 100_000 + 9)
        )
    path = export.write(tmp_path / "report.sqlite")
    document = json.loads(run("analyze", path, "--json", "-", "-q").stdout)
    late = next(finding for finding in document["findings"] if finding["rule"] == "TK401")
    words = [late["title"], *(row[key] for row in late["evidence"] for key in ("metric", "unit"))]
    assert "a capture" in words
    assert not [each for each in words if re.search(r"\b(a|the) step\b", each)]


def test_nothing_can_fail_where_no_rule_is_checked(capture: Path) -> None:
    check_refusal(
        run("analyze", capture, "--no-rules", "--fail-on", "info"), USAGE, "exclude each other", "one of them"
    )


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--gpu", "H1000"), "Did you mean H100"),
        (("--gpu", "zzz"), "It holds A100"),
        (("--model", "zzz"), "It holds gpt2"),
    ],
)
def test_names_that_are_near_are_offered_and_else_all(words: tuple[str, str], begins: str, capture: Path) -> None:
    check_refusal(run("analyze", capture, *words), USAGE, "in the table", begins)


def test_an_impossible_mfu_is_not_left_out_silently() -> None:
    """GIVEN a model that the GPUs could not compute in this time THEN the summary says that MFU is unknown, and why."""
    sample = Path(__file__).parents[1] / "sample_traces" / "straggler_4ranks.sqlite"
    assert "MFU unknown" in " ".join(run("analyze", sample, "--params", "70e9").stdout.split())
    assert "MFU unknown: it would be" in " ".join(run("analyze", sample, "--params", "70e9", "-v").stdout.split())


def test_the_command_line_loads_nothing_heavy_until_it_is_needed():
    heavy = ("numpy", "pandas", "pyarrow", "sqlalchemy", "rich", "jinja2", "perfetto")
    program = f"import sys, tracekit.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.strip() == "[]"
