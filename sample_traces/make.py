"""Make the sample traces: lay out each job, write it as nsys would export it, and put beside it what is true of it.

    python sample_traces/make.py [--out DIR] [--fixed] [NAME...]

With --fixed, the same jobs without what is the matter with them. Needs nothing but Python's standard library. The same
names give the same rows every time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from captured import as_counted
from culprits import clocks, peer_waits
from jobs import Scenario
from layout import Job
from nsys_writer import Writer
from placed import Capture
from scenarios import SCENARIOS
from strategies import Strategy
from stuck import hang_truth
from truth import collectives_truth, efficiency_truth, kernels_truth, memory_truth, rank_truth, steady_truth

LONGEST_LINE = 320
DEEPEST_BROKEN_LEVEL = 4


def make(scenario: Scenario, out: Path) -> list[Path]:
    """Write a sample's captures and its expected.json; returns the captures' paths."""
    strategy = scenario.build()
    captures = scenario.reports(scenario.name, strategy.job)
    counted = as_counted(strategy.job, captures)
    paths = [Writer(counted, capture, scenario.schema).write(out) for capture in captures]
    facts = layered(expected(scenario, strategy, captures, counted))
    (out / f"{scenario.name}.expected.json").write_text(facts + "\n", encoding="utf-8")
    return paths


def expected(scenario: Scenario, strategy: Strategy, captures: list[Capture], counted: Job) -> dict[str, object]:
    """What is true of a sample; README.md says what each key means. ``counted`` is the job by the captures' clocks."""
    clock = clocks(strategy.job, captures)
    ranks = ranks_truth(counted, captures, clock)
    steady = steady_truth(ranks)
    without = without_fault(scenario)
    return {
        "sample": scenario.name,
        "truth": scenario.truth,
        "captures": [capture.path for capture in captures],
        "schema_version": scenario.schema.version,
        "strategy": strategy.name,
        "world_size": counted.world_size,
        "fault_rank": scenario.fault_rank,
        "straggler": straggler_truth(scenario, without),
        "findings": list(scenario.findings),
        "may": list(scenario.may),
        "without_fault": without,
        "kernels": {capture.path: kernels_truth(counted.ranks[rank] for rank in capture.ranks) for capture in captures},
        "steady": steady,
        "efficiency": efficiency_truth(strategy, steady["step_time_ns"]),
        **memory_truth(counted, home_of(captures), steady["steps"]),
        "peer_waits": peer_waits(strategy.job, steady["steps"]),
        "collectives": collectives_truth(counted, steady["steps"], payloads=scenario.schema.payload_blobs),
        **hang_truth_of(scenario, strategy.job),
        "ranks": ranks,
    }


def hang_truth_of(scenario: Scenario, job: Job) -> dict[str, object]:
    """The key about the hang, for a job that stands still."""
    if scenario.hang is None:
        return {}
    return {"hang": hang_truth(job, scenario.hang, payloads=scenario.schema.payload_blobs)}


def home_of(captures: list[Capture]) -> dict[int, Capture]:
    """The report that holds each rank."""
    return {rank: capture for capture in captures for rank in capture.ranks}


def ranks_truth(
    job: Job, captures: list[Capture], clock: dict[int, dict[str, int | float]]
) -> dict[str, dict[str, object]]:
    """What is true of each rank, by its number."""
    home = home_of(captures)
    return {
        str(rank.rank): rank_truth(rank, home[rank.rank], clock[rank.rank], phases=job.annotated) for rank in job.ranks
    }


def without_fault(scenario: Scenario) -> dict[str, Any] | None:
    """The steady steps of the same job, laid out without what is the matter."""
    if scenario.without is None:
        return None
    job = scenario.without().job
    captures = scenario.reports(scenario.name, job)
    return steady_truth(ranks_truth(as_counted(job, captures), captures, clocks(job, captures)))


def straggler_truth(scenario: Scenario, without: dict[str, Any] | None) -> dict[str, object]:
    """What was done to the job, and how long a step takes when it is laid out without that."""
    return {
        "verdict": scenario.verdict,
        "rank": scenario.fault_rank,
        "cause": scenario.cause,
        "ranks": list(scenario.fault_ranks),
        "step_time_without_ns": without["step_time_ns"] if without and scenario.cause else None,
    }


def layered(value: object, depth: int = 0) -> str:
    """JSON with one line for each step: readable, and a change shows as the lines that it concerns."""
    line = json.dumps(value)
    if depth >= DEEPEST_BROKEN_LEVEL or len(line) <= LONGEST_LINE or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {layered(item, depth + 1)}" for key, item in value.items()]
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
    parser.add_argument("--fixed", action="store_true", help="make their twins, without what is the matter")
    options = parser.parse_args()
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such sample: {', '.join(unknown)} (there are {', '.join(known)})")
    hopeless = [name for name in options.names if options.fixed and known[name].without is None]
    if hopeless:
        parser.error(f"no twin of: {', '.join(hopeless)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or known:
        scenario = known[name]
        if options.fixed and scenario.without is None and not options.names:
            continue
        for path in make(scenario.fixed() if options.fixed else scenario, options.out):
            print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
