"""Collectives piece by piece: each part moves as soon as it is there, or when it is needed.

A collective of many parameters need not wait for the last of their gradients, nor what uses the first of them for the
last: in smaller buckets the parts follow each other. Bytes are taken to be spread over the compute that uses or makes
them by its time; what a transfer takes beyond its latency is split in as many pieces as there are kernels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.nodes import Edge
from tracekit.metrics.replay.rewire import Edges, rewired
from tracekit.metrics.replay.work import RankWork, main_stream
from tracekit.timeline import NONE, Kind

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
WAITS = (Edge.EVENT, Edge.UNRECORDED)


def last_reduction_in_pieces(graph: Graph, thresholds: Thresholds) -> Graph | None:
    """Of each step's last reduction each piece is reduced when its gradients are there.

    They come of the compute that was launched since the reduction before it. None where that is too short to tell.
    """
    kept, new = np.ones(len(graph.source), np.bool_), list[Edges]()
    for rank, work in enumerate(graph.work):
        for last, makers in _last_reductions(graph, rank, work):
            node, end = graph.op_node[rank], graph.end_node[rank]
            whole = float(graph.duration[end[last]])
            spent = np.cumsum(graph.duration[node[makers]])
            if spent[-1] < thresholds.replay_makers_share * whole:
                return None
            moved = node[_feeding(work, last, makers)]
            into = np.isin(graph.target, moved) & np.isin(graph.edge, (Edge.LAUNCH, *WAITS))
            kept &= ~(into & ~np.isin(graph.source, moved))
            sent = np.append(0.0, spent[:-1]) / spent[-1] * max(whole - thresholds.collective_latency_ns, 0.0)
            target = np.full(len(makers), node[last])
            new.append(Edges.of(Edge.EVENT, node[makers], target, -sent, from_end=True))
    return rewired(graph, kept, new) if new else None


def _last_reductions(graph: Graph, rank: int, work: RankWork) -> list[tuple[int, Int64]]:
    """(last reduction of a step, the compute launched since the one before it) of a rank."""
    node = graph.op_node[rank]
    reductions = np.flatnonzero(work.reduction & work.backward & (work.step != NONE))
    reductions = reductions[np.lexsort((work.launched[reductions], work.step[reductions]))]
    step = work.step[reductions]
    ends = np.flatnonzero(np.append(step[1:] != step[:-1], True)) if len(step) else step
    computing = np.flatnonzero((node != NONE) & work.backward & (work.stream == main_stream(work)))
    computing = computing[work.kind[computing] == Kind.COMPUTE]
    computing = computing[np.argsort(work.launched[computing], kind="stable")]
    found = []
    for at in ends.tolist():
        last = int(reductions[at])
        before = work.launched[reductions[at - 1]] if at and step[at - 1] == step[at] else np.iinfo(np.int64).min
        low, high = np.searchsorted(work.launched[computing], [before, work.launched[last]])
        makers = computing[low:high]
        makers = makers[work.step[makers] == work.step[last]]
        if node[last] != NONE and len(makers):
            found.append((last, makers))
    return found


def _feeding(work: RankWork, last: int, makers: Int64) -> Int64:
    """A collective and the copies that feed it: launched on its stream since the last of what it reduces."""
    since = work.launched[makers[-1]]
    mine = (work.stream == work.stream[last]) & (work.launched > since) & (work.launched <= work.launched[last])
    return np.flatnonzero(mine)


def gathers_under_forward(graph: Graph) -> Graph | None:
    """Of what is gathered after the optimizer's step, each kernel of the next forward pass waits for its piece.

    Behind the last step, whose next forward pass is not here, they take no time. None where nothing is gathered there.
    """
    kept, new = np.ones(len(graph.source), np.bool_), list[Edges]()
    duration = graph.duration.copy()
    for rank, work in enumerate(graph.work):
        node, end = graph.op_node[rank], graph.end_node[rank]
        gathers = np.flatnonzero(work.gather & work.optimizer & (work.step != NONE) & (node != NONE))
        if not len(gathers):
            continue
        used, share, step = _forward_shares(work)
        ends = np.unique(end[gathers])
        foreign = (graph.rank[graph.target] == rank) & ~np.isin(graph.target, node[gathers])
        kept &= ~(foreign & np.isin(graph.source, ends) & np.isin(graph.edge, WAITS))
        for number in np.unique(work.step[gathers]).tolist():
            mine = gathers[work.step[gathers] == number]
            mine = mine[np.argsort(work.launched[mine], kind="stable")]
            here = (step == number + 1) & (node[used] != NONE)
            users, needs = used[here], share[here]
            if not len(users):
                duration[end[mine]] = 0.0
                continue
            moved = np.cumsum(graph.duration[end[mine]])
            needed = needs * moved[-1]
            which = np.minimum(np.searchsorted(moved, needed), len(mine) - 1)
            begun = moved[which] - graph.duration[end[mine[which]]]
            new.append(Edges.of(Edge.EVENT, end[mine[which]], node[users], needed - begun, from_end=False))
    return replace(rewired(graph, kept, new), duration=duration) if new else None


def _forward_shares(work: RankWork) -> tuple[Int64, NDArray[np.float64], Int64]:
    """(compute of the steps' first forward passes, the share of the pass up to and with each, the step of each)."""
    backward = np.flatnonzero(work.backward & (work.step != NONE))
    begins = np.full(int(work.step.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, work.step[backward], work.launched[backward])
    used = np.flatnonzero((work.kind == Kind.COMPUTE) & (work.stream == main_stream(work)) & (work.step != NONE))
    used = used[~work.optimizer[used] & (work.launched[used] < begins[work.step[used]])]
    used = used[np.lexsort((work.launched[used], work.step[used]))]
    step, length = work.step[used], (work.end - work.start)[used].astype(np.float64)
    first = np.flatnonzero(np.append(True, step[1:] != step[:-1])) if len(step) else step
    spent = np.cumsum(length)
    spent -= np.repeat(spent[first] - length[first], np.diff(np.append(first, len(step))))
    # The first and the last pass may not be here in full: all are as long as the median one.
    whole = (
        np.median(spent[np.append(first[1:] - 1, len(step) - 1)][1:-1]) if len(first) > 2 else spent.max(initial=1.0)
    )
    return used, np.minimum(spent / whole, 1.0), step
