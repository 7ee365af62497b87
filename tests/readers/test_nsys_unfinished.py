"""What was not over when a capture ended: calls that never returned, kernels that never ended, system calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsys_builder import KERNEL, MEMCPY, RUNTIME, Export, global_tid, small_job

import tracekit
from tracekit.timeline import OsCall, Process, Timeline

DURATION_NS, START_NS, STOP_NS = 90_000, 1_000, 91_000
CAPTURE = {"duration": DURATION_NS, "startTime": START_NS, "stopTime": STOP_NS}
OSRT = "OSRT_API"


def opened(export: Export, folder: Path) -> tuple[Timeline, Process]:
    timeline = tracekit.open(export.write(folder / "report.sqlite"))
    return timeline, timeline.processes[0]


@pytest.mark.parametrize("end", [None, DURATION_NS])
def test_a_call_that_never_returned_ends_with_the_capture(end: int | None, tmp_path: Path) -> None:
    export = small_job()
    export.add("ANALYSIS_DETAILS", **CAPTURE)
    export.call(30_000, end, 0, name="cudaEventSynchronize_v3020")  # type: ignore[arg-type]
    timeline, process = opened(export, tmp_path)
    (row,) = process.open_calls.tolist()
    assert timeline.names[process.calls.name[row]] == "cudaEventSynchronize"
    assert (process.calls.start[row], process.calls.end[row]) == (30_000, STOP_NS)
    assert timeline.captures[0].notes == ()


def test_a_kernel_keeps_the_launch_that_never_returned(tmp_path: Path) -> None:
    """GIVEN no time at which the capture ended, THEN the call ends at the last instant that is known."""
    export = small_job()
    export.rows[RUNTIME][1]["end"] = None  # of the first kernel
    _, process = opened(export, tmp_path)
    (row,) = process.open_calls.tolist()
    assert (process.calls.start[row], process.calls.end[row]) == (800, 21_910)


def test_calls_that_returned_are_not_open(tmp_path: Path) -> None:
    export = small_job()
    export.add("ANALYSIS_DETAILS", **CAPTURE)
    _, process = opened(export, tmp_path)
    assert process.open_calls.size == process.unfinished.size == 0
    assert process.os_calls == ()


@pytest.mark.parametrize("table", [KERNEL, MEMCPY])
def test_what_began_and_never_ended_is_known_by_its_launch(table: str, tmp_path: Path) -> None:
    """Its time is not accounted for."""
    export = small_job()
    row = export.op(table, 40_000, None, call=(39_000, 39_100))
    if table == KERNEL:
        row["demangledName"] = export.string("ncclDevKernel_AllGather_RING_LL(args)")
    timeline, process = opened(export, tmp_path)
    assert process.calls.start[process.unfinished].tolist() == [39_000]
    assert int(timeline.ranks[0].ops.end.max()) == 23_200


def test_one_that_never_began_is_not_unfinished(tmp_path: Path) -> None:
    export = small_job()
    export.op(KERNEL, None, None, call=(39_000, 39_100))
    _, process = opened(export, tmp_path)
    assert process.unfinished.size == 0


def os_call(export: Export, name: str, start: int, end: int | None, tid: int) -> None:
    export.add(OSRT, start=start, end=end, eventClass=27, globalTid=global_tid(4000, tid), nameId=export.string(name))


def test_the_last_system_call_of_each_thread(tmp_path: Path) -> None:
    export = small_job()
    export.add("ANALYSIS_DETAILS", **CAPTURE)
    export.range("step", 25_000, None)
    os_call(export, "read", 100, 200, tid=1)
    os_call(export, "poll", 300, 900, tid=1)
    os_call(export, "pthread_cond_wait", 25_500, DURATION_NS, tid=2)
    os_call(export, "futex", 25_600, None, tid=3)
    _, process = opened(export, tmp_path)
    assert set(process.os_calls) == {
        OsCall(thread=global_tid(4000, 1), name="poll", start=300, end=900),
        OsCall(thread=global_tid(4000, 2), name="pthread_cond_wait", start=25_500, end=None),
        OsCall(thread=global_tid(4000, 3), name="futex", start=25_600, end=None),
    }


@pytest.mark.parametrize("damage", ["column", "null"])
def test_a_damaged_table_of_system_calls_is_passed_over(damage: str, tmp_path: Path) -> None:
    export = small_job()
    export.range("step", 25_000, None)
    if damage == "column":
        export.add(OSRT, start=100, end=200, globalTid=global_tid(4000))
    else:
        export.add(OSRT, start=None, end=200, globalTid=None, nameId=None)
    _, process = opened(export, tmp_path)
    assert process.os_calls == ()
