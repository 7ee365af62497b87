"""The replay's core against a simulation that lets time pass tick by tick, and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.replay.longest_path import NEVER, CycleError, Order


def earliest(size, edges, weights, release):
    """``edges`` are (source, target); ``weights`` a list of variants, each a weight an edge."""
    source, target = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    order = Order.of(size, source, target)
    weight = np.array(weights, np.float64).reshape(len(weights), len(edges)).T
    return order.earliest(weight, np.array(release, np.float64)).T.tolist()


def tick_by_tick(size, edges, weights, release):
    """What happens when time passes: at each tick everything happens whose conditions have been met."""
    happened = {}
    for now in range(1_000):
        again = True
        while again:  # what happens now can let other things happen now
            again = False
            for node in range(size):
                met = all(
                    weight == NEVER or (source in happened and now >= happened[source] + weight)
                    for (source, target), weight in zip(edges, weights, strict=True)
                    if target == node
                )
                if node not in happened and now >= release[node] and met:
                    happened[node] = now
                    again = True
        if len(happened) == size:
            return [happened[node] for node in range(size)]
    raise AssertionError("some events never happen")


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 9))
    names = draw(st.permutations(range(size)))
    pairs = [(names[a], names[b]) for a in range(size) for b in range(a + 1, size)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=18)) if pairs else []
    lengths = st.lists(st.integers(0, 20) | st.just(NEVER), min_size=len(edges), max_size=len(edges))
    variants = draw(st.lists(lengths, min_size=1, max_size=3))
    release = draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
    return size, edges, variants, release


@given(graphs())
def test_as_if_time_passed(graph):
    """Random graphs with dependencies that do not hold, in several variants at once."""
    size, edges, variants, release = graph
    found = earliest(size, edges, variants, release)
    assert found == [tick_by_tick(size, edges, weights, release) for weights in variants]


def test_by_hand():
    """Two ranks arrive at 3 and at 8; what takes 4 from then on ends for both at 12, then one works for 5 more."""
    edges = [(0, 2), (1, 2), (2, 3), (2, 4)]
    assert earliest(5, edges, [[0, 0, 4, 4 + 5]], [3, 8, NEVER, NEVER, NEVER]) == [[3, 8, 8, 12, 17]]


def test_nothing_holds_what_no_edge_and_no_release_hold():
    assert earliest(2, [(0, 1)], [[NEVER]], [5, NEVER]) == [[5, NEVER]]


def test_events_that_wait_for_each_other_are_an_error():
    with pytest.raises(CycleError):
        Order.of(3, np.array([0, 1, 2]), np.array([1, 2, 1]))


def test_no_edges_at_all():
    assert earliest(2, [], [[]], [1, 2]) == [[1, 2]]
