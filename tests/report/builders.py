"""Made-up jobs for the renderers' tests: a little simulator, and the accounting done the slow, plain way.

Nothing here calls tracekit's own algorithms: the account of a window is counted instant by instant between boundaries.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tracekit.metrics.accounting import Covers
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import BubbleWindows, bubbles_of
from tracekit.metrics.identity import rank_collectives
from tracekit.metrics.labels import Vocabulary
from tracekit.metrics.views import Detail, OpLabels, RankView
from tracekit.metrics.waits import rank_waits
from tracekit.results import (
    Account,
    Analysis,
    Capture,
    Clock,
    Collective,
    Evidence,
    Finding,
    Rank,
    Severity,
    SizeClass,
    SkippedRule,
    Steady,
    Step,
    Straggler,
)
from tracekit.timeline import NONE, Calls, CaptureInfo, Kind, Ops, Process, Ranges, RankTrack, Source, Syncs, Timeline

MS = 1_000_000
COMPUTE_STREAM, COMM_STREAM, COPY_STREAM = 7, 20, 24
KERNELS = ("ampere_bf16_s16816gemm_128x128", "flash_fwd_kernel<Kernel_traits<128>>", "vectorized_elementwise_kernel<4>")


@dataclass
class Job:
    """Operations of every rank as (start, end, stream, kind, name), and where its steps start."""

    ops: list[list[tuple[int, int, int, Kind, str]]] = field(default_factory=list)
    step_starts: list[list[int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def simulate(ranks: int = 4, steps: int = 6, layers: int = 8, slow_rank: int | None = 2, comm: bool = True) -> Job:
    """Lay out a sharded job: gather, compute and reduce a layer, a barrier at each collective's end."""
    rng = random.Random(5)
    job = Job([[] for _ in range(ranks)], [[] for _ in range(ranks)], [0] * ranks)
    now = [1_000_000_007] * ranks
    free = [0] * ranks
    for step in range(steps):
        warm = 1.4 if step == 0 else 1.0
        for r in range(ranks):
            job.step_starts[r].append(now[r])
            job.ops[r].append((now[r] - MS, now[r] - MS + 90_017, COPY_STREAM, Kind.COPY, "memcpy HtoD"))
        for layer in range(2 * layers):
            backward = layer >= layers
            if comm:
                arrive = [max(now[r], free[r]) + 5_003 for r in range(ranks)]
                end = max(arrive) + 930_011
                for r in range(ranks):
                    op = "ReduceScatter_Sum_bf16" if backward else "AllGather"
                    job.ops[r].append((arrive[r], end, COMM_STREAM, Kind.COMM, f"ncclDevKernel_{op}_RING_LL"))
                    free[r] = end
                    if not backward:
                        now[r] = end
            for r in range(ranks):
                factor = warm * (1.22 if r == slow_rank else 1.0) * (1 + rng.random() * 0.01)
                now[r] += 2_003
                for k, ns in enumerate((700_000, 300_000, 120_000)):
                    length = int(ns * factor * (2 if backward else 1))
                    job.ops[r].append((now[r], now[r] + length, COMPUTE_STREAM, Kind.COMPUTE, KERNELS[k]))
                    now[r] += length + 1_501
        for r in range(ranks):
            now[r] = max(now[r], free[r]) + 800_000
    job.ends = [max(op[1] for op in ops) for ops in job.ops]
    return job


def account(ops: list[tuple[int, int, int, Kind, str]], start: int, end: int) -> Account:
    """Count a window between every pair of neighbouring boundaries."""
    cut = [(max(a, start), min(b, end), kind) for a, b, _, kind, _ in ops if a < end and b > start]
    changes = sorted([(a, 1, k) for a, _, k in cut] + [(b, -1, k) for _, b, k in cut] + [(start, 0, 0), (end, 0, 0)])
    open_now = dict.fromkeys(Kind, 0)
    total = dict.fromkeys(("compute", "comm", "exposed", "copy", "idle"), 0)
    for (t, delta, kind), (t_next, _, _) in itertools.pairwise(changes):
        open_now[Kind(kind)] += delta
        length = t_next - t
        if open_now[Kind.COMM]:
            total["comm"] += length
        if open_now[Kind.COMPUTE]:
            total["compute"] += length
        elif open_now[Kind.COMM]:
            total["exposed"] += length
        elif open_now[Kind.COPY]:
            total["copy"] += length
        else:
            total["idle"] += length
    return Account(
        wall_ns=end - start,
        compute_ns=total["compute"],
        exposed_comm_ns=total["exposed"],
        exposed_copy_ns=total["copy"],
        idle_ns=total["idle"],
        comm_ns=total["comm"],
        overlapped_comm_ns=total["comm"] - total["exposed"],
    )


def make_timeline(job: Job, paths: tuple[str, ...] = ("run1.sqlite",)) -> Timeline:
    """Lay the job out as columns: one process and device a rank, all in the first capture."""
    names: dict[str, int] = {}
    tracks, processes = [], []
    for r, ops in enumerate(job.ops):
        ordered = sorted(ops)
        n = len(ordered)
        tracks.append(
            RankTrack(
                rank=r,
                rank_source="order",
                process=r,
                pid=1000 + r,
                device=r,
                device_name="NVIDIA H100 80GB HBM3",
                host=None,
                ops=Ops(
                    start=np.array([op[0] for op in ordered], np.int64),
                    end=np.array([op[1] for op in ordered], np.int64),
                    stream=np.array([op[2] for op in ordered], np.int64),
                    kind=np.array([op[3] for op in ordered], np.int8),
                    source=np.array(
                        [Source.MEMCPY if op[3] == Kind.COPY else Source.KERNEL for op in ordered], np.int8
                    ),
                    name=np.array([names.setdefault(op[4], len(names)) for op in ordered], np.int32),
                    call=np.full(n, NONE, np.int32),
                    nccl=np.full(n, NONE, np.int32),
                    grid=np.full(n, NONE, np.int64),
                    bytes=np.full(n, NONE, np.int64),
                    pageable=np.zeros(n, np.bool_),
                ),
            )
        )
        processes.append(_empty_process(1000 + r))
    captures = tuple(
        CaptureInfo(
            path=path,
            format="nsys-sqlite",
            nsys_version="2025.5.1",
            schema_version="3.24.1",
            host=None,
            start_epoch_ns=None,
            stop_ns=None,
            lacks=(),
            diagnostics=(),
            notes=(),
            auxiliary=(),
        )
        for path in paths
    )
    return Timeline(captures=captures, processes=tuple(processes), ranks=tuple(tracks), names=list(names))


def _empty_process(pid: int) -> Process:
    i64, i32, i8 = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8)
    return Process(
        capture=0,
        pid=pid,
        name="python",
        calls=Calls(start=i64, end=i64, thread=i64, name=i32),
        ranges=Ranges(
            start=i64, end=i64, open=np.empty(0, np.bool_), thread=i64, domain=i32, name=i32, value=i64, payload={}
        ),
        marks=(),
        syncs=Syncs(start=i64, end=i64, type=i8, stream=i64, call=i32),
    )


def make_detail(analysis: Analysis, timeline: Timeline) -> Detail:
    """What lies behind a hand-made analysis: bubbles whose causes are unknown, no labels, nothing matched.

    Ranks beyond the timeline's share its last track.
    """
    last = timeline.ranks[-1]
    tracks = [*timeline.ranks, *[last] * (len(analysis.ranks) - len(timeline.ranks))]
    found = [
        rank_collectives(timeline, track, Covers.of(track.ops), (rank.start_ns, rank.end_ns), {})
        for track, rank in zip(tracks, analysis.ranks, strict=True)
    ]
    covers = [Covers.of(track.ops) for track in tracks]
    waits = rank_waits(tracks, found, covers, ())
    views = []
    for track, rank, own, cover, waited in zip(tracks, analysis.ranks, found, covers, waits, strict=True):
        process = timeline.processes[track.process]
        none = np.full(len(track.ops), NONE, np.int64)
        windows = BubbleWindows.of(rank.steps, (rank.start_ns, rank.end_ns))
        views.append(
            RankView(
                rank=rank.rank,
                names=timeline.names,
                ops=track.ops,
                process=process,
                covers=cover,
                main_stream=rank.main_stream,
                collectives=own,
                labels=OpLabels(phase=none, module=none, modules=(), step=none),
                bubbles=bubbles_of(track.ops, cover, own, waited, windows),
                activity=Activity.of(process, track.ops, timeline.names, Vocabulary((), np.empty(0, np.int64))),
                parallel=np.zeros(len(own.row), np.int8),
            )
        )
    return Detail(views=tuple(views), matched=(), waits=waits)


def make_analysis(job: Job, *, steps: bool = True, findings: tuple[Finding, ...] = (), **changes: object) -> Analysis:
    """Account for the job; the first step counts as warm-up."""
    ranks = tuple(_rank(job, r, steps) for r in range(len(job.ops)))
    steady = _steady(ranks) if steps else None
    analysis = Analysis(
        captures=(
            Capture(
                path="/captures/run1.sqlite",
                format="nsys-sqlite",
                nsys_version="2025.5.1",
                schema_version="3.24.1",
                ranks=tuple(range(len(ranks))),
                auxiliary=(),
                diagnostics=(),
                notes=(),
            ),
        ),
        ranks=ranks,
        steady=steady,
        collectives=_collectives(job),
        stragglers=(),
        findings=findings,
        skipped_rules=(),
    )
    return replace(analysis, **changes)  # type: ignore[arg-type]


def _rank(job: Job, r: int, with_steps: bool) -> Rank:
    ops = job.ops[r]
    start, end = min(op[0] for op in ops), job.ends[r]
    edges = [*job.step_starts[r], end]
    steps = []
    for number, (a, b) in enumerate(itertools.pairwise(edges)):
        figures = account(ops, a, b)
        steps.append(
            Step(
                step=number,
                start_ns=a,
                end_ns=b,
                account=figures,
                exposed_comm_by_cause={"unknown": figures.exposed_comm_ns} if figures.exposed_comm_ns else {},
                idle_by_cause={"unknown": figures.idle_ns} if figures.idle_ns else {},
            )
        )
    return Rank(
        rank=r,
        rank_source="order",
        host=None,
        pid=1000 + r,
        device=r,
        device_name="NVIDIA H100 80GB HBM3",
        capture=0,
        clock=Clock(offset_ns=0, drift_ppm=None, uncertainty_ns=0, method="same_capture"),
        totals=account(ops, start, end),
        start_ns=start,
        end_ns=end,
        main_stream=COMPUTE_STREAM,
        step_source="step" if with_steps else None,
        steps=tuple(steps) if with_steps else (),
        modules=(),
        kernels=len(ops),
        kernels_launched=len(ops),
        opaque_ns=0,
    )


def _steady(ranks: tuple[Rank, ...]) -> Steady:
    numbers = tuple(step.step for step in ranks[0].steps[1:])
    accounts = [step.account for rank in ranks for step in rank.steps[1:]]
    n = len(accounts)
    means = {
        name: sum(getattr(a, name) for a in accounts) // n
        for name in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "comm_ns", "overlapped_comm_ns")
    }
    wall = sum(means[name] for name in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"))
    walls = sorted(a.wall_ns for a in accounts)
    return Steady(
        steps=numbers,
        left_out=(0,),
        step_time_ns=walls[n // 2],
        step_time_p95_ns=walls[int(0.95 * (n - 1))],
        account=Account(wall_ns=wall, **means),
    )


def _collectives(job: Job) -> tuple[Collective, ...]:
    found = []
    for op, mark in (("all_gather", "AllGather"), ("reduce_scatter", "ReduceScatter")):
        mine = [[o for o in ops if o[3] == Kind.COMM and mark in o[4]] for ops in job.ops]
        if not any(mine):
            continue
        rest = [[o for o in ops if not (o[3] == Kind.COMM and mark not in o[4])] for ops in job.ops]
        whole = [account(ops, min(o[0] for o in ops), max(o[1] for o in ops)) for ops in rest]
        comm, over = sum(a.comm_ns for a in whole), sum(a.overlapped_comm_ns for a in whole)
        found.append(
            Collective(
                communicator="0x5f1c0d7e22aa9b04",
                op=op,
                ranks=tuple(range(len(job.ops))),
                count=len(mine[0]),
                bytes=403_000_000,
                bytes_source="nccl_payload",
                comm_ns=comm,
                exposed_ns=comm - over,
                exposed_per_step_ns=None,
                overlap_ratio=over / comm,
                transfer_ns=930_011,
                peer_wait_ns=None,
                algbw_gbps=433.3,
                busbw_gbps=325.0,
                by_size=(
                    SizeClass(
                        at_least_bytes=1 << 28,
                        count=len(mine[0]),
                        bytes=403_000_000,
                        transfer_ns=930_011,
                        algbw_gbps=433.3,
                        busbw_gbps=325.0,
                        peak_gbps=450.0,
                    ),
                ),
            )
        )
    return tuple(sorted(found, key=lambda c: -c.exposed_ns))


def some_findings(cost_ns: int = 3 * MS) -> tuple[Finding, ...]:
    """Return three findings of falling cost, as rules will make them."""
    return (
        Finding(
            rule="TK201",
            severity=Severity.ERROR,
            title="Rank 2 computes slowly; its peers wait in forward and again at the end of backward",
            ranks=(2,),
            steps=(1, 2, 3, 4, 5),
            cost_ns=cost_ns,
            gain_ns=cost_ns + 2 * MS,
            evidence=(
                Evidence(metric="same kernel and grid, rank 2 over peers", value=1.22, unit="×", threshold=1.05),
                Evidence(metric="its own peer wait", value=0, unit="ns"),
            ),
            fix="Every kernel is slow, so suspect the device: compare nvidia-smi -q -d CLOCK, then swap it.",
        ),
        Finding(
            rule="TK101",
            severity=Severity.WARNING,
            title="Each forward all-gather starts only when the layer before it ends",
            ranks=(0, 1, 2, 3),
            steps=(1, 2, 3, 4, 5),
            cost_ns=cost_ns // 2,
            gain_ns=None,
            evidence=(Evidence(metric="forward gathers that overlap compute", value="0 of 16", unit=""),),
            fix="Call set_modules_to_forward_prefetch on each block, one block ahead.",
        ),
        Finding(
            rule="TK902",
            severity=Severity.INFO,
            title="The capture lacks the launch rows of 3 % of kernels",
            ranks=(),
            steps=(),
            cost_ns=None,
            gain_ns=None,
            evidence=(),
            fix="",
        ),
    )


def some_gaps() -> dict[str, object]:
    """Return remedies and skipped rules, as keyword arguments of `make_analysis`."""
    return {
        "remedies": (
            ("bytes and bus bandwidth of collectives", "nsys export --include-blobs=true"),
            ("what the host waits for", "capture with --trace=cuda,nvtx,osrt"),
        ),
        "skipped_rules": (
            SkippedRule(rule="TK501", reason="no memory events", capture_with="--cuda-memory-usage=true"),
        ),
    }


def by_hand() -> Job:
    """Two ranks and three steps of 100 ms that can be counted on paper.

    Every step of rank 0: compute 0-60, communication 50-90, a copy 88-93, then nothing. Rank 1 computes 80 ms instead,
    so of its communication (50-90) 10 ms are exposed.
    """
    job = Job([[], []], [[], []], [300 * MS, 300 * MS])
    for r, compute_ms in enumerate((60, 80)):
        for step in range(3):
            t = step * 100 * MS
            job.step_starts[r].append(t)
            job.ops[r] += [
                (t, t + compute_ms * MS, COMPUTE_STREAM, Kind.COMPUTE, KERNELS[0]),
                (t + 50 * MS, t + 90 * MS, COMM_STREAM, Kind.COMM, "ncclDevKernel_AllGather_RING_LL"),
                (t + 88 * MS, t + 93 * MS, COPY_STREAM, Kind.COPY, "memcpy HtoD"),
            ]
    return job


def with_waits(
    analysis: Analysis, waited_ms: Callable[[int, int], float], caused_ms: Callable[[int, int], float]
) -> Analysis:
    """Return the analysis with what each (rank, step) waited and caused others to wait, in ms."""

    def step_with(rank: int, step: Step) -> Step:
        wait, exposed = round(waited_ms(rank, step.step) * MS), step.account.exposed_comm_ns
        causes = {"peer_wait": wait, "unknown": exposed - wait}
        return replace(
            step,
            exposed_comm_by_cause={cause: ns for cause, ns in causes.items() if ns},
            caused_wait_ns=round(caused_ms(rank, step.step) * MS),
        )

    ranks = (replace(r, steps=tuple(step_with(r.rank, s) for s in r.steps)) for r in analysis.ranks)
    return replace(analysis, ranks=tuple(ranks))


def straggler(rank: int, **changes: object) -> Straggler:
    """Return a rank whose kernels are slow, as the verdict names it."""
    found = Straggler(
        rank=rank,
        verdict="persistent",
        wait_caused_ns=8 * MS,
        last_arrivals_share=0.9,
        caused_share=0.96,
        compute_ratio=1.21,
        cause="slow_compute",
        kernel_ratio=1.22,
        slow_kernels_share=1.0,
        idle_excess_ns=0,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


WAITED_MS = ((25, 20, 10), (0, 0, 5))
CAUSED_MS = ((0, 0, 2.5), (12.5, 10, 5))
"""Waits of `waiting_by_hand`, by rank and step."""


def waiting_by_hand(**changes: object) -> Analysis:
    """Return `by_hand` with rank 0 waiting for rank 1, and once the other way round; step 0 is warm-up."""
    analysis = make_analysis(by_hand(), **changes)  # type: ignore[arg-type]
    return with_waits(analysis, lambda r, s: WAITED_MS[r][s], lambda r, s: CAUSED_MS[r][s])


def many_waiting(ranks: int, steps: int, slow_rank: int) -> tuple[Job, Analysis]:
    """Return a job of many ranks and steps, all alike, in which all wait 2 ms a step for one; step 0 is warm-up."""
    job = simulate(ranks=ranks, steps=2, layers=2, slow_rank=slow_rank)
    analysis = make_analysis(job)
    longer = tuple(
        replace(rank, steps=tuple(replace(rank.steps[min(n, 1)], step=n) for n in range(steps)))
        for rank in analysis.ranks
    )
    assert analysis.steady
    analysis = replace(
        analysis,
        ranks=longer,
        steady=replace(analysis.steady, steps=tuple(range(1, steps))),
        stragglers=(straggler(slow_rank),),
    )
    return job, with_waits(analysis, lambda r, s: 2.0 * (r != slow_rank), lambda r, s: 1.5 * (r == slow_rank))
