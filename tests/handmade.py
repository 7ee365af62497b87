"""Timelines laid out by hand: say what each operation, call and range is, and get the columns.

::

    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 100)
    rank.kernel(10, 60, called=5)
    timeline = job.timeline()
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers
from tracekit.metrics.collectives import collectives
from tracekit.metrics.identity import communicator_sizes, rank_collectives
from tracekit.metrics.together import put_together
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

MAIN, AUTOGRAD = 101, 102
"""Host threads."""
COMPUTE, SIDE, COMMS, COPIES = 7, 13, 20, 24
"""Streams."""


@dataclass
class Sketch:
    """A job's captures; processes are its ranks, in order."""

    names: dict[str, int] = field(default_factory=dict)
    processes: list[ProcessSketch] = field(default_factory=list)

    def name(self, text):
        return self.names.setdefault(text, len(self.names))

    def process(self, **facts):
        """A process; ``capture``, ``host``, ``marks``, ``communicators`` may be told."""
        made = ProcessSketch(job=self, pid=1000 + len(self.processes), **facts)
        self.processes.append(made)
        return made

    def timeline(self, **facts):
        """``epochs``: wall-clock start of each capture; ``lacks``: what each lacks."""
        epochs, lacks = facts.pop("epochs", {}), facts.pop("lacks", ())
        built = [each.build() for each in self.processes]
        tracks = [
            RankTrack(
                rank=rank,
                rank_source="order",
                process=index,
                pid=self.processes[index].pid,
                device=device,
                device_name=None,
                host=None,
                ops=ops,
                communicators=self.processes[index].communicators,
            )
            for rank, (index, device, ops) in enumerate(
                (index, device, ops) for index, (_, tracks) in enumerate(built) for device, ops in tracks.items()
            )
        ]
        captures = 1 + max(process.capture for process, _ in built)
        return Timeline(
            captures=tuple(capture_info(f"run{i}.sqlite", epochs.get(i), lacks) for i in range(captures)),
            processes=tuple(process for process, _ in built),
            ranks=tuple(tracks),
            names=list(self.names),
            **facts,
        )


def capture_info(path, start_epoch_ns, lacks):
    return CaptureInfo(
        path=path,
        format="nsys-sqlite",
        nsys_version=None,
        schema_version=None,
        host=None,
        start_epoch_ns=start_epoch_ns,
        stop_ns=None,
        lacks=tuple(lacks),
        diagnostics=(),
        notes=(),
        auxiliary=(),
    )


@dataclass
class ProcessSketch:
    """One process: host ranges, and GPU operations with the calls that launched them."""

    job: Sketch
    pid: int
    capture: int = 0
    marks: tuple = ()
    communicators: tuple = ()
    ranges: list[dict] = field(default_factory=list)
    calls: list[tuple[int, int, int, int]] = field(default_factory=list)
    ops: list[dict] = field(default_factory=list)

    def range(self, name, start, end, *, thread=MAIN, domain=None, value=NO_VALUE, payload=b"", still_open=False):
        """A host range; returns a handle for ``nccl``."""
        names = (self.job.name(name), NONE if domain is None else self.job.name(domain))
        row = {"name": names[0], "domain": names[1], "start": start, "end": end, "thread": thread, "value": value}
        self.ranges.append(row | {"payload": payload, "open": still_open})
        return len(self.ranges) - 1

    def call(self, name, start, end, *, thread=MAIN):
        """A CUDA call of the host."""
        self.calls.append((start, end, thread, self.job.name(name)))
        return len(self.calls) - 1

    def op(self, start, end, *, stream, kind, source, name, called=None, thread=MAIN, nccl=None, device=0, **facts):
        """A GPU operation, launched at ``called`` by ``thread`` (None: the capture lacks the call).

        ``called`` may be (start, end) of the call; ``call`` is its name. Copies may tell ``bytes`` and
        ``pageable``, kernels ``grid``.
        """
        call = None
        if called is not None:
            begin, until = called if isinstance(called, tuple) else (called, called + 1)
            call = self.call(facts.pop("call", "cudaLaunchKernel"), begin, until, thread=thread)
        row = {"start": start, "end": end, "stream": stream, "kind": kind, "source": source}
        row |= {"bytes": facts.pop("bytes", NONE), "pageable": facts.pop("pageable", False)}
        row["grid"] = facts.pop("grid", NONE)
        assert not facts, facts
        self.ops.append(row | {"name": self.job.name(name), "call": call, "nccl": nccl, "device": device})

    def kernel(self, start, end, *, stream=COMPUTE, name="gemm", **facts):
        self.op(start, end, stream=stream, kind=Kind.COMPUTE, source=Source.KERNEL, name=name, **facts)

    def graph(self, start, end, *, stream=COMPUTE, **facts):
        self.op(start, end, stream=stream, kind=Kind.COMPUTE, source=Source.GRAPH, name="CUDA graph", **facts)

    def copy(self, start, end, *, stream=COPIES, name="memcpy HtoD", **facts):
        self.op(start, end, stream=stream, kind=Kind.COPY, source=Source.MEMCPY, name=name, **facts)

    def comm(self, start, end, *, stream=COMMS, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", **facts):
        self.op(start, end, stream=stream, kind=Kind.COMM, source=Source.KERNEL, name=name, **facts)

    def build(self):
        """(Process, {device: Ops}), every table sorted as the readers sort it."""
        by_start = sorted(range(len(self.ranges)), key=lambda i: (self.ranges[i]["start"], -self.ranges[i]["end"]))
        range_row = {i: row for row, i in enumerate(by_start)}
        by_call = sorted(range(len(self.calls)), key=lambda i: self.calls[i][0])
        call_row = {i: row for row, i in enumerate(by_call)}
        ranges, calls = [self.ranges[i] for i in by_start], [self.calls[i] for i in by_call]
        process = Process(
            capture=self.capture,
            pid=self.pid,
            name="python",
            calls=Calls(
                **{key: int64(call[i] for call in calls) for i, key in enumerate(("start", "end", "thread"))},
                name=np.array([name for *_, name in calls], np.int32),
            ),
            ranges=Ranges(
                **{key: int64(row[key] for row in ranges) for key in ("start", "end", "thread", "value")},
                **{key: np.array([row[key] for row in ranges], np.int32) for key in ("domain", "name")},
                open=np.array([row["open"] for row in ranges], np.bool_),
                payload={i: row["payload"] for i, row in enumerate(ranges) if row["payload"]},
            ),
            marks=tuple(self.marks),
            syncs=Syncs(
                **{key: int64([]) for key in ("start", "end", "stream")},
                type=np.empty(0, np.int8),
                call=np.empty(0, np.int32),
            ),
        )
        devices = sorted({op["device"] for op in self.ops})
        return process, {device: self.columns(device, range_row, call_row) for device in devices}

    def columns(self, device, range_row, call_row):
        ops = sorted((op for op in self.ops if op["device"] == device), key=lambda op: (op["start"], op["end"]))
        return Ops(
            **{key: int64(op[key] for op in ops) for key in ("start", "end", "stream")},
            **{key: np.array([op[key] for op in ops], np.int8) for key in ("kind", "source")},
            name=np.array([op["name"] for op in ops], np.int32),
            call=np.array([call_row.get(op["call"], NONE) for op in ops], np.int32),
            nccl=np.array([range_row.get(op["nccl"], NONE) for op in ops], np.int32),
            grid=int64(op["grid"] for op in ops),
            bytes=int64(op["bytes"] for op in ops),
            pageable=np.array([op["pageable"] for op in ops], np.bool_),
        )


def collective_table(timeline, windows, *, world_size=None):
    """The table of collectives of a timeline, matched and told from waiting as an analysis does it."""
    tracks = timeline.ranks
    covers = [Covers.of(track.ops) for track in tracks]
    sizes = communicator_sizes(timeline)
    found = [rank_collectives(timeline, *each, sizes) for each in zip(tracks, covers, windows, strict=True)]
    together = put_together(timeline, tracks, found, covers, DEFAULT, align=True)
    no_steps = [(int64([]), int64([])) for _ in tracks]
    hosts = [track.host or "one host" for track in tracks]
    return collectives(tracks, found, covers, windows, together.matched, no_steps, hosts, world_size=world_size)


def int64(values):
    return np.array(list(values), np.int64)


def nccl_payload(*, size, communicator=None, third=False):
    """The fields of NCCL's payload of a collective: [communicator] size [operation, padded], without nsys's header."""
    words = ([communicator] if communicator is not None else []) + [size] + ([0] if third else [])
    return struct.pack(f"<{len(words)}Q", *words)
