"""The sample traces' figures against their truth, to the nanosecond.

What the truth does not hold is counted here from the rows of the captures, with SQL and loops.
"""

import json
import sqlite3
import statistics
from dataclasses import asdict
from functools import cache
from pathlib import Path

import oracle
import pytest

import tracekit

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
every_sample = pytest.mark.parametrize("name", NAMES)


@cache
def truth(name):
    return json.loads((SAMPLES / f"{name}.expected.json").read_text())


@cache
def analysis(name):
    return tracekit.analyze(tracekit.open(*(SAMPLES / path for path in truth(name)["captures"])))


def ranks(name):
    """(rank, its truth) of every rank."""
    found = analysis(name).ranks
    assert [str(rank.rank) for rank in found] == sorted(truth(name)["ranks"], key=int)
    return [(rank, truth(name)["ranks"][str(rank.rank)]) for rank in found]


def figures(account):
    return {field: account[field] for field in oracle.FIELDS}


def query(rank, sql, *values):
    """Rows of the rank's capture; ``{process}`` selects its process by globalTid or globalPid in ``tid``."""
    path = SAMPLES / rank["capture"]
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return database.execute(sql.replace("{process}", f">> 24 & 0xFFFFFF = {rank['pid']}"), values).fetchall()
    finally:
        database.close()


@every_sample
def test_totals(name):
    for rank, true in ranks(name):
        assert asdict(rank.totals) == figures(true["totals"])
        assert rank.totals.overlap_ratio == true["totals"]["overlap_ratio"]
        assert (rank.pid, rank.device) == (true["pid"], true["device"])
        assert (rank.main_stream, rank.opaque_ns) == (true["main_stream"], true["opaque_ns"])


PAIRED = {("hang_skipped_step", 3): {3: 2, 4: 3}}
"""By sample and rank, the numbers of steps whose collectives are those of another step on the other ranks."""


@every_sample
def test_steps(name):
    for rank, true in ranks(name):
        paired = PAIRED.get((name, rank.rank), {})
        found = [(step.step, step.start_ns, step.end_ns, asdict(step.account)) for step in rank.steps]
        assert found == [
            (paired.get(step["step"], step["step"]), step["start_ns"], step["end_ns"], figures(step))
            for step in true["steps"]
        ]


KERNELS = """
    SELECT call.start, kernel.start, kernel."end", kernel.streamId
    FROM (SELECT start, "end", streamId, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL {graphs}) AS kernel
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.correlationId = kernel.correlationId
        AND call.globalTid >> 24 = kernel.globalPid >> 24
    WHERE kernel.globalPid {process} GROUP BY kernel.start, kernel.streamId ORDER BY min(call.start)
"""
GRAPHS = 'UNION ALL SELECT start, "end", streamId, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE'
COPIES = 'SELECT start, "end" FROM {} WHERE globalPid {{process}}'
DATA_RANGES = """
    SELECT start, "end" FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId
    WHERE coalesce(text, value) = 'data' AND globalTid {process} ORDER BY start
"""


def data_gaps(rank):
    """(start, end) of the gaps in which the GPU neither computes nor communicates, while the host loads data.

    By the rule's words: from the end of all work (or the start of the data range) to the start of the first kernel
    that was launched after the data range, if the gap begins before the range has ended.
    """
    tables = [row[0] for row in query(rank, "SELECT name FROM sqlite_master")]
    with_graphs = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables
    kernels = query(rank, KERNELS.replace("{graphs}", GRAPHS if with_graphs else ""))
    found = []
    for start, end in query(rank, DATA_RANGES):
        following = [row[1] for row in kernels if row[0] >= end]
        before = [row[2] for row in kernels if following and row[1] < following[0]]
        if before and max(start, *before) < min(end, following[0]):
            found.append((max(start, *before), following[0]))
    return found


@every_sample
def test_phases(name):
    """The truth knows phases by their kernels; ``data`` has none, and is cut out of the end of the step."""
    told = 0
    for rank, true in ranks(name):
        gaps = data_gaps(true)
        copies = [
            row for table in ("MEMCPY", "MEMSET") for row in query(true, COPIES.format(f"CUPTI_ACTIVITY_KIND_{table}"))
        ]
        for step, true_step in zip(rank.steps, true["steps"], strict=True):
            found = {phase: asdict(account) for phase, account in step.by_phase.items()}
            if "by_phase" not in true_step:
                continue
            inside = [(start, end) for start, end in gaps if step.start_ns <= start < step.end_ns]
            data = found.pop("data", None)
            assert (data is not None) == bool(inside)
            if data is not None:
                copied = sum(
                    oracle.measure([(max(low, start), min(high, end)) for low, high in copies]) for start, end in inside
                )
                wall = sum(end - start for start, end in inside)
                assert data == dict.fromkeys(oracle.FIELDS, 0) | {
                    "wall_ns": wall,
                    "exposed_copy_ns": copied,
                    "idle_ns": wall - copied,
                }
            true_phases = {phase: figures(account) for phase, account in true_step["by_phase"].items()}
            if data is None:
                assert found == true_phases
            else:
                # What wakes the GPU can be a gather of the next forward: the time from it to the step's end is forward.
                tail = [found.pop("forward"), found.pop(list(found)[-1]), data]
                true_tail = [true_phases.pop("forward"), true_phases.pop(list(true_phases)[-1])]
                assert found == true_phases
                for field in oracle.FIELDS:
                    assert sum(part[field] for part in tail) == sum(part[field] for part in true_tail)
            told += 1
    assert told or not any("by_phase" in step for rank in truth(name)["ranks"].values() for step in rank["steps"])


@every_sample
def test_phases_and_modules_add_up(name):
    for rank, _ in ranks(name):
        for step in rank.steps:
            for field in oracle.FIELDS:
                if step.by_phase:
                    total = sum(getattr(account, field) for account in step.by_phase.values())
                    assert total == getattr(step.account, field)
            for account in [step.account, *step.by_phase.values(), *(module.account for module in rank.modules)]:
                assert sum(getattr(account, part) for part in PARTS) == account.wall_ns
        if rank.modules:
            steady = [step.account for step in rank.steps if step.step in analysis(name).steady.steps]
            for field in oracle.FIELDS:
                total = sum(getattr(module.account, field) for module in rank.modules)
                assert total == sum(getattr(account, field) for account in steady)


@every_sample
def test_steady(name):
    found, true = analysis(name).steady, truth(name)["steady"]
    gone = {number for (sample, _), paired in PAIRED.items() if sample == name for number in paired}
    gone -= {number for (sample, _), paired in PAIRED.items() if sample == name for number in paired.values()}
    assert (list(found.steps), list(found.left_out)) == ([n for n in true["steps"] if n not in gone], true["left_out"])
    assert abs(found.step_time_ns - true["step_time_ns"]) <= 0.5
    for field, total in true["sums"].items():
        assert abs(getattr(found.account, field) - total / true["windows"]) <= 1
    assert sum(getattr(found.account, part) for part in PARTS) == found.account.wall_ns


@every_sample
def test_efficiency(name):
    found, true = analysis(name).efficiency, truth(name)["efficiency"]
    if abs(analysis(name).steady.step_time_ns - truth(name)["steady"]["step_time_ns"]) > 1:
        pytest.skip("which steps are steady differs, where the job stands still")
    if analysis(name).hang is not None:
        assert (found.tokens_per_s, found.mfu) == (None, None)
        return
    for field, value in true.items():
        assert getattr(found, field) == (None if value is None else pytest.approx(value, rel=1e-6)), field
    assert (found.mfu is None) == bool(found.reason)


def collectives(name):
    """(row of the analysis, its truth). Where the capture tells no communicator, an op's are in one row."""
    rows = analysis(name).collectives
    paired = []
    for row in rows:
        same = [
            item
            for item in truth(name)["collectives"]
            if item["op"] == row.op
            and (item["communicator"] is None or int(item["communicator"], 16) == int(row.communicator or "0", 16))
        ]
        assert len(same) == 1, row
        paired.append((row, same[0]))
    assert len(paired) == len(truth(name)["collectives"])
    return paired


@every_sample
def test_collectives(name):
    for row, true in collectives(name):
        assert list(row.ranks) == true["ranks"]
        assert row.count == true["count"]
        assert (row.comm_ns, row.exposed_ns) == (true["comm_ns"], true["exposed_ns"])
        assert row.bytes_source == true["bytes_source"]
        assert row.bytes == (true["full_bytes"] if true["bytes_source"] else None)


NCCL = """
    SELECT value, "end" - start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
    WHERE value LIKE 'nccl%' AND globalPid {process} ORDER BY start
"""
IN_KERNEL_NAMES = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}


def durations(name, op):
    """For each rank the durations of its collectives of an op, without the very first one that the rank captured."""
    found = []
    for rank in truth(name)["ranks"].values():
        rows = query(rank, NCCL)
        found.append([length for kernel, length in rows[1:] if IN_KERNEL_NAMES[op] in kernel])
    return found


def on_one_communicator(name):
    """Whether all ranks share one communicator, so that the n-th collectives of an op belong together."""
    everyone = list(range(truth(name)["world_size"]))
    communicators = {item["communicator"] for item in truth(name)["collectives"]}
    return len(communicators) == 1 and all(item["ranks"] == everyone for item in truth(name)["collectives"])


@pytest.mark.parametrize("name", [name for name in NAMES if on_one_communicator(name)])
def test_transfer_and_peer_wait(name):
    for row, _ in collectives(name):
        by_rank = durations(name, row.op)
        if len({len(own) for own in by_rank}) > 1:
            continue
        together = list(zip(*by_rank, strict=True))
        shortest = [min(same) for same in together]
        assert abs(row.transfer_ns - statistics.median(shortest)) <= 0.5
        assert row.peer_wait_ns == sum(
            sum(same) - len(same) * least for same, least in zip(together, shortest, strict=True)
        )
        factor = {"all_reduce": 2.0}.get(row.op, 1.0) * (len(by_rank) - 1) / len(by_rank)
        if row.algbw_gbps is not None:
            assert row.busbw_gbps == pytest.approx(row.algbw_gbps * factor)


@pytest.mark.parametrize("name", [name for name in NAMES if not on_one_communicator(name)])
def test_transfer_and_peer_wait_on_several_communicators(name):
    """Of ops that no capture begins with, for there the truth counts all collectives, as the analysis does."""
    first = {query(rank, NCCL)[0][0] for rank in truth(name)["ranks"].values()}
    compared = 0
    for row, true in collectives(name):
        if not any(IN_KERNEL_NAMES[row.op] in kernel for kernel in first):
            assert abs(row.transfer_ns - true["transfer_ns"]) <= 0.5
            assert row.peer_wait_ns == true["peer_wait_ns"]
            compared += 1
    assert compared


def test_one_report_and_one_a_rank_give_the_same():
    together, apart = analysis("straggler_4ranks"), analysis("straggler_4ranks_per_rank")
    assert together.steady == apart.steady
    assert together.collectives == apart.collectives
    for one, two in zip(together.ranks, apart.ranks, strict=True):
        assert one.totals == two.totals
        assert [step.account for step in one.steps] == [step.account for step in two.steps]
        assert [step.by_phase for step in one.steps] == [step.by_phase for step in two.steps]
