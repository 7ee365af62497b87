"""Which steps are steady, and what is said of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.config import Thresholds
from tracekit.metrics.steady import steady_steps
from tracekit.results import Account, Step


def steps(walls, first=0):
    found, at = [], 0
    for number, wall in enumerate(walls, first):
        account = Account(
            wall_ns=wall,
            compute_ns=wall,
            exposed_comm_ns=0,
            exposed_copy_ns=0,
            idle_ns=0,
            comm_ns=0,
            overlapped_comm_ns=0,
        )
        found.append(Step(step=number, start_ns=at, end_ns=at + wall, account=account))
        at += wall
    return found


def ending(walls, first=0):
    """The steps of a capture that ends with the last one."""
    *others, last = steps(walls, first)
    return [*others, replace(last, followed=False)]


def steady(*walls, skip=None, **facts):
    return steady_steps([steps(each) for each in walls], Thresholds(), skip, **facts)


@pytest.mark.parametrize(
    ("walls", "kept"),
    [
        ([100, 100, 100, 100], (1, 2, 3)),
        ([50, 100, 100, 100], (1, 2, 3)),
        ([900, 151, 100, 100, 100], (2, 3, 4)),
        ([900, 150, 100, 100, 100], (1, 2, 3, 4)),  # exactly 1.5 × the median stays
        ([900, 800, 700, 100, 100, 100, 100], (3, 4, 5, 6)),
        ([100, 100, 900, 100, 100], (1, 2, 3, 4)),  # a slow one in the middle stays
        ([100, 100, 100, 900], (1, 2, 3)),
        ([300, 900], (1,)),
        ([300], (0,)),
    ],
)
def test_the_first_and_slow_leading_steps_are_left_out(walls, kept):
    found = steady(walls)
    assert found.steps == kept
    assert found.left_out == tuple(range(kept[0]))


def test_the_last_step_is_kept_however_slow_it_is():
    """Something has to stay, even at many times the first step's time."""
    assert steady([1, 1000]).steps == (1,)


def test_the_median_is_over_all_steps_of_the_mean_over_ranks():
    """Rank 1 is slow in step 1 alone: mean 160 of (100, 220) against a median of 100."""
    assert steady([500, 100, 100, 100, 100], [500, 220, 100, 100, 100]).left_out == (0, 1)
    assert steady([500, 100, 100, 100, 100], [500, 200, 100, 100, 100]).left_out == (0,)


@pytest.mark.parametrize(("skip", "kept"), [(0, (0, 1, 2, 3)), (1, (1, 2, 3)), (2, (2, 3)), (3, (3,)), (9, (3,))])
def test_skip_leaves_out_exactly_so_many(skip, kept):
    assert steady([900, 900, 100, 100], skip=skip).steps == kept


def test_picked_steps_are_all_kept():
    assert steady([900, 100, 100], all_of_them=True).steps == (0, 1, 2)
    assert steady([900, 100, 100], skip=1, all_of_them=True).steps == (0, 1, 2)


def test_without_steps_nothing_is_steady():
    assert steady([], []) is None


def test_step_time_is_the_median_over_steps_and_ranks():
    found = steady([900, 100, 110, 130], [900, 100, 120, 140])
    assert found.step_time_ns == 115  # of 100 100 110 120 130 140
    assert found.account.wall_ns == 117  # mean 116.67
    # The 95th percentile lies at 0.95 × 5 = 4.75 between the fifth and the sixth: 130 + 0.75 × 10.
    assert found.step_time_p95_ns == 138


def test_ranks_may_begin_and_end_at_different_steps():
    """GIVEN a rank that saw one step earlier and one that saw one later, THEN order is by number."""
    by_rank = [steps([100] * 4, first=11), steps([100] * 3, first=10), steps([100] * 2, first=14)]
    found = steady_steps(by_rank, Thresholds(), None)
    assert (found.left_out, found.steps) == ((10,), (11, 12, 13, 14, 15))


def test_a_step_that_the_longest_rank_lacks_is_put_in_its_place():
    lacks_one = [step for step in steps([100] * 5) if step.step != 1]
    found = steady_steps([lacks_one, steps([100] * 3)], Thresholds(), None)
    assert (found.left_out, found.steps) == ((0,), (1, 2, 3, 4))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.sampled_from((1.2, 1.5, 3.0)))
def test_left_out_and_kept_are_the_steps_in_order(walls, ratio):
    """By the definition: past the first, a leading step is left out while it is longer than the ratio × the median."""
    found = steady_steps([steps(walls)], Thresholds(warm_up_ratio=ratio), None)
    ordered = sorted(walls)
    twice_median = ordered[(len(walls) - 1) // 2] + ordered[len(walls) // 2]
    leading = 1 if len(walls) > 1 else 0
    while leading < len(walls) - 1 and 2 * walls[leading] > ratio * twice_median:
        leading += 1
    assert found.left_out + found.steps == tuple(range(len(walls)))
    assert len(found.left_out) == leading


@pytest.mark.parametrize(
    ("walls", "kept", "cut"),
    [
        ([900, 100, 100, 100, 80], (1, 2, 3), (4,)),
        ([900, 100, 100, 100, 94], (1, 2, 3), (4,)),
        ([900, 100, 100, 100, 95], (1, 2, 3, 4), ()),  # exactly 5 % shorter stays
        ([900, 100, 100, 100, 100], (1, 2, 3, 4), ()),
        ([900, 100, 100, 100, 500], (1, 2, 3, 4), ()),
        ([900, 100, 60, 100, 100], (1, 2, 3, 4), ()),  # one in the middle is followed
        ([900, 100, 10], (1,), (2,)),
        ([100, 10], (1,), ()),  # no other step is left
        ([10], (0,), ()),
    ],
)
def test_a_last_step_that_was_cut_off_is_left_out(walls, kept, cut):
    found = steady_steps([ending(walls)], Thresholds(), None)
    assert (found.steps, found.cut_off) == (kept, cut)
    assert sorted(found.all_steps) == list(range(len(walls)))
    followed = steady_steps([steps(walls)], Thresholds(), None)
    assert (followed.steps, followed.cut_off) == (tuple(sorted(kept + cut)), ())


def test_the_threshold_says_how_short_is_cut_off():
    assert steady_steps([ending([900, 100, 100, 85])], Thresholds(cut_off_share=0.2), None).cut_off == ()


def test_what_was_cut_off_is_in_no_figure():
    found = steady_steps([ending([900, 112, 113, 113, 82])], Thresholds(), None)
    assert (found.step_time_ns, found.account.wall_ns, found.step_time_p95_ns) == (113, 113, 113)


def test_captures_that_end_in_different_steps():
    """GIVEN rank 0 that ends in step 4 and rank 1 in step 3, both cut off, THEN neither step counts."""
    by_rank = [ending([900, 100, 100, 100, 30]), ending([900, 100, 100, 70])]
    found = steady_steps(by_rank, Thresholds(), None)
    assert (found.steps, found.cut_off) == ((1, 2), (3, 4))


def test_picked_steps_are_kept_though_they_were_cut_off():
    assert steady_steps([ending([900, 100, 100, 30])], Thresholds(), None, all_of_them=True).cut_off == ()
