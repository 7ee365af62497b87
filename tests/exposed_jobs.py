"""Jobs of one rank in a few words: what runs from when to when, and how long before that it was launched.

Times are microseconds. ``AHEAD`` of its start an operation is launched unless told otherwise; what is launched at the
same instant is launched in the order in which it is written.
"""

from handmade import COMMS, COMPUTE, SIDE, Sketch

US = 1_000
AHEAD, JUST = 500, 5
REDUCES = 28
KERNELS = {
    "ag": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "rs": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ar": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "sr": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
STREAMS = {"ag": COMMS, "rs": REDUCES, "ar": REDUCES, "sr": 33}
WORK = {
    "gemm": "sm90_xmma_gemm_bf16bf16_bf16f32",
    "adam": "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T1)",
    "copy_in": "void at::native::CatArrayBatchedCopy_vectorized<unsigned int>(char *)",
}
COPIES = {"to_device": "memcpy HtoD", "to_host": "memcpy DtoH", "on_device": "memcpy DtoD"}


def op(name, start, end, *, ahead=AHEAD, stream=None):
    """One operation: a key of `KERNELS`, `WORK` or `COPIES`, from start to end, launched ``ahead`` of its start."""
    return name, start, end, ahead, stream


def one_rank(*ops, ranges=(), at=10_000):
    """The timeline of one rank; ``ranges`` are (name, start, end) or (name, start, end, value) on the host."""
    made = Sketch()
    return fill(made.process(), ops, ranges, at).job.timeline()


def fill(rank, ops, ranges=(), at=10_000):
    for name, start, end, ahead, stream in ops:
        times = {"called": round((at + start - ahead) * US), "stream": stream}
        begin, finish = round((at + start) * US), round((at + end) * US)
        if name in KERNELS:
            rank.comm(begin, finish, name=KERNELS[name], **times | {"stream": stream or STREAMS[name]})
        elif name in COPIES:
            rank.copy(begin, finish, name=COPIES[name], **times | {"stream": stream or 30})
        else:
            side = SIDE if name == "copy_in" else COMPUTE
            rank.kernel(begin, finish, name=WORK[name], **times | {"stream": stream or side})
    for name, start, end, *value in ranges:
        rank.range(name, round((at + start) * US), round((at + end) * US), domain="tracekit", **_value(value))
    return rank


def _value(value):
    return {"value": value[0]} if value else {}
