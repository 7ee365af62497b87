"""Small captures of round microseconds, laid out by hand and written as nsys writes them.

::

    job = Job()
    rank = job.rank()
    rank.run("gemm", 0, 200)
    rank.run("gather", 200, 300)
    paths = job.write(folder)

Rank r is process 4000 + 10 r on device r; its clock starts at 50 ms. A launch call begins 5 us before what it launches
and takes 4 us, unless ``at`` says when. `case` registers what is laid out so, with what has to be said of it:
worked out by hand from the definitions of the rules.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import dataclass

from nsys_builder import (
    HTOD,
    MARK,
    MEMCPY,
    NCCL_DOMAIN,
    PID,
    SYNC,
    Export,
    global_pid,
    nccl_header,
)

BASE = 50_000
COMPUTE, GATHERS, REDUCTIONS, COPIES = 7, 20, 24, 30
ERAS = {
    "2.27": "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "2.19": "ncclDevKernel_{}_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "2.14": "ncclKernel_{}_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "rccl": "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)",
}
COLLECTIVES = {
    "gather": ("AllGather", GATHERS, 4),
    "scatter": ("ReduceScatter_Sum_bf16", REDUCTIONS, 7),
    "reduce": ("AllReduce_Sum_bf16", GATHERS, 5),
    "broadcast": ("Broadcast", GATHERS, 6),
    "sendrecv": ("SendRecv", GATHERS, 9),
}
"""Operation, its usual stream, its number in NCCL's ranges."""
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"


def us(time):
    return round((BASE + time) * 1000)


class Job:
    """The ranks of one job, in one report or, with ``apart``, in one a rank."""

    def __init__(self, *, apart=False, version="2023.4", era="2.27", gpu="NVIDIA H100 80GB HBM3"):
        self.apart, self.version, self.era, self.gpu = apart, version, era, gpu
        self.exports, self.ranks, self.stop = [], [], None

    def rank(self, host=None):
        if self.apart or not self.exports:
            self.exports.append(Export(self.version))
            self.exports[-1].add(
                "TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000, utcTime="", localTime=""
            )
            if host:
                self.exports[-1].add("META_DATA_CAPTURE", name="HOST_NAME", value=host)
        made = Rank(self, self.exports[-1], len(self.ranks))
        self.ranks.append(made)
        made.export.add("TARGET_INFO_GPU", vmId=1, id=made.number, name=self.gpu, cuDevice=made.number)
        made.export.add("PROCESSES", globalPid=global_pid(made.pid), pid=made.pid, name="python3")
        return made

    def write(self, folder):
        stop = us(self.stop) if self.stop is not None else 1_000_000_000
        for export in self.exports:
            export.add("ANALYSIS_DETAILS", globalVid=1 << 48, duration=stop, startTime=0, stopTime=stop)
        return [export.write(folder / f"case_{i}.sqlite") for i, export in enumerate(self.exports)]


class Rank:
    """One process with one GPU. Times are whole microseconds."""

    def __init__(self, job, export, number):
        self.job, self.export, self.number, self.pid = job, export, number, PID + 10 * number
        self.occupied = defaultdict(set)
        self.domains = {}

    def run(self, what, start, end, *, at=None, stream=None, grid=132, launched=True, tid=None, size=None, comm=0xC0):
        """A kernel; ``what`` is a collective of `COLLECTIVES`, "gemm", or the kernel's own name."""
        kind, name = "compute", GEMM if what == "gemm" else what
        if what in COLLECTIVES:
            op, usual, _ = COLLECTIVES[what]
            kind, name = "comm", ERAS[self.job.era].format(op.split("_")[0] if self.job.era == "2.14" else op)
            stream = usual if stream is None else stream
        stream = COMPUTE if stream is None else stream
        call = None
        if launched:
            begin = start - 5 if at is None else at
            call = (us(begin), us(begin + 4))
            if what in COLLECTIVES and size is not None:
                self.asked(what, begin - 1, begin + 5, size=size, comm=comm)
        self.export.kernel(
            name,
            us(start),
            us(end),
            call=call,
            pid=self.pid,
            tid=tid,
            device=self.number,
            stream=stream,
            gridX=grid,
            gridY=1,
            gridZ=1,
            blockX=128,
            blockY=1,
            blockZ=1,
        )
        self.occupied[kind].update(range(start, end))

    def copy(self, start, end, *, at=None, stream=COPIES, size=1 << 20, kind=HTOD, pageable=False, call=4, name=None):
        begin = start - 5 if at is None else at
        correlation = self.export.correlation()
        self.call(name or "cudaMemcpyAsync_v3020", begin, begin + call, correlation=correlation)
        source, target = (0 if pageable else 1, 2) if kind == HTOD else (2, 0 if pageable else 1)
        self.export.op(
            MEMCPY,
            us(start),
            us(end),
            pid=self.pid,
            device=self.number,
            stream=stream,
            bytes=size,
            copyKind=kind,
            srcKind=source,
            dstKind=target,
            correlationId=correlation,
        )
        self.occupied["copy"].update(range(start, end))

    def migration(self, start, end, *, size, kind=11):
        """A page of unified memory that moves to the GPU (11) or to the host (12); nobody launched it."""
        self.export.op(
            MEMCPY,
            us(start),
            us(end),
            pid=self.pid,
            device=self.number,
            stream=0,
            bytes=size,
            copyKind=kind,
            correlationId=0,
        )
        self.occupied["copy"].update(range(start, end))

    def call(self, name, start, end, *, tid=None, correlation=None):
        """A CUDA call that launches nothing."""
        correlation = correlation or self.export.correlation()
        self.export.call(us(start), us(end), correlation, name=name, pid=self.pid, tid=tid)
        return correlation

    def sync(self, name, start, end, kind, *, stream=COMPUTE):
        """A blocking call with its synchronisation record; ``kind`` 1 event, 3 stream, 4 context."""
        correlation = self.call(name, start, end)
        self.export.add(
            SYNC,
            start=us(start),
            end=us(end),
            deviceId=self.number,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=global_pid(self.pid),
            syncType=kind,
        )

    def range(self, name, start, end, *, tid=None, domain=None, **columns):
        number = 0 if domain is None else self.domain(domain)
        self.export.range(
            name, us(start), None if end is None else us(end), pid=self.pid, tid=tid, domain=number, **columns
        )

    def step(self, number, start, end):
        self.range("step", start, end, domain="tracekit", int64Value=number)

    def phase(self, name, start, end):
        self.range(name, start, end, domain="tracekit")

    def of(self, world):
        """The trainer's mark, by which a process tells its rank."""
        text = json.dumps({"rank": self.number, "world_size": world})
        self.range(text, -100, None, domain="tracekit", eventType=MARK)

    def domain(self, name):
        if name not in self.domains:
            self.domains[name] = NCCL_DOMAIN if name == "NCCL" else 10 + len(self.domains)
            self.export.domain(name, self.domains[name], pid=self.pid)
        return self.domains[name]

    def asked(self, what, start, end, *, size, comm=0xC0):
        """NCCL's own range around the call of a collective, with its payload: communicator and bytes of one rank."""
        op, _, number = COLLECTIVES[what]
        payload = struct.pack("<QQ", comm, size) + (b"" if what == "gather" else struct.pack("<i", 0))
        name = self.export.string(f"nccl{op.split('_')[0]}")
        blob = nccl_header(len(payload), number) + payload
        self.range(None, start, end, domain="NCCL", textId=name, binaryData=blob)

    def totals(self):
        """The account of the whole, counted microsecond by microsecond."""
        compute, comm, copy = (self.occupied[kind] for kind in ("compute", "comm", "copy"))
        every = compute | comm | copy
        wall = max(every) + 1 - min(every)
        return {
            "wall_ns": wall * 1000,
            "compute_ns": len(compute) * 1000,
            "exposed_comm_ns": len(comm - compute) * 1000,
            "exposed_copy_ns": len(copy - compute - comm) * 1000,
            "idle_ns": (wall - len(every)) * 1000,
            "comm_ns": len(comm) * 1000,
            "overlapped_comm_ns": len(comm & compute) * 1000,
        }


@dataclass(frozen=True)
class Case:
    """A job and what has to be said of it."""

    lay_out: object
    fires: dict
    """Cost in us a step by code (of ``A|B`` one has to be there); None where the definition gives no cost."""
    silent: tuple
    """Codes that must not be there."""
    facts: dict
    """Severity, ranks, steps of the first of ``fires``."""
    job: dict

    @property
    def name(self):
        return self.lay_out.__name__

    def build(self):
        job = Job(**self.job)
        self.lay_out(job)
        return job


CASES = {}
"""By name; filled by the modules that lay them out."""


def case(fires=None, silent=(), job=None, **facts):
    """Register the function below, which lays out a `Job`."""

    def register(lay_out):
        made = Case(lay_out, fires or {}, tuple(silent), facts, job or {})
        assert made.name not in CASES
        CASES[made.name] = made
        return lay_out

    return register


EXPOSED = ("TK101", "TK102", "TK103", "TK104", "TK105", "TK106", "TK107", "TK108", "TK109", "TK110", "TK111", "TK112")
HOST = (
    "TK401",
    "TK402",
    "TK403",
    "TK404",
    "TK405",
    "TK406",
    "TK407",
    "TK408",
    "TK410",
    "TK411",
    "TK414",
    "TK416",
    "TK417",
    "TK418",
    "TK501",
)
SIZED = {"version": "2024.6"}
"""An export with NCCL's payloads."""
