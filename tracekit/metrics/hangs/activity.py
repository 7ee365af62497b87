"""What a rank's host was doing when its capture ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.evidence import UNKNOWN, Activity
from tracekit.metrics.labels import vocabulary
from tracekit.metrics.steps import StepRanges, step_ranges
from tracekit.timeline import NONE, Process, RankTrack, Timeline

Int64 = NDArray[np.int64]

OPEN_KEPT = 32
"""Innermost open ranges that are told; a loop that never pops can leave a thousand."""
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """One rank's host at the end of its capture."""

    marks: StepRanges | None
    open_ranges: tuple[str, ...]
    in_step: bool
    """A range that marks a step, a phase, a module or a collective was never left."""
    last_call: str | None
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
    quiet: bool
    """Idle for longer than a capture needs to end, and than a few steps take."""

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
        )


def observe(
    timeline: Timeline, process_index: int, track: RankTrack | None, step_marker: str | None, thresholds: Thresholds
) -> Observed:
    """Look at the end of one process's capture; ``track`` is its GPU work, where it has any."""
    process = timeline.processes[process_index]
    ranges, calls = process.ranges, process.calls
    words = vocabulary(timeline, ranges)
    marks = step_ranges(timeline, process, words, step_marker)
    open_ = np.flatnonzero(ranges.open & ~_is_capture(timeline, process))
    meanings = [words.annotations[int(words.of[row])] for row in open_.tolist()]
    idle_ns = idle_of(timeline, process, track)
    last_call = int(np.argmax(calls.start)) if len(calls) else None
    if len(process.open_calls):
        last_call = int(process.open_calls[-1])
    collectives = {
        i for i, name in enumerate(timeline.names) if name in ("NCCL", "tracekit.comm", "tracekit.comm.detail")
    }
    in_step = any(m is not None for m in meanings) or any(int(d) in collectives for d in ranges.domain[open_])
    needed = max(thresholds.still_ns, int(thresholds.still_steps * _usual_step(process, marks)))
    return Observed(
        marks=marks,
        open_ranges=tuple(_text(timeline, int(ranges.name[row])) for row in open_[-OPEN_KEPT:].tolist()),
        in_step=in_step,
        last_call=None if last_call is None else _text(timeline, int(calls.name[last_call])),
        last_call_open=bool(len(process.open_calls)),
        launch_without_kernel=launch_without_kernel(timeline, process, track),
        whole=track is not None and len(track.ops) > 0 and int(track.ops.call[0]) != NONE,
        os_call=_os_call(process, marks, idle_ns),
        step=_last_step(marks),
        module=next((m.module for m in reversed(meanings) if m is not None and m.module), None),
        phase=next((m.phase for m in reversed(meanings) if m is not None and m.phase), None),
        idle_ns=idle_ns,
        quiet=idle_ns is not None and idle_ns >= needed,
    )


def _is_capture(timeline: Timeline, process: Process) -> NDArray[np.bool_]:
    """The trainer's range that nsys opens the capture at: where it stops there, it never closes."""
    ranges = process.ranges
    if "capture" not in timeline.names or "tracekit" not in timeline.names:
        return np.zeros(len(ranges), np.bool_)
    name, domain = timeline.names.index("capture"), timeline.names.index("tracekit")
    result: NDArray[np.bool_] = (ranges.name == name) & (ranges.domain == domain)
    return result


def idle_of(timeline: Timeline, process: Process, track: RankTrack | None) -> int | None:
    """From the last thing that a rank is known to have done to the end of its capture, ns; None without that end."""
    stop = timeline.captures[process.capture].stop_ns
    if stop is None:
        return None
    ranges, calls = process.ranges, process.calls
    returned = np.ones(len(calls), np.bool_)
    returned[process.open_calls] = False
    times = [ranges.start, ranges.end[~ranges.open], calls.start, calls.end[returned]]
    if track is not None:
        times.append(track.ops.end)
    latest = max((int(t.max()) for t in times if len(t)), default=None)
    return None if latest is None else max(0, stop - latest)


def left_undone(timeline: Timeline, process: Process, track: RankTrack | None) -> bool:
    """Whether anything that a process began has no end in its capture: without, there is no hang to look for."""
    unfinished = process.ranges.open.any() or len(process.open_calls) or len(process.unfinished)
    return bool(unfinished) or launch_without_kernel(timeline, process, track)


def launch_without_kernel(timeline: Timeline, process: Process, track: RankTrack | None) -> bool:
    """Whether the last launch of a process with GPU work has no operation in the capture."""
    if track is None or len(process.calls) == 0:
        return False
    names = [i for i in np.unique(process.calls.name).tolist() if i != NONE and timeline.names[i].startswith(LAUNCHES)]
    launches = np.flatnonzero(np.isin(process.calls.name, names))
    return len(launches) > 0 and not bool(np.any(track.ops.call == launches[-1]))


def _os_call(process: Process, marks: StepRanges | None, idle_ns: int | None) -> str | None:
    """The system call that the thread of the steps had not returned from, or that lasted for most of the idle time."""
    for call in process.os_calls:
        if marks is not None and call.thread != marks.thread:
            continue
        if call.end is None or (idle_ns and call.end - call.start >= idle_ns // 2):
            return call.name
    return None


def _usual_step(process: Process, marks: StepRanges | None) -> int:
    """Median length of the steps that ended, ns; 0 without any."""
    if marks is None:
        return 0
    ended = ~np.isin(marks.start, process.ranges.start[process.ranges.open])
    return int(np.median(marks.end[ended] - marks.start[ended])) if ended.any() else 0


def _last_step(marks: StepRanges | None) -> int | None:
    return int(marks.number[-1]) if marks is not None and len(marks.number) and marks.numbered else None


def _text(timeline: Timeline, name: int) -> str:
    return timeline.names[name] if name != NONE else "(unnamed)"
