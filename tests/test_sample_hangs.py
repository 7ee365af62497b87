"""The samples of jobs that stand still: that the rows show what their truth says, read with SQL alone."""

import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[1] / "sample_traces"
PLANTED = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("hang_*.expected.json"))
RECORDED = "recorded/hang_cpu"
OPS = {"ncclAllGather": "all_gather", "ncclReduceScatter": "reduce_scatter", "ncclAllReduce": "all_reduce"}


def expected(name):
    return json.loads((SAMPLES / f"{name}.expected.json").read_text())


def query(path, sql):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()


def nccl_calls(path, pid):
    """(communicator, op, bytes) of a process's collective calls in the order of issue."""
    rows = query(
        path,
        f"""SELECT value, binaryData FROM NVTX_EVENTS JOIN StringIds ON id = textId
            WHERE binaryData IS NOT NULL AND globalTid >> 24 & 0xFFFFFF = {pid} ORDER BY start""",
    )
    calls = [(OPS.get(name), blob[32:40][::-1].hex(), int.from_bytes(blob[40:48], "little")) for name, blob in rows]
    return [(f"0x{communicator}", op, size) for op, communicator, size in calls if op]


def never_left(path, pid):
    """(name, number) of a process's ranges that were never left, outermost first."""
    return query(
        path,
        f"""SELECT coalesce(text, value), int64Value FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
            WHERE eventType IN (59, 60) AND "end" = (SELECT duration FROM ANALYSIS_DETAILS)
            AND globalTid >> 24 & 0xFFFFFF = {pid} ORDER BY start""",
    )


@pytest.mark.parametrize("name", PLANTED)
def test_who_launched_the_collective(name):
    truth = expected(name)
    hang = truth["hang"]
    for number, rank in truth["ranks"].items():
        calls = nccl_calls(SAMPLES / rank["capture"], rank["pid"])
        own = [call for call in calls if call[0] == hang["communicator"]]
        assert {"communicator": hang["communicator"], "seq": len(own)} in hang["launched"][number]
        assert (len(own) >= hang["seq"]) == (int(number) in hang["waiting_ranks"])
        if int(number) in hang["waiting_ranks"]:
            _, op, size = own[hang["seq"] - 1]
            assert op == hang["op"]
            assert hang["full_bytes"][number] == (size * truth["world_size"] if op != "all_reduce" else size)


@pytest.mark.parametrize("name", PLANTED)
def test_the_collective_never_ended(name):
    """No rank has a kernel for it, nor for anything that comes after it on its communicator."""
    truth = expected(name)
    waits = {wait["communicator"]: wait["seq"] for wait in truth["hang"]["waits"]}
    finished = Counter({item["communicator"]: 0 for item in truth["collectives"]})
    for item in truth["collectives"]:
        finished[item["communicator"]] += item["count"]
    assert all(finished[communicator] == seq - 1 for communicator, seq in waits.items())


@pytest.mark.parametrize("name", PLANTED)
def test_what_each_rank_was_in(name):
    truth = expected(name)
    for number, rank in truth["ranks"].items():
        found = never_left(SAMPLES / rank["capture"], rank["pid"])
        said = truth["hang"]["last_activity"][number]
        assert [text for text, _ in found] == said["open_ranges"]
        assert dict(found).get("step") == said["step"]


def test_the_skipped_step_is_one():
    truth = expected("hang_skipped_step")
    for number, rank in truth["ranks"].items():
        rows = query(
            SAMPLES / rank["capture"],
            f"""SELECT int64Value FROM NVTX_EVENTS JOIN StringIds ON id = textId
                WHERE value = 'step' AND globalTid >> 24 & 0xFFFFFF = {rank["pid"]} ORDER BY start""",
        )
        assert [step for (step,) in rows] == ([0, 1, 3, 4] if number == "3" else [0, 1, 2, 3, 4])


def test_truncated_captures_end_50_ms_apart_with_open_ranges():
    truth = expected("truncated_captures")
    assert "hang" not in truth
    ends = []
    for rank in truth["ranks"].values():
        path = SAMPLES / rank["capture"]
        ((stop,),) = query(path, "SELECT stopTime FROM ANALYSIS_DETAILS")
        ends.append(stop - rank["clock_offset_ns"])
        assert never_left(path, rank["pid"])
    assert ends[0] - ends[1] == pytest.approx(50e6, abs=1e6)


def test_the_recorded_hang_is_what_its_file_says():
    truth = expected(RECORDED)
    hang = truth["hang"]
    for number, path in enumerate(SAMPLES / capture for capture in truth["captures"]):
        ((pid,),) = query(path, "SELECT pid FROM PROCESSES")
        said = hang["last_activity"][str(number)]
        found = never_left(path, pid)
        assert [text for text, _ in found] == said["open_ranges"]
        assert dict(found)["step"] == said["step"]
        ((seq,),) = query(
            path,
            """SELECT max(int64Value) FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = 'world/float32'""",
        )
        assert (seq >= hang["seq"]) == (number in hang["waiting_ranks"])


def test_the_recorded_hang_names_nobody():
    allowed = {"python3", "EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"}
    for path in (SAMPLES / RECORDED).glob("*.sqlite"):
        assert path.stat().st_size < 100_000
        tables = {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {
            "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME", "NVTX_EVENTS", "ENUM_NSYS_EVENT_TYPE", "StringIds",
            "PROCESSES", "EXPORT_META_DATA",
        }  # fmt: skip
        assert {name for (name,) in query(path, "SELECT name FROM EXPORT_META_DATA")} <= allowed
        assert query(path, "SELECT name FROM PROCESSES") == [("python3",)]
        texts = [text for (text,) in query(path, "SELECT value FROM StringIds")]
        assert not [text for text in texts if "/home" in text or "=" in text or "@" in text]
