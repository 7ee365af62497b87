"""What a rank's host was doing when its capture ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, Activity
from tracekit.metrics.hangs.quiet import Quiet, how_quiet
from tracekit.metrics.labels import vocabulary
from tracekit.metrics.steps import StepRanges, step_ranges
from tracekit.timeline import NONE, Kind, Process, RankTrack, Timeline

Int64 = NDArray[np.int64]

OPEN_KEPT = 32
"""Innermost open ranges that are told; a loop that never pops can leave a thousand."""
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
POLLING = re.compile(
    r"cu(da)?(\w*Query|\w*Get[A-Z]\w*|PeekAtLastError|StreamIsCapturing|ThreadExchangeStreamCaptureMode"
    r"|SetDevice|Ctx(Push|Pop|Set)Current)"
)
"""Calls that ask and do nothing: a watchdog makes them for as long as its job stands still."""
TAIL = 4096
"""Calls that are looked through at a time, from the last one backwards."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """One rank's host at the end of its capture."""

    marks: StepRanges | None
    open_ranges: tuple[str, ...]
    in_step: bool
    """A range that marks a step, a phase, a module or a collective was never left."""
    last_call: str | None
    """The last one that does more than ask; the one it is inside, where it is inside one."""
    last_call_open: bool
    launch_without_kernel: bool
    """The last launch has no kernel in the capture, which is a sign only if the capture is whole."""
    whole: bool
    """The rank's first operation has its launch: nothing was cut out of a longer capture."""
    os_call: str | None
    step: int | None
    module: str | None
    phase: str | None
    idle_ns: int | None
    usual_step_ns: int | None
    quiet: Quiet

    @property
    def undone(self) -> bool:
        """Whether the host had begun something and not ended it."""
        return self.in_step or self.last_call_open

    def step_at(self, t: Int64) -> Int64:
        """Number of the step around each instant of the host; UNKNOWN outside, and where steps are only counted."""
        if self.marks is None or not self.marks.numbered:
            return np.full(len(t), UNKNOWN, np.int64)
        at = self.marks.containing(t)
        return np.where(at != NONE, self.marks.number[np.maximum(at, 0)], UNKNOWN)

    def activity(self, last_collective: str | None) -> Activity:
        """The same in the words of the evidence."""
        return Activity(
            open_ranges=self.open_ranges,
            last_call=self.last_call,
            last_call_open=self.last_call_open,
            last_collective=last_collective,
            os_call=self.os_call,
            step=self.step,
            module=self.module,
            phase=self.phase,
            idle_ns=self.idle_ns,
            usual_step_ns=self.usual_step_ns,
        )


def observe(
    timeline: Timeline, process_index: int, track: RankTrack | None, step_marker: str | None, thresholds: Thresholds
) -> Observed:
    """Look at the end of one process's capture; ``track`` is its GPU work, where it has any."""
    process = timeline.processes[process_index]
    ranges = process.ranges
    words = vocabulary(timeline, ranges)
    marks = step_ranges(timeline, process, words, step_marker)
    open_ = np.flatnonzero(ranges.open & ~_is_capture(timeline, process))
    meanings = [words.annotations[int(words.of[row])] for row in open_.tolist()]
    idle_ns = idle_of(timeline, process, track, thresholds)
    lasting = lasting_calls(process, timeline.captures[process.capture].stop_ns, thresholds)
    last_call = _inside(process, lasting, marks) if len(lasting) else _last_call(timeline, process)
    collectives = {
        i for i, name in enumerate(timeline.names) if name in ("NCCL", "tracekit.comm", "tracekit.comm.detail")
    }
    in_step = any(m is not None for m in meanings) or any(int(d) in collectives for d in ranges.domain[open_])
    usual_step_ns = _usual_step(process, marks)
    thread = marks.thread if marks is not None else None if last_call is None else int(process.calls.thread[last_call])
    return Observed(
        marks=marks,
        open_ranges=tuple(_text(timeline, int(ranges.name[row])) for row in open_[-OPEN_KEPT:].tolist()),
        in_step=in_step,
        last_call=None if last_call is None else _text(timeline, int(process.calls.name[last_call])),
        last_call_open=bool(len(lasting)),
        launch_without_kernel=launch_without_kernel(timeline, process, track),
        whole=track is not None and len(track.ops) > 0 and int(track.ops.call[0]) != NONE,
        os_call=_os_call(process, thread, idle_ns),
        step=_last_step(marks),
        module=next((m.module for m in reversed(meanings) if m is not None and m.module), None),
        phase=next((m.phase for m in reversed(meanings) if m is not None and m.phase), None),
        idle_ns=idle_ns,
        usual_step_ns=usual_step_ns,
        quiet=how_quiet(idle_ns, usual_step_ns, thresholds),
    )


def _is_capture(timeline: Timeline, process: Process) -> NDArray[np.bool_]:
    """The trainer's range that nsys opens the capture at: where it stops there, it never closes."""
    ranges = process.ranges
    if "capture" not in timeline.names or "tracekit" not in timeline.names:
        return np.zeros(len(ranges), np.bool_)
    name, domain = timeline.names.index("capture"), timeline.names.index("tracekit")
    result: NDArray[np.bool_] = (ranges.name == name) & (ranges.domain == domain)
    return result


def idle_of(timeline: Timeline, process: Process, track: RankTrack | None, thresholds: Thresholds) -> int | None:
    """From the last thing that a rank is known to have done to the end of its capture, ns; None without that end.

    What lasts until the end is where it stands, and nothing that it does: only its start counts.
    """
    stop = timeline.captures[process.capture].stop_ns
    if stop is None:
        return None
    ranges, calls = process.ranges, process.calls
    times = [ranges.start, ranges.end[~ranges.open]]
    if track is not None:
        ops, lasting = track.ops, lasting_ops(track, stop, thresholds)
        times += [ops.start[lasting], np.delete(ops.end, lasting) if len(lasting) else ops.end]
    latest = max((int(t.max()) for t in times if len(t)), default=None)
    later = np.flatnonzero(calls.end > (np.iinfo(np.int64).min if latest is None else latest))
    later = later[~_polls(timeline, process, later)]
    returned = np.setdiff1d(later, lasting_calls(process, stop, thresholds), assume_unique=True)
    latest = max((int(t.max()) for t in (calls.start[later], calls.end[returned]) if len(t)), default=latest)
    return None if latest is None else max(0, stop - latest)


def lasting_calls(process: Process, stop_ns: int | None, thresholds: Thresholds) -> Int64:
    """Rows of the calls that had not returned when the capture ended, in whatever way it writes that, sorted."""
    lasting = _lasting(process.calls.start, process.calls.end, stop_ns, thresholds)
    return np.union1d(process.open_calls, lasting).astype(np.int64)


def lasting_ops(track: RankTrack, stop_ns: int | None, thresholds: Thresholds) -> Int64:
    """Rows of the communication that runs until the capture ends."""
    found = _lasting(track.ops.start, track.ops.end, stop_ns, thresholds)
    communicates: NDArray[np.bool_] = track.ops.kind[found] == Kind.COMM
    return found[communicates]


def _lasting(start: Int64, end: Int64, stop_ns: int | None, thresholds: Thresholds) -> Int64:
    if stop_ns is None:
        return np.empty(0, np.int64)
    lengths = end - start
    rows = np.flatnonzero(lengths >= thresholds.still_least_ns)
    to_the_end: NDArray[np.bool_] = stop_ns - end[rows] <= thresholds.lasting_slack * lengths[rows]
    return rows[to_the_end]


def _polls(timeline: Timeline, process: Process, rows: Int64) -> NDArray[np.bool_]:
    """Which of some calls only ask for the state of something."""
    names, of = np.unique(process.calls.name[rows], return_inverse=True)
    known = [i != NONE and POLLING.match(timeline.names[i]) is not None for i in names.tolist()]
    return np.array(known, np.bool_)[of]


def _inside(process: Process, lasting: Int64, marks: StepRanges | None) -> int:
    """The call that a host is inside: on the thread of the steps, where there is one."""
    own = lasting[process.calls.thread[lasting] == marks.thread] if marks is not None else lasting[:0]
    return int((own if len(own) else lasting)[-1])


def _last_call(timeline: Timeline, process: Process) -> int | None:
    """The last call that does more than ask."""
    for rows in _from_the_end(len(process.calls)):
        found = rows[~_polls(timeline, process, rows)]
        if len(found):
            return int(found[-1])
    return None


def _from_the_end(count: int) -> Iterator[Int64]:
    for end in range(count, 0, -TAIL):
        yield np.arange(max(0, end - TAIL), end, dtype=np.int64)


def left_undone(timeline: Timeline, process: Process, track: RankTrack | None, thresholds: Thresholds) -> bool:
    """Whether anything that a process began has no end in its capture: without, there is no hang to look for."""
    stop = timeline.captures[process.capture].stop_ns
    unfinished = process.ranges.open.any() or len(lasting_calls(process, stop, thresholds)) or len(process.unfinished)
    return bool(unfinished) or launch_without_kernel(timeline, process, track)


def launch_without_kernel(timeline: Timeline, process: Process, track: RankTrack | None) -> bool:
    """Whether the last launch of a process with GPU work has no operation in the capture."""
    if track is None or len(process.calls) == 0:
        return False
    for rows in _from_the_end(len(process.calls)):
        names, of = np.unique(process.calls.name[rows], return_inverse=True)
        launches = [i != NONE and timeline.names[i].startswith(LAUNCHES) for i in names.tolist()]
        found = rows[np.array(launches, np.bool_)[of]]
        if len(found):
            return not bool(np.any(track.ops.call == found[-1]))
    return False


def _os_call(process: Process, thread: int | None, idle_ns: int | None) -> str | None:
    """The system call that a thread had not returned from, or that lasted for most of the idle time."""
    for call in process.os_calls:
        if thread is not None and call.thread != thread:
            continue
        if call.end is None or (idle_ns and call.end - call.start >= idle_ns // 2):
            return call.name
    return None


def _usual_step(process: Process, marks: StepRanges | None) -> int | None:
    """Median length of the steps that ended, ns; None without any."""
    if marks is None:
        return None
    ended = ~np.isin(marks.start, process.ranges.start[process.ranges.open])
    return int(np.median(marks.end[ended] - marks.start[ended])) if ended.any() else None


def _last_step(marks: StepRanges | None) -> int | None:
    return int(marks.number[-1]) if marks is not None and len(marks.number) and marks.numbered else None


def _text(timeline: Timeline, name: int) -> str:
    return timeline.names[name] if name != NONE else "(unnamed)"
