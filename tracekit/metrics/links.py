"""The network as each kind of collective saw it: transfer times by group of ranks, waiting set apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
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
    per_step: int | None
    """Collectives of this kind in each step; None where steps differ, or are not known."""
    step_transfer_ns: int | None
    """Transfer of a step's collectives: the sum of the medians of each place in the step. Groups of ranks that run the
    same collectives at the same places move the same bytes, whether or not the capture tells how many."""
    jitter: float | None
    """95th percentile of a transfer over the median of its place, or of its size; None where neither is known."""
    unmatched: int
    """Collectives of this kind, of whatever size, that not all ranks captured; told with the first size only."""


def links(
    hosts: Sequence[str],
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    waits: Sequence[RankWaits],
    matched: Sequence[Matched],
    steps: Sequence[tuple[Int64, Int64]] = (),
) -> tuple[Link, ...]:
    """All groups' transfers; ``hosts`` names each rank's host, ``steps`` has the starts and ends of its steps."""
    result = []
    for kind in matched:
        if kind.op not in FINISH_TOGETHER or len(kind.members) < 2:
            continue
        waited, transfer = split(kind, found)
        told = (transfer != NONE) & ~start_up(kind, found)
        sizes = _sizes(kind, found)
        unmatched = int(np.count_nonzero(~kind.complete))
        first = kind.members[0]
        place, per_step = _places(kind, tracks[first], found[first], steps[first]) if steps else (None, None)
        for size in np.unique(sizes[told]).tolist():
            picked = np.flatnonzero(told & (sizes == size))
            link = _link(kind, picked, size, waited, transfer, hosts, tracks, found, waits, unmatched)
            result.append(_placed(link, transfer[picked], None if place is None else place[picked], per_step))
            unmatched = 0
    return tuple(result)


def _sizes(kind: Matched, found: Sequence[RankCollectives]) -> Int64:
    """(k,) bytes of each collective, as any member's capture tells them; NONE where none does."""
    sizes = np.full(kind.index.shape[1], NONE, np.int64)
    for row, member in enumerate(kind.members):
        have = kind.index[row] != NONE
        sizes[have] = np.maximum(sizes[have], found[member].full_bytes[kind.index[row, have]])
    return sizes


def _places(
    kind: Matched, track: RankTrack, found: RankCollectives, steps: tuple[Int64, Int64]
) -> tuple[Int64 | None, int | None]:
    """((k,) which collective of its step each one is, how many a step has); (None, None) where steps differ.

    Counted through the whole capture: the first of a step can begin before the step does.
    """
    have = kind.index[0] != NONE
    start = track.ops.start[found.row[kind.index[0, have]]]
    counts = np.searchsorted(start, steps[1]) - np.searchsorted(start, steps[0])
    inner = counts[1:-1] if len(counts) > 3 else counts
    if len(inner) < 2 or len(np.unique(inner)) != 1 or inner[0] == 0:
        return None, None
    return np.arange(kind.index.shape[1]) % int(inner[0]), int(inner[0])


def _placed(link: Link, transfer: Int64, place: Int64 | None, per_step: int | None) -> Link:
    """The link with what its collectives' places in the step, or else their size, tell of the usual transfer."""
    if place is None:
        usual = np.full(len(transfer), float(link.transfer_ns)) if link.bytes is not None else None
        step_transfer = None
    else:
        usual, total = np.empty(len(transfer)), 0.0
        for each in np.unique(place).tolist():
            usual[place == each] = np.median(transfer[place == each])
            total += float(np.median(transfer[place == each]))
        step_transfer = round(total)
    if usual is None or not (usual > 0).all():
        return replace(link, per_step=per_step, step_transfer_ns=step_transfer)
    jitter = float(np.percentile(transfer / usual, 95))
    return replace(link, per_step=per_step, step_transfer_ns=step_transfer, jitter=jitter)


def slow_links(found: Sequence[Link], thresholds: Thresholds) -> list[tuple[Link, float]]:
    """Links with little of the bus bandwidth of those that do the same work, and not because of skew; with that ratio.

    The same work is the same op on as many ranks and hosts with messages of one size; where sizes are not known, as
    many of them in each step: then three groups at least, for of two either may move more.
    """
    alike: dict[object, list[Link]] = {}
    for link in found:
        if link.bytes is not None:
            alike.setdefault((link.op, len(link.ranks), link.bytes, len(link.hosts)), []).append(link)
        elif link.step_transfer_ns:
            alike.setdefault((link.op, len(link.ranks), None, len(link.hosts), link.per_step), []).append(link)
    return [pair for links in alike.values() for pair in _slow(links, thresholds)]


FEWEST_ALIKE = 3
"""Groups of ranks of which one can be told to be slow without knowing what they move."""


def _slow(alike: Sequence[Link], thresholds: Thresholds) -> Iterator[tuple[Link, float]]:
    if len(alike) < 2 or (alike[0].bytes is None and len(alike) < FEWEST_ALIKE):
        return
    speed = [link.busbw_gbps or 0.0 if link.bytes is not None else 1.0 / (link.step_transfer_ns or 1) for link in alike]
    ordered = sorted(speed)
    for link, own in zip(alike, speed, strict=True):
        if own <= 0.0 or link.wait_share > thresholds.skew_share:
            continue
        ratio = own / _median_without(ordered, bisect_left(ordered, own))
        if ratio < thresholds.slow_link_ratio:
            yield link, ratio


def _median_without(ordered: Sequence[float], left_out: int) -> float:
    """The median of sorted values but for the one at ``left_out``."""
    n = len(ordered) - 1
    low, high = (ordered[i + (i >= left_out)] for i in ((n - 1) // 2, n // 2))
    return (low + high) / 2


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
        per_step=None,
        step_transfer_ns=None,
        jitter=None,
        unmatched=unmatched,
    )
