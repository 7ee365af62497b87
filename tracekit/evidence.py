"""What each rank's collectives looked like when a job stood still: the input of the diagnosis of hangs.

Captures and PyTorch's Flight Recorder dumps both become this. Frozen and columnar; one row is one collective that one
rank has issued, in the order of issue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]

UNKNOWN = -1
"""Marks what the source does not tell in the columns below."""
BYTE = "byte"
"""The dtype of collectives whose sizes are told in bytes alone: one element a byte."""


class State(IntEnum):
    """How far a collective got on one rank."""

    UNKNOWN = -1
    ISSUED = 0
    """The host has called it; nothing of it is known to run."""
    STARTED = 1
    """Its kernel runs and has not ended."""
    COMPLETED = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """The collectives of one rank in the order of issue; all columns have one length, n."""

    communicator: Int32
    """Index into `Evidence.communicators`."""
    seq: Int64
    """Ordinal in its communicator, comparable across ranks."""
    op: Int32
    """Index into `Evidence.names`: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ...; UNKNOWN."""
    elements_in: Int64
    """Elements of this rank's input, summed over tensors; UNKNOWN."""
    elements_out: Int64
    dtype: Int32
    """Index into `Evidence.names`; UNKNOWN."""
    state: Int8
    """`State`."""
    step: Int64
    """Training step it was issued in; UNKNOWN."""
    launch: Int64 | None = None
    """Ordinal of the launch on this rank, which the members of one batch of sends and receives share; None: each row
    is a launch of its own."""
    created: Int64 | None = None
    """When the host launched it (ns since 1970, by its own clock); UNKNOWN. None where no entry tells."""

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Status:
    """How far a rank got in each communicator, as its source counts beside the entries; columns of one length."""

    communicator: Int32
    """Index into `Evidence.communicators`, each at most once."""
    launched: Int64
    """Last seq that the host has launched; UNKNOWN."""
    started: Int64
    completed: Int64


NO_STATUS = Status(
    communicator=np.empty(0, np.int32),
    launched=np.empty(0, np.int64),
    started=np.empty(0, np.int64),
    completed=np.empty(0, np.int64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """Where a rank runs; None where no source tells."""

    host: str | None = None
    pid: int | None = None
    device: int | None = None
    """Ordinal of its GPU on the host."""
    pci: str | None = None
    """PCI bus id of its GPU."""
    thread: str | None = None
    """Name or id of the thread that launched its last collective."""


NO_FACTS = ProcessFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A process group (dumps) or NCCL communicator (captures)."""

    name: str
    """Hash in hex, or the process group's name."""
    description: str | None
    """What the job calls it, such as ``default_pg`` or ``mesh_shard``."""
    ranks: tuple[int, ...] | None
    """Global ranks in it; None where no source tells: then the ranks with entries."""
    is_way: bool = False
    """It is the way from a sender (the first of ``ranks``) to a receiver, who number what they launch each for
    itself."""
    of: int | None = None
    """Of a way: how many ranks the process group has that it belongs to; None where no source tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A collective that a rank launched and that is not finished."""

    name: str
    """As its source calls it."""
    communicator: str
    seq: int
    launched_ns: int
    """On the clock of the rank's capture."""
    before_end_ns: int
    """How long before the end of that capture."""
    started: bool
    """Its kernel is known to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a rank was doing last, in words and names as its source tells them; None where it does not."""

    open_ranges: tuple[str, ...] = ()
    """NVTX ranges that were never left, outermost first."""
    last_call: str | None = None
    """Last CUDA call of the host."""
    last_call_open: bool = False
    """The call had not returned when the capture ended."""
    last_collective: str | None = None
    os_call: str | None = None
    """Operating-system call that the thread of the step blocked in."""
    frames: tuple[str, ...] = ()
    """Python stack of the last collective, innermost first, where a dump has it."""
    step: int | None = None
    module: str | None = None
    phase: str | None = None
    idle_ns: int | None = None
    """How long before the end of its capture the rank was last active."""
    usual_step_ns: int | None = None
    """Median length of its steps in the capture; None without any that ended."""
    pending: tuple[Pending, ...] = ()
    """The earliest of its collectives that are not finished, where a capture tells when they were launched."""
    pending_count: int = 0
    """How many these are in all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankEvidence:
    """One rank's side of it."""

    rank: int
    rank_source: str
    source: str
    """Path of the capture or dump."""
    entries: Entries
    wrapped: bool
    """Collectives may be lost: the ring buffer wrapped, finished ones are not listed, or the capture began later."""
    end_ns: int | None
    """When its capture or dump ended, on one clock for all ranks (ns); None where it cannot be told."""
    activity: Activity
    status: Status = NO_STATUS
    at_rest: bool = False
    """Its process counts all that it has launched as completed, in whatever groups."""
    process: ProcessFacts = NO_FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An entry that is not finished, and that cannot be put beside those of the other ranks."""

    rank: int
    communicator: str
    seq: int | None
    op: str | None
    state: State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """All ranks."""

    ranks: tuple[RankEvidence, ...]
    """Sorted by rank."""
    communicators: tuple[Communicator, ...]
    """Ways come last."""
    names: Sequence[str]
    world_size: int | None
    """Number of ranks of the job, where a source tells."""
    interrupted: bool | None
    """Whether the job was stopped while it stood still (open ranges, dumps on a time-out); None where unknown."""
    notes: tuple[str, ...]
    """What the readers had to pass over, in words."""
    lacking: tuple[str, ...] = ()
    """What would have told more, in words."""
    only_unfinished: bool = False
    """The sources list no finished collectives: what a rank does not list, it has finished or never launched."""
    unread: tuple[Unread, ...] = ()
