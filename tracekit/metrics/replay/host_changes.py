"""Hosts that do less: no pauses, no waiting for what is saved, one launch for many kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.intervals import Cover, subtract
from tracekit.metrics.replay.changes import Changed, without_edges, without_host_time
from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.metrics.replay.twins import Twins
from tracekit.metrics.replay.work import RankWork
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Float = NDArray[np.float64]

FEWEST_STEPS = 3
"""With two the median of a pause and none is half a pause."""


def no_pauses(now: Changed, gaps: Twins, steps: int, thresholds: Thresholds) -> Changed | None:
    """No host pauses much longer than usual at the same place of a step; None with too few steps to tell.

    ``gaps`` are the same pieces of work in different steps of one rank.
    """
    if steps < FEWEST_STEPS:
        return None
    duration, lag = now[0], now[1].copy()
    usual = gaps.at_peers(lag, (), mean=False)
    pause = lag[gaps.item] - usual >= thresholds.pause_ns
    lag[gaps.item[pause]] = usual[pause]
    return duration, lag


def saved_beside(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """State is saved beside training: its copies take no time, no call waits for them, and hosts go on at once.

    None where no tensors are copied to the host outside of forward, backward and optimizer.
    """
    duration, lag = now[0].copy(), now[1].copy()
    saving = np.zeros(len(graph.kind), np.bool_)
    spent = []
    for work, node in zip(graph.work, graph.op_node, strict=True):
        mine = np.flatnonzero((node != NONE) & work.to_host & ~(work.forward | work.backward | work.optimizer))
        saving[node[mine]] = True
        spent.append(_until_work_goes_on(work, mine))
    if not saving.any():
        return None
    duration[saving] = 0.0
    waits = (graph.edge == Edge.BLOCKED) & saving[graph.source]
    waiting = np.zeros(len(graph.kind), np.bool_)
    waiting[graph.target[waits]] = True
    own = (graph.edge == Edge.CALL) & waiting[graph.target]
    lag[own] = np.minimum(lag[own], thresholds.replay_launch_ns)
    return without_host_time(without_edges((duration, lag), waits), graph, spent)


def _until_work_goes_on(work: RankWork, saving: NDArray[np.intp]) -> Cover:
    """From the launch of each of the copies to the next call that launches something else, without loading data."""
    launches = np.zeros(len(work.call_start), np.bool_)
    launches[work.call[work.call != NONE]] = True
    call = np.unique(work.call[saving][work.call[saving] != NONE])
    launches[call] = False
    others = np.flatnonzero(launches)
    at = np.searchsorted(others, call, side="right")
    call, after = call[at < len(others)], others[at[at < len(others)]]
    whole = Cover.of(work.call_start[call], work.call_start[after])
    return Cover.of(*subtract((whole.start, whole.end), (work.loading.start, work.loading.end)))


def in_graphs(now: Changed, graph: Graph, thresholds: Thresholds) -> Changed | None:
    """Kernels launched in a row on one stream, with nothing to wait for in between, are one CUDA graph.

    It is launched as its first kernel was, and the others follow each other by the usual gap between kernels that are
    queued. None where no kernels are launched in a row.
    """
    duration, lag = now[0], now[1].copy()
    inner = np.zeros(len(graph.kind), np.bool_)
    waits = np.zeros(len(graph.kind), np.bool_)
    waits[graph.target[np.isin(graph.edge, (Edge.EVENT, Edge.UNRECORDED))]] = True
    for work, node in zip(graph.work, graph.op_node, strict=True):
        inner[_following(work, node, waits)] = True
    if not inner.any():
        return None
    lag[(graph.edge == Edge.STREAM) & inner[graph.target]] = _usual_gap(graph, thresholds)
    launching = (graph.edge == Edge.LAUNCH) & inner[graph.target]
    calls = np.zeros(len(graph.kind), np.bool_)
    calls[graph.source[launching]] = True
    lag[(graph.edge == Edge.HOST) & calls[graph.target]] = 0.0
    return without_edges((duration, lag), launching)


def _following(work: RankWork, node: Int64, waits: Bool) -> Int64:
    """The nodes of kernels that the call right after that of the kernel before them on their stream launched."""
    launched = np.flatnonzero((node != NONE) & (work.call != NONE))
    op = launched[np.argsort(work.call[launched], kind="stable")]
    if len(op) < 2:
        return np.empty(0, np.int64)
    before, after = op[:-1], op[1:]
    call, previous = work.call[after], work.call[before]
    follows: Bool = (work.kind[before] == Kind.COMPUTE) & (work.kind[after] == Kind.COMPUTE)
    follows &= (call == previous + 1) & (work.call_thread[call] == work.call_thread[previous])
    follows &= (work.stream[before] == work.stream[after]) & (work.step[before] == work.step[after])
    follows &= (work.backward[before] == work.backward[after]) & ~waits[node[after]]
    return node[after[follows]]


def _usual_gap(graph: Graph, thresholds: Thresholds) -> float:
    """Between the end of a kernel and the start of the next one on its stream that was launched in time, ns."""
    found = [np.empty(0, np.int64)]
    for work in graph.work:
        order = np.lexsort((work.start, work.stream))
        before, after = order[:-1], order[1:]
        told = (work.stream[before] == work.stream[after]) & (work.call[after] != NONE)
        told &= (work.kind[before] == Kind.COMPUTE) & (work.kind[after] == Kind.COMPUTE)
        before, after = before[told], after[told]
        queued = work.call_end[work.call[after]] + thresholds.replay_launch_ns < work.end[before]
        gap = (work.start[after] - work.end[before])[queued]
        found.append(gap[(gap >= 0) & (gap <= thresholds.kernel_gap_ns)])
    gaps = np.concatenate(found)
    return float(np.median(gaps)) if len(gaps) >= thresholds.replay_gaps else float(thresholds.graph_gap_ns)
