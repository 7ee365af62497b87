"""From a timeline to an analysis: the order in which measures are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tracekit.errors import NoGpuWorkError, UsageError
from tracekit.metrics.attribution import Blame, blame, host_of, network_of, with_caused_waits, with_slow_links
from tracekit.metrics.bubbles import with_causes
from tracekit.metrics.collectives import collectives
from tracekit.metrics.dimensions import dimensions
from tracekit.metrics.efficiency import efficiency
from tracekit.metrics.hangs import diagnose
from tracekit.metrics.hangs.from_captures import evidence_of, may_stand_still
from tracekit.metrics.host import host_ranks
from tracekit.metrics.identity import communicator_sizes
from tracekit.metrics.lags import FEWEST
from tracekit.metrics.matching import FINISH_TOGETHER
from tracekit.metrics.memory import memory as memory_account
from tracekit.metrics.one_rank import RankMeasures, measure_ranks, rank_result
from tracekit.metrics.rank_views import rank_views
from tracekit.metrics.replay.critical_path import critical_path
from tracekit.metrics.replay.replay import replayable_steps
from tracekit.metrics.replay.what_if import parse_changes
from tracekit.metrics.run import run_facts
from tracekit.metrics.sharding import sharding
from tracekit.metrics.steady import steady_steps, steady_windows
from tracekit.metrics.together import (
    Together,
    clock_of,
    coarse_offset,
    put_together,
    stages,
    with_common_numbers,
    with_wall_clock_notes,
)
from tracekit.metrics.traffic import traffic
from tracekit.metrics.views import Detail, RankView
from tracekit.metrics.waits_by_step import with_waits
from tracekit.metrics.world import start_up_left_out, world
from tracekit.options import Options, picked_host_ranks, picked_ranks, picked_steps
from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.results import Analysis, Capture, CriticalPath, Finding, Hang, LeftOut, Rank, Replay, SkippedRule, Steady
from tracekit.rules import check_all, reported
from tracekit.rules.base import Context, mean_step
from tracekit.rules.gains import replayed
from tracekit.rules.hangs import finding_of
from tracekit.rules.ledger import Ledger
from tracekit.runs import few_runs
from tracekit.spool import release
from tracekit.timeline import Kind, RankTrack, Timeline


def analyze(
    timeline: Timeline,
    options: Options = Options(),
    *,
    progressing: Callable[[str], Callable[[int, int], None] | None] = lambda _: None,
) -> Analysis:
    """Account for every nanosecond of a timeline.

    ``progressing`` is called with what is being measured and returns a callback for (done, expected), or None.
    Raises `UsageError` when the options pick nothing: a rank or step that is not there, a window without GPU work; and
    `NoGpuWorkError` when there is no rank (with ``allow_no_gpu``: nor an NVTX step).
    """
    analysis, _ = examine(timeline, options, progressing=progressing, detailed=False)
    return analysis


def examine(
    timeline: Timeline,
    options: Options = Options(),
    *,
    progressing: Callable[[str], Callable[[int, int], None] | None] = lambda _: None,
    detailed: bool = True,
) -> tuple[Analysis, Detail | None]:
    """Analyze, and give what lies behind it row by row as well.

    That is None for captures without GPU work, and where neither ``detailed`` nor the options need it.
    """
    asked = [parse_changes(changes) for changes in options.what_if]
    if not timeline.ranks:
        return _host_view(timeline, options), None
    tracks = picked_ranks(timeline, options)
    job = world(timeline)
    sizes = communicator_sizes(timeline)
    progress = progressing("ranks") if len(tracks) > 1 else None
    measured = measure_ranks(
        timeline,
        tracks,
        sizes,
        step_marker=options.step_marker,
        windows=_windows(timeline, tracks, sizes, options),
        thresholds=options.thresholds,
        done=lambda count: progress(count, len(tracks)) if progress else None,
    )
    facts = run_facts(timeline, options.model, options.tokens_per_step)
    if options.step_marker is not None and not any(m.steps for m in measured):
        raise UsageError(
            f"--step-marker {options.step_marker!r}: no NVTX range of this name holds the launch of a kernel",
            hint="tracekit info CAPTURE lists the ranges by name.",
        )
    found, covers = [m.collectives for m in measured], [m.covers for m in measured]
    together = put_together(timeline, tracks, found, covers, options.thresholds, align=options.align)
    measured = with_wall_clock_notes(timeline, with_common_numbers(measured, together), together, options.thresholds)
    views: tuple[RankView, ...] = ()
    if options.rules or asked or detailed:
        views = rank_views(timeline, measured, together.waits, options.thresholds, causes=options.rules)
    if options.rules:
        measured = [replace(m, steps=with_causes(m.steps, v.bubbles)) for m, v in zip(measured, views, strict=True)]
    else:
        measured = [replace(m, steps=with_waits(m.steps, w)) for m, w in zip(measured, together.waits, strict=True)]
    measured = picked_steps(measured, options)
    steady = steady_steps(
        [m.steps for m in measured], options.thresholds, options.skip_warmup, all_of_them=options.steps is not None
    )
    verdict = blame(timeline, measured, together, steady, options.thresholds)
    network = network_of(timeline, measured, together) if options.rules or verdict.unexplained else ()
    verdict = with_slow_links(verdict, network, tracks, options.thresholds)
    ranks = _ranks(timeline, measured, together, verdict, steady)
    windows, chosen = [m.window for m in measured], [steady_windows(m.steps, steady) for m in measured]
    table = collectives(
        tracks,
        found,
        covers,
        windows,
        together.matched,
        chosen,
        [host_of(timeline, t) for t in tracks],
        world_size=job.size,
    )
    hang = _hang(timeline, options)
    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedRule, ...] = ()
    replay: Replay | None = None
    path: CriticalPath | None = None
    strategy, usage, memory = None, None, None
    if options.rules:
        kernel_names = _kernel_names(timeline, tracks)
        moved = traffic(views, steady)
        by_name = {f"{c:#018x}": size for c, size in sizes.items()}
        strategy = sharding(moved, facts, by_name, dimensions(views, by_name))
        usage = efficiency(ranks, steady, facts, kernel_names, options.gpu, stands_still=hang is not None)
        memory = memory_account(ranks, tracks, views, steady, moved, strategy, facts, kernel_names, options.gpu)
        context = Context(
            timeline=timeline,
            ranks=ranks,
            steady=steady,
            collectives=table,
            stragglers=verdict.stragglers,
            links=network,
            stages=stages(tracks, found, verdict.arrivals.peers),
            waits_told=any(bool(np.any(w.wait >= 0)) for w in together.waits),
            world=job,
            start_up=start_up_left_out(found, together.waits),
            not_aligned=_not_aligned(timeline, tracks, together),
            thresholds=options.thresholds,
            views=views,
            ledger=Ledger(views, ranks, mean_step(ranks, steady), steady),
            sharding=strategy,
            memory=memory,
            hang=hang,
        )
        findings, skipped = check_all(context)
    if options.rules or asked:
        steps = replayable_steps(timeline, measured, together, steady, options.thresholds)
        ranks_of_steps = [m.track.rank for m in measured]
        path = None if isinstance(steps, str) else critical_path(steps, ranks_of_steps, [v.labels for v in views])
        replay, findings = replayed(
            steps, ranks_of_steps, verdict.stragglers, findings, asked, mean_step(ranks, steady), options.thresholds
        )
    analysis = Analysis(
        captures=tuple(_capture(timeline, i, ranks, measured) for i in range(len(timeline.captures))),
        left_out=tuple(LeftOut(path=path, reason=reason) for path, reason in timeline.left_out),
        ranks=ranks,
        steady=steady,
        collectives=table,
        stragglers=verdict.stragglers,
        findings=tuple(f for f in findings if reported(f.rule, options.select, options.ignore)),
        skipped_rules=tuple(s for s in skipped if reported(s.rule, options.select, options.ignore)),
        sharding=strategy,
        efficiency=usage,
        memory=memory,
        world_size=job.size,
        not_captured=job.missing,
        remedies=_remedies(timeline, ranks),
        replay=replay,
        critical_path=path,
        hang=hang,
        thresholds=options.thresholds,
    )
    return analysis, Detail(views=views, matched=together.matched, waits=together.waits) if views else None


def _windows(
    timeline: Timeline, tracks: Sequence[RankTrack], sizes: dict[int, int], options: Options
) -> list[tuple[int | None, int | None]]:
    """The window on each rank's own clock; it is given on the first rank's."""
    everything: list[tuple[int | None, int | None]] = [(None, None)] * len(tracks)
    captures = {timeline.processes[track.process].capture for track in tracks}
    if options.window == (None, None) or len(captures) == 1 or not options.align:
        return [options.window] * len(tracks)
    whole = measure_ranks(
        timeline,
        tracks,
        sizes,
        step_marker=options.step_marker,
        windows=everything,
        thresholds=options.thresholds,
        done=lambda _: None,
    )
    covers = [m.covers for m in whole]
    clocks = put_together(
        timeline, tracks, [m.collectives for m in whole], covers, options.thresholds, align=True
    ).clocks
    low, high = options.window
    return [
        (
            low if low is None or clock is None else clock.from_reference(low),
            high if high is None or clock is None else clock.from_reference(high),
        )
        for clock in clocks
    ]


def _ranks(
    timeline: Timeline, measured: Sequence[RankMeasures], together: Together, verdict: Blame, steady: Steady | None
) -> tuple[Rank, ...]:
    ranks = []
    for row, (m, fit) in enumerate(zip(measured, together.clocks, strict=True)):
        clock = clock_of(fit, coarse_offset(timeline, m.track, measured[0].track))
        m = replace(m, steps=with_caused_waits(m.steps, row, verdict, steady))  # noqa: PLW2901
        ranks.append(verdict.shown_in(rank_result(timeline, m, steady.steps if steady else (), clock), row))
        release()
    return tuple(ranks)


def _host_view(timeline: Timeline, options: Options) -> Analysis:
    if options.allow_no_gpu and options.window != (None, None):
        raise UsageError("--window: there is no GPU work in the captures", hint="Leave it out for the NVTX view.")
    ranks = host_ranks(timeline, options.step_marker) if options.allow_no_gpu else ()
    if options.allow_no_gpu and options.step_marker is not None and not any(rank.steps for rank in ranks):
        raise UsageError(
            f"--step-marker {options.step_marker!r}: there is no NVTX range of this name",
            hint="tracekit info CAPTURE lists the ranges by name.",
        )
    if not ranks:
        raise NoGpuWorkError(
            "the captures hold no GPU work" + (", and no NVTX range marks a step" if options.allow_no_gpu else ""),
            hint="Capture with nsys profile -t cuda,nvtx, on the machine with the GPU.",
        )
    ranks = picked_host_ranks(ranks, options)
    hang = _hang(timeline, options)
    finding = finding_of(hang) if hang is not None and options.rules else None
    told = finding is not None and reported(finding.rule, options.select, options.ignore)
    return Analysis(
        captures=tuple(_capture(timeline, i, ()) for i in range(len(timeline.captures))),
        left_out=tuple(LeftOut(path=path, reason=reason) for path, reason in timeline.left_out),
        ranks=(),
        steady=None,
        collectives=(),
        stragglers=(),
        findings=(finding,) if finding is not None and told else (),
        skipped_rules=(),
        host_ranks=ranks,
        hang=hang,
        thresholds=options.thresholds,
    )


def _hang(timeline: Timeline, options: Options) -> Hang | None:
    """Why the job stands still; None where the captures show no sign of that.

    All ranks count, whichever are asked for: who is missing is told by the others.
    """
    if not may_stand_still(timeline, options.thresholds):
        return None
    evidence = evidence_of(timeline, options.thresholds, step_marker=options.step_marker)
    if evidence.interrupted is False:
        return None
    hang = diagnose(evidence, options.thresholds)
    return hang if hang.verdict != "not_a_hang" else None


def _not_aligned(timeline: Timeline, tracks: Sequence[RankTrack], together: Together) -> tuple[str, ...]:
    """Captures with collectives whose clock does not fit the others'."""
    paths = []
    for row, (track, clock) in enumerate(zip(tracks, together.clocks, strict=True)):
        shared = sum(
            kind.shared(row) for kind in together.matched if row in kind.members and kind.op in FINISH_TOGETHER
        )
        if clock is None and (shared >= FEWEST or not _meets_another_capture(timeline, tracks, together, row)):
            paths.append(timeline.captures[timeline.processes[track.process].capture].path)
    return tuple(dict.fromkeys(paths))


def _meets_another_capture(timeline: Timeline, tracks: Sequence[RankTrack], together: Together, row: int) -> bool:
    """Whether a rank communicates in any kind of collective that a rank of another capture has too."""
    capture = [timeline.processes[track.process].capture for track in tracks]
    return any(
        row in kind.members and any(capture[member] != capture[row] for member in kind.members)
        for kind in together.matched
    )


def _kernel_names(timeline: Timeline, tracks: Sequence[RankTrack]) -> list[str]:
    """Distinct names of compute kernels."""
    used = {n for track in tracks for n in np.unique(track.ops.name[track.ops.kind == Kind.COMPUTE]).tolist()}
    return [timeline.names[n] for n in sorted(used)]


def _capture(timeline: Timeline, index: int, ranks: Sequence[Rank], measured: Sequence[RankMeasures] = ()) -> Capture:
    info = timeline.captures[index]
    said: dict[str, list[int]] = {}
    for m in measured:
        if timeline.processes[m.track.process].capture == index:
            for note in m.notes:
                said.setdefault(note, []).append(m.track.rank)
    of_ranks = [f"rank{'s' * (len(who) > 1)} {few_runs(who)}: {note}" for note, who in said.items()]
    return Capture(
        path=info.path,
        format=info.format,
        nsys_version=info.nsys_version,
        schema_version=info.schema_version,
        ranks=tuple(rank.rank for rank in ranks if rank.capture == index),
        auxiliary=info.auxiliary,
        diagnostics=info.diagnostics,
        notes=(*info.notes, *of_ranks),
    )


def _remedies(timeline: Timeline, ranks: Sequence[Rank]) -> tuple[tuple[str, str], ...]:
    """What could not be told, each with what would tell it."""
    lacking = {key for index in {rank.capture for rank in ranks} for key in timeline.captures[index].lacks}
    communicates = any(rank.totals.comm_ns for rank in ranks)
    relevant = {"nvtx", "launch_rows", "graph_nodes"} | ({"nccl_payload"} if communicates else set())
    found = [REMEDIES[key] for key in REMEDIES if key in lacking & relevant]
    if communicates and len(ranks) == 1:
        more = len(timeline.ranks) > 1
        how = "leave --ranks out" if more else "analyze the captures of all ranks together"
        found.append(("waiting apart from transfer (one rank only)", how))
    return tuple(found)
