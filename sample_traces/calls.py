"""What a framework asks of CUDA beyond launches: to wait, to allocate, to copy from ordinary memory, to run a graph.

Each is carried out by every live rank of a job, and placed by the same rules as launches are.
"""

from __future__ import annotations

from layout import Job
from placed import COMPUTE, Event, Kernel, Segment, us

PAGEABLE_BYTES_PER_NS = 8
"""Copies from or to ordinary memory go through a small page-locked buffer."""
GRAPH_NODE_GAP_NS = 900
STREAM_SYNC = 3
NOT_AN_EVENT = Event(0, {})
OUT_OF_MEMORY = 2


def synchronize_stream(job: Job, stream: str = COMPUTE) -> None:
    """Let the host wait until a stream has done all that was launched on it."""
    for rank in job.live:
        call = rank.call("cudaStreamSynchronize_v3020", 2_300)
        call.end = rank.host_ns = max(call.end, rank.free_at.get(stream, 0) + rank.jitter(4_100))
        rank.synchronised(STREAM_SYNC, stream, NOT_AN_EVENT, call)


def copy_pageable(job: Job, copy_kind: int, size: int, stream: str = COMPUTE) -> None:
    """Copy between the device and ordinary memory: the call returns when the copy is done."""
    for rank in job.live:
        rank.spend(job.between_ns)
        call = rank.call("cudaMemcpyAsync_v3020", job.launch_ns)
        start = rank.ready_at(call, stream)
        end = start + rank.jitter(2_900 + size // PAGEABLE_BYTES_PER_NS, 0.01)
        job.place(rank, stream, call, start, end, source="memcpy", kind="copy", bytes=size, copy_kind=copy_kind,
                  pinned=False)  # fmt: skip
        call.end = rank.host_ns = end + rank.jitter(3_200)


def retry_allocation(job: Job, blocks: int = 3) -> None:
    """An allocation fails; cached blocks are freed, for which the device must be idle; then it succeeds."""
    for rank in job.live:
        rank.call("cudaMalloc_v3020", us(48)).returned = OUT_OF_MEMORY
        for _ in range(blocks):
            call = rank.call("cudaFree_v3020", us(310))
            idle_at = max(rank.free_at.values())
            call.end = rank.host_ns = max(call.end, idle_at + rank.jitter(us(290)))
        rank.call("cudaMalloc_v3020", us(620))


def take_memory(job: Job, size: int, name: str = "cudaMalloc_v3020", ns: int = us(210)) -> list[Segment]:
    """Take memory from the driver; returns each live rank's segment."""
    taken = []
    for rank in job.live:
        address = 0x7F40_0000_0000 + sum(segment.bytes for segment in rank.segments)
        taken.append(Segment(bytes=size, address=address, taken=rank.call(name, ns)))
        rank.segments.append(taken[-1])
    return taken


def give_memory_back(job: Job, segments: list[Segment], name: str, ns: int) -> None:
    """Give each live rank's segment back, without waiting for the device."""
    for rank, segment in zip(job.live, segments, strict=True):
        segment.given_back = rank.call(name, ns)


def launch_graph(job: Job, kernels: list[Kernel], stream: str = COMPUTE) -> None:
    """Launch a CUDA graph that is traced node by node: one call, and its kernels one after the other."""
    for rank in job.live:
        rank.spend(job.between_ns)
        call = rank.call("cudaGraphLaunch_v10000", job.launch_ns + 350 * len(kernels))
        at = rank.ready_at(call, stream)
        for node, kernel in enumerate(kernels, start=1):
            end = at + rank.jitter(kernel.ns, 0.004)
            job.place(rank, stream, call, at, end, source="kernel", kind="compute", kernel=kernel, graph_node=node)
            at = end + rank.jitter(GRAPH_NODE_GAP_NS)
