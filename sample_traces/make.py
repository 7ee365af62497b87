"""Make the sample traces: lay out each job, write it as nsys would export it, and put beside it what is true of it.

    python sample_traces/make.py [--out DIR] [NAME...]

Needs nothing but Python's standard library. The same names give the same rows every time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nsys_writer import Writer
from placed import Capture
from scenarios import SCENARIOS, Scenario
from strategies import Strategy
from truth import collectives_truth, kernels_truth, rank_truth, steady_truth

LONGEST_LINE = 320
DEEPEST_BROKEN_LEVEL = 4


def make(scenario: Scenario, out: Path) -> list[Path]:
    """Write a sample's captures and its expected.json; returns the captures' paths."""
    strategy = scenario.build()
    captures = scenario.captures(strategy.job)
    paths = [Writer(strategy.job, capture, scenario.schema).write(out) for capture in captures]
    facts = layered(expected(scenario, strategy, captures))
    (out / f"{scenario.name}.expected.json").write_text(facts + "\n", encoding="utf-8")
    return paths


def expected(scenario: Scenario, strategy: Strategy, captures: list[Capture]) -> dict[str, object]:
    """What is true of a sample; README.md says what each key means."""
    job = strategy.job
    home = {rank: capture for capture in captures for rank in capture.ranks}
    ranks = {str(rank.rank): rank_truth(rank, home[rank.rank], home[0], phases=job.annotated) for rank in job.ranks}
    steady = steady_truth(ranks)
    return {
        "sample": scenario.name,
        "truth": scenario.truth,
        "captures": [capture.path for capture in captures],
        "schema_version": scenario.schema.version,
        "strategy": strategy.name,
        "world_size": job.world_size,
        "fault_rank": scenario.fault_rank,
        "findings": list(scenario.findings),
        "kernels": {capture.path: kernels_truth(job.ranks[rank] for rank in capture.ranks) for capture in captures},
        "steady": steady,
        "collectives": collectives_truth(job, steady["steps"], payloads=scenario.schema.payload_blobs),
        "ranks": ranks,
    }


def layered(value: object, depth: int = 0) -> str:
    """JSON with one line for each step: readable, and a change shows as the lines that it concerns."""
    line = json.dumps(value)
    if depth >= DEEPEST_BROKEN_LEVEL or len(line) <= LONGEST_LINE or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {layered(item, depth + 1)}" for key, item in value.items()]
        brackets = "{}"
    else:
        parts = [layered(item, depth + 1) for item in value]
        brackets = "[]"
    indent = " " * (depth + 1)
    return brackets[0] + "\n" + ",\n".join(indent + part for part in parts) + "\n" + " " * depth + brackets[1]


def main() -> None:
    """Make the samples named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Make the sample traces.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="samples to make (default: all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: here)")
    options = parser.parse_args()
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such sample: {', '.join(unknown)} (there are {', '.join(known)})")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or known:
        for path in make(known[name], options.out):
            print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
