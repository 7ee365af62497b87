"""From a timeline to an analysis: the order in which measures are taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.config import DEFAULT, Thresholds
from tracekit.errors import NoGpuWorkError, UsageError
from tracekit.metrics.accounting import Covers, account, accounts
from tracekit.metrics.collectives import RankCollectives, collectives, rank_collectives
from tracekit.metrics.host import host_ranks
from tracekit.metrics.labels import Vocabulary, main_thread, vocabulary
from tracekit.metrics.phases import modules_of_window, phases_of_steps
from tracekit.metrics.steady import steady_steps
from tracekit.metrics.steps import StepRanges, StepWindows, main_stream, step_ranges, step_windows
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.results import Account, Analysis, Capture, Clock, Finding, Rank, SkippedRule, Step
from tracekit.rules import check_all
from tracekit.rules.base import Context
from tracekit.timeline import NONE, Kind, RankTrack, Source, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to look at. The default looks at everything."""

    steps: frozenset[int] | None = None
    """Only these steps, which are then the steady ones."""
    ranks: frozenset[int] | None = None
    window: tuple[int | None, int | None] = (None, None)
    """Only the time between these instants (ns, on each capture's own clock); steps must lie inside."""
    step_marker: str | None = None
    """Name of the NVTX range that marks a step, or a regular expression for it."""
    skip_warmup: int | None = None
    """Leave out exactly this many leading steps from the steady ones; None: by the rule."""
    rules: bool = True
    allow_no_gpu: bool = False
    """Report the NVTX view of captures that hold no rank."""
    thresholds: Thresholds = DEFAULT


def analyze(timeline: Timeline, options: Options = Options()) -> Analysis:
    """Account for every nanosecond of a timeline.

    Raises `UsageError` when the options pick nothing: a rank or step that is not there, a window without GPU work; and
    `NoGpuWorkError` when there is no rank (with ``allow_no_gpu``: nor an NVTX step).
    """
    if not timeline.ranks:
        return _host_view(timeline, options)
    tracks = _picked_ranks(timeline, options)
    measured = [_measure(timeline, track, options) for track in tracks]
    if options.step_marker is not None and not any(m.steps for m in measured):
        raise UsageError(
            f"--step-marker {options.step_marker!r}: no NVTX range of this name holds the launch of a kernel",
            hint="tracekit info CAPTURE lists the ranges by name.",
        )
    measured = _picked_steps(measured, options)
    steady = steady_steps(
        [m.steps for m in measured], options.thresholds, options.skip_warmup, all_of_them=options.steps is not None
    )
    ranks = tuple(_rank(timeline, m, steady.steps if steady else (), tracks[0]) for m in measured)
    table = collectives(
        timeline,
        tracks,
        [m.collectives for m in measured],
        [m.covers for m in measured],
        [m.window for m in measured],
        world_size=_world_size(timeline),
    )
    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedRule, ...] = ()
    if options.rules:
        context = Context(
            timeline=timeline, ranks=ranks, steady=steady, collectives=table, thresholds=options.thresholds
        )
        findings, skipped = check_all(context)
    return Analysis(
        captures=tuple(_capture(timeline, i, ranks) for i in range(len(timeline.captures))),
        ranks=ranks,
        steady=steady,
        collectives=table,
        findings=findings,
        skipped_rules=skipped,
        remedies=_remedies(timeline, ranks),
    )


def _host_view(timeline: Timeline, options: Options) -> Analysis:
    ranks = host_ranks(timeline, options.step_marker) if options.allow_no_gpu else ()
    if not ranks:
        raise NoGpuWorkError(
            "the captures hold no GPU work" + (", and no NVTX range marks a step" if options.allow_no_gpu else ""),
            hint="Capture with nsys profile -t cuda,nvtx, on the machine with the GPU.",
        )
    return Analysis(
        captures=tuple(_capture(timeline, i, ()) for i in range(len(timeline.captures))),
        ranks=(),
        steady=None,
        collectives=(),
        findings=(),
        skipped_rules=(),
        host_ranks=ranks,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """One rank's measures, on the way to its `Rank`."""

    track: RankTrack
    covers: Covers
    window: tuple[int, int]
    totals: Account
    stream: int | None
    marks: StepRanges | None
    words: Vocabulary
    steps: tuple[Step, ...]
    collectives: RankCollectives


def _picked_ranks(timeline: Timeline, options: Options) -> tuple[RankTrack, ...]:
    if options.ranks is None:
        return timeline.ranks
    have = {track.rank for track in timeline.ranks}
    missing = sorted(options.ranks - have)
    if missing:
        raise UsageError(
            f"--ranks: there is no rank {missing[0]}", hint=f"The captures hold ranks {spans(sorted(have))}."
        )
    return tuple(track for track in timeline.ranks if track.rank in options.ranks)


def _measure(timeline: Timeline, track: RankTrack, options: Options) -> _Measured:
    ops, process = track.ops, timeline.processes[track.process]
    covers = Covers.of(ops)
    first, last = int(ops.start[0]), int(ops.end.max())
    low, high = options.window
    window = max(first, low if low is not None else first), min(last, high if high is not None else last)
    if window[1] < window[0] or (window[1] == window[0] and first < last):
        raise UsageError(
            f"--window: rank {track.rank} has no GPU work in it",
            hint=f"Its GPU work runs from {first / 1e9:.3f}s to {last / 1e9:.3f}s on the capture's clock.",
        )
    stream = main_stream(ops)
    words = vocabulary(timeline, process.ranges)
    marks = step_ranges(timeline, process, words, options.step_marker)
    windows = step_windows(ops, process, marks, stream) if marks else None
    if windows is not None and options.window != (None, None):
        windows = windows.inside(*window)
    return _Measured(
        track=track,
        covers=covers,
        window=window,
        totals=account(covers, *window),
        stream=stream,
        marks=marks,
        words=words,
        steps=_steps(timeline, track, covers, windows, words, stream, _speaker(timeline, track, marks, words))
        if windows
        else (),
        collectives=rank_collectives(timeline, track, covers, window),
    )


def _speaker(timeline: Timeline, track: RankTrack, marks: StepRanges | None, words: Vocabulary) -> int | None:
    """The thread that speaks for launches of silent threads: the one with the steps, else with most phases."""
    if marks is not None:
        return marks.thread
    return main_thread(timeline.processes[track.process].ranges, words.where(lambda a: a.phase is not None))


def _steps(
    timeline: Timeline,
    track: RankTrack,
    covers: Covers,
    windows: StepWindows,
    words: Vocabulary,
    stream: int | None,
    thread: int | None,
) -> tuple[Step, ...]:
    process = timeline.processes[track.process]
    by_phase = phases_of_steps(track.ops, process, words, covers, windows, stream, thread)
    rows = zip(
        windows.number.tolist(),
        windows.start.tolist(),
        windows.end.tolist(),
        accounts(covers, windows.start, windows.end),
        by_phase,
        strict=True,
    )
    return tuple(
        Step(
            step=number,
            start_ns=start,
            end_ns=end,
            account=whole,
            by_phase=phases,
            exposed_comm_by_cause=_unknown(whole.exposed_comm_ns),
            exposed_copy_by_cause=_unknown(whole.exposed_copy_ns),
            idle_by_cause=_unknown(whole.idle_ns),
        )
        for number, start, end, whole, phases in rows
    )


def _unknown(ns: int) -> dict[str, int]:
    """All time under ``unknown``, for no cause is told apart yet; {} where there is no such time."""
    return {"unknown": ns} if ns else {}


def _picked_steps(measured: Sequence[_Measured], options: Options) -> list[_Measured]:
    if options.steps is None:
        return list(measured)
    have = {step.step for m in measured for step in m.steps}
    missing = sorted(options.steps - have)
    if not have:
        raise UsageError(
            "--steps: the captures hold no steps", hint="Name the range that marks one with --step-marker."
        )
    if len(missing) == len(options.steps):
        raise UsageError(
            f"--steps: there is no step {missing[0]}", hint=f"The captures hold steps {spans(sorted(have))}."
        )
    return [replace(m, steps=tuple(step for step in m.steps if step.step in options.steps)) for m in measured]


def _rank(timeline: Timeline, m: _Measured, steady: Sequence[int], first: RankTrack) -> Rank:
    track, process = m.track, timeline.processes[m.track.process]
    ops = track.ops
    kernels = ops.source <= Source.GRAPH
    opaque = (ops.source == Source.GRAPH) & (ops.kind == Kind.COMPUTE)
    kept = set(steady)
    chosen = [step for step in m.steps if step.step in kept]
    start = np.array([step.start_ns for step in chosen] or [m.window[0]], np.int64)
    end = np.array([step.end_ns for step in chosen] or [m.window[1]], np.int64)
    return Rank(
        rank=track.rank,
        rank_source=track.rank_source,
        host=track.host,
        pid=track.pid,
        device=track.device,
        device_name=track.device_name,
        capture=process.capture,
        clock=_clock(timeline, track, first),
        totals=m.totals,
        start_ns=m.window[0],
        end_ns=m.window[1],
        main_stream=m.stream,
        step_source=m.marks.source if m.marks and m.steps else None,
        steps=m.steps,
        modules=modules_of_window(
            ops, process, m.words, m.covers, start, end, _speaker(timeline, track, m.marks, m.words)
        ),
        kernels=int(np.count_nonzero(kernels)),
        kernels_launched=int(np.count_nonzero(kernels & (ops.call != NONE))),
        opaque_ns=account(Covers.of(ops.rows(opaque)), *m.window).compute_ns if opaque.any() else 0,
    )


def _clock(timeline: Timeline, track: RankTrack, first: RankTrack) -> Clock:
    """Ranks of one capture share its clock; others are put beside each other by the captures' wall-clock start."""
    own, reference = timeline.processes[track.process].capture, timeline.processes[first.process].capture
    if own == reference:
        return Clock(offset_ns=0, drift_ppm=None, uncertainty_ns=None, method="same_capture")
    starts = timeline.captures[reference].start_epoch_ns, timeline.captures[own].start_epoch_ns
    if starts[0] is None or starts[1] is None:
        return Clock(offset_ns=None, drift_ppm=None, uncertainty_ns=None, method=None)
    return Clock(offset_ns=starts[0] - starts[1], drift_ppm=None, uncertainty_ns=None, method="session_start")


def _world_size(timeline: Timeline) -> int | None:
    """Number of ranks of the job, as a trainer's mark or NCCL's largest communicator tells it."""
    sizes = [size for track in timeline.ranks for _, size, _ in track.communicators]
    for process in timeline.processes:
        for _, text in process.marks:
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError):
                continue
            size = fields.get("world_size") if isinstance(fields, dict) else None
            if isinstance(size, int) and size > 0:
                sizes.append(size)
    return max(sizes, default=None)


def _capture(timeline: Timeline, index: int, ranks: Sequence[Rank]) -> Capture:
    info = timeline.captures[index]
    return Capture(
        path=info.path,
        format=info.format,
        nsys_version=info.nsys_version,
        schema_version=info.schema_version,
        ranks=tuple(rank.rank for rank in ranks if rank.capture == index),
        auxiliary=info.auxiliary,
        diagnostics=info.diagnostics,
        notes=info.notes,
    )


def _remedies(timeline: Timeline, ranks: Sequence[Rank]) -> tuple[tuple[str, str], ...]:
    """What could not be told, each with what would tell it."""
    lacking = {key for index in {rank.capture for rank in ranks} for key in timeline.captures[index].lacks}
    communicates = any(rank.totals.comm_ns for rank in ranks)
    relevant = {"nvtx", "launch_rows", "graph_nodes"} | ({"nccl_payload"} if communicates else set())
    found = [REMEDIES[key] for key in REMEDIES if key in lacking & relevant]
    if communicates and len(ranks) == 1:
        found.append(("waiting apart from transfer (one rank only)", "analyze the captures of all ranks together"))
    return tuple(found)


def spans(numbers: Sequence[int]) -> str:
    """Sorted numbers as ``0-3, 7``, the middle left out where there are many."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [f"{a}-{b}" if b > a else str(a) for a, b in runs]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]])
