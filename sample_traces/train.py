"""The training loop that every laid-out job runs, whatever its strategy."""

from __future__ import annotations

import json
from contextlib import nullcontext

from placed import COMPUTE, DEFAULT, TRACEKIT, Event, Rank, us
from strategies import COPIES, H2D, Strategy


def train(strategy: Strategy, steps: int, first_step: int = 0) -> None:
    """The training loop: describe the run, then steps of data, forward, backward, optimizer and a look at the loss.

    The host runs ahead of the device by at most a backward pass. After the first step, which loads the kernels, the
    hosts meet once.
    """
    job = strategy.job
    if job.annotated:
        job.mark(TRACEKIT, lambda rank: json.dumps(run_description(strategy, rank)))
    batch_ready = load(strategy)
    for number in range(first_step, first_step + steps):
        named = (TRACEKIT, "step") if job.annotated else (DEFAULT, f"ProfilerStep#{number}")
        with job.step(number, *named, numbered=job.annotated):
            with job.phase("data"):
                job.host(us(120))
                job.stall("data")
                job.wait(COMPUTE, batch_ready)
                batch_ready = load(strategy)
            with job.phase("forward"):
                loss_ready = strategy.forward()
            with job.phase("backward"):
                strategy.backward()
            torch_range = nullcontext() if job.annotated else job.range(DEFAULT, "Optimizer.step#FusedAdam.step")
            with job.phase("optimizer"), torch_range:
                strategy.before_optimizer()
                strategy.optimizer()
            job.synchronize(loss_ready)
            if number == first_step:
                job.barrier()
        job.host(us(40))


def load(strategy: Strategy) -> Event:
    """Copy the next batch (tokens and labels) from pinned memory on the copy stream."""
    for _ in range(2):
        strategy.job.copy(H2D, 8 * strategy.model.tokens, COPIES)
    return strategy.job.record(COPIES)


def run_description(strategy: Strategy, rank: Rank) -> dict[str, object]:
    """What the trainer's start mark says."""
    model = strategy.model
    return {
        "rank": rank.rank,
        "world_size": strategy.job.world_size,
        "local_rank": rank.device,
        "pid": rank.pid,
        "strategy": strategy.name,
        "model": model.description(),
        "batch": model.batch,
        "sequence_length": model.sequence,
        "dtype": model.dtype,
    }
