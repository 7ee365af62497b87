"""The dependency graph of consecutive steps over all ranks.

Nodes are moments: the start of an operation, the start of a call, the return of a call that waits for the GPU, and the
begin of a collective's transfer, which is when the last rank has arrived. An edge says "at least so long after":
``lag``, plus the duration of the source where the edge leaves its end. Only what the capture shows to have been
necessary is an edge; see `dependencies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.clocks import ClockFit
from tracekit.metrics.matching import Matched
from tracekit.metrics.one_rank import RankMeasures
from tracekit.metrics.replay.dependencies import host_waits, launch_lag, operation_waits, polled, ready_at
from tracekit.metrics.replay.longest_path import NEVER
from tracekit.metrics.replay.nodes import Builder, Edge, Node
from tracekit.metrics.replay.transfers import transfers
from tracekit.metrics.replay.work import Names, RankWork, before_in_group, rank_work
from tracekit.timeline import NONE, Process

Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """The graph; times in ns on the reference's clock, relative to ``zero_ns``."""

    kind: Int8
    """(n,) `Node`."""
    rank: Int64
    """(n,) index into the ranks of the analysis; NONE for transfers."""
    item: Int64
    """(n,) index into the rank's `RankWork` (operation, or call); of a transfer its number."""
    measured: Float
    """(n,) when it happened."""
    duration: Float
    """(n,) of an operation outside matched collectives, of a transfer; 0 else."""
    release: Float
    """(n,) not earlier than this; NEVER where only edges tell."""
    source: Int64
    target: Int64
    edge: Int8
    """(m,) `Edge`."""
    from_end: Bool
    """(m,) whether it leaves the source's end."""
    lag: Float
    unexplained: Float
    """(m,) the part of ``lag`` that nothing known accounts for."""
    late: Float
    """(n,) by how much each comes after all that it waits for: part of the ``lag`` of the edges that lead to it."""
    work: tuple[RankWork, ...]
    op_node: tuple[Int64, ...]
    """By rank: the node of each operation, or NONE for those that only serve to learn dependencies."""
    end_node: tuple[Int64, ...]
    """By rank: the node whose moment and duration tell when each operation ends."""
    zero_ns: int


def build_graph(
    measured: Sequence[RankMeasures],
    processes: Sequence[Process],
    matched: Sequence[Matched],
    clocks: Sequence[ClockFit],
    names: Names,
    window: tuple[int, int],
    learn_from_ns: int,
    thresholds: Thresholds,
) -> Graph:
    """The graph of all operations that start in a window (ns on the reference's clock).

    ``processes`` has each rank's process. Dependencies are learned from ``learn_from_ns`` on, before the window.
    """
    low, high = window
    make = Builder()
    work, op_node, begins = [], [], []
    for rank, (m, process, clock) in enumerate(zip(measured, processes, clocks, strict=True)):
        mine = rank_work(m, process, clock, names, learn_from_ns, high, thresholds)
        kept = np.flatnonzero(mine.start >= low)
        node = np.full(len(mine), NONE, np.int64)
        node[kept] = make.add(Node.OP, rank, kept, mine.start[kept] - low, mine.end[kept] - mine.start[kept])
        work.append(mine)
        op_node.append(node)
    end_node = [node.copy() for node in op_node]
    arrived = transfers(make, work, op_node, end_node, [m.collectives for m in measured], matched, low)
    for rank, mine in enumerate(work):
        begins.append(_rank_edges(make, rank, mine, op_node[rank], end_node[rank], low, thresholds))
    return _finish(make, work, op_node, end_node, arrived, begins, low, thresholds)


def _rank_edges(
    make: Builder, rank: int, work: RankWork, node: Int64, end: Int64, low: int, thresholds: Thresholds
) -> list[tuple[Int64, Int64]]:
    """Everything that one rank's operations and calls wait for; returns (node, moment) of what lies outside."""
    lag = launch_lag(work, thresholds)
    stream, communicator = before_in_group(work.stream), _before_on_communicator(work)
    inside = node != NONE
    outside = []
    for kind, before in ((Edge.STREAM, stream), (Edge.COMMUNICATOR, communicator)):
        both = np.flatnonzero((before != NONE) & inside)
        gap = np.minimum(work.start[both] - work.end[before[both]], 0)
        outside.append(_join_ends(make, kind, work, end, node[both], before[both], gap, low))
    held = operation_waits(work, ready_at(work, lag, [stream, communicator]), thresholds)
    for kind, part in ((Edge.EVENT, held.recorded), (Edge.UNRECORDED, ~held.recorded)):
        mine = inside[held.after] & part
        outside.append(_join_ends(make, kind, work, end, node[held.after[mine]], held.before[mine], 0, low))
    used = work.call[inside & (work.call != NONE)]
    if not len(used):
        return outside
    first, last = int(used.min()), int(used.max())
    calls = np.arange(first, last + 1)
    start = work.call_start[calls] - low
    call_node = make.add(Node.CALL, rank, calls, start, np.zeros(len(calls), np.int64))
    launched = np.flatnonzero(inside & (work.call != NONE))
    make.join(Edge.LAUNCH, call_node[work.call[launched] - first], node[launched], lag[launched], from_end=False)
    back = _returns(make, rank, work, end, calls, call_node, low, outside, thresholds)
    polls = polled(work, calls, thresholds)
    after, before = polls.after, polls.before
    wake = work.call_start[after] - work.end[before]
    outside.append(_join_ends(make, Edge.BLOCKED, work, end, call_node[after - first], before, wake, low))
    _chain(make, work, calls, call_node, back, np.isin(calls, after))
    outside.append((call_node[:1], start[:1]))
    return outside


def _before_on_communicator(work: RankWork) -> Int64:
    """The collective before each one on the same communicator, where NCCL names it; NONE else."""
    before = np.full(len(work), NONE, np.int64)
    ops = np.flatnonzero(work.communicator != NONE)
    place = before_in_group(work.communicator[ops])
    before[ops[place != NONE]] = ops[place[place != NONE]]
    # What overlaps shows that the communicator does not keep them apart.
    apart = before != NONE
    apart[apart] = work.end[before[apart]] <= work.start[apart]
    return np.where(apart, before, NONE)


def _join_ends(
    make: Builder,
    kind: Edge,
    work: RankWork,
    end: Int64,
    target: Int64,
    before: Int64,
    lag: Int64 | int,
    low: int,
) -> tuple[Int64, Int64]:
    """Edges from the ends of operations; returns (node, moment) for those outside the window."""
    lag = np.broadcast_to(np.asarray(lag, np.int64), target.shape)
    inside = end[before] != NONE
    make.join(kind, end[before[inside]], target[inside], lag[inside], from_end=True)
    return target[~inside], work.end[before[~inside]] + lag[~inside] - low


def _returns(
    make: Builder,
    rank: int,
    work: RankWork,
    end: Int64,
    calls: Int64,
    call_node: Int64,
    low: int,
    outside: list[tuple[Int64, Int64]],
    thresholds: Thresholds,
) -> Int64:
    """Nodes of the returns of calls that wait for the GPU; gives each call's, or NONE."""
    back = np.full(len(calls), NONE, np.int64)
    held = host_waits(work, thresholds)
    waits = np.flatnonzero(work.waits_for[calls] > 0)
    back[waits] = make.add(
        Node.RETURN, rank, calls[waits], work.call_end[calls[waits]] - low, np.zeros(len(waits), np.int64)
    )
    length = work.call_end[calls[waits]] - work.call_start[calls[waits]]
    known = np.isin(calls[waits], held.after)
    least = np.where(known, np.minimum(length, thresholds.replay_launch_ns), length)
    make.join(Edge.CALL, call_node[waits], back[waits], least, from_end=False)
    mine = np.flatnonzero((held.after >= calls[0]) & (held.after <= calls[-1]))
    after, before = held.after[mine], held.before[mine]
    gap = work.call_end[after] - work.end[before]
    gap = np.where(work.waits_for_copy[after] == before, gap, np.maximum(gap, 0))
    # What came much later did not come of this one's end: it would have gone on soon after that.
    wake = np.where(gap <= thresholds.replay_wake_ns, gap, thresholds.replay_launch_ns)
    outside.append(_join_ends(make, Edge.BLOCKED, work, end, back[after - calls[0]], before, wake, low))
    return back


def _chain(make: Builder, work: RankWork, calls: Int64, call_node: Int64, back: Int64, polls: Bool) -> None:
    """Each call comes after the one before it, of whatever thread, and what the host did in between.

    What polls did is wait.

    Threads hand over to each other, as a training loop does to autograd. After a call that waited for the GPU its
    thread goes on when that returns, whatever other threads did meanwhile.
    """
    if len(calls) < 2:
        return
    start, until = work.call_start[calls], work.call_end[calls]
    previous = np.arange(len(calls)) - 1
    own = before_in_group(work.call_thread[calls])
    waited = (own != NONE) & (back[np.maximum(own, 0)] != NONE)
    waited &= until[np.maximum(own, 0)] >= start[np.maximum(previous, 0)]
    previous = np.where(waited, own, previous)
    at = np.flatnonzero(previous >= 0)
    before = previous[at]
    returned = (back[before] != NONE) & (work.call_thread[calls[before]] == work.call_thread[calls[at]])
    for part, source, moment in ((returned, back, until), (~returned, call_node, start)):
        lag = start[at[part]] - moment[before[part]]
        lag = np.where(polls[at[part]], np.minimum(lag, until[before[part]] - moment[before[part]]), lag)
        make.join(Edge.HOST, source[before[part]], call_node[at[part]], lag, from_end=False)


def _finish(
    make: Builder,
    work: Sequence[RankWork],
    op_node: Sequence[Int64],
    end_node: Sequence[Int64],
    arrived: Sequence[tuple[Int64, Int64]],
    begins: Sequence[Sequence[tuple[Int64, Int64]]],
    low: int,
    thresholds: Thresholds,
) -> Graph:
    """Put the columns together; what an operation starts later than all it waits for becomes part of the lags."""
    kind, rank, item, measured, duration = (np.concatenate(column) for column in zip(*make.nodes, strict=True))
    source, target, edge, from_end, lag = (np.concatenate(column) for column in zip(*make.edges, strict=True))
    collective = np.zeros(len(kind), np.bool_)
    collective[source[edge == Edge.ARRIVAL]] = True
    duration[collective] = 0.0
    release = np.full(len(kind), NEVER)
    for node, moment in [*arrived, *(pair for pairs in begins for pair in pairs)]:
        np.maximum.at(release, node, moment.astype(np.float64))
    reached = release.copy()
    np.maximum.at(reached, target, measured[source] + np.where(from_end, duration[source], 0.0) + lag)
    alone = np.isneginf(reached)
    release[alone] = reached[alone] = measured[alone]
    late = measured - reached
    release = release + np.where(np.isneginf(release), 0.0, late)
    # Nothing of the window happens before it begins, whatever is changed.
    release[kind == Node.OP] = np.maximum(release[kind == Node.OP], 0.0)
    excess = np.maximum(late - thresholds.replay_lag_ns, 0.0)
    return Graph(
        kind=kind,
        rank=rank,
        item=item,
        measured=measured,
        duration=duration,
        release=release,
        source=source,
        target=target,
        edge=edge,
        from_end=from_end,
        lag=lag + late[target],
        unexplained=excess[target],
        late=late,
        work=tuple(work),
        op_node=tuple(op_node),
        end_node=tuple(end_node),
        zero_ns=low,
    )
