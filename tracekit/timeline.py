"""The timeline: captures in memory, as columns.

Everything here is frozen and columnar. Times are int64 nanoseconds on the clock of the capture that the row came from;
intervals are half open, ``[start, end)``. Only the readers make these tables and nothing later changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tracekit.kernel_classes import BY_NAME, KernelClasses

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

NONE = -1
"""Marks "no such row", "no such name", "no such stream" in the index columns below."""


class Kind(IntEnum):
    """What a GPU operation counts as. Classified operation by operation, never stream by stream."""

    COMPUTE = 0
    COMM = 1
    COPY = 2


class Source(IntEnum):
    """Which kind of activity a GPU operation was recorded as."""

    KERNEL = 0
    GRAPH = 1
    MEMCPY = 2
    MEMSET = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ops:
    """GPU operations of one rank, sorted by start (then end). All columns have one length, n."""

    start: Int64
    end: Int64
    stream: Int64
    kind: Int8
    """`Kind`."""
    source: Int8
    """`Source`. A CUDA graph traced as a whole (GRAPH) is compute of unknown content."""
    name: Int32
    """Index into `Timeline.names`; copies carry a made-up name such as ``memcpy HtoD``."""
    call: Int32
    """Row in the process's `Calls` that launched the operation, or NONE where the capture lacks it."""
    nccl: Int32
    """Row in the process's `Ranges` of the innermost NCCL-domain range around the launch, or NONE."""
    grid: Int64
    """Number of thread blocks of a kernel; NONE for others and where the capture lacks it."""
    bytes: Int64
    """Size of a copy; NONE for kernels and where the capture lacks it."""
    pageable: Bool
    """A copy with pageable host memory at one end."""

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, mask: Bool) -> Ops:
        """The operations that the (n,) mask picks."""
        return Ops(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """CUDA API calls of one process, sorted by start; one row for each correlation id (runtime over driver)."""

    start: Int64
    end: Int64
    thread: Int64
    """globalTid as nsys writes it."""
    name: Int32
    """Index into `Timeline.names`, e.g. ``cudaLaunchKernel``; version suffixes such as ``_v7000`` removed."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """NVTX push/pop and start/end ranges of one process, sorted by start, longer ones first."""

    start: Int64
    end: Int64
    """A range that was still open when the capture ended has the capture's end here, and ``open`` set."""
    open: Bool
    thread: Int64
    domain: Int32
    """Index into `Timeline.names`, or NONE for the default domain and where the capture does not tell."""
    name: Int32
    """Index into `Timeline.names`; serial numbers in names of torch's emit_nvtx removed."""
    value: Int64
    """Integer payload, or NO_VALUE."""
    payload: dict[int, bytes] = field(default_factory=dict)
    """Binary payload by row, only for rows that have one."""

    def __len__(self) -> int:
        return len(self.start)


NO_VALUE = np.iinfo(np.int64).min
"""Marks a range without an integer payload (every other int64 is a possible payload)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Syncs:
    """CUDA synchronisation records of one process (not GPU work), sorted by start."""

    start: Int64
    end: Int64
    type: Int8
    """1 event synchronise, 2 stream wait event, 3 stream synchronise, 4 context synchronise; 0 unknown."""
    stream: Int64
    call: Int32

    def __len__(self) -> int:
        return len(self.start)


class MemoryKind(IntEnum):
    """Where memory is."""

    UNKNOWN = 0
    DEVICE = 1
    PINNED = 2
    PAGEABLE = 3
    MANAGED = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations:
    """Memory that one process took from the CUDA driver and gave back, sorted by time.

    A caching allocator takes large segments and hands out pieces of them: these are the segments.
    """

    time: Int64
    device: Int64
    bytes: Int64
    """NONE where it is not known."""
    freed: Bool
    """Given back, not taken."""
    kind: Int8
    """`MemoryKind`."""

    def __len__(self) -> int:
        return len(self.time)


def _nothing_allocated() -> Allocations:
    none = np.empty(0, np.int64)
    return Allocations(time=none, device=none, bytes=none, freed=np.empty(0, np.bool_), kind=np.empty(0, np.int8))


@dataclass(frozen=True, slots=True, kw_only=True)
class OsCall:
    """An operating-system call of one host thread, where the capture traced them."""

    thread: int
    """globalTid."""
    name: str
    start: int
    end: int | None
    """None for a call that had not returned when the capture ended."""


def _no_rows() -> Int32:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Process:
    """One operating-system process in one capture, with what its host threads did."""

    capture: int
    """Index into `Timeline.captures`."""
    pid: int
    name: str | None
    calls: Calls
    ranges: Ranges
    marks: tuple[tuple[str | None, str], ...]
    """NVTX marks that carry facts about the run: (domain, text)."""
    syncs: Syncs
    claim: tuple[int, str] | None = None
    """(global rank, where it is told) as the process itself names it, whatever device it uses."""
    open_calls: Int32 = field(default_factory=_no_rows)
    """Rows of ``calls`` that had not returned when the capture ended; they end with it."""
    unfinished: Int32 = field(default_factory=_no_rows)
    """Rows of ``calls`` that launched an operation which began and did not end in the capture."""
    os_calls: tuple[OsCall, ...] = ()
    """The last call of each thread; looked for only where ranges were open when the capture ended."""
    long_os_calls: tuple[OsCall, ...] = ()
    """The longest calls: what a host pauses in."""
    memory: Allocations = field(default_factory=_nothing_allocated)
    """Empty where the capture has no memory events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """Facts about one capture file."""

    path: str
    format: str
    """``nsys-sqlite`` or ``nsys-rep``."""
    nsys_version: str | None
    schema_version: str | None
    host: str | None
    start_epoch_ns: int | None
    """Wall-clock time of the capture's time zero, where known: a coarse clock across captures."""
    stop_ns: int | None
    """End of the capture on its own clock."""
    lacks: tuple[str, ...]
    """What the capture could have held and does not: keys of `readers.nsys_sqlite.REMEDIES`."""
    diagnostics: tuple[str, ...]
    """The profiler's own warnings, most severe first."""
    notes: tuple[str, ...]
    """What the reader had to pass over, in words."""
    auxiliary: tuple[tuple[int, int], ...]
    """(pid, device) pairs without compute and communication kernels: not ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrack:
    """One rank: a (process, device) pair with compute or communication kernels."""

    rank: int
    rank_source: str
    process: int
    """Index into `Timeline.processes`."""
    pid: int
    device: int
    device_name: str | None
    host: str | None
    ops: Ops
    communicators: tuple[tuple[int, int, int], ...] = ()
    """(communicator hash, number of ranks, rank in it) from NCCL's CommInitRank payloads."""
    device_memory: int | None = None
    """Bytes of the GPU's memory, where the capture tells."""
    gpu: int | None = None
    """The machine's number of the GPU, where known: ``device`` counts only those that the process may see."""
    pci_bus: str | None = None
    """Where the GPU is, such as ``0000:1a:00.0``."""
    overhead_ns: int | None = None
    """Time between the first and the last operation in which the profiler itself worked, by its own record; None where
    it keeps none. What it needs before and after is in no figure."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """All captures of one job: the input of every analysis."""

    captures: tuple[CaptureInfo, ...]
    processes: tuple[Process, ...]
    ranks: tuple[RankTrack, ...]
    """Sorted by rank."""
    names: Sequence[str]
    """Every distinct name, once; the tables above hold indices."""
    rank_conflicts: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """(rank, captures that claim it), for each rank that more than one (process, device) pair claims."""
    kernel_classes: KernelClasses = BY_NAME
    """What the user says of kernels; read with it."""
    left_out: tuple[tuple[str, str], ...] = ()
    """(path, reason) of captures that were named and could not be read, or hold no GPU work."""
