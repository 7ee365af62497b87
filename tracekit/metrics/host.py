"""What NVTX alone says, for captures without GPU work: steps, phases and annotated collectives as the host saw them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import Cover, innermost
from tracekit.metrics.labels import Vocabulary, vocabulary
from tracekit.metrics.steps import StepRanges, step_ranges
from tracekit.results import HostCollective, HostRank, HostStep
from tracekit.timeline import NO_VALUE, Process, Timeline

ANNOTATED_DOMAIN = "tracekit.comm"


def host_ranks(timeline: Timeline, marker: str | None) -> tuple[HostRank, ...]:
    """The NVTX view of each process that names its rank or has steps, in order of rank."""
    found = []
    for process in timeline.processes:
        words = vocabulary(timeline, process.ranges)
        marks = step_ranges(timeline, process, words, marker)
        if marks is not None or process.claim is not None:
            found.append((process, words, marks))
    taken = {process.claim[0] for process, _, _ in found if process.claim is not None}
    free = (n for n in range(2 * len(found) + 1) if n not in taken)
    seen: set[int] = set()
    ranks = []
    for process, words, marks in found:
        rank, source = process.claim or (None, "order")
        if rank is None or rank in seen:
            rank, source = next(free), "order"
        seen.add(rank)
        ranks.append(
            HostRank(
                rank=rank,
                rank_source=source,
                pid=process.pid,
                capture=process.capture,
                step_source=marks.source if marks else None,
                steps=_steps(process, words, marks) if marks else (),
                collectives=_collectives(timeline, process),
            )
        )
    return tuple(sorted(ranks, key=lambda r: r.rank))


def _steps(process: Process, words: Vocabulary, marks: StepRanges) -> tuple[HostStep, ...]:
    ranges = process.ranges
    rows = np.flatnonzero(words.where(lambda a: a.phase is not None) & (ranges.thread == marks.thread))
    phase = [words.annotations[int(words.of[row])] for row in rows]
    # Where a range begins or ends, the innermost phase may change; in between it does not.
    edges = np.unique(np.concatenate([ranges.start[rows], ranges.end[rows], marks.start, marks.end]))
    inside = innermost(ranges.start[rows], ranges.end[rows], edges[:-1])
    step = marks.containing(edges[:-1])
    length = np.diff(edges)
    split: list[dict[str, int]] = [{} for _ in marks.start]
    for i in np.flatnonzero((inside >= 0) & (step >= 0)).tolist():
        meaning = phase[int(inside[i])]
        if meaning is not None and meaning.phase:
            by_phase = split[int(step[i])]
            by_phase[meaning.phase] = by_phase.get(meaning.phase, 0) + int(length[i])
    open_ = _open_at(process, marks)
    return tuple(
        HostStep(step=number, start_ns=start, end_ns=end, open=is_open, by_phase_ns=phases)
        for number, start, end, is_open, phases in zip(
            marks.number.tolist(), marks.start.tolist(), marks.end.tolist(), open_.tolist(), split, strict=True
        )
    )


def _open_at(process: Process, marks: StepRanges) -> NDArray[np.bool_]:
    """Whether each step's own range was never closed."""
    open_starts = process.ranges.start[process.ranges.open]
    never_closed: NDArray[np.bool_] = np.isin(marks.start, open_starts) & (marks.end == marks.end.max(initial=0))
    return never_closed


def _collectives(timeline: Timeline, process: Process) -> tuple[HostCollective, ...]:
    ranges = process.ranges
    if ANNOTATED_DOMAIN not in timeline.names:
        return ()
    mine = np.flatnonzero(ranges.domain == list(timeline.names).index(ANNOTATED_DOMAIN))
    rows = []
    for name in np.unique(ranges.name[mine]).tolist():
        own = mine[ranges.name[mine] == name]
        sizes = ranges.value[own]
        rows.append(
            HostCollective(
                op=timeline.names[name] if name >= 0 else "unknown",
                count=len(own),
                bytes=int(sizes.sum()) if np.all(sizes != NO_VALUE) else None,
                issue_ns=int(Cover.of(ranges.start[own], ranges.end[own]).before[-1]),
                open=int(np.count_nonzero(ranges.open[own])),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.count, row.op)))
