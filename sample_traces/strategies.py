"""How each sharding strategy trains: which collectives it launches when, and what waits for what.

A strategy is `Strategy` with some of its hooks filled in; `train` runs it.
"""

from __future__ import annotations

from layout import Job
from model import CHUNK_CAT, COPY_IN, COPY_OUT, Model, moved
from placed import (
    AUTOGRAD,
    COMPUTE,
    GATHER,
    REDUCE,
    SCATTER,
    TRACEKIT,
    Communicator,
    Event,
    Kernel,
    us,
)

COPIES, GATHERS, GATHER_COPY_IN, REDUCTIONS = "copies", "gathers", "gather_copy_in", "reductions"
REPLICA_REDUCTIONS = "replica_reductions"
ROOT = -1
"""The unit of the parameters outside the layers."""
H2D, D2H = 1, 2


class Strategy:
    """Plain training of one rank; subclasses add communication in the hooks."""

    name = "none"
    shards_optimizer = False
    recomputes = False
    """Activation checkpointing."""

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        self.job = job
        self.model = model
        self.communicator = communicator
        self.graphed = graphed
        self.microbatch = 0
        self.microbatches = 1
        self.batch_ready: Event | None = None

    @property
    def last_microbatch(self) -> bool:
        """Whether this is the step's last microbatch: the optimizer comes next."""
        return self.microbatch == self.microbatches - 1

    @property
    def shards(self) -> int:
        """Into how many equal parts sharded state is split."""
        return len(self.communicator.ranks)

    @property
    def units(self) -> range:
        """The layers, in the order of the forward pass."""
        return range(self.model.layers)

    def unit_bytes(self, unit: int, width: int) -> int:
        """Bytes of a unit's parameters or gradients, ``width`` bytes each."""
        return width * (self.model.root_parameters if unit == ROOT else self.model.layer_parameters(unit))

    def load_batch(self) -> Event:
        """Copy a batch (tokens and labels) from pinned memory on the copy stream."""
        for _ in range(2):
            self.job.copy(H2D, 8 * self.model.tokens, COPIES)
        return self.job.record(COPIES)

    def start_loading(self) -> None:
        """Called once, before the first step."""
        self.batch_ready = self.load_batch()

    def next_batch(self) -> None:
        """Let compute wait for the batch that was loaded ahead, and load the one after it."""
        assert self.batch_ready is not None
        self.job.wait(COMPUTE, self.batch_ready)
        self.batch_ready = self.load_batch()

    def forward(self) -> Event:
        """The forward pass; returns the event after which the host can read the loss."""
        self.before_forward()
        self.launch(self.model.embed())
        for unit in self.units:
            with self.job.range(TRACEKIT, f"fwd/layers.{unit}"):
                self.job.host(us(22))
                self.job.stall(f"fwd/layers.{unit}")
                self.before_layer_forward(unit)
                self.launch_layer(self.model.layer_forward())
                self.after_layer_forward(unit)
        self.before_head_forward()
        self.launch(self.model.head_forward())
        self.job.copy(D2H, 4)
        return self.job.record(COMPUTE)

    def backward(self) -> None:
        """The backward pass, on autograd's own thread."""
        with self.job.on_thread(AUTOGRAD):
            self.before_backward()
            self.launch(self.model.head_backward())
            self.after_head_backward()
            for unit in reversed(self.units):
                with self.job.range(TRACEKIT, f"bwd/layers.{unit}"):
                    self.job.host(us(14))
                    self.job.stall(f"bwd/layers.{unit}")
                    self.before_layer_backward(unit)
                    self.launch_layer(self.backward_kernels())
                    self.after_layer_backward(unit)
            self.launch(self.model.embed_backward())
            self.after_backward()

    def optimizer(self) -> None:
        """The optimizer's step."""
        self.job.host(us(60))
        self.job.memset(512)
        self.launch(self.model.adam(self.shards if self.shards_optimizer else 1))
        self.after_optimizer()

    def launch(self, kernels: list[Kernel], stream: str = COMPUTE) -> None:
        """Launch kernels one after the other."""
        for kernel in kernels:
            self.job.kernel(kernel, stream)

    def launch_layer(self, kernels: list[Kernel]) -> None:
        """Launch a layer's kernels, or the graph that holds them."""
        if self.graphed:
            self.job.kernel(Kernel(name=f"graph of {len(kernels)}", ns=sum(k.ns for k in kernels)), source="graph")
        else:
            self.launch(kernels)

    def follow(self, stream: str, behind: str = COMPUTE) -> None:
        """Let a stream wait for all that was launched on another."""
        self.job.wait(stream, self.job.record(behind))

    def before_forward(self) -> None:
        """Called before the first kernel of the forward pass."""

    def before_layer_forward(self, unit: int) -> None:
        """Called before a layer's kernels in the forward pass."""

    def after_layer_forward(self, unit: int) -> None:
        """Called after a layer's kernels in the forward pass."""

    def before_head_forward(self) -> None:
        """Called before the kernels of logits and loss."""

    def before_backward(self) -> None:
        """Called on autograd's thread before the first kernel of the backward pass."""

    def after_head_backward(self) -> None:
        """Called after the kernels of the loss's and the logits' gradients."""

    def backward_kernels(self) -> list[Kernel]:
        """The kernels of a layer's backward pass."""
        return self.model.layer_backward()

    def before_layer_backward(self, unit: int) -> None:
        """Called before a layer's kernels in the backward pass."""

    def after_layer_backward(self, unit: int) -> None:
        """Called when a layer's gradients have been launched."""

    def after_backward(self) -> None:
        """Called when all gradients have been launched."""

    def before_optimizer(self) -> None:
        """Called before the optimizer's kernels are launched."""

    def after_optimizer(self) -> None:
        """Called when the optimizer's kernels have been launched."""

    def after_step(self, number: int) -> None:
        """Called between steps."""


class Fsdp2(Strategy):
    """fully_shard on each layer and on the root, with the next unit's gather issued ahead."""

    name = "fsdp2"
    shards_optimizer = True
    prefetch = True
    gather_width = 2
    reduce_width = 4
    """Bytes of an element in all-gathers and in reduce-scatters."""

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.gathered: dict[int, Event] = {}

    def gather(self, unit: int) -> None:
        """Issue a unit's all-gather, if there is such a unit and it has not been issued."""
        if unit not in self.gathered and unit in (ROOT, *self.units):
            self.issue_gather(unit)

    def issue_gather(self, unit: int) -> None:
        """Copy-in on one stream, the collective on the next."""
        size = self.unit_bytes(unit, self.gather_width)
        self.job.kernel(moved(COPY_IN, 2 * size // self.shards), GATHER_COPY_IN)
        self.follow(GATHERS, GATHER_COPY_IN)
        self.among_shards(GATHER, size, GATHERS)
        self.gathered[unit] = self.job.record(GATHERS)

    def use(self, unit: int) -> None:
        """Wait for a unit's gather and copy its parameters out; the next gather may then use the buffer."""
        self.gather(unit)
        self.job.wait(COMPUTE, self.gathered.pop(unit))
        self.job.kernel(moved(COPY_OUT, 2 * self.unit_bytes(unit, self.gather_width)))
        self.follow(GATHER_COPY_IN)

    def reduce(self, unit: int) -> None:
        """Issue a unit's reduce-scatter of gradients, which are bf16 until then."""
        size = self.unit_bytes(unit, self.reduce_width)
        self.follow(REDUCTIONS)
        self.job.kernel(moved(CHUNK_CAT, size + self.unit_bytes(unit, 2)), REDUCTIONS)
        self.among_shards(SCATTER, size, REDUCTIONS)

    def among_shards(self, op: str, full_bytes: int, stream: str) -> None:
        """Issue a collective among the ranks that hold the shards."""
        self.job.collective(self.communicator, op, full_bytes, stream)

    def before_forward(self) -> None:
        """Gather the root (kept until the step's end) and, ahead, the first layer."""
        self.follow(GATHER_COPY_IN)
        self.gather(ROOT)
        if self.prefetch:
            self.gather(0)
        self.use(ROOT)

    def before_layer_forward(self, unit: int) -> None:
        """Wait for this layer's parameters; issue the next layer's gather."""
        self.use(unit)
        if self.prefetch and unit + 1 in self.units:
            self.gather(unit + 1)

    def before_backward(self) -> None:
        """Issue the last layer's gather under the head's backward pass."""
        if self.prefetch:
            self.gather(self.model.layers - 1)

    def before_layer_backward(self, unit: int) -> None:
        """Wait for this layer's parameters; issue the gather of the layer that comes next."""
        self.use(unit)
        if self.prefetch and unit - 1 in self.units:
            self.gather(unit - 1)

    def after_layer_backward(self, unit: int) -> None:
        """Reduce this layer's gradients."""
        self.reduce(unit)

    def after_backward(self) -> None:
        """Reduce the root's gradients; the optimizer waits for them."""
        self.reduce(ROOT)
        self.follow(COMPUTE, REDUCTIONS)


class Hsdp(Fsdp2):
    """fully_shard on a mesh of two dimensions: sharded inside each host, replicated across hosts.

    After a unit's reduce-scatter each shard is all-reduced among its replicas, on a stream of its own.
    """

    name = "hsdp"

    def __init__(
        self, job: Job, model: Model, shards: tuple[Communicator, ...], replicas: tuple[Communicator, ...]
    ) -> None:
        super().__init__(job, model, shards[0])
        self.shard_groups = shards
        self.replica_groups = replicas

    def among_shards(self, op: str, full_bytes: int, stream: str) -> None:
        """Issue a collective on each host."""
        for communicator in self.shard_groups:
            self.job.collective(communicator, op, full_bytes, stream)

    def reduce(self, unit: int) -> None:
        """Reduce a unit's gradients on each host, then each shard across hosts."""
        super().reduce(unit)
        self.reduce_replicas(unit)

    def reduce_replicas(self, unit: int) -> None:
        """All-reduce each shard of a unit's gradients across hosts."""
        self.follow(REPLICA_REDUCTIONS, REDUCTIONS)
        for communicator in self.replica_groups:
            self.job.collective(communicator, REDUCE, self.unit_bytes(unit, 4) // self.shards, REPLICA_REDUCTIONS)

    def after_backward(self) -> None:
        """The optimizer waits for the last all-reduce."""
        super().after_backward()
        self.follow(COMPUTE, REPLICA_REDUCTIONS)


class Zero3(Strategy):
    """DeepSpeed's stage 3: a layer's gather is issued when the layer is reached, behind all compute so far; with
    prefetch when the layer before it is reached.

    Gradients are reduced a layer late, when the next layer's have begun to fill the bucket.
    """

    name = "zero3"
    shards_optimizer = True
    tensors_a_layer = 3
    forward_prefetch = False
    backward_prefetch = False

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.bucket: list[int] = []
        self.gathered: dict[int, Event] = {}

    def gather(self, unit: int) -> None:
        """Issue the gather of a unit's parameters."""
        if unit not in (ROOT, *self.units):
            return
        self.job.host(us(35))
        self.follow(GATHERS)
        self.gather_tensors(unit)
        self.gathered[unit] = self.job.record(GATHERS)

    def gather_tensors(self, unit: int) -> None:
        """Gather several tensors in one group."""
        parts = 1 if unit == ROOT else self.tensors_a_layer
        self.job.collective(self.communicator, GATHER, self.unit_bytes(unit, 2), GATHERS, parts=parts)

    def fetch(self, unit: int) -> None:
        """Let compute wait for a unit's parameters."""
        if unit not in self.gathered:
            self.gather(unit)
        self.job.wait(COMPUTE, self.gathered.pop(unit))

    def flush(self) -> None:
        """Reduce the bf16 gradients that are in the bucket."""
        size = sum(self.unit_bytes(unit, 2) for unit in self.bucket)
        self.bucket = []
        if size:
            self.follow(REDUCTIONS)
            self.job.kernel(moved(COPY_IN, 2 * size), REDUCTIONS)
            self.job.collective(self.communicator, SCATTER, size, REDUCTIONS)

    def before_forward(self) -> None:
        """Gather the embeddings."""
        self.fetch(ROOT)
        if self.forward_prefetch:
            self.gather(0)

    def before_layer_forward(self, unit: int) -> None:
        """Gather this layer."""
        self.fetch(unit)
        if self.forward_prefetch:
            self.gather(unit + 1)

    def before_backward(self) -> None:
        """Issue the last layer's gather under the head's backward pass."""
        if self.backward_prefetch:
            self.gather(self.model.layers - 1)

    def before_layer_backward(self, unit: int) -> None:
        """Gather this layer again; then reduce the layer before."""
        self.fetch(unit)
        if self.backward_prefetch and unit:
            self.gather(unit - 1)
        self.flush()

    def after_layer_backward(self, unit: int) -> None:
        """Put this layer's gradients into the bucket."""
        self.bucket.append(unit)

    def after_backward(self) -> None:
        """Reduce what is left; the optimizer waits for it."""
        self.bucket.append(ROOT)
        self.flush()
        self.follow(COMPUTE, REDUCTIONS)


class Ddp(Strategy):
    """Whole replicas: buckets of fp32 gradients are all-reduced while the backward pass goes on."""

    name = "ddp"
    reduction = REDUCE
    gradient_width = 4
    layers_a_bucket = 1
    reduction_stream = REDUCTIONS

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.waiting: list[int] = []

    def after_layer_backward(self, unit: int) -> None:
        """Reduce a bucket when it is full; the first layer's goes with the embeddings'."""
        self.waiting.append(unit)
        if unit and len(self.waiting) == self.layers_a_bucket:
            self.flush()

    def after_backward(self) -> None:
        """Reduce the last bucket; the optimizer waits for it."""
        self.waiting.append(ROOT)
        self.flush()
        if self.reduction_stream != COMPUTE:
            self.follow(COMPUTE, self.reduction_stream)

    def flush(self) -> None:
        """Reduce what is waiting as one bucket."""
        size = sum(self.unit_bytes(unit, self.gradient_width) for unit in self.waiting)
        self.waiting = []
        if self.reduction_stream != COMPUTE:
            self.follow(self.reduction_stream)
        self.job.collective(self.communicator, self.reduction, size, self.reduction_stream)


class SmallDdp(Ddp):
    """DDP of a model so small that its bucket holds three layers."""

    layers_a_bucket = 3


class Zero1(Ddp):
    """DeepSpeed's stage 1: buckets are all-reduced, each rank updates its share, parameters are gathered afterwards."""

    name = "zero1"
    shards_optimizer = True
    gradient_width = 2
    gather_buckets = 2

    def after_optimizer(self) -> None:
        """Gather the updated parameters: nothing is left to hide it."""
        for _ in range(self.gather_buckets):
            self.follow(GATHERS)
            self.job.collective(self.communicator, GATHER, 2 * self.model.parameters // self.gather_buckets, GATHERS)
        self.follow(COMPUTE, GATHERS)


class Zero2(Zero1):
    """DeepSpeed's stage 2: as stage 1, but each rank receives only its share of the gradients."""

    name = "zero2"
    reduction = SCATTER
