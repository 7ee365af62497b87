"""Which windows steps get, on timelines laid out by hand from the definition of a step."""

import pytest
from handmade import AUTOGRAD, COMPUTE, MAIN, SIDE, Sketch
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.metrics.labels import vocabulary
from tracekit.metrics.steps import main_stream, step_ranges, step_windows


def marks_of(timeline, rank=0, marker=None):
    process = timeline.processes[timeline.ranks[rank].process]
    return step_ranges(timeline, process, vocabulary(timeline, process.ranges), marker)


def windows_of(timeline, rank=0, marker=None):
    """(number, start, end) of each step."""
    track = timeline.ranks[rank]
    process = timeline.processes[track.process]
    marks = marks_of(timeline, rank, marker)
    found = step_windows(track.ops, process, marks, main_stream(track.ops)) if marks else None
    return list(zip(found.number.tolist(), found.start.tolist(), found.end.tolist(), strict=True)) if found else []


def one_rank():
    job = Sketch()
    return job, job.process()


def two_steps(rank):
    """Two steps of 100 on the host, whose kernels run 40 behind it."""
    for step in (0, 1):
        at = 100 * step
        rank.range("step", at, at + 100, domain="tracekit", value=step)
        rank.kernel(at + 40, at + 70, called=at + 10)
        rank.kernel(at + 70, at + 130, called=at + 20)


def test_a_step_goes_from_anchor_to_anchor():
    job, rank = one_rank()
    two_steps(rank)
    assert windows_of(job.timeline()) == [(0, 40, 140), (1, 140, 230)]


def test_the_anchor_is_on_the_main_compute_stream():
    """GIVEN an early copy, an early collective and an early kernel on side streams, THEN none of them anchors."""
    job, rank = one_rank()
    two_steps(rank)
    for step in (0, 1):
        at = 100 * step
        rank.copy(at + 3, at + 9, called=at + 1)
        rank.comm(at + 5, at + 8, called=at + 2)
        rank.kernel(at + 6, at + 9, stream=SIDE, called=at + 3)
    assert windows_of(job.timeline()) == [(0, 40, 140), (1, 140, 230)]


def test_a_copy_on_the_main_stream_does_not_anchor():
    job, rank = one_rank()
    two_steps(rank)
    rank.copy(5, 9, stream=COMPUTE, called=3)
    assert windows_of(job.timeline())[0] == (0, 40, 140)


def test_a_cuda_graph_anchors():
    job, rank = one_rank()
    two_steps(rank)
    rank.graph(20, 30, called=5)
    assert windows_of(job.timeline())[0] == (0, 20, 140)


def test_the_launch_decides_to_which_step_a_kernel_belongs():
    """A kernel that starts after the next range has begun, launched before, is of the step before."""
    job, rank = one_rank()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("step", 100, 200, domain="tracekit", value=1)
    rank.kernel(10, 50, called=1)
    rank.kernel(120, 150, called=99)  # runs inside the second range
    rank.kernel(150, 180, called=100)
    assert windows_of(job.timeline()) == [(0, 10, 150), (1, 150, 180)]


def test_a_kernel_of_another_thread_can_anchor():
    """A step that computes only in its backward pass, which another thread launches."""
    job, rank = one_rank()
    two_steps(rank)
    rank.range("step", 200, 300, domain="tracekit", value=2)
    rank.kernel(250, 280, called=210, thread=AUTOGRAD)
    assert windows_of(job.timeline()) == [(0, 40, 140), (1, 140, 250), (2, 250, 280)]


def test_the_last_step_ends_with_the_last_op_launched_in_it_on_any_stream():
    job, rank = one_rank()
    two_steps(rank)
    rank.comm(190, 260, called=150, thread=AUTOGRAD)
    rank.copy(200, 275, called=199)
    rank.kernel(280, 300, called=200)  # launched after the last range
    rank.kernel(300, 310)  # launched nobody knows when
    assert windows_of(job.timeline())[-1] == (1, 140, 275)


def test_time_between_two_ranges_belongs_to_the_step_before():
    job, rank = one_rank()
    for step, at in ((0, 0), (1, 150)):
        rank.range("step", at, at + 100, domain="tracekit", value=step)
        rank.kernel(at + 10, at + 50, called=at + 1)
    rank.kernel(110, 130, called=105)  # validation, say
    assert windows_of(job.timeline()) == [(0, 10, 160), (1, 160, 200)]


def test_a_step_without_kernels_has_no_window():
    job, rank = one_rank()
    two_steps(rank)
    rank.range("step", 200, 300, domain="tracekit", value=2)
    rank.copy(210, 220, called=205)
    assert [number for number, *_ in windows_of(job.timeline())] == [0, 1]


def test_a_step_in_the_middle_without_kernels_lengthens_the_one_before():
    job, rank = one_rank()
    for step in (0, 1, 2):
        rank.range("step", 100 * step, 100 * step + 100, domain="tracekit", value=step)
        if step != 1:
            rank.kernel(100 * step + 10, 100 * step + 60, called=100 * step + 5)
    assert windows_of(job.timeline()) == [(0, 10, 210), (2, 210, 260)]


def test_without_any_launch_row_there_are_no_steps():
    job, rank = one_rank()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.kernel(10, 50)
    assert windows_of(job.timeline()) == []


def test_without_step_ranges_there_are_no_steps():
    job, rank = one_rank()
    rank.range("Optimizer.step#AdamW.step", 0, 100)
    rank.range("wait_for_batch", 0, 100)
    rank.kernel(10, 50, called=5)
    assert marks_of(job.timeline()) is None


def test_nested_ranges_of_one_name_count_once():
    """GIVEN step ranges inside another and one that is there twice, THEN the outermost of each stands."""
    job, rank = one_rank()
    rank.range("step 0", 0, 100)
    rank.range("step 1", 20, 40)
    rank.range("step 7", 50, 60)
    for _ in range(2):
        rank.range("step 2", 100, 200)
    rank.kernel(10, 30, called=5)
    rank.kernel(40, 60, called=30)
    rank.kernel(70, 80, called=55)
    rank.kernel(110, 160, called=105)
    assert windows_of(job.timeline()) == [(0, 10, 110), (2, 110, 160)]
    assert (marks_of(job.timeline()).nested, marks_of(job.timeline()).elsewhere) == (3, 0)
    (note,) = tracekit.analyze(job.timeline()).captures[0].notes
    assert note.startswith("rank 0: ")
    assert note.endswith(": 3")


def test_a_step_that_reaches_into_the_next_or_is_never_popped_swallows_nothing():
    """GIVEN steps of 100 of which each ends 1 late, and one is never popped, THEN each ends where the next begins."""
    job, rank = one_rank()
    for number in range(4):
        rank.range(f"step {number}", 100 * number, 100 * number + 101)
    rank.range("step 4", 400, 900, still_open=True)
    rank.range("step 5", 500, 600)
    for number in range(6):
        rank.kernel(100 * number + 10, 100 * number + 60, called=100 * number + 5)
    assert [window[:2] for window in windows_of(job.timeline())] == [(n, 100 * n + 10) for n in range(6)]


def test_steps_of_two_threads_are_those_of_the_thread_with_more():
    job, rank = one_rank()
    for number in range(3):
        rank.range(f"step {number}", 100 * number, 100 * number + 90)
    for number in range(2):
        rank.range(f"step {number}", 100 * number + 50, 100 * number + 140, thread=AUTOGRAD)
    for number in range(3):
        rank.kernel(100 * number + 10, 100 * number + 60, called=100 * number + 5)
    assert [window[:2] for window in windows_of(job.timeline())] == [(0, 10), (1, 110), (2, 210)]
    assert (marks_of(job.timeline()).nested, marks_of(job.timeline()).elsewhere) == (0, 2)
    (note,) = tracekit.analyze(job.timeline()).captures[0].notes
    assert "other threads" in note
    assert note.endswith(": 2")


def test_an_empty_range_is_no_step():
    job, rank = one_rank()
    two_steps(rank)
    rank.range("step", 50, 50, domain="tracekit", value=7)
    rank.range("step", 250, 250, domain="tracekit", value=1)  # its number, used twice, would put all numbers in doubt
    rank.range("step", 300, 400, domain="tracekit", value=5)
    rank.kernel(310, 320, called=305)
    assert [number for number, *_ in windows_of(job.timeline())] == [0, 1, 5]


def test_windows_are_in_the_order_in_which_the_gpu_ran():
    """GIVEN a step whose kernel was launched first and ran last (streams can be held back), THEN it comes last."""
    job, rank = one_rank()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("step", 100, 200, domain="tracekit", value=1)
    rank.kernel(210, 240, called=10)
    rank.kernel(150, 180, called=110)
    assert windows_of(job.timeline()) == [(1, 150, 210), (0, 210, 240)]


def test_a_range_that_is_still_open_at_the_end_is_a_step():
    job, rank = one_rank()
    two_steps(rank)
    rank.range("step", 200, 400, domain="tracekit", value=2, still_open=True)
    rank.kernel(250, 290, called=210)
    assert windows_of(job.timeline())[-1] == (2, 250, 290)


def test_calls_of_another_process_do_not_count():
    """GIVEN two processes whose calls stand in the same rows of their tables, THEN each is joined with its own."""
    job, first = one_rank()
    second = job.process()
    two_steps(first)
    for step in (0, 1):
        at = 1000 + 50 * step
        second.range("step", at, at + 50, domain="tracekit", value=step)
        second.kernel(at + 10, at + 30, called=at + 5)
        second.kernel(at + 30, at + 40, called=at + 6)
    timeline = job.timeline()
    assert windows_of(timeline, 0) == [(0, 40, 140), (1, 140, 230)]
    assert windows_of(timeline, 1) == [(0, 1010, 1060), (1, 1060, 1090)]


def test_two_devices_of_one_process_have_windows_of_their_own():
    job, rank = one_rank()
    two_steps(rank)
    for step in (0, 1):
        at = 100 * step
        rank.kernel(at + 55, at + 90, called=at + 12, device=1, stream=SIDE)
    timeline = job.timeline()
    assert windows_of(timeline, 0) == [(0, 40, 140), (1, 140, 230)]
    assert windows_of(timeline, 1) == [(0, 55, 155), (1, 155, 190)]


FAMILIES_BY_TRUST = [
    ("tracekit", "tracekit", "step"),
    ("lightning", None, "[pl][profile]run_training_batch"),
    ("ProfilerStep#", None, "ProfilerStep#3"),
    ("train_step N", None, "train_step 3"),
    ("iteration N", None, "iteration 3"),
    ("step N", None, "step 3"),
    ("train_step", None, "train_step"),
    ("iteration", None, "iteration"),
    ("step", None, "step"),
]


@pytest.mark.parametrize("trusted", range(len(FAMILIES_BY_TRUST)))
def test_the_most_trusted_family_gives_the_steps(trusted):
    """GIVEN ranges of a family and of all less trusted ones, THEN the family gives the steps, and only it."""
    job, rank = one_rank()
    for at, (_, domain, name) in enumerate(FAMILIES_BY_TRUST[trusted:]):
        rank.range(name, at, at + 100, domain=domain)
    rank.kernel(10, 50, called=2)
    marks = marks_of(job.timeline())
    assert marks.source == FAMILIES_BY_TRUST[trusted][0]
    assert (marks.start.tolist(), marks.end.tolist()) == ([0], [100])


def numbers(rows, marker=None):
    job, rank = one_rank()
    for at, (name, facts) in enumerate(rows):
        rank.range(name, 100 * at, 100 * at + 100, **facts)
        rank.kernel(100 * at + 10, 100 * at + 50, called=100 * at + 5)
    return [number for number, *_ in windows_of(job.timeline(), marker=marker)]


def test_numbers_come_from_the_payload():
    assert numbers([("step", {"domain": "tracekit", "value": value}) for value in (40, 41, 42)]) == [40, 41, 42]


def test_numbers_come_from_the_name():
    assert numbers([(f"ProfilerStep#{n}", {}) for n in (5, 6, 7)]) == [5, 6, 7]


def test_without_numbers_steps_are_counted():
    assert numbers([("step", {})] * 3) == [0, 1, 2]


def test_numbers_that_repeat_are_not_used():
    """A second epoch begins: the same numbers again."""
    assert numbers([(f"iteration {n}", {}) for n in (0, 1, 0, 1)]) == [0, 1, 2, 3]


def test_where_one_number_is_missing_none_is_used():
    rows = [("step", {"domain": "tracekit", "value": 7}), ("step", {"domain": "tracekit"})]
    assert numbers(rows) == [0, 1]


def test_a_marker_names_a_range():
    rows = [("ProfilerStep#1", {}), ("my loop", {}), ("my loop (warm)", {}), ("ProfilerStep#2", {})]
    job, rank = one_rank()
    for at, (name, facts) in enumerate(rows):
        rank.range(name, 100 * at, 100 * at + 100, **facts)
        rank.kernel(100 * at + 10, 100 * at + 50, called=100 * at + 5)
    timeline = job.timeline()
    assert windows_of(timeline, marker="my loop") == [(0, 110, 150)]
    assert windows_of(timeline, marker="my loop (warm)") == [(0, 210, 250)]  # brackets and all: the literal name
    assert windows_of(timeline, marker=r"my loop.*") == [(0, 110, 210), (1, 210, 250)]
    assert windows_of(timeline, marker="loop") == []  # the whole name must match
    assert marks_of(timeline, marker="my loop").source == "my loop"


def test_a_marker_that_is_no_regular_expression_is_a_name():
    job, rank = one_rank()
    rank.range("step [", 0, 100)
    rank.kernel(10, 50, called=5)
    assert windows_of(job.timeline(), marker="step [") == [(0, 10, 50)]


def test_a_marker_s_trailing_numbers_are_the_steps():
    assert numbers([(f"batch={n} ##", {}) for n in (30, 31)], marker=r"batch=\d+ ##") == [30, 31]
    assert numbers([("mine", {"value": value}) for value in (9, 8)], marker="mine") == [9, 8]


def test_main_stream_is_the_one_with_most_compute_time():
    _, rank = one_rank()
    rank.kernel(0, 10, stream=9)
    rank.kernel(0, 11, stream=12)
    rank.comm(0, 100, stream=5)
    rank.copy(0, 100, stream=4)
    assert main_stream(rank.build()[1][0]) == 12


def test_main_stream_counts_time_not_kernels():
    """Ops of one stream can overlap: three times the same 10 ns are 10 ns."""
    _, rank = one_rank()
    for _ in range(3):
        rank.kernel(0, 10, stream=9)
    rank.kernel(0, 11, stream=12)
    assert main_stream(rank.build()[1][0]) == 12


def test_of_equal_streams_the_lowest_is_main():
    _, rank = one_rank()
    rank.kernel(0, 10, stream=12)
    rank.kernel(20, 30, stream=9)
    assert main_stream(rank.build()[1][0]) == 9


def test_without_compute_there_is_no_main_stream_and_no_step():
    job, rank = one_rank()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.comm(10, 50, called=5)
    assert main_stream(rank.build()[1][0]) is None
    assert windows_of(job.timeline()) == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, 100),
            st.integers(0, 30),
            st.integers(0, 20),
            st.sampled_from((COMPUTE, COMPUTE, SIDE)),
            st.sampled_from((MAIN, AUTOGRAD)),
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_windows_are_what_the_definition_says(steps, kernels):
    """Random disjoint ranges and kernels: anchors by looking at every kernel for every range."""
    job, rank = one_rank()
    at, ranges = 0, []
    for number, (before, length) in enumerate(steps):
        ranges.append((number, at + before, at + before + length))
        rank.range("step", at + before, at + before + length, domain="tracekit", value=number)
        at += before + length
    rows = [(called, called + late, called + late + long, s, t) for called, late, long, s, t in kernels]
    rank.kernel(500, 900, called=499)  # makes its stream the main one
    for called, start, end, stream, thread in rows:
        rank.kernel(start, end, called=called, stream=stream, thread=thread)
    anchors, others, ends = {}, {}, {}
    for number, low, high in ranges:
        mine = [(start, end, stream) for called, start, end, stream, _ in rows if low <= called < high]
        on_main = [start for start, _, stream in mine if stream == COMPUTE]
        if mine:
            (anchors if on_main else others)[number] = min(on_main or [start for start, *_ in mine])
            ends[number] = max(end for _, end, _ in mine)
    if len(others) > len(anchors):
        anchors |= others
    order = sorted(anchors, key=lambda number: (anchors[number], number))
    edges = [anchors[number] for number in order] + ([ends[order[-1]]] if order else [])
    expected = [(n, low, high) for n, low, high in zip(order, edges, edges[1:], strict=False) if low < high]
    assert windows_of(job.timeline()) == expected


def test_only_steps_wholly_inside_a_window_are_kept():
    job, rank = one_rank()
    two_steps(rank)
    timeline = job.timeline()
    track = timeline.ranks[0]
    found = step_windows(track.ops, timeline.processes[0], marks_of(timeline), main_stream(track.ops))
    assert found.inside(40, 140).number.tolist() == [0]
    assert found.inside(41, 230).number.tolist() == [1]
    assert found.inside(41, 229) is None


def test_steps_that_compute_on_another_stream_each_time():
    """GIVEN five steps on five streams, of which one holds most compute, THEN every step has its window."""
    job, rank = one_rank()
    for step in range(5):
        at = 100 * step
        rank.range(f"step {step}", at, at + 100)
        rank.kernel(at + 20, at + 60 + step, stream=40 + step, called=at + 10)
        rank.kernel(at + 70, at + 80, stream=40 + step, called=at + 12)
    assert windows_of(job.timeline()) == [(k, 100 * k + 20, 100 * k + 120) for k in range(4)] + [(4, 420, 480)]


def test_a_step_without_a_kernel_on_the_main_stream_has_no_window_where_most_have_one():
    """GIVEN an early kernel on a side stream, and a third step that only has one there."""
    job, rank = one_rank()
    two_steps(rank)
    rank.kernel(6, 9, stream=SIDE, called=3)
    rank.range("step", 200, 300, domain="tracekit", value=2)
    rank.kernel(240, 250, stream=SIDE, called=210)
    assert windows_of(job.timeline()) == [(0, 40, 140), (1, 140, 230)]


def test_a_step_that_only_copies_or_communicates_has_no_window():
    job, rank = one_rank()
    two_steps(rank)
    rank.range("step", 200, 300, domain="tracekit", value=2)
    rank.copy(240, 250, called=210)
    rank.comm(250, 260, called=211)
    assert [number for number, *_ in windows_of(job.timeline())] == [0, 1]


def test_a_marker_finds_ranges_by_what_they_launch_on_any_stream():
    """GIVEN a main stream with a long kernel outside of the ranges that are asked for."""
    job, rank = one_rank()
    rank.kernel(1000, 9000, called=900)
    for k in range(3):
        rank.range("decode", 100 * k, 100 * k + 90)
        rank.kernel(100 * k + 50, 100 * k + 70, stream=SIDE, called=100 * k + 10)
    assert windows_of(job.timeline(), marker="decode") == [(0, 50, 150), (1, 150, 250), (2, 250, 270)]


def test_each_device_of_a_process_has_the_ranges_of_its_own_thread():
    """GIVEN two devices whose threads run a step each at different times, THEN each launches inside its own."""
    job, rank = one_rank()
    for device, thread in ((0, MAIN), (1, AUTOGRAD)):
        for k in range(3):
            at = 100 * k + 45 * device
            rank.range("XlaModule:#hlo_module=jit_train_step,program_id=2#", at, at + 40, thread=thread, domain="TSL")
            rank.kernel(at + 50, at + 80, called=at + 10, thread=thread, device=device)
    found = tracekit.analyze(job.timeline(), tracekit.Options(rules=False))
    assert [[step.start_ns for step in each.steps] for each in found.ranks] == [[50, 150, 250], [95, 195, 295]]
    assert {each.step_source for each in found.ranks} == {"XlaModule"}
