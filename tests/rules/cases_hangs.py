"""Captures that an interrupt ended: TK3xx."""

from __future__ import annotations

from small_captures import SIZED, case


def stopped(job, last, *, ranks=4, done=3, seen=None):
    """``done`` all-reduces, then ``last(rank)``: what the rank was in when the capture ended."""
    job.stop = 4_000_000
    for _ in range(ranks):
        rank = job.rank()
        rank.of(ranks)
        for step in range(done):
            t = 1000 * step
            rank.step(step, t - 20, t + 990)
            rank.run("gemm", t, t + 800, at=t - 5)
            rank.run("reduce", t + 800, t + 1000, at=t + 700, size=None if seen else 1 << 20)
            if seen:
                seen(rank, step, t)
        rank.step(done, 1000 * done - 20, None)
        rank.run("gemm", 1000 * done, 1000 * done + 800, at=1000 * done - 5)
        last(rank, 1000 * done + 700)


def pushed(rank, t, what="reduce", size=1 << 20, comm=0xC0):
    """A collective that was asked for, and whose kernel did not end."""
    rank.asked(what, t, t + 5, size=size, comm=comm)


@case({"TK301": None}, ("TK302", "TK303", "TK305", "TK306"), job=SIZED, severity="error")
def hang_of_a_rank_that_never_came(job):
    def last(rank, t):
        if rank.number != 2:
            pushed(rank, t)

    stopped(job, last)


@case({"TK302": None}, ("TK301", "TK303", "TK305", "TK306"), job=SIZED, severity="error")
def hang_of_another_operation(job):
    def last(rank, t):
        pushed(rank, t, "gather" if rank.number == 1 else "reduce")

    stopped(job, last)


@case({"TK303": None}, ("TK301", "TK302", "TK305", "TK306"), job=SIZED, severity="error")
def hang_of_another_size(job):
    def last(rank, t):
        pushed(rank, t, size=(1 << 20) + 4096 * (rank.number == 3))

    stopped(job, last)


@case({"TK305": None}, ("TK302", "TK303", "TK306"), job=SIZED, severity="error")
def hang_of_two_orders(job):
    def last(rank, t):
        pushed(rank, t, comm=0xC0 if rank.number % 2 else 0xD0)

    job.stop = 4_000_000
    for _ in range(4):
        rank = job.rank()
        rank.of(4)
        for step in range(3):
            t = 1000 * step
            rank.step(step, t - 20, t + 990)
            rank.run("gemm", t, t + 800, at=t - 5)
            rank.run("reduce", t + 900, t + 1000, at=t + 700, size=1 << 20)
            rank.run("reduce", t + 800, t + 900, at=t + 710, size=1 << 20, comm=0xD0, stream=28)
        rank.step(3, 2980, None)
        rank.run("gemm", 3000, 3800, at=2995)
        last(rank, 3700)


@case({"TK306": None}, ("TK301", "TK302", "TK303", "TK305"), job=SIZED, severity="error")
def hang_of_all_together_after_their_launches(job):
    def last(rank, t):
        pushed(rank, t)
        rank.call("cudaLaunchKernelExC_v11060", t + 1, t + 3)

    stopped(job, last)


@case({"TK304": None}, ("TK301", "TK302", "TK303", "TK305", "TK306"), job=SIZED, severity="error")
def hang_of_another_dtype(job):
    def last(rank, t):
        annotated(rank, t, "float32" if rank.number == 1 else "bfloat16", 4)

    stopped(job, last, seen=lambda rank, step, t: annotated(rank, t + 690, "bfloat16", step + 1))


def annotated(rank, t, dtype, seq):
    rank.range("all_reduce", t, t + 20, domain="tracekit.comm", int64Value=1 << (21 if dtype == "float32" else 20))
    rank.range(f"world/{dtype}", t + 1, t + 19, domain="tracekit.comm.detail", int64Value=seq)


@case({"TK307": None}, ("TK301", "TK302", "TK303", "TK305", "TK306"), job=SIZED, severity="error")
def hang_of_a_rank_that_skipped_a_step(job):
    """Rank 1 is a step ahead: its fourth all-reduce is of step 4, that of the others of step 3; then it leaves."""
    job.stop = 4_000_000
    for number in range(4):
        rank = job.rank()
        rank.of(4)
        for nth in range(6):
            t, step = 1000 * nth, nth + (number == 1 and nth >= 3)
            rank.step(step, t - 20, t + 990)
            rank.run("gemm", t, t + 800, at=t - 5)
            rank.run("reduce", t + 800, t + 1000, at=t + 700, size=1 << 20)
        if number != 1:
            rank.step(6, 5980, None)
            rank.run("gemm", 6000, 6800, at=5995)
            pushed(rank, 6700)


@case({"TK301": None}, ("TK302", "TK303", "TK305", "TK306"), job={"version": "2024.6", "apart": True}, severity="error")
def hang_in_four_reports(job):
    def last(rank, t):
        if rank.number != 0:
            pushed(rank, t)

    stopped(job, last)


@case({"TK306": None}, ("TK301", "TK302", "TK303", "TK305"), job=SIZED, severity="error")
def hang_of_all_together(job):
    def last(rank, t):
        pushed(rank, t)

    stopped(job, last)


@case({}, ("TK301", "TK302", "TK303", "TK305", "TK306", "TK307"), job=SIZED)
def a_capture_that_ends_earlier_on_one_rank(job):
    for number in range(2):
        rank = job.rank()
        for step in range(6 - number):
            t = 1000 * step
            rank.step(step, t - 20, t + 990)
            rank.run("gemm", t, t + 800, at=t - 5)
            rank.run("reduce", t + 800, t + 1000, at=t + 700, size=1 << 20)
