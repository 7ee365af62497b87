"""Communication that nothing hides, and what looks like it: TK1xx."""

from __future__ import annotations

from small_captures import COMPUTE, EXPOSED, GATHERS, HOST, SIZED, case


@case({"TK100": 100}, (*EXPOSED, *HOST), severity="error", ranks=(0,), steps=())
def exposed_send_that_no_rule_knows(job):
    rank = job.rank()
    rank.run("gemm", 0, 500, at=-20)
    rank.run("sendrecv", 400, 600, at=-10)
    rank.run("gemm", 600, 1000, at=-5)


@case({}, ("TK100", *EXPOSED, *HOST))
def exposed_below_two_in_a_hundred(job):
    rank = job.rank()
    rank.run("gemm", 0, 500, at=-20)
    rank.run("sendrecv", 400, 515, at=-10)
    rank.run("gemm", 515, 1000, at=-5)


def forward_without_prefetch(rank, t):
    rank.run("gemm", t, t + 200)
    for start in (200, 500, 800):
        rank.run("gather", t + start, t + start + 100)
        rank.run("gemm", t + start + 100, t + start + 300)


@case(
    {"TK101": 300}, ("TK100", "TK102", "TK103", "TK104", "TK108", *HOST), severity="error", ranks=(0, 1), steps=(2, 3)
)
def no_forward_prefetch_with_steps(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3):
            t = step * 1100
            rank.step(step, t - 10, t + 1090)
            rank.phase("forward", t - 8, t + 1080)
            forward_without_prefetch(rank, t)


@case({"TK101": 300}, ("TK100", "TK102", *HOST), job={"era": "2.14", "version": "2022.4"}, ranks=(0,), steps=())
def no_prefetch_in_an_old_capture(job):
    forward_without_prefetch(job.rank(), 0)


@case({"TK101": 300}, ("TK102", *HOST), job={"apart": True}, ranks=(0, 1, 2, 3), steps=())
def no_prefetch_in_four_reports(job):
    for _ in range(4):
        forward_without_prefetch(job.rank(), 0)


@case({}, ("TK101", "TK102", "TK105", "TK106"))
def gathers_hidden_by_prefetch(job):
    rank = job.rank()
    rank.run("gemm", 0, 200, at=-20)
    for i in range(1, 4):
        rank.run("gather", 200 * i - 150, 200 * i - 50, at=-15 + i)
        rank.run("gemm", 200 * i, 200 * i + 200, at=-10 + 2 * i)


@case({"TK100": None}, ("TK101", "TK102"))
def gathers_issued_ahead_but_longer_than_the_compute(job):
    rank = job.rank()
    rank.run("gemm", 0, 100, at=-40)
    for i in range(4):
        t = 300 * i
        rank.run("gather", t + 10, t + 300, at=t - 35)
        rank.run("gemm", t + 300, t + 400, at=t - 30)


@case({"TK401": 150, "TK100": 300}, ("TK101", "TK102"), severity="error", ranks=(0,))
def gathers_behind_a_host_that_is_merely_late(job):
    rank = job.rank()
    rank.run("gemm", 0, 200)
    for i in range(3):
        t = 350 * i
        rank.run("gather", t + 250, t + 350, at=t + 245)
        rank.run("gemm", t + 350, t + 550, at=t + 248)


def backward_without_prefetch(rank, t):
    """Forward hides its gathers; backward gathers when the layer before is done, and hides its reductions."""
    rank.run("gemm", t, t + 200, at=t - 9)
    rank.run("gather", t + 50, t + 150, at=t - 8)
    rank.run("gemm", t + 200, t + 400, at=t - 4)
    for i in range(3):
        b = t + 400 + 500 * i
        rank.run("gather", b, b + 100)
        rank.run("gemm", b + 100, b + 500, at=b + 2)
        if i:
            rank.run("scatter", b + 150, b + 250, at=b + 3)
    rank.run("scatter", t + 1700, t + 1800, at=t + 1690)


@case({"TK102": 300}, ("TK100", "TK101", "TK103", "TK107", *HOST), severity="warning", ranks=(0,), steps=(2,))
def no_backward_prefetch_with_steps(job):
    rank = job.rank()
    for step in (1, 2):
        t = 2000 * step
        rank.step(step, t - 20, t + 1900)
        rank.phase("forward", t - 15, t + 5)
        rank.phase("backward", t + 390, t + 1800)
        backward_without_prefetch(rank, t)


@case({"TK101|TK102": 300}, ("TK100", "TK103", "TK107", *HOST), ranks=(0,), steps=())
def no_backward_prefetch_without_ranges(job):
    backward_without_prefetch(job.rank(), 0)


def gather_behind_scatter(rank, t, *, at, start=300):
    rank.run("gemm", t, t + 200, at=t - 5)
    rank.run("scatter", t + 150, t + 300, at=t + 145)
    rank.run("gather", t + start, t + start + 100, at=t + at)


@case({"TK103": 300, "TK100": 300}, ("TK101", "TK102", "TK108", *HOST), ranks=(0,), steps=())
def gathers_queue_behind_scatters(job):
    rank = job.rank()
    for i in range(3):
        gather_behind_scatter(rank, 400 * i, at=150)
    rank.run("gemm", 1200, 1400, at=1000)


@case({}, ("TK103",))
def two_gathers_behind_scatters(job):
    rank = job.rank()
    for i in range(2):
        gather_behind_scatter(rank, 400 * i, at=150)
    rank.run("gemm", 800, 1000, at=700)


@case({}, ("TK103",))
def gathers_launched_after_the_scatters(job):
    rank = job.rank()
    for i in range(4):
        gather_behind_scatter(rank, 400 * i, at=301, start=304)
    rank.run("gemm", 1604, 1800, at=1600)


@case({}, ("TK103",))
def gathers_that_run_beside_scatters_elsewhere(job):
    rank = job.rank()
    for i in range(3):
        gather_behind_scatter(rank, 400 * i, at=150)
    rank.run("gemm", 1200, 1800, at=1000)
    rank.run("scatter", 1300, 1400, at=1010)
    rank.run("gather", 1350, 1450, at=1020)


@case({"TK104": 200}, ("TK101", "TK107", "TK100", *HOST), severity="error", ranks=(0,), steps=())
def all_reduce_on_the_compute_stream(job):
    rank = job.rank()
    rank.run("gemm", 0, 500)
    rank.run("reduce", 500, 700, stream=COMPUTE)
    rank.run("gemm", 700, 1000)


@case({"TK104": 200}, ("TK101", "TK107", "TK100"), ranks=(0,), steps=())
def on_the_compute_stream_without_launch_rows(job):
    rank = job.rank()
    rank.run("gemm", 0, 500, launched=False)
    rank.run("gather", 500, 700, stream=COMPUTE, launched=False)
    rank.run("gemm", 700, 1000, launched=False)


@case({}, ("TK104",))
def copy_in_kernels_on_the_communication_stream(job):
    rank = job.rank()
    for i in range(4):
        t = 300 * i
        rank.run("gemm", t, t + 300, at=t - 20)
        rank.run("chunk_cat_cuda_kernel", t + 20, t + 40, stream=GATHERS, at=t - 15)
        rank.run("gather", t + 40, t + 140, at=t - 10)


@case({"TK105": None}, ("TK100", *HOST), ranks=(0,), steps=())
def forty_tiny_gathers(job):
    rank = job.rank()
    for i in range(40):
        rank.run("gemm", 50 * i, 50 * i + 30)
        rank.run("gather", 50 * i + 30, 50 * i + 50)
    rank.run("gemm", 2000, 2030)


@case({"TK105": 780}, ("TK100",), ranks=(0, 1), steps=(2,))
def forty_tiny_all_reduces_a_step(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2):
            t = 2000 * step
            rank.step(step, t - 10, t + 1990)
            rank.phase("backward", t - 8, t + 1985)
            for i in range(40):
                rank.run("gemm", t + 50 * i, t + 50 * i + 30)
                rank.run("reduce", t + 50 * i + 30, t + 50 * i + 50)


@case({}, ("TK105",))
def four_tiny_gathers(job):
    rank = job.rank()
    for i in range(4):
        rank.run("gemm", 520 * i, 520 * i + 500)
        rank.run("gather", 520 * i + 500, 520 * i + 520)
    rank.run("gemm", 2080, 2580)


@case({}, ("TK105", "TK100"))
def forty_tiny_gathers_hidden(job):
    rank = job.rank()
    for i in range(40):
        rank.run("gemm", 50 * i, 50 * i + 50, at=50 * i - 20)
        rank.run("gather", 50 * i + 10, 50 * i + 30, at=50 * i - 30)


def prefetched(rank, t):
    rank.run("gemm", t, t + 200, at=t - 15)
    for i in (1, 2, 3):
        rank.run("gather", t + 200 * i - 150, t + 200 * i - 50, at=t + 200 * i - 218)
        rank.run("gemm", t + 200 * i, t + 200 * i + 200, at=t + 200 * i - 212)


@case({"TK106": 200}, ("TK100", "TK101", "TK102", *HOST), severity="error", ranks=(0,), steps=())
def first_gather_exposed(job):
    rank = job.rank()
    rank.run("gather", 0, 200, at=-25)
    prefetched(rank, 200)


@case({"TK106": 200}, ("TK100", "TK101", "TK102", *HOST), severity="error", steps=(2, 3))
def first_gather_of_each_step_exposed(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3):
            t = 1100 * step
            rank.step(step, t - 40, t + 900)
            rank.phase("forward", t - 38, t + 800)
            rank.run("embedding_dense", t, t + 4, at=t - 30)
            rank.run("gather", t + 4, t + 204, at=t - 25)
            prefetched(rank, t + 204)
            rank.run("multi_tensor_apply_kernel_adam", t + 1004, t + 1100, at=t + 500)


@case({"TK107": 100}, ("TK100", "TK101", "TK108", *HOST), severity="warning", ranks=(0, 1), steps=())
def last_scatter_exposed_before_the_optimizer(job):
    for rank in (job.rank(), job.rank()):
        rank.run("gemm", 0, 1000, at=-30)
        rank.run("scatter", 300, 400, at=250)
        rank.run("scatter", 600, 700, at=550)
        rank.run("scatter", 1000, 1100, at=950)
        rank.run("multi_tensor_apply_kernel_adam", 1100, 1300, at=960)


@case({"TK107": 100}, ("TK100", *HOST), ranks=(0,), steps=(8,))
def last_bucket_of_each_step(job):
    rank = job.rank()
    for step in (7, 8):
        t = 1200 * step
        rank.step(step, t - 20, t + 1000)
        rank.phase("forward", t - 18, t - 10)
        rank.phase("backward", t + 250, t + 960)
        rank.phase("optimizer", t + 965, t + 990)
        rank.run("gemm", t, t + 300, at=t - 16)
        rank.run("gemm", t + 300, t + 1000, at=t + 252)
        rank.run("reduce", t + 500, t + 600, at=t + 450)
        rank.run("reduce", t + 1000, t + 1100, at=t + 950)
        rank.run("multi_tensor_apply_kernel_adam", t + 1100, t + 1200, at=t + 970)


@case({}, ("TK100", "TK107"))
def last_bucket_hidden(job):
    rank = job.rank()
    rank.run("gemm", 0, 1000, at=-30)
    rank.run("reduce", 300, 400, at=250)
    rank.run("reduce", 600, 700, at=550)


def held_up(rank, t, *, ahead):
    rank.run("gemm", t, t + 200, at=t - 20)
    rank.run("gather", t + (10 if not ahead else 50), t + 100, at=t - (15 if not ahead else 90))
    rank.run("scatter", t + 200, t + 280, at=t - 10)


@case({"TK108": 160, "TK107": 80}, ("TK101", "TK103", "TK100", *HOST), ranks=(0,), steps=())
def launch_order_rules(job):
    rank = job.rank()
    for i in range(3):
        held_up(rank, 280 * i, ahead=False)
    rank.run("gemm", 840, 1040, at=820)


@case({"TK108": 160, "TK107": 80}, ("TK101", "TK103", "TK100", *HOST), ranks=(0, 1), job={"apart": True})
def launch_order_rules_on_two_ranks(job):
    for rank in (job.rank(), job.rank()):
        for i in range(3):
            held_up(rank, 280 * i, ahead=False)
        rank.run("gemm", 840, 1040, at=820)


@case({}, ("TK108",))
def launch_order_does_not_rule(job):
    """The gathers are launched before the kernel that starts before them."""
    rank = job.rank()
    for i in range(3):
        held_up(rank, 280 * i, ahead=True)
    rank.run("gemm", 840, 1040, at=820)


def bound_by_transfer(job, size):
    for rank in (job.rank(), job.rank()):
        rank.of(2)
        rank.run("gemm", 0, 100, at=-40)
        for i in range(4):
            t = 500 * i
            rank.run("gather", t + 50, t + 450, at=t - 35, size=size)
            rank.run("gemm", t + 450, t + 600, at=t - 25)


@case({"TK109": 1050, "TK100": 350}, ("TK101",), job=SIZED, ranks=(0, 1))
def gathers_as_fast_as_the_link(job):
    """160 MB in 400 us: 400 GB/s of the 450 of NVLink on an H100."""
    bound_by_transfer(job, 160_000_000)


@case({"TK100": None}, ("TK109",), job=SIZED)
def gathers_slower_than_the_link(job):
    """120 MB in 400 us: 300 GB/s."""
    bound_by_transfer(job, 120_000_000)


@case({"TK110": 200}, ("TK100", "TK101", "TK102", "TK106", *HOST), ranks=(0, 1), steps=(2, 3))
def gathers_after_the_optimizer(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3):
            t = 1250 * step
            rank.step(step, t - 20, t + 1190)
            rank.phase("forward", t - 18, t - 5)
            rank.phase("backward", t, t + 900)
            rank.phase("optimizer", t + 905, t + 1180)
            rank.run("gemm", t, t + 300, at=t - 16)
            rank.run("gemm", t + 300, t + 1000, at=t + 2)
            rank.run("reduce", t + 500, t + 700, at=t + 400)
            rank.run("multi_tensor_apply_kernel_adam", t + 1000, t + 1050, at=t + 910)
            rank.run("gather", t + 1050, t + 1150, at=t + 920)
            rank.run("gather", t + 1150, t + 1250, at=t + 930)


@case({"TK110": 200}, ("TK100", "TK101", "TK102", "TK106"), ranks=(0,), steps=())
def gathers_after_the_optimizer_without_ranges(job):
    rank = job.rank()
    rank.run("gemm", 0, 1000, at=-10)
    rank.run("reduce", 500, 700, at=400)
    rank.run("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", 1000, 1050, at=910)
    rank.run("gather", 1050, 1150, at=920)
    rank.run("gather", 1150, 1250, at=930)
    rank.run("gemm", 1250, 1300, at=940)


def accumulated(rank, t, *, deferred, op="scatter"):
    for micro in (0, 1):
        m = t + 600 * micro
        rank.phase("forward", m - 18, m + 150)
        rank.phase("backward", m + 180, m + 495)
        rank.run("gemm", m, m + 200, at=m - 10)
        rank.run("gemm", m + 200, m + 500, at=m + 185)
        if micro or not deferred:
            rank.run(op, m + 500, m + 600, at=m + 450)
        else:
            rank.run("gemm", m + 500, m + 600, at=m + 460)
    rank.phase("optimizer", t + 1100, t + 1150)
    rank.run("multi_tensor_apply_kernel_adam", t + 1200, t + 1300, at=t + 1110)


def accumulation(job, op, deferred):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2):
            rank.step(step, 1300 * step - 20, 1300 * step + 1200)
            accumulated(rank, 1300 * step, deferred=deferred, op=op)


@case({"TK111": 100, "TK107": 100}, ("TK100", "TK101", *HOST), ranks=(0, 1), steps=(2,))
def scatter_for_every_microbatch(job):
    accumulation(job, "scatter", deferred=False)


@case({"TK111": 100, "TK107": 100}, ("TK100", "TK101", *HOST), ranks=(0, 1), steps=(2,))
def all_reduce_for_every_microbatch(job):
    accumulation(job, "reduce", deferred=False)


@case({"TK107": 100}, ("TK100", "TK111"))
def scatter_deferred_to_the_last_microbatch(job):
    accumulation(job, "scatter", deferred=True)


@case({"TK112": 450, "TK100": 100, "TK107": 50}, ("TK101",), ranks=(0,))
def all_reduce_serial_with_scatter(job):
    rank = job.rank()
    for step in (1, 2):
        t = 1500 * step
        rank.step(step, t - 20, t + 1400)
        rank.phase("forward", t - 18, t - 10)
        rank.phase("backward", t - 9, t + 1300)
        for i in range(3):
            m = t + 400 * i
            rank.run("gemm", m, m + 200, at=m - 8)
            rank.run("scatter", m + 100, m + 250, at=m + 60, stream=GATHERS)
            rank.run("reduce", m + 250, m + 400, at=m + 70)
        rank.phase("optimizer", t + 1301, t + 1390)
        rank.run("multi_tensor_apply_kernel_adam", t + 1200, t + 1500, at=t + 1305)


@case({"TK113": 400}, ("TK100", *EXPOSED, *HOST), ranks=(0,), steps=())
def kernels_slower_beside_a_collective(job):
    rank = job.rank()
    for i in range(4):
        rank.run("gemm", 100 * i, 100 * i + 100, at=-40 + i)
    rank.run("gather", 400, 1200, at=-20)
    for i in range(4):
        rank.run("gemm", 400 + 200 * i, 600 + 200 * i, at=-15 + i)


@case({}, ("TK113", "TK100"))
def as_fast_beside_a_collective(job):
    rank = job.rank()
    for i in range(8):
        rank.run("gemm", 100 * i, 100 * i + 100, at=-40 + i)
    rank.run("gather", 400, 800, at=-20)


@case({}, ("TK113",))
def larger_kernels_beside_a_collective(job):
    rank = job.rank()
    for i in range(4):
        rank.run("gemm", 100 * i, 100 * i + 100, at=-40 + i)
    rank.run("gather", 400, 1200, at=-20)
    for i in range(4):
        rank.run("gemm", 400 + 200 * i, 600 + 200 * i, at=-15 + i, grid=264)
