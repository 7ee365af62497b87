"""The terminal summary of captures without GPU work: steps, phases and collectives as NVTX saw them on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from statistics import median

from tracekit._version import __version__
from tracekit.report import hang_views
from tracekit.report.words import clean, duration, plural, sentence, size
from tracekit.results import Analysis, HostRank
from tracekit.rules.hang_words import claim
from tracekit.runs import runs


def render_host(analysis: Analysis, *, with_hang: bool = True) -> str:
    """Text for people; ``with_hang``: led by the hang, where there is one."""
    names = ", ".join(clean(PurePath(capture.path).name) for capture in analysis.captures[:3])
    more = f" and {len(analysis.captures) - 3} more" if len(analysis.captures) > 3 else ""
    lines = [
        f"tracekit {__version__} · {names}{more} · {plural(len(analysis.host_ranks), 'rank')}, no GPU work",
        "",
        *(_hang(analysis) if with_hang else ()),
        "No GPU work in this capture: what follows is host time by NVTX, not GPU time.",
    ]
    for rank in analysis.host_ranks:
        lines += ["", *_rank(rank)]
    return "\n".join(lines)


def _hang(analysis: Analysis) -> Iterator[str]:
    """Why the job stands still, before all else."""
    if analysis.hang is None:
        return
    yield sentence(clean(claim(analysis.hang), 2000))
    yield from hang_views.lines(analysis.hang, width=80, unicode=False)
    yield "What each rank did last, and what to try: tracekit hang CAPTURE..."
    yield ""


def _rank(rank: HostRank) -> Iterator[str]:
    done = [step for step in rank.steps if not step.open]
    yield f"Rank {rank.rank} · process {rank.pid} · {_steps(rank)}"
    if done:
        times = [step.end_ns - step.start_ns for step in done]
        phases: Counter[str] = Counter()
        for step in done:
            phases.update(step.by_phase_ns)
        mean = ", ".join(f"{phase} {duration(ns / len(done))}" for phase, ns in phases.most_common())
        yield f"  step {duration(median(times))} (median)" + (f"; mean a step: {mean}" if mean else "")
    for step in rank.steps:
        if step.open:
            yield f"  step {step.step} was never left: the capture ended {duration(step.end_ns - step.start_ns)} in"
    for row in rank.collectives:
        moved = f", {size(row.bytes)}" if row.bytes is not None else ""
        waiting = f", {row.open} never left" if row.open else ""
        yield f"  {clean(row.op, 40)}: {row.count:,} issued{moved}, {duration(row.issue_ns)} of host time{waiting}"


def _steps(rank: HostRank) -> str:
    if not rank.steps:
        return "no steps"
    return f"{plural(len(rank.steps), 'step')} ({runs(step.step for step in rank.steps)})"
