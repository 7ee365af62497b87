"""The account of a window, and means of accounts, against counting instant by instant."""

from dataclasses import asdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import oracle
import pytest
from handmade import COMMS, COMPUTE, COPIES, Sketch
from hypothesis import example, given
from hypothesis import strategies as st

from tracekit.metrics.accounting import FIELDS, PARTS, Covers, account, accounts, apportion, mean, round_share, total
from tracekit.results import Account

KINDS = ("compute", "comm", "copy")
OP = st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(KINDS)).map(lambda o: (o[0], o[0] + o[1], o[2]))
OPS = st.lists(OP, min_size=1, max_size=14)
CUTS = st.sets(st.integers(-5, 60), min_size=2, max_size=8).map(sorted)


def covers(ops, shift=0):
    rank = Sketch().process()
    add = {"compute": rank.kernel, "comm": rank.comm, "copy": rank.copy}
    for start, end, kind in ops:
        add[kind](start + shift, end + shift)
    return Covers.of(rank.build()[1][0])


def test_a_small_example_by_hand():
    """compute 0-10 and 14-20, comm 6-16, copy 15-26; the window ends at 30: 26-30 is idle."""
    found = account(covers([(0, 10, "compute"), (14, 20, "compute"), (6, 16, "comm"), (15, 26, "copy")]), 0, 30)
    assert found == Account(
        wall_ns=30,
        compute_ns=16,
        exposed_comm_ns=4,
        exposed_copy_ns=6,
        idle_ns=4,
        comm_ns=10,
        overlapped_comm_ns=6,
    )
    assert found.overlap_ratio == 0.6


def test_ops_at_the_same_time_count_once():
    found = account(covers([(0, 10, "compute"), (0, 10, "compute"), (2, 8, "comm"), (4, 6, "comm")]), 0, 10)
    assert (found.compute_ns, found.comm_ns, found.overlapped_comm_ns) == (10, 6, 6)


def test_without_communication_there_is_no_ratio():
    assert account(covers([(0, 10, "compute")]), 0, 10).overlap_ratio is None


@given(OPS, CUTS)
def test_every_field_of_every_window(ops, cuts):
    """GIVEN ops of random kinds, WHEN windows tile a span, THEN each field is what counting instants gives."""
    start, end = np.array(cuts[:-1]), np.array(cuts[1:])
    found = accounts(covers(ops), start, end)
    expected = [oracle.account(ops, low, high) for low, high in pairwise(cuts)]
    assert [asdict(each) for each in found] == expected
    assert asdict(total(found)) == oracle.account(ops, cuts[0], cuts[-1])


@given(OPS, CUTS, st.sampled_from((-(2**62) + 100, 2**53 + 1, 2**62 - 100)))
def test_the_same_far_from_zero(ops, cuts, shift):
    found = account(covers(ops, shift), cuts[0] + shift, cuts[-1] + shift)
    assert asdict(found) == oracle.account(ops, cuts[0], cuts[-1])


@given(OPS, CUTS)
def test_identity(ops, cuts):
    found = account(covers(ops), cuts[0], cuts[-1])
    assert sum(getattr(found, part) for part in PARTS) == found.wall_ns == cuts[-1] - cuts[0]
    assert found.comm_ns == found.exposed_comm_ns + found.overlapped_comm_ns


def test_streams_do_not_matter():
    """Communication on the compute stream is communication all the same."""
    figures = set()
    for stream in (COMPUTE, COMMS, COPIES):
        rank = Sketch().process()
        rank.kernel(0, 10)
        rank.comm(10, 15, stream=stream)
        figures.add(account(Covers.of(rank.build()[1][0]), 0, 15))
    assert len(figures) == 1


def an_account(only_compute, overlapped, exposed_comm, exposed_copy, idle):
    return Account(
        wall_ns=only_compute + overlapped + exposed_comm + exposed_copy + idle,
        compute_ns=only_compute + overlapped,
        exposed_comm_ns=exposed_comm,
        exposed_copy_ns=exposed_copy,
        idle_ns=idle,
        comm_ns=overlapped + exposed_comm,
        overlapped_comm_ns=overlapped,
    )


LENGTH = st.integers(0, 3) | st.integers(0, 2**55)
ACCOUNTS = st.lists(st.tuples(*[LENGTH] * 5).map(lambda parts: an_account(*parts)), min_size=1, max_size=7)


@given(ACCOUNTS)
@example([an_account(49, 0, 2, 2, 2)] + [an_account(0, 0, 0, 0, 0)] * 9)
@example([an_account(1, 0, 1, 1, 1)] + [an_account(0, 0, 0, 0, 0)] * 2)
@example([an_account(1, 51, 3, 2, 2)] + [an_account(0, 0, 0, 0, 0)] * 9)
@example([an_account(0, 4, 1, 1, 0)] + [an_account(0, 0, 0, 0, 0)] * 4)
def test_mean_is_exact_within_a_nanosecond_and_adds_up(parts):
    found = mean(parts)
    for name in FIELDS:
        exact = Fraction(sum(getattr(part, name) for part in parts), len(parts))
        assert abs(getattr(found, name) - exact) <= 1, name
        assert getattr(found, name) >= 0, name
    assert sum(getattr(found, part) for part in PARTS) == found.wall_ns
    assert found.comm_ns == found.exposed_comm_ns + found.overlapped_comm_ns
    wall = Fraction(sum(part.wall_ns for part in parts), len(parts))
    assert abs(found.wall_ns - wall) <= Fraction(1, 2)


@given(ACCOUNTS.filter(lambda parts: len(parts) == 1))
def test_mean_of_one_is_itself(parts):
    assert mean(parts) == parts[0]


@given(st.lists(LENGTH, min_size=1, max_size=6), st.integers(1, 9))
def test_apportion_adds_up(amounts, n):
    exact = Fraction(sum(amounts), n)
    for whole in {exact.__floor__(), exact.__ceil__()}:
        parts = apportion(amounts, n, whole)
        assert sum(parts) == whole
        assert all(abs(part - Fraction(amount, n)) < 1 for part, amount in zip(parts, amounts, strict=True))


def test_apportion_rounds_the_largest_remainders_up():
    """5/4, 7/4, 6/4 and 0/4 to a whole of 4: the floors are 1, 1, 1, 0, and 7/4 is nearest to its next."""
    assert apportion([5, 7, 6, 0], 4, 4) == [1, 2, 1, 0]
    assert apportion([5, 7, 6, 0], 4, 5) == [1, 2, 2, 0]


@pytest.mark.parametrize(
    ("value", "n", "rounded"),
    [
        (0, 3, 0),
        (1, 3, 0),
        (2, 3, 1),
        (1, 2, 1),
        (3, 2, 2),
        (7, 7, 1),
        (2**62 + 1, 1, 2**62 + 1),
        (2**54 + 1, 2, 2**53 + 1),
    ],
)
def test_round_share(value, n, rounded):
    assert round_share(value, n) == rounded


@given(st.integers(0, 2**62), st.integers(1, 1000))
def test_round_share_is_within_half(value, n):
    assert abs(round_share(value, n) - Fraction(value, n)) <= Fraction(1, 2)
