"""A job of four as real captures show it: one process a rank, FSDP1, and everything that makes such captures awkward.

Without NCCL's payloads, over 23 communication streams that differ from rank to rank, with records of one stream that
overlap, ends that scatter by 1-2 us, kernels that start before their own launch call, and half of the launch rows lost.
"""

import numpy as np
import pytest
from laid_out import COMPUTE, KERNELS, LAUNCH_AHEAD, MS, US, ClockOf, Job, Laid

import tracekit
from tracekit.timeline import NONE, Kind

LAYERS, STEPS, STREAMS = 8, 14, 23
OFFSETS = [0, -174 * MS, 305 * MS, 88 * MS]
TRANSFER = 220 * US
LATE = 2
"""The rank at fault."""
LOST = 0.53
"""Share of kernels whose launch row the capture lacks."""


class Fsdp:
    """FSDP1: gathers are issued one layer ahead; a rank's communication runs one after another."""

    def __init__(self, *, slow=1.0, stall=0, seed=3, marks=True, capture_of=(0, 1, 2, 3), epochs=True):
        self.rng = np.random.default_rng(seed)
        known = {rank: 1_700_000_000 * 10**9 - offset for rank, offset in enumerate(OFFSETS)} if epochs else {}
        clocks = {c: ClockOf(offset_ns=OFFSETS[c], start_epoch_ns=known.get(c)) for c in set(capture_of)}
        self.job = Job(4, capture_of=list(capture_of), clocks=clocks)
        self.slow, self.stall = slow, stall
        self.free = dict.fromkeys(range(4), 5 * MS)
        """When each rank's compute stream is free."""
        self.wire = dict.fromkeys(range(4), 5 * MS)
        for step in range(STEPS):
            self.step(step, marks)

    def launch(self, start):
        """When the host launched what starts at ``start``: ahead, just before, by another clock just after, or lost."""
        if self.rng.random() < LOST:
            return NONE
        return start + int(self.rng.choice([-LAUNCH_AHEAD, -6_000, self.rng.integers(0, 5_501)]))

    def compute(self, rank, usual, ready, layer, stalls=False):
        start = max(self.free[rank], ready) + 2 * US
        factor = self.slow if rank == LATE else 1.0
        if stalls and rank == LATE:
            start += self.stall
        for part in range(4):
            length = int(usual / 4 * factor * self.rng.normal(1, 0.002))
            self.job.ops[rank].append(
                Laid(start, start + length, Kind.COMPUTE, COMPUTE, f"gemm{layer}{part}", 64, self.launch(start))
            )
            start += length
        self.free[rank] = start
        return start

    def meet(self, op, issued, layer):
        """One collective; returns its end."""
        arrivals = {rank: max(issued[rank], self.wire[rank]) + int(self.rng.integers(0, 900)) for rank in range(4)}
        end = max(arrivals.values()) + int(TRANSFER * self.rng.normal(1, 0.02))
        for rank, start in arrivals.items():
            stop = end + int(self.rng.normal(0, 1_200))
            stream = 100 + int(self.rng.integers(0, STREAMS - rank))
            self.job.ops[rank].append(Laid(start, stop, Kind.COMM, stream, KERNELS[op], 8, self.launch(start)))
            # The next may start before this one's record ends, on the same stream or another.
            self.wire[rank] = stop - int(self.rng.integers(0, 1_500))
        return end

    def step(self, number, marks):
        begin = {rank: self.free[rank] for rank in range(4)}
        issued = dict(self.free)
        ready = self.meet("all_gather", issued, 0)
        for layer in range(LAYERS):
            ahead = {rank: max(self.free[rank], ready) for rank in range(4)}
            following = self.meet("all_gather", ahead, layer + 1) if layer + 1 < LAYERS else ready
            for rank in range(4):
                self.compute(rank, 300 * US, ready, layer, stalls=layer % 2 == 0)
            ready = following
        for layer in reversed(range(LAYERS)):
            ahead = {rank: max(self.free[rank], ready) for rank in range(4)}
            following = self.meet("all_gather", ahead, layer) if layer else ready
            done = {
                rank: self.compute(rank, 600 * US, ready, LAYERS + layer, stalls=layer % 2 == 0) for rank in range(4)
            }
            ready = max(following, self.meet("reduce_scatter", done, layer))
        norm = self.meet("all_reduce", dict(self.free), 0)
        for rank in range(4):
            self.compute(rank, 200 * US, norm, 99)
            if marks:
                self.job.range(rank, "step", begin[rank] - 2_000, self.free[rank] - 9_000, value=number)


SHAPES = {"one report a rank": (0, 1, 2, 3), "all in one": (0, 0, 0, 0)}


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("epochs", [True, False])
@pytest.mark.parametrize("fault", [{"slow": 1.25}, {"stall": 400 * US}, {"slow": 1.06, "stall": 120 * US}])
def test_the_late_rank_is_named_and_no_other(fault, shape, marks, epochs):
    made = Fsdp(**fault, capture_of=SHAPES[shape], marks=marks, epochs=epochs)
    found = tracekit.analyze(made.job.timeline())
    assert [s.rank for s in found.stragglers] == [LATE]
    assert found.stragglers[0].caused_share > 0.97
    for rank in found.ranks:
        if rank.clock.method == "collectives":
            assert rank.clock.offset_ns == pytest.approx(OFFSETS[rank.rank], abs=5_000)
            assert rank.clock.uncertainty_ns <= 5_000


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_fault_nobody_is_named(shape):
    assert tracekit.analyze(Fsdp(capture_of=SHAPES[shape]).job.timeline()).stragglers == ()


def test_two_reasons_that_explain_the_delay_together():
    """Neither makes up half of it, for a stall under a transfer is no idle time: the greater one is the cause."""
    (found,) = tracekit.analyze(Fsdp(slow=1.06, stall=120 * US).job.timeline()).stragglers
    assert (found.rank, found.verdict, found.cause) == (LATE, "persistent", "slow_compute")


def test_where_launch_rows_are_missing_silence_proves_nothing():
    """GIVEN a rank late for no reason that compute or idle time shows, THEN it is named, and the verdict is open."""
    (found,) = tracekit.analyze(Fsdp(slow=1.04).job.timeline()).stragglers
    assert (found.rank, found.verdict, found.cause) == (LATE, "undecided", "unknown")


def test_captures_that_start_at_different_collectives():
    made = Fsdp(slow=1.25, epochs=False, marks=False)
    found = tracekit.analyze(made.job.timeline(drop=lambda rank, row: row < 37 * rank))
    assert [s.rank for s in found.stragglers] == [LATE]
    for rank in found.ranks[1:]:
        reading = rank.clock.offset_ns
        assert reading == pytest.approx(OFFSETS[rank.rank], abs=5_000)


@pytest.mark.parametrize("epochs", [True, False])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_records_that_the_profiler_lost_shift_no_clock(share, epochs):
    """GIVEN captures that each lack records here and there, THEN no lag fits all of it, and clocks are found anyway."""
    made, rng = Fsdp(slow=1.25, epochs=epochs), np.random.default_rng(8)
    found = tracekit.analyze(made.job.timeline(drop=lambda *_: rng.random() < share))
    for rank in found.ranks[1:]:
        assert rank.clock.offset_ns == pytest.approx(OFFSETS[rank.rank], abs=5_000)
        assert rank.clock.uncertainty_ns <= 2_000
    assert [s.rank for s in found.stragglers] == [LATE]
