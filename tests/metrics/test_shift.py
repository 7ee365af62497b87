"""Shift between samples: against published tables of the Mann-Whitney test, and against counting all arrangements."""

from itertools import combinations, product
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.shift import _rank, shift

# Critical values of U from the tables in statistics textbooks: reject where U is at most this, two-sided.
TABLES = {
    0.95: {(4, 4): 0, (5, 5): 2, (5, 8): 6, (8, 8): 13, (10, 10): 23, (12, 15): 49, (20, 20): 127},
    0.9: {(3, 3): 0, (4, 4): 1, (5, 5): 4, (8, 8): 15, (10, 10): 27, (20, 20): 138},
    0.99: {(5, 5): 0, (8, 8): 7, (10, 10): 16, (20, 20): 105},
}


@pytest.mark.parametrize(
    ("confidence", "sizes", "critical"), [(c, sizes, u) for c, table in TABLES.items() for sizes, u in table.items()]
)
def test_published_tables(confidence, sizes, critical):
    assert _rank(*sizes, confidence) == critical
    assert _rank(*sizes[::-1], confidence) == critical


@pytest.mark.parametrize(("sizes", "confidence"), [((3, 3), 0.95), ((2, 2), 0.9), ((0, 9), 0.9), ((1, 9), 0.9)])
def test_too_few_values_tell_nothing(sizes, confidence):
    assert shift([1.0] * sizes[0], [2.0] * sizes[1], confidence) is None


def test_many_values_as_the_normal_distribution_has_it():
    """The exact count and the approximation agree where one takes over from the other."""
    exact, approximate = _rank(50, 50, 0.9), _rank(50, 51, 0.9)
    # U of two samples of 50 has mean 1250 and deviation 145.1; 5 % lie below 1250 - 1.645 × 145.1 = 1011.
    assert exact == pytest.approx(1010, abs=2)
    assert approximate == pytest.approx(1275 - 1.645 * 147.3 - 0.5, abs=2)


def test_the_longest_runs_fit_into_memory():
    found = shift(range(100_000), range(7, 100_007), 0.9)
    assert found.estimate == pytest.approx(7, abs=1)


values = st.lists(st.integers(0, 30).map(float), min_size=1, max_size=5)


@given(values, values)
def test_interval_is_what_the_test_does_not_reject(base, new):
    """Against the test itself, all arrangements of untied values counted one by one."""
    n, m, confidence = len(base), len(new), 0.9
    found = shift(base, new, confidence)
    tail = [u_of(chosen, n + m) for chosen in combinations(range(n + m), n)]
    rejected = [u for u in range(n * m) if sum(v <= u for v in tail) <= (1 - confidence) / 2 * len(tail) + 1e-9]
    if not rejected:
        assert found is None
        return
    differences = sorted(b - a for a, b in product(base, new))
    assert found.estimate == median(differences)
    assert (found.low, found.high) == (differences[max(rejected)], differences[-1 - max(rejected)])


def u_of(chosen, count):
    """Pairs in which a chosen position comes after one that is not chosen."""
    return sum(1 for c in chosen for other in range(count) if other not in chosen and other < c)


@given(values, values)
def test_the_other_way_round_is_the_mirror(base, new):
    there, back = shift(base, new, 0.9), shift(new, base, 0.9)
    assert (there is None) == (back is None)
    if there:
        assert (there.estimate, there.low, there.high) == (-back.estimate, -back.high, -back.low)
