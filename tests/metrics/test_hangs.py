"""Verdicts on jobs whose fault is known: published cases, and one of each kind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.evidence_builder import Job
from tracekit.config import DEFAULT
from tracekit.metrics.hangs import diagnose

S = 1_000_000_000


def verdict_on(job):
    return diagnose(job.evidence(), DEFAULT)


def test_a_rank_that_never_launched_what_the_others_wait_in():
    job = Job({"world": tuple(range(8))})
    for rank in range(8):
        row = job.rank(rank)
        for seq in range(1, 118):
            row.did("world", seq, "all_gather", 4, 32)
        if rank != 3:
            row.waits("world", 118, "all_gather", 4, 32)
    hang = verdict_on(job)
    assert (hang.verdict, hang.communicator, hang.seq, hang.op) == ("missing_rank", "world", 118, "all_gather")
    assert hang.missing_ranks == hang.culprits == hang.behind_ranks == (3,)
    assert hang.waiting_ranks == hang.ahead_ranks == (0, 1, 2, 4, 5, 6, 7)


def test_the_minority_can_be_ahead():
    # 30 ranks have launched up to all-gather 640, ranks 12 and 13 up to 641.
    job = Job({"world": tuple(range(32))})
    for rank in range(32):
        row = job.rank(rank, wrapped=True)
        for seq in range(630 + rank % 3, 640):
            row.did("world", seq, "all_gather", 10, 320)
        row.did("world", 640, "all_gather", 10, 320)
        if rank in (12, 13):
            row.waits("world", 641, "all_gather", 10, 320)
    hang = verdict_on(job)
    others = tuple(rank for rank in range(32) if rank not in (12, 13))
    assert (hang.verdict, hang.seq) == ("missing_rank", 641)
    assert hang.ahead_ranks == hang.waiting_ranks == (12, 13)
    assert hang.missing_ranks == hang.behind_ranks == others


@pytest.mark.parametrize("holds_122", [True, False])
def test_different_ops_at_one_seq_and_a_seq_that_a_rank_lacks(holds_122):
    # Rank 0 waits in reduce-scatter 122; rank 1 is in all-gather 126.
    job = Job({"world": (0, 1)})
    zero, one = job.rank(0), job.rank(1)
    for seq in range(100, 122):
        zero.did("world", seq, "all_gather", 4, 8)
        one.did("world", seq, "all_gather", 4, 8)
    zero.waits("world", 122, "reduce_scatter", 106_343_680, 53_171_840)
    for seq in range(122 if holds_122 else 123, 127):
        one.issued("world", seq, "all_gather", 4, 8)
    hang = verdict_on(job)
    assert hang.seq == 122
    # Rank 1 is in later ones, so it has launched 122: it is not missing, whether its entry is there or not.
    assert hang.verdict == ("type_mismatch" if holds_122 else "undecided")
    assert hang.missing_ranks == ()
    assert (hang.ahead_ranks, hang.behind_ranks) == ((1,), (0,))
    if holds_122:
        assert hang.culprits == ()  # one against one
        assert "reduce_scatter 106,343,680 -> 53,171,840 elements" in str(hang.mismatches[0].found)
    else:
        assert hang.lacking == ("what rank 1 called as number 122: the entry is lost",)


def test_sizes_that_differ():
    job = Job({"world": (0, 1)})
    for rank, size in ((0, 262_711_296), (1, 40_960)):
        job.rank(rank).did("world", 2108, "all_gather", 8, 16).waits("world", 2109, "all_gather", size, size * 2)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.op) == ("size_mismatch", 2109, "all_gather")
    assert hang.waiting_ranks == (0, 1)
    assert (hang.ahead_ranks, hang.behind_ranks) == ((), ())


def test_ranks_that_parted_two_collectives_earlier():
    # Rank 0 is in all-gather 619,725, rank 3 in reduce-scatter 619,727; ranks 1 and 2 are like rank 0.
    job = Job({"world": (0, 1, 2, 3)})
    for rank in range(4):
        row = job.rank(rank, wrapped=True)
        for seq in range(619_700, 619_725):
            row.did("world", seq, "all_gather", 10, 40)
        if rank < 3:
            row.waits("world", 619_725, "all_gather", 54_528_000, 218_112_000)
        else:
            for seq in (619_725, 619_726, 619_727):
                row.issued("world", seq, "reduce_scatter", 4_096, 1_024)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("type_mismatch", 619_725, (3,))
    assert hang.ahead_ranks == (3,)


def test_two_captures_that_end_50_ms_apart_are_no_hang():
    job = Job({"world": (0, 1)})
    zero = job.rank(0, end_ns=10 * S, idle_ns=2_000_000)
    one = job.rank(1, end_ns=10 * S - 50_000_000, idle_ns=1_000_000)
    for seq in range(1, 20):
        zero.did("world", seq, "all_reduce", 4, 4)
        if seq < 15:
            one.did("world", seq, "all_reduce", 4, 4)
    zero.waits("world", 20, "all_reduce", 4, 4)
    assert verdict_on(job).verdict == "not_a_hang"


def test_what_completed_everywhere_else_was_launched_by_a_rank_whose_capture_ends_early():
    job = Job({"world": (0, 1)})
    for seq in range(1, 20):
        job.rank(0, end_ns=99 * S).did("world", seq, "all_reduce", 4, 4)
        if seq < 15:
            job.rank(1, end_ns=50 * S).did("world", seq, "all_reduce", 4, 4)
    assert verdict_on(job).verdict == "not_a_hang"


def test_a_capture_of_the_awaited_rank_that_ends_too_early_decides_nothing():
    job = Job({"world": (0, 1)})
    job.rank(0, end_ns=20 * S, idle_ns=10 * S).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    job.rank(1, end_ns=10 * S, idle_ns=0).did("world", 1, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert hang.verdict == "undecided"
    assert hang.lacking


def test_captures_that_stand_still_to_the_end():
    job = Job({"world": (0, 1)}, interrupted=True)
    job.rank(0, end_ns=20 * S, idle_ns=10 * S).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    job.rank(1, end_ns=19 * S, idle_ns=9 * S, open_ranges=("step 3", "data")).did("world", 1, "all_reduce", 4, 4)
    assert verdict_on(job).verdict == "missing_rank"


def test_a_host_inside_a_cuda_call_that_never_returned():
    job = Job({"world": (0, 1)})
    job.rank(0).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    job.rank(1, last_call="cudaStreamSynchronize", last_call_open=True).did("world", 1, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.culprits, hang.missing_ranks) == ("host_blocked", (1,), (1,))


def test_a_slow_rank_that_finishes():
    job = Job({"world": (0, 1)})
    for rank in (0, 1):
        job.rank(rank, end_ns=9 * S, idle_ns=4 * S).did("world", 1, "all_reduce", 4, 4)
    assert verdict_on(job).verdict == "not_a_hang"


def inverted(state_first, state_second):
    """Ranks 0-3: tensor-parallel pairs, a data-parallel group of all. Rank 1 issues them in the other order."""
    job = Job({"tp": (0, 1), "dp": (0, 1, 2, 3)})
    for rank in range(4):
        row = job.rank(rank)
        row.did("dp", 1, "all_reduce", 4, 4)
        calls = [("tp", 1, "all_gather", 2, 4), ("dp", 2, "reduce_scatter", 8, 2)]
        if rank > 1:
            calls = calls[1:]
        if rank == 1:
            calls.reverse()
        row.entry(*calls[0], state=state_first)
        if state_second is not None and len(calls) > 1:
            row.entry(*calls[1], state=state_second)
    return job


@pytest.mark.parametrize("second", [None, 0])
def test_two_communicators_in_different_order(second):
    hang = verdict_on(inverted(1, second))
    assert hang.verdict == "order_inversion"
    edges = {(w.rank, w.communicator, w.seq): w.waits_for for w in hang.cycle}
    assert edges == {(0, "tp", 1): 1, (1, "dp", 2): 0}
    assert all(a.waits_for == b.rank for a, b in pairwise([*hang.cycle, hang.cycle[0]]))


def test_all_arrived_and_none_finished():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        job.rank(rank).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.waiting_ranks) == ("unfinished", 2, (0, 1, 2))


def test_a_rank_whose_dump_is_missing_may_be_the_one():
    job = Job({"world": (0, 1, 2)})
    for rank in range(2):
        job.rank(rank).did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert hang.verdict == "undecided"
    assert "rank 2" in hang.lacking[0]
    job.rank(2)  # an empty dump says no more
    hang = verdict_on(job)
    assert hang.verdict == "undecided"
    assert "rank 2" in hang.lacking[0]


def test_states_that_differ():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        row = job.rank(rank).did("world", 1, "all_reduce", 4, 4)
        row.entry("world", 2, "all_reduce", 4, 4, state=2 if rank < 2 else 1)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("state_mismatch", 2, (2,))


def test_dtypes_that_differ_and_the_majority_is_right_though_the_first_rank_differs():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        job.rank(rank).waits("world", 7, "all_reduce", 4, 4, dtype="BFloat16" if rank else "Float")
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("dtype_mismatch", 7, (0,))


@pytest.mark.parametrize(
    ("op", "fits", "sizes"),
    [
        ("all_gather", True, (4, 16)),
        ("all_gather", False, (4, 12)),
        ("reduce_scatter", True, (16, 4)),
        ("reduce_scatter", False, (12, 4)),
        ("all_reduce", False, (16, 4)),
        ("broadcast", True, (4, 4)),
    ],
)
def test_sizes_on_which_all_ranks_agree_and_which_cannot_be(op, fits, sizes):
    job = Job({"world": (0, 1, 2, 3)})
    for rank in range(4):
        job.rank(rank).waits("world", 5, op, *sizes)
    hang = verdict_on(job)
    assert (hang.verdict, hang.culprits) == ("unfinished" if fits else "size_mismatch", ())


def test_an_uneven_all_gather_that_adds_up_is_right():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        job.rank(rank).waits("world", 5, "all_gather", 10 + rank, 33)
    assert verdict_on(job).verdict == "unfinished"


@pytest.mark.parametrize(("last", "verdict"), [(7, "undecided"), (8, "size_mismatch")])
def test_an_all_to_all_is_compared_by_its_sums(last, verdict):
    job = Job({"world": (0, 1, 2)})
    for rank, (sent, received) in enumerate([(10, 4), (2, 9), (8, last)]):
        job.rank(rank).waits("world", 5, "all_to_all", sent, received)
    hang = verdict_on(job)
    assert hang.verdict == verdict
    assert hang.culprits == ()


def test_what_completed_on_all_ranks_is_no_mismatch_whatever_its_sizes():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        row = job.rank(rank)
        for seq in (1, 2, 3):
            row.did("world", seq, "all_reduce", 5 if (rank, seq) in ((2, 2), (1, 3)) else 4)
        row.waits("world", 4, "all_gather" if rank == 1 else "all_reduce", 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("type_mismatch", 4, (1,))
    assert [(m.seq, m.verdict, m.ranks) for m in hang.mismatches] == [(4, "type_mismatch", (1,))]


def test_all_mismatches_are_told_and_the_first_is_the_verdict():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        row = job.rank(rank).did("world", 1, "all_reduce", 4)
        for seq in (2, 3):
            row.issued("world", seq, "all_reduce", 5 if (rank, seq) in ((2, 2), (1, 3)) else 4)
        row.issued("world", 4, "all_gather" if rank == 1 else "all_reduce", 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("size_mismatch", 2, (2,))
    told = [(m.seq, m.verdict, m.ranks) for m in hang.mismatches]
    assert told == [(2, "size_mismatch", (2,)), (3, "size_mismatch", (1,)), (4, "type_mismatch", (1,))]


def test_sizes_that_cannot_be_and_got_through_before_are_none():
    # Gathers of 11 elements a rank into 34: padding that the recorder does not tell. Then rank 1 calls another op.
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        row = job.rank(rank)
        for seq in range(1, 122):
            row.did("world", seq, "all_gather", 11, 34)
        row.waits("world", 122, "reduce_scatter" if rank == 1 else "all_gather", 11, 34)
        row.issued("world", 123, "all_gather", 11, 34)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("type_mismatch", 122, (1,))
    assert [m.seq for m in hang.mismatches] == [122]


def test_a_rank_that_skipped_a_step_pairs_silently():
    job = Job({"world": (0, 1, 2)})
    for rank in range(3):
        row = job.rank(rank)
        steps = [step for step in range(6) if (rank, step) != (2, 3)]
        for i, step in enumerate(steps):
            row.did("world", 2 * i + 1, "all_gather", 4, 12, step=step)
            row.did("world", 2 * i + 2, "reduce_scatter", 12, 4, step=step)
        if rank < 2:  # the others wait in the last step for the rank that is through
            row.rows[-2:] = []
            row.waits("world", 11, "all_gather", 4, 12, step=5)
    hang = verdict_on(job)
    assert (hang.verdict, hang.seq, hang.culprits) == ("step_desync", 7, (2,))


def test_the_rank_behind_is_itself_behind_another():
    # Rank 1 is missing in dp because it waits in tp for rank 0, which launches nothing more.
    job = Job({"dp": (1, 2, 3), "tp": (0, 1)})
    job.rank(0).did("tp", 1, "all_reduce", 4, 4)
    job.rank(1).did("tp", 1, "all_reduce", 4, 4).did("dp", 1, "all_reduce", 4, 4).waits("tp", 2, "all_reduce", 4, 4)
    for rank in (2, 3):
        job.rank(rank).did("dp", 1, "all_reduce", 4, 4).waits("dp", 2, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.communicator, hang.seq, hang.culprits) == ("missing_rank", "tp", 2, (0,))


def test_nothing_at_all():
    hang = verdict_on(Job({}))
    assert hang.verdict == "undecided"
    assert hang.lacking


def test_dumps_without_states_where_all_launched_the_same():
    job = Job({"world": (0, 1)})
    for rank in (0, 1):
        job.rank(rank).unknown("world", 1, "all_reduce", 4, 4).unknown("world", 2, "all_reduce", 4, 4)
    assert verdict_on(job).verdict == "undecided"


def test_each_ranks_last_activity():
    job = Job({"world": (0, 1)})
    job.rank(0, step=4, module="layers.3").did("world", 1, "all_reduce", 4, 4).waits("world", 2, "all_reduce", 4, 4)
    job.rank(1, open_ranges=("step 4", "forward"), step=4, module="layers.2").did("world", 1, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert [(a.rank, a.seq, a.state) for a in hang.last_activity] == [(0, 2, "started"), (1, 1, "completed")]
    assert hang.last_activity[1].activity.open_ranges == ("step 4", "forward")
    assert (hang.step, hang.module) == (4, "layers.2")


def test_what_keeps_other_ranks_waiting_is_told_apart():
    # Ranks 1 and 5 stop, each in a group of its own; all else waits behind the first group.
    job = Job({"a": (0, 1, 2, 3), "b": (4, 5, 6), "x": (0, 7)})
    for group, ranks, stopped in (("a", (0, 1, 2, 3), 1), ("b", (4, 5, 6), 5)):
        for rank in ranks:
            job.rank(rank).did(group, 1, "all_reduce", 4, 4)
            if rank != stopped:
                job.rank(rank).waits(group, 2, "all_reduce", 4, 4)
    job.rank(7).waits("x", 1, "all_reduce", 4, 4)
    hang = verdict_on(job)
    assert (hang.verdict, hang.communicator, hang.culprits) == ("missing_rank", "a", (1,))
    assert hang.waiting_ranks == (0, 2, 3)
    assert any(note.startswith("4 ranks wait for it in all") for note in hang.notes)
    [other] = hang.others
    assert (other.verdict, other.communicator, other.seq, other.op) == ("missing_rank", "b", 2, "all_reduce")
    assert (other.culprits, other.missing_ranks, other.waiting_ranks) == ((5,), (5,), (4, 6))


@pytest.mark.parametrize("older", [True, False])
def test_a_dump_of_another_moment_proves_nothing(older):
    # Rank 0 has completed all-reduces with rank 1 that rank 1's dump has not begun.
    job = Job({"world": (0, 1)})
    for seq in range(1, 5):
        job.rank(1).did("world", seq, "all_reduce", 4, 4)
    first = 3001 if older else 4
    for seq in range(first, first + 4 if older else 5):
        job.rank(0, wrapped=True).did("world", seq, "all_reduce", 4, 4)
    job.rank(0).waits("world", 3005 if older else 5, "all_reduce", 4, 4)
    hang = verdict_on(job)
    if older:
        job.rank(1).waits("world", 5, "all_reduce", 4, 4)  # it waits itself, and is no less old
        assert verdict_on(job).verdict == "undecided"
        assert (hang.verdict, hang.culprits) == ("undecided", ())
        assert "rank 1" in hang.lacking[0]
    else:
        assert (hang.verdict, hang.seq, hang.culprits) == ("missing_rank", 5, (1,))
