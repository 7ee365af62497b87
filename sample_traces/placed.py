"""What a laid-out job consists of: operations, calls, ranges and collectives, each with its place in time.

All times are integer nanoseconds of the job, one clock for all ranks; a `Capture` has its own clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

MAIN, AUTOGRAD = "main", "autograd"
COMPUTE = "compute"
TRACEKIT, TRACEKIT_COMM, NCCL, DEFAULT = "tracekit", "tracekit.comm", "NCCL", ""

GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
NCCL_CALLS = {GATHER: "ncclAllGather", SCATTER: "ncclReduceScatter", REDUCE: "ncclAllReduce"}
SHARDED_OPS = {GATHER, SCATTER}
"""Operations whose NCCL message size is one rank's share of the full tensor."""

Payload = tuple[int, bytes]
"""An NVTX payload: schema id and the bytes."""

NEVER = 1 << 62
"""When something ends that goes on for ever."""


def us(value: float) -> int:
    """Microseconds as integer nanoseconds."""
    return round(value * 1_000)


def ms(value: float) -> int:
    """Milliseconds as integer nanoseconds."""
    return round(value * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as nsys names it, with the time that it takes alone."""

    name: str
    ns: int
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 64

    @property
    def short_name(self) -> str:
        """The base name, without return type, namespaces, template and call arguments."""
        head = self.name.removeprefix("void ").replace("<unnamed>", "").split("<")[0].split("(")[0]
        return head.rsplit("::", 1)[-1]


@dataclass(slots=True, kw_only=True)
class Call:
    """One CUDA API call on a host thread; it ends at `NEVER` where it does not return."""

    name: str
    thread: str
    start: int
    end: int
    correlation: int
    returned: int = 0
    """CUDA's error code."""


@dataclass(slots=True, kw_only=True)
class Op:
    """One GPU operation, placed."""

    source: str
    """kernel, graph, memcpy or memset."""
    kind: str
    """What it counts as: compute, comm or copy."""
    stream: int
    start: int
    end: int
    call: Call
    step: int | None
    """The step whose range was open around the launch."""
    phase: str | None
    kernel: Kernel | None = None
    bytes: int = 0
    copy_kind: int = 0
    pinned: bool = True
    """The host's side of a copy is page-locked."""
    graph_node: int | None = None
    """The node of a CUDA graph that was traced node by node."""


@dataclass(slots=True, kw_only=True, eq=False)
class Collective:
    """One collective of one communicator, and the operation on each rank."""

    communicator: Communicator
    op: str
    full_bytes: int
    """Bytes of the full tensor."""
    seq: int
    """Ordinal in its communicator, from 1."""
    bytes_of: Mapping[int, int] = field(default_factory=dict)
    """Bytes of the full tensor on a rank that calls it with another size than the rest."""
    launched_by: tuple[int, ...] = ()
    ops: dict[int, Op] = field(default_factory=dict)

    @property
    def message_bytes(self) -> int:
        """What NCCL calls the message size: one rank's share for gathers and scatters."""
        return self.message_of(self.full_bytes)

    def message_of(self, full_bytes: int) -> int:
        """The message size of a full tensor of so many bytes."""
        return full_bytes // len(self.communicator.ranks) if self.op in SHARDED_OPS else full_bytes

    def full_bytes_on(self, rank: int) -> int:
        """Bytes of the full tensor by this rank's call."""
        return self.bytes_of.get(rank, self.full_bytes)


@dataclass(slots=True, kw_only=True, eq=False)
class Communicator:
    """A NCCL communicator."""

    hash: int
    ranks: tuple[int, ...]
    gigabytes_per_s: float
    """Bus bandwidth that its collectives reach."""
    latency_ns: int = 11_300
    free_at: dict[int, int] = field(default_factory=dict)
    """When each rank's last collective ends: NCCL runs one at a time on a communicator."""
    launched: dict[int, int] = field(default_factory=dict)
    """How many collectives each rank has launched."""

    def transfer_ns(self, op: str, full_bytes: int) -> int:
        """Time of a transfer once all ranks have arrived, by the ring's traffic on the wire."""
        n = len(self.ranks)
        passes = 2 if op == REDUCE else 1
        return self.latency_ns + round(passes * (n - 1) / n * full_bytes / self.gigabytes_per_s)


@dataclass(slots=True, kw_only=True)
class Range:
    """One NVTX range, or a mark where `end` is None; a range that is never left ends at `NEVER`."""

    domain: str
    name: str
    thread: str
    start: int
    end: int | None
    value: int | None = None
    payload: Payload | None = None


@dataclass(slots=True, kw_only=True)
class Sync:
    """One CUDA synchronisation record."""

    type: int
    stream: int
    event: int
    start: int
    end: int
    call: Call


@dataclass(slots=True, kw_only=True)
class Segment:
    """Memory of the GPU that the driver gave, from one call until another (or the end)."""

    bytes: int
    address: int
    taken: Call
    given_back: Call | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Rank:
    """One rank's process: its clock on the host, its streams, and all that was placed."""

    rank: int
    device: int
    pid: int
    random: random.Random
    host_ns: int
    """The host's present."""
    thread: str = MAIN
    stopped: bool = False
    """The host got no further; what it had launched went on."""
    step: int | None = None
    phase: str | None = None
    correlation: int = 1_200
    stream_ids: dict[str, int] = field(default_factory=dict)
    free_at: dict[str, int] = field(default_factory=dict)
    """When each stream has finished what was launched so far, or may go on after a wait."""
    single_queue: bool = False
    """All streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)."""
    queue_front_ns: int = 0
    """When the last item of that queue left it: nothing behind it starts earlier."""
    loaded: set[str] = field(default_factory=set)
    """Kernels whose module is loaded."""
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def jitter(self, ns: int, share: float = 0.25) -> int:
        """``ns``, give or take ``share`` of it."""
        return round(ns * (1 + share * (2 * self.random.random() - 1)))

    def spend(self, ns: int) -> int:
        """Let the host be busy for about ``ns``; returns the time before."""
        before = self.host_ns
        self.host_ns += self.jitter(ns)
        return before

    def call(self, name: str, ns: int) -> Call:
        """A CUDA API call of about ``ns``, with the little host work that leads to it."""
        self.spend(900)
        start = self.spend(ns)
        self.correlation += 1
        call = Call(name=name, thread=self.thread, start=start, end=self.host_ns, correlation=self.correlation)
        self.calls.append(call)
        return call

    def stream_id(self, stream: str) -> int:
        """The stream's id in this process; apart from the main one they differ between processes."""
        if stream not in self.stream_ids:
            self.stream_ids[stream] = 7 if stream == COMPUTE else 16 + 3 * self.rank + 4 * len(self.stream_ids)
        return self.stream_ids[stream]

    def ready_at(self, call: Call, stream: str) -> int:
        """When an operation launched by ``call`` can start on its stream."""
        arrives = call.end + self.jitter(1_650)
        free = self.free_at.get(stream)
        ready = arrives if free is None else max(arrives, free + self.jitter(980))
        return max(ready, self.queue_front_ns + 200) if self.single_queue else ready

    def synchronised(self, kind: int, stream: str, event: Event, call: Call) -> None:
        """Note a CUDA synchronisation record of a call."""
        start = call.start + (call.end - call.start) // 3
        stream_id = self.stream_id(stream)
        self.syncs.append(Sync(type=kind, stream=stream_id, event=event.number, start=start, end=call.end, call=call))

    def place(self, op: Op, stream: str) -> None:
        """Put an operation on its stream."""
        self.ops.append(op)
        self.free_at[stream] = op.end
        self.queue_front_ns = max(self.queue_front_ns, op.start)


@dataclass(frozen=True, slots=True)
class Event:
    """A CUDA event: when it happens on each rank."""

    number: int
    at: dict[int, int]


EPOCH_NS = 1_770_000_000_123_456_789
"""Wall-clock time at which the job's clock reads zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One report: which ranks it holds, and its clock."""

    path: str
    ranks: tuple[int, ...]
    zero_ns: int
    """The job's time at which the capture starts."""
    start_ns: int
    """What the capture's clock reads then."""
    epoch_ns: int
    """Wall-clock time of the start, as the machine's own clock tells it."""
    drift_ppm: float = 0.0
    """By how many parts in a million the capture's clock runs fast."""

    def ticks(self, job_ns: int) -> int:
        """A time of the job as a clock counts it that drifts like the capture's and was right when that started."""
        return job_ns + round((job_ns - self.zero_ns) * self.drift_ppm / 1e6)

    def local(self, ticks: int) -> int:
        """Such a count (or, without drift, a time of the job) on the capture's clock."""
        return ticks - self.zero_ns + self.start_ns


PAYLOAD_SCHEMA = {op: (1 << 24) + number for op, number in ((GATHER, 4), (REDUCE, 5), (SCATTER, 7))}
INIT_SCHEMA = (1 << 24) + 2


def message_payload(made: Collective, size: int) -> Payload:
    """NCCL's payload of one call: communicator hash, message bytes and, for reductions, the operation (0 is sum)."""
    packed = made.communicator.hash.to_bytes(8, "little") + size.to_bytes(8, "little")
    return PAYLOAD_SCHEMA[made.op], packed if made.op == GATHER else packed + bytes(8)


def init_payload(made: Communicator, rank: Rank) -> Payload:
    """NCCL's payload of a communicator's creation: hash, number of ranks, rank in it, CUDA device."""
    numbers = (len(made.ranks), made.ranks.index(rank.rank), rank.device, 0)
    return INIT_SCHEMA, made.hash.to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in numbers)
