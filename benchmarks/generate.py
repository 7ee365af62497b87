"""Write a made-up capture of a chosen size, in the SQLite schema of Nsight Systems 2023.4.

    python benchmarks/generate.py big.sqlite
    python benchmarks/generate.py big.sqlite --kernels 5_000_000 --processes 2

One process is one rank with one GPU; the kernels are shared out among the processes. Each kernel has its launch row. Of
the kernels 5 % are NCCL's, on a stream of their own: all ranks leave a collective together, and arrive at it up to
ARRIVALS_NS apart. NVTX names steps, phases and layers, and a step copies its input once. The same arguments give the
same rows. Times are ns.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

KERNELS_PER_STEP = 2_000
NCCL_EVERY = 20
"""Each twentieth kernel is a collective: 5 %."""
LAYERS = 32
COMPUTE_STREAM, COPY_STREAM, NCCL_STREAM = 7, 14, 22
FIRST_NS = 50_000_000
LAUNCHED_AHEAD_NS = 100_000
BETWEEN_STEPS_NS = 60_000
ARRIVALS_NS = 40_000
CLOCKS_APART_NS = 1_234_567
SEED = 20_231_204
PUSH_POP_RANGE = 59
HOST_TO_DEVICE, PINNED, ON_DEVICE = 1, 1, 2

# Rows are as wide as real ones, for their width decides how long reading takes. A name without a type is an INTEGER.
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName "
        "mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
        "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
        "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start end deviceId contextId greenContextId streamId correlationId globalPid bytes copyKind deprecatedSrcId "
        "srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress"
    ),
    "NVTX_EVENTS": (
        "start end eventType rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value "
        "int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT"
    ),
    "StringIds": "id:INTEGER_PRIMARY_KEY value:TEXT",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId priority globalTid",
    "TARGET_INFO_GPU": "vmId id name:TEXT cuDevice smCount",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
}

COMPUTE_NAMES = [
    f"void at::native::vectorized_elementwise_kernel<{width}, at::native::operation_{op}<c10::BFloat16>>(int, T3)"
    for width in (2, 4, 8)
    for op in range(100)
]
NCCL_NAMES = [
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
]
PHASES = ("forward", "backward", "optimizer")


class Strings:
    """The table StringIds while it grows."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, value: str) -> int:
        return self.ids.setdefault(value, len(self.ids) + 1)


def create(path: Path) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
    for table, columns in TABLES.items():
        named = (column.partition(":") for column in columns.split())
        types = ", ".join(f"{name} {(kind or 'INTEGER').replace('_', ' ')}" for name, _, kind in named)
        connection.execute(f"CREATE TABLE {table} ({types})")
    return connection


def insert(connection: sqlite3.Connection, table: str, rows: int, **columns: Ints | int) -> None:
    """Insert ``rows`` rows; a column is an array of that length, or one value for all rows."""
    places = ", ".join("?" if isinstance(column, np.ndarray) else str(column) for column in columns.values())
    arrays = [column for column in columns.values() if isinstance(column, np.ndarray)]
    for first in range(0, rows, 100_000):  # in parts: as Python's ints the numbers need several times the memory
        part = zip(*(array[first : first + 100_000].tolist() for array in arrays), strict=True)
        connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", part)


def lay_out(count: int, random: np.random.Generator) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
    """Launch, start and end of each kernel in the order of their launches, and whether it is NCCL's.

    Compute kernels follow one another, some after a gap. A collective starts where its turn comes and runs beside the
    compute kernels launched after it, but never beside another collective.
    """
    nccl = np.arange(count) % NCCL_EVERY == NCCL_EVERY // 2
    length = np.where(nccl, random.integers(60_000, 240_000, count), random.integers(4_000, 20_000, count))
    gap = np.where(random.random(count) < 0.1, random.integers(1_000, 30_000, count), 500)
    gap[KERNELS_PER_STEP - 1 :: KERNELS_PER_STEP] = BETWEEN_STEPS_NS
    busy = np.where(nccl, 0, length + gap)
    turn = FIRST_NS + np.cumsum(busy) - busy
    start = turn.copy()
    # Each collective waits for the one before it: start[k] = max(turn[k], end[k - 1]), written as a running maximum.
    before = np.cumsum(length[nccl]) - length[nccl]
    start[nccl] = np.maximum.accumulate(turn[nccl] - before) + before
    launch = turn - LAUNCHED_AHEAD_NS - np.where(nccl, 1_200, 0)
    return launch, start, start + length, nccl


def add_process(
    connection: sqlite3.Connection, strings: Strings, rank: int, kernels: int, *, device: int, clock_ns: int
) -> int:
    """Insert all rows of one process, ``clock_ns`` later than the job's clock; return the end of its last kernel."""
    random = np.random.default_rng(SEED + rank)
    pid = 4_000 + 10 * rank
    global_pid = 1 << 48 | pid << 24
    thread = global_pid | pid
    launch, start, end, nccl = lay_out(kernels, np.random.default_rng(SEED))
    launch, start, end = launch + clock_ns, start + clock_ns, end + clock_ns
    start[nccl] += random.integers(0, ARRIVALS_NS, int(nccl.sum()))
    ordinal = np.arange(kernels)
    compute_names, nccl_names = (np.array([strings.id(n) for n in names]) for names in (COMPUTE_NAMES, NCCL_NAMES))
    name = np.where(
        nccl, nccl_names[ordinal // NCCL_EVERY % len(nccl_names)], compute_names[ordinal * 7 % len(compute_names)]
    )
    correlation = ordinal + 1  # starts anew in each process, as in real captures
    order = np.argsort(start, kind="stable")
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_KERNEL",
        kernels,
        start=start[order],
        end=end[order],
        deviceId=device,
        contextId=1,
        streamId=np.where(nccl, NCCL_STREAM, COMPUTE_STREAM)[order],
        correlationId=correlation[order],
        globalPid=global_pid,
        demangledName=name[order],
        shortName=name[order],
        mangledName=name[order],
        registersPerThread=64,
        gridX=132,
        gridY=1,
        gridZ=1,
        blockX=128,
        blockY=1,
        blockZ=1,
        staticSharedMemory=0,
        dynamicSharedMemory=0,
        localMemoryPerThread=0,
        localMemoryTotal=0,
        gridId=ordinal,
    )
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        kernels,
        start=launch,
        end=launch + np.where(nccl, 1_000, random.integers(2_000, 3_000, kernels)),
        eventClass=0,
        globalTid=thread,
        correlationId=correlation,
        nameId=strings.id("cudaLaunchKernel_v7000"),
        returnValue=0,
    )
    step_starts = launch[::KERNELS_PER_STEP] - 10_000
    add_input_copies(
        connection, strings, device=device, thread=thread, calls=step_starts, first_correlation=kernels + 1
    )
    add_ranges(connection, strings, thread, np.append(step_starts, launch[-1] + 10_000))
    connection.execute("INSERT INTO PROCESSES VALUES (?, ?, 'python3')", (global_pid, pid))
    connection.execute("INSERT INTO ThreadNames VALUES (?, 0, ?)", (strings.id("python3"), thread))
    connection.execute(
        "INSERT INTO TARGET_INFO_GPU VALUES (?, ?, 'NVIDIA H100 80GB HBM3', ?, 132)", (1 << 48, device, device)
    )
    return int(end.max())


def add_input_copies(
    connection: sqlite3.Connection, strings: Strings, *, device: int, thread: int, calls: Ints, first_correlation: int
) -> None:
    """One copy of input for each step."""
    correlation = first_correlation + np.arange(len(calls))
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        len(calls),
        start=calls + 1_000,
        end=calls + 6_000,
        eventClass=0,
        globalTid=thread,
        correlationId=correlation,
        nameId=strings.id("cudaMemcpyAsync_v3020"),
        returnValue=0,
    )
    insert(
        connection,
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        len(calls),
        start=calls + 9_000,
        end=calls + 50_000,
        deviceId=device,
        contextId=1,
        streamId=COPY_STREAM,
        correlationId=correlation,
        globalPid=thread & ~0xFFFFFF,
        bytes=1 << 20,
        copyKind=HOST_TO_DEVICE,
        srcKind=PINNED,
        dstKind=ON_DEVICE,
    )


def add_ranges(connection: sqlite3.Connection, strings: Strings, thread: int, edges: Ints) -> None:
    """One range a step (its number is the payload), in it one a phase, in forward and backward one a layer."""
    rows: list[tuple[int, int, str, int | None]] = []
    for step, (begin, stop) in enumerate(zip(edges[:-1].tolist(), (edges[1:] - 1_000).tolist(), strict=True)):
        rows.append((begin, stop, "step", step))
        phase_edges = np.linspace(begin, stop, len(PHASES) + 1).astype(np.int64).tolist()
        for phase, left, right in zip(PHASES, phase_edges[:-1], phase_edges[1:], strict=True):
            rows.append((left, right, phase, None))
            if phase != "optimizer":
                cuts = np.linspace(left, right, LAYERS + 1).astype(np.int64).tolist()
                layers = range(LAYERS) if phase == "forward" else reversed(range(LAYERS))
                rows += [
                    (first, last, f"{phase[:3]}/layers.{layer}", None)
                    for layer, first, last in zip(layers, cuts[:-1], cuts[1:], strict=True)
                ]
    connection.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, globalTid, domainId, int64Value) "
        "VALUES (?, ?, ?, ?, ?, 0, ?)",
        ((begin, stop, PUSH_POP_RANGE, strings.id(text), thread, value) for begin, stop, text, value in rows),
    )


def generate(path: Path, kernels: int, processes: int, first_rank: int = 0) -> None:
    """Write the capture of the ranks from ``first_rank`` on; an existing file is replaced. Its clock is its own."""
    connection = create(path)
    strings = Strings()
    shares = [kernels // processes + (device < kernels % processes) for device in range(processes)]
    clock_ns = first_rank * CLOCKS_APART_NS
    stop = FIRST_NS + max(
        add_process(connection, strings, first_rank + device, share, device=device, clock_ns=clock_ns)
        for device, share in enumerate(shares)
    )
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", ((key, value) for value, key in strings.ids.items()))
    connection.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?, ?, 0, ?)", (1 << 48, stop, stop))
    connection.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '2023-11-14T22:13:20', '2023-11-14T22:13:20')",
        (1_700_000_000 * 10**9 - clock_ns,),
    )
    facts = {"PRODUCT_NAME": "NVIDIA Nsight Systems", "PRODUCT_VERSION": "2023.4.4.54", "SCHEMA_VERSION": "3.7.2"}
    facts |= {f"SCHEMA_VERSION_{part}": number for part, number in (("MAJOR", "3"), ("MINOR", "7"), ("MICRO", "2"))}
    connection.executemany("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_' || ?, ?)", facts.items())
    connection.commit()
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="kernels in all, with as many launch rows")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--first-rank", type=int, default=0, help="rank of the first process, for a job of many captures"
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.processes <= arguments.kernels:
        parser.error("there must be a process, and a kernel for each")
    began = time.perf_counter()
    generate(arguments.path, arguments.kernels, arguments.processes, arguments.first_rank)
    size_mb = arguments.path.stat().st_size / 1e6
    print(f"{arguments.path}: {arguments.kernels:,} kernels, {size_mb:,.0f} MB, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
