"""The network as each kind of collective saw it: transfer times by group of ranks, waiting set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bandwidth import link_peak
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import FINISH_TOGETHER, Matched
from tracekit.metrics.waits import RankWaits, split, start_up
from tracekit.theory.volume import BUS_FACTOR
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of collective of one size among one group of ranks."""

    op: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """Host names, or captures where those are not known."""
    count: int
    bytes: int | None
    transfer_ns: int
    """Median."""
    transfer_p95_ns: int
    busbw_gbps: float | None
    peak_gbps: float | None
    """What the GPUs' NVLinks carry in one direction, where all ranks are on one host and the GPU is known."""
    wait_share: float
    """Mean wait of a rank over the mean transfer."""
    exposed_transfer_ns: int
    """Sum over ranks of exposed time that is not waiting."""
    unmatched: int
    """Collectives of this kind, of whatever size, that not all ranks captured; told with the first size only."""


def links(
    hosts: Sequence[str],
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    waits: Sequence[RankWaits],
    matched: Sequence[Matched],
) -> tuple[Link, ...]:
    """All groups' transfers; ``hosts`` names each rank's host."""
    result = []
    for kind in matched:
        if kind.op not in FINISH_TOGETHER or len(kind.members) < 2:
            continue
        waited, transfer = split(kind, found)
        told = (transfer != NONE) & ~start_up(kind, found)
        sizes = found[kind.members[0]].full_bytes[np.maximum(kind.index[0], 0)]
        unmatched = int(np.count_nonzero(~kind.complete))
        for size in np.unique(sizes[told]).tolist():
            picked = np.flatnonzero(told & (sizes == size))
            result.append(_link(kind, picked, size, waited, transfer, hosts, tracks, found, waits, unmatched))
            unmatched = 0
    return tuple(result)


def _link(
    kind: Matched,
    picked: NDArray[np.intp],
    size: int,
    waited: Int64,
    transfer: Int64,
    hosts: Sequence[str],
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    waits: Sequence[RankWaits],
    unmatched: int,
) -> Link:
    own = transfer[picked]
    median = float(np.median(own))
    wait = waited[:, picked]
    exposed = 0
    for row, member in enumerate(kind.members):
        index = kind.index[row, picked]
        exposed += int((found[member].exposed[index] - waits[member].exposed_wait[index]).sum())
    factor = BUS_FACTOR[kind.op](len(kind.members))
    return Link(
        op=kind.op,
        ranks=tuple(tracks[m].rank for m in kind.members),
        hosts=tuple(dict.fromkeys(hosts[m] for m in kind.members)),
        count=len(picked),
        bytes=size if size != NONE else None,
        transfer_ns=round(median),
        transfer_p95_ns=round(float(np.percentile(own, 95))),
        busbw_gbps=size / median * factor if size != NONE and median else None,
        peak_gbps=link_peak([tracks[m] for m in kind.members], [hosts[m] for m in kind.members]),
        wait_share=float(wait.mean() / own.mean()) if own.any() else 0.0,
        exposed_transfer_ns=max(exposed, 0),
        unmatched=unmatched,
    )
