"""What each GPU holds, by strategy. Sources:

- model state: ZeRO (arXiv:1910.02054), section 3 and table 1: of mixed precision with Adam 2 bytes a parameter for
  weights, 2 for gradients, 12 for master weights and two moments; stage 1 shards the last, 2 the gradients too, 3 all;
- activations: Korthikanti et al. (arXiv:2205.05198), equations 1 and 2 and sections 4.3 and 5, no tensor parallelism;
- QLoRA (arXiv:2305.14314), section 3: 4 bits a frozen parameter and 0.127 bits for its quantised scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

STAGE = {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3, "FSDP": 3, "HSDP": 3}
"""What is sharded: nothing, optimizer state, gradients too, parameters too."""
QLORA_BYTES = (4 + 0.127) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes a parameter of each part of the model state."""

    name: str
    weight: float
    gradient: float
    optimizer: float
    """Master weights, where there are, and Adam's two moments."""
    moved: float
    """A parameter on the wire when it is gathered."""


def precision(name: str, *, master_weights: bool = True) -> Precision:
    """``bf16`` (mixed precision) or ``fp32``; without master weights the moments alone are in the optimizer."""
    if name == "fp32":
        return Precision(name=name, weight=4, gradient=4, optimizer=8, moved=4)
    return Precision(name=name, weight=2, gradient=2, optimizer=12 if master_weights else 8, moved=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Bytes of the model state on one GPU (``gpu``) and, offloaded, in its host's memory (``host``)."""

    weights: int
    gradients: int
    optimizer: int
    host: int

    @property
    def gpu(self) -> int:
        """On the GPU."""
        return self.weights + self.gradients + self.optimizer


def model_state(
    strategy: str,
    *,
    trained: int,
    frozen: int,
    frozen_bytes: float,
    shards: int,
    each: Precision,
    offload: str = "none",
) -> ModelState:
    """Model state of one GPU.

    ``trained`` parameters have gradients and optimizer state, ``frozen`` ones only ``frozen_bytes`` each. ``shards`` is
    the number of GPUs that what is sharded is spread over. ``offload``: ``none``, ``optimizer`` (its state in the
    host's memory, as ZeRO-Offload has it, arXiv:2101.06840) or ``all`` (parameters and gradients too).
    """
    stage = STAGE[strategy]

    def spread(size: float, first_stage: int) -> int:
        return ceil(size / shards) if stage >= first_stage else ceil(size)

    weights = spread(trained * each.weight + frozen * frozen_bytes, 3)
    gradients = spread(trained * each.gradient, 2)
    optimizer = spread(trained * each.optimizer, 1)
    if offload == "all":
        return ModelState(weights=0, gradients=0, optimizer=0, host=weights + gradients + optimizer)
    if offload == "optimizer":
        return ModelState(weights=weights, gradients=gradients, optimizer=0, host=optimizer)
    return ModelState(weights=weights, gradients=gradients, optimizer=optimizer, host=0)


def layer_activations(*, sequence: int, batch: int, hidden: int, heads: int, recompute: str, flash: bool) -> float:
    """Bytes that one transformer layer keeps for backward, in 16-bit precision.

    s·b·h·(34 + 5·a·s/h); 34·s·b·h with flash attention or selective recomputation; 2·s·b·h with full recomputation.
    """
    size = sequence * batch * hidden
    if recompute == "full":
        return 2 * size
    if flash or recompute == "selective":
        return 34 * size
    return size * (34 + 5 * heads * sequence / hidden)


def output_activations(*, sequence: int, batch: int, hidden: int, vocab: int) -> float:
    """Bytes that the last norm, the output projection and the loss keep: 4·s·b·h·(1 + V/h)."""
    return 4 * sequence * batch * hidden * (1 + vocab / hidden)
