"""Steps split by phase and by module."""

from dataclasses import asdict
from itertools import pairwise

import numpy as np
import oracle
import pytest
from handmade import AUTOGRAD, COMPUTE, MAIN, SIDE, Sketch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.accounting import PARTS, Covers, accounts, total
from tracekit.metrics.labels import vocabulary
from tracekit.metrics.phases import contiguous, modules_of_window, phases_of_steps
from tracekit.metrics.steps import main_stream, step_ranges, step_windows
from tracekit.timeline import Kind

NAMES = {Kind.COMPUTE: "compute", Kind.COMM: "comm", Kind.COPY: "copy"}


class Measured:
    """One rank's timeline up to where phases and modules are split."""

    def __init__(self, job):
        timeline = job.timeline()
        self.ops, self.process = timeline.ranks[0].ops, timeline.processes[0]
        self.words = vocabulary(timeline, self.process.ranges)
        self.covers = Covers.of(self.ops)
        self.stream = main_stream(self.ops)
        marks = step_ranges(timeline, self.process, self.words, None)
        self.windows = step_windows(self.ops, self.process, marks, self.stream) if marks else None

    def phases(self, speaker=MAIN):
        return phases_of_steps(self.ops, self.process, self.words, self.covers, self.windows, self.stream, speaker)

    def steps(self):
        return accounts(self.covers, self.windows.start, self.windows.end)

    def modules(self, windows, speaker=MAIN):
        start, end = (np.array(side, np.int64) for side in zip(*windows, strict=True))
        return modules_of_window(self.ops, self.process, self.words, self.covers, start, end, speaker)


def training_step(rank, at=0, number=0):
    """Range 0-200. GPU: forward 50-90, gather 80-100, backward 100-140, optimizer 150-170. Host: loads data 0-20."""
    rank.range("step", at, at + 200, domain="tracekit", value=number)
    rank.range("data", at, at + 20, domain="tracekit")
    rank.range("forward", at + 20, at + 60, domain="tracekit")
    rank.range("backward", at + 60, at + 120, domain="tracekit")
    rank.range("optimizer", at + 120, at + 140, domain="tracekit")
    rank.copy(at + 41, at + 46, called=at + 15)
    rank.kernel(at + 50, at + 90, called=at + 30)
    rank.comm(at + 80, at + 100, called=at + 40)
    rank.kernel(at + 100, at + 140, called=at + 70, thread=AUTOGRAD)
    rank.kernel(at + 150, at + 170, called=at + 130)


def figures(account):
    return {name.removesuffix("_ns"): value for name, value in asdict(account).items() if value}


def test_a_small_step_by_hand():
    """Forward 50-100 (from its first kernel to backward's), backward 100-150, optimizer 150-170."""
    job = Sketch()
    training_step(job.process())
    (step,) = Measured(job).phases()
    assert {name: figures(account) for name, account in step.items()} == {
        "forward": {"wall": 50, "compute": 40, "exposed_comm": 10, "comm": 20, "overlapped_comm": 10},
        "backward": {"wall": 50, "compute": 40, "idle": 10},
        "optimizer": {"wall": 20, "compute": 20},
    }


def test_the_tail_of_a_step_in_which_the_host_loads_data_is_data():
    """GIVEN two steps, WHEN the GPU has nothing to do from 170 and the host loads data 200-220, THEN the first step's
    time from 200 to the next step's anchor at 250, host overheads and the input's copy included, is data.
    """
    job = Sketch()
    rank = job.process()
    training_step(rank)
    training_step(rank, 200, 1)
    first, second = Measured(job).phases()
    assert figures(first["data"]) == {"wall": 50, "exposed_copy": 5, "idle": 45}
    assert figures(first["optimizer"]) == {"wall": 50, "compute": 20, "idle": 30}
    assert "data" not in second


def test_work_that_runs_while_data_is_loaded_is_not_data():
    """GIVEN a collective until 215 and data loading 200-220, THEN data begins when the collective has ended."""
    job = Sketch()
    rank = job.process()
    training_step(rank)
    rank.comm(160, 215, called=135)
    training_step(rank, 200, 1)
    first, _ = Measured(job).phases()
    assert figures(first["data"]) == {"wall": 35, "exposed_copy": 5, "idle": 30}


@pytest.mark.parametrize("busy_until", [220, 225])
def test_data_that_the_gpu_did_not_wait_for_is_not_data(busy_until):
    """GIVEN compute until the data has been loaded, at 220, THEN no time is data."""
    job = Sketch()
    rank = job.process()
    training_step(rank)
    rank.kernel(170, busy_until, called=135)
    training_step(rank, 200, 1)
    first, _ = Measured(job).phases()
    assert "data" not in first


def test_the_kernel_that_ends_the_gap_was_launched_with_the_data_at_hand():
    """GIVEN a kernel at 230 that another thread launched while data was loaded, THEN it did not wait for the data."""
    job = Sketch()
    rank = job.process()
    training_step(rank)
    training_step(rank, 200, 1)
    rank.kernel(230, 240, called=210, thread=AUTOGRAD)
    first, _ = Measured(job).phases()
    assert "data" not in first


def test_data_also_ends_where_another_stream_starts_with_the_kernel():
    job = Sketch()
    rank = job.process()
    training_step(rank)
    training_step(rank, 200, 1)
    rank.kernel(250, 255, stream=SIDE, called=231)
    first, _ = Measured(job).phases()
    assert first["data"].wall_ns == 50


def test_data_ends_where_a_collective_starts_that_was_launched_after_it():
    """GIVEN data loading 200-220 and a gather 230-245 launched in the next forward, THEN what follows it is forward."""
    job = Sketch()
    rank = job.process()
    training_step(rank)
    training_step(rank, 200, 1)
    rank.comm(230, 245, called=222)
    first, _ = Measured(job).phases()
    assert figures(first["data"]) == {"wall": 30, "idle": 30}
    assert figures(first["forward"])["exposed_comm"] == 10 + 15


def test_kernels_outside_all_phases_are_other():
    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("forward", 10, 20)
    rank.kernel(5, 10, called=2)
    rank.kernel(15, 30, called=12)
    rank.kernel(40, 50, called=30)
    (step,) = Measured(job).phases()
    assert {name: account.wall_ns for name, account in step.items()} == {"forward": 25, "other": 20}


def test_a_kernel_without_launch_row_goes_with_the_one_before():
    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("forward", 0, 20)
    rank.range("backward", 20, 90)
    rank.kernel(5, 10, called=2)
    rank.kernel(15, 30)
    rank.kernel(40, 50, called=30)
    (step,) = Measured(job).phases()
    assert {name: account.wall_ns for name, account in step.items()} == {"forward": 35, "backward": 10}


def test_kernels_on_side_streams_do_not_change_the_phase():
    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("forward", 0, 20)
    rank.range("optimizer", 20, 90)
    rank.kernel(10, 40, called=2)
    rank.kernel(20, 25, stream=SIDE, called=21)
    (step,) = Measured(job).phases()
    assert list(step) == ["forward"]


def test_copies_on_the_main_stream_do_not_change_the_phase():
    job = Sketch()
    rank = job.process()
    rank.range("step", 0, 100, domain="tracekit", value=0)
    rank.range("forward", 0, 20)
    rank.range("optimizer", 20, 90)
    rank.kernel(10, 40, called=2)
    rank.copy(50, 60, stream=COMPUTE, called=21)
    rank.kernel(70, 80, called=30)
    (step,) = Measured(job).phases()
    assert {name: account.wall_ns for name, account in step.items()} == {"forward": 60, "optimizer": 10}


def test_without_phase_ranges_there_is_no_split():
    job = Sketch()
    rank = job.process()
    for at in (0, 100):
        rank.range("ProfilerStep#1", at, at + 100)
        rank.kernel(at + 5, at + 50, called=at + 1)
    assert Measured(job).phases() == [{}, {}]


LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=8)
PHASE = st.sampled_from(("forward", "backward", "optimizer", "data", None))


@st.composite
def training(draw):
    """Disjoint phase ranges in a row of steps; kernels and collectives anywhere, launched at any time or unknown."""
    job = Sketch()
    rank = job.process()
    at, spans = 0, []
    for number in range(draw(st.integers(1, 3))):
        begin = at
        for before, length in draw(LENGTHS):
            name = draw(PHASE)
            spans.append((name, at + before, at + before + length))
            if name:
                rank.range(name, at + before, at + before + length)
            at += before + length
        rank.range("step", begin, at, domain="tracekit", value=number)
    kernels = draw(
        st.lists(
            st.tuples(
                st.none() | st.integers(0, 70), st.integers(0, 80), st.integers(1, 8), st.sampled_from((COMPUTE, SIDE))
            ),
            max_size=10,
        )
    )
    kernels.append((draw(st.integers(0, 3)), draw(st.integers(0, 20)), 10, COMPUTE))
    rows = []
    for called, start, length, stream in kernels:
        rank.kernel(start, start + length, called=called, stream=stream)
        rows.append((start, start + length, "compute", called, stream))
    for start, length in draw(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 8)), max_size=4)):
        rank.comm(start, start + length)
        rows.append((start, start + length, "comm", None, None))
    for start, length in draw(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 8)), max_size=3)):
        rank.copy(start, start + length)
        rows.append((start, start + length, "copy", None, None))
    return job, rows, spans


@given(training())
def test_phases_tile_each_step_and_add_up_to_it(case):
    measured = Measured(case[0])
    if measured.windows is None or not any(name for name, *_ in case[2]):
        return
    for whole, split in zip(measured.steps(), measured.phases(), strict=True):
        assert total(split.values()) == whole
        for account in split.values():
            assert sum(getattr(account, part) for part in PARTS) == account.wall_ns
            assert account.comm_ns == account.exposed_comm_ns + account.overlapped_comm_ns


@given(training())
def test_the_phase_of_every_instant(case):
    """By looking, for each instant, for the latest kernel and for the gaps in which the host loads data."""
    job, rows, spans = case
    measured = Measured(job)
    if measured.windows is None or not any(name for name, *_ in spans):
        return
    main = sorted((row for row in rows if row[4] == measured.stream), key=lambda row: (row[0], row[1]))
    working = oracle.instants(row for row in rows if row[2] != "copy")

    def of_kernel(row):
        return next((name for name, low, high in spans if name and low <= row[3] < high), "other")

    busy = [row for row in rows if row[2] != "copy"]
    gaps = {}  # start of a gap: (its end, phase of what ends it)
    for name, low, high in spans:
        after = sorted((row for row in busy if row[3] is not None and row[3] >= high), key=lambda r: (r[3], r[0]))
        if name == "data" and after:
            begin = stop = after[0][0]
            while begin > low and begin - 1 not in working:
                begin -= 1
            if begin < high and begin < stop and any(row[0] < stop for row in busy):
                gaps[begin] = (stop, of_kernel(after[0]))

    def phase_at(t):
        seen = [(row[0], 1, i, of_kernel(row)) for i, row in enumerate(main) if row[0] <= t and row[3] is not None]
        for begin, (stop, woken) in gaps.items():
            seen += [(begin, -1, 0, "data")] * (begin <= t) + [(stop, 0, 0, woken)] * (stop <= t)
        return max(seen)[3] if seen else "other"

    for split, low, high in zip(
        measured.phases(), measured.windows.start.tolist(), measured.windows.end.tolist(), strict=True
    ):
        expected = {}
        for t in range(low, high):
            expected.setdefault(phase_at(t), set()).add(t)
        assert {name: account.wall_ns for name, account in split.items()} == {
            name: len(of_phase) for name, of_phase in expected.items()
        }


def test_modules_of_a_small_example_by_hand():
    """Idle time goes to the module of the op that ends it; hidden communication costs its module no wall time."""
    job = Sketch()
    rank = job.process()
    rank.range("layers.0", 0, 10)
    rank.range("layers.1", 10, 20)
    rank.kernel(0, 40, called=1)
    rank.comm(30, 60, called=11)
    rank.copy(50, 70, called=12)
    rank.kernel(80, 90, called=30)
    rank.kernel(95, 100, called=5)
    found = {row.module: figures(row.account) for row in Measured(job).modules([(0, 100)])}
    assert found == {
        "layers.0": {"wall": 50, "compute": 45, "idle": 5},
        "layers.1": {
            "wall": 30,
            "exposed_comm": 20,
            "exposed_copy": 10,
            "comm": 30,
            "overlapped_comm": 10,
        },
        "(no module)": {"wall": 20, "compute": 10, "idle": 10},
    }


def test_modules_come_longest_first_and_only_with_time():
    job = Sketch()
    rank = job.process()
    for layer, length in ((0, 10), (1, 30), (2, 20)):
        rank.range(f"layers.{layer}", 100 * layer, 100 * layer + 50)
        rank.kernel(100 * layer, 100 * layer + length, called=100 * layer)
    rank.range("layers.3", 300, 350)
    found = Measured(job).modules([(0, 10), (100, 130), (200, 220)])
    assert [(row.module, row.account.wall_ns) for row in found] == [
        ("layers.1", 30),
        ("layers.2", 20),
        ("layers.0", 10),
    ]


def test_without_module_ranges_there_are_no_modules():
    job = Sketch()
    rank = job.process()
    rank.range("forward", 0, 10)
    rank.kernel(0, 40, called=1)
    assert Measured(job).modules([(0, 40)]) == ()


OPS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 12),
        st.sampled_from(("compute", "comm", "copy")),
        st.sampled_from((None, "layers.0", "layers.1", "layers.2")),
    ),
    min_size=1,
    max_size=12,
)
CUTS = st.sets(st.integers(-5, 60), min_size=2, max_size=4).map(sorted)


@given(OPS, CUTS)
def test_modules_share_out_every_instant(ops, cuts):
    """GIVEN ops of random kinds and modules, WHEN a window in the middle is left out, THEN each field of each module is
    what counting instants gives, and the modules' sum is the windows' account.
    """
    job = Sketch()
    rank = job.process()
    rank.range("layers.9", 1000, 1001)
    for at, module in enumerate(("layers.0", "layers.1", "layers.2")):
        rank.range(module, 10 * at, 10 * at + 10)
    called = {None: 500, "layers.0": 5, "layers.1": 15, "layers.2": 25}
    add = {"compute": rank.kernel, "comm": rank.comm, "copy": rank.copy}
    ops = sorted(((s, s + length, kind, module) for s, length, kind, module in ops), key=lambda op: op[:2])
    for start, end, kind, module in ops:
        add[kind](start, end, called=called[module])
    windows = list(pairwise(cuts))
    windows = [windows[0], *windows[2:]]
    measured = Measured(job)
    found = measured.modules(windows)
    expected: dict[str, dict[str, int]] = {}
    for low, high in windows:
        for module, row in oracle.account_by_label(ops, low, high).items():
            sums = expected.setdefault(module or "(no module)", dict.fromkeys(oracle.FIELDS, 0))
            for name, value in row.items():
                sums[name] += value
    assert {row.module: asdict(row.account) for row in found} == expected
    start, end = (np.array(side) for side in zip(*windows, strict=True))
    assert total(row.account for row in found) == total(accounts(measured.covers, start, end))


def test_windows_that_touch_are_one():
    low, high = np.array([0, 10, 25, 30]), np.array([10, 20, 30, 31])
    assert contiguous(low, high) == [(0, 20), (25, 31)]
