"""The shared captures: totals counted by brute force elsewhere, and figures that other tools have published."""

import json
import os
import sqlite3
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
from handmade import collective_table

import tracekit
from tracekit.options import Options

pytestmark = pytest.mark.shared

# As the conftest finds it. Importing that would take whichever conftest pytest has loaded first.
FOLDER = Path(os.environ.get("TRACEKIT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
REPORTS_OF_TWO_RANKS = ("hta_128rank/rank0.sqlite", "hta_128rank/rank1.sqlite")


def expected(folder):
    """What is expected of each capture; nothing where the folder is missing, for the tests are then skipped."""
    path = FOLDER / folder / "expected.json"
    return json.loads(path.read_text()) if path.exists() else {}


CASES, TRACES = expected("cases"), expected("traces")


@cache
def analysis(*paths):
    return tracekit.analyze(tracekit.open(*(FOLDER / path for path in paths)), Options(rules=False))


def case(name):
    """A case is a file or a folder with one report a rank."""
    path = f"cases/{name}"
    return analysis(path if (FOLDER / path).is_dir() else f"{path}.sqlite")


def totals(rank):
    return asdict(rank.totals) | {"overlap_ratio": rank.totals.overlap_ratio}


@pytest.mark.parametrize("name", CASES)
def test_totals_of_hand_made_cases(name):
    found = {str(rank.rank): totals(rank) for rank in case(name).ranks}
    assert found == CASES[name]["ranks"]


@pytest.mark.parametrize("name", TRACES)
def test_totals_of_real_traces(name):
    found = {f"{rank.pid}:{rank.device}": totals(rank) for rank in analysis(f"traces/{name}").ranks}
    assert found == TRACES[name]


@pytest.mark.parametrize("path", [f"cases/{name}" for name in CASES] + [f"traces/{name}" for name in TRACES])
def test_identity_in_every_window(path):
    """Totals, every step, every phase, and every module's share of them."""
    found = case(path.removeprefix("cases/")) if path.startswith("cases/") else analysis(path)
    assert found.ranks
    for rank in found.ranks:
        windows = [rank.totals]
        for step in rank.steps:
            windows += [step.account, *step.by_phase.values()]
            assert step.end_ns - step.start_ns == step.account.wall_ns
            if step.by_phase:
                for name in (*PARTS, "wall_ns", "comm_ns"):
                    assert sum(getattr(p, name) for p in step.by_phase.values()) == getattr(step.account, name)
        windows += [module.account for module in rank.modules]
        for account in windows:
            assert sum(getattr(account, part) for part in PARTS) == account.wall_ns
            assert account.comm_ns == account.exposed_comm_ns + account.overlapped_comm_ns
        for earlier, later in zip(rank.steps, rank.steps[1:], strict=False):
            assert earlier.end_ns == later.start_ns
    exposed = sum(row.exposed_ns for row in found.collectives)
    assert exposed == sum(rank.totals.exposed_comm_ns for rank in found.ranks)


def test_overlap_and_compute_that_another_tool_found():
    """Holistic Trace Analysis 0.5.0 says of the same trace: 46.24 % overlap, 281,336 µs of compute.

    Its trace holds microseconds with fractions, so it rounds what is exact here: within one microsecond.
    """
    (rank,) = analysis("traces/hta_dlrm_a100_rank3of8.sqlite").ranks
    assert round(rank.totals.overlap_ratio, 4) == 0.4624
    assert abs(rank.totals.compute_ns - 281_336_000) < 1_000


STEPS_BY_SQL = """
    SELECT step.start, min(kernel.start)
    FROM NVTX_EVENTS AS step
    LEFT JOIN StringIds AS registered ON registered.id = step.textId
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.start >= step.start AND call.start < step."end"
        AND call.globalTid >> 24 = step.globalTid >> 24
    JOIN CUPTI_ACTIVITY_KIND_KERNEL AS kernel ON kernel.correlationId = call.correlationId
        AND kernel.globalPid >> 24 = call.globalTid >> 24
    WHERE coalesce(step.text, registered.value) LIKE 'ProfilerStep#%' AND kernel.streamId = 7
        AND step.globalTid >> 24 & 0xFFFFFF = ?
    GROUP BY step.start ORDER BY step.start
"""


@pytest.mark.parametrize("path", ["hta_dlrm_a100_rank3of8.sqlite", "hta_128rank_onereport.sqlite"])
def test_steps_start_where_sql_finds_their_first_kernel(path):
    """The first kernel on stream 7, launched inside each ProfilerStep# range, by a plain join over the rows."""
    database = sqlite3.connect(f"file:{FOLDER / 'traces' / path}?mode=ro&immutable=1", uri=True)
    for rank in analysis(f"traces/{path}").ranks:
        anchors = [anchor for _, anchor in database.execute(STEPS_BY_SQL, [rank.pid])]
        assert rank.main_stream == 7
        assert [step.start_ns for step in rank.steps] == anchors
        assert len(anchors) >= 2
    database.close()


def test_one_report_and_two_of_the_same_ranks_agree():
    """The second rank's own report has its own time zero; put right by the clocks, every time is the same."""
    together = analysis("traces/hta_128rank_onereport.sqlite")
    apart = analysis(*(f"traces/{path}" for path in REPORTS_OF_TWO_RANKS))
    assert [rank.pid for rank in together.ranks] == [rank.pid for rank in apart.ranks]
    for one, two in zip(together.ranks, apart.ranks, strict=True):
        assert one.totals == two.totals
        assert one.modules == two.modules
        ahead = two.clock.offset_ns
        aligned = [replace(step, start_ns=step.start_ns - ahead, end_ns=step.end_ns - ahead) for step in two.steps]
        assert list(one.steps) == aligned
    assert together.steady == apart.steady
    assert together.collectives == apart.collectives


def test_the_straggler_in_one_report_and_in_one_a_rank_agree():
    together, apart = case("straggler"), case("straggler_per_rank")
    assert [rank.rank for rank in apart.ranks] == [rank.rank for rank in together.ranks] == [0, 1, 2, 3]
    assert [rank.totals for rank in apart.ranks] == [rank.totals for rank in together.ranks]
    assert apart.collectives == together.collectives


@pytest.mark.parametrize("name", ["straggler", "straggler_per_rank"])
def test_transfer_and_peer_wait_of_the_straggler(name):
    """Six all-reduces with the transfer and each rank's wait as given; the first one of the capture is left out.

    The case names no communicator, so its size is told here.
    """
    path = f"cases/{name}"
    timeline = tracekit.open(FOLDER / (path if (FOLDER / path).is_dir() else f"{path}.sqlite"))
    windows = [(int(track.ops.start[0]), int(track.ops.end.max())) for track in timeline.ranks]
    (row,) = collective_table(timeline, windows, world_size=4)
    assert (row.op, row.count) == ("all_reduce", 6)
    assert row.transfer_ns == CASES[name]["transfer_ns"]
    assert row.peer_wait_ns == 5 * sum(CASES[name]["peer_wait_ns"].values())
