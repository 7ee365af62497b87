"""NVTX rows: names, domains, ranges that never ended, payloads, marks."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from nsys_builder import (
    CATEGORY,
    DOMAIN_DESTROY,
    MARK,
    PID,
    START_END,
    Export,
    global_pid,
    global_tid,
    small_job,
)

import tracekit
from tracekit.timeline import NO_VALUE, NONE, Process, Timeline

STOP_NS, DURATION_NS = 51_000, 50_000


def opened(export: Export, folder: Path) -> Timeline:
    return tracekit.open(export.write(folder / "report.sqlite"), require_ranks=False)


def names(timeline: Timeline, process: Process) -> list[str | None]:
    return [timeline.names[name] if name != NONE else None for name in process.ranges.name.tolist()]


def domains(timeline: Timeline, process: Process) -> list[str | None]:
    return [timeline.names[name] if name != NONE else None for name in process.ranges.domain.tolist()]


@pytest.mark.parametrize(
    ("text", "registered", "name"),
    [
        ("own", None, "own"),
        (None, "registered", "registered"),
        ("own", "registered", "own"),
        ("", "registered", "registered"),
        (None, None, None),
        ("", None, None),
        (None, "", None),
        ("aten::mm, op_id = 12", None, "aten::mm"),
        (None, "aten::mm, seq = 3, op_id = 4", "aten::mm"),
    ],
)
def test_name_is_the_text_or_the_registered_string(
    text: str | None, registered: str | None, name: str | None, tmp_path: Path
) -> None:
    export = Export()
    export.range(text, 0, 10, textId=export.string(registered) if registered is not None else None)
    timeline = opened(export, tmp_path)
    assert names(timeline, timeline.processes[0]) == [name]


def test_an_id_of_no_string_is_no_name(tmp_path: Path) -> None:
    export = Export()
    for number in (0, -1, 4711, 2**40):
        export.range(None, number % 7, 10, textId=number)
    timeline = opened(export, tmp_path)
    assert names(timeline, timeline.processes[0]) == [None] * 4


def test_only_ranges_are_ranges(tmp_path: Path) -> None:
    export = Export()
    export.range("push", 0, 10)
    export.range("start", 1, 20, eventType=START_END)
    export.range("mark", 2, None, eventType=MARK)
    export.range("category", 3, None, eventType=CATEGORY)
    export.domain("mine", 1)
    export.range(None, 5, None, eventType=DOMAIN_DESTROY, domain=1)
    export.range("of a later version", 6, 9, eventType=99)
    export.range("never started", None, 9)  # type: ignore[arg-type]
    timeline = opened(export, tmp_path)
    assert names(timeline, timeline.processes[0]) == ["push", "start"]


@pytest.mark.parametrize(
    ("details", "end", "expected_end", "is_open"),
    [
        # A capture that began at 1000: its duration marks an open range and is not where the range ends.
        ({"duration": DURATION_NS, "startTime": 1_000, "stopTime": STOP_NS}, DURATION_NS, STOP_NS, True),
        ({"duration": DURATION_NS, "startTime": 1_000, "stopTime": STOP_NS}, None, STOP_NS, True),
        # So does its last instant: nothing is left by chance at the very end.
        ({"duration": DURATION_NS, "startTime": 1_000, "stopTime": STOP_NS}, STOP_NS, STOP_NS, True),
        ({"duration": DURATION_NS, "startTime": 0, "stopTime": DURATION_NS}, DURATION_NS, DURATION_NS, True),
        ({"duration": None, "startTime": None, "stopTime": None}, None, 7_000, True),  # the last that is known
        (None, None, 7_000, True),
        (None, DURATION_NS, DURATION_NS, False),
        # An instant outside the capture: a range does not end before it starts.
        ({"duration": 10, "startTime": 0, "stopTime": 10}, None, 2_000, True),
        ({"duration": 10, "startTime": 0, "stopTime": 2**63 - 1}, None, 7_000, True),
    ],
)
def test_a_range_that_was_open_at_the_end(
    details: dict[str, int | None] | None, end: int | None, expected_end: int, is_open: bool, tmp_path: Path
) -> None:
    export = Export()
    export.range("other", 1_500, 7_000)
    export.range("asked", 2_000, end)
    if details is not None:
        export.add("ANALYSIS_DETAILS", **details)
    timeline = opened(export, tmp_path)
    ranges = timeline.processes[0].ranges
    assert (int(ranges.end[1]), bool(ranges.open[1])) == (expected_end, is_open)
    assert (int(ranges.end[0]), bool(ranges.open[0])) == (7_000, False)


@pytest.mark.parametrize(
    ("start", "end"), [(500, 400), (0, 2**63 - 1), (-(2**63) + 1, 10), (2**62, 2**62 + 1), (-(2**62), -(2**62) + 1)]
)
def test_times_that_cannot_be_true_cost_the_range_only(start: int, end: int, tmp_path: Path) -> None:
    export = small_job()
    export.range("train_step 7", start, end)
    timeline = opened(export, tmp_path)
    assert len(timeline.processes[0].ranges) == 3
    assert timeline.captures[0].notes == ("1 NVTX ranges have times that cannot be true and are left out",)


def test_ranges_are_sorted_by_start_and_outer_ones_come_first(tmp_path: Path) -> None:
    export = Export()
    for name, start, end in (("c", 5, 6), ("inner", 0, 3), ("outer", 0, 9), ("empty", 0, 0), ("before", -5, -1)):
        export.range(name, start, end)
    timeline = opened(export, tmp_path)
    assert names(timeline, timeline.processes[0]) == ["before", "outer", "inner", "empty", "c"]


def test_a_thousand_ranges_that_were_never_popped(tmp_path: Path) -> None:
    export = small_job()
    for depth in range(1006):
        export.range(f"never popped {depth}", depth, None)
    export.add("ANALYSIS_DETAILS", duration=DURATION_NS, startTime=1_000, stopTime=STOP_NS)
    begun = time.monotonic()
    timeline = opened(export, tmp_path)
    analysis = tracekit.analyze(timeline)
    assert time.monotonic() - begun < 5
    assert int(timeline.processes[0].ranges.open.sum()) == 1006
    assert [step.step for step in analysis.ranks[0].steps] == [0, 1, 2]


def test_a_million_ranges_are_read_in_seconds(tmp_path: Path) -> None:
    path = small_job().write(tmp_path / "report.sqlite")
    database = sqlite3.connect(path)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999)"
    rows = f"SELECT i % 30000, 30000 + i % 7, 59, 'aten::op' || i % 900, {global_tid(PID)}, 0 FROM n"
    database.execute(f"{numbers} INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) {rows}")
    database.commit()
    database.close()
    begun = time.monotonic()
    timeline = tracekit.open(path)
    assert time.monotonic() - begun < 20
    assert len(timeline.processes[0].ranges) == 1_000_003
    assert len(timeline.names) < 1000


def test_domains_have_names_where_their_creation_was_captured(tmp_path: Path) -> None:
    export = Export()
    export.domain("tracekit", 1)
    export.domain("NCCL", 2)
    export.range("in tracekit", 0, 10, domain=1)
    export.range("in NCCL", 1, 10, domain=2)
    export.range("in neither", 2, 10, domain=3)
    export.range("in the default", 3, 10, domain=0)
    export.range("in the default too", 4, 10, domainId=None)
    timeline = opened(export, tmp_path)
    assert domains(timeline, timeline.processes[0]) == ["tracekit", "NCCL", None, None, None]


def test_a_domain_may_be_created_by_a_registered_string_on_another_thread(tmp_path: Path) -> None:
    export = Export()
    row = export.domain("", 1)
    row.update(text=None, textId=export.string("mine"), globalTid=global_tid(PID, 77))
    export.range("a", 0, 10, domain=1, tid=5)
    timeline = opened(export, tmp_path)
    assert domains(timeline, timeline.processes[0]) == ["mine"]


def test_domain_numbers_belong_to_a_process(tmp_path: Path) -> None:
    export = Export()
    for pid, name in ((100, "mine"), (200, "yours")):
        export.domain(name, 1, pid=pid)
    for pid in (100, 200, 300):
        export.range("a", 0, 10, domain=1, pid=pid)
    timeline = opened(export, tmp_path)
    assert [domains(timeline, process) for process in timeline.processes] == [["mine"], ["yours"], [None]]


def test_ranges_belong_to_the_process_of_their_thread(tmp_path: Path) -> None:
    export = Export()
    export.range("main", 0, 10, pid=100)
    export.range("backward", 1, 10, pid=100, tid=0xFFFFFF)
    export.range("other", 2, 10, pid=101, tid=0)
    timeline = opened(export, tmp_path)
    assert [(process.pid, names(timeline, process)) for process in timeline.processes] == [
        (100, ["main", "backward"]),
        (101, ["other"]),
    ]
    assert timeline.processes[0].ranges.thread.tolist() == [global_tid(100), global_pid(100) | 0xFFFFFF]


@pytest.mark.parametrize("column", ["int64Value", "uint64Value", "int32Value", "uint32Value"])
@pytest.mark.parametrize("value", [7, 0, -1, 2**63 - 1])
def test_integer_payloads_of_any_width(column: str, value: int, tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 10, **{column: value})
    export.range("step", 20, 30)
    export.range("step", 40, 50, doubleValue=1.5)
    assert opened(export, tmp_path).processes[0].ranges.value.tolist() == [value, NO_VALUE, NO_VALUE]


def test_the_payload_of_a_step_is_its_number(tmp_path: Path) -> None:
    export = small_job()
    for number, row in zip((41, 42, 43), export.rows["NVTX_EVENTS"], strict=True):
        row.update(text="train_step", uint64Value=number)
    ranks = tracekit.analyze(opened(export, tmp_path)).ranks
    assert [step.step for step in ranks[0].steps] == [41, 42, 43]


def test_only_marks_that_hold_json_are_kept(tmp_path: Path) -> None:
    export = Export()
    export.domain("tracekit", 1)
    export.range("work", 0, 10)
    export.range('{"rank": 3}', 1, None, eventType=MARK, domain=1)
    export.range(None, 2, None, eventType=MARK, textId=export.string('{"loss": 0.5}'))
    export.range("hello", 3, None, eventType=MARK)
    timeline = opened(export, tmp_path)
    assert timeline.processes[0].marks == (("tracekit", '{"rank": 3}'), (None, '{"loss": 0.5}'))


def test_a_log_of_json_marks_is_cut(tmp_path: Path) -> None:
    export = Export()
    export.range("work", 0, 10)
    for number in range(1200):
        export.range(f'{{"loss": {number}}}', number, None, eventType=MARK)
    assert len(opened(export, tmp_path).processes[0].marks) == 1000
