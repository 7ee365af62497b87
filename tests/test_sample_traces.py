"""The sample traces: that they can be made again, and that they are what they say they are."""

import csv
import io
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
MIB = 2**20
COLLECTIVE_END_SPREAD_NS = 50
EXPORT_KEYS_THAT_NAME_SOMEONE = ("HOST", "USER", "PATH", "FILE", "ENVIRONMENT")


def expected(name, folder=SAMPLES):
    return json.loads((folder / f"{name}.expected.json").read_text())


def captures(name, folder=SAMPLES):
    return [folder / path for path in expected(name, folder)["captures"]]


def query(path, sql):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()


def tables(path):
    return [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def dump(path):
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return list(database.iterdump())
    finally:
        database.close()


@pytest.fixture(scope="module")
def remade(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return folder


def test_every_sample_is_committed(remade):
    made = {path.relative_to(remade) for path in remade.rglob("*") if path.is_file()}
    committed = {path.relative_to(SAMPLES) for path in SAMPLES.rglob("*") if path.suffix in (".sqlite", ".json")}
    committed = {path for path in committed if path.parts[0] != "recorded"}
    assert made == committed


@pytest.mark.parametrize("name", NAMES)
def test_making_a_sample_again_gives_the_same(name, remade):
    assert expected(name, remade) == expected(name)
    for again, committed in zip(captures(name, remade), captures(name), strict=True):
        assert dump(again) == dump(committed)


def test_one_sample_can_be_made_alone(tmp_path):
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(tmp_path), "launch_bound"]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch_bound.expected.json", "launch_bound.sqlite"]


def test_an_unknown_sample_is_named(tmp_path):
    command = [sys.executable, str(SAMPLES / "make.py"), "--out", str(tmp_path), "nonsense"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "nonsense" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_program_does_not_import_what_it_checks():
    for source in SAMPLES.glob("*.py"):
        lines = [line.split() for line in source.read_text().splitlines()]
        assert not [line for line in lines if line[:1] in (["import"], ["from"]) and "tracekit" in line[1]], source.name


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_small_and_name_nobody(name):
    for path in captures(name):
        assert path.stat().st_size <= MIB
        assert "TARGET_INFO_SYSTEM_ENV" not in tables(path)
        for table in {"META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA"} & set(tables(path)):
            for key, _ in query(path, f"SELECT name, value FROM {table}"):
                assert not any(word in key for word in EXPORT_KEYS_THAT_NAME_SOMEONE), key
        assert {name for (name,) in query(path, "SELECT DISTINCT name FROM PROCESSES")} == {"python3"}


def test_the_samples_together_are_small():
    made = [path for path in SAMPLES.rglob("*") if path.suffix in (".sqlite", ".json")]
    assert sum(path.stat().st_size for path in made) <= 22 * MIB


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_adds_up(name):
    truth = expected(name)
    for rank in truth["ranks"].values():
        phases = [phase for step in rank["steps"] for phase in step.get("by_phase", {}).values()]
        for window in [rank["totals"], *rank["steps"], *phases]:
            parts = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
            assert sum(window[part] for part in parts) == window["wall_ns"]
            assert window["comm_ns"] == window["exposed_comm_ns"] + window["overlapped_comm_ns"]
        for step, following in zip(rank["steps"], rank["steps"][1:], strict=False):
            assert step["end_ns"] == following["start_ns"]
        for step in rank["steps"]:
            assert step["wall_ns"] == step["end_ns"] - step["start_ns"]
            if "by_phase" in step:
                assert sum(phase["wall_ns"] for phase in step["by_phase"].values()) == step["wall_ns"]
    exposed = sum(rank["totals"]["exposed_comm_ns"] for rank in truth["ranks"].values())
    assert sum(item["exposed_ns"] for item in truth["collectives"]) == exposed


GPU_TABLES = {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")}


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_agrees_with_the_rows(name):
    """By SQL over the written rows: the window, the measure of all communication and how often each ran."""
    truth = expected(name)
    for rank in truth["ranks"].values():
        path = SAMPLES / rank["capture"]
        mine = f"WHERE deviceId = {rank['device']} AND globalPid >> 24 & 0xFFFFFF = {rank['pid']}"
        present = GPU_TABLES & set(tables(path))
        spans = [query(path, f'SELECT min(start), max("end") FROM {table} {mine}')[0] for table in present]
        assert max(end for _, end in spans) - min(start for start, _ in spans) == rank["totals"]["wall_ns"]
        nccl = query(
            path,
            f"""SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_KERNEL
                JOIN StringIds ON id = demangledName {mine} AND value LIKE 'nccl%'""",
        )
        assert (len(nccl), measure(nccl)) == (rank["collectives"], rank["totals"]["comm_ns"])


def measure(spans):
    """Time that at least one of the spans covers, counted point by point between their ends."""
    changes = defaultdict(int)
    for start, end in spans:
        changes[start] += 1
        changes[end] -= 1
    total = running = before = 0
    for at in sorted(changes):
        total += at - before if running else 0
        running, before = running + changes[at], at
    return total


@pytest.mark.parametrize("name", [name for name in NAMES if len(captures(name)) == 1])
def test_correlation_ids_repeat_across_processes(name):
    (path,) = captures(name)
    sql = "SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid >> 24 & 0xFFFFFF = {}"
    ids = [set(query(path, sql.format(rank["pid"]))) for rank in expected(name)["ranks"].values()]
    assert all(a & b for a, b in combinations(ids, 2))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_has_its_launch_before_it(name):
    for path in captures(name):
        for table in GPU_TABLES & set(tables(path)):
            sql = f"""SELECT count(*), sum(launch.start < op.start) FROM {table} AS op
                      JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS launch ON launch.correlationId = op.correlationId
                      AND launch.globalTid >> 24 = op.globalPid >> 24 AND launch.eventClass = 0"""
            (operations,) = query(path, f"SELECT count(*) FROM {table}")
            assert query(path, sql) == [(operations[0], operations[0])]


NCCL_NAMES = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}


def collectives_of_rank(rank, op):
    """(start, end, launch) of a rank's collectives of an operation, by start, on the clock of rank 0's capture."""
    sql = f"""SELECT op.start, op."end", launch.start FROM CUPTI_ACTIVITY_KIND_KERNEL AS op
              JOIN StringIds ON id = demangledName
              JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS launch ON launch.correlationId = op.correlationId
              AND launch.globalTid >> 24 = op.globalPid >> 24 AND launch.eventClass = 0
              WHERE value LIKE 'nccl%{NCCL_NAMES[op]}%' AND op.globalPid >> 24 & 0xFFFFFF = {rank["pid"]} ORDER BY 1"""

    def on_first_clock(t):
        return t - rank["clock_offset_ns"] - rank["drift_ppm"] * (t - rank["clock_at_ns"]) / 1e6

    return [tuple(on_first_clock(t) for t in row) for row in query(SAMPLES / rank["capture"], sql)]


def matched(truth, collective):
    """The collectives of an entry, each as {rank: (start, end, launch)}: those that end together are one."""
    members = {rank: collectives_of_rank(truth["ranks"][str(rank)], collective["op"]) for rank in collective["ranks"]}
    most = max(members.values(), key=len)
    ends = [end for _, end, _ in most]
    together = [{} for _ in ends]
    for rank, items in members.items():
        for item in items:
            after = min(bisect_left(ends, item[1]), len(ends) - 1)
            before = max(after - 1, 0)
            nearest = after if ends[after] - item[1] < item[1] - ends[before] else before
            assert rank not in together[nearest]
            together[nearest][rank] = item
    return together


@pytest.mark.parametrize("name", NAMES)
def test_collectives_end_together(name):
    """On rank 0's clock the NCCL kernels of one collective end at the same time on all its members."""
    truth = expected(name)
    for collective in truth["collectives"]:
        found = matched(truth, collective)
        # By kernel names and ranks alone two communicators of the same ranks are one.
        kind = (collective["op"], collective["ranks"])
        assert len(found) == sum(c["count"] for c in truth["collectives"] if (c["op"], c["ranks"]) == kind)
        for items in found:
            ends = [end for _, end, _ in items.values()]
            assert max(ends) - min(ends) <= COLLECTIVE_END_SPREAD_NS


def steady_on_first_clock(truth):
    """The host's time from the start of the first steady step of rank 0 to the end of the last one."""
    rank = truth["ranks"]["0"]
    sql = f"""SELECT min(start), max("end") FROM NVTX_EVENTS JOIN StringIds ON id = textId
              WHERE value = 'step' AND globalTid >> 24 & 0xFFFFFF = {rank["pid"]}
              AND int64Value IN ({", ".join(map(str, truth["steady"]["steps"]))})"""
    return query(SAMPLES / rank["capture"], sql)[0]


WAITED = [name for name in NAMES if expected(name)["straggler"]["cause"]]


@pytest.mark.parametrize("name", WAITED)
def test_peer_waits_follow_from_the_rows(name):
    """From arrivals in the written rows, brought to one clock: who waits, and who was the last when they waited."""
    truth = expected(name)
    first, last = steady_on_first_clock(truth)
    waits, caused = dict.fromkeys(truth["ranks"], 0), dict.fromkeys(truth["ranks"], 0)
    counted = 0
    for collective in truth["collectives"]:
        for items in matched(truth, collective):
            launches = [launch for _, _, launch in items.values()]
            if len(items) < len(collective["ranks"]) or not first <= statistics.median(launches) <= last:
                continue
            counted += 1
            latest = max(items, key=lambda rank: items[rank][0])
            for rank, (start, _, _) in items.items():
                waits[str(rank)] += items[latest][0] - start
                caused[str(latest)] += items[latest][0] - start
    # Each time is rounded to a whole ns on a drifting clock; where two arrive together, either can be the last.
    assert waits == pytest.approx(truth["peer_waits"]["by_rank_ns"], abs=3 * counted)
    assert caused == pytest.approx(truth["peer_waits"]["by_last_rank_ns"], abs=3 * counted * len(waits))


def mean_compute(rank, steady):
    return statistics.mean(step["compute_ns"] for step in rank["steps"] if step["step"] in steady)


def exposed_wait_share(truth):
    """Mean exposed wait of a rank in a step, over the step's time."""
    waits = truth["peer_waits"]["exposed_by_rank_ns"].values()
    steady = truth["steady"]
    return sum(waits) / len(waits) / len(steady["steps"]) / steady["step_time_ns"]


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_what_the_layout_shows(name):
    """GIVEN the definitions of imbalance, own compute and last arrivals, THEN the planted verdict follows from them."""
    truth = expected(name)
    straggler, waits = truth["straggler"], truth["peer_waits"]
    steady = truth["steady"]["steps"]
    compute = {rank: mean_compute(item, steady) for rank, item in truth["ranks"].items()}
    share = {rank: ns / sum(waits["by_last_rank_ns"].values()) for rank, ns in waits["by_last_rank_ns"].items()}
    if straggler["verdict"] == "none":
        assert exposed_wait_share(truth) < 0.02
        assert straggler["step_time_without_ns"] is None or straggler["cause"] == "link"
        return
    assert exposed_wait_share(truth) > 0.02
    assert straggler["step_time_without_ns"] < truth["steady"]["step_time_ns"]
    if straggler["verdict"] == "rotating":
        assert straggler["rank"] is None
        assert max(share.values()) < 0.4
        return
    culprit = str(straggler["rank"])
    assert straggler["rank"] == truth["fault_rank"]
    assert max(share, key=share.get) == culprit
    assert waits["by_rank_ns"][culprit] < 0.25 * statistics.median(waits["by_rank_ns"].values())
    own = compute[culprit] / statistics.median(compute.values())
    assert own > 1.05 if straggler["cause"] == "slow_compute" else own == pytest.approx(1, abs=0.01)


def test_on_four_hosts_most_ranks_wait_for_one_that_waited_itself():
    """The slow rank is last at less than half of the waits: its neighbours pass its delay on to the other hosts."""
    waits = expected("straggler_32ranks_4nodes")["peer_waits"]
    total = sum(waits["by_last_rank_ns"].values())
    assert waits["by_last_rank_ns"]["19"] < 0.5 * total
    neighbours = [str(rank) for rank in range(16, 24)]
    assert sum(waits["by_last_rank_ns"][rank] for rank in neighbours) > 0.9 * total


def test_sequences_vary_together_in_both_directions():
    truth = expected("sequence_length")
    phases = [
        step["by_phase"]
        for rank in truth["ranks"].values()
        for step in rank["steps"]
        if step["step"] in truth["steady"]["steps"]
    ]
    forward = [phase["forward"]["compute_ns"] for phase in phases]
    backward = [phase["backward"]["compute_ns"] for phase in phases]
    assert statistics.stdev(forward) / statistics.mean(forward) >= 0.1
    assert statistics.stdev(backward) / statistics.mean(backward) >= 0.1
    assert statistics.correlation(forward, backward) >= 0.9


def test_one_link_is_three_times_as_slow():
    truth = expected("slow_link")
    reductions = {tuple(item["ranks"]): item for item in truth["collectives"] if item["op"] == "all_reduce"}
    slow, usual = reductions[1, 3], reductions[0, 2]
    assert slow["full_bytes_sum"] == usual["full_bytes_sum"]
    assert slow["transfer_ns"] / usual["transfer_ns"] == pytest.approx(3, rel=0.03)
    assert max(slow["steady_peer_wait_by_rank_ns"].values()) < 0.01 * slow["comm_ns"]


def test_the_slowest_of_healthy_ranks_is_nearly_always_last():
    """At collectives of steady steps at which anyone is late by more than the launches' own noise, 2 us."""
    truth = expected("healthy_8ranks")
    first, _ = steady_on_first_clock(truth)
    found = [items for collective in truth["collectives"] for items in matched(truth, collective)]
    last = []
    for items in found:
        arrivals = {rank: start for rank, (start, _, launch) in items.items() if launch >= first}
        if arrivals and max(arrivals.values()) - min(arrivals.values()) > 2_000:
            last.append(max(arrivals, key=arrivals.get))
    assert len(last) > 10
    assert last.count(5) > 0.8 * len(last)


def gaps_between_calls(rank, step):
    """The longest time without a CUDA call in a step of a rank's host, in ms."""
    sql = f"""SELECT start, "end" FROM NVTX_EVENTS JOIN StringIds ON id = textId
              WHERE value = 'step' AND int64Value = {step} AND globalTid >> 24 & 0xFFFFFF = {rank["pid"]}"""
    path = SAMPLES / rank["capture"]
    ((first, last),) = query(path, sql)
    sql = f"""SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start BETWEEN {first} AND {last}
              AND globalTid >> 24 & 0xFFFFFF = {rank["pid"]} ORDER BY start"""
    calls = query(path, sql)
    ends, starts = [first, *(end for _, end in calls)], [*(start for start, _ in calls), last]
    return max(start - end for start, end in zip(starts, ends, strict=True)) / 1e6


@pytest.mark.parametrize(("name", "least_ms"), [("gc_pauses", 7), ("data_stall", 8), ("host_stall_rank", 2.5)])
def test_hosts_pause_where_they_are_said_to(name, least_ms):
    truth = expected(name)
    pausing = []
    for step in truth["steady"]["steps"]:
        gaps = {rank: gaps_between_calls(item, step) for rank, item in truth["ranks"].items()}
        pausing.append([int(rank) for rank, gap in gaps.items() if gap > 1])
        assert all(gap > least_ms for gap in gaps.values() if gap > 1)
    if truth["straggler"]["verdict"] == "rotating":
        assert all(len(ranks) == 1 for ranks in pausing)
        assert all(a != b for a, b in pairwise(pausing))
    else:
        assert pausing == [[truth["fault_rank"]]] * len(pausing)


def test_ragged_captures_begin_and_end_at_different_collectives():
    truth = expected("straggler_ragged")
    steps = {rank: [step["step"] for step in item["steps"]] for rank, item in truth["ranks"].items()}
    assert steps["0"] == steps["2"] == [0, 1, 2, 3, 4, 5, 6]
    assert steps["1"] == [2, 3, 4, 5, 6]
    assert steps["3"] == [0, 1, 2, 3, 4, 5]
    counts = {rank: item["collectives"] for rank, item in truth["ranks"].items()}
    a_step = counts["0"] // 7
    assert counts["3"] == counts["0"] - a_step
    assert a_step < counts["0"] - counts["1"] < 2 * a_step
    (moments,) = query(
        SAMPLES / truth["ranks"]["3"]["capture"],
        "SELECT utcEpochNs - startTime FROM TARGET_INFO_SESSION_START_TIME, ANALYSIS_DETAILS",
    )
    (others,) = query(
        SAMPLES / truth["ranks"]["0"]["capture"],
        "SELECT utcEpochNs - startTime FROM TARGET_INFO_SESSION_START_TIME, ANALYSIS_DETAILS",
    )
    coarse = others[0] - moments[0]
    assert abs(coarse - truth["ranks"]["3"]["clock_offset_ns"]) == pytest.approx(5e9, abs=2e6)


def nccl_payloads(path):
    sql = """SELECT value, binaryData FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE binaryData IS NOT NULL"""
    return query(path, sql)


def test_payloads_carry_communicator_and_message_bytes():
    """GIVEN zero1, WHEN the blobs are unpacked by hand, THEN they hold what NCCL's payload is documented to hold."""
    truth = expected("zero1")
    by_op = {item["op"]: item for item in truth["collectives"]}
    (path,) = captures("zero1")
    seen = set()
    for name, blob in nccl_payloads(path):
        schema, size, offset = (int.from_bytes(blob[at : at + 8], "little") for at in (8, 16, 24))
        assert (offset, len(blob)) == (32, 32 + size)
        communicator = f"0x{int.from_bytes(blob[32:40], 'little'):016x}"
        seen.add((name, schema - 2**24, communicator, int.from_bytes(blob[40:48], "little")))
    gather, reduce = by_op["all_gather"], by_op["all_reduce"]
    assert ("ncclAllGather", 4, gather["communicator"], gather["full_bytes"] // 4) in seen
    assert ("ncclAllReduce", 5, reduce["communicator"], reduce["full_bytes"]) in seen
    assert {name for name, *_ in seen} == {"ncclAllGather", "ncclAllReduce", "ncclCommInitRankConfig"}


KERNEL_REPORTS = ("cuda_gpu_kern_sum", "gpukernsum")


def kernel_sum(path, report):
    """Total time of the kernel summary that `nsys stats` prints; None where this nsys does not know the report."""
    command = ["nsys", "stats", "--report", report, "--format", "csv", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = run.stdout.splitlines()
    header = next((at for at, line in enumerate(lines) if "Total Time (ns)" in line), None)
    if header is None:
        return None
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))
    return sum(int(row["Total Time (ns)"]) for row in rows if row["Total Time (ns)"])


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="the nsys command is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_nsys_stats_reads_the_same_kernel_time(name, tmp_path):
    for path in captures(name):
        copy = shutil.copy(path, tmp_path / path.name)  # nsys may write beside or into what it reads
        totals = [total for report in KERNEL_REPORTS if (total := kernel_sum(copy, report)) is not None]
        assert totals == [expected(name)["kernels"][str(path.relative_to(SAMPLES))]["sum_ns"]]
