"""Which operations on different ranks are one collective: known from the layout, found again."""

import time

import numpy as np
import pytest
from laid_out import ClockOf, Job

from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import communicator_sizes, rank_collectives
from tracekit.metrics.together import put_together
from tracekit.timeline import NONE

MS, SECOND = 1_000_000, 1_000_000_000


def matched(timeline, align=True):
    """(matches, clocks, RankCollectives) of all ranks."""
    tracks = timeline.ranks
    covers = [Covers.of(track.ops) for track in tracks]
    sizes = communicator_sizes(timeline)
    whole = (-(2**61), 2**61)
    found = [rank_collectives(timeline, t, c, whole, sizes) for t, c in zip(tracks, covers, strict=True)]
    together = put_together(timeline, tracks, found, covers, DEFAULT, align=align)
    return together.matched, together.clocks, found


def table(kind, found):
    """For each collective, in time, the row in each member's operations; NONE where it has none."""
    rows = [
        [int(found[member].row[i]) if i != NONE else NONE for i in index]
        for member, index in zip(kind.members, kind.index, strict=True)
    ]
    return list(zip(*rows, strict=True))


def in_a_row(job, op, ranks, n, *, start=MS, every=3 * MS, seed=0, **facts):
    """n collectives of the ranks, one after another; each rank arrives at its own time. Returns their ends."""
    rng = np.random.default_rng(seed)
    ends, now = [], start
    for _ in range(n):
        arrivals = {rank: now + int(rng.integers(0, 200_000)) for rank in ranks}
        end = max(arrivals.values()) + int(rng.integers(100_000, 300_000))
        job.collective(op, arrivals, end, **facts)
        ends.append(end)
        now = end + int(rng.integers(every // 2, every))
    return ends


def test_by_hash_each_communicator_is_by_itself():
    job = Job(4)
    for number, ranks in ((0xAB, [0, 1]), (0xCD, [2, 3])):
        job.communicator(number, ranks)
        in_a_row(job, "all_gather", ranks, 12, communicator=number, seed=number)
    timeline = job.timeline()
    found = {kind.communicator: kind for kind in matched(timeline)[0]}
    assert {c: (kind.op, kind.members) for c, kind in found.items()} == {
        "0x00000000000000ab": ("all_gather", (0, 1)),
        "0x00000000000000cd": ("all_gather", (2, 3)),
    }
    assert all(kind.index.shape == (2, 12) and kind.complete.all() for kind in found.values())


def test_without_hash_the_op_tells():
    job = Job(2)
    in_a_row(job, "all_gather", [0, 1], 10, seed=1)
    in_a_row(job, "reduce_scatter", [0, 1], 7, start=100 * MS, seed=2)
    timeline = job.timeline()
    kinds, _, found = matched(timeline)
    assert {kind.op: table(kind, found) for kind in kinds} == {
        "all_gather": [(k, k) for k in range(10)],
        "reduce_scatter": [(k, k) for k in range(10, 17)],
    }


def test_streams_tell_roles_apart():
    """GIVEN all-reduces of tensor and of data parallelism on streams of their own, in another order on each rank."""
    job = Job(4)
    for ranks, seed in (([0, 1], 1), ([2, 3], 2)):
        in_a_row(job, "all_reduce", ranks, 40, seed=seed, stream=20 + seed)
    for ranks, seed in (([0, 2], 3), ([1, 3], 4)):
        in_a_row(job, "all_reduce", ranks, 10, start=20 * MS, seed=seed, stream=33 + 2 * seed, every=12 * MS)
    kinds, _, _ = matched(job.timeline())
    assert sorted((kind.role, kind.members, kind.index.shape[1]) for kind in kinds) == [
        (0, (0, 1), 40),
        (0, (2, 3), 40),
        (1, (0, 2), 10),
        (1, (1, 3), 10),
    ]
    assert all(kind.complete.all() for kind in kinds)


def test_streams_that_mean_different_things_on_different_ranks_are_one_kind():
    """Rank 1 spreads the same collectives over two streams: its streams tell no roles."""
    job = Job(2)
    for k in range(20):
        start = MS + k * MS
        job.collective("all_reduce", {0: start}, start + 300_000, stream=20)
        job.collective("all_reduce", {1: start + 50}, start + 300_000, stream=20 if k % 2 else 21)
    timeline = job.timeline()
    kinds, _, found = matched(timeline)
    (kind,) = kinds
    assert table(kind, found) == [(k, k) for k in range(20)]


def hybrid(captures):
    """8 ranks: gathers in two groups of four, all-reduces between ranks r and r + 4; nobody tells of communicators."""
    job = Job(8, [0] * 8 if captures == 1 else [0] * 4 + [1] * 4, {1: ClockOf(-3 * SECOND, 20e-6)})
    rng = np.random.default_rng(3)
    now = dict.fromkeys(range(8), MS)
    for _ in range(14):
        for node in (range(4), range(4, 8)):
            arrivals = {r: now[r] + int(rng.integers(500_000, 900_000)) for r in node}
            end = max(arrivals.values()) + 200_000
            job.collective("all_gather", arrivals, end)
            now |= dict.fromkeys(node, end)
        for r in range(4):
            arrivals = {m: now[m] + int(rng.integers(300_000, 700_000)) for m in (r, r + 4)}
            end = max(arrivals.values()) + 300_000
            job.collective("all_reduce", arrivals, end, stream=24)
            now |= dict.fromkeys(arrivals, end + 5_000)
    return job


@pytest.mark.parametrize("captures", [1, 2])
def test_hybrid_sharding_without_hashes_is_told_by_who_leaves_together(captures):
    timeline = hybrid(captures).timeline()
    kinds, clocks, found = matched(timeline)
    assert {(kind.op, kind.members) for kind in kinds} == {
        ("all_gather", (0, 1, 2, 3)),
        ("all_gather", (4, 5, 6, 7)),
        ("all_reduce", (0, 4)),
        ("all_reduce", (1, 5)),
        ("all_reduce", (2, 6)),
        ("all_reduce", (3, 7)),
    }
    for kind in kinds:
        assert table(kind, found) == [
            (at,) * len(kind.members) for at in range(0 if kind.op == "all_gather" else 1, 28, 2)
        ]
    assert {clock.method for clock in clocks} <= {"same_capture", "collectives"}


@pytest.mark.parametrize("communicator", [None, 0xF])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (7, 40), (0, 31), (25, 38), (30, 40)])
def test_ragged_ends(communicator, first, last):
    """Rank 1 captured collectives ``first`` to ``last`` of 40, on a clock of its own."""
    job = Job(2, [0, 1], {1: ClockOf(5 * SECOND, 50e-6)})
    in_a_row(job, "all_reduce", [0, 1], 40, communicator=communicator)
    timeline = job.timeline(drop=lambda rank, row: rank == 1 and not first <= row < last)
    (kind,), _, found = matched(timeline)
    assert table(kind, found) == [(k, k - first if first <= k < last else NONE) for k in range(40)]
    assert kind.complete.tolist() == [first <= k < last for k in range(40)]


def test_both_ends_are_ragged():
    """GIVEN a rank that starts late and one that ends early, THEN no column belongs to only one of them."""
    job = Job(2, [0, 1], {1: ClockOf(SECOND)})
    in_a_row(job, "all_reduce", [0, 1], 40)
    timeline = job.timeline(drop=lambda rank, row: row < 9 if rank == 0 else row >= 28)
    (kind,), _, found = matched(timeline)
    expected = [(k - 9 if k >= 9 else NONE, k if k < 28 else NONE) for k in range(40)]
    assert table(kind, found) == expected


@pytest.mark.parametrize("communicator", [None, 0xF])
@pytest.mark.parametrize("lost", [{11}, {19, 20}, {0, 5, 33}])
def test_a_record_lost_in_the_middle_shifts_nothing(communicator, lost):
    """GIVEN a rank with fewer operations than its peers, THEN the others of its operations keep their partners."""
    job = Job(3)
    in_a_row(job, "all_reduce", [0, 1, 2], 40, communicator=communicator)
    timeline = job.timeline(drop=lambda rank, row: rank == 1 and row in lost)
    (kind,), _, found = matched(timeline)
    rows = {k: i for i, k in enumerate(k for k in range(40) if k not in lost)}
    assert table(kind, found) == [(k, rows.get(k, NONE), k) for k in range(40)]


def test_records_lost_on_two_ranks():
    job = Job(3)
    in_a_row(job, "all_reduce", [0, 1, 2], 30)
    timeline = job.timeline(drop=lambda rank, row: (rank, row) in {(0, 4), (1, 4), (2, 17)})
    (kind,), _, found = matched(timeline)
    assert kind.complete.tolist() == [k not in {4, 17} for k in range(30)]
    assert [c for c in table(kind, found) if NONE in c] == [(NONE, NONE, 4), (16, 16, NONE)]


def test_neighbours_lost_on_either_rank_are_not_paired():
    """Rank 0 lacks the fifth, rank 1 the sixth: nearest to each other, and not the same."""
    job = Job(2)
    in_a_row(job, "all_reduce", [0, 1], 30)
    timeline = job.timeline(drop=lambda rank, row: (rank, row) in {(0, 5), (1, 6)})
    (kind,), _, found = matched(timeline)
    assert [c for c in table(kind, found) if NONE in c] == [(NONE, 5), (5, NONE)]


def test_of_two_that_end_close_together_one_is_lost():
    """GIVEN pairs of collectives 70 us apart, and one of them lost where most were captured."""
    job = Job(2)
    for k in range(40):
        start = MS + (k // 2) * 5 * MS + (k % 2) * 70_000
        job.collective("all_reduce", {0: start, 1: start + 500}, start + 60_000, communicator=7)
    timeline = job.timeline(drop=lambda rank, row: (rank, row) in {(0, 10), (1, 30), (1, 31)})
    (kind,), _, found = matched(timeline)
    holes = {10: (NONE, 10), 11: (10, 11), 30: (29, NONE), 31: (30, NONE)}
    assert {k: pair for k, pair in enumerate(table(kind, found)) if k in holes} == holes


def test_a_rank_that_was_not_captured():
    """Of four ranks three are here: their collectives match, and nothing waits for the fourth's."""
    job = Job(3)
    job.communicators = [[(0xE, 4, place)] for place in range(3)]
    in_a_row(job, "all_reduce", [0, 1, 2], 10, communicator=0xE)
    (kind,), _, _ = matched(job.timeline())
    assert kind.members == (0, 1, 2)
    assert kind.complete.all()


def test_end_is_the_latest_on_the_first_ranks_clock():
    job = Job(2, [0, 1], {0: ClockOf(0), 1: ClockOf(7 * SECOND)})
    ends = in_a_row(job, "all_reduce", [0, 1], 20, late_end={1: 900})
    (kind,), _, _ = matched(job.timeline())
    assert np.abs(kind.end - np.array(ends)).max() <= 1_000


def test_raw_clocks_match_by_order_alone():
    """Without alignment the k-th is the k-th, however far the captures' times are apart."""
    job = Job(2, [0, 1], {1: ClockOf(5 * SECOND)})
    in_a_row(job, "all_reduce", [0, 1], 20)
    timeline = job.timeline()
    (kind,), clocks, found = matched(timeline, align=False)
    assert table(kind, found) == [(k, k) for k in range(20)]
    assert [clock.method for clock in clocks] == ["not_aligned"] * 2
    assert [clock.offset_ns for clock in clocks] == [0, 0]


def test_one_capture_has_one_clock_aligned_or_not():
    timeline = hybrid(captures=1).timeline()
    aligned, raw = matched(timeline)[0], matched(timeline, align=False)[0]
    assert [(k.op, k.members) for k in aligned] == [(k.op, k.members) for k in raw]


def test_rooted_ops_and_sends_match_by_order():
    """They do not end together; the order on each rank is what there is."""
    job = Job(2)
    for k in range(9):
        start = MS + k * MS
        job.collective("broadcast", {0: start}, start + 20_000)
        job.collective("broadcast", {1: start}, start + 400_000)
    timeline = job.timeline()
    (kind,), _, found = matched(timeline)
    assert kind.members == (0, 1)
    assert table(kind, found) == [(k, k) for k in range(9)]


def test_too_few_collectives_to_tell_a_clock():
    """GIVEN two captures with three collectives in common, THEN they match by order and no clock is claimed."""
    job = Job(2, [0, 1], {1: ClockOf(5 * SECOND)})
    in_a_row(job, "all_reduce", [0, 1], 3)
    timeline = job.timeline()
    (kind,), clocks, found = matched(timeline)
    assert [clock and clock.method for clock in clocks] == ["same_capture", None]
    assert table(kind, found) == [(k, k) for k in range(3)]


def test_a_rank_without_communication_takes_no_part():
    job = Job(3)
    in_a_row(job, "all_reduce", [0, 1], 10)
    job.compute(2, MS, 2 * MS)
    (kind,), _, _ = matched(job.timeline())
    assert kind.members == (0, 1)


def test_thousands_of_communicators():
    """2,000 communicators of two ranks, in two captures: seconds would mean that something is quadratic."""
    job = Job(8, [0] * 4 + [1] * 4, {1: ClockOf(SECOND)})
    rng = np.random.default_rng(1)
    now = MS
    for number in range(1, 2_001):
        a, b = rng.choice(8, 2, replace=False).tolist()
        job.communicator(number, [a, b])
        for _ in range(2):
            now += int(rng.integers(60_000, 200_000))
            job.collective("all_reduce", {a: now, b: now + 5_000}, now + 40_000, communicator=number)
    # One that all share, so that there is a clock.
    job.communicator(9_999, range(8))
    in_a_row(job, "all_reduce", range(8), 20, start=now, communicator=9_999)
    timeline = job.timeline()
    began = time.perf_counter()
    kinds, clocks, _ = matched(timeline)
    assert time.perf_counter() - began < 5
    assert len(kinds) == 2_001
    assert all(kind.complete.all() for kind in kinds)
    assert all(clock is not None for clock in clocks)


def test_streams_that_ranks_use_first_in_another_order():
    """GIVEN two kinds of all-reduce, a stream each, THEN they are told apart although rank 1 begins with the other."""
    job = Job(2)
    for k in range(60):
        begin = MS + 3 * MS * k
        for stream, at in ((20, 0), (24, 700_000)):
            end = begin + at + 300_000 + 977 * k
            job.collective("all_reduce", {r: begin + at + 90_000 * r for r in range(2)}, end, stream=stream)
    # Rank 1 lost its first record of the one stream, and so it begins with the other.
    kinds, _, found = matched(job.timeline(drop=lambda rank, row: rank == 1 and row == 0))
    assert [kind.members for kind in kinds] == [(0, 1), (0, 1)]
    for kind, missing in zip(kinds, (1, 0), strict=True):
        assert np.count_nonzero(~kind.complete) == missing
        durations = [found[m].duration[kind.index[row, kind.complete]] for row, m in enumerate(kind.members)]
        assert np.all(durations[0] - durations[1] == 90_000)
