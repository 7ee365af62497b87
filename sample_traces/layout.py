"""A small simulator that lays out a sharded training job: it places intervals in integer nanoseconds.

All ranks run one program, as in training: every instruction of `Job` is carried out by each rank in turn, with the
rank's own host clock, streams and speed. Whatever a real job would wait for is a placement rule here:

- a GPU operation starts when its launch has reached the device, its stream is free and the events that the stream waits
  for have happened;
- a collective starts on each rank by the same rules, and on a communicator one at a time; it ends everywhere together,
  one transfer after the last rank's start;
- a collective that some member never starts never ends, nor does anything begin that would have to wait for it.

Nothing is measured afterwards: the intervals are the truth, and `truth` only adds them up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from placed import (
    COMPUTE,
    NCCL,
    NCCL_CALLS,
    NEVER,
    TRACEKIT,
    TRACEKIT_COMM,
    Call,
    Collective,
    Communicator,
    Event,
    Kernel,
    Op,
    Payload,
    Range,
    Rank,
    init_payload,
    message_payload,
    ms,
    us,
)

PCIE_BYTES_PER_NS = 52
MEMSET_BYTES_PER_NS = 1_900


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A job of ``world_size`` ranks; instructions run on each rank of ``live``."""

    seed: int
    world_size: int
    devices_per_host: int = 8
    launch_ns: int = 5_200
    """Length of a launch call."""
    between_ns: int = 3_400
    """Host work of the framework before each launch."""
    lazy_load_ns: int = ms(3)
    """What the first launch of a kernel costs more."""
    slowdown: Callable[[int, int | None], float] = lambda _rank, _step: 1.0
    """Factor on compute kernels of a rank in a step."""
    pause: Callable[[Rank, str], int] = lambda _rank, _place: 0
    """Host time without CUDA calls that a rank loses at a place: ``data``, ``fwd/layers.0``, ``bwd/layers.0``, ..."""
    stops: Callable[[Rank, str], bool] = lambda _rank, _place: False
    """Whether a rank's host gets no further than such a place."""
    renumber: Callable[[Rank, int], int | None] = lambda _rank, number: number
    """What number a rank gives to a step, or None if its loop is already over."""
    reshape: Callable[[Rank, Kernel], Kernel] = lambda _rank, kernel: kernel
    """A compute kernel as a rank launches it now: inputs differ in shape between ranks and steps."""
    contention: float = 1.0
    """By what factor compute kernels slow down while a collective runs beside them."""
    single_queue: bool = False
    """All streams of a device share one hardware queue, whose items start in the order of their launches."""
    annotated: bool = True
    """Emit the instrumented trainer's NVTX domains."""
    grouped: bool = False
    """Wrap NCCL calls in ncclGroupStart and ncclGroupEnd: the kernel is then launched inside ncclGroupEnd."""
    collective_kernels: dict[str, str] = field(default_factory=dict)
    """Kernel name by operation."""
    ranks: list[Rank] = field(init=False)
    live: list[Rank] = field(init=False)
    collectives: list[Collective] = field(default_factory=list)
    unfinished: list[Collective] = field(default_factory=list)
    """Collectives that never end, in the order of launch."""
    events: int = 0
    wire: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.wire = random.Random(f"{self.seed}/wire")
        self.ranks = [self._rank(number) for number in range(self.world_size)]
        self.live = self.ranks

    def _rank(self, number: int) -> Rank:
        noise = random.Random(f"{self.seed}/{number}")
        return Rank(
            rank=number,
            device=number % self.devices_per_host,
            pid=41_207 + 3 * (number % self.devices_per_host),
            random=noise,
            host_ns=ms(38) + round(ms(0.6) * noise.random()),
            single_queue=self.single_queue,
        )

    # Host

    def host(self, ns: int) -> None:
        """Host work without CUDA calls."""
        for rank in self.live:
            rank.spend(ns)

    def stall(self, place: str) -> None:
        """Let the ranks lose the host time that they lose at this place, or stop there."""
        for rank in self.live:
            if self.stops(rank, place):
                self.stop(rank)
            else:
                rank.host_ns += self.pause(rank, place)

    def stop(self, rank: Rank) -> None:
        """Let a rank's host get no further; what it has launched goes on."""
        rank.stopped = True
        self.live = [other for other in self.live if other is not rank]

    @contextmanager
    def only(self, ranks: tuple[int, ...]) -> Iterator[None]:
        """Instructions inside are for these ranks."""
        before, self.live = self.live, [rank for rank in self.live if rank.rank in ranks]
        yield
        self.live = [rank for rank in before if not rank.stopped]

    def interrupt(self, after_ns: int) -> None:
        """The job is ended so long after anything last happened in it."""
        latest = max(max(rank.host_ns, *(op.end for op in rank.ops)) for rank in self.ranks)
        for rank in self.ranks:
            rank.host_ns = latest + after_ns

    def barrier(self) -> None:
        """Let the hosts wait for each other, without the devices."""
        if not self.live:
            return
        latest = max(rank.host_ns for rank in self.live)
        for rank in self.live:
            rank.host_ns = latest + rank.jitter(us(15))

    @contextmanager
    def on_thread(self, thread: str) -> Iterator[None]:
        """Instructions inside run on another thread, while the present one waits for it."""
        before = {rank.rank: rank.thread for rank in self.live}
        for rank in self.live:
            rank.spend(11_000)
            rank.thread = thread
        yield
        for rank in self.live:
            rank.spend(9_000)
            rank.thread = before[rank.rank]

    @contextmanager
    def range(
        self,
        domain: str,
        name: str,
        value: int | Callable[[Rank], int | None] | None = None,
        payload: Payload | Callable[[Rank], Payload] | None = None,
    ) -> Iterator[None]:
        """An NVTX range around the instructions inside; the trainer's own domains only where the job is annotated."""
        if domain in (TRACEKIT, TRACEKIT_COMM) and not self.annotated:
            yield
            return
        opened = []
        for rank in self.live:
            start = rank.spend(700)
            blob = payload(rank) if callable(payload) else payload
            number = value(rank) if callable(value) else value
            item = Range(
                domain=domain, name=name, thread=rank.thread, start=start, end=NEVER, value=number, payload=blob
            )
            opened.append((rank, item))
        yield
        for rank, item in opened:
            rank.ranges.append(item)
            if not rank.stopped:
                item.end = rank.host_ns
                rank.spend(500)

    @contextmanager
    def step(self, number: int, domain: str, name: str, *, numbered: bool) -> Iterator[None]:
        """A training step: its range, and the number by which the operations launched inside are known.

        With ``numbered`` the number is the range's payload. Ranks whose loop is over get no further.
        """
        for rank in self.live:
            if self.renumber(rank, number) is None:
                self.stop(rank)
        with self.range(domain, name, (lambda rank: self.renumber(rank, number)) if numbered else None):
            for rank in self.live:
                rank.step = self.renumber(rank, number)
            yield
        for rank in self.live:
            rank.step = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """forward, backward, optimizer or data: a range, and remembered with each operation launched inside."""
        before = {rank.rank: rank.phase for rank in self.live}
        for rank in self.live:
            rank.phase = name
        with self.range(TRACEKIT, name):
            yield
        for rank in self.live:
            rank.phase = before[rank.rank]

    def mark(self, domain: str, text: Callable[[Rank], str]) -> None:
        """An NVTX mark."""
        for rank in self.live:
            start = rank.spend(2_100)
            rank.ranges.append(Range(domain=domain, name=text(rank), thread=rank.thread, start=start, end=None))

    # Device

    def _launch(self, rank: Rank, kernel: Kernel, api: str) -> Call:
        rank.spend(self.between_ns)
        cold = 0 if kernel.name in rank.loaded else self.lazy_load_ns
        rank.loaded.add(kernel.name)
        return rank.call(api, self.launch_ns + cold)

    def kernel(self, kernel: Kernel, stream: str = COMPUTE, *, source: str = "kernel") -> None:
        """Launch a compute kernel (or a CUDA graph traced as a whole) on each rank."""
        api = "cudaGraphLaunch_v10000" if source == "graph" else "cudaLaunchKernel_v7000"
        for rank in self.live:
            own = self.reshape(rank, kernel)
            call = self._launch(rank, own, api)
            start = rank.ready_at(call, stream)
            length = rank.jitter(own.ns, 0.004) * self.slowdown(rank.rank, rank.step)
            end = start + round(length) if self.contention == 1 else self._contended_end(rank, start, length)
            self.place(rank, stream, call, start, end, source=source, kind="compute", kernel=own)

    def _contended_end(self, rank: Rank, start: int, alone_ns: float) -> int:
        """When a kernel that would take ``alone_ns`` alone ends, next to the collectives placed so far."""
        beside = sorted((op.start, op.end) for op in rank.ops if op.kind == "comm" and op.end > start)
        at, left = float(start), alone_ns
        for low, high in beside:
            free = max(0.0, low - at)
            if left <= free:
                return round(at + left)
            at, left = max(at, low), left - free
            done = (high - at) / self.contention
            if left <= done:
                return round(at + left * self.contention)
            at, left = max(at, high), left - max(0.0, done)
        return round(at + left)

    def copy(self, copy_kind: int, size: int, stream: str = COMPUTE) -> None:
        """Launch a memcpy with pinned host memory: kind 1 is host to device, 2 device to host."""
        for rank in self.live:
            rank.spend(self.between_ns)
            call = rank.call("cudaMemcpyAsync_v3020", self.launch_ns)
            start = rank.ready_at(call, stream)
            end = start + rank.jitter(1_290 + size // PCIE_BYTES_PER_NS, 0.01)
            self.place(rank, stream, call, start, end, source="memcpy", kind="copy", bytes=size, copy_kind=copy_kind)

    def memset(self, size: int, stream: str = COMPUTE) -> None:
        """Launch a memset."""
        for rank in self.live:
            rank.spend(self.between_ns)
            call = rank.call("cudaMemsetAsync_v3020", self.launch_ns)
            start = rank.ready_at(call, stream)
            end = start + rank.jitter(1_130 + size // MEMSET_BYTES_PER_NS, 0.01)
            self.place(rank, stream, call, start, end, source="memset", kind="copy", bytes=size)

    def place(self, rank: Rank, stream: str, call: Call, start: int, end: int, **facts: Any) -> Op | None:
        """Put an operation that ``call`` launched on a stream of a rank; None where it never ends."""
        if end >= NEVER:  # the profiler writes down what has ended
            rank.free_at[stream] = NEVER
            return None
        op = Op(
            stream=rank.stream_id(stream), start=start, end=end, call=call, step=rank.step, phase=rank.phase, **facts
        )
        rank.place(op, stream)
        return op

    # Events

    def record(self, stream: str) -> Event:
        """Record an event: it happens when the stream has done all that was launched so far."""
        self.events += 1
        at = {}
        for rank in self.live:
            call = rank.call("cudaEventRecord_v3020", 1_300)
            at[rank.rank] = max(call.end, rank.free_at.get(stream, 0))
        return Event(self.events, at)

    def wait(self, stream: str, event: Event) -> None:
        """Let a stream wait for an event."""
        for rank in self.live:
            call = rank.call("cudaStreamWaitEvent_v3020", 1_100)
            rank.synchronised(2, stream, event, call)
            rank.free_at[stream] = max(rank.free_at.get(stream, 0), event.at[rank.rank])
            if rank.single_queue:
                # A wait is an item of the queue too: all behind it, of whatever stream, waits with it.
                rank.queue_front_ns = max(rank.queue_front_ns, event.at[rank.rank])

    def synchronize(self, event: Event) -> None:
        """Let the host wait for an event."""
        for rank in self.live:
            call = rank.call("cudaEventSynchronize_v3020", 1_900)
            if event.at[rank.rank] >= NEVER:
                call.end = NEVER
                self.stop(rank)
                continue
            call.end = max(call.end, event.at[rank.rank] + rank.jitter(4_100))
            rank.host_ns = call.end
            rank.synchronised(1, COMPUTE, event, call)

    # Communication

    def communicator(self, value: int, gigabytes_per_s: float, ranks: tuple[int, ...] | None = None) -> Communicator:
        """Make a communicator (of all ranks unless told)."""
        made = Communicator(hash=value, ranks=ranks or tuple(range(self.world_size)), gigabytes_per_s=gigabytes_per_s)
        members = [rank for rank in self.ranks if rank.rank in made.ranks]
        before, self.live = self.live, members
        with self.range(NCCL, "ncclCommInitRankConfig", payload=lambda rank: init_payload(made, rank)):
            self.host(ms(1.9))
        self.live = before
        return made

    def collective(
        self,
        communicator: Communicator,
        op: str,
        full_bytes: int,
        stream: str,
        *,
        parts: int = 1,
        bytes_of: Mapping[int, int] = {},
    ) -> None:
        """Launch a collective on each member; ``parts`` NCCL calls in one group make one kernel.

        It never ends if some member does not launch it, or launches it with another size (``bytes_of``).
        """
        before, self.live = self.live, [rank for rank in self.live if rank.rank in communicator.ranks]
        made = self._made(communicator, op, full_bytes, bytes_of)
        calls = self._issue(made, parts)
        arrivals = {}
        for rank, call in zip(self.live, calls, strict=True):
            busy = communicator.free_at.get(rank.rank, 0)
            arrivals[rank.rank] = max(rank.ready_at(call, stream), busy + rank.jitter(900))
        transfer = communicator.transfer_ns(op, full_bytes)
        end = max(arrivals.values(), default=NEVER) + round(transfer * (1 + 0.02 * self.wire.random()))
        if len(arrivals) < len(communicator.ranks) or bytes_of:
            end = NEVER
        if made.launched_by:
            (self.collectives if end < NEVER else self.unfinished).append(made)
        kernel = Kernel(name=self.collective_kernels[op], ns=transfer, grid=(24, 1, 1), block=(544, 1, 1), registers=96)
        for rank, call in zip(self.live, calls, strict=True):
            start, finish = arrivals[rank.rank], end + round(46 * rank.random.random())
            op_here = self.place(rank, stream, call, start, finish, source="kernel", kind="comm", kernel=kernel)
            if op_here is not None:
                made.ops[rank.rank] = op_here
            communicator.free_at[rank.rank] = finish
        self.live = before

    def _made(self, communicator: Communicator, op: str, full_bytes: int, bytes_of: Mapping[int, int]) -> Collective:
        """A collective that the ranks of ``live`` launch now."""
        launched = communicator.launched
        for rank in self.live:
            launched[rank.rank] = launched.get(rank.rank, 0) + 1
        return Collective(
            communicator=communicator,
            op=op,
            full_bytes=full_bytes,
            seq=max((launched[rank.rank] for rank in self.live), default=0),
            bytes_of=bytes_of,
            launched_by=tuple(rank.rank for rank in self.live),
        )

    def _issue(self, made: Collective, parts: int) -> list[Call]:
        """The host's side of a collective: its ranges and, inside them, the launch."""
        name = NCCL_CALLS[made.op]
        kernel = Kernel(name=self.collective_kernels[made.op], ns=0)

        def launch() -> list[Call]:
            return [self._launch(rank, kernel, "cudaLaunchKernelExC_v11060") for rank in self.live]

        def whole(rank: Rank) -> Payload:
            return message_payload(made, made.message_of(made.full_bytes_on(rank.rank)))

        with self.range(TRACEKIT_COMM, made.op, lambda rank: made.full_bytes_on(rank.rank)):
            self.host(us(7))
            if not self.grouped and parts == 1:
                with self.range(NCCL, name, payload=whole):
                    self.host(us(2))
                    return launch()
            with self.range(NCCL, "ncclGroupStart"):
                self.host(us(0.6))
            for part in range(parts):
                share = made.message_bytes // parts + (made.message_bytes % parts if part == 0 else 0)
                with self.range(NCCL, name, payload=message_payload(made, share)):
                    self.host(us(1.4))
            with self.range(NCCL, "ncclGroupEnd"):
                self.host(us(2))
                return launch()
