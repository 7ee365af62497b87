"""TK909: what the profiler itself lost or cost."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracekit.results import Evidence, Finding, Severity
from tracekit.rules.base import Context
from tracekit.rules.capture_quality import capture_finding
from tracekit.timeline import RankTrack


class ProfilerTrouble:
    """TK909: the profiler lost GPU events, or took time of its own beside the GPU's work."""

    code = "TK909"
    title = "The profiler lost events or cost time"

    def check(self, context: Context) -> Iterable[Finding]:
        """By the profiler's own warnings, and by its own record of what it cost between the first and the last op."""
        captures = context.timeline.captures
        lost = {i: text for i, c in enumerate(captures) for text in c.diagnostics if _gpu_events_lost(text)}
        least = context.thresholds.overhead_share
        costs = {track.rank: _overhead_share(track) for track in context.timeline.ranks}
        slow = {rank.rank: costs[rank.rank] for rank in context.ranks if costs[rank.rank] >= least}
        if not lost and not slow:
            return
        evidence = [Evidence(metric="the profiler says", value=text[:200], unit="") for text in list(lost.values())[:2]]
        if slow:
            worst = round(max(slow.values()), 4)
            evidence.append(
                Evidence(metric="time in the profiler", value=worst, unit="of the rank's GPU time", threshold=least)
            )
        idle = context.step.idle_ns >= context.thresholds.warning_share * context.step.wall_ns
        yield capture_finding(
            self.code,
            "The profiler itself cost time"
            if not lost
            else "The profiler may have lost GPU events: what is missing looks like idle time"
            if idle
            else "The profiler may have lost GPU events: counts of operations are lower bounds",
            tuple(rank.rank for rank in context.ranks if rank.capture in lost or rank.rank in slow),
            evidence,
            "Capture fewer steps and less: -t cuda,nvtx, --sample=none --cpuctxsw=none, --cuda-flush-interval, and "
            "--capture-range=cudaProfilerApi around some steady steps.",
            Severity.WARNING if lost else Severity.INFO,
        )


def _overhead_share(track: RankTrack) -> float:
    """Share of the time between the rank's first and last operation in which the profiler worked."""
    wall = int(track.ops.end.max()) - int(track.ops.start[0])
    return (track.overhead_ns or 0) / wall if wall else 0.0


def _gpu_events_lost(text: str) -> bool:
    """Whether a warning says that GPU events were lost; remarks on NVTX, OpenGL, samples and the like do not."""
    return bool(LOST_EVENTS.search(text)) and (bool(OF_GPU.search(text)) or not OF_OTHERS.search(text))


LOST_EVENTS = re.compile(
    r"not all (?:\w+ ){1,4}events|events? (were|was|have been|has been) (dropped|lost)|dropp|buffer.*(full|overflow)",
    re.I,
)
"""nsys words it differently from version to version. "No CUDA events collected" is also in good captures."""
OF_GPU = re.compile(r"\b(CUDA|CUPTI|GPU)\b")
OF_OTHERS = re.compile(
    r"\b(NVTX|OpenGL|Vulkan|OpenACC|OpenMP|MPI|UCX|cuDNN|cuBLAS|OS runtime|DX1[12]|IP|CPU|backtrace|sampl\w*|schedul\w*"
    r"|context switch\w*|MMAP|ftrace|ETW|perf|network|NIC|python)\b",
    re.I,
)
