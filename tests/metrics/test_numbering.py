"""Steps of ranks that number them differently, put beside each other by their collectives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laid_out import ClockOf, Job, lock_step

import tracekit
from tracekit.metrics.numbering import common_numbers
from tracekit.options import Options

MS = 1_000_000


def job(number, *, ranks=3, **facts):
    """Steps whose marks carry the number that ``number`` gives by (rank, step); irregular, as real ones are."""
    made = Job(ranks, **facts)
    length = np.random.default_rng(5).integers(400_000, 900_000, (10, 5))
    lock_step(made, steps=10, compute=lambda r, step, layer: int(length[step, layer]) + (90_000 if r == 1 else 0))
    for rank in range(ranks):
        made.ranges[rank] = [
            (*each[:4], number(rank, each[4]), each[5]) if each[2] == "step" else each for each in made.ranges[rank]
        ]
    return made


def by_rank(found):
    return [[step.step for step in rank.steps] for rank in found.ranks]


def test_ranks_that_count_from_other_numbers():
    """GIVEN marks 0-9, 1-10 and 40-49, THEN all are rank 0's, in steps, steady figures and findings, and it is said."""
    found = tracekit.analyze(job(lambda rank, step: step + [0, 1, 40][rank]).timeline())
    same = tracekit.analyze(job(lambda rank, step: step).timeline())
    assert by_rank(found) == by_rank(same) == [list(range(10))] * 3
    assert found.steady == same.steady
    assert found.stragglers == same.stragglers
    assert [rank.steps_renumbered for rank in found.ranks] == [False, True, True]
    (said,) = [f for f in found.findings if f.rule == "TK904"]
    assert said.ranks == (1, 2)
    assert {f.steps for f in found.findings if f.rule != "TK904"} == {f.steps for f in same.findings}
    assert not [f for f in same.findings if f.rule == "TK904"]
    (note,) = [note for note in found.captures[0].notes if note.startswith("rank 2")]
    assert "40 here is now called 0" in note


@pytest.mark.parametrize("offset", [0, 7 * 10**9])
def test_captures_of_their_own_that_start_at_other_steps(offset):
    """GIVEN rank 1's capture two steps late and counted from 0, THEN its steps are 2-9 of rank 0."""
    made = job(lambda rank, step: step - 2 * rank, ranks=2, capture_of=[0, 1], clocks={1: ClockOf(offset)})
    begin = made.ranges[0]
    cut = next(r[0] for r in begin if r[2] == "step" and r[4] == 2)
    made.ranges[1] = [r for r in made.ranges[1] if r[0] >= cut]
    made.ops[1] = [op for op in made.ops[1] if op.called >= cut]
    found = tracekit.analyze(made.timeline())
    assert by_rank(found) == [list(range(10)), list(range(2, 10))]
    assert found.ranks[1].clock.offset_ns == pytest.approx(offset, abs=5_000)


def test_a_capture_that_starts_before_the_first_ranks():
    """No step has a number below 0: then all move up, the first rank's too."""
    made = job(lambda rank, step: step - 2 * (rank == 0), ranks=2)
    cut = next(r[0] for r in made.ranges[0] if r[2] == "step" and r[4] == 0)
    made.ranges[0] = [r for r in made.ranges[0] if r[0] >= cut]
    made.ops[0] = [op for op in made.ops[0] if op.called >= cut]
    found = tracekit.analyze(made.timeline())
    assert by_rank(found) == [list(range(2, 10)), list(range(10))]


def test_without_one_clock_the_numbers_stay():
    made = job(lambda rank, step: step + rank, ranks=2, capture_of=[0, 1])
    assert by_rank(tracekit.analyze(made.timeline(), Options(align=False))) == [list(range(10)), list(range(1, 11))]


def test_without_collectives_the_numbers_stay():
    made = job(lambda rank, step: step + rank, ranks=2)
    made.ops = [[op for op in ops if "nccl" not in op.name] for ops in made.ops]
    assert by_rank(tracekit.analyze(made.timeline())) == [list(range(10)), list(range(1, 11))]


class Columns:
    """Just what `common_numbers` looks at: one collective in each step, at the step's start."""

    def __init__(self, steps, first):
        self.ops = self
        self.row = np.arange(len(steps))
        self.start = np.array(steps, np.int64) * 10
        self.number = np.arange(len(steps)) + first
        self.end = self.start + 10

    def containing(self, t):
        return np.searchsorted(self.start, t)


class Kind:
    """The collectives of all ranks."""

    def __init__(self, ranks):
        steps = sorted(set().union(*ranks))
        self.members = tuple(range(len(ranks)))
        index = [[mine.index(step) if step in mine else -1 for step in steps] for mine in ranks]
        self.index = np.array(index).reshape(len(ranks), len(steps))


def numbered(ranks, first):
    columns = [Columns(*each) for each in zip(ranks, first, strict=True)]
    found = common_numbers(columns, columns, [Kind(ranks)], columns)
    return [dict(zip(steps, mine.tolist(), strict=True)) for steps, mine in zip(ranks, found, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(7, 12), st.integers(0, 50)), min_size=1, max_size=5))
def test_one_step_has_one_number(captures):
    """GIVEN captures from one step to another, all with step 6, each counting from a number of its own.

    THEN a step has one number on all ranks that hold it: the first rank's or, so that none is below 0, more.
    """
    ranks = [list(range(begin, end)) for begin, end, _ in captures]
    found = numbered(ranks, [first for *_, first in captures])
    shift = captures[0][2] - captures[0][0]
    lowest = min(0, shift + min(begin for begin, *_ in captures))
    assert found == [{step: step + shift - lowest for step in steps} for steps in ranks]


@given(st.lists(st.lists(st.integers(0, 12), unique=True).map(sorted), min_size=1, max_size=4))
def test_no_two_steps_of_a_rank_share_a_number(ranks):
    """Even where captures have holes, so that their numbers contradict one another."""
    for steps, mine in zip(ranks, numbered(ranks, [len(steps) for steps in ranks]), strict=True):
        assert len(set(mine.values())) == len(steps)
        assert min(mine.values(), default=0) >= 0


@pytest.mark.parametrize("drift", [0.0, 20e-6])
def test_a_window_is_one_time_on_all_clocks(drift):
    """GIVEN two captures with clocks far apart, WHEN a window is asked for, THEN it is one time of the job."""
    made = job(lambda rank, step: step, ranks=2, capture_of=[0, 1], clocks={1: ClockOf(40_000_000, drift)})
    timeline = made.timeline()
    steps = [step.start_ns for step in tracekit.analyze(timeline).ranks[0].steps]
    window = (steps[2], steps[5])
    found = tracekit.analyze(timeline, Options(window=window))
    assert [len(rank.steps) for rank in found.ranks] == [3, 3]
    first, second = found.ranks
    ahead = 40_000_000 + round(drift * first.start_ns)
    assert second.start_ns - first.start_ns == pytest.approx(ahead, abs=5_000)
    assert first.totals.wall_ns == pytest.approx(second.totals.wall_ns, abs=5_000)


def test_a_window_without_alignment_is_each_captures_own():
    made = job(lambda rank, step: step, ranks=2, capture_of=[0, 1], clocks={1: ClockOf(2_000)})
    timeline = made.timeline()
    start = tracekit.analyze(timeline).ranks[0].steps[2].start_ns
    found = tracekit.analyze(timeline, Options(window=(start, None), align=False))
    assert [rank.start_ns for rank in found.ranks] == [start, start]
