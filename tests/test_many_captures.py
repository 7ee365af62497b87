"""Many captures, read by several processes: the same results, the same errors, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from nsys_builder import small_job

import tracekit
from tracekit import spool, workers
from tracekit.errors import CaptureError, TracekitError
from tracekit.report.json import render_json

pytestmark = pytest.mark.skipif(not workers.POSSIBLE, reason="processes are started on POSIX systems only")


@pytest.fixture
def job(tmp_path: Path) -> list[Path]:
    """Four ranks that run kernels of different names: each capture meets names that the others lack."""
    paths = []
    for rank in range(4):
        export = small_job(pid=100 + rank, steps=3)
        export.kernel(f"gemm_of_rank_{rank}", 10_000 + rank, 10_050, pid=100 + rank)
        export.range(f"forward/rank.{rank}", 10_000, 10_040, pid=100 + rank)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    return paths


# --- the same results ---


@pytest.mark.parametrize("processes", [1, 3])
def test_results_do_not_depend_on_the_number_of_processes(processes: int, job: list[Path]) -> None:
    alone = tracekit.open(*job, workers=0)
    together = tracekit.open(*job, workers=processes)
    assert together.names == alone.names
    assert render_json(tracekit.analyze(together)) == render_json(tracekit.analyze(alone))
    for mine, other in zip(together.ranks, alone.ranks, strict=True):
        for column in ("start", "end", "name", "call", "kind", "grid"):
            np.testing.assert_array_equal(getattr(mine.ops, column), getattr(other.ops, column))
    for one, another in zip(together.processes, alone.processes, strict=True):
        assert [together.names[i] for i in one.ranges.name] == [alone.names[i] for i in another.ranges.name]
        np.testing.assert_array_equal(one.calls.name, another.calls.name)
        np.testing.assert_array_equal(one.ranges.domain, another.ranges.domain)


def test_a_few_small_captures_are_read_without_other_processes(
    job: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "run", lambda *_: pytest.fail("a process was started"))
    assert len(tracekit.open(*job).ranks) == 4


def test_large_captures_are_shared_out(job: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    run = workers.run
    monkeypatch.setattr("tracekit.readers.many.BYTES_A_WORKER", 1000)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    monkeypatch.setattr(workers, "run", lambda *words: started.append(words[2]) or run(*words))
    assert len(tracekit.open(*job).ranks) == 4
    assert started == [3]


def test_progress_counts_captures_and_ranks(job: list[Path]) -> None:
    said: dict[str, list[tuple[int, int]]] = {}

    def progressing(what: str) -> object:
        return lambda done, expected: said.setdefault(what, []).append((done, expected))

    for processes in (0, 2):
        said.clear()
        timeline = tracekit.open(*job, progressing=progressing, workers=processes)  # type: ignore[arg-type]
        assert said["captures"] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    tracekit.analyze(timeline, progressing=progressing)  # type: ignore[arg-type]
    assert said["ranks"] == [(1, 4), (2, 4), (3, 4), (4, 4)]


# --- the same errors ---


def test_the_first_capture_that_cannot_be_read_is_named(job: list[Path]) -> None:
    job[1].write_bytes(b"no database")
    job[3].write_bytes(b"")
    said = []
    for processes in (0, 2):
        with pytest.raises(CaptureError) as caught:
            tracekit.open(*job, workers=processes)
        said.append((caught.value.message, caught.value.hint))
    assert said[0] == said[1]
    assert said[0][0] == f"{job[1]}: not an SQLite file"


def test_a_process_that_is_killed(job: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.readers.many._read_alone", _die)
    with pytest.raises(CaptureError, match=r"rank0\.sqlite: the process that read it was ended by signal SIGKILL"):
        tracekit.open(*job, workers=2)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_defect_is_told_with_where_it_was() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        workers.run(_divide, [(1, 1), (1, 0)], 1, lambda _: None)
    assert "in _divide" in "".join(caught.value.__notes__)


def _divide(a: int, b: int) -> float:
    return a / b


def test_no_room_for_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: list[Path]) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(TracekitError, match="cannot keep columns in a temporary file") as caught:
        tracekit.open(*job, workers=2)
    assert caught.value.hint is not None


# --- nothing is left behind ---


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
@pytest.mark.parametrize(("ending", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_end_in_the_middle_leaves_nothing(
    ending: signal.Signals, status: int, job: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    program = (
        "import sys\n"
        "from tracekit.cli import main\n"
        "from tracekit.readers import many\n"
        "import slow\n"
        "many._workers = lambda paths: 2\n"
        "many._read_alone = slow.read\n"
        "main(['analyze', *sys.argv[1:]])\n"
    )
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, tempfile, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "def read(path, index, classes):\n"
        "    with tempfile.TemporaryDirectory():\n"
        "        (here / f'{index}.begun').touch()\n"
        "        while len(list(here.glob('*.begun'))) < 2:  # on a busy machine one starts long before the other\n"
        "            time.sleep(0.01)\n"
        "        os.write(2, b'reading\\n')  # whole: both write at once\n"
        "        time.sleep(2)\n"
    )
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", program, *map(str, job)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=env) as child:
        assert child.stderr is not None
        assert [child.stderr.readline(), child.stderr.readline()] == [b"reading\n"] * 2
        reading = children_of(child.pid)
        assert len(reading) == 2
        child.send_signal(ending)
        child.wait(timeout=20)
    assert child.returncode == status
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in reading) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in reading)
    assert list(folder.iterdir()) == []


# --- columns in a file ---


def test_arrays_come_back_from_the_file_as_they_went_in() -> None:
    values = [
        {"n": np.arange(1000), "none": np.empty(0, np.int32), "flags": np.array([True, False])},
        [np.arange(10)[::2], "text", {3: b"bytes"}],
    ]
    with spool.temporary_file() as file:
        into = spool.Spool(file)
        back = spool.restore(file, [into.put(value) for value in values])
    for _ in range(2):
        np.testing.assert_array_equal(back[0]["n"], np.arange(1000))
        assert back[0]["none"].dtype == np.int32
        assert back[0]["flags"].tolist() == [True, False]
        np.testing.assert_array_equal(back[1][0], [0, 2, 4, 6, 8])
        assert back[1][1:] == ["text", {3: b"bytes"}]
        spool.release()


def test_nothing_but_empty_arrays() -> None:
    with spool.temporary_file() as file:
        (back,) = spool.restore(file, [spool.Spool(file).put(np.empty(0))])
    assert len(back) == 0


def test_values_are_kept_in_a_file_only_beside_columns_that_are() -> None:
    plain = np.arange(3)
    values = [np.arange(5), np.arange(7)]
    assert spool.keep(iter(values), plain)[0] is values[0]
    with spool.temporary_file() as file:
        (mapped,) = spool.restore(file, [spool.Spool(file).put(plain)])
    kept = spool.keep(iter(values), mapped)
    assert kept[0] is not values[0]
    np.testing.assert_array_equal(np.concatenate(kept), np.concatenate(values))
