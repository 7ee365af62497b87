"""What each rank sends in a step, by strategy.

Sources: ZeRO (arXiv:1910.02054), section 7: 2P for data parallel training and stages 1 and 2, 3P for stage 3; FSDP
(arXiv:2304.11277), section 3.2.2 for hybrid sharding; NCCL's own performance notes for what an operation of n ranks
puts on the wire: (n-1)/n of the full tensor for gathers and scatters, twice that for all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
}
"""By op, of n ranks: bytes that each sends over the full tensor's. busbw = algbw × factor, as nccl-tests defines it
(its doc/PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """All collectives of one op in a step."""

    op: str
    ranks: int
    """Size of the communicator."""
    bytes: int
    """Of the full tensors, summed over the step."""

    @property
    def wire_bytes(self) -> float:
        """What each rank sends."""
        return self.bytes * BUS_FACTOR[self.op](self.ranks)


def step_volume(
    strategy: str,
    *,
    trained: int,
    frozen: int,
    shards: int,
    replicas: int,
    weight_bytes: float,
    frozen_bytes: float,
    gradient_bytes: float,
    accumulation: int = 1,
) -> tuple[Moved, ...]:
    """The collectives of one step of ``accumulation`` microbatches, by the papers; () on one GPU.

    Reductions: DDP and ZeRO-1 once a step; ZeRO-2, ZeRO-3, FSDP and HSDP hold no whole gradients and reduce every
    microbatch. Gathers: ZeRO-1 and 2 once after the optimizer; ZeRO-3, FSDP and HSDP twice a microbatch.
    """
    world = shards * replicas
    if world == 1:
        return ()
    gradients = trained * gradient_bytes
    if strategy == "DDP":
        return (Moved(op="all_reduce", ranks=world, bytes=round(gradients)),)
    if strategy in ("ZeRO-1", "ZeRO-2"):
        reductions = accumulation if strategy == "ZeRO-2" else 1
        return (
            Moved(op="reduce_scatter", ranks=world, bytes=round(gradients * reductions)),
            Moved(op="all_gather", ranks=world, bytes=round(trained * weight_bytes)),
        )
    whole = trained * weight_bytes + frozen * frozen_bytes
    moved = []
    if shards > 1:
        moved = [
            Moved(op="all_gather", ranks=shards, bytes=round(2 * whole * accumulation)),
            Moved(op="reduce_scatter", ranks=shards, bytes=round(gradients * accumulation)),
        ]
    if replicas > 1:
        moved.append(Moved(op="all_reduce", ranks=replicas, bytes=round(gradients / shards * accumulation)))
    return tuple(moved)
