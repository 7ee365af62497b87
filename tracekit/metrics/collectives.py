"""The table of collectives by communicator and op: how often, how long, how much of it exposed, how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover, subtract, union
from tracekit.metrics.accounting import Covers
from tracekit.metrics.bandwidth import BUS_FACTOR, bandwidth, link_peak, size_classes
from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.metrics.waits import start_up, transfer_of
from tracekit.results import Collective
from tracekit.spool import release
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
    keys = sorted({key for each in found for key in each.group}, key=lambda key: (key[0] or "", key[1]))
    sizes = {f"{c:#018x}": size for track in tracks for c, size, _ in track.communicators}
    rows = []
    for key in keys:
        kinds = [kind for kind in matched if (kind.communicator, kind.op) == key]
        size = sizes.get(key[0] or "", world_size if key[0] is None else None)
        rows.append(_collective(key, tracks, found, covers, windows, kinds, steady, hosts, size))
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.comm_ns, row.op)))


def _collective(
    key: tuple[str | None, str],
    tracks: Sequence[RankTrack],
    found: Sequence[RankCollectives],
    covers: Sequence[Covers],
    windows: Sequence[tuple[int, int]],
    kinds: Sequence[Matched],
    steady: Sequence[tuple[Int64, Int64]],
    hosts: Sequence[str],
    size: int | None,
) -> Collective:
    comm = overlapped = exposed = in_steps = count = 0
    sizes: list[Int64] = []
    ranks, sources = [], []
    for each, cover, window, steps, track in zip(found, covers, windows, steady, tracks, strict=True):
        if key not in each.group:
            continue
        group = each.group.index(key)
        mine = each.of == group
        row = each.row[mine]
        all_of_it = Cover.of(np.clip(track.ops.start[row], *window), np.clip(track.ops.end[row], *window))
        comm += int(all_of_it.before[-1])
        overlapped += int(cover.compute.within(all_of_it.start, all_of_it.end).sum())
        exposed += int(each.exposed[mine].sum())
        own = union(each.own_start[mine], each.own_end[mine])
        in_steps += int(Cover.of(*subtract(own, (cover.compute.start, cover.compute.end))).within(*steps).sum())
        count = max(count, len(row))
        sizes.append(each.full_bytes[mine])
        ranks.append(each.rank)
        sources.append(each.bytes_source[group])
        release()
    full = np.concatenate(sizes)
    known = full[full != NONE]
    # A size that occurs, not the mean of two.
    full_bytes = int(np.percentile(known, 50, method="lower")) if len(known) and len(known) == len(full) else None
    transfer, moved, wait = _told(kinds, found, size)
    algbw = bandwidth(transfer, moved) if full_bytes is not None else None
    rank_steps = sum(len(start) for start, _ in steady)
    ranks_in_it = size or (len(ranks) if len(transfer) else None)
    scale = BUS_FACTOR.get(key[1])
    factor = scale(ranks_in_it) if scale and ranks_in_it else None
    members = [member for kind in kinds for member in kind.members]
    peak = link_peak([tracks[m] for m in members], [hosts[m] for m in members])
    return Collective(
        communicator=key[0],
        op=key[1],
        ranks=tuple(ranks),
        count=count,
        bytes=full_bytes,
        bytes_source=_only(sources) if full_bytes is not None else None,
        comm_ns=comm,
        exposed_ns=exposed,
        exposed_per_step_ns=round(in_steps / rank_steps) if rank_steps else None,
        overlap_ratio=overlapped / comm if comm else None,
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
        durations, transfer = transfer_of(kind, found)
        told = (transfer != NONE) & ~start_up(kind, found)
        transfers.append(transfer[told])
        moved.append(found[kind.members[0]].full_bytes[kind.index[0, told]])
        wait += int((durations[:, told] - transfer[told]).sum())
    return np.concatenate(transfers), np.concatenate(moved), wait


def _only(values: Iterable[str | None]) -> str | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else "mixed"
