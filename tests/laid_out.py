"""Jobs of many ranks, laid out in whole nanoseconds on one clock, then seen by captures with clocks of their own.

::

    job = Job(ranks=4)
    job.compute(0, 0, 60)
    job.collective("all_reduce", {0: 60, 1: 90, 2: 80, 3: 85}, end=100)
    timeline = job.timeline()
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracekit.timeline import (
    NO_VALUE,
    NONE,
    Calls,
    CaptureInfo,
    Kind,
    Ops,
    Process,
    Ranges,
    RankTrack,
    Source,
    Syncs,
    Timeline,
)

COMPUTE, COMMS, THREAD = 7, 20, 101
KERNELS = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
    "send_recv": "ncclDevKernel_SendRecv",
}
CALLS = {
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_reduce": "ncclAllReduce",
    "broadcast": "ncclBroadcast",
    "send_recv": "ncclSend",
}
LAUNCH_AHEAD = 100_000
"""An operation is launched so long before it runs, unless told otherwise: the host runs ahead."""


@dataclass(frozen=True)
class ClockOf:
    """A capture's clock: what it reads at an instant of the job."""

    offset_ns: int = 0
    drift: float = 0.0
    start_epoch_ns: int | None = None

    def reads(self, t: int) -> int:
        return t + self.offset_ns + round(self.drift * t)


class Laid(NamedTuple):
    """An operation on the job's clock."""

    start: int
    end: int
    kind: Kind
    stream: int
    name: str
    grid: int
    called: int
    """When it was launched; NONE where the capture lacks the call."""
    nccl: int | None = None
    """Which of the rank's ranges NCCL launched it in."""


@dataclass
class Job:
    """``capture_of``: the capture that holds each rank, by default one for all; ``clocks`` by capture."""

    ranks: int
    capture_of: Sequence[int] = ()
    clocks: dict[int, ClockOf] = field(default_factory=dict)
    hosts: Sequence[str | None] = ()
    gpu: str | None = None
    """Every rank's device name."""

    def __post_init__(self) -> None:
        self.ops = [[] for _ in range(self.ranks)]
        self.ranges = [[] for _ in range(self.ranks)]
        self.communicators = [[] for _ in range(self.ranks)]
        self.names = {}
        self.capture_of = self.capture_of or [0] * self.ranks

    def communicator(self, number: int, ranks: Sequence[int]) -> int:
        """Have NCCL tell of a communicator."""
        for place, rank in enumerate(ranks):
            self.communicators[rank].append((number, len(ranks), place))
        return number

    def range(self, rank, name, start, end, value=NO_VALUE, domain=None, payload=b""):
        self.ranges[rank].append((start, end, name, domain, value, payload))

    def compute(self, rank, start, end, *, name="gemm", grid=64, stream=COMPUTE, called=None):
        launch = start - LAUNCH_AHEAD if called is None else called
        self.ops[rank].append(Laid(start, end, Kind.COMPUTE, stream, name, grid, launch))

    def copy(self, rank, start, end, *, stream=24):
        self.ops[rank].append(Laid(start, end, Kind.COPY, stream, "memcpy DtoD", NONE, start - LAUNCH_AHEAD))

    def collective(self, op, arrivals, end, *, communicator=None, size=None, stream=COMMS, late_end=None, called=None):
        """One collective of the ranks in ``arrivals`` (rank: start), which all leave at ``end``.

        ``late_end``: by how much later a rank's record of it ends. ``size``: the message, told by NCCL's range.
        """
        for rank, start in arrivals.items():
            launch = (called or {}).get(rank, start - LAUNCH_AHEAD)
            told = None
            if communicator is not None or size is not None:
                told = len(self.ranges[rank])
                words = ([] if communicator is None else [communicator]) + [size or 1024, 0]
                self.range(rank, CALLS[op], launch - 10, launch + 2_000, domain="NCCL", payload=_packed(words, op))
            last = end + (late_end or {}).get(rank, 0)
            self.ops[rank].append(Laid(start, last, Kind.COMM, stream, KERNELS[op], 8, launch, told))

    def timeline(
        self, *, launches: bool = True, drop: Callable[[int, int], bool] = lambda rank, row: False
    ) -> Timeline:
        """``launches=False``: a capture without launch rows. ``drop``: which of a rank's operations it lost."""
        captures = 1 + max(self.capture_of)
        built = [self._rank(rank, launches, drop) for rank in range(self.ranks)]
        return Timeline(
            captures=tuple(_capture(c, self.clocks.get(c, ClockOf())) for c in range(captures)),
            processes=tuple(process for process, _ in built),
            ranks=tuple(track for _, track in built),
            names=list(self.names),
        )

    def _rank(self, rank, launches, drop):
        clock = self.clocks.get(self.capture_of[rank], ClockOf())

        def read(times):
            return np.array([clock.reads(t) for t in times], np.int64)

        in_order = sorted(enumerate(self.ranges[rank]), key=lambda r: (r[1][0], -r[1][1]))
        ranges, range_row = [r for _, r in in_order], {told: row for row, (told, _) in enumerate(in_order)}
        ops = sorted(self.ops[rank], key=lambda op: (op.start, op.end))
        ops = [op for row, op in enumerate(ops) if not drop(rank, row)]
        known = [i for i, op in enumerate(ops) if op.called != NONE] if launches else []
        by_call = sorted(known, key=lambda i: ops[i].called)
        call_row = {i: row for row, i in enumerate(by_call)}
        process = Process(
            capture=self.capture_of[rank],
            pid=1000 + rank,
            name="python",
            calls=Calls(
                start=read([ops[i].called for i in by_call]),
                end=read([ops[i].called + 1_000 for i in by_call]),
                thread=np.full(len(call_row), THREAD, np.int64),
                name=np.full(len(call_row), self._name("cudaLaunchKernel"), np.int32),
            ),
            ranges=Ranges(
                start=read([r[0] for r in ranges]),
                end=read([r[1] for r in ranges]),
                open=np.zeros(len(ranges), np.bool_),
                thread=np.full(len(ranges), THREAD, np.int64),
                domain=np.array([NONE if r[3] is None else self._name(r[3]) for r in ranges], np.int32),
                name=np.array([self._name(r[2]) for r in ranges], np.int32),
                value=np.array([r[4] for r in ranges], np.int64),
                payload={row: r[5] for row, r in enumerate(ranges) if r[5]},
            ),
            marks=(),
            syncs=Syncs(
                start=read([]),
                end=read([]),
                type=np.empty(0, np.int8),
                stream=read([]),
                call=np.empty(0, np.int32),
            ),
        )
        track = RankTrack(
            rank=rank,
            rank_source="order",
            process=rank,
            pid=1000 + rank,
            device=rank % 8,
            device_name=self.gpu,
            host=self.hosts[rank] if self.hosts else None,
            communicators=tuple(self.communicators[rank]),
            ops=Ops(
                start=read([op.start for op in ops]),
                end=read([op.end for op in ops]),
                stream=np.array([op.stream for op in ops], np.int64),
                kind=np.array([op.kind for op in ops], np.int8),
                source=np.array([Source.MEMCPY if op.kind == Kind.COPY else Source.KERNEL for op in ops], np.int8),
                name=np.array([self._name(op.name) for op in ops], np.int32),
                call=np.array([call_row.get(i, NONE) for i in range(len(ops))], np.int32),
                nccl=np.array([range_row.get(op.nccl, NONE) for op in ops], np.int32),
                grid=np.array([op.grid for op in ops], np.int64),
                bytes=np.full(len(ops), NONE, np.int64),
                pageable=np.zeros(len(ops), np.bool_),
            ),
        )
        return process, track

    def _name(self, text):
        return self.names.setdefault(text, len(self.names))


def _packed(words, op):
    """NCCL's payload: communicator where known, size, and for some ops a third field of four bytes."""
    body = struct.pack(f"<{len(words) - 1}Q", *words[:-1])
    return body if op == "all_gather" else body + struct.pack("<i", words[-1])


def _capture(index, clock):
    return CaptureInfo(
        path=f"run{index}.sqlite",
        format="nsys-sqlite",
        nsys_version=None,
        schema_version=None,
        host=None,
        start_epoch_ns=clock.start_epoch_ns,
        stop_ns=None,
        lacks=(),
        diagnostics=(),
        notes=(),
        auxiliary=(),
    )


def lock_step(job, *, steps=8, layers=5, compute, transfer=100_000, idle=lambda *_: 0, data=lambda *_: 0, **facts):
    """Steps in which all ranks compute a layer, then meet in an all-reduce, again and again; nothing overlaps.

    ``compute``, ``idle`` and ``data`` give ns by (rank, step, layer): the GPU idles, or idles in a data range, before
    the layer. Returns the instants at which the steps begin, and the end.
    """
    now, starts = 1_000_000, []
    for step in range(steps):
        starts.append(now)
        for layer in range(layers):
            arrivals = {}
            for rank in range(job.ranks):
                begin = now + idle(rank, step, layer) + data(rank, step, layer)
                if data(rank, step, layer):
                    job.range(rank, "data", now, begin - 1)
                late = begin - 1_500 if begin > now else None  # launched only when the host is back
                end = begin + compute(rank, step, layer)
                phase = "forward" if layer < layers // 2 else "backward"
                job.range(rank, phase, begin - LAUNCH_AHEAD - 500 if late is None else late - 50, end - LAUNCH_AHEAD)
                job.compute(rank, begin, end, name=f"gemm{layer}", called=late)
                arrivals[rank] = end + 1_000
            now = max(arrivals.values()) + transfer + 37 * (step * layers + layer)
            job.collective("all_reduce", arrivals, now, **facts)
            now += 1_000
        for rank in range(job.ranks):
            job.range(rank, "step", starts[-1] - LAUNCH_AHEAD - 1_000, now - LAUNCH_AHEAD - 2_000, value=step)
    return [*starts, now]


US, MS = 1_000, 1_000_000


def late_launches(*, lag, launches=True):
    """All ranks compute the same, but rank 0 starts its collectives 300 us late: right after (or ``lag``) a launch."""
    made = Job(4)
    now = MS
    for step in range(8):
        begin = now
        for _ in range(5):
            end = now + 600 * US
            for rank in range(4):
                made.compute(rank, now, end, name="gemm")
                # Something short runs while it is late, so that the GPU is not idle all the time.
                if rank == 0:
                    made.copy(rank, end, end + 299 * US)
            arrivals = {rank: end + (300 * US if rank == 0 else 1 * US) for rank in range(4)}
            called = {0: arrivals[0] - lag}
            now = arrivals[0] + 100 * US
            made.collective("all_reduce", arrivals, now, called=called)
            now += US
        for rank in range(4):
            made.range(rank, "step", begin - LAUNCH_AHEAD - 500, now - LAUNCH_AHEAD - 500, value=step)
    return made


def more_work():
    """Rank 1 runs eight kernels a layer, the others five; each takes as long as on the others."""
    made = Job(4)
    now = MS
    for step in range(8):
        begin = now
        for _ in range(5):
            ends = {}
            for rank in range(4):
                ends[rank] = now
                for _ in range(8 if rank == 1 else 5):
                    made.compute(rank, ends[rank], ends[rank] + 100 * US)
                    ends[rank] += 100 * US
            now = max(ends.values()) + 50 * US
            made.collective("all_reduce", ends, now)
        for rank in range(4):
            made.range(rank, "step", begin - LAUNCH_AHEAD - 500, now - LAUNCH_AHEAD - 500, value=step)
    return made


GROUPS = [range(4), range(4, 8), *((r, r + 4) for r in range(4))]


def replicas(late, *, gathers=6, steps=6):
    """Hybrid sharding: ranks 0-3 and 4-7 gather ``gathers`` times among themselves, then r meets r + 4.

    ``late``: ns by (rank, step, gather) of compute beyond the usual 300 us before each gather; the last one is for the
    all-reduce. All ranks start each step together.
    """
    job = Job(8)
    for number, members in enumerate(GROUPS):
        job.communicator(number + 1, list(members))
    begin = MS
    for step in range(steps):
        now = dict.fromkeys(range(8), begin)

        def meet(op, number, usual, place, stream, step=step, now=now):
            arrivals = {r: now[r] + usual + late(r, step, place) for r in GROUPS[number]}
            for r, arrival in arrivals.items():
                job.compute(r, now[r], arrival)
            end = max(arrivals.values()) + 80_000
            job.collective(op, arrivals, end, communicator=number + 1, stream=stream)
            now |= dict.fromkeys(arrivals, end)

        for gather in range(gathers):
            for node in (0, 1):
                meet("all_gather", node, 300_000, gather, 20)
        for pair in range(2, 6):
            meet("all_reduce", pair, 1_000, gathers, 24)
        end = max(now.values())
        for rank in range(8):
            job.range(rank, "step", begin - LAUNCH_AHEAD - 50, end - LAUNCH_AHEAD - 100, value=step)
        begin = end
    return job


def pairs(transfer, *, late=lambda *_: 0, n=40, size=1 << 20, hosts=()):
    """Eight ranks of which r and r + 4 reduce together, again and again, from when all have computed 200 us.

    ``transfer``: ns by (pair, k); ``late``: ns by (rank, k); ``size``: bytes, None where NCCL does not tell.
    """
    job = Job(8, hosts=hosts)
    for pair in range(4):
        job.communicator(pair + 1, [pair, pair + 4])
    now = MS
    for k in range(n):
        ends = []
        for pair in range(4):
            arrivals = {r: now + 200 * US + late(r, k) for r in (pair, pair + 4)}
            for r, arrival in arrivals.items():
                job.compute(r, now, arrival)
            ends.append(max(arrivals.values()) + transfer(pair, k))
            known = {"communicator": pair + 1} if size else {}
            job.collective("all_reduce", arrivals, ends[-1], size=size, stream=20, **known)
        now = max(ends) + 20 * US
    return job
