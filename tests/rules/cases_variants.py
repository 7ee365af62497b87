"""The same faults as other captures show them: other versions, ranks, reports, streams and calls."""

from __future__ import annotations

from nsys_builder import DTOH
from small_captures import COMPUTE, case


@case({"TK100": 300}, ("TK101",), job={"era": "rccl"}, ranks=(0,))
def collectives_of_unknown_kind(job):
    """RCCL's kernels do not tell what they do: no rule about gathers can hold."""
    rank = job.rank()
    rank.run("gemm", 0, 200)
    for t in (200, 500, 800):
        rank.run("gather", t, t + 100)
        rank.run("gemm", t + 100, t + 300)


@case({"TK101": 300}, ("TK102", "TK105"), steps=(4,))
def one_step_alone(job):
    rank = job.rank()
    rank.step(4, -10, 1090)
    rank.run("gemm", 0, 200)
    for t in (200, 500, 800):
        rank.run("gather", t, t + 100)
        rank.run("gemm", t + 100, t + 300)


@case({"TK101": 200, "TK100": 100}, ("TK102", "TK104"), ranks=(0, 1), job={"version": "2025.1", "era": "2.19"})
def gathers_on_streams_that_differ(job):
    for rank in (job.rank(), job.rank()):
        rank.run("gemm", 0, 200, stream=7 + rank.number)
        for t in (200, 500, 800):
            rank.run("gather", t, t + 100, stream=51 - 7 * rank.number)
            rank.run("gemm", t + 100, t + 300, stream=7 + rank.number)


@case({"TK107": 100}, ("TK100", "TK104"), job={"era": "2.14", "version": "2022.2"}, ranks=(0,))
def last_scatter_in_an_old_capture(job):
    rank = job.rank()
    rank.run("gemm", 0, 1000, at=-30)
    rank.run("scatter", 300, 400, at=250)
    rank.run("scatter", 1000, 1100, at=950)


@case({"TK402": 490}, ("TK401", "TK408"), ranks=(0,))
def device_synchronised_without_a_record(job):
    rank = job.rank()
    for i in range(5):
        rank.run("gemm", 300 * i, 300 * i + 202, at=300 * i - 5)
        rank.call("cudaDeviceSynchronize_v3020", 300 * i + 10, 300 * i + 205)
    rank.run("gemm", 1500, 1700)


@case({"TK402": None}, ("TK401",), ranks=(0,), steps=(2, 3))
def norm_of_gradients_read_in_each_step(job):
    rank = job.rank()
    for step in (1, 2, 3):
        t = 1000 * step
        rank.step(step, t - 8, t + 990)
        rank.run("gemm", t, t + 500, at=t - 5)
        rank.range("clip_grad_norm_", t, t + 560)
        rank.copy(t + 500, t + 502, at=t + 5, stream=COMPUTE, size=4, kind=DTOH, pageable=True, call=505)
        rank.run("gemm", t + 600, t + 1000, at=t + 595)


@case({"TK404": 392}, ("TK101", "TK402"), ranks=(0,))
def rate_limiter_without_a_record(job):
    rank = job.rank()
    for i in range(4):
        t = 314 * i
        rank.run("gemm", t, t + 200, at=t - 4)
        rank.call("cudaEventSynchronize_v3020", t + 5, t + 200)
        rank.run("gather", t + 216, t + 316, at=t + 211)
    rank.run("gemm", 1256, 1456, at=1252)


@case({"TK414": None}, ("TK408", "TK407", "TK402"), ranks=(0,), steps=())
def offload_without_steps(job):
    rank = job.rank()
    for i in range(4):
        t = 1200 * i
        rank.run("gemm", t, t + 1000, at=t - 20)
        rank.copy(t + 1000, t + 1100, at=t + 300, size=32 << 20, kind=DTOH)
        rank.copy(t + 1100, t + 1200, at=t + 320, size=64 << 20)
    rank.run("gemm", 4800, 5000, at=4500)


@case({"TK403": None}, ("TK402",), ranks=(1,), steps=(2, 3))
def allocator_retries_on_one_rank(job):
    for rank in (job.rank(), job.rank()):
        for step in (1, 2, 3):
            t = 800 * step
            rank.step(step, t - 8, t + 790)
            rank.run("gemm", t, t + (200 if rank.number else 400), at=t - 5)
            if rank.number:
                rank.call("cudaFree_v3020", t + 100, t + 300)
                rank.call("cudaMalloc_v3020", t + 300, t + 390)
            rank.run("gemm", t + 400, t + 800, at=t + (395 if rank.number else 0))


@case({"TK904": None}, ("TK908",), job={"apart": True})
def a_report_that_ends_earlier(job):
    for rank in (job.rank(), job.rank()):
        for step in range(8 - 2 * rank.number):
            t = 1000 * step
            rank.step(step, t - 8, t + 990)
            rank.run("gemm", t, t + 800, at=t - 5)
            rank.run("reduce", t + 800, t + 1000, at=t + 700)


@case({"TK905": None}, (), job={"apart": True})
def two_reports_of_one_rank(job):
    for rank in (job.rank(), job.rank()):
        rank.range('{"rank": 0, "world_size": 2}', -100, None, domain="tracekit", eventType=34)
        for step in range(3):
            rank.step(step, 1000 * step - 8, 1000 * step + 990)
            rank.run("gemm", 1000 * step, 1000 * step + 1000)


@case({"TK906": None}, ("TK201", "TK202", "TK203"), ranks=(0,))
def a_long_first_collective(job):
    first, second = job.rank(), job.rank()
    first.run("reduce", 0, 3100)
    second.run("reduce", 3000, 3100)
    for rank in (first, second):
        for i in range(10):
            rank.run("gemm", 3100 + 1000 * i, 3100 + 1000 * i + 1000, at=3000 + 1000 * i)
            rank.run("reduce", 3100 + 1000 * i + 500, 3100 + 1000 * i + 600, at=3100 + 1000 * i)


@case({"TK909": None}, (), severity="warning")
def events_that_the_profiler_lost(job):
    rank = job.rank()
    rank.run("gemm", 0, 1000)
    text = "Not all CUDA events might have been collected."
    rank.export.add("DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=2, text=text, globalPid=None)
