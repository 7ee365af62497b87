"""The samples in pairs: each fault is there, its twin lacks it and nothing else.

What a fault looks like is read from the rows of the captures with SQL and loops, not with tracekit.
"""

import json
import sqlite3
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import oracle
import pytest

import tracekit

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
LOSSES = ("exposed_comm_ns", "exposed_copy_ns", "idle_ns")


@cache
def truth(name, folder=SAMPLES):
    return json.loads((folder / f"{name}.expected.json").read_text())


PAIRED = [name for name in NAMES if truth(name)["without_fault"]]
ALONE = [name for name in PAIRED if not truth(name)["may"]]
"""Faults that nothing comes along with."""


@cache
def analysis(name, folder=SAMPLES):
    return tracekit.analyze(tracekit.open(*(folder / path for path in truth(name, folder)["captures"])))


def fault_and_twin(name, twins):
    """((folder, name) of the fault, the same of its twin)."""
    return (SAMPLES, name), (twins, f"{name}_fixed")


def query(folder, rank, sql):
    """Rows of a rank's capture; ``{process}`` selects its process by globalTid or globalPid."""
    database = sqlite3.connect(f"file:{folder / rank['capture']}?mode=ro&immutable=1", uri=True)
    try:
        return database.execute(sql.replace("{process}", f">> 24 & 0xFFFFFF = {rank['pid']}")).fetchall()
    finally:
        database.close()


def ranks(folder, name):
    return list(truth(name, folder)["ranks"].values())


def in_steady_steps(rank, folder, name):
    """(start, end) of the rank's steady steps together."""
    steady = truth(name, folder)["steady"]["steps"]
    steps = [step for step in rank["steps"] if step["step"] in steady]
    return steps[0]["start_ns"], steps[-1]["end_ns"]


OPERATIONS = """
    SELECT op.start, op."end", call.start AS launched, call."end", op.streamId, op.kind, op.name, op.shape, op.bytes,
        call.globalTid
    FROM (
        SELECT start, "end", streamId, correlationId, globalPid,
            iif(value LIKE 'nccl%', 'comm', 'compute') AS kind, value AS name,
            gridX || 'x' || gridY || 'x' || gridZ AS shape, 0 AS bytes
        FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
        UNION ALL
        SELECT start, "end", streamId, correlationId, globalPid, 'copy',
            copyKind || ':' || srcKind || ':' || dstKind, '', bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY
    ) AS op
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.correlationId = op.correlationId
        AND call.globalTid >> 24 = op.globalPid >> 24 AND call.eventClass = 0
    WHERE op.globalPid {process} ORDER BY op.start, op."end"
"""


class Operation:
    def __init__(self, row):
        self.start, self.end, self.launched, self.returned, self.stream, self.kind, self.name, self.shape = row[:8]
        self.bytes, self.thread = row[8:]

    @property
    def ns(self):
        return self.end - self.start


@cache
def operations(folder, name, number=0):
    """The operations of a rank in its steady steps, by start."""
    rank = ranks(folder, name)[number]
    low, high = in_steady_steps(rank, folder, name)
    return [op for op in map(Operation, query(folder, rank, OPERATIONS)) if low <= op.start < high]


@cache
def calls(folder, name, number=0):
    """(start, end, name, thread, error) of the CUDA calls of a rank in its steady steps, by start."""
    rank = ranks(folder, name)[number]
    low, high = in_steady_steps(rank, folder, name)
    sql = """SELECT start, "end", value, globalTid, returnValue FROM CUPTI_ACTIVITY_KIND_RUNTIME
             JOIN StringIds ON id = nameId WHERE globalTid {process} ORDER BY start"""
    return [row for row in query(folder, rank, sql) if low <= row[0] < high]


def covered(op, others):
    """Time of an operation during which one of the others runs; these do not overlap each other."""
    return sum(max(0, min(op.end, other.end) - max(op.start, other.start)) for other in others)


def exposed(folder, name, kernel):
    """Time a step in which a collective of a kind runs and nothing computes on any stream, of rank 0."""
    found = operations(folder, name)
    changes = defaultdict(lambda: [0, 0])
    for op in found:
        if op.kind == "compute" or (op.kind == "comm" and kernel in op.name):
            changes[op.start][op.kind == "comm"] += 1
            changes[op.end][op.kind == "comm"] -= 1
    total = before = computing = communicating = 0
    for at in sorted(changes):
        total += at - before if communicating and not computing else 0
        computing += changes[at][0]
        communicating += changes[at][1]
        before = at
    return total / len(truth(name, folder)["steady"]["steps"])


# --- the pairs as such ---


def test_there_is_a_pair_for_each_kind_of_fault():
    codes = {code for name in PAIRED for code in truth(name)["findings"]}
    assert codes >= {f"TK{n}" for n in (*range(101, 108 + 1), *range(109, 114), *range(401, 406), 407, 408, 413, 414)}


@pytest.mark.parametrize("name", PAIRED)
def test_the_twin_is_what_the_truth_says_of_it(name, twins):
    twin = truth(f"{name}_fixed", twins)
    assert twin["steady"] == truth(name)["without_fault"]
    assert twin["findings"] == []


def test_twins_are_made_the_same_every_time(tmp_path, twins):
    command = [sys.executable, str(SAMPLES / "make.py"), "--fixed", "--out", str(tmp_path), "contention", "sync_call"]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (twins / path.name).read_bytes()


def test_what_has_no_twin_is_named(tmp_path):
    command = [sys.executable, str(SAMPLES / "make.py"), "--fixed", "--out", str(tmp_path), "fsdp2_overlapped"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "fsdp2_overlapped" in run.stderr
    assert "Traceback" not in run.stderr


def mean_step(steady):
    return steady["sums"]["wall_ns"] / steady["windows"]


@pytest.mark.parametrize("name", PAIRED)
def test_the_fault_costs_time(name):
    least = 0.015 if truth(name)["straggler"]["cause"] == "link" else 0.02
    assert mean_step(truth(name)["steady"]) > (1 + least) * mean_step(truth(name)["without_fault"])


@pytest.mark.parametrize("name", ALONE)
def test_without_the_fault_next_to_nothing_is_lost(name):
    sums = truth(name)["without_fault"]["sums"]
    assert sum(sums[loss] for loss in LOSSES) < 0.04 * sums["wall_ns"]
    assert sums["exposed_comm_ns"] < 0.02 * sums["wall_ns"]


CHANGED_COMPUTE = {"contention", "recompute", "transfer_bound"}
"""Faults that are in the kernels; and parameters of one byte are copied faster."""


@pytest.mark.parametrize("name", [name for name in ALONE if name not in CHANGED_COMPUTE])
def test_the_twin_computes_the_same(name, twins):
    (_, fault), (_, twin) = fault_and_twin(name, twins)
    compute = [
        steady["sums"]["compute_ns"] / steady["windows"]
        for steady in (truth(fault)["steady"], truth(twin, twins)["steady"])
    ]
    # The union over streams: kernels that run side by side in one of them can follow each other in the other.
    assert compute[0] == pytest.approx(compute[1], rel=0.03)


@pytest.mark.parametrize("name", PAIRED)
def test_operations_follow_launches_and_streams(name, twins):
    """Nothing runs before it is launched, nor beside its own stream's other work; on a rank's GPU as on its twin's."""
    for folder, found in fault_and_twin(name, twins):
        for number in range(len(ranks(folder, found))):
            free = defaultdict(int)
            for op in operations(folder, found, number):
                # A copy from ordinary memory is over before its call returns.
                assert op.start >= (op.launched if op.kind == "copy" else op.returned)
                assert op.start >= free[op.stream]
                free[op.stream] = op.end


@pytest.mark.parametrize("name", PAIRED)
def test_accounts_of_the_twin(name, twins):
    found, true = analysis(f"{name}_fixed", twins), truth(f"{name}_fixed", twins)
    for rank in found.ranks:
        expected = true["ranks"][str(rank.rank)]
        assert asdict(rank.totals) == {field: expected["totals"][field] for field in oracle.FIELDS}
        assert [step.account.idle_ns for step in rank.steps] == [step["idle_ns"] for step in expected["steps"]]


# --- what each fault looks like ---


def test_prefetch_is_off_in_one_direction(twins):
    for name, direction in (("forward_prefetch_off", "forward"), ("backward_prefetch_off", "backward")):
        for phase in ("forward", "backward"):
            shares = []
            for folder, found in fault_and_twin(name, twins):
                steps = [step for step in ranks(folder, found)[0]["steps"] if step["step"]]
                shares.append(statistics.mean(step["by_phase"][phase]["exposed_comm_ns"] for step in steps))
            assert (shares[0] - shares[1] > 800_000) == (phase == direction)


def starts_in_order_of_launches(folder, name):
    kernels = sorted((op for op in operations(folder, name) if op.kind != "copy"), key=lambda op: op.launched)
    return all(one.start <= other.start for one, other in pairwise(kernels))


def test_on_one_queue_operations_start_in_the_order_of_their_launches(twins):
    fault, twin = fault_and_twin("launch_order", twins)
    assert starts_in_order_of_launches(*fault)
    assert not starts_in_order_of_launches(*twin)
    reductions = [op for op in operations(*fault) if "ReduceScatter" in op.name]
    computes = [op for op in operations(*fault) if op.kind == "compute"]
    for one in reductions:
        assert not any(one.start + 1_000 < op.start < one.end for op in computes)


def queued_behind(folder, name):
    """How often a step an all-gather begins within 5 us of a reduce-scatter's end, though launched long before."""
    found = [op for op in operations(folder, name) if op.kind == "comm"]
    pairs = [
        (one, other)
        for one in found
        for other in found
        if "ReduceScatter" in one.name and "AllGather" in other.name and 0 <= other.start - one.end <= 5_000
    ]
    return sum(other.launched < one.end for one, other in pairs) / len(truth(name, folder)["steady"]["steps"])


def test_gathers_queue_behind_reductions_of_the_same_communicator(twins):
    fault, twin = fault_and_twin("shared_communicator", twins)
    assert queued_behind(*fault) == 3
    assert queued_behind(*twin) == 0
    assert exposed(*fault, "AllGather") > 4 * exposed(*twin, "AllGather")


def test_tiny_collectives_are_tiny(twins):
    fault, twin = fault_and_twin("tiny_collectives", twins)
    gathers = [[op for op in operations(*side) if "AllGather" in op.name] for side in (fault, twin)]
    medians = [statistics.median(op.ns for op in side) for side in gathers]
    assert medians[0] < 50_000 < medians[1]
    assert len(gathers[0]) > 15 * len(gathers[1])


def test_the_first_gather_is_long(twins):
    longest = []
    for folder, found in fault_and_twin("root_gather", twins):
        ends = [step["end_ns"] for step in ranks(folder, found)[0]["steps"][1:-1]]
        gathers = [op for op in operations(folder, found) if "AllGather" in op.name]
        longest.append([max(op.ns for op in gathers if abs(op.end - end) < 200_000) for end in ends])
    assert min(longest[0]) > 20 * max(longest[1])


def test_the_last_bucket_is_exposed(twins):
    fault, twin = fault_and_twin("last_bucket", twins)
    assert exposed(*fault, "AllReduce") > 2.5 * exposed(*twin, "AllReduce")


def test_nccl_is_on_the_stream_that_computes(twins):
    for (folder, found), same in zip(fault_and_twin("nccl_on_compute_stream", twins), (True, False), strict=True):
        main = ranks(folder, found)[0]["main_stream"]
        assert {op.stream == main for op in operations(folder, found) if op.kind == "comm"} == {same}


NVLINK_GB_PER_S = 450
"""In one direction, by the data sheet of an H100."""


def test_transfers_are_bound_by_the_link():
    (gathers,) = (item for item in truth("transfer_bound")["collectives"] if item["op"] == "all_gather")
    assert 0.8 < 0.5 * gathers["full_bytes"] / gathers["transfer_ns"] / NVLINK_GB_PER_S < 1


def test_parameters_are_gathered_after_the_optimizer_or_under_the_forward_pass(twins):
    fault, twin = fault_and_twin("gather_after_step", twins)
    assert exposed(*fault, "AllGather") > 4 * exposed(*twin, "AllGather")


@pytest.mark.parametrize(
    ("name", "kernel", "times"), [("accumulation", "AllReduce", 4), ("hsdp_accumulation", "AllReduce", 3)]
)
def test_gradients_are_reduced_in_each_microbatch(name, kernel, times, twins):
    fault, twin = fault_and_twin(name, twins)
    counts = [sum(kernel in op.name for op in operations(*side)) for side in (fault, twin)]
    assert counts[0] == times * counts[1]


def slowdowns(folder, name):
    """How much longer kernels take that ran wholly beside a collective than the same alone; one figure a kernel."""
    found = operations(folder, name)
    collectives = [op for op in found if op.kind == "comm"]
    alone, beside = defaultdict(list), defaultdict(list)
    for op in found:
        if op.kind == "compute" and op.ns > 20_000:
            share = covered(op, collectives) / op.ns
            if share in (0, 1):
                (beside if share else alone)[op.name, op.shape].append(op.ns)
    # One name and grid can be two matrices with another inner dimension.
    both = [key for key in alone.keys() & beside.keys() if max(alone[key]) < 1.02 * min(alone[key])]
    assert len(both) >= 5
    return [statistics.median(beside[key]) / statistics.median(alone[key]) for key in both]


def test_kernels_beside_collectives_are_slow(twins):
    fault, twin = fault_and_twin("contention", twins)
    assert slowdowns(*fault) == pytest.approx([1.35] * len(slowdowns(*fault)), rel=0.01)
    assert slowdowns(*twin) == pytest.approx([1.0] * len(slowdowns(*twin)), rel=0.01)


def named(folder, name, call):
    return [row for row in calls(folder, name) if row[2].startswith(call)]


def test_hosts_call_what_they_are_said_to(twins):
    """(name, calls in the steady steps): in the fault, and in its twin."""
    for name, call, a_step in (
        ("sync_call", "cudaStreamSynchronize", 4),
        ("allocator_retries", "cudaFree", 3),
        ("allocator_retries", "cudaMalloc", 2),
        ("rate_limiter", "cudaEventSynchronize", None),
        ("pageable_copy", "cudaStreamSynchronize", 1),
    ):
        fault, twin = fault_and_twin(name, twins)
        steps = len(truth(name)["steady"]["steps"])
        if a_step is None:
            assert len(named(*fault, call)) > 3 * len(named(*twin, call))
        else:
            assert abs(len(named(*fault, call)) - a_step * steps) <= a_step
            assert not named(*twin, call)


def test_the_rate_limiter_comes_right_before_gathers(twins):
    """Of the gathers of layers: the thread's last call before the launch, but for those of the events around it."""
    for (folder, found), limited in zip(fault_and_twin("rate_limiter", twins), (True, False), strict=True):
        waits = [row for row in calls(folder, found) if row[2].startswith("cudaEventSynchronize")]
        late = [op for op in operations(folder, found) if "AllGather" in op.name and op.ns > 500_000]
        near = [any(0 < op.launched - end < 50_000 for _, end, *_ in waits) for op in late]
        assert (sum(near) >= 0.3 * len(near)) == limited


def host_memory(folder, name, kind):
    """Kinds of host memory (0 pageable, 1 pinned) of the larger copies of a kind (1 to the device, 2 to the host)."""
    names = {op.name for op in operations(folder, name) if op.kind == "copy" and op.bytes > 1_000_000}
    return {memory.split(":")[kind] for memory in names if memory.startswith(f"{kind}:")}


def test_copies_use_the_memory_that_they_are_said_to(twins):
    for name, kind in (("pageable_copy", 1), ("checkpoint_save", 2)):
        fault, twin = fault_and_twin(name, twins)
        assert host_memory(*fault, kind) == {"0"}
        assert host_memory(*twin, kind) == {"1"}


def test_a_checkpoint_is_saved_between_steps():
    """Large copies to the host are launched outside all step ranges, behind every second step."""
    rank = ranks(SAMPLES, "checkpoint_save")[0]
    sql = """SELECT start, "end", int64Value FROM NVTX_EVENTS JOIN StringIds ON id = textId
             WHERE value = 'step' AND globalTid {process} ORDER BY start"""
    steps = query(SAMPLES, rank, sql)
    saved = [op for op in operations(SAMPLES, "checkpoint_save") if op.kind == "copy" and op.bytes > 1_000_000]
    behind = {max(number for start, _, number in steps if start < op.launched) for op in saved}
    assert behind == {2, 4}
    assert not any(start <= op.launched <= end for op in saved for start, end, _ in steps)


def test_a_late_data_loader_makes_no_call(twins):
    gaps = []
    for folder, found in fault_and_twin("slow_loader", twins):
        gaps.append(max(after[0] - before[1] for before, after in pairwise(calls(folder, found))))
    assert gaps[0] > 40_000_000
    assert gaps[1] < 38_000_000


def test_offloaded_activations_are_copied_where_it_computes(twins):
    for (folder, found), same in zip(fault_and_twin("offload", twins), (True, False), strict=True):
        main = ranks(folder, found)[0]["main_stream"]
        copies = [op for op in operations(folder, found) if op.kind == "copy" and op.bytes > 1_000_000]
        assert len(copies) == 2 * 4 * len(truth(found, folder)["steady"]["steps"])
        assert {op.stream == main for op in copies} == {same}


def test_recomputation_runs_the_forward_pass_again(twins):
    fault, twin = fault_and_twin("recompute", twins)
    counts = [sum("flash_fwd" in op.name for op in operations(*side)) for side in (fault, twin)]
    assert counts[0] == 2 * counts[1]


def test_a_graph_takes_one_launch(twins):
    fault, twin = fault_and_twin("launch_bound", twins)
    steps = [len(truth(found, folder)["steady"]["steps"]) for folder, found in (fault, twin)]
    kernels, launches = (
        [len(list(filter(wanted, of(*side)))) / count for side, count in zip((fault, twin), steps, strict=True)]
        for of, wanted in ((operations, lambda op: op.kind == "compute"), (calls, lambda row: "Launch" in row[2]))
    )
    assert kernels[0] == pytest.approx(kernels[1], rel=0.02)
    assert launches[0] > 15 * launches[1]
