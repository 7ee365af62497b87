"""Interval algebra against sets of instants."""

from itertools import pairwise

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.intervals import Cover, gaps, innermost, intersect, measure, owned, subtract, union

FARTHEST = 2**62 - 1


def columns(intervals):
    return (
        np.array([start for start, _ in intervals], np.int64),
        np.array([end for _, end in intervals], np.int64),
    )


def pairs(arrays):
    return list(zip(arrays[0].tolist(), arrays[1].tolist(), strict=True))


# Few distinct instants: overlapping, nested, touching, equal, empty and backwards intervals are all common.
INTERVAL = st.tuples(st.integers(-20, 20), st.integers(-20, 20))
INTERVALS = st.lists(INTERVAL, max_size=14)
FAR = st.sampled_from((-FARTHEST, -FARTHEST + 1, -(2**53) - 1, -1, 0, 1, 2**53 + 1, FARTHEST - 1, FARTHEST))
FAR_INTERVALS = st.lists(st.tuples(FAR, FAR), max_size=10)
CASES = {
    "none": [],
    "one": [(3, 7)],
    "empty": [(3, 3)],
    "backwards": [(7, 3)],
    "overlapping": [(0, 5), (3, 8)],
    "nested": [(0, 9), (2, 4), (5, 6)],
    "touching": [(0, 4), (4, 8)],
    "apart by one": [(0, 4), (5, 8)],
    "equal": [(2, 6), (2, 6), (2, 6)],
    "equal starts": [(2, 3), (2, 9), (2, 5)],
    "equal ends": [(1, 9), (4, 9), (8, 9)],
    "last first": [(20, 25), (10, 15), (0, 5)],
    "a long one before short ones": [(0, 30), (1, 2), (3, 4), (29, 31)],
    "empty inside": [(0, 4), (2, 2), (6, 6), (6, 8)],
    "many": [(3 * i, 3 * i + 1 + i % 3) for i in range(50)],
}
named = pytest.mark.parametrize("intervals", CASES.values(), ids=CASES.keys())


def check_union(intervals):
    assert pairs(union(*columns(intervals))) == oracle.runs(oracle.instants(intervals))


@named
def test_union_of_named_cases(intervals):
    check_union(intervals)


@given(INTERVALS)
def test_union(intervals):
    check_union(intervals)


@given(INTERVALS)
def test_union_keeps_its_arguments(intervals):
    start, end = columns(intervals)
    union(start, end)
    assert pairs((start, end)) == intervals


@given(INTERVALS, INTERVALS)
def test_subtract(a, b):
    result = pairs(subtract(union(*columns(a)), union(*columns(b))))
    assert result == oracle.runs(oracle.instants(a) - oracle.instants(b))


@given(INTERVALS, INTERVALS)
def test_intersect(a, b):
    result = pairs(intersect(union(*columns(a)), union(*columns(b))))
    assert result == oracle.runs(oracle.instants(a) & oracle.instants(b))


@given(st.sets(st.integers(-9, 9)), INTERVALS)
def test_intersect_of_touching_intervals(cuts, b):
    """Disjoint is enough: intervals that touch need not be merged."""
    edges = sorted({-10, 10} | cuts)
    tiles = list(pairwise(edges))
    start, end = intersect(columns(tiles), union(*columns(b)))
    assert oracle.instants(pairs((start, end))) == oracle.instants([(-10, 10)]) & oracle.instants(b)
    assert np.all(start < end)
    assert np.all(end[:-1] <= start[1:])


@given(INTERVALS, st.integers(-25, 25), st.integers(-25, 25))
def test_gaps(intervals, window_start, window_end):
    result = pairs(gaps(union(*columns(intervals)), window_start, window_end))
    assert result == oracle.runs(set(range(window_start, window_end)) - oracle.instants(intervals))


@named
def test_measure_of_named_cases(intervals):
    assert measure(union(*columns(intervals))) == len(oracle.instants(intervals))


@given(INTERVALS)
def test_measure(intervals):
    assert measure(union(*columns(intervals))) == len(oracle.instants(intervals))


@given(FAR_INTERVALS, FAR_INTERVALS)
def test_far_from_zero_every_sum_is_exact(a, b):
    of_a, of_b = union(*columns(a)), union(*columns(b))
    assert measure(of_a) == oracle.measure(a)
    both = measure(intersect(of_a, of_b))
    assert both == oracle.measure(a) + oracle.measure(b) - oracle.measure(a + b)
    assert measure(subtract(of_a, of_b)) == oracle.measure(a) - both
    assert measure(gaps(of_a, -FARTHEST, FARTHEST)) == 2 * FARTHEST - oracle.measure(a)


@given(FAR_INTERVALS, st.lists(FAR, max_size=5))
def test_cover_far_from_zero(intervals, t):
    before = Cover.of(*columns(intervals)).upto(np.array(t, np.int64)).tolist()
    assert before == [oracle.measure([(start, min(end, each)) for start, end in intervals]) for each in t]


@given(INTERVALS)
def test_owned_gives_each_instant_to_the_first_that_covers_it(intervals):
    intervals.sort(key=lambda interval: interval[0])
    seen: set[int] = set()
    expected = []
    for interval in intervals:
        expected.append(oracle.instants([interval]) - seen)
        seen |= expected[-1]
    start, end = owned(*columns(intervals))
    assert [set(range(low, high)) for low, high in pairs((start, end))] == expected
    assert np.all(start <= end)


@given(INTERVALS, st.lists(st.integers(-25, 25)))
def test_cover_upto(intervals, t):
    covered = oracle.instants(intervals)
    found = Cover.of(*columns(intervals)).upto(np.array(t, np.int64)).tolist()
    assert found == [sum(instant < each for instant in covered) for each in t]


@given(INTERVALS, st.lists(INTERVAL.map(sorted)))
def test_cover_within(intervals, windows):
    covered = oracle.instants(intervals)
    found = Cover.of(*columns(intervals)).within(*columns(windows)).tolist()
    assert found == [len(covered & set(range(low, high))) for low, high in windows]


TREE = st.recursive(
    st.just([]), lambda children: st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), children), max_size=4)
)


def nested(children, at=0):
    """Lay a tree out: each node is (time before it, its own time after its children, children); returns where it ends.

    Neighbours may touch, children may fill their parent, and intervals may be empty.
    """
    found = []
    for before, own, grandchildren in children:
        start = at + before
        inside, end = nested(grandchildren, start)
        at = end + own
        found += [(start, at), *inside]
    return found, at


@given(TREE, st.randoms(use_true_random=False))
def test_innermost_of_nested_intervals(tree, random):
    """GIVEN intervals as pushes and pops make them, WHEN asked at every instant, THEN it is the shortest around it."""
    intervals, stop = nested(tree)
    random.shuffle(intervals)
    t = list(range(-1, stop + 2))
    found = innermost(*columns(intervals), np.array(t, np.int64)).tolist()
    assert [intervals[i] if i >= 0 else None for i in found] == [oracle.innermost(intervals, each) for each in t]


@given(INTERVALS)
def test_innermost_of_crossing_intervals_contains_the_instant_if_any_does(intervals):
    t = list(range(-21, 22))
    found = innermost(*columns(intervals), np.array(t, np.int64)).tolist()
    for each, i in zip(t, found, strict=True):
        around = [interval for interval in intervals if interval[0] <= each < interval[1]]
        assert (intervals[i] in around) if around else i == -1


def test_innermost_after_the_first_of_two_crossing_intervals_has_ended():
    start, end = columns([(0, 10), (5, 15)])
    assert innermost(start, end, np.array([4, 7, 10, 14, 15])).tolist() == [0, 1, 1, 1, -1]


def test_innermost_without_intervals_or_instants():
    nothing = np.empty(0, np.int64)
    assert innermost(nothing, nothing, np.array([1, 2])).tolist() == [-1, -1]
    assert innermost(np.array([1]), np.array([2]), nothing).tolist() == []


def test_innermost_two_thousand_deep():
    """Ranges that were pushed and never popped until the end, as a real capture has them."""
    depth = 2_000
    start, end = np.arange(depth), 2 * depth - np.arange(depth)
    t = np.arange(-1, 2 * depth + 1)
    expected = np.minimum(t, 2 * depth - 1 - t)
    assert innermost(start, end, t).tolist() == expected.clip(-1).tolist()


def test_innermost_of_many_ranges():
    """GIVEN 200,000 ranges in groups of one around four, THEN the answers are known by arithmetic."""
    groups = 40_000
    at = np.arange(groups) * 100
    start = np.concatenate([at, *(at + 10 + 20 * k for k in range(4))])
    end = np.concatenate([at + 90, *(at + 20 + 20 * k for k in range(4))])
    assert innermost(start, end, at + 5).tolist() == list(range(groups))
    assert innermost(start, end, at + 35).tolist() == list(range(2 * groups, 3 * groups))
    assert set(innermost(start, end, at + 95).tolist()) == {-1}


def test_innermost_of_many_crossing_ranges():
    """Every range crosses its neighbours: each instant is still given one that contains it."""
    start = np.arange(50_000) * 2
    end = start + 5
    t = np.arange(100_000)
    found = innermost(start, end, t)
    assert np.all((start[found] <= t) & (t < end[found]))
