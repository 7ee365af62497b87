"""What the graph of a step is made of: kinds of nodes and edges, and how they are collected."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Node(IntEnum):
    """What a node is the moment of."""

    OP = 0
    CALL = 1
    RETURN = 2
    TRANSFER = 3


class Edge(IntEnum):
    """Why the target comes after the source."""

    STREAM = 0
    LAUNCH = 1
    EVENT = 2
    """A stream waits for an event, as the capture records."""
    COMMUNICATOR = 3
    """Collectives of one communicator run one after the other."""
    ARRIVAL = 4
    """A transfer begins when all have arrived."""
    HOST = 5
    """What a host thread does between two calls."""
    BLOCKED = 6
    """A call returns when an operation has ended."""
    CALL = 7
    """A call that waits takes at least its own time."""
    UNRECORDED = 8
    """It started when the other ended, and no wait is recorded."""


class Builder:
    """Collects nodes and edges."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Int8, Int64, Int64, Float, Float]] = []
        self.edges: list[tuple[Int64, Int64, Int8, Bool, Float]] = []
        self.count = 0

    def add(self, kind: Node, rank: int, item: Int64, measured: Int64, duration: Int64) -> Int64:
        """Numbers of the new nodes, one for each item."""
        n = len(item)
        self.nodes.append(
            (
                np.full(n, kind, np.int8),
                np.full(n, rank, np.int64),
                item,
                measured.astype(np.float64),
                duration.astype(np.float64),
            )
        )
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.int64)

    def join(self, kind: Edge, source: Int64, target: Int64, lag: Int64 | int, *, from_end: bool) -> None:
        """Add an edge from each source to its target."""
        n = len(source)
        self.edges.append(
            (
                source,
                target,
                np.full(n, kind, np.int8),
                np.full(n, from_end, np.bool_),
                np.broadcast_to(np.asarray(lag, np.float64), (n,)),
            )
        )
