"""Evidence of hangs from captures: the samples with known truth, real captures that do not hang, and made cases."""

import json
from pathlib import Path

import numpy as np
import pytest
from nsys_builder import Export, nccl_header, small_job

import tracekit
from tracekit.config import DEFAULT
from tracekit.evidence import UNKNOWN, State
from tracekit.metrics.hangs import diagnose
from tracekit.metrics.hangs.from_captures import evidence_of, may_stand_still
from tracekit.metrics.hangs.issued import torch_op

SAMPLES = Path(__file__).parents[2] / "sample_traces"
EXPECTED = {
    str(path.relative_to(SAMPLES)).removesuffix(".expected.json"): json.loads(path.read_text())
    for path in SAMPLES.rglob("*.expected.json")
}
HANGS = sorted(name for name, truth in EXPECTED.items() if "hang" in truth)
HEALTHY = sorted(EXPECTED.keys() - set(HANGS))
S = 1_000_000_000


def evidence(name):
    paths = [SAMPLES / path for path in EXPECTED[name]["captures"]]
    return evidence_of(tracekit.open(*paths, require_ranks=False))


def verdict(found):
    return diagnose(found, DEFAULT).verdict


# --- samples ---


@pytest.mark.parametrize("name", HANGS)
def test_a_planted_hang_is_diagnosed(name):
    truth = EXPECTED[name]["hang"]
    hang = diagnose(evidence(name), DEFAULT)
    assert hang.verdict == truth["verdict"]
    assert set(truth["culprits"]) <= set(hang.culprits)
    if truth["verdict"] == "order_inversion":
        waits = {wait["communicator"]: wait for wait in truth["waits"]}
        assert {edge.communicator for edge in hang.cycle} == set(waits)
        for edge in hang.cycle:
            assert (edge.seq, edge.op) == (waits[edge.communicator]["seq"], waits[edge.communicator]["op"])
            assert edge.rank in waits[edge.communicator]["waiting_ranks"]
            assert edge.waits_for in waits[edge.communicator]["missing_ranks"]
        return
    if truth["verdict"] == "step_desync":
        assert (hang.communicator, hang.seq) == (truth["parts_at"]["communicator"], truth["parts_at"]["seq"])
        return
    assert (hang.communicator, hang.seq, hang.op) == (truth["communicator"], truth["seq"], truth["op"])
    assert (list(hang.waiting_ranks), list(hang.missing_ranks)) == (truth["waiting_ranks"], truth["missing_ranks"])


@pytest.mark.parametrize("name", HANGS)
def test_what_each_rank_did_last(name):
    found = evidence(name)
    for rank in found.ranks:
        said = EXPECTED[name]["hang"]["last_activity"][str(rank.rank)]
        assert list(rank.activity.open_ranges) == said["open_ranges"]
        if said["step"] is not None:
            assert rank.activity.step == said["step"]
        assert rank.activity.idle_ns > 8 * S


def test_how_far_the_collectives_got():
    """GIVEN a gather that one rank never launched, THEN all before it are over and those behind it only issued."""
    truth = EXPECTED["hang_missing_rank"]["hang"]
    for rank in evidence("hang_missing_rank").ranks:
        over = rank.entries.seq < truth["seq"]
        assert np.all(rank.entries.state[over] == State.COMPLETED)
        assert np.all(rank.entries.state[~over] == State.ISSUED)


def test_sizes_are_the_payloads_bytes():
    found = evidence("hang_size_mismatch")
    truth = EXPECTED["hang_size_mismatch"]["hang"]
    for rank in found.ranks:
        (at,) = np.flatnonzero(rank.entries.seq == truth["seq"])
        full = truth["full_bytes"][str(rank.rank)]
        assert (rank.entries.elements_in[at], rank.entries.elements_out[at]) == (full // 4, full)
        assert found.names[rank.entries.dtype[at]] == "byte"


def test_captures_that_end_50_ms_apart_are_put_on_one_clock():
    found = evidence("truncated_captures")
    ends = [rank.end_ns for rank in found.ranks]
    assert ends[0] - ends[1] == pytest.approx(50e6, abs=1e6)
    assert found.interrupted is False


def test_a_capture_that_began_later_counts_from_where_the_others_do():
    """GIVEN rank 1 captured from the middle of its second step on, THEN its ordinals are those of the others."""
    found = evidence("straggler_ragged")
    lengths = [len(rank.entries) for rank in found.ranks]
    assert lengths[1] < lengths[0]
    assert [rank.wrapped for rank in found.ranks] == [False, True, False, False]
    assert found.ranks[1].entries.seq[-1] == found.ranks[0].entries.seq[-1] == lengths[0]
    assert found.ranks[1].entries.seq[0] == lengths[0] - lengths[1] + 1


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_glance_misses_no_hang(name):
    """What takes time is done only where there is a sign: every hang has one, no healthy sample has."""
    paths = [SAMPLES / path for path in EXPECTED[name]["captures"]]
    assert may_stand_still(tracekit.open(*paths, require_ranks=False)) == (name in HANGS)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_samples_do_not_hang(name):
    found = evidence(name)
    assert found.interrupted is False
    assert verdict(found) == "not_a_hang"


# --- real captures ---

REAL = [
    "traces/h100_2gpu_sendrecv.sqlite",  # cut out of a longer capture: the last launches have no kernel
    "traces/h100_2gpu_trimmed.sqlite",
    "traces/hta_128rank",
    "traces/hta_128rank_onereport.sqlite",
    "traces/hta_dlrm_a100_rank3of8.sqlite",
    "traces/tracelens_b200_eager_rank0of8.sqlite",
]


@pytest.mark.parametrize("name", REAL)
def test_real_captures_do_not_hang(name, shared):
    found = evidence_of(tracekit.open(shared / name))
    assert found.interrupted is False
    assert verdict(found) in ("not_a_hang", "undecided")


def test_shared_cases_do_not_hang(shared):
    cases = [path for path in (shared / "cases").iterdir() if path.suffix == ".sqlite" or path.is_dir()]
    assert len(cases) >= 10
    for path in cases:
        assert evidence_of(tracekit.open(path)).interrupted is False


def test_ranks_of_several_communicators_without_names_are_not_compared(shared):
    """Two of 128 ranks that call different collectives: nothing is concluded from that."""
    found = evidence_of(tracekit.open(shared / "traces/hta_128rank_onereport.sqlite"))
    assert [len(rank.entries) for rank in found.ranks] == [0, 0]
    assert "communicators" in found.lacking[0]


# --- made cases ---

GATHER = "ncclDevKernel_AllGather_RING_LL(args)"


def stopped_job(stop_ns, *, open_step=True, ranks=2):
    """One step a rank with an all-gather that rank 0 launched and that never ran; rank 1 did not launch it."""
    export = Export("2026.2")
    export.add("ANALYSIS_DETAILS", duration=stop_ns, startTime=0, stopTime=stop_ns)
    for rank in range(ranks):
        pid = 4000 + rank
        export.domain("NCCL", 5, pid=pid)
        init = nccl_header(24, 2) + (7).to_bytes(8, "little")
        init += b"".join(n.to_bytes(4, "little") for n in (ranks, rank, rank, 0))
        export.range("ncclCommInitRank", 1, 2, pid=pid, domain=5, binaryData=init)
        export.range("train_step 3", 10, None if open_step else 9_500, pid=pid)
        for at in (1_000, 2_000, 3_000)[: 3 - rank]:
            payload = nccl_header(16, 4) + (7).to_bytes(8, "little") + (512).to_bytes(8, "little")
            export.range("ncclAllGather", at, at + 50, pid=pid, domain=5, binaryData=payload)
            if at < 3_000:
                export.kernel(GATHER, at + 100, at + 400, call=(at + 10, at + 20), pid=pid, device=rank, stream=20)
            else:
                export.call(at + 10, at + 20, export.correlation(), pid=pid)
    return export


def read(export, folder):
    return evidence_of(tracekit.open(export.write(folder / "report.sqlite"), require_ranks=False))


def test_a_missing_rank_in_a_small_capture(tmp_path):
    found = read(stopped_job(9 * S), tmp_path)
    hang = diagnose(found, DEFAULT)
    assert found.interrupted is True
    assert (hang.verdict, hang.communicator, hang.seq, hang.missing_ranks) == (
        "missing_rank", "0x0000000000000007", 3, (1,),
    )  # fmt: skip


def test_the_same_right_before_the_capture_ends_is_no_hang(tmp_path):
    found = read(stopped_job(100_000_000), tmp_path)
    assert found.interrupted is False
    assert verdict(found) == "not_a_hang"


def test_without_an_open_range_a_launch_without_kernel_is_a_sign(tmp_path):
    found = read(stopped_job(9 * S, open_step=False), tmp_path)
    assert found.interrupted is True
    assert verdict(found) == "missing_rank"


def test_but_not_in_a_capture_that_begins_in_the_middle_of_work(tmp_path):
    """GIVEN a first kernel without its launch: the rows were cut out of a longer capture, and so the end may be."""
    export = stopped_job(9 * S, open_step=False)
    export.kernel("gemm", 500, 600, pid=4001, device=1)
    assert read(export, tmp_path).interrupted is False


def test_a_rank_at_work_while_others_wait_leaves_it_open(tmp_path):
    """GIVEN rank 1 busy to the end, THEN nobody can say that it would not have come."""
    export = stopped_job(9 * S)
    export.kernel("gemm", 9 * S - 5_000, 9 * S - 1_000, call=(9 * S - 9_000, 9 * S - 8_000), pid=4001, device=1)
    assert read(export, tmp_path).interrupted is None


def test_a_long_step_is_no_hang(tmp_path):
    """GIVEN steps of 4 s, THEN 9 quiet seconds are less than three of them."""
    export = stopped_job(20 * S)
    for rank in range(2):
        for step in range(3):
            export.range(f"train_step {step}", -(3 - step) * 4 * S, -(2 - step) * 4 * S, pid=4000 + rank)
        export.range("user", 10, 11 * S, pid=4000 + rank)
    assert read(export, tmp_path).interrupted is False


def test_a_kernel_that_began_and_never_ended_has_started(tmp_path):
    export = stopped_job(9 * S)
    call = export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][2]
    row = export.kernel(GATHER, 3_100, None, stream=20)
    row["correlationId"] = call["correlationId"]
    (first, _) = read(export, tmp_path).ranks
    assert first.entries.state.tolist() == [State.COMPLETED, State.COMPLETED, State.STARTED]


def test_a_call_that_never_returned_is_told(tmp_path):
    export = stopped_job(9 * S)
    export.call(3_500, None, 0, name="cudaStreamSynchronize_v3020")
    first, second = read(export, tmp_path).ranks
    assert (first.activity.last_call, first.activity.last_call_open) == ("cudaStreamSynchronize", True)
    assert (second.activity.last_call, second.activity.last_call_open) == ("cudaLaunchKernel", False)


def test_the_system_call_that_the_step_waits_in_is_told(tmp_path):
    export = stopped_job(9 * S)
    tid = export.rows["NVTX_EVENTS"][2]["globalTid"]
    name = export.string("recv")
    export.add("OSRT_API", start=3_600, end=9 * S, globalTid=tid, nameId=name)
    first, second = read(export, tmp_path).ranks
    assert (first.activity.os_call, second.activity.os_call) == ("recv", None)


def test_the_range_that_opens_a_capture_is_not_told(tmp_path):
    export = stopped_job(9 * S)
    export.domain("tracekit", 6, pid=4000)
    export.range("capture", 5, None, pid=4000, domain=6)
    assert read(export, tmp_path).ranks[0].activity.open_ranges == ("train_step 3",)


def test_a_thousand_ranges_that_were_never_left_are_told_by_the_innermost(tmp_path):
    export = stopped_job(9 * S)
    for n in range(1_000):
        export.range(f"r{n}", 3_000 + n, None, pid=4000)
    told = read(export, tmp_path).ranks[0].activity.open_ranges
    assert (len(told), told[-1]) == (32, "r999")


def test_a_capture_without_nvtx_is_undecided(tmp_path):
    """Launches without kernels and then nothing for long: what is missing is said, nothing is guessed."""
    export = stopped_job(9 * S)
    del export.rows["NVTX_EVENTS"]
    found = read(export, tmp_path)
    hang = diagnose(found, DEFAULT)
    assert (found.interrupted, hang.verdict, hang.culprits) == (True, "undecided", ())
    assert "nvtx" in " ".join(hang.lacking)


def test_an_ordinary_capture_of_one_rank_does_not_hang(tmp_path):
    export = small_job()
    export.add("ANALYSIS_DETAILS", duration=9 * S, startTime=0, stopTime=9 * S)
    assert read(export, tmp_path).interrupted is False


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:all_to_all", "all_to_all"),
        ("gloo:broadcast", "broadcast"),
        ("nccl:reduce", "reduce"),
        ("nccl:send 0->1", None),
        ("nccl:recv 1<-0", None),
        ("aten::all_reduce", None),
        ("nccl", None),
    ],
)
def test_the_op_of_torchs_own_ranges(name, op):
    assert torch_op(name) == op


def test_collectives_by_torchs_own_ranges(tmp_path):
    """GIVEN no NCCL ranges, THEN torch's count as one sequence, which the notes say."""
    export = Export("2022.4")
    export.add("ANALYSIS_DETAILS", duration=9 * S, startTime=0, stopTime=9 * S)
    for rank in range(3):
        pid = 4000 + rank
        export.range("train_step 1", 10, None, pid=pid)
        for n, at in enumerate((1_000, 2_000, 3_000)[: 3 - (rank == 2)]):
            export.range("nccl:all_reduce", at, at + 50, pid=pid)
            if n < 2:
                export.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(args)", at + 100, at + 400 + rank,
                              call=(at + 10, at + 20), pid=pid, device=rank)  # fmt: skip
            else:
                export.call(at + 10, at + 20, export.correlation(), pid=pid)
    found = read(export, tmp_path)
    hang = diagnose(found, DEFAULT)
    assert (hang.verdict, hang.seq, hang.op, hang.missing_ranks) == ("missing_rank", 3, "all_reduce", (2,))
    assert "no source names the communicators" in found.notes[0]
    assert all(np.all(rank.entries.elements_in == UNKNOWN) for rank in found.ranks)
