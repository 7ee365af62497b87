"""From an analysis to a trace file: the order of its tracks."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracekit.metrics.identity import communicator_sizes
from tracekit.metrics.rates import RankRates, collective_rates
from tracekit.metrics.views import Detail
from tracekit.options import Options
from tracekit.report.files import whole_file
from tracekit.report.perfetto.arrows import Arrows, arrows_of
from tracekit.report.perfetto.chosen import DrawnRank, drawn_ranks
from tracekit.report.perfetto.gpu import (
    bandwidth_values,
    drawn_bubbles,
    memory_values,
    overlap_values,
    write_bubbles,
    write_steps,
    write_streams,
)
from tracekit.report.perfetto.host import HostRows, host_rows, write_host
from tracekit.report.perfetto.writer import Arg, Args, Output, Slice, TraceWriter
from tracekit.results import Analysis, Finding
from tracekit.runs import runs
from tracekit.spool import release
from tracekit.timeline import Timeline

GZIP_LEVEL = 4
"""Half the time of level 6 for a twentieth more bytes."""
BUFFER = 1 << 18
"""Bytes that are compressed at a time: a packet by itself is too little."""


def write_perfetto(analysis: Analysis, timeline: Timeline, detail: Detail, options: Options, path: Path) -> int:
    """Write the trace, compressed if the name ends in .gz, and return the number of bytes; a part file never stays.

    What ``options`` picked is drawn: ranks, steps, window. Host ranges and calls that stick out of it are cut there.

    Raises:
        TracekitError: the file cannot be written.
    """
    with whole_file(path) as file:
        counted = _Counting(file)
        if path.suffix == ".gz":
            # Without name and time two traces of one capture are equal.
            with (
                gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=counted, mtime=0) as packed,
                io.BufferedWriter(packed, BUFFER) as buffered,
            ):
                _write(buffered, analysis, timeline, detail, options)
        else:
            _write(counted, analysis, timeline, detail, options)
    return counted.size


class _Counting(io.RawIOBase):
    """Counts what is written to a file, which may be a pipe."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.size += len(content)
        return self._file.write(content)


def _write(file: Output, analysis: Analysis, timeline: Timeline, detail: Detail, options: Options) -> None:
    ranks, aligned = drawn_ranks(analysis, detail, options)
    arrows = arrows_of(ranks, detail)
    hosts = _hosts(ranks, arrows)
    # Instants stay those of the first rank's capture, unless one lies before its zero.
    shift = max(0, -min((_earliest(each, hosts.get(i)) for i, each in enumerate(ranks)), default=0))
    if shift:
        ranks = [each.later(shift) for each in ranks]
        hosts = {i: replace(host, first=ranks[i]) for i, host in hosts.items()}
    sizes: dict[str | None, int | None] = {f"{c:#018x}": size for c, size in communicator_sizes(timeline).items()}
    sizes[None] = analysis.world_size
    rates = collective_rates([view.collectives for view in detail.views], detail.matched, sizes)
    writer = TraceWriter(file)
    job = writer.track("tracekit", description=_description(ranks, aligned, shift))
    _write_findings(writer, job, analysis.findings, ranks)
    for i, each in enumerate(ranks):
        group = writer.track(_title(each), parent=job, rank=i + 1)
        place = _write_overview(writer, group, each, rates[each.index])
        if i in hosts:
            write_host(writer, group, place + _MOST_STREAMS, hosts[i])
        write_streams(writer, group, place, each, arrows[i], detail.waits[each.index], rates[each.index])
        release()


_MOST_STREAMS = 1 << 20
"""Places that are kept free for streams: threads are shown below them, and come before them in the file."""


def _hosts(ranks: Sequence[DrawnRank], arrows: Sequence[Arrows]) -> dict[int, HostRows]:
    """What is drawn of host threads, by the first rank of each process."""
    together: dict[int, list[int]] = {}
    for i, each in enumerate(ranks):
        together.setdefault(id(each.view.process), []).append(i)
    return {own[0]: host_rows([ranks[i] for i in own], [arrows[i] for i in own]) for own in together.values()}


def _earliest(each: DrawnRank, host: HostRows | None) -> int:
    """The first instant that is drawn of a rank, or of its host threads, on the trace's clock."""
    steps = np.array([step.start_ns for step in each.rank.steps], np.int64)
    starts = [each.at(t) for t in (each.view.ops.start[each.ops], steps, each.view.bubbles.start[drawn_bubbles(each)])]
    if host is not None:
        process = each.view.process
        starts += [host.placed(process.calls, host.calls)[0], host.placed(process.ranges, host.ranges)[0]]
    return min((int(t.min()) for t in starts if len(t)), default=0)


def _description(ranks: Sequence[DrawnRank], aligned: bool, shift: int) -> str:
    if not aligned:
        return "The captures' clocks could not be aligned: each rank's first common step starts together."
    later = f", {shift} ns later" if shift else ""
    clocks = "; ".join(_CLOCKS[method] for method in _CLOCKS if method in {each.rank.clock.method for each in ranks})
    return f"Times are those of the capture of rank {ranks[0].rank.rank}{later}" + (f"; {clocks}" if clocks else "")


_CLOCKS = {
    "collectives": "clocks of other captures are aligned by their collectives",
    "session_start": "some clocks are aligned only by when the captures began",
    "not_aligned": "clocks of other captures are as they were",
}
"""By `Clock.method`."""


def _title(each: DrawnRank) -> str:
    rank = each.rank
    device = f"GPU {rank.device}" + (f" ({rank.device_name})" if rank.device_name else "")
    return " · ".join(part for part in (f"rank {rank.rank}", rank.host, device) if part)


def _write_overview(writer: TraceWriter, group: int, each: DrawnRank, rates: RankRates) -> int:
    """Steps, bubbles and counters, as far as there are any; returns the place of what comes next."""
    place = 0
    if each.rank.steps:
        write_steps(writer, writer.track("steps", parent=group, rank=place), each)
        place += 1
    if len(drawn_bubbles(each)):
        write_bubbles(writer, writer.track("exposed and idle", parent=group, rank=place), each)
        place += 1
    counters = (
        ("overlap ratio", "", _OVERLAP, overlap_values(each)),
        ("bus bandwidth", "GB/s", _BANDWIDTH, bandwidth_values(each, rates)),
        ("GPU memory", "GB", _MEMORY, memory_values(each)),
    )
    for name, unit, description, values in counters:
        if values:
            track = writer.track(name, parent=group, rank=place, unit=unit, description=description)
            writer.counter(track, values)
            place += 1
    return place


_OVERLAP = "Overlapped over total communication of each step. A step without communication keeps the value before it."
_BANDWIDTH = "Sum over collectives while they move data; those of unknown size or transfer time count for nothing."

_MEMORY = "Taken from the CUDA driver and not given back: what the allocator reserves, not what tensors hold."


def _write_findings(writer: TraceWriter, job: int, findings: Sequence[Finding], ranks: Sequence[DrawnRank]) -> None:
    """Each finding on a track of its own, whose name is its claim: a mark at its first step, its longest instance."""
    placed = [(finding, at) for finding in findings if (at := _first_instant(finding, ranks)) is not None]
    if not placed:
        return
    group = writer.track("findings", parent=job, rank=0)
    for place, (finding, at) in enumerate(placed):
        name = f"{finding.rule} {finding.title}"
        writer.instant(writer.track(name, parent=group, rank=place), at, name, "finding", _about(finding))
        if longest := _longest(finding, ranks):
            # Tracks of one name and place are shown as one; on a single one the mark could come after its slice.
            writer.slices(writer.track(name, parent=group, rank=place), longest)


def _first_instant(finding: Finding, ranks: Sequence[DrawnRank]) -> int | None:
    """When the first of its steps that are drawn begins, on the first of its ranks; None where nothing of it is."""
    for each in ranks:
        if finding.ranks and each.rank.rank not in finding.ranks:
            continue
        starts = [s.start_ns for s in each.rank.steps if s.step in finding.steps]
        if not finding.steps:
            starts = [each.starts]
        if starts:
            return int(each.at(np.array(starts[:1], np.int64))[0])
    return None


def _longest(finding: Finding, ranks: Sequence[DrawnRank]) -> list[Slice]:
    """The longest instance of a finding, where it is known and drawn."""
    span = finding.span
    for each in ranks:
        if span is not None and span.rank == each.rank.rank:
            start, end = np.array([span.start_ns], np.int64), np.array([span.end_ns], np.int64)
            if each.touches(start, end)[0]:
                name = f"longest: {span.cause.replace('_', ' ')}"
                return [Slice(int(each.at(start)[0]), int(each.at(end)[0]), name, "finding", [("rank", span.rank)])]
    return []


def _about(finding: Finding) -> Args:
    args: list[Arg] = [("severity", str(finding.severity))]
    args += [(key, ns) for key, ns in (("cost_ns", finding.cost_ns), ("gain_ns", finding.gain_ns)) if ns is not None]
    args += [(key, runs(of)) for key, of in (("ranks", finding.ranks), ("steps", finding.steps)) if of]
    for fact in finding.evidence:
        if fact.value is not None:
            args.append((f"{fact.metric} ({fact.unit})" if fact.unit else fact.metric, fact.value))
    return [*args, ("fix", finding.fix)] if finding.fix else args
