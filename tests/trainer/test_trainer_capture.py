"""Real captures by a real nsys, on the CPU: NVTX only, no GPU kernels."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trainer_jobs as jobs

pytestmark = [pytest.mark.torch, pytest.mark.nsys]

LAYERS = 4
STEPS = 4
NO_SAMPLING = ["-s", "none", "--cpuctxsw", "none"]
"""With CPU sampling, its default, nsys 2022.4 sometimes spins for ever when a run ends."""


@dataclass
class Seen:
    """NVTX of one process, read without tracekit."""

    run: dict[str, object] = field(default_factory=dict)
    ranges: dict[tuple[str, str], list[int | None]] = field(default_factory=lambda: defaultdict(list))
    """(domain, name) -> payloads in order of start."""
    open: set[tuple[str, str]] = field(default_factory=set)


def export(report: Path) -> Path:
    database = report.with_suffix(".sqlite")
    done = subprocess.run(
        ["nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(database), str(report)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return database


def by_rank(database: Path) -> dict[int, Seen]:
    with sqlite3.connect(database) as connection:
        (stop,) = connection.execute("SELECT stopTime FROM ANALYSIS_DETAILS").fetchone()
        (length,) = connection.execute("SELECT duration FROM ANALYSIS_DETAILS").fetchone()
        texts = dict(connection.execute("SELECT id, value FROM StringIds"))
        rows = connection.execute(
            "SELECT globalTid >> 24, domainId, eventType, start, end, text, textId, int64Value"
            " FROM NVTX_EVENTS ORDER BY start"
        ).fetchall()
    domains = {(process, domain): text for process, domain, kind, _, _, text, _, _ in rows if kind == 75}
    processes: dict[int, Seen] = defaultdict(Seen)
    for process, domain, kind, _start, end, text, text_id, value in rows:
        name, where = text or texts.get(text_id, ""), domains.get((process, domain), "")
        if kind == 34 and where == "tracekit":
            processes[process].run = json.loads(name)
        if kind in (59, 60):
            processes[process].ranges[where, name].append(value)
            if end is None or end in (stop, length):
                processes[process].open.add((where, name))
    return {int(str(seen.run["rank"])): seen for seen in processes.values() if seen.run}


def tracekit(*arguments: str) -> jobs.Finished:
    return jobs.run([sys.executable, "-m", "tracekit", "analyze", *arguments], timeout_s=60)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script by its path, as anyone would type it, from a folder that is not the checkout."""
    folder = tmp_path_factory.mktemp("healthy")
    job = jobs.torchrun(str(jobs.ROOT / "instrumented_trainer" / "train.py"), "--device", "cpu", "--steps", str(STEPS))
    command = ["nsys", "profile", "-t", "cuda,nvtx", *NO_SAMPLING, "-f", "true", "-o", "report", *job]
    done = jobs.capture(command, timeout_s=90, cwd=folder)
    assert done.status == 0, done.err
    assert jobs.leftovers(done.token) == []
    return export(folder / "report.nsys-rep")


def test_both_ranks_describe_themselves(healthy: Path) -> None:
    seen = by_rank(healthy)
    assert set(seen) == {0, 1}
    for rank, process in seen.items():
        run = process.run
        assert (run["world_size"], run["local_rank"], run["strategy"], run["dtype"]) == (2, rank, "fsdp2", "float32")
        assert isinstance(run["model"], dict)
        assert (run["model"]["layers"], run["batch"], run["seq"]) == (LAYERS, 4, 64)


def test_steps_phases_and_modules_are_there_for_every_step(healthy: Path) -> None:
    for process in by_rank(healthy).values():
        assert process.ranges["tracekit", "step"] == list(range(STEPS))
        for name in ("data", "forward", "backward", "optimizer"):
            assert len(process.ranges["tracekit", name]) == STEPS
        for module in ("embed", "head", *(f"layers.{i}" for i in range(LAYERS))):
            assert len(process.ranges["tracekit", f"fwd/{module}"]) == STEPS
            assert len(process.ranges["tracekit", f"bwd/{module}"]) == STEPS
        assert not process.open


def test_collectives_carry_bytes_and_sequence_numbers(healthy: Path) -> None:
    layer, root = 197_888 * 4, 262_272 * 4  # bytes in float32, by hand
    for process in by_rank(healthy).values():
        gathers = process.ranges["tracekit.comm", "all_gather"]
        assert gathers == [root, *[layer] * 2 * LAYERS] * STEPS
        assert process.ranges["tracekit.comm", "reduce_scatter"] == [*[layer] * LAYERS, root] * STEPS
        numbers = process.ranges["tracekit.comm.detail", "world/float32"]
        assert numbers[: 14 * STEPS] == list(range(1, 14 * STEPS + 1))


def test_tracekit_says_in_one_line_that_there_is_no_gpu_work(healthy: Path) -> None:
    done = tracekit(str(healthy))
    assert done.status == 3
    assert done.out == ""
    assert done.err.splitlines()[0].endswith("NVTX ranges).")
    assert "no GPU work" in done.err


def test_tracekit_shows_steps_phases_and_collectives_of_both_ranks(healthy: Path, tmp_path: Path) -> None:
    done = tracekit(str(healthy), "--allow-no-gpu", "--json", str(tmp_path / "a.json"))
    assert done.status == 0, done.err
    assert "Rank 0" in done.out
    assert "Rank 1" in done.out
    for rank in json.loads((tmp_path / "a.json").read_text())["host_ranks"]:
        assert rank["rank_source"] == "trainer_mark"
        assert [step["step"] for step in rank["steps"]] == list(range(STEPS))
        assert set(rank["steps"][0]["by_phase_ns"]) == {"data", "forward", "backward", "optimizer"}
        counts = {c["op"]: (c["count"], c["bytes"]) for c in rank["collectives"]}
        assert counts["all_gather"] == (9 * STEPS, STEPS * 4 * (2 * 1_053_824 - 262_272))
        assert counts["reduce_scatter"] == (5 * STEPS, STEPS * 4 * 1_053_824)


def test_the_launcher_captures_after_warm_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "instrumented_trainer.profile", "--", "--device", "cpu", "--steps", "5"]
    done = jobs.capture(command, timeout_s=90, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "captured: capture.nsys-rep" in done.out
    assert "Rank 1" in done.out  # the analysis that follows
    seen = by_rank(tmp_path / "capture.sqlite")
    assert set(seen) == {0, 1}
    for process in seen.values():
        assert process.ranges["tracekit", "step"] == [3, 4]
        assert process.open <= {("tracekit", "capture")}  # whoever closes its own last no longer gets it recorded
    assert jobs.leftovers(done.token) == []


def assert_hang_is_seen(seen: dict[int, Seen]) -> None:
    """Rank 1 sleeps in layer 2 of step 2, and rank 0 waits in the gather of layer 3 that rank 1 never comes to."""
    assert set(seen) == {0, 1}
    for rank, layer in ((0, 3), (1, 2)):
        ranges = seen[rank].open
        assert {("tracekit", "step"), ("tracekit", "forward"), ("tracekit", f"fwd/layers.{layer}")} <= ranges
        assert seen[rank].ranges["tracekit", "step"][-1] == 2
    assert ("tracekit.comm", "all_gather") in seen[0].open
    assert ("tracekit.comm", "all_gather") not in seen[1].open
    last = {rank: process.ranges["tracekit.comm.detail", "world/float32"][-1] for rank, process in seen.items()}
    assert last[0] == last[1] + 1  # type: ignore[operator]


HANG = ["--device", "cpu", "--steps", "10", "--fault", "hang", "--fault-step", "2"]


def test_an_interrupted_hang_leaves_the_open_ranges(tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    profiler = ["nsys", "profile", "-t", "nvtx", *NO_SAMPLING, "-o", "hang"]
    command = [*profiler, *jobs.torchrun("-m", "instrumented_trainer", *HANG, "--log-every", "1")]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(command, cwd=tmp_path, env=jobs.environment(token), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 150
        while "step    1" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(3)  # into the hang
        os.kill(job.pid, signal.SIGINT)
        job.wait(timeout=120)
        remaining = jobs.leftovers(token)
    finally:
        jobs.end_all(token)
        job.wait()
    assert remaining == []
    database = export(tmp_path / "hang.nsys-rep")
    assert_hang_is_seen(by_rank(database))
    done = tracekit(str(database), "--allow-no-gpu")
    assert done.status == 0
    assert "step 2 was never left" in done.out


def test_the_launcher_interrupts_a_hang_with_one_report_a_rank(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "instrumented_trainer.profile",
        "--per-rank",
        "--warm-up",
        "0",
        "--hang-after",
        "30",
    ]
    done = jobs.capture([*command, "--", *HANG], timeout_s=120, cwd=tmp_path)
    assert done.status == 1
    assert "the job still ran after 30 s; interrupting it so that the report survives" in done.err
    seen = {**by_rank(tmp_path / "capture.0.sqlite"), **by_rank(tmp_path / "capture.1.sqlite")}
    assert_hang_is_seen(seen)
    assert jobs.leftovers(done.token) == []
