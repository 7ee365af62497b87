"""The table of collectives by communicator and op: how often, how long, how much of it exposed, how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover, subtract, union
from tracekit.metrics.accounting import Covers
from tracekit.metrics.bandwidth import bandwidth, link_peak, size_classes
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.metrics.waits import split, start_up
from tracekit.results import Collective
from tracekit.spool import release
from tracekit.theory.volume import BUS_FACTOR
from tracekit.timeline import NONE, RankTrack

Int64 = NDArray[np.int64]


def collectives(
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    covers: Sequence[Covers],
    windows: Sequence[tuple[int, int]],
    matched: Sequence[Matched],
    steady: Sequence[tuple[Int64, Int64]],
    hosts: Sequence[str],
    *,
    world_size: int | None,
) -> tuple[Collective, ...]:
    """All ranks' collectives by (communicator, op), most exposed time first.

    ``windows`` is what each rank's figures are for, ``steady`` the starts and ends of its steady steps, ``hosts`` names
    its host.
    """
    sizes = {f"{c:#018x}": size for track in tracks for c, size, _ in track.communicators}
    sums: dict[Key, _Sums] = {}
    for each, cover, window, steps, track in zip(found, covers, windows, steady, tracks, strict=True):
        _add(sums, each, cover, window, steps, track)
        release()
    kinds: dict[Key, list[Matched]] = {}
    for kind in matched:
        kinds.setdefault((kind.communicator, kind.op), []).append(kind)
    rank_steps = sum(len(start) for start, _ in steady)
    rows = []
    for key in sorted(sums, key=lambda key: (key[0] or "", key[1])):
        size = sizes.get(key[0] or "", world_size if key[0] is None else None)
        rows.append(_collective(key, sums[key], tracks, found, kinds.get(key, []), hosts, rank_steps, size))
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.comm_ns, row.op)))


Key = tuple[str | None, str]
"""(communicator, op)."""


@dataclass(slots=True)
class _Sums:
    """What the ranks' figures of one kind of collective come to, ns."""

    comm: int = 0
    overlapped: int = 0
    exposed: int = 0
    in_steps: int = 0
    """Exposed, in steady steps."""
    count: int = 0
    """The largest of a rank."""
    bytes: list[Int64] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)


def _add(
    sums: dict[Key, _Sums],
    each: RankCollectives,
    cover: Covers,
    window: tuple[int, int],
    steps: tuple[Int64, Int64],
    track: RankTrack,
) -> None:
    """Add one rank's figures to those of each kind of collective that it has."""
    by_group = np.argsort(each.of, kind="stable")
    edges = np.searchsorted(each.of[by_group], np.arange(len(each.group) + 1))
    for group, key in enumerate(each.group):
        mine = by_group[edges[group] : edges[group + 1]]
        row, one = each.row[mine], sums.setdefault(key, _Sums())
        all_of_it = Cover.of(np.clip(track.ops.start[row], *window), np.clip(track.ops.end[row], *window))
        one.comm += int(all_of_it.before[-1])
        one.overlapped += int(cover.compute.within(all_of_it.start, all_of_it.end).sum())
        one.exposed += int(each.exposed[mine].sum())
        own = union(each.own_start[mine], each.own_end[mine])
        one.in_steps += int(Cover.of(*subtract(own, (cover.compute.start, cover.compute.end))).within(*steps).sum())
        one.count = max(one.count, len(row))
        one.bytes.append(each.full_bytes[mine])
        one.ranks.append(each.rank)
        one.sources.append(each.bytes_source[group])


def _collective(
    key: Key,
    sums: _Sums,
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    kinds: Sequence[Matched],
    hosts: Sequence[str],
    rank_steps: int,
    size: int | None,
) -> Collective:
    full = np.concatenate(sums.bytes)
    known = full[full != NONE]
    # A size that occurs, not the mean of two.
    full_bytes = int(np.percentile(known, 50, method="lower")) if len(known) and len(known) == len(full) else None
    transfer, moved, wait = _told(kinds, found, size)
    algbw = bandwidth(transfer, moved) if full_bytes is not None else None
    ranks_in_it = size or (len(sums.ranks) if len(transfer) else None)
    scale = BUS_FACTOR.get(key[1])
    factor = scale(ranks_in_it) if scale and ranks_in_it else None
    members = [member for kind in kinds for member in kind.members]
    peak = link_peak([tracks[m] for m in members], [hosts[m] for m in members])
    return Collective(
        communicator=key[0],
        op=key[1],
        ranks=tuple(sums.ranks),
        count=sums.count,
        bytes=full_bytes,
        bytes_source=_only(sums.sources) if full_bytes is not None else None,
        comm_ns=sums.comm,
        exposed_ns=sums.exposed,
        exposed_per_step_ns=round(sums.in_steps / rank_steps) if rank_steps else None,
        overlap_ratio=sums.overlapped / sums.comm if sums.comm else None,
        transfer_ns=round(float(np.median(transfer))) if len(transfer) else None,
        peer_wait_ns=wait if len(transfer) else None,
        algbw_gbps=algbw,
        busbw_gbps=algbw * factor if algbw is not None and factor else None,
        by_size=size_classes(transfer, moved, factor, peak) if full_bytes is not None else (),
    )


def _told(kinds: Sequence[Matched], found: Sequence[RankCollectives], size: int | None) -> tuple[Int64, Int64, int]:
    """(transfer of each collective, bytes of each, wait of all ranks in all of them), in ns and bytes.

    Only where all ranks of the communicator are here, as far as its size is known. The first collective of a capture
    is left out: ranks start capturing at different times.
    """
    transfers, moved, wait = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for kind in kinds:
        if size is not None and len(kind.members) < size:
            continue
        waited, transfer = split(kind, found)
        told = (transfer != NONE) & ~start_up(kind, found)
        transfers.append(transfer[told])
        moved.append(found[kind.members[0]].full_bytes[kind.index[0, told]])
        wait += int(waited[:, told].sum())
    return np.concatenate(transfers), np.concatenate(moved), wait


def _only(values: Iterable[str | None]) -> str | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else "mixed"
