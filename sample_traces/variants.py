"""Strategies whose communication is changed: what is wrong in a sample of a fault, and what is right in its twin."""

from __future__ import annotations

from layout import Job
from model import ELEMENTWISE, NORM, Model, moved
from placed import COMPUTE, GATHER, SCATTER, Communicator, Event, Kernel
from strategies import (
    GATHERS,
    REDUCTIONS,
    ROOT,
    Ddp,
    Fsdp2,
    Hsdp,
    Strategy,
    Zero2,
    Zero3,
)

HEAD = -2
"""The unit of the output matrix, where it is one of its own."""
DIVIDE = ELEMENTWISE.format(functor="CUDAFunctor_add<float>", arrays=3)


class Prefetched(Zero3):
    """ZeRO-3 with prefetch in both passes."""

    forward_prefetch = backward_prefetch = True


class PrefetchedBackward(Prefetched):
    """ZeRO-3 with prefetch in the backward pass only."""

    forward_prefetch = False


class PrefetchedForward(Prefetched):
    """ZeRO-3 with prefetch in the forward pass only."""

    backward_prefetch = False


class TensorByTensor(Prefetched):
    """ZeRO-3 with prefetch that gathers each tensor of a layer by itself."""

    tensors_a_layer = 20

    def gather_tensors(self, unit: int) -> None:
        """Gather tensor after tensor."""
        tensors = 1 if unit == ROOT else self.tensors_a_layer
        for _ in range(tensors):
            self.job.collective(self.communicator, GATHER, self.unit_bytes(unit, 2) // tensors, GATHERS)


class Accumulating(Fsdp2):
    """FSDP2 that adds each reduced gradient to the one that is there, by a kernel behind the reduce-scatter."""

    def reduce(self, unit: int) -> None:
        """Reduce and add."""
        super().reduce(unit)
        self.job.kernel(moved(DIVIDE, 3 * self.unit_bytes(unit, 4) // self.shards), REDUCTIONS)


class LastKept(Fsdp2):
    """FSDP2 that keeps the last layer gathered after the forward pass: it would be gathered again at once."""

    def before_backward(self) -> None:
        """The last layer is here."""

    def before_layer_backward(self, unit: int) -> None:
        """Wait for this layer's parameters unless they are here; issue the gather of the layer that comes next."""
        if unit == self.model.layers - 1:
            self.gather(unit - 1)
        else:
            super().before_layer_backward(unit)


class SeparateGroups(LastKept):
    """The same with a communicator of their own for reduce-scatters."""

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.reducing = job.communicator(communicator.hash + 0x51, communicator.gigabytes_per_s)

    def among_shards(self, op: str, full_bytes: int, stream: str) -> None:
        """Gathers on one communicator, reduce-scatters on the other."""
        self.job.collective(self.communicator if op == GATHER else self.reducing, op, full_bytes, stream)


class FrozenRoot(Fsdp2):
    """FSDP2 that trains the layers only: nothing is reduced for the root, which holds the output matrix too."""

    def after_backward(self) -> None:
        """The optimizer waits for the layers' gradients."""
        self.follow(COMPUTE, REDUCTIONS)


class SplitHead(FrozenRoot):
    """The same with the output matrix as a unit of its own, gathered under the last two layers."""

    def unit_bytes(self, unit: int, width: int) -> int:
        """The root without the output matrix."""
        if unit == HEAD:
            return width * self.model.head_parameters
        return super().unit_bytes(unit, width) - (width * self.model.head_parameters if unit == ROOT else 0)

    def gather(self, unit: int) -> None:
        """The output matrix is gathered like a layer."""
        if unit != HEAD:
            super().gather(unit)
        elif unit not in self.gathered:
            self.issue_gather(unit)

    def before_layer_forward(self, unit: int) -> None:
        """The unit after the last layer is the output matrix."""
        super().before_layer_forward(unit)
        if unit == self.model.layers - 2:
            self.gather(HEAD)

    def before_head_forward(self) -> None:
        """Wait for the output matrix, which is then kept for the backward pass."""
        self.use(HEAD)


class LargeBuckets(Ddp):
    """DDP with buckets of three layers."""

    layers_a_bucket = 3


class OnComputeStream(Ddp):
    """Gradients reduced by hand, on the stream that computes."""

    reduction_stream = COMPUTE


class Deferring(Ddp):
    """DDP that reduces gradients after the last microbatch only (no_sync before)."""

    def flush(self) -> None:
        """Keep what is waiting until the last microbatch."""
        if self.last_microbatch:
            super().flush()
        else:
            self.waiting = []


class GatheredUnderForward(Zero2):
    """ZeRO-2 that gathers the updated parameters layer by layer, under the next forward pass."""

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.updated = False

    def after_optimizer(self) -> None:
        """Nothing is gathered yet."""
        self.updated = True

    def before_forward(self) -> None:
        """Issue all gathers, in the order in which they are needed, and wait for the embeddings."""
        self.gathered: dict[int, Event] = {}
        if self.updated:
            self.follow(GATHERS)
            for unit in (ROOT, *self.units):
                self.job.collective(self.communicator, GATHER, self.unit_bytes(unit, 2), GATHERS)
                self.gathered[unit] = self.job.record(GATHERS)
        self.before_layer_forward(ROOT)

    def before_layer_forward(self, unit: int) -> None:
        """Wait for this layer."""
        if unit in self.gathered:
            self.job.wait(COMPUTE, self.gathered.pop(unit))


class Fsdp1(Strategy):
    """FullyShardedDataParallel on each layer and on a small adapter behind each layer.

    In the forward pass a unit's gather is issued when the unit is reached, which is early, for the host runs ahead.
    With the rate limiter it does so by two units at most: before it issues a gather it waits until the second last unit
    has been used. The adapters count as units.
    """

    name = "fsdp1"
    shards_optimizer = True
    limited = False

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.gathered: dict[int, Event] = {}
        self.in_use: list[Event] = []

    def adapter(self, layer: int) -> int:
        """The unit of a layer's adapter."""
        return self.model.layers + layer

    def unit_bytes(self, unit: int, width: int) -> int:
        """An adapter has few parameters."""
        return width * 16 * self.model.hidden if unit >= self.model.layers else super().unit_bytes(unit, width)

    def gather(self, unit: int) -> None:
        """Issue a unit's all-gather, if there is such a unit and it is not here."""
        if unit in self.gathered or not ROOT <= unit < 2 * self.model.layers:
            return
        if self.limited and len(self.in_use) >= 2:
            self.job.synchronize(self.in_use.pop(0))
        self.job.collective(self.communicator, GATHER, self.unit_bytes(unit, 2), GATHERS)
        self.gathered[unit] = self.job.record(GATHERS)

    def use(self, unit: int) -> None:
        """Let compute wait for a unit."""
        self.gather(unit)
        self.job.wait(COMPUTE, self.gathered.pop(unit))

    def free(self) -> None:
        """The unit in use is done with when all launched so far has run."""
        self.in_use.append(self.job.record(COMPUTE))

    def before_forward(self) -> None:
        """Gather the root once the optimizer is done; it is kept until the step's end."""
        self.in_use = []
        self.follow(GATHERS)
        self.use(ROOT)

    def before_layer_forward(self, unit: int) -> None:
        """Gather this layer."""
        self.use(unit)

    def after_layer_forward(self, unit: int) -> None:
        """Run the adapter, a unit of its own."""
        self.free()
        self.use(self.adapter(unit))
        self.job.kernel(moved(NORM, 8 * self.model.hidden * self.model.tokens))
        self.free()

    def before_backward(self) -> None:
        """Begin to gather ahead (BackwardPrefetch.BACKWARD_PRE)."""
        self.in_use = []
        self.gather(self.adapter(self.model.layers - 1))

    def before_layer_backward(self, unit: int) -> None:
        """The adapter comes first; each unit's gather is issued before the compute of the one before it."""
        self.use(self.adapter(unit))
        self.gather(unit)
        self.job.kernel(moved(NORM, 16 * self.model.hidden * self.model.tokens))
        self.free()
        self.use(unit)
        if unit:
            self.gather(self.adapter(unit - 1))
            self.gather(unit - 1)

    def after_layer_backward(self, unit: int) -> None:
        """Reduce this layer's gradients, and its adapter's with them."""
        self.free()
        self.reduce(unit)

    def after_backward(self) -> None:
        """Reduce the root's gradients; the optimizer waits for them."""
        self.reduce(ROOT)
        self.follow(COMPUTE, REDUCTIONS)

    def reduce(self, unit: int) -> None:
        """Issue a unit's reduce-scatter."""
        self.follow(REDUCTIONS)
        self.job.collective(self.communicator, SCATTER, self.unit_bytes(unit, 4), REDUCTIONS)


class RateLimited(Fsdp1):
    """The same with the rate limiter (``limit_all_gathers=True``)."""

    limited = True


class ReplicasAtTheEnd(Hsdp):
    """HSDP that adds up gradients inside each host and all-reduces across hosts in the last microbatch only."""

    def reduce_replicas(self, unit: int) -> None:
        """Nothing before the last microbatch."""
        if self.last_microbatch:
            super().reduce_replicas(unit)


class Recomputing(Fsdp2):
    """FSDP2 with activation checkpointing: a layer's forward pass runs again in its backward pass."""

    recomputes = True

    def backward_kernels(self) -> list[Kernel]:
        """Forward again, then backward."""
        return [*self.model.layer_forward(), *self.model.layer_backward()]


class KeptAfterForward(Fsdp2):
    """FSDP2 that keeps its parameters gathered after the forward pass and reduces gradients in bf16."""

    gather_width = 2
    reduce_width = 2

    def before_backward(self) -> None:
        """All layers are here."""

    def before_layer_backward(self, unit: int) -> None:
        """All layers are here."""


class GatheredInFp8(KeptAfterForward):
    """The same with parameters gathered in a byte each."""

    gather_width = 1
