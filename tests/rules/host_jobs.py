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
