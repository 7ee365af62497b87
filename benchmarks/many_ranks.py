"""Measure `tracekit analyze` on 8 to 64 captures of one job: does time grow with the ranks, and memory less?

    python benchmarks/many_ranks.py
    python benchmarks/many_ranks.py --ranks 4 8 16 --kernels 200_000

Each number of ranks is measured in turn, and all of them several times over, so that a drift of the machine meets all
alike; the least of each counts. Memory is the resident set of the largest process, and the memory of all processes
together that no file stands for (sampled, Linux only): what mapped columns take can be dropped at any time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speed import Run, measure

HERE = Path(__file__).resolve().parent
SAMPLED_EVERY_S = 0.02


@dataclass(frozen=True)
class ManyRun:
    """What one analysis took."""

    run: Run
    anonymous_mb: float
    """Most memory of all its processes at one time, mapped files left out."""


class Sampler(threading.Thread):
    """Watches the anonymous memory of all descendants of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_kb = 0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        while not self._stop_asked.wait(SAMPLED_EVERY_S):
            self.peak_kb = max(self.peak_kb, sum(map(anonymous_kb, descendants("self"))))

    def finish(self) -> float:
        self._stop_asked.set()
        self.join()
        return self.peak_kb * 1024 / 1e6


def descendants(pid: str) -> list[str]:
    found: list[str] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in read(children).split():
            found += [child, *descendants(child)]
    return found


def anonymous_kb(pid: str) -> int:
    lines = read(Path(f"/proc/{pid}/status")).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


def measure_many(tracekit: str, captures: Sequence[Path]) -> ManyRun:
    sampler = Sampler()
    sampler.start()
    run = measure([tracekit, "analyze", *map(str, captures), "--json", "-"])
    return ManyRun(run, sampler.finish())


def report(ranks: Sequence[int], runs: dict[int, list[ManyRun]]) -> None:
    print(f"{'ranks':>6} {'wall s':>8} {'CPU s':>8} {'CPU ms a rank':>14} {'largest MB':>11} {'anonymous MB':>13}")
    figures = {}
    for n in ranks:
        wall = min(each.run.wall_s for each in runs[n])
        cpu = min(each.run.cpu_s for each in runs[n])
        largest = min(each.run.peak_mb for each in runs[n])
        anonymous = min(each.anonymous_mb for each in runs[n])
        figures[n] = wall, cpu, largest, anonymous
        print(f"{n:6} {wall:8.2f} {cpu:8.2f} {1000 * cpu / n:14.0f} {largest:11.0f} {anonymous:13.0f}")
    first, last = ranks[0], ranks[-1]
    growth = [b / a if a else float("nan") for a, b in zip(figures[first], figures[last], strict=True)]
    words = ("wall", "CPU", "largest process", "anonymous memory")
    print(f"\nfrom {first} to {last} ranks, {last / first:.0f} times as many: ", end="")
    print(", ".join(f"{word} x{ratio:.1f}" for word, ratio in zip(words, growth, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64], help="numbers of ranks to measure")
    parser.add_argument("--kernels", type=int, default=50_000, help="kernels a rank")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.add_argument(
        "--tracekit", default=str(Path(sysconfig.get_path("scripts")) / "tracekit"), help="the command to measure"
    )
    arguments = parser.parse_args()
    ranks = sorted(set(arguments.ranks))
    with tempfile.TemporaryDirectory() as folder:
        captures = [Path(folder) / f"rank{rank}.sqlite" for rank in range(ranks[-1])]
        for rank, capture in enumerate(captures):
            which = ["--kernels", str(arguments.kernels), "--first-rank", str(rank)]
            command = [sys.executable, str(HERE / "generate.py"), str(capture), *which]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        size_mb = sum(capture.stat().st_size for capture in captures) / 1e6
        print(f"{len(captures)} captures of {arguments.kernels:,} kernels, {size_mb:,.0f} MB, {os.cpu_count()} cores")
        measure_many(arguments.tracekit, captures[: ranks[0]])
        runs: dict[int, list[ManyRun]] = {n: [] for n in ranks}
        for _ in range(arguments.rounds):
            for n in ranks:
                runs[n].append(measure_many(arguments.tracekit, captures[:n]))
    report(ranks, runs)


if __name__ == "__main__":
    main()
