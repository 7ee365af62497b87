"""What an annotation costs: without a tool, and under nsys where it is installed.

``python benchmarks/annotation_cost.py`` prints microseconds as JSON. It runs itself again under nsys.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from instrumented_trainer import annotate

REPEATS, ROUNDS = 2000, 7


def microseconds(call: Callable[[int], object]) -> float:
    """Median over rounds of the mean time of one call."""
    rounds = []
    for round_number in range(ROUNDS):
        start = time.perf_counter()
        for i in range(REPEATS):
            call(round_number * REPEATS + i)
        rounds.append((time.perf_counter() - start) / REPEATS * 1e6)
    return round(statistics.median(rounds), 2)


def repeated_text(number: int) -> None:
    with annotate.span("cost", number):
        pass


def new_text(number: int) -> None:
    with annotate.span(f"cost {number}"):
        pass


def measure() -> dict[str, float]:
    x = torch.zeros(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    bare = microseconds(lambda _: dist.all_reduce(x))
    annotate.collectives()
    annotated = microseconds(lambda _: dist.all_reduce(x))
    dist.destroy_process_group()
    return {
        "range_us": microseconds(repeated_text),
        "range_with_a_new_text_us": microseconds(new_text),
        "collective_added_us": round(annotated - bare, 2),
    }


def main() -> None:
    if "--inner" in sys.argv:
        print("RESULT", json.dumps(measure()))
        return
    result = {"without a tool": measure()}
    if shutil.which("nsys"):
        with tempfile.TemporaryDirectory() as folder:
            command = ["nsys", "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw", "none", "-o", f"{folder}/cost"]
            done = subprocess.run(
                [*command, sys.executable, __file__, "--inner"],
                capture_output=True, text=True, check=True, timeout=300,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )  # fmt: skip
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
        result["under nsys"] = json.loads(line.removeprefix("RESULT"))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
