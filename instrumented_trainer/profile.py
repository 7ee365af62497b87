"""Capture a training job with nsys, with the flags that tracekit needs; stop it if it hangs, export, analyse.

::

    python -m instrumented_trainer.profile -- --strategy fsdp2 --steps 10
    python -m instrumented_trainer.profile --dry-run -- --strategy fsdp2 --steps 10
    python -m instrumented_trainer.profile --hang-after 60 -- --steps 10 --fault hang

A hung job is interrupted, never killed: nsys then writes the report with the ranges that were open, and a kill would
leave none.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from instrumented_trainer.config import Config, check_world, parse
from instrumented_trainer.errors import TrainerError
from instrumented_trainer.processes import MARK, end, marked

CAPTURE_ENV = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
"""Lets nsys open the capture at a range whose text it learns at run time."""
REPORT_PATIENCE_S = 120
"""How long nsys may take to write a report after an interrupt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The commands of one capture, in order, and what they write."""

    job: list[str]
    reports: list[Path]
    exports: list[list[str]]
    analyze: list[str] | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise TrainerError(message, hint="--help lists the flags; the trainer's own come after --")


def parser() -> argparse.ArgumentParser:
    """The command line, without the trainer's flags after ``--``."""
    p = _Parser(
        prog="instrumented_trainer.profile", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Capture a training job with nsys. Flags after -- are the trainer's.",
        usage="%(prog)s [flags] -- [trainer's flags]",
    )  # fmt: skip
    p.add_argument(
        "--output", default="capture", metavar="NAME", help="reports are NAME.nsys-rep, or NAME.RANK.nsys-rep"
    )
    p.add_argument("--nproc", type=int, default=2, help="ranks on this machine")
    p.add_argument("--per-rank", action="store_true", help="one report a rank instead of one a machine")
    p.add_argument("--warm-up", type=int, default=3, metavar="STEPS", help="steps before the capture; 0 captures all")
    p.add_argument("--trace", default="cuda,nvtx", help="what nsys traces; osrt adds system calls and much size")
    p.add_argument("--nic-metrics", action="store_true", help="sample the network cards")
    p.add_argument("--gpu-metrics", action="store_true", help="sample the GPUs; needs rights")
    p.add_argument("--hang-after", type=float, metavar="SECONDS", help="interrupt a job that runs longer than this")
    p.add_argument("--analyze", action=argparse.BooleanOptionalAction, default=True, help="run tracekit on the capture")
    p.add_argument("--port", type=int, help="where the ranks of one machine meet; any free one")
    p.add_argument("--nnodes", type=int, default=1, help="machines; start this command on each")
    p.add_argument("--node-rank", type=int, default=0, help="which machine this is")
    p.add_argument("--rendezvous", metavar="HOST:PORT", help="where the machines meet; needed for --nnodes above 1")
    p.add_argument("--slurm", action="store_true", help="print a batch script for --nnodes machines and stop")
    p.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    return p


def plan(flags: argparse.Namespace, trainer: Sequence[str], config: Config) -> Plan:
    """The commands for these flags; nothing is run.

    Raises:
        TrainerError: several machines have no place to meet.
    """
    if flags.nnodes > 1 and flags.rendezvous is None:
        raise TrainerError("--nnodes above 1 needs --rendezvous HOST:PORT", hint="or --slurm for a batch script")
    suffixes = [""]
    if flags.per_rank:
        first = flags.node_rank * flags.nproc
        suffixes = [f".{rank}" for rank in range(first, first + flags.nproc)]
    elif flags.nnodes > 1:
        suffixes = [f".node{flags.node_rank}"]
    bases = [Path(f"{flags.output}{suffix}") for suffix in suffixes]
    reports = [base.with_name(base.name + ".nsys-rep") for base in bases]
    databases = [base.with_name(base.name + ".sqlite") for base in bases]
    exports = [
        ["nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(to), str(report)]
        for report, to in zip(reports, databases, strict=True)
    ]
    analyze = [sys.executable, "-m", "tracekit", "analyze", *map(str, databases)]
    if not has_gpu(config):
        analyze.append("--allow-no-gpu")
    job = _job(flags, trainer, str(bases[0]))
    return Plan(job=job, reports=reports, exports=exports, analyze=analyze if flags.analyze else None)


def _job(flags: argparse.Namespace, trainer: Sequence[str], output: str) -> list[str]:
    program = ["-m", "instrumented_trainer", *trainer]
    if flags.warm_up and "--capture-after" not in trainer:
        program += ["--capture-after", str(flags.warm_up)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(flags.nproc), *_meeting(flags)]
    if flags.per_rank:
        profiled = nsys_profile(flags, f"{flags.output}.%q{{RANK}}")
        shield = [sys.executable, "-m", "instrumented_trainer.rank_capture"]
        return [*torchrun, "--no-python", *shield, *profiled, sys.executable, "-u", *program]
    return [*nsys_profile(flags, output), *torchrun, *program]


def _meeting(flags: argparse.Namespace) -> list[str]:
    if flags.nnodes > 1:
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", flags.rendezvous]
        return ["--nnodes", str(flags.nnodes), "--node-rank", str(flags.node_rank), *where]
    if flags.port is not None:
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{flags.port}"]
    return ["--standalone"]


def nsys_profile(flags: argparse.Namespace, output: str) -> list[str]:
    """The ``nsys profile`` part of the command."""
    command = ["nsys", "profile", "--output", output, "--force-overwrite", "true", "--trace", flags.trace]
    command += ["--sample", "none", "--cpuctxsw", "none"]
    if "cuda" in flags.trace.split(","):
        # Kernels of graphs one by one, and the allocations behind allocator stalls.
        command += ["--cuda-graph-trace", "node", "--cuda-memory-usage", "true"]
    if flags.nic_metrics:
        command += ["--nic-metrics", "true"]
    if flags.gpu_metrics:
        command += ["--gpu-metrics-device", "all"]
    if flags.warm_up:
        command += ["--capture-range", "nvtx", "--nvtx-capture", "capture@tracekit", "--capture-range-end", "stop"]
    return command


def has_gpu(config: Config) -> bool:
    """Whether the job will find an NVIDIA GPU here, as far as can be told without torch."""
    return config.device != "cpu" and Path("/proc/driver/nvidia/version").exists()


def slurm_script(flags: argparse.Namespace, trainer: Sequence[str]) -> str:
    """A batch script that captures on every machine of a SLURM job."""
    flags.rendezvous, flags.node_rank = "$HEAD:29500", 0
    job = _job(flags, trainer, f"{flags.output}.node%q{{SLURM_NODEID}}")
    line = shlex.join(job).replace(shlex.quote("$HEAD:29500"), '"$HEAD:29500"').replace(sys.executable, "python")
    line = line.replace("--node-rank 0", '--node-rank "$SLURM_NODEID"')
    env = " ".join(f"{name}={value}" for name, value in CAPTURE_ENV.items())
    return "\n".join((
        "#!/bin/bash",
        f"#SBATCH --nodes={flags.nnodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={flags.nproc}",
        "# Before the time is up SLURM interrupts each step, so that nsys can still write its report.",
        f"#SBATCH --signal=INT@{REPORT_PATIENCE_S}",
        'export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export {env}",
        f"srun --kill-on-bad-exit=0 bash -c {shlex.quote('exec ' + line)}",
    ))  # fmt: skip


def check_ready(flags: argparse.Namespace) -> None:
    """Make sure that the commands can start.

    Raises:
        TrainerError: nsys is missing, or the port is taken.
    """
    if shutil.which("nsys") is None:
        raise TrainerError(
            "nsys is not on the PATH",
            hint="install Nsight Systems (Debian: nsight-systems from contrib and non-free; docs/how-to/capture.md)",
        )
    if flags.port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("localhost", flags.port))
            except OSError:
                raise TrainerError(f"port {flags.port} is in use", hint="choose another --port, or none") from None


def run_job(command: list[str], *, patience_s: float | None, log: IO[bytes] | None = None) -> tuple[int, str | None]:
    """Run the profiled job, its output into ``log``; returns its exit status, and why it was interrupted or None.

    Whatever it started is gone when this returns.
    """
    # In a session of its own, so that an interrupt at the terminal comes here first and reaches nsys once.
    token = uuid.uuid4().hex
    env = {**os.environ, **CAPTURE_ENV, MARK: token}
    job = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    status, reason = 1, None
    try:
        status = job.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        reason = f"the job still ran after {patience_s:g} s"
    except KeyboardInterrupt:
        reason = "interrupted"
    finally:
        if reason is not None:
            print(
                f"instrumented_trainer.profile: {reason}; interrupting it so that the report survives", file=sys.stderr
            )
            status = interrupt(job, token)
        _wait_while(lambda: any(_words(process.pid)[:2] == ["nsys", "profile"] for process in marked(token)))
        end(marked(token))
    return status, reason


def interrupt(job: subprocess.Popen[bytes], token: str) -> int:
    """Ask whoever holds nsys to stop and write; ask again more firmly, and kill only at the very end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        ranks = [p.pid for p in marked(token) if "instrumented_trainer.rank_capture" in _words(p.pid)[:3]]
        for pid in ranks or [job.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _wait_while(lambda: job.poll() is None):
            return job.returncode
    job.kill()
    return job.wait()


def _wait_while(condition: Callable[[], bool]) -> bool:
    """Wait up to REPORT_PATIENCE_S for a condition to end; returns whether it has."""
    deadline = time.monotonic() + REPORT_PATIENCE_S
    while condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _words(pid: int) -> list[str]:
    """Command line of a process, the program without its folder; empty when it has ended."""
    try:
        program, *rest = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return [Path(program).name, *rest]


def finish(work: Plan, status: int, reason: str | None) -> int:
    """Export and analyse what the job left; returns the exit status of the command line."""
    missing = [report for report in work.reports if not report.exists()]
    if missing:
        raw = missing[0].with_suffix(".qdstrm")
        hint = (
            f"nsys left {raw} and did not find its importer (docs/how-to/capture.md, Debian)" if raw.exists()
            else "the job failed before the capture began, or nsys was killed"
        )  # fmt: skip
        raise TrainerError(f"no report {missing[0]}", hint=hint)
    for command in work.exports:
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise TrainerError(f"nsys cannot export {command[-1]}")
    print(f"captured: {', '.join(map(str, work.reports))}", flush=True)
    if work.analyze is not None and (analysis := subprocess.run(work.analyze, check=False).returncode):
        return analysis
    return 1 if status or reason else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0 done, 1 the job failed or hung, 2 wrong usage or no report, else tracekit's own status."""
    given = list(sys.argv[1:] if argv is None else argv)
    split = given.index("--") if "--" in given else len(given)
    trainer = given[split + 1 :]
    try:
        flags = parser().parse_args(given[:split])
        if flags.warm_up and "--capture-after" not in trainer:
            config = parse([*trainer, "--capture-after", str(flags.warm_up)])
        else:
            config = parse(trainer)
        check_world(config, flags.nproc * flags.nnodes, device="cuda" if has_gpu(config) else "cpu")
        if flags.slurm:
            print(slurm_script(flags, trainer))
            return 0
        work = plan(flags, trainer, config)
        if flags.dry_run:
            env = " ".join(f"{name}={value}" for name, value in CAPTURE_ENV.items())
            rest = [*work.exports, *([work.analyze] if work.analyze else [])]
            print("\n".join([f"{env} {shlex.join(work.job)}", *map(shlex.join, rest)]))
            return 0
        check_ready(flags)
        for report in work.reports:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.unlink(missing_ok=True)
        return finish(work, *run_job(work.job, patience_s=flags.hang_after))
    except TrainerError as error:
        print(f"instrumented_trainer.profile: {error.line()}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
