"""The launcher: the command lines that it builds, what it refuses, and how it ends a job."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instrumented_trainer import processes, profile

HANGS = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert profile.main(["--dry-run", *arguments]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dry_run_prints_job_export_and_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    job, export, analyze = dry_run(capsys, "--", "--strategy", "fsdp2", "--steps", "10")
    assert job[:2] == ["NSYS_NVTX_PROFILER_REGISTER_ONLY=0", "nsys"]
    assert " --trace cuda,nvtx " in shlex.join(job)
    assert " --cuda-graph-trace node --cuda-memory-usage true " in shlex.join(job)
    assert " --capture-range nvtx --nvtx-capture capture@tracekit --capture-range-end stop " in shlex.join(job)
    assert job[-8:] == ["-m", "instrumented_trainer", "--strategy", "fsdp2", "--steps", "10", "--capture-after", "3"]
    assert job.index("nsys") < job.index("torch.distributed.run") < job.index("instrumented_trainer")
    assert export[:4] == ["nsys", "export", "--type", "sqlite"]
    assert export[-2:] == ["capture.sqlite", "capture.nsys-rep"]
    assert analyze[1:5] == ["-m", "tracekit", "analyze", "capture.sqlite"]


def test_one_report_a_rank_puts_nsys_under_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    job, *exports, analyze = dry_run(capsys, "--per-rank", "--nproc", "4", "--output", "run", "--", "--steps", "10")
    assert (
        job.index("torch.distributed.run")
        < job.index("--no-python")
        < job.index("instrumented_trainer.rank_capture")
        < job.index("nsys")
    )
    assert job[job.index("--output") + 1] == "run.%q{RANK}"
    assert [export[-1] for export in exports] == [f"run.{rank}.nsys-rep" for rank in range(4)]
    assert analyze[4:8] == [f"run.{rank}.sqlite" for rank in range(4)]


def test_flags_change_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    machines = ["--nnodes", "2", "--node-rank", "1", "--rendezvous", "head:29500"]
    metrics = ["--nic-metrics", "--gpu-metrics"]
    job, _ = dry_run(
        capsys, "--warm-up", "0", *metrics, "--trace", "nvtx", "--no-analyze", *machines, "--", "--steps", "2"
    )
    line = shlex.join(job)
    assert "--nic-metrics true --gpu-metrics-device all" in line
    assert "--nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint head:29500" in line
    for absent in ("--capture-range", "--capture-after", "--cuda-graph-trace", "--standalone"):
        assert absent not in line


def test_the_batch_script_is_valid_shell_and_names_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["--slurm", "--nnodes", "2", "--nproc", "8", "--", "--steps", "10"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "#SBATCH --nodes=2" in script
    assert "capture.node%q{SLURM_NODEID}" in script
    # What bash hands to torchrun on machine 1 of two, with stand-ins for SLURM's commands.
    printing = script.replace("exec nsys", r"printf %s\\n nsys")
    stand_ins = 'scontrol() { echo one; echo two; }; srun() { shift; "$@"; }; export SLURM_NODEID=1'
    ran = subprocess.run(["bash", "-c", f"{stand_ins}\n{printing}"], capture_output=True, text=True, check=True)
    words = ran.stdout.split("\n")
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--rdzv-endpoint") + 1] == "one:29500"


REFUSED = {
    ("--nprocs", "2"): "unrecognized arguments: --nprocs",
    ("--nnodes", "2"): "needs --rendezvous",
    ("--", "--strategy", "ddd"): "invalid choice: 'ddd'",
    ("--nproc", "7", "--", "--strategy", "hsdp"): "cannot split 7 ranks",
    ("--", "--steps", "2"): "leaves none of --steps 2",
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.items())
def test_what_cannot_work_is_refused_before_anything_starts(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile.main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert reason in error


def test_a_missing_nsys_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert profile.main(["--", "--steps", "10"]) == 2
    assert capsys.readouterr().err.startswith("instrumented_trainer.profile: nsys is not on the PATH; install")


def test_a_port_in_use_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(profile.shutil, "which", lambda name: f"/usr/bin/{name}")
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert profile.main(["--port", str(port), "--", "--steps", "10"]) == 2
    assert (
        capsys.readouterr().err
        == f"instrumented_trainer.profile: port {port} is in use; choose another --port, or none\n"
    )


def test_a_missing_report_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def finish() -> str:
        work = profile.Plan(job=[], reports=[tmp_path / "x.nsys-rep"], exports=[], analyze=None)
        with pytest.raises(profile.TrainerError) as missing:
            profile.finish(work, 0, None)
        return missing.value.line()

    assert "the job failed before the capture began" in finish()
    (tmp_path / "x.qdstrm").touch()
    assert "did not find its importer" in finish()


def test_a_job_that_ends_gives_its_status(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-c", "print('out'); raise SystemExit(3)"]
        assert profile.run_job(command, patience_s=30, log=log) == (3, None)
    assert (tmp_path / "log").read_text() == "out\n"


def test_a_job_that_outlasts_its_time_is_interrupted_then_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "REPORT_PATIENCE_S", 1)
    started = time.monotonic()
    status, reason = profile.run_job([sys.executable, "-c", HANGS], patience_s=1)
    assert reason == "the job still ran after 1 s"
    assert status == -signal.SIGTERM  # it ignores the interrupt
    assert time.monotonic() - started < 20


def test_what_a_job_leaves_behind_is_ended_though_its_parent_is_gone() -> None:
    """A child in a session of its own that ignores interrupts, as a rank under torchrun may be."""
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HANGS!r}], start_new_session=True)"
    before = set(living_hangs())
    status, reason = profile.run_job([sys.executable, "-c", child], patience_s=30)
    assert (status, reason) == (0, None)
    assert set(living_hangs()) <= before


def living_hangs() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        found += [entry.name] if HANGS.encode() in words else []
    return found


def test_ending_leaves_a_later_process_with_the_same_number_alone() -> None:
    other = subprocess.Popen([sys.executable, "-c", HANGS])
    try:
        processes.end([processes.Process(other.pid, start=1)])
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
