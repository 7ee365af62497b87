"""A rank's tracks of GPU time: steps, bubbles with their causes, streams, counters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracekit.metrics.bubbles import CAUSES, Lost
from tracekit.metrics.memory import held_at, live
from tracekit.metrics.phases import PHASES
from tracekit.metrics.rates import RankRates
from tracekit.metrics.waits import RankWaits
from tracekit.report.causes import label_of_cause
from tracekit.report.perfetto.arrows import Arrows
from tracekit.report.perfetto.chosen import Column, DrawnRank, Rows, blocks, by_value, name_of
from tracekit.report.perfetto.lanes import nested_rows
from tracekit.report.perfetto.writer import Arg, Args, Slice, TraceWriter
from tracekit.timeline import NONE, Int64, Kind, Source

KINDS = {Kind.COMPUTE: "compute", Kind.COMM: "communication", Kind.COPY: "copies"}
LOST = {Lost.EXPOSED_COMM: "exposed communication", Lost.EXPOSED_COPY: "exposed copy", Lost.IDLE: "idle"}


def write_steps(writer: TraceWriter, track: int, each: DrawnRank) -> None:
    """The rank's steps with their accounts, as GPU time."""
    steps = each.rank.steps
    start, end = (
        each.at(np.array(t, np.int64)).tolist() for t in ([s.start_ns for s in steps], [s.end_ns for s in steps])
    )
    slices = []
    for step, begins, ends in zip(steps, start, end, strict=True):
        account = step.account
        args: list[Arg] = [
            ("compute_ns", account.compute_ns),
            ("exposed_comm_ns", account.exposed_comm_ns),
            ("exposed_copy_ns", account.exposed_copy_ns),
            ("idle_ns", account.idle_ns),
            ("comm_ns", account.comm_ns),
        ]
        if account.overlap_ratio is not None:
            args.append(("overlap_ratio", account.overlap_ratio))
        slices.append(Slice(begins, ends, f"step {step.step}", "step", args))
    writer.slices(track, slices)


def write_bubbles(writer: TraceWriter, track: int, each: DrawnRank) -> None:
    """Exposed and idle time, each bubble with its cause; bubbles are disjoint."""
    writer.slices(track, _bubbles(each))


def drawn_bubbles(each: DrawnRank) -> Rows:
    """Rows of the bubbles that are drawn."""
    bubbles = each.view.bubbles
    return np.flatnonzero((bubbles.end > bubbles.start) & each.touches(bubbles.start, bubbles.end))


def _bubbles(each: DrawnRank) -> Iterator[Slice]:
    bubbles = each.view.bubbles
    collective = _collective_at(each)
    for block in blocks(drawn_bubbles(each)):
        columns: list[Column] = [bubbles.lost, bubbles.cause, bubbles.op, bubbles.before, bubbles.after, bubbles.step]
        rows = zip(
            each.at(bubbles.start[block]).tolist(),
            each.at(bubbles.end[block]).tolist(),
            *(column[block].tolist() for column in columns),
            strict=True,
        )
        for start, end, lost, cause, op, before, after, step in rows:
            why = CAUSES[Lost(lost)][cause]
            args: list[Arg] = [("kind", LOST[Lost(lost)]), ("cause", why)]
            if op != NONE and collective[op] != NONE:
                args += _identity(each, int(collective[op]))
            elif op != NONE:
                args.append(("copy", _op_name(each, op)))
            args += [(key, _op_name(each, row)) for key, row in (("before", before), ("after", after)) if row != NONE]
            if step != NONE:
                args.append(("step", step))
            yield Slice(start, end, label_of_cause(lost, why), "bubble", args)


def _op_name(each: DrawnRank, row: int) -> str:
    return name_of(each.view.names, int(each.view.ops.name[row]))


def _collective_at(each: DrawnRank) -> Int64:
    """(operations,) index into the rank's collectives, or NONE."""
    found = each.view.collectives
    at = np.full(len(each.view.ops), NONE, np.int64)
    at[found.row] = np.arange(len(found.row))
    return at


def _identity(each: DrawnRank, index: int) -> list[Arg]:
    """What a collective is, as far as the capture tells."""
    found = each.view.collectives
    communicator, op = found.group[int(found.of[index])]
    args: list[Arg] = [("op", op)]
    if communicator is not None:
        args.append(("communicator", communicator))
    if found.full_bytes[index] != NONE:
        args.append(("bytes", int(found.full_bytes[index])))
    return args


def write_streams(
    writer: TraceWriter,
    parent: int,
    rank: int,
    each: DrawnRank,
    arrows: Arrows,
    waits: RankWaits,
    rates: RankRates,
) -> int:
    """Every stream that has drawn operations, the main one first; returns the rank of the next track."""
    ops = each.view.ops
    length = ops.end - ops.start
    streams = []
    for stream, rows in by_value(ops.stream, np.flatnonzero(each.ops)):
        time = np.bincount(ops.kind[rows], weights=length[rows], minlength=len(Kind))
        streams.append((stream != each.view.main_stream, int(np.argmax(time)), stream, rows))
    collective = _collective_at(each)
    for rank_of_track, (_, kind, stream, rows) in enumerate(sorted(streams, key=lambda s: s[:3]), rank):
        name = f"stream {stream}: {KINDS[Kind(kind)]}" if stream != NONE else f"unknown stream: {KINDS[Kind(kind)]}"
        for lane in nested_rows(each.at(ops.start[rows]), each.at(ops.end[rows])):
            track = writer.track(name, parent=parent, rank=rank_of_track)
            writer.slices(track, _ops(each, rows[lane], collective, arrows, waits, rates))
    return rank + len(streams)


def _ops(
    each: DrawnRank, rows: Rows, collective: Int64, arrows: Arrows, waits: RankWaits, rates: RankRates
) -> Iterator[Slice]:
    ops, labels, names = each.view.ops, each.view.labels, each.view.names
    known: dict[tuple[int, int, int], Args] = {}
    for block in blocks(rows):
        columns: list[Column] = [
            ops.name,
            ops.kind,
            collective,
            labels.step,
            labels.phase,
            labels.module,
            arrows.launch,
        ]
        drawn = zip(
            block.tolist(),
            each.at(ops.start[block]).tolist(),
            each.at(ops.end[block]).tolist(),
            *(column[block].tolist() for column in columns),
            strict=True,
        )
        for row, start, end, name, kind, index, step, phase, module, launch in drawn:
            label = step, phase, module
            args = known.get(label)
            if args is None:
                args = known[label] = _labels(each, *label)
            flows: tuple[int, ...] = ()
            ending: tuple[int, ...] = (launch,) if launch != NONE else ()
            if index != NONE:
                args = (*args, *_identity(each, index), *_times(index, waits, rates))
                if arrows.peers[index] != NONE:
                    if arrows.last[index]:
                        ending = (*ending, int(arrows.peers[index]))
                    else:
                        flows = (int(arrows.peers[index]),)
            elif kind != Kind.COMPUTE or ops.source[row] == Source.GRAPH:
                args = (*args, *_copy(each, row))
            yield Slice(start, end, name_of(names, name), KINDS[Kind(kind)], args, flows, ending)


def _labels(each: DrawnRank, step: int, phase: int, module: int) -> Args:
    args: list[Arg] = []
    if step != NONE:
        args.append(("step", step))
    if phase != NONE:
        args.append(("phase", PHASES[phase]))
    if module != NONE:
        args.append(("module", each.view.labels.modules[module]))
    return args


def _times(index: int, waits: RankWaits, rates: RankRates) -> Args:
    """How long a collective waited and moved data, as far as that can be told."""
    args: list[Arg] = []
    if waits.start_up[index]:
        return [("start_up", True)]
    if waits.wait[index] != NONE:
        args.append(("wait_ns", int(waits.wait[index])))
    if rates.transfer[index] != NONE:
        args.append(("transfer_ns", int(rates.transfer[index])))
    if not np.isnan(rates.busbw[index]):
        args.append(("busbw_gbps", float(rates.busbw[index])))
    return args


def _copy(each: DrawnRank, row: int) -> Args:
    ops = each.view.ops
    if ops.source[row] == Source.GRAPH:
        return [("cuda_graph", "traced as a whole")]
    args: list[Arg] = []
    if ops.bytes[row] != NONE:
        args.append(("bytes", int(ops.bytes[row])))
    if ops.pageable[row]:
        args.append(("pageable", True))
    return args


def overlap_values(each: DrawnRank) -> list[tuple[int, float]]:
    """(start of step, overlap ratio) of the steps that communicate."""
    told = [(s.start_ns, s.account.overlap_ratio) for s in each.rank.steps if s.account.overlap_ratio is not None]
    at = each.at(np.array([start for start, _ in told], np.int64)).tolist()
    return list(zip(at, (ratio for _, ratio in told), strict=True))


def bandwidth_values(each: DrawnRank, rates: RankRates) -> list[tuple[int, float]]:
    """(instant, GB/s from there on): the sum over the rank's collectives of known rate that move data."""
    row = each.view.collectives.row
    told = np.flatnonzero(~np.isnan(rates.busbw) & each.ops[row])
    if len(told) == 0:
        return []
    end = each.view.ops.end[row[told]]
    start = end - rates.transfer[told]
    at = each.at(np.concatenate([start, end]))
    change = np.concatenate([rates.busbw[told], -rates.busbw[told]])
    running = np.concatenate([np.ones(len(told), np.int64), np.full(len(told), -1, np.int64)])
    instants, group = np.unique(at, return_inverse=True)
    value = np.cumsum(np.bincount(group, weights=change))
    # Where nothing runs the sum is nothing, whatever rounding has left of it.
    value[np.cumsum(np.bincount(group, weights=running)).astype(np.int64) == 0] = 0.0
    return list(zip(instants.tolist(), value.tolist(), strict=True))


def memory_values(each: DrawnRank) -> list[tuple[int, float]]:
    """(instant, GB from there on) that the rank has taken from the driver, inside what is drawn; [] where unknown."""
    held = live(each.view.process.memory, each.rank.device)
    if held is None:
        return []
    times, sizes = held
    started = each.view.ops.start[each.ops]
    if len(started) == 0:
        return []
    # What was taken before is there from the first operation that is drawn.
    first = int(started.min())
    told = np.append(False, each.touches(times[1:], times[1:] + 1)) & (times > first)
    at = each.at(np.concatenate([[first], times[told]]))
    value = np.concatenate([[held_at(times, sizes, first)], sizes[told]]) / 1e9
    return list(zip(at.tolist(), value.tolist(), strict=True))
