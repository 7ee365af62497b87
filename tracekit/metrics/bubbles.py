"""Bubbles: the intervals of a rank in which no compute runs, each with one cause.

The pieces of one rank are disjoint and cover exactly what its windows hold besides compute, so that sums by cause add
up to the account to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]


class Lost(IntEnum):
    """Which term of the account a bubble belongs to."""

    EXPOSED_COMM = 0
    EXPOSED_COPY = 1
    IDLE = 2


EXPOSED_COMM_CAUSES = (
    "start_up",
    "peer_wait",
    "no_prefetch",
    "queued_behind_comm",
    "launched_late",
    "first_gather",
    "last_reduce",
    "optimizer_phase",
    "on_compute_stream",
    "bandwidth",
    "unknown",
)
EXPOSED_COPY_CAUSES = ("offload", "input", "pageable", "unknown")
IDLE_CAUSES = (
    "launch_latency",
    "sync_call",
    "allocator",
    "data_loading",
    "host_other",
    "dependency",
    "unknown",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bubbles:
    """One rank's bubbles, sorted by start; all columns have one length, n."""

    start: Int64
    end: Int64
    lost: Int8
    """`Lost`."""
    cause: Int8
    """Index into the causes of its kind."""
    op: Int64
    """Row in the rank's operations of the communication or copy that runs; NONE when idle."""
    before: Int64
    """Row of the operation that ended last before it; NONE at the window's start."""
    after: Int64
    """Row of the next operation that starts at its end or later; NONE at the end."""
    step: Int64
    """Step number; NONE without steps."""
