"""Hosts, copies and memory: TK4xx and TK5xx."""

from __future__ import annotations

from nsys_builder import DTOD, DTOH
from small_captures import COMPUTE, case


@case({"TK401": 720}, ("TK402", "TK403", "TK405", "TK406", "TK100"), severity="error", ranks=(0, 1), steps=(2,))
def launch_bound_steps(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2):
            t = 1000 * step
            rank.step(step, t - 8, t + 990)
            for i in range(25):
                rank.run("elementwise", t + 40 * i, t + 40 * i + 10)


def working_host(job, pause, steps):
    """In each of these of six steps the host does something for ``pause`` us between forward and backward."""
    rank, t = job.rank(), 0
    for step in range(6):
        wait = pause if step in steps else 0
        rank.step(step, t - 8, t + 1990 + wait)
        rank.run("gemm", t, t + 1000, at=t - 5)
        rank.run("gemm", t + 1000 + wait, t + 2000 + wait, at=t + 995 + wait)
        t += 2000 + wait


@case({"TK401": 3000}, ("TK402", "TK405", "TK406"), severity="error", ranks=(0,), steps=(1, 2, 3, 4, 5))
def a_host_that_works_for_long_in_every_step(job):
    working_host(job, 3000, range(6))


@case({"TK401": 300}, ("TK402", "TK405", "TK406"), severity="error", ranks=(0,), steps=(1, 2, 3, 4, 5))
def a_host_that_works_in_every_step(job):
    working_host(job, 300, range(6))


@case({}, ("TK401",))
def a_host_that_works_in_one_step(job):
    working_host(job, 300, (3,))


@case({}, ("TK401",))
def queued_well_ahead_with_gaps(job):
    rank = job.rank()
    for i in range(25):
        rank.run("elementwise", 40 * i, 40 * i + 10, at=-200 + 5 * i)


def read_value(rank, t):
    rank.run("gemm", t, t + 200, at=t - 5)
    rank.copy(t + 200, t + 202, at=t + 5, stream=COMPUTE, size=4, kind=DTOH, pageable=True)
    rank.sync("cudaStreamSynchronize_v3020", t + 10, t + 205, 3)


@case({"TK402": 490}, ("TK401", "TK403", "TK405", "TK406", "TK100"), ranks=(0,), steps=())
def item_without_steps(job):
    rank = job.rank()
    for i in range(5):
        read_value(rank, 300 * i)
    rank.run("gemm", 1500, 1700)


@case({"TK402": 196}, ("TK401", "TK403", "TK405", "TK406", "TK407"), severity="error", ranks=(0,), steps=(2,))
def item_in_every_step(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 600 * step
        rank.step(step, t - 8, t + 590)
        rank.phase("forward", t - 7, t + 580)
        read_value(rank, t)
        read_value(rank, t + 300)


@case({}, ("TK402",))
def waits_with_work_queued_elsewhere(job):
    rank = job.rank()
    for i in range(5):
        rank.run("gemm", 300 * i, 300 * i + 300, at=300 * i - 100)
        rank.sync("cudaEventSynchronize_v3020", 300 * i - 90, 300 * i, 1)


def retry(rank, t):
    rank.run("gemm", t, t + 200, at=t - 5)
    rank.call("cudaFree_v3020", t + 100, t + 300)
    rank.call("cudaMalloc_v3020", t + 300, t + 390)


@case({"TK403": None}, ("TK401", "TK402", "TK405", "TK406"), severity="error", ranks=(0,), steps=(2, 3))
def allocator_retries_in_a_step(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 800 * step
        rank.step(step, t - 8, t + 790)
        retry(rank, t)
        rank.run("gemm", t + 400, t + 800)


@case({"TK403": 800}, ("TK401", "TK402"), ranks=(0,), steps=())
def allocator_retries_without_steps(job):
    rank = job.rank()
    for i in range(4):
        retry(rank, 400 * i)
    rank.run("gemm", 1600, 1800)


@case({}, ("TK403",))
def allocations_before_the_first_step(job):
    rank = job.rank()
    rank.call("cudaMalloc_v3020", -5000, -4900)
    rank.call("cudaMalloc_v3020", -4900, -4800)
    for step in (1, 2, 3):
        rank.step(step, 500 * step - 8, 500 * step + 490)
        rank.run("gemm", 500 * step, 500 * step + 500)


def limited(rank, t, *, pause=10):
    """The host waits for the layer before the last, then gathers: launched `pause` after the wait."""
    rank.run("gemm", t, t + 200, at=t - 4)
    rank.sync("cudaEventSynchronize_v3020", t + 5, t + 200, 1)
    rank.run("gather", t + 206 + pause, t + 306 + pause, at=t + 201 + pause)


@case({"TK404": 392}, ("TK101", "TK102", "TK402", "TK100"), ranks=(0,), steps=())
def rate_limiter(job):
    rank = job.rank()
    for i in range(4):
        limited(rank, 314 * i)
    rank.run("gemm", 1256, 1456, at=1252)


@case({"TK404": 396}, ("TK101", "TK102", "TK402", "TK100"), ranks=(0, 1), steps=(2,))
def rate_limiter_in_every_step(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2):
            t = 1456 * step
            rank.step(step, t - 8, t + 1440)
            rank.phase("forward", t - 7, t + 1430)
            for i in range(4):
                limited(rank, t + 314 * i, pause=0 if i % 2 else 10)
            rank.run("gemm", t + 1256, t + 1456, at=t + 1252)


@case({}, ("TK404",))
def event_long_before_the_gather(job):
    rank = job.rank()
    for i in range(4):
        limited(rank, 404 * i, pause=100)
    rank.run("gemm", 1616, 1816, at=1612)


@case({"TK405": 500}, ("TK401", "TK402", "TK404", "TK406", "TK407", "TK100"), severity="error", ranks=(0,))
def data_stall_at_the_start_of_each_step(job):
    rank = job.rank()
    for step in (1, 2, 3, 4):
        t = 1500 * step
        rank.step(step, t - 505, t + 900)
        rank.run("gemm", t, t + 500, at=t - 5)
        rank.run("gemm", t + 500, t + 1000, at=t)


@case({"TK405": 494}, ("TK401", "TK402", "TK406", "TK407"), severity="error", ranks=(0, 1))
def data_stall_with_a_data_range(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3, 4):
            t = 1500 * step
            rank.step(step, t - 505, t + 900)
            rank.phase("data", t - 504, t - 6)
            rank.phase("forward", t - 5, t + 800)
            rank.run("gemm", t, t + 500, at=t - 5)
            rank.run("gemm", t + 500, t + 1000, at=t)


@case({}, ("TK405", "TK401", "TK406"))
def loader_hidden_behind_queued_work(job):
    rank = job.rank()
    for step in (1, 2, 3, 4):
        t = 1000 * step
        rank.step(step, t - 505, t + 400)
        rank.run("gemm", t, t + 500, at=t - 5)
        rank.run("gemm", t + 500, t + 1000, at=t)


@case({"TK406": 857.142}, ("TK401", "TK402", "TK405", "TK407"), ranks=(0,))
def pauses_now_and_then(job):
    rank = job.rank()
    t = 0
    for step in range(8):
        pause = 3000 * (step in (2, 5))
        rank.step(step, t - 8, t + 1990 + pause)
        rank.run("gemm", t, t + 1000, at=t - 5)
        rank.run("gemm", t + 1000 + pause, t + 2000 + pause, at=t + 995 + pause)
        t += 2000 + pause


@case({"TK407": None}, ("TK402", "TK405", "TK406", "TK414"), ranks=(0,))
def a_checkpoint_between_steps(job):
    rank = job.rank()
    t = 0
    for step in range(6):
        rank.step(step, t - 8, t + 990)
        rank.run("gemm", t, t + 1000, at=t - 5)
        t += 1000
        if step == 3:
            for i in range(4):
                rank.copy(
                    t + 10 + 500 * i,
                    t + 510 + 500 * i,
                    at=t + 5 + 500 * i,
                    call=505,
                    size=64 << 20,
                    kind=DTOH,
                    pageable=True,
                    stream=COMPUTE,
                )
            t += 2020


@case({"TK408": 200}, ("TK402", "TK414", "TK405", "TK407"), severity="error", ranks=(0,), steps=(2,))
def pageable_input_on_the_compute_stream(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 1000 * step
        rank.step(step, t - 250, t + 600)
        rank.copy(t - 200, t, at=t - 205, call=204, stream=COMPUTE, pageable=True, size=4 << 20)
        rank.run("gemm", t, t + 400, at=t + 0)
        rank.run("gemm", t + 400, t + 800, at=t + 10)


@case({"TK408": None}, ("TK402", "TK414"), ranks=(0,), steps=())
def synchronous_input_without_steps(job):
    rank = job.rank()
    for i in range(4):
        t = 1000 * i
        rank.run("gemm", t, t + 800, at=t - 5)
        rank.copy(t + 810, t + 1000, at=t + 805, call=196, stream=COMPUTE, size=4 << 20, name="cudaMemcpy_v3020")
    rank.run("gemm", 4005, 4800, at=4001)


@case({}, ("TK408",))
def pinned_input_on_its_own_stream(job):
    rank = job.rank()
    for i in range(4):
        rank.run("gemm", 1000 * i, 1000 * i + 1000, at=1000 * i - 5)
        rank.copy(1000 * i + 100, 1000 * i + 300, at=1000 * i, size=4 << 20)


@case({}, ("TK408",))
def pageable_input_beside_compute(job):
    rank = job.rank()
    for i in range(4):
        rank.run("gemm", 1000 * i, 1000 * i + 1000, at=1000 * i - 5)
        rank.copy(1000 * i + 100, 1000 * i + 300, at=1000 * i, size=4 << 20, pageable=True)


@case({"TK416": 200}, ("TK408", "TK414", "TK415"), severity="error", ranks=(0,), steps=(2, 3))
def pinned_input_that_nothing_hides(job):
    pinned_behind_the_kernels(job, start=1000, wait=200)


@case({}, ("TK408", "TK414", "TK415", "TK416"))
def pinned_input_beside_the_kernels(job):
    pinned_behind_the_kernels(job, start=600, wait=0)


def pinned_behind_the_kernels(job, *, start, wait):
    """In each step 200 us of copy on its own stream, from ``start`` on; the next step waits for it."""
    rank = job.rank()
    for step in (1, 2, 3):
        t = (1000 + wait) * step
        rank.step(step, t - 30, t + 900)
        rank.run("gemm", t, t + 1000, at=t - 25)
        rank.copy(t + start, t + start + 200, at=t - 10, size=4 << 20)
    rank.run("gemm", (1000 + wait) * 4, (1000 + wait) * 4 + 100, at=(1000 + wait) * 4 - 25)


@case({"TK408": 500}, ("TK406", "TK409", "TK415"), ranks=(0,), steps=())
def parameters_copied_one_by_one_from_ordinary_memory(job):
    copied_one_by_one(job, between=20)


@case({}, ("TK415", "TK417", "TK418"))
def pages_that_the_kernel_touches_itself(job):
    migrated(job, beside=True)


@case({"TK417": 190}, ("TK408", "TK415", "TK416"), severity="warning", ranks=(0,), steps=())
def pages_that_the_host_touches_one_by_one(job):
    migrated(job, beside=False)


def copied_one_by_one(job, *, between):
    """Five copies of 84 us, and what the host takes before the next: 5 x 84 + 4 x 20 = 500 us."""
    rank = job.rank()
    rank.run("gemm", 0, 100)
    for i in range(5):
        t = 100 + (84 + between) * i
        rank.copy(t, t + 84, at=t - 4, call=70, size=4 << 20, pageable=True, stream=COMPUTE)
    rank.run("gemm", 600, 2000, at=590)


def migrated(job, *, beside):
    """Ten migrations of 10 us with 10 us between, beside a kernel or before it."""
    rank = job.rank()
    rank.run("gemm", 0, 1000)
    for i in range(10):
        t = 500 + 20 * i if beside else 1000 + 20 * i
        rank.migration(t, t + 10, size=65536)
    rank.run("gemm", 1000 if beside else 1190, 4000, at=990)


@case({"TK418": 100}, ("TK408", "TK415", "TK416"), severity="warning", ranks=(0,), steps=())
def tensors_joined_by_copies(job):
    rank = job.rank()
    rank.run("gemm", 0, 1000)
    rank.copy(1000, 1100, at=10, kind=DTOD, stream=COMPUTE, size=64 << 20)
    rank.run("gemm", 1100, 2000, at=20)


@case({"TK415": 300}, ("TK401", "TK402", "TK406", "TK418"), severity="error", ranks=(0,), steps=(2, 3))
def waits_for_something_that_is_not_seen(job):
    launched_and_waiting(job, 300)


@case({}, ("TK415",))
def waits_for_nothing(job):
    launched_and_waiting(job, 0)


def launched_and_waiting(job, wait):
    """The second kernel of each step is launched with the first, and starts ``wait`` us behind it."""
    rank = job.rank()
    for step in (1, 2, 3):
        t = (1000 + wait) * step
        rank.step(step, t - 30, t + 900)
        rank.run("gemm", t, t + 500, at=t - 25)
        rank.run("gemm", t + 500 + wait, t + 1000 + wait, at=t - 15)


@case({"TK411": 500}, ("TK401",), ranks=(0,), steps=(2, 3))
def optimizer_of_many_small_kernels(job):
    unfused(job, gap=4)


@case({}, ("TK411", "TK401"))
def optimizer_of_many_kernels_back_to_back(job):
    unfused(job, gap=0)


def unfused(job, gap):
    """125 kernels of 4 us in the optimizer, with ``gap`` us before each, as late as they are launched."""
    rank = job.rank()
    for step in (1, 2, 3):
        t = 3100 * step
        rank.step(step, t - 8, t + 3080)
        rank.phase("forward", t - 7, t + 2)
        rank.phase("backward", t + 3, t + 15)
        rank.run("gemm", t, t + 1000, at=t - 5)
        rank.run("gemm", t + 1000, t + 2000, at=t + 5)
        rank.phase("optimizer", t + 20, t + 3050)
        for i in range(125):
            start = t + 2000 + gap + (4 + gap) * i
            late = start - 5 if gap else t + 30 + 6 * i
            rank.run("void at::native::vectorized_elementwise_kernel<4, addcmul>", start, start + 4, at=late)
        rank.run("gemm", t + 3000, t + 3100, at=t + 2500)


@case({}, ("TK412", "TK401"))
def slow_first_steps_are_left_out(job):
    rank = job.rank()
    t = 0
    for step, length in enumerate((3000, 2000, 1000, 1000, 1000, 1000)):
        rank.step(step, t - 8, t + length - 9)
        rank.run("gemm", t, t + length, at=t - 5)
        t += length


@case({"TK414": 300}, ("TK408", "TK407", "TK405", "TK402"), severity="error", ranks=(0,), steps=(2, 3))
def offload_copies_exposed(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 1300 * step
        rank.step(step, t - 30, t + 900)
        rank.phase("forward", t - 28, t + 30)
        rank.phase("backward", t + 40, t + 500)
        rank.phase("optimizer", t + 510, t + 890)
        rank.run("gemm", t, t + 500, at=t - 20)
        rank.run("gemm", t + 500, t + 1000, at=t + 45)
        rank.copy(t + 1000, t + 1100, at=t + 300, size=32 << 20, kind=DTOH)
        rank.copy(t + 1100, t + 1300, at=t + 520, size=64 << 20)


@case({}, ("TK414",))
def offload_copies_hidden(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 1000 * step
        rank.step(step, t - 30, t + 900)
        rank.run("gemm", t, t + 500, at=t - 20)
        rank.run("gemm", t + 500, t + 1000, at=t + 45)
        rank.copy(t + 100, t + 300, at=t + 50, size=32 << 20, kind=DTOH)
        rank.copy(t + 400, t + 700, at=t + 320, size=64 << 20)


@case({"TK501": None}, ("TK401",), ranks=(0,))
def allocations_and_frees_all_the_time(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 2000 * step
        rank.step(step, t - 8, t + 1990)
        rank.run("gemm", t, t + 1000, at=t - 5)
        rank.run("gemm", t + 1000, t + 2000, at=t)
        for i in range(20):
            rank.call("cudaMalloc_v3020", t + 10 + 40 * i, t + 20 + 40 * i)
            rank.call("cudaFree_v3020", t + 25 + 40 * i, t + 35 + 40 * i)
