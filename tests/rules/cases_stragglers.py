"""Ranks that others wait for, and networks: TK2xx."""

from __future__ import annotations

from small_captures import SIZED, case


def rounds(job, lengths, *, transfer=100, gap=lambda rank, i: 0, ranges=None, size=None):
    """Compute, then an all-reduce that ends when the last rank has come and the transfer is done, again and again."""
    ranks = [job.rank() for _ in lengths[0]]
    t = 0
    for i, row in enumerate(lengths):
        ready = [t + gap(r, i) + length for r, length in enumerate(row)]
        end = max(ready) + (transfer(i) if callable(transfer) else transfer)
        for r, rank in enumerate(ranks):
            if ranges:
                ranges(rank, i, t, ready[r], end)
            start = t + gap(r, i)
            for name, share in (("gemm", 0.5), ("flash_fwd", 0.5)):
                rank.run(name, start, start + round(row[r] * share), at=start - 5)
                start += round(row[r] * share)
            rank.run("reduce", ready[r], end, at=ready[r] - 5, size=size)
        t = end
    return t


def stepped(rank, i, t, ready, end):
    rank.step(i + 1, t - 8, end - 9)


@case({"TK201": None}, ("TK202", "TK203", "TK204", "TK205", "TK206"), severity="error", ranks=(2,))
def a_rank_that_computes_slowly(job):
    rounds(job, [(600, 660, 1000, 620)] * 6)


@case(
    {"TK201": None},
    ("TK202", "TK203", "TK204", "TK100"),
    severity="error",
    ranks=(1,),
    steps=(2, 3, 4, 5, 6),
    job={"apart": True},
)
def the_slower_of_two_ranks(job):
    rounds(job, [(600, 1000)] * 6, ranges=stepped)


@case({}, ("TK201", "TK202", "TK203", "TK204", "TK208"))
def ranks_that_differ_by_half_a_percent(job):
    rounds(job, [(1000, 1004, 1000, 998)] * 8)


@case({"TK202": None}, ("TK201", "TK203", "TK204"), severity="error", ranks=(1,))
def a_rank_whose_host_stalls(job):
    rounds(job, [(600, 600, 600, 600)] * 6, gap=lambda rank, i: 300 * (rank == 1 and i > 0))


@case({"TK202|TK203": None}, ("TK201", "TK204"), severity="error", ranks=(3,))
def a_rank_that_launches_its_collective_late(job):
    ranks = [job.rank() for _ in range(4)]
    for i in range(6):
        t = 1000 * i
        for rank in ranks:
            start = t + 600 + 300 * (rank.number == 3)
            rank.run("gemm", t, t + 600, at=t - 5)
            rank.run("reduce", start, t + 1000, at=start - 5)


@case({"TK204": None}, ("TK201", "TK202", "TK203"))
def ranks_that_stall_in_turn(job):
    rounds(job, [(600, 600, 600, 600)] * 12, gap=lambda rank, i: 2000 * (i % 4 == rank and i > 0), ranges=stepped)


@case({"TK205": None}, ("TK201", "TK202", "TK203"))
def sequences_of_different_length(job):
    ranks = [job.rank() for _ in range(4)]
    t = 0
    for step in range(12):
        lengths = [(200, 260, 320, 400)[(rank.number + step) % 4] for rank in ranks]
        end = t + 3 * max(lengths) + 100
        for rank, length in zip(ranks, lengths, strict=True):
            rank.step(step, t - 8, end - 9)
            rank.phase("forward", t - 7, t + 10)
            rank.phase("backward", t + 11, end - 10)
            rank.run("gemm", t, t + length, at=t - 5)
            rank.run("gemm", t + length, t + 3 * length, at=t + 12)
            rank.run("reduce", t + 3 * length, end, at=t + 18)
        t = end


@case({"TK208": None, "TK201": 750}, ("TK202", "TK203"))
def every_kernel_of_a_rank_is_slow(job):
    rounds(job, [(1000, 1000, 1200, 1000)] * 6)


@case({"TK201": None}, ("TK208", "TK202"))
def one_kernel_of_a_rank_is_slow(job):
    ranks = [job.rank() for _ in range(4)]
    for i in range(6):
        t = 1500 * i
        for rank in ranks:
            slow = 400 * (rank.number == 2)
            rank.run("gemm", t, t + 500, at=t - 5)
            rank.run("flash_fwd", t + 500, t + 1000 + slow, at=t + 2)
            rank.run("reduce", t + 1000 + slow, t + 1500, at=t + 950)


@case({"TK209": None}, ("TK201", "TK202", "TK203", "TK204"), job=SIZED)
def transfers_that_vary(job):
    rounds(job, [(300, 300)] * 40, transfer=lambda i: 400 if i % 8 == 3 else 100, size=1 << 20)


@case({}, ("TK209",), job=SIZED)
def transfers_that_do_not_vary(job):
    rounds(job, [(300, 300)] * 40, transfer=lambda i: 104 if i % 8 == 3 else 100, size=1 << 20)


@case({}, ("TK209",), job=SIZED)
def large_and_small_messages(job):
    """Every eighth all-reduce carries four times as much, and takes four times as long."""
    ranks = [job.rank(), job.rank()]
    t = 0
    for i in range(40):
        large = 3 * (i % 8 == 3)
        for rank in ranks:
            rank.run("gemm", t, t + 300)
            rank.run("reduce", t + 300, t + 400 + 100 * large, size=(1 + large) << 20)
        t += 400 + 100 * large


def linked(job, slow):
    """Two pairs that reduce 10 MB in 100 us; the second in ``slow`` us."""
    ranks = [job.rank() for _ in range(4)]
    for i in range(12):
        for rank in ranks:
            pair = rank.number // 2
            t = 1000 * i
            rank.run("gemm", t, t + 500)
            rank.run("reduce", t + 500, t + 500 + (slow if pair else 100), size=10 << 20, comm=0xC0 + pair)
            rank.run("gemm", t + 900, t + 1000, at=t + 510)


@case({"TK207": None}, ("TK201", "TK202", "TK203", "TK204"), job=SIZED, ranks=(2, 3))
def a_pair_with_a_slow_link(job):
    linked(job, 400)


@case({}, ("TK207",), job=SIZED)
def pairs_with_links_alike(job):
    linked(job, 120)
