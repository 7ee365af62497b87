"""One rank's own measures: what its capture says without the others'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.config import Thresholds
from tracekit.errors import UsageError
from tracekit.metrics.accounting import Covers, account, accounts
from tracekit.metrics.identity import RankCollectives, rank_collectives
from tracekit.metrics.labels import Vocabulary, main_thread, vocabulary
from tracekit.metrics.period import PERIOD, find_period, period_ranges
from tracekit.metrics.phases import modules_of_window, phases_of_steps
from tracekit.metrics.steps import StepRanges, StepWindows, main_stream, step_ranges, step_windows
from tracekit.results import Account, Clock, Rank, Step
from tracekit.spool import keep
from tracekit.timeline import NONE, Kind, RankTrack, Source, Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMeasures:
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
    notes: tuple[str, ...] = ()
    """What was passed over or changed, in words."""
    renumbered: bool = False
    """The steps have the first rank's numbers, and not those that the rank's own marks gave them."""


def measure_ranks(
    timeline: Timeline,
    tracks: Sequence[RankTrack],
    sizes: dict[int, int],
    *,
    step_marker: str | None,
    windows: Sequence[tuple[int | None, int | None]],
    thresholds: Thresholds,
    done: Callable[[int], None],
) -> list[RankMeasures]:
    """Take each rank's own measures, as `measure_rank` does; ``done`` is called with the number of ranks measured.

    Of ranks whose columns are mapped from a file, the covers go to one too.
    """
    measured: list[RankMeasures] = []

    def covers_by_rank() -> Iterator[Covers]:
        for track, window in zip(tracks, windows, strict=True):
            m = measure_rank(timeline, track, sizes, step_marker=step_marker, window=window, thresholds=thresholds)
            measured.append(replace(m, covers=nothing))
            done(len(measured))
            yield m.covers

    nothing = Covers.of(tracks[0].ops.rows(np.zeros(len(tracks[0].ops), np.bool_)))
    kept = keep(covers_by_rank(), tracks[0].ops.start)
    measured = [replace(m, covers=covers) for m, covers in zip(measured, kept, strict=True)]
    return measured if _agree(measured, thresholds) else [_without_steps(m) for m in measured]


def _agree(measured: Sequence[RankMeasures], thresholds: Thresholds) -> bool:
    """Whether steps that were found by their period are found on all ranks, and as long on all of them."""
    found = [m.marks is not None and m.marks.source == PERIOD for m in measured]
    if not any(found):
        return True
    lengths = [float(np.median([step.account.wall_ns for step in m.steps])) for m in measured if m.steps]
    everywhere = all(found) and len(lengths) == len(measured)
    return everywhere and max(lengths) <= (1 + thresholds.period_spread) * min(lengths)


def _without_steps(m: RankMeasures) -> RankMeasures:
    return replace(m, marks=None, steps=(), notes=()) if m.marks and m.marks.source == PERIOD else m


def _by_period(timeline: Timeline, track: RankTrack, stream: int | None, thresholds: Thresholds) -> StepRanges | None:
    """Steps by the period of the main stream; None where it has none."""
    period = find_period(track.ops, timeline.names, stream, thresholds)
    return period_ranges(track.ops, timeline.processes[track.process], period) if period else None


def measure_rank(
    timeline: Timeline,
    track: RankTrack,
    sizes: dict[int, int],
    *,
    step_marker: str | None,
    window: tuple[int | None, int | None],
    thresholds: Thresholds,
) -> RankMeasures:
    """Take one rank's own measures.

    ``sizes`` has the number of ranks by communicator; ``window`` cuts the totals and keeps the steps that lie inside.
    Raises `UsageError` when the window holds none of the rank's GPU work.
    """
    ops, process = track.ops, timeline.processes[track.process]
    covers = Covers.of(ops)
    first, last = int(ops.start[0]), int(ops.end.max())
    low, high = window
    span = max(first, low if low is not None else first), min(last, high if high is not None else last)
    if span[1] < span[0] or (span[1] == span[0] and first < last):
        raise UsageError(
            f"--window: rank {track.rank} has no GPU work in it",
            hint=f"Its GPU work runs from {first / 1e9:.3f}s to {last / 1e9:.3f}s on the capture's clock.",
        )
    stream = main_stream(ops)
    words = vocabulary(timeline, process.ranges)
    marks = step_ranges(timeline, process, words, step_marker, ops)
    if marks is None and step_marker is None:
        marks = _by_period(timeline, track, stream, thresholds)
    windows = step_windows(ops, process, marks, stream) if marks else None
    if windows is not None and window != (None, None):
        windows = windows.inside(*span)
    return RankMeasures(
        track=track,
        covers=covers,
        window=span,
        totals=account(covers, *span),
        stream=stream,
        marks=marks,
        words=words,
        steps=_steps(timeline, track, covers, windows, words, stream, speaker(timeline, track, marks, words))
        if windows
        else (),
        collectives=rank_collectives(timeline, track, covers, span, sizes),
        notes=tuple(_notes(marks)) if marks else (),
    )


def _notes(marks: StepRanges) -> Iterator[str]:
    """What was passed over among the marks of steps, and how steps without marks were found."""
    if marks.confidence is not None:
        yield (
            f"no range marks steps: {marks.whole} were found by the period in which the main stream repeats itself, "
            f"with a confidence of {marks.confidence:.1f}"
        )
    if marks.nested:
        yield f"marks {marks.source!r} inside others, of which only the outermost are steps: {marks.nested}"
    if marks.elsewhere:
        yield f"marks {marks.source!r} on other threads, which are not taken as steps: {marks.elsewhere}"


def speaker(timeline: Timeline, track: RankTrack, marks: StepRanges | None, words: Vocabulary) -> int | None:
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
        windows.followed.tolist(),
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
            followed=followed,
        )
        for number, start, end, followed, whole, phases in rows
    )


def rank_result(timeline: Timeline, m: RankMeasures, steady: Sequence[int], clock: Clock) -> Rank:
    """The rank's figures as a result; ``steady`` are the steps that its modules are summed over."""
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
        gpu=track.gpu,
        pci_bus=track.pci_bus,
        capture=process.capture,
        clock=clock,
        totals=m.totals,
        start_ns=m.window[0],
        end_ns=m.window[1],
        main_stream=m.stream,
        step_source=m.marks.source if m.marks and m.steps else None,
        step_confidence=m.marks.confidence if m.marks and m.steps else None,
        steps=m.steps,
        steps_renumbered=m.renumbered,
        modules=modules_of_window(
            ops, process, m.words, m.covers, start, end, speaker(timeline, track, m.marks, m.words)
        ),
        kernels=int(np.count_nonzero(kernels)),
        kernels_launched=int(np.count_nonzero(kernels & (ops.call != NONE))),
        opaque_ns=account(Covers.of(ops.rows(opaque)), *m.window).compute_ns if opaque.any() else 0,
    )
