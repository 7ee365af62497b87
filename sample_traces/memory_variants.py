"""FSDP2 whose allocator takes memory from the driver, as a capture with --cuda-memory-usage=true shows it."""

from __future__ import annotations

from calls import give_memory_back, take_memory
from placed import us
from strategies import ROOT, Fsdp2
from variants import PrefetchedForward

SEGMENT = 2 << 20
"""The driver gives memory in pages of this size."""
ACTIVATION_BYTES = 34
"""A layer keeps so much for each token and unit of width: every tensor that its backward pass reads."""
WORKSPACE = 96 << 20
WORKSPACES_A_LAYER = 3
HOARD = 21 << 30


class Reserving(Fsdp2):
    """A caching allocator: what the first step needs is taken from the driver once, and kept."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.reserved: set[object] = set()

    def reserve(self, what: object, size: int) -> None:
        """Take memory for something, unless it has some."""
        if what not in self.reserved:
            self.reserved.add(what)
            take_memory(self.job, -(-size // SEGMENT) * SEGMENT)

    def start_loading(self) -> None:
        """The shard of the parameters in fp32, and the first batch."""
        self.reserve("parameters", 4 * self.model.parameters // self.shards)
        super().start_loading()

    def issue_gather(self, unit: int) -> None:
        """Two layers are gathered at a time, and the root."""
        self.reserve(("gathered", ROOT if unit == ROOT else unit % 2), self.unit_bytes(unit, self.gather_width))
        super().issue_gather(unit)

    def before_layer_forward(self, unit: int) -> None:
        """What the layer keeps for its backward pass."""
        super().before_layer_forward(unit)
        self.reserve(("activations", unit), ACTIVATION_BYTES * self.model.tokens * self.model.hidden)

    def before_head_forward(self) -> None:
        """The logits and what the loss keeps of them, in fp32, and the last norm's input."""
        self.reserve("logits", 4 * self.model.tokens * (self.model.outputs + self.model.hidden))

    def reduce(self, unit: int) -> None:
        """One unit's gradients in fp32, of which the shard stays."""
        self.reserve("reduced", self.unit_bytes(unit, self.reduce_width))
        self.reserve("gradients", 4 * self.model.parameters // self.shards)
        super().reduce(unit)

    def before_optimizer(self) -> None:
        """Adam's two moments."""
        self.reserve("moments", 8 * self.model.parameters // self.shards)


class Churning(Reserving):
    """The same with a library that takes a workspace from the driver for each of its calls, and gives it back."""

    def before_layer_forward(self, unit: int) -> None:
        """Take and give back, in the order of the stream: nobody waits."""
        super().before_layer_forward(unit)
        for _ in range(WORKSPACES_A_LAYER):
            segments = take_memory(self.job, WORKSPACE, "cudaMallocAsync_v11020", us(19))
            give_memory_back(self.job, segments, "cudaFreeAsync_v11020", us(6))


class Hoarding(Reserving):
    """The same with tensors that outlive every step: more is reserved than the model accounts for."""

    def start_loading(self) -> None:
        """Something large that no formula knows of."""
        super().start_loading()
        self.reserve("hoard", HOARD)


class Resharding(PrefetchedForward):
    """ZeRO-3 that gathers ahead in the forward pass only, and has taken its memory before the first step."""

    def start_loading(self) -> None:
        """Model state, and two layers gathered at a time."""
        take_memory(self.job, 16 * self.model.parameters // self.shards)
        take_memory(self.job, 2 * self.unit_bytes(0, 2))
        super().start_loading()
