"""The tracks of a process's host threads: NVTX ranges, and CUDA calls with arrows to what they launched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.report.perfetto.arrows import Arrows
from tracekit.report.perfetto.chosen import Column, DrawnRank, Rows, blocks, by_value, name_of
from tracekit.report.perfetto.lanes import nested_rows
from tracekit.report.perfetto.writer import Arg, Slice, TraceWriter
from tracekit.timeline import NO_VALUE, NONE, Bool, Calls, Int64, Ranges

TID = 0xFFFFFF
"""The low bits of nsys's globalTid are the thread's id; those above name the process and the machine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRows:
    """What is drawn of one process."""

    first: DrawnRank
    """The first of its ranks: whose group the threads are shown in."""
    calls: Rows
    ranges: Rows
    low: int | None
    high: int | None
    """Rows are cut to these instants of the process's clock, where only a part of the capture was asked for."""
    launches: Int64
    """(arrows,) rows of calls, sorted."""
    arrows: Int64
    """(arrows,) what begins there."""

    def placed(self, table: Calls | Ranges, rows: Rows) -> tuple[Int64, Int64]:
        """(starts, ends) on the trace's clock, cut."""
        start, end = table.start[rows], table.end[rows]
        if self.low is not None and self.high is not None:
            start = np.clip(start, self.low, self.high)
            end = np.maximum(np.minimum(end, self.high), start)
        return self.first.at(start), self.first.at(end)


def host_rows(ranks: Sequence[DrawnRank], arrows: Sequence[Arrows]) -> HostRows:
    """What is drawn of the process that these ranks share."""
    first, process = ranks[0], ranks[0].view.process
    calls, ranges = process.calls, process.ranges
    launched: Bool = np.zeros(len(calls), np.bool_)
    launches, begins, extent = [], [], []
    for each, own in zip(ranks, arrows, strict=True):
        ops = each.view.ops
        drawn = np.flatnonzero(each.ops & (ops.call != NONE))
        launched[ops.call[drawn]] = True
        rows = np.flatnonzero(own.launch != NONE)
        launches.append(ops.call[rows].astype(np.int64))
        begins.append(own.launch[rows])
        if each.within is not None:
            extent += [int(each.within[0][0]), int(each.within[1][-1])]
    inside_calls = np.any([each.touches(calls.start, calls.end) for each in ranks], axis=0)
    inside_ranges = np.any([each.touches(ranges.start, ranges.end) for each in ranks], axis=0)
    at = np.concatenate(launches)
    order = np.argsort(at, kind="stable")
    return HostRows(
        first=first,
        calls=np.flatnonzero(launched | inside_calls),
        ranges=np.flatnonzero(inside_ranges),
        low=min(*extent, int(calls.start[launched].min(initial=extent[0]))) if extent else None,
        high=max(extent) if extent else None,
        launches=at[order],
        arrows=np.concatenate(begins)[order],
    )


def write_host(writer: TraceWriter, parent: int, rank: int, host: HostRows) -> None:
    """Two tracks a thread, the speaking thread first, then by id."""
    process, speaker = host.first.view.process, host.first.view.activity.speaker
    ranges = dict(by_value(process.ranges.thread, host.ranges))
    calls = dict(by_value(process.calls.thread, host.calls))
    for thread in sorted(ranges.keys() | calls.keys(), key=lambda t: (t != speaker, t)):
        name = f"thread {thread & TID}" + (" (main)" if thread == speaker else "")
        if thread in ranges:
            _write(writer, f"{name}: NVTX", parent, rank, host, process.ranges, ranges[thread])
        if thread in calls:
            _write(writer, f"{name}: CUDA calls", parent, rank + 1, host, process.calls, calls[thread])
        rank += 2


def _write(
    writer: TraceWriter, name: str, parent: int, rank: int, host: HostRows, table: Calls | Ranges, rows: Rows
) -> None:
    for lane in nested_rows(*host.placed(table, rows)):
        track = writer.track(name, parent=parent, rank=rank)
        mine = rows[lane]
        writer.slices(track, _ranges(host, table, mine) if isinstance(table, Ranges) else _calls(host, table, mine))


def _cut(host: HostRows, start: int, end: int) -> list[Arg]:
    """The true length of a row that sticks out of what was asked for."""
    if host.low is None or host.high is None or (start >= host.low and end <= host.high):
        return []
    return [("cut", "goes on outside of what was asked for"), ("whole_ns", end - start)]


def _ranges(host: HostRows, ranges: Ranges, rows: Rows) -> Iterator[Slice]:
    names = host.first.view.names
    for block in blocks(rows):
        columns: list[Column] = [ranges.start, ranges.end, ranges.name, ranges.domain, ranges.value, ranges.open]
        drawn = zip(
            *(t.tolist() for t in host.placed(ranges, block)),
            *(column[block].tolist() for column in columns),
            strict=True,
        )
        for start, end, whole_start, whole_end, name, domain, value, still_open in drawn:
            args = _cut(host, whole_start, whole_end)
            if domain != NONE:
                args.append(("domain", names[domain]))
            if value != NO_VALUE:
                args.append(("payload", value))
            if still_open:
                args.append(("open", True))
            yield Slice(start, end, name_of(names, name), "nvtx", args)


def _calls(host: HostRows, calls: Calls, rows: Rows) -> Iterator[Slice]:
    names = host.first.view.names
    still_open = set(host.first.view.process.open_calls.tolist())
    for block in blocks(rows):
        low = np.searchsorted(host.launches, block)
        high = np.searchsorted(host.launches, block, side="right")
        columns: list[Column] = [block, low, high, calls.start[block], calls.end[block], calls.name[block]]
        drawn = zip(
            *(t.tolist() for t in host.placed(calls, block)),
            *(column.tolist() for column in columns),
            strict=True,
        )
        for start, end, row, a, b, whole_start, whole_end, name in drawn:
            args = _cut(host, whole_start, whole_end)
            if row in still_open:
                args.append(("open", True))
            yield Slice(start, end, name_of(names, name), "cuda", args, host.arrows[a:b].tolist())
