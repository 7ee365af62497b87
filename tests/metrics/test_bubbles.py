"""Bubbles against looking at every instant."""

import itertools

import numpy as np
from handmade import Sketch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers, account
from tracekit.metrics.bubbles import CAUSES, BubbleWindows, Lost, bubbles_of
from tracekit.metrics.identity import rank_collectives
from tracekit.metrics.together import put_together
from tracekit.timeline import NONE

KINDS = ("compute", "comm", "copy")
OP = st.tuples(st.integers(0, 40), st.integers(1, 12), st.sampled_from(KINDS)).map(lambda o: (o[0], o[0] + o[1], o[2]))
OPS = st.lists(OP, min_size=1, max_size=14)
CUTS = st.sets(st.integers(0, 52), min_size=2, max_size=6).map(sorted)


def laid(ops):
    """The rank's operations in the order of its table, and what `bubbles_of` needs."""
    made = Sketch()
    rank = made.process()
    add = {"compute": rank.kernel, "comm": rank.comm, "copy": rank.copy}
    for start, end, kind in ops:
        add[kind](start, end)
    timeline = made.timeline()
    (track,) = timeline.ranks
    covers = Covers.of(track.ops)
    span = (min(op[0] for op in ops), max(op[1] for op in ops))
    found = rank_collectives(timeline, track, covers, span, {})
    (waits,) = put_together(timeline, [track], [found], [covers], DEFAULT, align=True).waits
    return track.ops, covers, found, waits


def windows_of(cuts):
    return BubbleWindows(start=np.array(cuts[:-1]), end=np.array(cuts[1:]), step=np.arange(len(cuts) - 1) + 5)


def by_instant(ops, cuts):
    """{instant: (what is lost, row of the operation that it belongs to, step)} by looking at each instant."""
    rows = sorted(range(len(ops)), key=lambda i: ops[i][:2])
    found = {}
    for step in range(len(cuts) - 1):
        for t in range(cuts[step], cuts[step + 1]):
            here = [(row, ops[i][2]) for row, i in enumerate(rows) if ops[i][0] <= t < ops[i][1]]
            if any(kind == "compute" for _, kind in here):
                continue
            comms, copies = ([row for row, k in here if k == kind] for kind in ("comm", "copy"))
            lost, own = (0, comms) if comms else (1, copies) if copies else (2, [NONE])
            found[t] = (lost, own[0], step + 5)
    return found


@given(OPS, CUTS)
def test_every_instant_without_compute_is_in_one_bubble(ops, cuts):
    """GIVEN operations of random kinds, WHEN windows tile a span, THEN bubbles are what each instant tells."""
    found = bubbles_of(*laid(ops), windows_of(cuts))
    told = {}
    columns = (found.start, found.end, found.lost, found.op, found.step)
    for start, end, lost, op, step in zip(*(column.tolist() for column in columns), strict=True):
        assert start < end
        for t in range(start, end):
            assert t not in told
            told[t] = (lost, op, step)
    assert told == by_instant(ops, cuts)
    assert found.start.tolist() == sorted(found.start.tolist())


@given(OPS, CUTS)
def test_they_add_up_to_the_account(ops, cuts):
    table = laid(ops)
    found = bubbles_of(*table, windows_of(cuts))
    for step, (start, end) in enumerate(itertools.pairwise(cuts), start=5):
        whole = account(table[1], start, end)
        sums = [int(found.ns[(found.step == step) & (found.lost == lost)].sum()) for lost in Lost]
        assert sums == [whole.exposed_comm_ns, whole.exposed_copy_ns, whole.idle_ns]


@given(OPS, CUTS)
def test_what_runs_before_and_after(ops, cuts):
    found = bubbles_of(*laid(ops), windows_of(cuts))
    rows = sorted(ops, key=lambda op: op[:2])
    for i in range(len(found)):
        ended = [op[1] for op in rows if op[1] <= found.start[i]]
        later = [row for row, op in enumerate(rows) if op[0] >= found.end[i]]
        before = int(found.before[i])
        assert (before == NONE) == (not ended)
        assert before == NONE or rows[before][1] == max(ended)
        assert found.after[i] == (later[0] if later else NONE)


def test_causes_end_in_unknown_and_are_distinct():
    for names in CAUSES.values():
        assert names[-1] == "unknown"
        assert len(set(names)) == len(names)


def test_a_gather_that_is_exposed_twice_has_two_bubbles():
    """Gather 0-30 with compute 10-20 in the middle of it, a copy 25-40, then nothing until a kernel at 50."""
    made = bubbles_of(*laid([(0, 30, "comm"), (10, 20, "compute"), (25, 40, "copy"), (50, 60, "compute")]), _one(0, 60))
    assert list(zip(made.start.tolist(), made.end.tolist(), made.lost.tolist(), made.op.tolist(), strict=True)) == [
        (0, 10, Lost.EXPOSED_COMM, 0),
        (20, 30, Lost.EXPOSED_COMM, 0),
        (30, 40, Lost.EXPOSED_COPY, 2),
        (40, 50, Lost.IDLE, NONE),
    ]


def _one(start, end):
    return BubbleWindows(start=np.array([start]), end=np.array([end]), step=np.array([NONE]))
