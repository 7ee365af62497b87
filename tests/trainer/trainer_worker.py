"""Runs several trainings in one job and writes what rank 0 saw; started by torchrun from `jobs.train_many`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from instrumented_trainer import annotate, train
from instrumented_trainer.config import parse

seen: list[list[object]] = []
place = {"step": -1, "phase": ""}
original_phase, original_step = annotate.phase, annotate.step


@contextmanager
def phase(name: str) -> Iterator[None]:
    place["phase"] = name
    with original_phase(name):
        yield
    place["phase"] = ""


def step(number: int) -> object:
    place["step"] = number
    return original_step(number)


def main(path: Path, runs: list[list[str]]) -> None:
    annotate.phase, annotate.step = phase, step
    annotate.collectives()
    annotate.observe(
        lambda c: seen.append(
            [place["step"], place["phase"], c.op, c.dtype, c.elements, c.bytes, c.group, c.group_size]
        )
    )
    results = []
    job = train.start(parse(runs[0]))
    for flags in runs:
        config = parse(flags)
        seen.clear()
        record = train.train(config, job)
        last = [row[1:] for row in seen if row[0] == config.steps - 1 and row[1]]
        results.append({"losses": record.mean_losses, "last_step": last, "step_ms": record.step_ms})
    if job.rank == 0:
        path.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
