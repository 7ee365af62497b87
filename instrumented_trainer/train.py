"""Train: set-up, the loop, its report.

::

    torchrun --standalone --nproc-per-node 2 -m instrumented_trainer --strategy fsdp2 --steps 3
    nsys profile -t cuda,nvtx torchrun --nproc-per-node 2 instrumented_trainer/train.py
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run by path: import the package, and keep its `profile` from hiding Python's own
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gc
import os
import resource
import statistics
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from instrumented_trainer.config import DEEPSPEED, Config, check_world, parse
from instrumented_trainer.errors import TrainerError
from instrumented_trainer.output import write_json

try:
    import nvtx  # noqa: F401
    import torch
    import torch.distributed as dist
except ImportError as missing:
    raise SystemExit(f"instrumented_trainer: {missing}; pip install 'nsys-tracekit[trainer]'") from None

from instrumented_trainer import annotate, strategies
from instrumented_trainer.failures import RollCall, say
from instrumented_trainer.faults import Faults

SILENCE_S = 10
"""How long the other ranks leave the word to the one that says what is wrong."""
WARM_UP_STEPS = 2
"""Left out of the quoted step time where the run is long enough."""


@dataclass(frozen=True, slots=True)
class Job:
    """Where this process stands in the job."""

    rank: int
    world: int
    device: torch.device
    roll: RollCall


@dataclass(slots=True)
class Record:
    """What a run measures on this rank."""

    losses: list[torch.Tensor] = field(default_factory=list)
    mean_losses: list[float] = field(default_factory=list)
    """The same as means over ranks, as far as they have been reported."""
    step_ms: list[float] = field(default_factory=list)
    collectives: dict[tuple[str, str, str, int], list[int]] = field(default_factory=dict)
    """The last step's calls, elements and bytes by (op, dtype, group, group size)."""
    counting: bool = False

    def count(self, c: annotate.Collective) -> None:
        """Observe a collective; those of reports, between steps, are left out."""
        if not self.counting:
            return
        row = self.collectives.setdefault((c.op, c.dtype, c.group, c.group_size), [0, 0, 0])
        row[:] = row[0] + 1, row[1] + c.elements, row[2] + c.bytes


def batches(config: Config, job: Job) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless microbatches of (tokens, targets), each (batch, seq), on the device.

    Sequences count upwards from a random start in strides of 1 to 3, so that the next token can be learnt. Every rank
    draws the rows of all ranks and keeps its own: together they see what one process with the whole batch would.
    """
    generator = torch.Generator().manual_seed(config.seed)
    rows, positions = config.batch * job.world, torch.arange(config.model.seq + 1)
    while True:
        start = torch.randint(config.model.vocab, (rows, 1), generator=generator)
        stride = torch.randint(1, 4, (rows, 1), generator=generator)
        mine = ((start + stride * positions) % config.model.vocab)[job.rank * config.batch :][: config.batch]
        if job.device.type == "cuda":
            mine = mine.pin_memory().to(job.device, non_blocking=True)
        yield mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def train(config: Config, job: Job) -> Record:
    """The training loop."""
    strategy = strategies.build(config, job.device, strategies.mesh_of(config, job.device.type, job.world))
    faults = Faults(config, job.rank, job.world, job.device)
    faults.attach(strategy.layers)
    data, record, clock = batches(config, job), Record(), Clock(job.device)
    annotate.observe(record.count)
    with ExitStack() as capture:
        for step in range(config.steps):
            if step == config.capture_after:
                capture.enter_context(annotate.capture(lambda: strategies.barrier(job.device), **facts(config)))
            faults.begin_step(step)
            if faults.skips_step():
                continue
            record.collectives.clear()
            record.counting = True
            with clock, annotate.step(step):
                record.losses.append(train_step(config, strategy, data, faults))
            record.counting = False
            if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
                log(record, job)
    record.step_ms = clock.milliseconds()
    return record


def train_step(config: Config, strategy: strategies.Strategy, data: Iterator[Any], faults: Faults) -> torch.Tensor:
    """One optimizer step over all its microbatches; returns this rank's mean loss, still on the device."""
    losses = []
    for micro in range(config.grad_accumulation):
        with annotate.phase("data"):
            faults.load_data()
            tokens, targets = next(data)
        with strategy.microbatch(last=micro == config.grad_accumulation - 1):
            with annotate.phase("forward"):
                loss = strategy.forward(tokens, targets)
            with annotate.phase("backward"):
                strategy.backward(loss)
        losses.append(loss.detach().float())
    faults.before_optimizer()
    with annotate.phase("optimizer"):
        strategy.step()
    return torch.stack(losses).mean()


class Clock:
    """Step times without synchronising: GPU events where there is a GPU, the host's clock where there is none."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._times: list[Any] = []

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __enter__(self) -> None:
        self._times.append(self._now())

    def __exit__(self, *_: object) -> None:
        self._times.append(self._now())

    def milliseconds(self) -> list[float]:
        """One figure a step."""
        pairs = zip(self._times[::2], self._times[1::2], strict=False)
        if not self._cuda:
            return [(end - start) * 1e3 for start, end in pairs]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


def log(record: Record, job: Job) -> None:
    """Print the losses since the last report, as means over ranks: the only place that waits for the GPU."""
    first = len(record.mean_losses)
    losses = torch.stack(record.losses[first:])
    if job.world > 1:
        dist.all_reduce(losses)
    record.mean_losses += (losses / job.world).tolist()
    if job.rank == 0:
        for step, loss in enumerate(record.mean_losses[first:], first):
            print(f"step {step:4d}  loss {loss:.6f}", flush=True)


def report(config: Config, job: Job, record: Record) -> dict[str, Any]:
    """Everything that a run measured, as JSON values; memory is the maximum over ranks."""
    cuda = job.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peaks = torch.tensor([peak], device=job.device)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    steady = record.step_ms[WARM_UP_STEPS:] or record.step_ms[-1:]
    step_ms = statistics.median(steady)
    tokens = config.batch * config.model.seq * config.grad_accumulation * job.world
    return {
        **facts(config),
        "world_size": job.world,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "parameters": config.model.parameters,
        "flops_per_token": config.model.flops_per_token(),
        "losses": record.mean_losses,
        "step_ms": record.step_ms,
        "step_time_ms": step_ms,
        "tokens_per_s": tokens / step_ms * 1e3,
        "peak_memory_bytes": int(peaks.item()),
        "peak_memory_kind": "GPU memory allocated by torch" if cuda else "resident memory of the process",
        "collectives": [
            {"op": op, "dtype": dtype, "group": group, "group_size": size}
            | {"calls": row[0], "elements": row[1], "bytes": row[2]}
            for (op, dtype, group, size), row in record.collectives.items()
        ],
    }


def facts(config: Config) -> dict[str, Any]:
    """What the mark at the start of a capture tells about the run, beside rank and world size."""
    return {
        "strategy": config.strategy,
        "model": asdict(config.model),
        "batch": config.batch,
        "seq": config.model.seq,
        "grad_accumulation": config.grad_accumulation,
        "dtype": "bfloat16" if config.bf16 else "float32",
        "activation_checkpointing": config.activation_checkpointing,
        "compile": config.compile,
    }


def start(config: Config) -> Job:
    """Join the job that torchrun describes in the environment, or be a job of one.

    Raises:
        TrainerError: there is no such device, the strategy cannot work on so many ranks, or the ranks cannot meet.
    """
    world, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if cuda and here > torch.cuda.device_count():
        raise TrainerError(
            f"{here} ranks on this machine need as many GPUs: it has {torch.cuda.device_count()}",
            hint="start fewer ranks a machine, or add --device cpu",
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    check_world(config, world, device=device.type)
    if cuda:
        torch.cuda.set_device(device)
    patience = timedelta(seconds=config.timeout)
    # Groups that meshes and DeepSpeed make later do not inherit the first group's patience, and have no say in it.
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        setattr(dist.distributed_c10d, name, patience)
    try:
        if "RANK" in os.environ:
            store, rank, world = next(dist.rendezvous("env://", timeout=patience))
        else:
            store, rank, world = dist.HashStore(), 0, 1
        job = Job(rank, world, device, RollCall(store, rank, world))
        dist.init_process_group(
            "nccl" if cuda else "gloo", store=dist.PrefixStore("ranks", store), rank=rank, world_size=world,
            timeout=patience, device_id=device if cuda else None,
        )  # fmt: skip
    except (dist.DistError, RuntimeError, ValueError, OSError) as error:
        where = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', '?')}"
        raise TrainerError(f"the ranks cannot meet at {where}: {str(error).strip().splitlines()[0]}") from None
    if config.strategy in DEEPSPEED:
        strategies.import_deepspeed(device).init_distributed("nccl" if cuda else "gloo", dist_init_required=False)
    return job


def run(config: Config) -> None:
    """Train and report; ends by an exception when this rank or another one fails."""
    annotate.enable(config.nvtx)
    annotate.check_profiler()
    annotate.collectives()
    job = start(config)
    annotate.observe(job.roll.observe)
    job.roll.speak_when_terminated()
    annotate.describe(**facts(config))
    try:
        result = report(config, job, train(config, job))
    except TrainerError:
        raise
    except Exception as error:
        line = job.roll.explain(error)
        if line is not None:
            say(line)
        if not isinstance(error, (RuntimeError, MemoryError)):  # a fault of this program, not of the job
            traceback.print_exc()
        raise SystemExit(1) from None
    job.roll.leave()
    if job.rank == 0:
        print(f"{result['step_time_ms']:.1f} ms a step, {result['tokens_per_s']:.0f} tokens/s")
        if config.json is not None:
            write_json(Path(config.json), result)
    # FSDP1's modules are cycles that hold process groups. Left to the interpreter's end, their threads can outlive what
    # they need, and the process aborts with its work done.
    gc.collect()
    dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0 done, 1 a rank failed, 2 wrong usage."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        if config.dry_world is not None:
            from instrumented_trainer import plan  # noqa: PLC0415 - it uses torch's testing modules

            plan.show(config)
        else:
            run(config)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TrainerError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one rank speaks for all
            say(error.line())
        else:  # torchrun ends the others when the first one exits, and that must not be the one that speaks
            time.sleep(SILENCE_S)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
