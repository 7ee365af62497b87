"""What a step should move, by the papers and by the libraries' own ways, in elements of the full tensors.

P is the number of parameters, N the ranks of a shard group, R the replicas. On the wire each rank sends and receives
(N-1)/N of the full tensor for a gather, a scatter or a broadcast, and twice that for an all-reduce.
Papers: ZeRO (arXiv:1910.02054) section 7, FSDP (arXiv:2304.11277) section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from instrumented_trainer.config import DEEPSPEED, Config, shard_size
from tracekit.theory.gpus import gpu_of

ITEM_SIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1}


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a GPU, or None for one that is not in the table."""
    gpu = gpu_of(device_name)
    return None if gpu is None else gpu.bf16_tflops * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What one kind of collective moves in a step."""

    op: str
    dtype: str
    group_size: int
    elements: int
    """Of the full tensors, summed over the step's calls, without padding."""

    @property
    def wire_elements(self) -> float:
        """What a rank sends (and receives), in elements."""
        return wire(self.op, self.elements, self.group_size)

    @property
    def wire_bytes(self) -> float:
        """The same in bytes of the op's own dtype."""
        return self.wire_elements * ITEM_SIZE[self.dtype]


def wire(op: str, amount: float, group_size: int) -> float:
    """What a rank sends for a full tensor of ``amount``, in its unit; a broadcast as the mean over source ranks."""
    return amount * (group_size - 1) / group_size * (2 if op == "all_reduce" else 1)


def step_volumes(c: Config, world: int) -> list[Volume] | None:
    """What the implementation moves in a step, by its documented behaviour; None where sizes do not tell."""
    total = c.model.parameters
    low = "bfloat16" if c.bf16 else "float32"
    micro = c.grad_accumulation
    reductions = 1 if c.defer_reduction else micro
    if c.strategy == "single":
        return []
    if c.strategy in ("ddp", "zero1"):
        volumes = [Volume(op="all_reduce", dtype="float32", group_size=world, elements=total * reductions)]
        if c.strategy == "zero1":
            volumes.append(Volume(op="broadcast", dtype="float32", group_size=world, elements=total))
        return volumes
    if c.strategy in DEEPSPEED:
        return _deepspeed(c, world, low)
    if c.wrap != "block":
        return None
    return _sharded(c, world, low, reductions)


def _deepspeed(c: Config, world: int, low: str) -> list[Volume] | None:
    total, micro = c.model.parameters, c.grad_accumulation
    if c.strategy == "zero3":
        if c.activation_checkpointing or c.model.tied:
            return None  # gathers of recomputation, and of a table in two modules, depend on what is still there
        return [
            Volume(op="all_gather", dtype=low, group_size=world, elements=2 * total * micro),
            Volume(op="reduce_scatter", dtype=low, group_size=world, elements=total * micro),
        ]
    reductions = micro if c.strategy == "zero2" else 1
    return [
        Volume(op="all_reduce", dtype=low, group_size=world, elements=total * reductions),
        Volume(op="all_gather", dtype=low, group_size=world, elements=total),
    ]


def _sharded(c: Config, world: int, low: str, reductions: int) -> list[Volume]:
    layers = c.model.layers * c.model.layer_parameters
    root = c.model.parameters - layers
    hybrid = c.strategy == "hsdp" or (c.strategy == "fsdp1" and c.fsdp1_sharding == "hybrid")
    n = shard_size(c, world) if hybrid else world
    keep = c.reshard == "never" or (c.strategy == "fsdp1" and c.fsdp1_sharding == "grad-op")
    again_over = int(c.reshard) if c.reshard.isdigit() else n
    root_again = root if c.reshard == "always" else 0
    gathers = {n: (layers + root) * c.grad_accumulation}
    again = 0 if keep else layers + root_again
    gathers[again_over] = gathers.get(again_over, 0) + again * c.grad_accumulation
    volumes = [
        Volume(op="all_gather", dtype=low, group_size=size, elements=elements) for size, elements in gathers.items()
    ]
    volumes.append(Volume(op="reduce_scatter", dtype="float32", group_size=n, elements=(layers + root) * reductions))
    if hybrid and world > n:
        # Each rank reduces its own shard over the replicas.
        shards = (layers + root) * reductions // n
        volumes.append(Volume(op="all_reduce", dtype="float32", group_size=world // n, elements=shards))
    return volumes


def paper_elements(c: Config, world: int) -> float:
    """Elements on the wire a rank and step by the papers: 2P for DDP, ZeRO-1, ZeRO-2, SHARD_GRAD_OP, else 3P.

    For one microbatch a step. HSDP adds the all-reduce of the shard over the replicas.
    """
    total, hybrid = c.model.parameters, c.strategy == "hsdp" or (c.strategy == "fsdp1" and c.fsdp1_sharding == "hybrid")
    n = shard_size(c, world) if hybrid else world
    keep = c.strategy in ("ddp", "zero1", "zero1-ds", "zero2") or (
        c.strategy == "fsdp1" and c.fsdp1_sharding == "grad-op"
    )
    moved = wire("all_gather", (2 if keep else 3) * total, n)
    return moved + (wire("all_reduce", total / n, world // n) if hybrid else 0)


def explanation(c: Config) -> str | None:
    """Why the implementation moves something else than the paper says, or None."""
    if c.strategy == "zero1":
        return (
            "ZeroRedundancyOptimizer sits on DDP: the gradients are all-reduced in full (2P), where the paper only"
            " scatters them (P), and the updated parameters are broadcast by their owners (P)"
        )
    if c.strategy in ("zero1-ds", "zero2"):
        return (
            "DeepSpeed all-reduces its gradient buckets (2P) and drops what it does not own, where the paper only"
            " scatters them (P); then it gathers the updated parameters (P)"
        )
    if c.strategy in ("fsdp1", "fsdp2", "hsdp") and c.reshard == "auto" and c.fsdp1_sharding != "grad-op":
        return "the root unit (tables, final norm) stays whole between forward and backward, and moves 2P instead of 3P"
    if c.reshard == "never":
        return "without resharding after forward no unit is gathered again: 2P instead of 3P"
    return None
