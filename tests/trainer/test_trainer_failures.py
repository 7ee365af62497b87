"""A rank that fails ends the job, is named, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
import trainer_jobs as jobs

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("nvtx", reason="needs nvtx")

from instrumented_trainer.failures import RollCall  # noqa: E402

pytestmark = pytest.mark.torch

LOST = RuntimeError("gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")


def words(store: Any, rank: int, **said: Any) -> None:
    store.set(f"tracekit/words/{rank}", json.dumps(said))


@pytest.fixture
def store() -> Any:
    return torch.distributed.HashStore()


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def alive_as(store: Any, rank: int, pid: int, host: str | None = None) -> None:
    store.set(f"tracekit/alive/{rank}", json.dumps({"pid": pid, "host": host or socket.gethostname()}))


def test_a_rank_without_a_process_and_a_word_failed_first(store: Any) -> None:
    alive_as(store, 1, ended_process())
    line = RollCall(store, 0, 2).explain(LOST)
    assert line is not None
    assert line.startswith("rank 1 failed first: its process is gone without a word")


def test_a_rank_with_an_error_of_its_own_failed_before_its_victims(store: Any) -> None:
    words(store, 2, at=5.0, error="IndexError: nothing there", victim=False, last="")
    words(store, 1, at=1.0, error="RuntimeError: closed", victim=True, last="")
    assert RollCall(store, 0, 3).explain(LOST) == "rank 2 failed first: IndexError: nothing there"


def test_a_rank_that_runs_and_says_nothing_stopped_answering(store: Any) -> None:
    alive_as(store, 1, os.getpid())
    started = time.monotonic()
    line = RollCall(store, 0, 2).explain(LOST)
    assert line is not None
    assert line.startswith("rank 1 stopped answering first: its process still runs")
    assert time.monotonic() - started < 5


def test_a_process_of_another_machine_is_not_looked_for_here(store: Any) -> None:
    alive_as(store, 1, ended_process(), host="elsewhere")
    line = RollCall(store, 0, 2).explain(LOST)
    assert line is not None
    assert "stopped answering" in line


def test_where_all_speak_their_last_collectives_are_compared(store: Any) -> None:
    words(store, 1, at=1.0, error="RuntimeError: timed out", victim=True, last="all_reduce 7 of group world")
    line = RollCall(store, 0, 2).explain(LOST)
    assert line is not None
    assert "rank 0 at no collective; rank 1 at all_reduce 7 of group world" in line


def test_a_rank_that_was_told_to_end_is_not_blamed_for_a_failure(store: Any) -> None:
    words(store, 1, signal=15)
    alive_as(store, 1, ended_process())
    line = RollCall(store, 0, 2).explain(LOST)
    assert line is not None
    assert line.startswith("rank 1 was ended by a signal")


def test_one_rank_speaks_for_all(store: Any) -> None:
    first, second = RollCall(store, 0, 2), RollCall(store, 1, 2)
    assert first.explain(ValueError("mine")) == "rank 0 failed first: ValueError: mine"
    assert second.explain(LOST) is None


FATAL = {
    "exit": (["--fault", "exit"], r"rank 1 failed first: its process is gone without a word"),
    "hang": (["--fault", "hang", "--timeout", "5"], r"rank 1 stopped answering first"),
    "reorder": (["--fault", "reorder", "--timeout", "5"],
                r"rank 0 at all_reduce 1 of group first .*rank 1 at all_reduce 1 of group second"),
    "skip-step": (["--fault", "skip-step", "--timeout", "5"],
                  r"rank 0 at all_gather (\d+) of group world .*rank 1 at all_reduce \1 of group world"
                  r"|rank 1 finished before"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FATAL)
def test_the_job_ends_in_time_names_the_culprit_and_leaves_no_process(fault: str) -> None:
    flags, verdict = FATAL[fault]
    started = time.monotonic()
    done = jobs.train("--device", "cpu", "--steps", "5", *flags)
    assert done.status != 0
    assert time.monotonic() - started < 60
    said = done.said()
    assert len(said) == 1, done.err
    assert re.search(verdict, said[0]), said
    assert jobs.leftovers(done.token) == []


def test_wrong_usage_is_one_line_of_one_rank_and_leaves_no_process() -> None:
    done = jobs.train("--strategy", "hsdp", "--shard-size", "3")
    assert done.status != 0
    assert done.said() == [
        "instrumented_trainer: hsdp cannot split 2 ranks into shard groups of 3; --shard-size can be 1, 2"
    ]
    assert jobs.leftovers(done.token) == []


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meeting = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
        }
        done = jobs.run([sys.executable, "-m", "instrumented_trainer", "--steps", "1"], timeout_s=60, **meeting)
    assert done.status == 2
    assert len(done.said()) == 1
    assert f"the ranks cannot meet at 127.0.0.1:{meeting['MASTER_PORT']}" in done.said()[0]


def test_too_few_gpus_is_one_line() -> None:
    done = jobs.train("--device", "cuda", ranks=2)
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs")
    assert done.status != 0
    assert len(done.said()) == 1
    assert "2 ranks on this machine need as many GPUs" in done.said()[0]


def test_missing_deepspeed_is_one_line() -> None:
    blocked = (
        "import sys; sys.modules['deepspeed'] = None; sys.argv = ['', '--strategy', 'zero3'];"
        "from instrumented_trainer.train import main; raise SystemExit(main())"
    )
    done = jobs.run([sys.executable, "-c", blocked], timeout_s=60)
    assert done.status == 2
    assert len(done.said()) == 1
    assert 'pip install "nsys-tracekit[deepspeed]"' in done.said()[0]


def test_a_result_that_cannot_be_written_is_one_line() -> None:
    done = jobs.run(
        [sys.executable, "-m", "instrumented_trainer", "--steps", "1", "--strategy", "single", "--json", "/nowhere/x"],
        timeout_s=60,
    )
    assert done.status == 2
    assert done.said() == ["instrumented_trainer: cannot write /nowhere/x: No such file or directory"]
