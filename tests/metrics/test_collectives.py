"""Collectives by communicator and op, on timelines laid out by hand."""

from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from handmade import AUTOGRAD, COMMS, COPIES, MAIN, SIDE, Sketch, collective_table, nccl_payload
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.accounting import Covers, account
from tracekit.metrics.bandwidth import link_peak, size_classes
from tracekit.theory.volume import BUS_FACTOR
from tracekit.timeline import Kind, Source

KERNEL = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send_recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "unknown": "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
}
WORLD = 0x9C3E_0000_51A7_0000


def table(job, *, window=None, world_size=None):
    """The collectives by op (each op on one communicator only)."""
    return {row.op: row for row in rows(job, window=window, world_size=world_size)}


def rows(job, *, window=None, world_size=None):
    timeline = job.timeline()
    tracks = timeline.ranks
    windows = [window or (int(track.ops.start[0]), int(track.ops.end.max())) for track in tracks]
    return collective_table(timeline, windows, world_size=world_size)


def ranks(job, n, size=None):
    return [job.process(communicators=((WORLD, size or n, rank),)) for rank in range(n)]


def call(rank, name, start, end, payload=b""):
    return rank.range(name, start, end, domain="NCCL", payload=payload)


def reduces(rank, spans, size=1000):
    """All-reduces of ``size`` bytes at (start, end), called one by one."""
    for at, (start, end) in enumerate(spans):
        payload = nccl_payload(size=size, communicator=WORLD, third=True)
        around = call(rank, "ncclAllReduce", 10 * at, 10 * at + 5, payload)
        rank.comm(start, end, name=KERNEL["all_reduce"], called=10 * at + 1, nccl=around)


# --- who, what, how many bytes ---


def test_a_gather_s_full_tensor_is_its_ranks_shares():
    """NCCL's size of a gather or scatter is one rank's; an all-reduce's is the whole."""
    job = Sketch()
    for rank in ranks(job, 4):
        for at, (op, name, third) in enumerate(
            (
                ("all_gather", "ncclAllGather", False),
                ("reduce_scatter", "ncclReduceScatter", True),
                ("all_reduce", "ncclAllReduce", True),
            )
        ):
            payload = nccl_payload(size=100, communicator=WORLD, third=third)
            around = call(rank, name, 10 * at, 10 * at + 5, payload)
            rank.comm(100 * at, 100 * at + 50, name=KERNEL[op], called=10 * at + 1, nccl=around)
    found = table(job)
    assert {op: row.bytes for op, row in found.items()} == {"all_gather": 400, "reduce_scatter": 400, "all_reduce": 100}
    assert {row.bytes_source for row in found.values()} == {"nccl_payload"}
    assert {row.communicator for row in found.values()} == {"0x9c3e000051a70000"}
    assert {row.ranks for row in found.values()} == {(0, 1, 2, 3)}


def test_the_size_of_a_communicator_comes_from_any_rank():
    """GIVEN a rank that is captured from after the communicator's creation on, THEN another rank tells its size."""
    job = Sketch()
    for rank in (*ranks(job, 1, size=2), job.process()):
        around = call(rank, "ncclAllGather", 0, 5, nccl_payload(size=100, communicator=WORLD))
        rank.range("all_gather", 0, 5, domain="tracekit.comm", value=7)
        rank.comm(10, 20, name=KERNEL["all_gather"], called=1, nccl=around)
    row = table(job)["all_gather"]
    assert (row.bytes, row.bytes_source) == (200, "nccl_payload")


def test_a_group_is_one_collective_of_all_its_calls():
    """GIVEN three gathers in a group, WHEN one kernel is launched inside ncclGroupEnd, THEN it moves all three."""
    job = Sketch()
    for rank in ranks(job, 2):
        call(rank, "ncclGroupStart", 0, 1)
        for at, share in ((2, 10), (4, 20), (6, 30)):
            call(rank, "ncclAllGather", at, at + 1, nccl_payload(size=share, communicator=WORLD))
        end = call(rank, "ncclGroupEnd", 8, 12)
        rank.comm(20, 30, name=KERNEL["all_gather"], called=10, nccl=end)
    row = table(job)["all_gather"]
    assert (row.count, row.bytes, row.communicator) == (1, 2 * 60, hex(WORLD))


def test_the_outermost_end_of_nested_groups_launches_all():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    call(rank, "ncclGroupStart", 0, 1)
    call(rank, "ncclGroupStart", 2, 3)
    call(rank, "ncclAllGather", 4, 5, nccl_payload(size=10, communicator=WORLD))
    call(rank, "ncclGroupEnd", 6, 7)
    call(rank, "ncclAllGather", 8, 9, nccl_payload(size=5, communicator=WORLD))
    end = call(rank, "ncclGroupEnd", 10, 14)
    rank.comm(20, 30, name=KERNEL["all_gather"], called=11, nccl=end)
    assert table(job)["all_gather"].bytes == 2 * 15


def test_groups_of_other_threads_are_not_mixed_in():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    rank.range("ncclGroupStart", 0, 1, domain="NCCL", thread=MAIN)
    rank.range("ncclGroupStart", 2, 3, domain="NCCL", thread=AUTOGRAD)
    other = nccl_payload(size=1000, communicator=WORLD)
    rank.range("ncclAllGather", 4, 5, domain="NCCL", thread=AUTOGRAD, payload=other)
    mine = nccl_payload(size=10, communicator=WORLD)
    rank.range("ncclAllGather", 6, 7, domain="NCCL", thread=MAIN, payload=mine)
    end = rank.range("ncclGroupEnd", 8, 12, domain="NCCL", thread=MAIN)
    rank.comm(20, 30, name=KERNEL["all_gather"], called=9, nccl=end)
    assert table(job)["all_gather"].bytes == 20


def test_a_group_over_two_communicators_has_none():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    call(rank, "ncclGroupStart", 0, 1)
    call(rank, "ncclSend", 2, 3, nccl_payload(size=10, communicator=WORLD, third=True))
    call(rank, "ncclRecv", 4, 5, nccl_payload(size=10, communicator=WORLD + 1, third=True))
    end = call(rank, "ncclGroupEnd", 6, 12)
    rank.comm(20, 30, name=KERNEL["send_recv"], called=9, nccl=end)
    row = table(job)["send_recv"]
    assert (row.communicator, row.bytes) == (None, 20)


def test_a_group_with_one_size_unknown_has_no_size():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    call(rank, "ncclGroupStart", 0, 1)
    call(rank, "ncclAllReduce", 2, 3, nccl_payload(size=10, third=True))
    call(rank, "ncclAllReduce", 4, 5)
    end = call(rank, "ncclGroupEnd", 6, 12)
    rank.comm(20, 30, name=KERNEL["all_reduce"], called=9, nccl=end)
    row = table(job)["all_reduce"]
    assert (row.bytes, row.bytes_source) == (None, None)


@pytest.mark.parametrize(
    ("kernel", "calls", "op"),
    [
        ("unknown", ["ncclAllReduce"], "all_reduce"),
        ("unknown", ["ncclSend", "ncclRecv"], "send_recv"),
        ("unknown", ["ncclAllReduce", "ncclAllGather"], "unknown"),
        ("unknown", [], "unknown"),
        ("send_recv", ["ncclAlltoAll"], "all_to_all"),
        ("send_recv", ["ncclAllReduce"], "all_reduce"),
        ("send_recv", [], "send_recv"),
        ("all_gather", ["ncclSend", "ncclRecv"], "all_gather"),
    ],
)
def test_the_op_comes_from_a_name_that_is_no_mere_entry_else_from_the_calls(kernel, calls, op):
    job = Sketch()
    rank = job.process()
    call(rank, "ncclGroupStart", 0, 1)
    for at, name in enumerate(calls):
        call(rank, name, 2 * at + 2, 2 * at + 3)
    end = call(rank, "ncclGroupEnd", 20, 25)
    rank.comm(30, 40, name=KERNEL[kernel], called=21, nccl=end)
    assert list(table(job)) == [op]


@pytest.mark.parametrize(
    ("kernel", "around", "op"),
    [
        ("send_recv", "nccl:all_to_all", "all_to_all"),
        ("send_recv", "nccl:send 0->1", "send_recv"),
        ("unknown", "nccl:all_reduce", "all_reduce"),
        ("all_gather", "nccl:all_to_all", "all_gather"),
        ("send_recv", "exchange", "send_recv"),
    ],
)
def test_the_range_around_the_launch_names_what_an_entry_kernel_does(kernel, around, op):
    """On the launching thread only; sends and receives of a group are what the range around them says."""
    job = Sketch()
    rank = job.process()
    rank.range(around, 0, 30)
    rank.range("nccl:broadcast", 0, 30, thread=AUTOGRAD)
    call(rank, "ncclGroupStart", 1, 2)
    call(rank, "ncclSend", 2, 3)
    call(rank, "ncclRecv", 4, 5)
    end = call(rank, "ncclGroupEnd", 20, 25)
    rank.comm(30, 40, name=KERNEL[kernel], called=21, nccl=end)
    assert list(table(job)) == [op]


def test_an_all_to_all_made_of_sends_moves_what_one_rank_sends():
    """Three ranks: 3 sends of 10 and 3 receives of 10 on each."""
    job = Sketch()
    for rank in ranks(job, 3):
        rank.range("nccl:all_to_all", 0, 30)
        call(rank, "ncclGroupStart", 1, 2)
        for at in range(3):
            for name in ("ncclSend", "ncclRecv"):
                call(rank, name, 3 + at, 4 + at, nccl_payload(size=10, communicator=WORLD, third=True))
        end = call(rank, "ncclGroupEnd", 20, 25)
        rank.comm(30, 40, name=KERNEL["send_recv"], called=21, nccl=end)
    assert table(job)["all_to_all"].bytes == 30


def test_a_copy_that_nccl_launched_is_what_its_call_says():
    job = Sketch()
    rank = job.process()
    around = call(rank, "ncclAllGather", 0, 5)
    rank.op(10, 20, stream=COPIES, kind=Kind.COMM, source=Source.MEMCPY, name="memcpy DtoD", called=1, nccl=around)
    assert list(table(job)) == ["all_gather"]


def test_bytes_of_an_annotation_around_the_launch():
    """The innermost annotation on the launching thread; its value is the full tensor."""
    job = Sketch()
    rank = job.process()
    rank.range("all_gather", 0, 20, domain="tracekit.comm", value=7)
    rank.range("all_gather", 4, 8, domain="tracekit.comm", value=400)
    rank.range("all_gather", 4, 8, domain="tracekit.comm", value=9, thread=AUTOGRAD)
    rank.comm(10, 20, name=KERNEL["all_gather"], called=5)
    row = table(job, world_size=4)["all_gather"]
    assert (row.bytes, row.bytes_source, row.communicator) == (400, "annotation", None)


def test_a_payload_goes_before_an_annotation():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    rank.range("all_reduce", 0, 20, domain="tracekit.comm", value=7)
    reduces(rank, [(30, 40)], size=11)
    row = table(job)["all_reduce"]
    assert (row.bytes, row.bytes_source) == (11, "nccl_payload")


def test_ranks_that_tell_bytes_differently_are_mixed():
    """NCCL before 2.25 tells the size of a call, not its communicator."""
    job = Sketch()
    first, second = job.process(), job.process()
    around = call(first, "ncclAllReduce", 0, 5, nccl_payload(size=8, third=True))
    first.comm(0, 10, name=KERNEL["all_reduce"], called=1, nccl=around)
    second.range("all_reduce", 0, 5, domain="tracekit.comm", value=8)
    second.comm(0, 10, name=KERNEL["all_reduce"], called=1)
    row = table(job)["all_reduce"]
    assert (row.communicator, row.bytes, row.bytes_source) == (None, 8, "mixed")


def test_a_size_that_cannot_be_true_is_not_believed():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    reduces(rank, [(0, 10)], size=2**60)
    assert table(job)["all_reduce"].bytes is None


def test_the_size_shown_is_one_that_occurs():
    job = Sketch()
    (rank,) = ranks(job, 1, size=2)
    for at, size in enumerate((400, 10, 30, 20)):
        around = call(
            rank, "ncclAllReduce", 10 * at, 10 * at + 5, nccl_payload(size=size, communicator=WORLD, third=True)
        )
        rank.comm(100 * at, 100 * at + 50, name=KERNEL["all_reduce"], called=10 * at + 1, nccl=around)
    assert table(job)["all_reduce"].bytes == 20


def test_where_one_size_is_unknown_none_is_shown():
    job = Sketch()
    rank = job.process()
    rank.range("all_reduce", 0, 5, domain="tracekit.comm", value=7)
    rank.comm(10, 20, called=1)
    rank.comm(30, 40, called=9)
    row = table(job)["all_reduce"]
    assert (row.bytes, row.bytes_source, row.count) == (None, None, 2)


# --- transfer and peer wait ---


UNKNOWN = (None, None, None, None)


def quoted(row):
    return row.transfer_ns, row.peer_wait_ns, row.algbw_gbps, row.busbw_gbps


def test_transfer_is_what_the_last_to_arrive_takes():
    """GIVEN durations 100 30 50 and 20 30 20, WHEN the first is left out, THEN transfers are 30 and 20, and rank 0
    waited 0 + 30. Bandwidth: 1000 bytes in 30 and in 20 ns, the median of 33.3 and 50.
    """
    job = Sketch()
    first, second = ranks(job, 2)
    reduces(first, [(0, 100), (200, 230), (300, 350)])
    reduces(second, [(80, 100), (200, 230), (330, 350)])
    row = table(job)["all_reduce"]
    assert (row.count, row.transfer_ns, row.peer_wait_ns) == (3, 25, 30)
    assert row.algbw_gbps == pytest.approx((1000 / 30 + 1000 / 20) / 2)
    assert row.busbw_gbps == pytest.approx(row.algbw_gbps * 2 * 1 / 2)


def test_only_the_very_first_collective_of_a_rank_is_left_out():
    """The all-gather after the first all-reduce is counted from its first one on."""
    job = Sketch()
    for arrival, rank in zip((0, 40), ranks(job, 2), strict=True):
        reduces(rank, [(arrival, 100), (200 + arrival, 300)])
        for at, start in enumerate((400, 600)):
            payload = nccl_payload(size=25, communicator=WORLD)
            around = call(rank, "ncclAllGather", 100 + 10 * at, 105 + 10 * at, payload)
            rank.comm(start + arrival, start + 100, name=KERNEL["all_gather"], called=101 + 10 * at, nccl=around)
    found = table(job)
    assert (found["all_reduce"].transfer_ns, found["all_reduce"].peer_wait_ns) == (60, 40)
    assert (found["all_gather"].transfer_ns, found["all_gather"].peer_wait_ns) == (60, 80)
    assert found["all_gather"].busbw_gbps == pytest.approx(50 / 60 / 2)  # 2 × 25 bytes in 60 ns, half of it on a link


def test_the_first_one_in_a_later_window_is_counted():
    """Only the start of the capture is ragged, not the start of what is looked at."""
    job = Sketch()
    first, second = ranks(job, 2)
    reduces(first, [(0, 100), (200, 230), (300, 350)])
    reduces(second, [(80, 100), (200, 230), (330, 350)])
    row = table(job, window=(150, 400))["all_reduce"]
    assert (row.count, row.transfer_ns, row.peer_wait_ns) == (2, 25, 30)


def test_one_collective_that_is_not_the_first_is_enough():
    job = Sketch()
    for arrival, rank in zip((0, 40), ranks(job, 2), strict=True):
        reduces(rank, [(0, 100)])
        around = call(rank, "ncclAllGather", 50, 55, nccl_payload(size=25, communicator=WORLD))
        rank.comm(200 + arrival, 300, name=KERNEL["all_gather"], called=51, nccl=around)
    found = table(job)
    assert (found["all_gather"].transfer_ns, found["all_gather"].peer_wait_ns) == (60, 40)
    assert quoted(found["all_reduce"]) == UNKNOWN


def test_a_rank_that_arrives_last_in_half_of_them_waits_in_the_others():
    job = Sketch()
    first, second = ranks(job, 2)
    reduces(first, [(0, 10), (100, 150), (200, 210)])
    reduces(second, [(0, 10), (140, 150), (150, 210)])
    row = table(job)["all_reduce"]
    assert (row.transfer_ns, row.peer_wait_ns) == (10, 40 + 50)


def test_with_a_rank_missing_waiting_cannot_be_told_from_transfer():
    job = Sketch()
    for rank in ranks(job, 2, size=3):
        reduces(rank, [(0, 10), (20, 30), (40, 50)])
    assert quoted(table(job)["all_reduce"]) == UNKNOWN


def test_the_size_of_the_communicator_decides_where_it_is_known():
    """GIVEN two ranks, THEN they count as all of it, unless the communicator is known to be larger."""
    job = Sketch()
    for _ in range(2):
        rank = job.process()
        rank.comm(0, 10)
        rank.comm(20, 30)
    assert quoted(table(job, world_size=3)["all_reduce"]) == UNKNOWN
    for told in (table(job), table(job, world_size=2)):
        assert (told["all_reduce"].transfer_ns, told["all_reduce"].peer_wait_ns) == (10, 0)


def test_what_one_rank_has_alone_is_left_out():
    """GIVEN a third all-reduce that only one rank captured, THEN the second alone counts, for the first is start-up."""
    job = Sketch()
    first, second = ranks(job, 2)
    reduces(first, [(0, 10), (20, 30), (40, 50)])
    reduces(second, [(0, 10), (20, 30)])
    row = table(job)["all_reduce"]
    assert row.count == 3
    assert (row.transfer_ns, row.peer_wait_ns) == (10, 0)


def test_one_rank_has_no_peers():
    job = Sketch()
    (rank,) = ranks(job, 1)
    reduces(rank, [(0, 10), (20, 30)])
    assert quoted(table(job)["all_reduce"]) == UNKNOWN


@pytest.mark.parametrize("op", ["broadcast", "send_recv", "unknown"])
def test_ops_that_do_not_end_together_have_no_transfer(op):
    job = Sketch()
    for _ in range(2):
        rank = job.process()
        for start in (0, 20, 40):
            rank.comm(start, start + 10, name=KERNEL[op])
    assert quoted(table(job, world_size=2)[op]) == UNKNOWN


@pytest.mark.parametrize("n", [2, 3, 8])
def test_bus_factors_are_those_of_nccl_tests(n):
    """The share of the full tensor's bytes that each link carries in a ring: nccl-tests' PERFORMANCE.md."""
    assert {op: factor(n) for op, factor in BUS_FACTOR.items()} == pytest.approx(
        {
            "all_reduce": {2: 1.0, 3: 4 / 3, 8: 1.75}[n],
            "all_gather": {2: 0.5, 3: 2 / 3, 8: 0.875}[n],
            "reduce_scatter": {2: 0.5, 3: 2 / 3, 8: 0.875}[n],
            "all_to_all": {2: 0.5, 3: 2 / 3, 8: 0.875}[n],
            "broadcast": 1.0,
            "reduce": 1.0,
        }
    )


# --- time ---


def test_time_by_hand():
    """Compute 0-50; all-reduce 20-80, all-gather 60-100 beside it: the shared 60-80 counts for the earlier."""
    job = Sketch()
    rank = job.process()
    rank.kernel(0, 50)
    rank.comm(20, 80, name=KERNEL["all_reduce"])
    rank.comm(60, 100, stream=SIDE, name=KERNEL["all_gather"])
    found = table(job)
    assert (found["all_reduce"].comm_ns, found["all_reduce"].exposed_ns) == (60, 30)
    assert found["all_reduce"].overlap_ratio == 0.5
    assert (found["all_gather"].comm_ns, found["all_gather"].exposed_ns) == (40, 20)
    assert found["all_gather"].overlap_ratio == 0.0


def test_most_exposed_come_first():
    job = Sketch()
    rank = job.process()
    rank.kernel(0, 100)
    rank.comm(0, 90, name=KERNEL["all_gather"])
    rank.comm(100, 120, name=KERNEL["all_reduce"])
    rank.comm(130, 160, name=KERNEL["reduce_scatter"])
    rank.comm(10, 30, name=KERNEL["broadcast"])
    assert [row.op for row in rows(job)] == ["reduce_scatter", "all_reduce", "all_gather", "broadcast"]


COMPUTES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=6)
COMM_OPS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(("all_gather", "all_reduce", "reduce_scatter"))),
    max_size=8,
)


@given(
    st.lists(st.tuples(COMPUTES, COMM_OPS), min_size=1, max_size=3), st.tuples(st.integers(-5, 20), st.integers(25, 60))
)
def test_exposed_time_of_all_collectives_is_the_ranks_exposed_time(by_rank, window):
    """GIVEN collectives of three kinds that may run at once, WHEN cut to a window, THEN each kind has the instants that
    its ops were the first to have, and together they have the ranks' exposed communication.
    """
    job = Sketch()
    expected: dict[str, int] = {}
    length: dict[str, int] = {}
    whole = 0
    for computes, comms in by_rank:
        rank = job.process()
        rank.copy(0, 1)
        ops = []
        for start, long in computes:
            rank.kernel(start, start + long)
            ops.append((start, start + long, "compute", ""))
        for start, long, op in comms:
            rank.comm(start, start + long, name=KERNEL[op])
            ops.append((start, start + long, "comm", op))
        ops.sort(key=lambda op: op[:2])
        for op, ns in oracle.exposed_by_label(ops, *window).items():
            expected[op] = expected.get(op, 0) + ns
        inside = set(range(*window))
        for op in {op for *_, op in comms}:
            own = oracle.instants(each for each in ops if each[3] == op)
            length[op] = length.get(op, 0) + len(own & inside)
        whole += account(Covers.of(rank.build()[1][0]), *window).exposed_comm_ns
    found = rows(job, window=window)
    assert {row.op: row.exposed_ns for row in found if row.exposed_ns} == expected
    assert {row.op: row.comm_ns for row in found if row.comm_ns} == {op: ns for op, ns in length.items() if ns}
    assert sum(row.exposed_ns for row in found) == whole


def test_a_collective_outside_the_window_does_not_count():
    job = Sketch()
    rank = job.process()
    for start in (0, 20, 40):
        rank.comm(start, start + 10, stream=COMMS)
    assert table(job, window=(10, 40))["all_reduce"].count == 1
    assert table(job, window=(9, 41))["all_reduce"].count == 3


# --- bandwidth by size, and the peak of the link ---


def test_size_classes_by_hand():
    """4, 6 and 7 MiB are one class, 8 MiB - 1 too, 8 MiB is the next; what has no size or time is in none."""
    mib = 1 << 20
    moved = np.array([4 * mib, 6 * mib, 7 * mib, 8 * mib - 1, 8 * mib, -1, 5 * mib])
    transfer = np.array([40_000, 60_000, 140_000, 80_000, 50_000, 9, 0])
    small, large = size_classes(transfer, moved, 1.5, 300.0)
    assert (small.at_least_bytes, small.count, small.bytes, small.transfer_ns) == (4 * mib, 4, 6 * mib, 70_000)
    # bytes a ns: 104.86 three times (once less a bit), and 52.43.
    assert small.algbw_gbps == pytest.approx(6 * mib / 60_000, rel=1e-6)
    assert small.busbw_gbps == pytest.approx(1.5 * 6 * mib / 60_000, rel=1e-6)
    assert small.peak_share == pytest.approx(small.busbw_gbps / 300)
    assert (large.at_least_bytes, large.count, large.transfer_ns) == (8 * mib, 1, 50_000)
    assert size_classes(transfer, moved, None, None)[0].busbw_gbps is None
    assert size_classes(transfer, moved, 1.5, None)[0].peak_share is None
    assert size_classes(transfer[5:], moved[5:], 1.5, None) == ()


@pytest.mark.parametrize(
    ("devices", "hosts", "peak"),
    [
        (["NVIDIA H100 80GB HBM3"] * 4, ["a"] * 4, 450),
        (["NVIDIA A100-SXM4-80GB"] * 2, ["a"] * 2, 300),
        (["NVIDIA H100 PCIe"] * 2, ["a"] * 2, None),
        (["NVIDIA H100 80GB HBM3"] * 4, ["a", "a", "b", "b"], None),
        (["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"], ["a"] * 2, None),
        ([None, None], ["a"] * 2, None),
        (["NVIDIA H100 80GB HBM3"], ["a"], None),
    ],
)
def test_the_peak_is_claimed_only_for_one_known_gpu_on_one_host(devices, hosts, peak):
    tracks = [SimpleNamespace(device_name=name) for name in devices]
    assert link_peak(tracks, hosts) == peak
