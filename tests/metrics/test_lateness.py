"""Why a rank is late: laid out with one cause each, and with things that look like it."""

from dataclasses import replace

import numpy as np
import pytest
from laid_out import Job, late_launches, lock_step, more_work

import tracekit
from tracekit.config import DEFAULT
from tracekit.intervals import Cover
from tracekit.metrics.accounting import Covers
from tracekit.metrics.lateness import idle_in_data, kernel_medians, kernel_ratio
from tracekit.metrics.stragglers import Windows
from tracekit.options import Options

MS = 1_000_000
US = 1_000


def steadily(ns):
    return lambda *_: ns


def only(rank, ns, otherwise=0):
    return lambda r, *_: otherwise + (ns if r == rank else 0)


def job(ranks=4, **facts):
    made = Job(ranks)
    lock_step(made, **({"compute": steadily(600 * US)} | facts))
    return made


def verdicts(made, **facts):
    found = tracekit.analyze(made.timeline(**facts)).stragglers
    return [(s.rank, s.verdict, s.cause) for s in found]


def test_slow_compute():
    assert verdicts(job(compute=only(1, 100 * US, 600 * US))) == [(1, "persistent", "slow_compute")]


@pytest.mark.parametrize(("percent", "found"), [(6, [(1, "persistent", "slow_compute")]), (4, [])])
def test_slow_compute_begins_at_five_percent(percent, found):
    """Below it nothing explains the wait, and nobody is blamed."""
    made = job(compute=only(1, 6 * percent * US, 600 * US), transfer=10 * US)
    assert verdicts(made) == found


def test_host_stall():
    """The rank's GPU idles 200 us before each layer; its kernels are like the others'."""
    (found,) = tracekit.analyze(job(idle=only(2, 200 * US)).timeline()).stragglers
    assert (found.rank, found.verdict, found.cause) == (2, "persistent", "host_stall")
    # Of 7 steady steps; what is idle ahead of a step's first kernel is in the step before, and the last has no next.
    assert found.idle_excess_ns == round((7 * 5 - 1) * 200 * US / 7)
    assert found.kernel_ratio == 1
    assert found.slow_kernels_share == 0
    assert found.compute_ratio == 1


def test_data():
    """The same idle time, with the host inside a data range: first layer of each step."""
    made = job(data=lambda r, _, layer: (2_000 if r == 2 else 50) * US if layer == 0 else 0)
    assert verdicts(made) == [(2, "persistent", "data")]


def test_ranges_for_data_alone_are_not_the_cause():
    """All ranks are inside data ranges for 50 us; rank 2 idles 2 ms elsewhere."""
    made = job(
        data=lambda r, _, layer: 50 * US if layer == 0 else 0,
        idle=lambda r, _, layer: 2 * MS if r == 2 and layer == 2 else 0,
    )
    assert verdicts(made) == [(2, "persistent", "host_stall")]


def test_late_launch():
    assert verdicts(late_launches(lag=5 * US)) == [(0, "persistent", "late_launch")]


def test_a_collective_that_was_launched_in_time_is_not_a_late_launch():
    """Nothing explains that it is late: nobody is blamed."""
    assert verdicts(late_launches(lag=90 * US)) == []


def test_without_launch_rows_it_is_undecided():
    made = late_launches(lag=5 * US)
    (found,) = tracekit.analyze(made.timeline(launches=False)).stragglers
    assert (found.rank, found.verdict, found.cause) == (0, "undecided", "unknown")


def test_more_work_is_not_slow_work():
    """Rank 1 runs more kernels, each as fast as on the others: it computes more, and the device is fine."""
    (found,) = tracekit.analyze(more_work().timeline()).stragglers
    assert (found.rank, found.verdict, found.cause) == (1, "persistent", "unknown")
    assert found.kernel_ratio == 1


def lengths(step, rank):
    """Sequences of another length on each rank in each step, in percent."""
    return [100, 60, 80, 70][(step + rank) % 4]


def test_sequence_length():
    made = Job(4)
    lock_step(made, steps=13, compute=lambda r, step, _: 8 * US * lengths(step, r))
    found = tracekit.analyze(made.timeline()).stragglers
    assert {(s.verdict, s.cause) for s in found} == {("rotating", "sequence_length")}


def test_backward_that_does_not_go_with_forward_is_not_a_matter_of_length():
    """Only backward varies, from rank to rank: no sequence is longer."""
    made = Job(4)
    lock_step(
        made,
        steps=13,
        compute=lambda r, step, layer: 8 * US * (lengths(step, r) if layer >= 2 else 50 + 7 * (step % 2)),
    )
    found = tracekit.analyze(made.timeline()).stragglers
    assert {(s.verdict, s.cause) for s in found} == {("rotating", "unknown")}


def test_ranks_that_take_turns_in_waiting_for_data():
    made = Job(4)
    data = lambda r, step, layer: (2 * MS if r == step % 4 else 50 * US) if layer == 0 else 0  # noqa: E731
    lock_step(made, steps=13, compute=steadily(600 * US), data=data)
    found = tracekit.analyze(made.timeline()).stragglers
    assert {(s.verdict, s.cause) for s in found} == {("rotating", "data")}


def test_without_steps_the_whole_capture_counts_as_one():
    made = job(compute=only(1, 100 * US, 600 * US))
    made.ranges = [[] for _ in range(4)]
    assert verdicts(made) == [(1, "persistent", "slow_compute")]
    made = job(idle=only(2, 200 * US))
    made.ranges = [[] for _ in range(4)]
    assert verdicts(made) == [(2, "persistent", "host_stall")]


def test_only_the_steps_that_were_asked_for():
    """Rank 1 is slow in steps 4 and 5 only."""
    made = job(compute=lambda r, step, _: (900 if r == 1 and step in (4, 5) else 600) * US)
    timeline = made.timeline()
    named = {s.rank for s in tracekit.analyze(timeline, Options(steps=frozenset({4, 5}))).stragglers}
    assert named == {1}
    assert tracekit.analyze(timeline, Options(steps=frozenset({1, 2}))).stragglers == ()


def two_kernels(*, gemm, other, once=None, grid=64):
    """A rank that runs two kernels five times each; ``once`` is one length that stands out."""
    made, now = Job(1), MS
    for i in range(5):
        for name, ns in (("gemm", gemm), ("softmax", other)):
            length = once if once and (i, name) == (0, "gemm") else ns
            made.compute(0, now, now + length, name=name, grid=grid)
            now += length
    return made


def ratio(mine, *peers):
    """The same names must have the same indices in all: they are laid out in one timeline."""
    together = Job(1 + len(peers))
    for rank, made in enumerate((mine, *peers)):
        together.ops[rank] = made.ops[0]
    whole = Windows(start=np.array([-MS]), end=np.array([1_000 * MS]), column=np.array([0]))
    mine, *theirs = [kernel_medians(track, whole) for track in together.timeline().ranks]
    return kernel_ratio(mine, theirs, DEFAULT)


def test_kernels_are_compared_by_name_and_by_time():
    """gemm 1.2 x at 100 us, softmax as on the peers at 50: by the peers' time (2 x 1.2 + 1) / 3, two thirds slow."""
    found = ratio(two_kernels(gemm=120, other=50), two_kernels(gemm=100, other=50), two_kernels(gemm=100, other=50))
    assert found == (pytest.approx(3.4 / 3), pytest.approx(2 / 3))


def test_one_long_launch_decides_nothing():
    assert ratio(two_kernels(gemm=100, other=50, once=9_000), two_kernels(gemm=100, other=50)) == (1, 0)


def test_another_grid_is_another_kernel():
    assert ratio(two_kernels(gemm=120, other=50), two_kernels(gemm=100, other=50, grid=32)) == (None, None)
    assert ratio(Job(1), two_kernels(gemm=1, other=1)) == (None, None)


def test_idle_in_data_by_hand():
    """Work 0-10 and 30-40, data ranges 5-20 and 15-35: of 0-50, instants 10 to 30 are idle in data."""
    nothing = Cover.of(np.empty(0, np.int64), np.empty(0, np.int64))
    work = Cover.of(np.array([0, 30]), np.array([10, 40]))
    covers = Covers(work, nothing, work, work)
    made = Job(1)
    made.range(0, "data", 5, 20)
    made.range(0, "data", 15, 35)
    made.range(0, "other", 41, 45)
    made.compute(0, 0, 10)
    ranges = made.timeline().processes[0].ranges
    is_data = np.array([True, True, False])
    windows = np.array([0, 0, 25, 40]), np.array([50, 15, 50, 50])
    assert idle_in_data(covers, ranges, is_data, *windows).tolist() == [20, 5, 5, 0]
    assert idle_in_data(covers, ranges, np.zeros(3, bool), *windows).tolist() == [0, 0, 0, 0]


def test_thresholds_can_be_changed():
    made = job(compute=only(1, 100 * US, 600 * US))
    strict = replace(DEFAULT, slow_compute_ratio=1.5)
    assert tracekit.analyze(made.timeline(), Options(thresholds=strict)).stragglers == ()
