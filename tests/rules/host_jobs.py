"""Steps of one rank with something the matter on the host, laid out in microseconds.

Five kernels of 1 ms a step, launched 3 ms ahead. A fault is called before the third kernel of each step with a `Place`
and returns the place where the step goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from handmade import COMPUTE, MAIN, ProcessSketch, Sketch

US, MB = 1000, 1 << 20
STEPS = 5


@dataclass
class Place:
    """Where a fault comes: the host has returned from its last launch at ``host``, the GPU is done at ``gpu`` (us)."""

    rank: ProcessSketch
    step: int
    host: float
    gpu: float

    def call(self, name: str, start: float, end: float) -> None:
        self.rank.call(name, us(start), us(end))

    def copy(self, start: float, end: float, *, called: tuple[float, float], **facts: object) -> None:
        at = {"called": (us(called[0]), us(called[1])), "call": "cudaMemcpyAsync"}
        self.rank.copy(us(start), us(end), **{"stream": COMPUTE, **at, **facts})


def us(t: float) -> int:
    return round(t * US)


def job(fault=None, *, between=None, steps=STEPS, phases=True, ranks=1):
    """``fault`` comes inside the forward pass, ``between`` at each step's end."""
    made = Sketch()
    for _ in range(ranks):
        rank, host, gpu = made.process(), 0.0, 3_000.0
        for step in range(steps):
            begun = host
            for k in range(5):
                if fault and k == 2:
                    place = fault(Place(rank, step, host, gpu))
                    host, gpu = place.host, place.gpu
                gpu = max(gpu, host + 8)
                rank.kernel(us(gpu), us(gpu + 1_000), called=(us(host), us(host + 5)))
                host, gpu = max(host + 10, gpu - 2_000), gpu + 1_000
            if phases:
                rank.range("forward", us(begun), us(host), thread=MAIN)
            if between:
                place = between(Place(rank, step, host, gpu))
                host, gpu = place.host, place.gpu
            rank.range("step", us(begun - 1), us(host), thread=MAIN)
            host += 2
    return made.timeline()


def moved(place: Place, host: float, gpu: float | None = None) -> Place:
    """The host goes on at ``host``; the GPU has nothing more to do than until ``gpu``."""
    return Place(place.rank, place.step, host, place.gpu if gpu is None else gpu)


# --- faults, and what looks like them ---


def item(p):
    """.item(): four bytes to the host, then a wait for the stream; 300 us of Python follow."""
    p.copy(p.gpu, p.gpu + 2, called=(p.host, p.host + 4), name="memcpy DtoH", bytes=4)
    p.call("cudaStreamSynchronize", p.host + 5, p.gpu + 6)
    return moved(p, p.gpu + 306, p.gpu + 2)


def event_of_long_ago(p):
    """A wait for an event that has passed: the GPU stays busy."""
    p.call("cudaEventSynchronize", p.host, p.host + 500)
    return moved(p, p.host + 500)


def retry(p):
    p.call("cudaFree", p.host, p.gpu + 300)
    p.call("cudaMalloc", p.gpu + 310, p.gpu + 900)
    return moved(p, p.gpu + 910)


def growing(p):
    """Memory is taken and never given back: the first steps of any job."""
    p.call("cudaMalloc", p.host, p.gpu + 900)
    return moved(p, p.gpu + 910)


def retry_in_step_0(p):
    return retry(p) if p.step == 0 else p


def loader(p):
    p.rank.range("data", us(p.host), us(p.gpu + 700))
    return moved(p, p.gpu + 710)


def unannotated_loader(p):
    return moved(p, p.gpu + 700)


def quick_loader(p):
    p.rank.range("data", us(p.host), us(p.gpu + 80))
    return moved(p, p.gpu + 85)


def pause_in_step_2(p):
    return moved(p, p.gpu + 2_500) if p.step == 2 else p


def work_in_each_step(p):
    return moved(p, p.gpu + 2_500)


def save(p, *, pageable=True, size=20 * MB):
    """Two tensors are copied while the host waits, then written for 3 ms; after steps 2 and 4."""
    if p.step % 2 or not p.step:
        return p
    at = p.gpu
    for _ in range(2):
        called = (p.host, at + 1_000)
        p.copy(at, at + 990, called=called, name="memcpy DtoH", bytes=size, pageable=pageable)
        p, at = moved(p, at + 1_000), at + 1_000
    return moved(p, at + 3_000, at)


def save_small(p):
    return save(p, size=2 * MB)


def pageable_input(p):
    p.copy(p.gpu, p.gpu + 400, called=(p.host, p.gpu + 405), name="memcpy HtoD", bytes=500_000, pageable=True)
    return moved(p, p.gpu + 440, p.gpu + 400)


def pinned_input_beside(p):
    p.copy(p.gpu - 900, p.gpu - 500, called=(p.host, p.host + 5), name="memcpy HtoD", bytes=3 * MB, stream=24)
    return moved(p, p.host + 10)


def offload(p):
    """Activations to the host, on the stream that computes."""
    p.copy(p.gpu, p.gpu + 400, called=(p.host, p.host + 5), name="memcpy DtoH", bytes=10 * MB)
    return moved(p, p.host + 10, p.gpu + 400)


def offload_beside(p):
    p.copy(p.gpu - 900, p.gpu - 500, called=(p.host, p.host + 5), name="memcpy DtoH", bytes=10 * MB, stream=24)
    return moved(p, p.host + 10)


def small_kernels(p, *, launch=12, kernel=3, count=120):
    """Kernels of 3 us, launched every 12 us."""
    host, gpu = max(p.host, p.gpu - 20), p.gpu
    for _ in range(count):
        gpu = max(gpu, host + 6)
        p.rank.kernel(us(gpu), us(gpu + kernel), called=(us(host), us(host + 5)))
        host, gpu = host + launch, gpu + kernel
    return moved(p, host, gpu)


def small_kernels_in_time(p):
    """As many, each with 2 us before it, launched long ago."""
    gpu = p.gpu
    for k in range(120):
        p.rank.kernel(us(gpu + 2), us(gpu + 5), called=(us(p.host + k / 2), us(p.host + k / 2 + 0.4)))
        gpu += 5
    return moved(p, p.host + 70, gpu)


# --- work that is done again, late, or piece by piece ---


def first_use(p, *, took=400):
    """In step 3 a kernel is launched that was not used before; its launch takes 400 us."""
    if p.step != 3:
        return p
    p.rank.kernel(us(p.gpu + took + 6), us(p.gpu + took + 106), name="new", called=(us(p.gpu), us(p.gpu + took)))
    return moved(p, p.gpu + took + 10, p.gpu + took + 106)


def first_use_after_a_pause(p):
    """As new, but its launch is quick: the host was late for another reason."""
    if p.step != 3:
        return p
    p.rank.kernel(us(p.gpu + 406), us(p.gpu + 506), name="new", called=(us(p.gpu + 395), us(p.gpu + 400)))
    return moved(p, p.gpu + 410, p.gpu + 506)


def recompile(p):
    if p.step != 2:
        return p
    p.rank.range("_compile.compile_inner (dynamo_timed)", us(p.host), us(p.gpu + 5_000))
    return moved(p, p.gpu + 5_010)


def optimizer(p, *, count=150):
    """A kernel for each tensor, inside the optimizer's range."""
    begun = p.host
    p = small_kernels(p, count=count)
    p.rank.range("optimizer", us(begun), us(p.host))
    return p


def small_optimizer(p):
    return optimizer(p, count=40)


def churn(p):
    """Ten allocations and frees while the GPU is busy."""
    for k in range(10):
        p.call("cudaMalloc", p.host + 20 * k, p.host + 20 * k + 5)
        p.call("cudaFree", p.host + 20 * k + 10, p.host + 20 * k + 15)
    return moved(p, p.host + 200)


def slow_first_steps(p):
    """Twice as long in steps 1 and 2."""
    return moved(p, p.host, p.gpu) if p.step > 2 else _longer(p)


def _longer(p):
    for k in range(5):
        p.rank.kernel(
            us(p.gpu + 1_000 * k), us(p.gpu + 1_000 * (k + 1)), called=(us(p.host + 6 * k), us(p.host + 6 * k + 5))
        )
    return moved(p, max(p.host + 40, p.gpu + 3_000), p.gpu + 5_000)


def backward(*names, size=1_000):
    """A backward pass of these kernels, ``{name: us}`` of the forward's own being gemm."""

    def fault(p):
        begun, gpu, host = p.host, p.gpu, p.host
        for name in names:
            p.rank.kernel(us(gpu), us(gpu + size), name=name, called=(us(host), us(host + 5)))
            gpu, host = gpu + size, host + 10
        p.rank.range("backward", us(begun), us(host))
        return moved(p, max(host, gpu - 2_000), gpu)

    return fault


FORWARD_PASS = ("gemm",) * 5
"""What each step's forward consists of."""
GRADIENTS = ("dgrad", "wgrad") * 3


def gather_behind_event(p, *, name="cudaEventSynchronize", ended=2, gap=300):
    """An all-gather that is issued when the compute before it is over, right after the host had waited for an event."""
    p.call(name, p.host, p.gpu + 4 - ended)
    p.rank.comm(us(p.gpu + 12), us(p.gpu + 12 + gap), name=GATHER, called=(us(p.gpu + 4), us(p.gpu + 9)))
    return moved(p, p.gpu + 20, p.gpu + 12 + gap)


def gather_without_a_wait(p):
    return gather_behind_event(p, name="cudaEventRecord")


def gather_long_after(p):
    return gather_behind_event(p, ended=80)


GATHER = "ncclDevKernel_AllGather_RING_LL"
