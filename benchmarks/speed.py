"""Measure `tracekit analyze` against a process that only reads the same columns, turn by turn.

    python benchmarks/speed.py                        on a generated capture of 1 M kernels
    python benchmarks/speed.py --capture own.sqlite --pairs 9

Each runs in a process of its own: A B A B ..., after one unmeasured turn of each, so that a drift of the machine meets
both alike. Reported are wall time, CPU time and peak memory of each, and the ratio pair by pair. `tracekit --help` is
timed too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Run:
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: Sequence[str]) -> Run:
    """Run a command to its end, its output thrown away.

    This module imports little on purpose: Linux counts the parent's memory at the fork into the child's peak.
    """
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit status {process.returncode}: {' '.join(command)}")
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * MAXRSS_UNIT_BYTES / 1e6)


def report(title: str, runs: Sequence[Run]) -> None:
    print(f"\n{title}")
    figures: dict[str, Callable[[Run], float]] = {
        "wall s": lambda run: run.wall_s,
        "CPU s": lambda run: run.cpu_s,
        "peak MB": lambda run: run.peak_mb,
    }
    for name, figure in figures.items():
        values = [figure(run) for run in runs]
        digits = 0 if name == "peak MB" else 2
        spread = (f"{value:9.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
        print(f"  {name:8}", *spread)


def compare(tracekit: str, capture: Path, pairs: int) -> None:
    analyze = [tracekit, "analyze", str(capture), "--no-rules", "--json", "-"]
    read_only = [sys.executable, str(HERE / "read_only.py"), str(capture)]
    measure(analyze)
    measure(read_only)
    turns = [(measure(analyze), measure(read_only)) for _ in range(pairs)]
    print(f"{capture.name}: {capture.stat().st_size / 1e6:,.0f} MB, {pairs} pairs, {os.cpu_count()} cores")
    print(f"{'':10} {'min':>9} {'median':>9} {'max':>9}")
    report("tracekit analyze --no-rules --json -", [a for a, _ in turns])
    report("reading the same columns only", [b for _, b in turns])
    wall = [ours.wall_s / floor.wall_s for ours, floor in turns]
    cpu = [ours.cpu_s / floor.cpu_s for ours, floor in turns]
    print("\nratio of wall time, pair by pair:", " ".join(f"{ratio:.2f}" for ratio in wall))
    print(f"  median {statistics.median(wall):.2f}; of CPU time {statistics.median(cpu):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capture", type=Path, help="an nsys SQLite export (default: generate one)")
    parser.add_argument("--kernels", type=int, default=1_000_000, help="size of the generated capture")
    parser.add_argument("--processes", type=int, default=1, help="processes in the generated capture")
    parser.add_argument("--pairs", type=int, default=5, help="measured turns of each (at least 5)")
    parser.add_argument(
        "--tracekit", default=str(Path(sysconfig.get_path("scripts")) / "tracekit"), help="the command to measure"
    )
    arguments = parser.parse_args()
    if arguments.pairs < 5:
        parser.error("fewer than 5 pairs say little")
    with tempfile.TemporaryDirectory() as folder:
        capture = arguments.capture
        if capture is None:
            capture = Path(folder) / "generated.sqlite"
            size = ["--kernels", str(arguments.kernels), "--processes", str(arguments.processes)]
            subprocess.run([sys.executable, str(HERE / "generate.py"), str(capture), *size], check=True)
        compare(arguments.tracekit, capture, arguments.pairs)
    measure([arguments.tracekit, "--help"])
    report("tracekit --help", [measure([arguments.tracekit, "--help"]) for _ in range(arguments.pairs)])


if __name__ == "__main__":
    main()
