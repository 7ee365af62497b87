"""What NVTX says about each launch, and who speaks for threads that say nothing."""

import numpy as np
import oracle
from handmade import AUTOGRAD, MAIN, Sketch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.labels import label_calls, main_thread, vocabulary
from tracekit.timeline import NONE

PHASES = ("forward", "backward", "optimizer", "data")


def labels(timeline, speaker):
    """Phase of each call, in order of calls."""
    process = timeline.processes[0]
    words = vocabulary(timeline, process.ranges)
    marked = words.where(lambda a: a.phase is not None)
    codes = np.array([PHASES.index(a.phase) if a and a.phase else NONE for a in words.annotations], np.int64)
    found = label_calls(process, marked, codes[words.of], speaker)
    return [PHASES[code] if code != NONE else None for code in found.tolist()]


def test_the_innermost_range_around_a_call_names_it():
    job = Sketch()
    rank = job.process()
    rank.range("optimizer", 0, 100)
    rank.range("forward", 10, 20)
    for called in (5, 10, 19, 20, 99, 100):
        rank.kernel(called, called + 1, called=called)
    assert labels(job.timeline(), MAIN) == ["optimizer", "forward", "forward", "optimizer", "optimizer", None]


def test_ranges_without_the_meaning_do_not_hide_those_around_them():
    job = Sketch()
    rank = job.process()
    rank.range("forward", 0, 100)
    rank.range("aten::mm", 10, 20)
    rank.range("layers.3", 10, 20)
    rank.kernel(15, 16, called=15)
    assert labels(job.timeline(), MAIN) == ["forward"]


def test_the_speaker_is_asked_where_a_thread_is_silent():
    job = Sketch()
    rank = job.process()
    rank.range("backward", 0, 100, thread=MAIN)
    rank.range("forward", 50, 60, thread=AUTOGRAD)  # recomputed activations
    for called in (10, 55):
        rank.kernel(called, called + 1, called=called, thread=AUTOGRAD)
    assert labels(job.timeline(), MAIN) == ["backward", "forward"]
    assert labels(job.timeline(), None) == [None, "forward"]


def test_a_thread_that_is_not_the_speaker_names_only_its_own_calls():
    job = Sketch()
    rank = job.process()
    rank.range("data", 0, 100, thread=AUTOGRAD)
    rank.range("forward", 0, 5, thread=MAIN)
    rank.kernel(10, 11, called=10, thread=MAIN)
    assert labels(job.timeline(), MAIN) == [None]


def test_without_ranges_or_calls_there_are_no_labels():
    job = Sketch()
    rank = job.process()
    rank.kernel(10, 11)
    assert labels(job.timeline(), None) == []
    rank.kernel(10, 11, called=5)
    assert labels(job.timeline(), MAIN) == [None]


def test_the_main_thread_is_the_one_with_most_time():
    job = Sketch()
    rank = job.process()
    for at in range(5):
        rank.range("forward", at, at + 1, thread=AUTOGRAD)
    rank.range("forward", 0, 50, thread=MAIN)
    ranges = rank.build()[0].ranges
    assert main_thread(ranges, np.ones(len(ranges), np.bool_)) == MAIN
    assert main_thread(ranges, ranges.thread == AUTOGRAD) == AUTOGRAD
    assert main_thread(ranges, np.zeros(len(ranges), np.bool_)) is None


def test_one_name_means_different_things_in_different_domains():
    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 10, domain="tracekit")
    rank.range("step", 20, 30, domain="NCCL")
    rank.range("step", 40, 50)
    timeline = job.timeline()
    words = vocabulary(timeline, timeline_ranges := timeline.processes[0].ranges)
    assert words.where(lambda a: a.step == "tracekit").tolist() == [True, False, False]
    assert words.where(lambda a: a.step == "step").tolist() == [False, False, True]
    assert len(words.of) == len(timeline_ranges)


NESTED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(PHASES)), max_size=6)


@given(NESTED, NESTED, st.lists(st.tuples(st.integers(-2, 45), st.sampled_from((MAIN, AUTOGRAD))), max_size=12))
def test_every_call_gets_the_shortest_range_of_its_thread_else_of_the_speaker(mine, theirs, calls):
    job = Sketch()
    rank = job.process()
    ranges = {}
    for thread, rings in ((MAIN, mine), (AUTOGRAD, theirs)):
        low, high = 0, 40
        for left, right, phase in rings:  # each inside the one before
            low, high = low + left, high - right
            if low < high and (low, high) not in ranges.setdefault(thread, {}):
                ranges[thread][low, high] = phase
                rank.range(phase, low, high, thread=thread)
    for called, thread in calls:
        rank.kernel(called, called + 1, called=called, thread=thread)

    def expected(called, thread):
        for asked in (thread, MAIN):
            around = oracle.innermost(list(ranges.get(asked, {})), called)
            if around:
                return ranges[asked][around]
        return None

    in_order = sorted(calls, key=lambda call: call[0])
    if calls:
        assert labels(job.timeline(), MAIN) == [expected(*call) for call in in_order]
