"""Strategies whose host or copies are changed: what is wrong in a sample of a fault, and what is right in its twin."""

from __future__ import annotations

from calls import copy_pageable, launch_graph, retry_allocation, synchronize_stream
from layout import Job
from model import Model
from placed import AUTOGRAD, COMPUTE, Communicator, Event, Kernel, us
from strategies import (
    COPIES,
    D2H,
    H2D,
    ROOT,
    Fsdp2,
    SmallDdp,
)

OFFLOADS = "offloads"


class Graphs(SmallDdp):
    """DDP of a tiny model with a CUDA graph for the forward pass, one for each bucket's part of the backward pass and
    one for the optimizer."""

    def launch(self, kernels: list[Kernel], stream: str = COMPUTE) -> None:
        """One launch for all kernels."""
        launch_graph(self.job, kernels, stream)

    def forward(self) -> Event:
        """The whole forward pass is one launch."""
        layers = [kernel for _ in self.units for kernel in self.model.layer_forward()]
        self.launch([*self.model.embed(), *layers, *self.model.head_forward()])
        self.job.copy(D2H, 4)
        return self.job.record(COMPUTE)

    def backward(self) -> None:
        """A launch for each bucket."""
        with self.job.on_thread(AUTOGRAD):
            kernels = self.model.head_backward()
            for unit in reversed(self.units):
                kernels += self.model.layer_backward()
                self.waiting.append(unit)
                if unit and len(self.waiting) == self.layers_a_bucket:
                    self.launch(kernels)
                    self.flush()
                    kernels = []
            self.launch([*kernels, *self.model.embed_backward()])
            self.after_backward()


class ReadingValues(Fsdp2):
    """FSDP2 whose forward pass reads a value of each layer on the host and goes on by it."""

    blocking = True
    python_us = 420

    def after_layer_forward(self, unit: int) -> None:
        """``.item()``: a copy of four bytes and a wait for the stream; then some Python."""
        self.job.copy(D2H, 4)
        if self.blocking:
            synchronize_stream(self.job)
        self.job.host(us(self.python_us))


class KeepingValues(ReadingValues):
    """The same without looking at the values before the step is over."""

    blocking = False


class OutOfMemory(Fsdp2):
    """FSDP2 so near to the end of its memory that an allocation in the forward pass has to be tried twice."""

    def before_layer_forward(self, unit: int) -> None:
        """In the third layer nothing is left."""
        if unit == 2:
            retry_allocation(self.job)
        super().before_layer_forward(unit)


class Frames(Fsdp2):
    """FSDP2 with batches of pictures, loaded ahead from page-locked memory."""

    batch_bytes = 48_000_000

    def load_batch(self) -> Event:
        """Copy a batch on the copy stream."""
        self.job.copy(H2D, self.batch_bytes, COPIES)
        return self.job.record(COPIES)


class PageableFrames(Frames):
    """The same from ordinary memory, when the step begins, on the stream that computes."""

    def start_loading(self) -> None:
        """Nothing is loaded ahead."""

    def next_batch(self) -> None:
        """Copy, and wait until it is there."""
        copy_pageable(self.job, H2D, self.batch_bytes)
        synchronize_stream(self.job)


class Saving(Fsdp2):
    """FSDP2 that saves its state after every second step while training waits."""

    adam_bytes = 12
    """Of a parameter: itself and Adam's two moments, in fp32."""
    writing_us = 30_000

    def after_step(self, number: int) -> None:
        """Copy this rank's shard of the state to the host, unit by unit, and write it."""
        if number and number % 2 == 0:
            for unit in (ROOT, *self.units):
                copy_pageable(self.job, D2H, self.unit_bytes(unit, self.adam_bytes) // self.shards)
            synchronize_stream(self.job)
            self.job.host(us(self.writing_us))
            self.job.barrier()


class SavingBeside(Saving):
    """The same beside training: copies into page-locked memory on a stream of their own, written by another process."""

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.saved: Event | None = None

    def after_step(self, number: int) -> None:
        """Start to copy behind the optimizer."""
        if number and number % 2 == 0:
            self.follow(OFFLOADS)
            for unit in (ROOT, *self.units):
                self.job.copy(D2H, self.unit_bytes(unit, self.adam_bytes) // self.shards, OFFLOADS)
            self.saved = self.job.record(OFFLOADS)

    def optimizer(self) -> None:
        """The state may change again when it has been copied."""
        if self.saved is not None:
            self.job.wait(COMPUTE, self.saved)
            self.saved = None
        super().optimizer()


class Offloading(Fsdp2):
    """FSDP2 that keeps each layer's activations in host memory, and copies them where it computes."""

    stream = COMPUTE

    @property
    def activation_bytes(self) -> int:
        """A layer's input, of two bytes an element."""
        return 2 * self.model.tokens * self.model.hidden

    def after_layer_forward(self, unit: int) -> None:
        """Copy out."""
        if self.stream != COMPUTE:
            self.follow(self.stream)
        self.job.copy(D2H, self.activation_bytes, self.stream)

    def before_layer_backward(self, unit: int) -> None:
        """Copy in before the layer's compute."""
        super().before_layer_backward(unit)
        self.job.copy(H2D, self.activation_bytes, self.stream)


class OffloadingBeside(Offloading):
    """The same on a stream of its own, and back one layer ahead."""

    stream = OFFLOADS

    def __init__(self, job: Job, model: Model, communicator: Communicator, *, graphed: bool = False) -> None:
        super().__init__(job, model, communicator, graphed=graphed)
        self.back: dict[int, Event] = {}

    def fetch(self, unit: int) -> None:
        """Copy a layer's activations in, not before compute has come so far."""
        if unit in self.units:
            self.follow(OFFLOADS)
            self.job.copy(H2D, self.activation_bytes, OFFLOADS)
            self.back[unit] = self.job.record(OFFLOADS)

    def before_backward(self) -> None:
        """The last layer's activations come back under the head's backward pass."""
        super().before_backward()
        self.fetch(self.model.layers - 1)

    def before_layer_backward(self, unit: int) -> None:
        """Wait for this layer's, fetch the next one's."""
        Fsdp2.before_layer_backward(self, unit)
        self.job.wait(COMPUTE, self.back.pop(unit))
        self.fetch(unit - 1)
