"""Clocks found again that were laid on known instants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.config import DEFAULT
from tracekit.metrics.clocks import SAME, ClockFit, align_captures, fit_captures, fit_pair
from tracekit.metrics.lags import lag_at
from tracekit.metrics.pieces import pairs_by_pieces

SECOND = 1_000_000_000
LAYERS = np.array([1_900_000, 2_100_000, 2_000_000, 6_500_000, 4_200_000, 4_100_000, 900_000])


def job(steps=40, seed=1, spread=0.03, layers=LAYERS):
    """Ends of collectives: the same layers each step, each time a little longer or shorter."""
    gaps = np.tile(layers, steps) * np.random.default_rng(seed).normal(1, spread, steps * len(layers))
    return 3 * SECOND + np.cumsum(gaps.astype(np.int64))


def seen(ends, offset=0, drift=0.0, jitter=700, seed=2):
    """What another capture's clock reads at these instants."""
    noise = np.random.default_rng(seed).integers(-jitter, jitter + 1, len(ends)) if jitter else 0
    return ends + offset + np.rint(drift * ends).astype(np.int64) + noise


def fit(own, other, coarse=None):
    return fit_pair({"x": own}, {"x": other}, coarse, DEFAULT)


@pytest.mark.parametrize("drift", [50e-6, -50e-6, 3e-6])
@pytest.mark.parametrize("coarse", [None, 5 * SECOND + 40_000_000])
def test_five_seconds_and_drift_are_found_to_five_microseconds(drift, coarse):
    reference = job()
    own = seen(reference, 5 * SECOND, drift)
    found = fit(own, reference, coarse)
    assert np.abs(found.to_reference(own) - reference).max() <= 5_000
    assert abs(found.offset_ns - (own[0] - reference[0])) <= 5_000
    assert found.origin_ns == own[0]
    assert found.drift * 1e6 == pytest.approx(drift * 1e6, abs=1)
    assert found.method == "collectives"


def test_drift_is_not_read_into_noise():
    found = fit(seen(job(), 123, jitter=2_000), job())
    assert found.drift == 0
    assert found.offset_ns == pytest.approx(123, abs=500)


@pytest.mark.parametrize(("cut_own", "cut_other"), [(0, 13), (13, 0), (90, 60), (150, 0), (0, 150)])
@pytest.mark.parametrize("drift", [0.0, 40e-6])
def test_captures_start_and_end_at_different_collectives(cut_own, cut_other, drift):
    own, other = seen(job(), -2 * SECOND, drift)[cut_own:], job()[cut_other:]
    own, other = own[: len(own) - cut_other // 3], other[: len(other) - cut_own // 5]
    found = fit(own, other)
    truth = seen(job(), -2 * SECOND, drift, jitter=0)
    assert np.abs(found.to_reference(truth) - job()).max() <= 5_000


def test_a_short_capture_is_found_within_a_long_one():
    """Probes must lie where the two can overlap."""
    long = job(steps=500)
    for own, other in ((seen(long, 77_000)[3000:3030], long), (long, seen(long, -77_000)[3000:3030])):
        assert fit(own, other).offset_ns == pytest.approx(77_000, abs=500)


@pytest.mark.parametrize("period", [10_000_000, 35_700_000])
@pytest.mark.parametrize("shift", [0, 3, -4])
def test_of_a_perfectly_regular_job_the_coarse_clock_decides(period, shift):
    """GIVEN collectives a period apart to the ns, every lag fits; THEN the one nearest to the wall clock is taken."""
    reference = SECOND + period * np.arange(300)
    own = reference[shift:] + 7_000_000 if shift >= 0 else reference[: len(reference) + shift] + 7_000_000
    assert fit(own, reference, 7_000_000 + period // 3).offset_ns == 7_000_000


@pytest.mark.parametrize("coarse", [None, 4_000_000, -4_000_000])
def test_a_perfectly_regular_job_is_not_aligned_where_the_coarse_clock_does_not_decide(coarse):
    """GIVEN no wall clock, or one that stands between two periods, THEN either would be a guess."""
    reference = SECOND + 10_000_000 * np.arange(300)
    alignment = align_captures([{"x": reference}, {"x": reference + 123}], [0, coarse], DEFAULT)
    assert alignment.fits == (SAME, None)
    assert alignment.ambiguous == (1,)


def test_regular_steps_of_unlike_layers_are_not_shifted_by_a_layer():
    reference = job(spread=0.0)
    found = fit(seen(reference, 4_000_000)[7 * 5 :], reference, 4_000_000 + 7_000_000)
    assert found.offset_ns == pytest.approx(4_000_000, abs=500)


def test_eight_collectives_are_enough_and_seven_are_not():
    reference = job()[:8]
    assert fit(reference + 900, reference).offset_ns == 900
    assert fit((reference + 900)[:7], reference) is None
    assert fit(reference[:0], reference) is None


def test_captures_of_two_jobs_do_not_fit():
    assert fit(job(seed=8), job(seed=9)) is None
    other_model = np.array([1_100_000, 3_000_000, 1_500_000, 7_000_000, 3_100_000, 5_100_000, 900_000])
    assert fit(job(seed=8, layers=other_model), job(seed=8)) is None
    assert fit(job(seed=8) * 3 // 2, job(seed=8)) is None


DAY = 86_400 * SECOND


@pytest.mark.parametrize("off", [3600 * SECOND, DAY, -DAY])
@pytest.mark.parametrize(("cut", "drift"), [(0, 0.0), (23, 20e-6)])
def test_a_wall_clock_that_was_never_set_is_overruled_by_one_exact_fit(off, cut, drift):
    """GIVEN ends that are the same to the microsecond at one lag only, THEN they are of one job."""
    own, other = seen(job(), 5_000, drift)[cut:], job()
    found = fit(own, other, coarse=off)
    assert np.abs(found.to_reference(seen(job(), 5_000, drift, jitter=0)) - job()).max() <= 5_000


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (SECOND + 10_000_000 * np.arange(300), SECOND + 10_000_000 * np.arange(300)),
        (seen(job(spread=0.0)), job(spread=0.0)),
        (seen(job(), jitter=8_000), job()),
        (job(seed=8), job(seed=9)),
        (job(seed=8)[:8], job(seed=9)[:8]),
        (SECOND + 10_000_000 * np.arange(8), SECOND + 10_000_000 * np.arange(8)),
    ],
    ids=["regular", "regular steps", "loose", "other run", "few of another run", "few and regular"],
)
def test_the_wall_clock_is_not_overruled_by_less(own, other):
    """Two runs of one script an hour apart: where several lags fit, or none exactly, they are not taken for one."""
    assert fit(own, other, coarse=3600 * SECOND) is None


def test_a_wall_clock_wrong_by_less_than_a_minute_needs_no_exact_fit():
    assert fit(seen(job(), jitter=8_000), job(), coarse=30 * SECOND) is not None


def test_nothing_in_common():
    assert fit_pair({"x": job()}, {"y": job()}, None, DEFAULT) is None
    assert fit_pair({}, {}, None, DEFAULT) is None


def test_uncertainty_is_the_median_absolute_residual():
    """Of noise spread evenly over +-J the median absolute value is J / 2."""
    found = fit(seen(job(steps=300), 0, jitter=4_000), job(steps=300))
    assert found.uncertainty_ns == pytest.approx(2_000, rel=0.1)


def test_uncertainty_is_never_zero():
    assert fit(job() + 5, job()).uncertainty_ns == 1


@pytest.mark.parametrize("late", [5_000_000, -200_000])
def test_a_fifth_of_wrong_ends_does_not_sway_the_fit(late):
    reference = job(steps=60)
    truth = seen(reference, 5 * SECOND, 50e-6)
    rng = np.random.default_rng(5)
    wrong = rng.random(len(truth)) < 0.2
    own = truth.copy()
    own[wrong] += rng.integers(min(0, late), max(0, late), np.count_nonzero(wrong))
    found = fit(own, reference)
    assert found.drift * 1e6 == pytest.approx(50, abs=1)
    assert np.abs(found.to_reference(truth) - reference).max() <= 5_000


def test_collectives_of_another_group_under_one_name_do_not_sway_the_fit():
    """Without hashes, the k-th of a kind can be another group's: it ends at other times."""
    reference = job()
    other_group = reference + np.random.default_rng(6).integers(0, 400_000, len(reference))
    own = seen(reference, SECOND)
    found = fit_pair({"a": own, "b": own}, {"a": reference, "b": other_group}, None, DEFAULT)
    assert found.offset_ns == pytest.approx(SECOND, abs=500)
    assert found.uncertainty_ns < 1_000


def test_every_kind_lends_its_ends_to_the_fit():
    """The drift of a kind that ends early is found by one that goes on."""
    reference = job(steps=200)
    own = seen(reference, 0, 20e-6)
    found = fit_pair({"a": own[::2][:300], "b": own[1::2]}, {"a": reference[::2], "b": reference[1::2]}, None, DEFAULT)
    assert np.abs(found.to_reference(own) - reference).max() <= 5_000


def test_a_third_capture_is_reached_through_the_second():
    """GIVEN one that shares collectives with the second only, THEN its doubt includes the second's."""
    a, b = job(seed=1), job(seed=2)
    one = {"a": a}
    two = {"a": seen(a, SECOND, 10e-6, jitter=1_000), "b": seen(b, SECOND, 10e-6, jitter=0)}
    three = {"b": seen(b, -SECOND, -10e-6, jitter=1_000, seed=3)}
    first, second, third = fit_captures([one, two, three], [0, None, None], DEFAULT)
    assert first == SAME
    assert np.abs(second.to_reference(two["a"]) - a).max() <= 5_000
    assert np.abs(third.to_reference(three["b"]) - b).max() <= 5_000
    assert third.uncertainty_ns == pytest.approx(1_000, rel=0.25)  # 500 each
    assert second.uncertainty_ns == pytest.approx(500, rel=0.25)


def test_the_order_of_captures_does_not_matter_to_who_is_reached():
    a, b = job(seed=1), job(seed=2)
    far, bridge = {"b": seen(b, 9 * SECOND)}, {"a": seen(a, SECOND), "b": seen(b, SECOND)}
    fits = fit_captures([{"a": a}, far, bridge], [None] * 3, DEFAULT)
    assert [round(f.offset_ns / 1e6) for f in fits] == [0, 9_000, 1_000]


def test_one_stranger_does_not_keep_the_others_from_being_aligned():
    fits = fit_captures([{"a": job()}, {"a": job(seed=77)}, {"a": seen(job(), 500)}], [None] * 3, DEFAULT)
    assert fits[1] is None
    assert fits[2].offset_ns == pytest.approx(500, abs=300)


def test_no_captures():
    assert fit_captures([], [], DEFAULT) == []


def test_the_search_among_twenty_thousand_collectives():
    reference = job(steps=3000)
    found = fit(seen(reference, 5 * SECOND, 30e-6)[70:], reference)
    assert np.abs(found.to_reference(seen(reference, 5 * SECOND, 30e-6)) - reference).max() <= 5_000


def test_a_clock_is_brought_to_the_reference_in_whole_ns():
    clock = ClockFit(offset_ns=1_000, drift=1e-6, origin_ns=5_000, uncertainty_ns=1, method="collectives")
    # 2,000,000 ns after the origin a clock that is 1 ppm fast is 2 ns further ahead.
    assert clock.to_reference(np.array([5_000, 2_005_000])).tolist() == [4_000, 2_005_000 - 1_000 - 2]


@pytest.mark.parametrize("lag", [-1000, -40, 0, 3, 1000])
def test_the_lag_at_a_known_offset(lag):
    """Also where one capture holds only the last part of the other: its middle is in no common part."""
    every = job(steps=200)
    own, other = (every[lag:], every) if lag >= 0 else (every, every[-lag:])
    # own[i + lag] is other[i]: what starts later has the smaller index.
    assert lag_at(own + 55_000, other, 55_000.0) == -lag


def test_no_lag_pairs_captures_that_do_not_overlap():
    every = job()
    early, late = every[:100], every[150:]
    assert lag_at(early, late, 0.0) >= len(early)
    assert -lag_at(late, early, 0.0) >= len(early)


@given(
    offset=st.integers(-(10**13), 10**13),
    drift_ppm=st.floats(-100, 100),
    jitter=st.integers(0, 1_500),
    cut_own=st.integers(0, 60),
    cut_other=st.integers(0, 60),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_any_clock_is_found(offset, drift_ppm, jitter, cut_own, cut_other, seed):
    every = job(steps=30, seed=seed)
    truth = seen(every, offset, drift_ppm * 1e-6, jitter=0)
    own = seen(every, offset, drift_ppm * 1e-6, jitter, seed)[cut_own:]
    other = every[: len(every) - cut_other]
    found = fit(own, other)
    assert np.abs(found.to_reference(truth) - every).max() <= 5_000


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 0.12),
    st.sampled_from([0, 5 * SECOND, -3 * SECOND]),
    st.sampled_from([0.0, 50e-6, -20e-6]),
)
@settings(deadline=None, max_examples=40)
def test_pairs_by_pieces_are_pairs(seed, lost, offset, drift):
    """GIVEN ends of which both captures lost some, THEN what is paired is one end, and most of what both have is."""
    rng = np.random.default_rng(seed)
    truth = job(seed=seed % 50)
    here, there = (rng.random(len(truth)) >= lost for _ in range(2))
    own, other = np.sort(seen(truth, offset, drift)[here]), truth[there]
    a, b = pairs_by_pieces(own, other, 4_000, 50_000, 1e-3)
    assert np.all(np.diff(b) > 0)
    assert np.all(np.abs(a - b - offset - drift * b) <= 100_000)
    assert len(a) >= 0.7 * np.count_nonzero(here & there)


def test_strangers_have_no_pairs():
    a, b = pairs_by_pieces(job(seed=1), job(seed=2), 4_000, 50_000, 1e-3)
    assert len(a) == len(b) == 0
    assert len(pairs_by_pieces(job()[:5], job(), 4_000, 50_000, 1e-3)[0]) == 0
