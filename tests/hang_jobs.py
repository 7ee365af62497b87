"""Small captures of jobs that stand still, laid out call by call: who launches what, and what of it can end.

A job has one communicator for shards and, if asked, a second one. What ends follows from what NCCL needs: a collective
ends when all ranks have launched it alike and, on each of them, everything that it was made to wait for has ended.
Nothing here is shared with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from nsys_builder import DOMAIN_CREATE, PID, Export, nccl_header

MS = 1_000_000
S = 1_000 * MS
SHARDS, SECOND = 0x51A7_2100, 0x51A7_2131
NCCL = {"all_gather": ("AllGather", 16), "reduce_scatter": ("ReduceScatter", 24), "all_reduce": ("AllReduce", 24)}
STREAMS = {SHARDS: 20, SECOND: 28}
LAYERS = 3


@dataclass(frozen=True)
class Call:
    """One collective that a host asks for."""

    communicator: int
    op: str
    bytes: int = 1 << 20
    step: int = 0


Calls = list[Call]


def calls_of(steps: int, second: bool) -> Calls:
    """What every rank of the healthy job calls: gathers, one reduction in the second group a layer, scatters."""
    made = []
    for step in range(steps):
        for _ in range(LAYERS):
            made.append(Call(SHARDS, "all_gather", step=step))
            if second:
                made.append(Call(SECOND, "all_reduce", 4096, step=step))
        made += [Call(SHARDS, "reduce_scatter", step=step)] * LAYERS
    return made


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, its fault, and how it was captured."""

    ranks: int = 4
    steps: int = 5
    step_ns: int = 100 * MS
    quiet_ns: int = 40 * S
    second: bool = True
    payloads: bool = True
    inits: bool = True
    """The captures hold the creation of the communicators."""
    reports: str = "one"
    """``one`` for all ranks, or ``each``."""
    ahead: bool = True
    """Hosts run ahead to the end of the step; else each waits for what it has just launched."""
    waits_in: str | None = "cudaEventSynchronize_v3020"
    """Call that the hosts sit in to the end; None: their last call has returned."""
    chained: bool = True
    """A collective waits for all that its rank launched before it, by way of the compute between them; else only for
    those of its communicator."""
    polls: bool = False
    """A watchdog asks for an event ten times a second."""
    start_ns: int = 0
    captured: tuple[int, ...] | None = None
    """Ranks with a capture; None: all."""


def lay_out(
    job: Job, wanted: list[Calls], never: int | None = None, busy: dict[int, str] | None = None
) -> list[Export]:
    """The captures, a report a rank or one; ``wanted``: by rank what its host would call.

    ``never``: position of a collective that does not end though all have launched it; ``busy``: by rank the CUDA call
    that its host is inside when it has called all that it does, instead of waiting for its last collective.
    """
    launched, ended = _play(job, wanted, never)
    captured = range(job.ranks) if job.captured is None else job.captured
    exports = {rank: Export("2026.2") for rank in captured} if job.reports == "each" else {}
    only = Export("2026.2")
    for rank in captured:
        export = exports.get(rank, only)
        _write(job, export, rank, wanted[rank][: launched[rank]], ended[rank], (busy or {}).get(rank))
    made = list(exports.values()) or [only]
    for export in made:
        stop = _stop(job)
        export.add("ANALYSIS_DETAILS", duration=stop - job.start_ns, startTime=job.start_ns, stopTime=stop)
        export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_760_000_000 * S)
    return made


def write(job: Job, exports: list[Export], folder: Path) -> list[Path]:
    captured = range(job.ranks) if job.captured is None else job.captured
    return [export.write(folder / f"rank{n}.sqlite") for n, export in zip(captured, exports, strict=False)]


def _play(job: Job, wanted: list[Calls], never: int | None) -> tuple[list[int], list[set[int]]]:
    """(calls launched by each rank, positions that ended on each)."""
    launched = [0] * job.ranks
    ended: list[set[int]] = [set() for _ in range(job.ranks)]
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(wanted):
            while launched[rank] < len(calls) and _may_launch(job, calls, launched[rank], ended[rank]):
                launched[rank] += 1
                moved = True
        for communicator in STREAMS:
            while places := _next_to_end(job, wanted, launched, ended, communicator, never):
                for rank, place in enumerate(places):
                    ended[rank].add(place)
                moved = True
    return launched, ended


def _may_launch(job: Job, calls: Calls, place: int, ended: set[int]) -> bool:
    """A host that runs ahead waits for all of the step before; another one for all that it has launched."""
    if not job.ahead:
        return len(ended) == place
    return all(before in ended for before in range(place) if calls[before].step < calls[place].step)


def _next_to_end(
    job: Job, wanted: list[Calls], launched: list[int], ended: list[set[int]], communicator: int, never: int | None
) -> list[int]:
    """Where on each rank the communicator's next collective is, if it can end; [] if it cannot."""
    places = []
    for calls, count, over in zip(wanted, launched, ended, strict=True):
        left = [place for place in range(count) if place not in over]
        own = [place for place in left if calls[place].communicator == communicator]
        if not own or (job.chained and own[0] != left[0]):
            return []
        places.append(own[0])
    alike = {(wanted[rank][place].op, wanted[rank][place].bytes) for rank, place in enumerate(places)}
    return places if len(alike) == 1 and never not in places else []


def _stop(job: Job) -> int:
    return job.start_ns + job.steps * job.step_ns + job.quiet_ns


def _write(job: Job, export: Export, rank: int, calls: Calls, ended: set[int], busy: str | None) -> None:
    pid, domain, stop = PID + 10 * rank, 5, _stop(job)
    export.domain("NCCL", domain, pid=pid)
    if job.payloads and job.inits:
        for communicator in (SHARDS, SECOND)[: 1 + job.second]:
            init = nccl_header(24, 2) + communicator.to_bytes(8, "little")
            init += b"".join(n.to_bytes(4, "little") for n in (job.ranks, rank, rank, 0))
            at = job.start_ns + 1_000
            export.range("ncclCommInitRank", at, at + 1_000, pid=pid, domain=domain, binaryData=init)
    last = job.start_ns
    whole = calls_of(job.steps, job.second)
    apart = job.step_ns // (len(whole) // job.steps + 2)
    steps = sorted({call.step for call in calls})
    for slot, step in enumerate(steps):
        t0 = job.start_ns + 10_000 + slot * job.step_ns
        own = [place for place, call in enumerate(calls) if call.step == step]
        over = all(place in ended for place in own) and (step != steps[-1] or busy is None)
        end = t0 + job.step_ns - 20_000 if over and len(own) == len(whole) // job.steps else None
        export.range(f"step {step}", t0, end, pid=pid)
        export.kernel("gemm", t0 + 12_000, t0 + apart // 2, call=(t0 + 1_000, t0 + 5_000), pid=pid, device=rank)
        for n, place in enumerate(own):
            last = t0 + (n + 1) * apart
            _collective(job, export, rank, calls[place], last, last + apart * 9 // 10 if place in ended else None)
    if busy is not None:
        export.call(
            last + 50_000, None if busy.endswith("(open)") else stop, 0, name=busy.removesuffix("(open)"), pid=pid
        )
    elif job.waits_in is not None and len(ended) < len(calls):
        export.call(last + 50_000, stop, export.correlation(), name=job.waits_in, pid=pid)
    if job.polls:
        for at in range(job.start_ns + 60_000, stop - MS, 100 * MS):
            export.call(at, at + 2_000, export.correlation(), name="cudaEventQuery_v3020", pid=pid, tid=pid + 3)


def _collective(job: Job, export: Export, rank: int, call: Call, at: int, end: int | None) -> None:
    pid, (name, size) = PID + 10 * rank, NCCL[call.op]
    blob = nccl_header(size, 4) + call.communicator.to_bytes(8, "little") + call.bytes.to_bytes(8, "little")
    payload = {"binaryData": blob + bytes(size - 16)} if job.payloads else {}
    export.range(f"nccl{name}", at, at + 9_000, pid=pid, domain=5, **payload)
    if end is None:
        export.call(at + 1_000, at + 7_000, export.correlation(), name="cudaLaunchKernelExC_v11060", pid=pid)
        return
    kernel = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    stream = STREAMS[call.communicator]
    export.kernel(
        kernel, at + 11_000, end + rank * 200, call=(at + 1_000, at + 7_000), pid=pid, device=rank, stream=stream
    )


# --- faults ---


def place_of(job: Job, step: int, layer: int) -> int:
    """Position of the gather of a layer."""
    a_step = len(calls_of(1, job.second))
    return step * a_step + layer * (1 + job.second)


def missing(job: Job, rank: int, busy: str | None = None) -> list[Export]:
    """A host gets no further than a gather in the middle of the last step."""
    wanted = [calls_of(job.steps, job.second) for _ in range(job.ranks)]
    wanted[rank] = wanted[rank][: place_of(job, job.steps - 1, 1)]
    return lay_out(job, wanted, busy=None if busy is None else {rank: busy})


def _changed(job: Job, rank: int, change: Callable[[Calls, int], None]) -> list[Calls]:
    wanted = [calls_of(job.steps, job.second) for _ in range(job.ranks)]
    change(wanted[rank], place_of(job, job.steps - 1, 1))
    return wanted


def other_op(job: Job, rank: int) -> list[Export]:
    def change(calls: Calls, at: int) -> None:
        calls[at] = replace(calls[at], op="reduce_scatter")

    return lay_out(job, _changed(job, rank, change))


def other_size(job: Job, rank: int) -> list[Export]:
    def change(calls: Calls, at: int) -> None:
        calls[at] = replace(calls[at], bytes=calls[at].bytes + 512)

    return lay_out(job, _changed(job, rank, change))


def swapped(job: Job, rank: int) -> list[Export]:
    def change(calls: Calls, at: int) -> None:
        calls[at], calls[at + 1] = calls[at + 1], calls[at]

    return lay_out(job, _changed(job, rank, change))


def unfinished(job: Job) -> list[Export]:
    wanted = [calls_of(job.steps, job.second) for _ in range(job.ranks)]
    return lay_out(job, wanted, never=place_of(job, job.steps - 1, 1))


def skipped(job: Job, rank: int) -> list[Export]:
    """A rank leaves the second step out: its later ones pair with the others' until it is through."""
    wanted = [calls_of(job.steps, job.second) for _ in range(job.ranks)]
    wanted[rank] = [call for call in wanted[rank] if call.step != 1]
    return lay_out(job, wanted)


def healthy(job: Job) -> list[Export]:
    """All that was called has ended, and then nothing is called any more."""
    return lay_out(job, [calls_of(job.steps, job.second) for _ in range(job.ranks)])


def truncated(job: Job, before_ns: list[int]) -> list[Export]:
    """A healthy job with a report a rank, each cut off so long before the job's last step ends."""
    exports = healthy(replace(job, reports="each"))
    for export, before in zip(exports, before_ns, strict=True):
        stop = job.start_ns + job.steps * job.step_ns - before
        for table, rows in export.rows.items():
            if table == "NVTX_EVENTS":
                rows[:] = [row for row in rows if row["start"] < stop]
                for row in rows:
                    row["end"] = None if row["end"] is None or row["end"] > stop else row["end"]
            elif table.startswith("CUPTI"):
                rows[:] = [row for row in rows if row["end"] <= stop]
        (analysis,) = export.rows["ANALYSIS_DETAILS"]
        analysis |= {"duration": stop - job.start_ns, "stopTime": stop}
    return exports


def lose_launches(exports: list[Export], share: float, random: Random) -> list[Export]:
    """The same without the rows of a share of the launches, as profilers lose them."""
    for export in exports:
        rows = export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]
        short = [row["correlationId"] and row["end"] is not None and row["end"] - row["start"] < MS for row in rows]
        rows[:] = [row for row, is_short in zip(rows, short, strict=True) if not is_short or random.random() >= share]
    return exports


def random_job(random: Random, *, swapped: bool) -> Job:
    """Any of these jobs; ``swapped``: one in which the order of calls matters."""
    return Job(
        ranks=random.choice([2, 3, 4, 6]),
        steps=random.choice([3, 4, 5]),
        step_ns=random.choice([2, 10, 100, 1000]) * MS,
        quiet_ns=random.choice([5, 40]) * S,
        second=swapped or random.random() < 0.6,
        payloads=random.random() < 0.5,
        inits=random.random() < 0.5,
        reports=random.choice(["one", "each"]),
        ahead=random.random() < 0.5,
        chained=swapped or random.random() < 0.6,
        waits_in=random.choice([None, "cudaStreamSynchronize_v3020", "cudaEventSynchronize_v3020"]),
        polls=random.random() < 0.3,
        start_ns=random.choice([0, 40 * MS]),
    )


def begun_later(export: Export, at: int) -> Export:
    """The same capture without what began before an instant: its profiler was started late."""
    for table, rows in export.rows.items():
        if table == "NVTX_EVENTS":
            rows[:] = [row for row in rows if row["eventType"] == DOMAIN_CREATE or row["start"] >= at]
        elif table.startswith("CUPTI"):
            rows[:] = [row for row in rows if row["start"] is None or row["start"] >= at]
    return export
