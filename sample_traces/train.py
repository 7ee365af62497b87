"""The training loop that every laid-out job runs, whatever its strategy."""

from __future__ import annotations

import json
from contextlib import nullcontext

from placed import DEFAULT, TRACEKIT, Rank, us
from strategies import Strategy


def train(strategy: Strategy, steps: int, first_step: int = 0, microbatches: int = 1) -> None:
    """The training loop: describe the run, then steps of data, forward, backward, optimizer and a look at the loss.

    A step has one microbatch or several. The host runs ahead of the device by at most a backward pass. After the first
    step, which loads the kernels, the hosts meet once.
    """
    job = strategy.job
    strategy.microbatches = microbatches
    if job.annotated:
        job.mark(TRACEKIT, lambda rank: json.dumps(run_description(strategy, rank)))
    strategy.start_loading()
    for number in range(first_step, first_step + steps):
        named = (TRACEKIT, "step") if job.annotated else (DEFAULT, f"ProfilerStep#{number}")
        with job.step(number, *named, numbered=job.annotated):
            with job.phase("data"):
                job.host(us(120))
                job.stall("data")
                strategy.next_batch()
            for strategy.microbatch in range(microbatches):
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
        strategy.after_step(number)
        job.host(us(40))


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
        **({} if model.lengths_vary else {"sequence_length": model.sequence}),
        "grad_accumulation": strategy.microbatches,
        "dtype": model.dtype,
        "activation_checkpointing": strategy.recomputes,
    }
