"""Causes of idle gaps: by hand, and against a count of every nanosecond."""

from itertools import pairwise

import handmade
import numpy as np
import pytest
from handmade import AUTOGRAD, MAIN, Sketch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.config import Thresholds
from tracekit.intervals import gaps as free
from tracekit.metrics.accounting import Covers
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import IDLE_CAUSES
from tracekit.metrics.idle import Gaps, idle_pieces
from tracekit.metrics.labels import vocabulary
from tracekit.metrics.steps import step_ranges

US = 1000
LIMITS = Thresholds()


def causes(job, *, speaker=MAIN, thresholds=LIMITS):
    """{cause: ns} of the idle time between a rank's first and last operation, and the pieces."""
    timeline = job.timeline()
    (track,), process = timeline.ranks, timeline.processes[0]
    words = vocabulary(timeline, process.ranges)
    activity = Activity.of(process, track.ops, timeline.names, words, speaker)
    marks = step_ranges(timeline, process, words, None)
    pieces = idle_pieces(track.ops, activity, idle_gaps(track.ops), marks, thresholds)
    return sums(pieces), pieces


def idle_gaps(ops):
    busy = Covers.of(ops).busy
    start, end = free((busy.start, busy.end), int(ops.start[0]), int(ops.end.max()))
    by_end = np.argsort(ops.end, kind="stable")
    before = by_end[np.searchsorted(ops.end[by_end], start, side="right") - 1]
    return Gaps(start=start, end=end, before=before, after=np.searchsorted(ops.start, end))


def sums(pieces):
    total = {}
    for cause, ns in zip(pieces.cause.tolist(), (pieces.end - pieces.start).tolist(), strict=True):
        total[IDLE_CAUSES[cause]] = total.get(IDLE_CAUSES[cause], 0) + ns
    return total


def two_kernels(gap, *, called, **facts):
    """A kernel of 100 us, ``gap`` us of nothing, and a kernel launched ``called`` us (start, end) after the first."""
    job = Sketch()
    rank = job.process()
    rank.kernel(0, 100 * US, called=-50 * US)
    at = None if called is None else (int((100 + called[0]) * US), int((100 + called[1]) * US))
    rank.kernel((100 + gap) * US, (200 + gap) * US, called=at, **facts)
    return job, rank


def test_gaps_shorter_than_a_launch_are_latency_whoever_launched():
    job, _ = two_kernels(4, called=(1, 2))
    assert causes(job)[0] == {"launch_latency": 4 * US}
    job, _ = two_kernels(4, called=None)
    assert causes(job)[0] == {"launch_latency": 4 * US}


def test_an_operation_launched_in_time_waited_for_another():
    job, _ = two_kernels(300, called=(-60, -55))
    assert causes(job)[0] == {"dependency": 300 * US}


def test_without_its_launch_the_cause_of_a_gap_is_unknown():
    job, _ = two_kernels(300, called=None)
    assert causes(job)[0] == {"unknown": 300 * US}


def test_a_late_launch_is_the_hosts():
    """The kernel starts 6 us after its call: that is what starting takes."""
    job, _ = two_kernels(40, called=(29, 34))
    assert causes(job)[0] == {"host_other": 40 * US}


def test_a_kernel_may_seem_to_start_before_its_launch():
    job, _ = two_kernels(40, called=(43, 48))
    assert causes(job)[0] == {"host_other": 40 * US}


def test_what_is_launched_late_and_then_waits_long_has_two_causes():
    job, _ = two_kernels(300, called=(60, 65))
    assert causes(job)[0] == {"host_other": 65 * US, "dependency": 235 * US}


def test_a_sync_call_that_lets_the_gpu_run_dry_has_the_time_until_the_next_launch():
    job, rank = two_kernels(50, called=(35, 40))
    rank.call("cudaStreamSynchronize", 20 * US, 110 * US)
    assert causes(job)[0] == {"sync_call": 50 * US}


def test_long_after_a_sync_call_it_is_the_host():
    """Refilling is given 1 ms from the call's return."""
    job, rank = two_kernels(5000, called=(4990, 4995))
    rank.call("cudaStreamSynchronize", 20 * US, 110 * US)
    assert causes(job)[0] == {"sync_call": 1010 * US, "host_other": 3990 * US}


def test_a_sync_call_on_an_idle_gpu_has_only_its_own_time():
    job, rank = two_kernels(50, called=(40, 45))
    rank.call("cudaEventSynchronize", 110 * US, 112 * US)
    assert causes(job)[0] == {"sync_call": 2 * US, "host_other": 48 * US}


@pytest.mark.parametrize("name", ["cudaMemcpy", "cudaMemcpy2D", "cuMemcpyDtoH", "cuCtxSynchronize"])
def test_calls_that_wait(name):
    job, rank = two_kernels(50, called=(40, 45))
    rank.call(name, 20 * US, 130 * US)
    assert causes(job)[0] == {"sync_call": 50 * US}


def test_a_copy_to_pageable_memory_holds_its_call():
    """torch's .item(): cudaMemcpyAsync to pageable memory returns when the copy is done."""
    job, rank = two_kernels(50, called=(40, 45))
    at = {"called": (50 * US, 108 * US), "call": "cudaMemcpyAsync"}
    rank.copy(101 * US, 102 * US, stream=handmade.COMPUTE, name="memcpy DtoH", bytes=4, pageable=True, **at)
    assert causes(job)[0] == {"launch_latency": 1 * US, "sync_call": 48 * US}


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemCreate", "cuMemUnmap"])
def test_the_allocator(name):
    job, rank = two_kernels(400, called=(390, 395))
    rank.call(name, 110 * US, 480 * US)
    assert causes(job)[0] == {"allocator": 370 * US, "host_other": 30 * US}


def test_inside_a_range_that_loads_data():
    job, rank = two_kernels(400, called=(390, 395))
    rank.range("data", 150 * US, 450 * US)
    rank.call("cudaStreamSynchronize", 200 * US, 210 * US)
    assert causes(job)[0] == {"host_other": 100 * US, "data_loading": 290 * US, "sync_call": 10 * US}


def test_the_main_thread_speaks_for_the_thread_of_the_backward_pass():
    job, rank = two_kernels(400, called=(390, 395), thread=AUTOGRAD)
    rank.range("data", 100 * US, 450 * US)
    assert causes(job)[0] == {"data_loading": 350 * US, "host_other": 50 * US}
    assert causes(job, speaker=AUTOGRAD)[0] == {"host_other": 400 * US}


def steps_with_gap(*, gap=2000, calls=(), ranges=("step", "step"), copied=None):
    """Two steps; between them the GPU idles for ``gap`` us."""
    job = Sketch()
    rank = job.process()
    rank.range(ranges[0], -100 * US, 90 * US)
    rank.range(ranges[1], 95 * US, (gap + 400) * US)
    rank.kernel(0, 100 * US, called=-50 * US)
    for name, start, end in calls:
        rank.call(name, start * US, end * US)
    if copied:
        rank.copy(100 * US, 110 * US, name="memcpy DtoH", bytes=copied, called=10 * US)
    rank.kernel((100 + gap) * US, (200 + gap) * US, called=((88 + gap) * US, (92 + gap) * US))
    return job, rank


def test_a_quiet_gap_between_steps_is_taken_for_loading_data():
    job, _ = steps_with_gap()
    assert causes(job)[0] == {"data_loading": 2000 * US}


def test_not_where_ranges_tell_of_data():
    job, rank = steps_with_gap()
    rank.range("data", -90 * US, -80 * US)
    assert causes(job)[0] == {"host_other": 2000 * US}


def test_not_where_the_thread_keeps_calling_cuda():
    job, _ = steps_with_gap(calls=[("cudaEventQuery", t, t + 190) for t in range(100, 2000, 200)])
    assert causes(job)[0] == {"host_other": 2000 * US}


def test_not_beside_a_large_copy_to_the_host():
    """A checkpoint is written after its tensors were copied."""
    job, _ = steps_with_gap(copied=64 << 20)
    assert causes(job)[0] == {"host_other": 1990 * US}
    job, _ = steps_with_gap(copied=4)
    assert causes(job)[0] == {"data_loading": 1990 * US}


def test_not_inside_a_step():
    job, _ = steps_with_gap(ranges=("something", "else"))
    assert causes(job)[0] == {"host_other": 2000 * US}


def test_pieces_cover_the_gaps_and_know_them():
    job, rank = two_kernels(500, called=(490, 495))
    rank.call("cudaStreamSynchronize", 20 * US, 110 * US)
    rank.kernel(710 * US, 720 * US, called=600 * US)
    _, pieces = causes(job, thresholds=Thresholds(refill_ns=100 * US))
    assert pieces.start.tolist() == [100 * US, 210 * US, 700 * US]
    assert pieces.end.tolist() == [210 * US, 600 * US, 710 * US]
    assert pieces.gap.tolist() == [0, 0, 1]
    assert [IDLE_CAUSES[cause] for cause in pieces.cause] == ["sync_call", "host_other", "dependency"]


# --- against a count of every nanosecond ---

SMALL = Thresholds(launch_latency_ns=3, launch_lag_ns=4, refill_ns=6, quiet_ns=1 << 40)
HOST_CALLS = ("cudaStreamSynchronize", "cudaMalloc", "cudaEventRecord")


@st.composite
def jobs(draw):
    """(operations, host calls, data ranges): operations come one after the other; calls of a thread do not overlap."""
    at, ops, calls, busy = 0, [], [], {MAIN: -30, AUTOGRAD: -30}
    for _ in range(draw(st.integers(2, 6))):
        at += draw(st.integers(0, 15))
        end = at + draw(st.integers(1, 8))
        thread = draw(st.sampled_from([MAIN, AUTOGRAD]))
        if draw(st.booleans()):
            begin = busy[thread] + draw(st.integers(1, 10))
            until = begin + draw(st.integers(1, 12))
            calls.append((draw(st.sampled_from(HOST_CALLS)), begin, until, thread))
            busy[thread] = until
        launch = None
        if draw(st.integers(0, 4)):
            begin = max(busy[thread] + draw(st.integers(0, 3)), at - draw(st.integers(-2, 12)))
            if begin <= at + 3:
                launch = begin, begin + draw(st.integers(1, 3)), thread
                busy[thread] = launch[1]
        ops.append((at, end, launch))
        at = end
    data = [(s, s + n) for s, n in draw(st.lists(st.tuples(st.integers(-10, 60), st.integers(1, 12)), max_size=2))]
    return ops, calls, data


def counted(ops, calls, data, limits):
    """The cause of each idle nanosecond, found one by one."""
    answer = {}
    busy = {t for start, end, _ in ops for t in range(start, end)}
    for (_, gap_start, _), (gap_end, _, launch) in pairwise(ops):
        blocking = []
        late_until = gap_start
        if launch:
            late_until = min(max(launch[1], gap_start), gap_end)
            blocking = [c for c in calls if c[3] in (MAIN, launch[2]) and c[0] != "cudaEventRecord"]
        for t in range(gap_start, gap_end):
            assert t not in busy
            if gap_end - gap_start < limits.launch_latency_ns:
                answer[t] = "launch_latency"
            elif not launch:
                answer[t] = "unknown"
            elif t >= late_until:
                prompt = late_until > gap_start and gap_end - launch[1] <= limits.launch_lag_ns
                answer[t] = answer[t - 1] if prompt else "dependency"
            else:
                answer[t] = doing(t, gap_start, blocking, data, limits)
    return answer


def inside(t, calls, name):
    return any(c[0] == name and c[1] <= t < c[2] for c in calls)


def doing(t, gap_start, blocking, data, limits):
    if inside(t, blocking, "cudaStreamSynchronize"):
        return "sync_call"
    if inside(t, blocking, "cudaMalloc"):
        return "allocator"
    if any(start <= t < end for start, end in data):
        return "data_loading"
    if all(any(c[1] <= instant < c[2] for c in blocking) for instant in (gap_start - 1, gap_start)):
        for back in range(t - 1, max(gap_start, t - limits.refill_ns) - 1, -1):
            if inside(back, blocking, "cudaStreamSynchronize"):
                return "sync_call"
            if inside(back, blocking, "cudaMalloc"):
                return "allocator"
            if any(start <= back < end for start, end in data):
                break
    return "host_other"


@settings(max_examples=400, deadline=None)
@given(jobs())
def test_every_nanosecond_has_the_cause_that_a_count_finds(made):
    ops, calls, data = made
    job = Sketch()
    rank = job.process()
    for start, end, launch in ops:
        rank.kernel(start, end, called=launch and launch[:2], thread=launch[2] if launch else MAIN)
    for name, start, end, thread in calls:
        rank.call(name, start, end, thread=thread)
    for start, end in data:
        rank.range("data", start, end)
    _, pieces = causes(job, thresholds=SMALL)
    found = {
        t: IDLE_CAUSES[cause]
        for start, end, cause in zip(pieces.start.tolist(), pieces.end.tolist(), pieces.cause.tolist(), strict=True)
        for t in range(start, end)
    }
    assert found == counted(ops, calls, data, SMALL)
    assert np.all(pieces.end > pieces.start)
