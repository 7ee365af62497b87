"""What the timeline shows: the whole job on one clock, as columns.

Beyond a limit only chosen steps are kept event by event, the rest as occupancy; ranks and streams beyond a limit are
left out; each of these is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.metrics.labels import vocabulary
from tracekit.metrics.matching import Matched
from tracekit.metrics.views import Detail
from tracekit.report.summary import BARS_SHOWN, Summary
from tracekit.report.timeline.clock import PlacedRank, place_ranks
from tracekit.report.timeline.kept import NOTHING, HtmlDetail, Kept, keep, median_step, telling_steps
from tracekit.report.timeline.lanes import Frame, Lane, Rows, lanes_of, rows_of
from tracekit.report.timeline.pieces import COARSE, limited, tile
from tracekit.report.timeline.stand import PendingMark, Stand, stand_of
from tracekit.results import Analysis, Collective, Finding
from tracekit.timeline import NONE, Int8, Int64, Kind, Timeline

MAX_EVENTS = 1_050_000
"""Events that are kept one by one: GPU operations first, then CUDA calls and NVTX ranges."""
MAX_PIECES = 2_500_000
"""Pieces of all ledgers together."""
MAX_RANKS = 1024
HANG_RULES = "TK30"
STOOD_STILL = "stand"
"""What stands for a cause at the place of a hang."""
_MIN_PIECES = 512
"""Pieces of a rank's ledger, however many ranks share the limit."""
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankScene:
    """One rank: the ledger, which tiles its window, its steps and its lanes. Times in ns since the scene's start."""

    rank: int
    edges: Int64
    """(n + 1,) boundaries of the ledger's pieces."""
    codes: Int8
    """(n,) index into `pieces.CAUSE_TABLE` of each piece, plus `COARSE` where a piece stands for several."""
    steps: tuple[tuple[int, int, int], ...]
    """(number, start, end)."""
    lanes: tuple[Lane, ...]
    streams_left_out: int
    pending: tuple[PendingMark, ...] = ()
    """The earliest collectives that it has not finished, where the job stands still."""

    @property
    def exact(self) -> bool:
        """Whether every piece of the ledger is as it was measured."""
        return not bool(np.any(self.codes & COARSE))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveKind:
    """Collectives of one communicator and op; ``seqs`` has an entry for each."""

    op: str
    communicator: str | None
    ranks: tuple[int, ...]
    seqs: Int64
    """Ordinal among all collectives of the communicator in these captures, by when they end."""
    bus_factor: float | None
    """busbw over algbw; None where neither is known."""
    peak_gbps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding is proved, on the scene's clock."""

    rule: str
    title: str
    rank: int
    start: int
    end: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """What the timeline shows, and what it leaves out."""

    origin_ns: int | None
    """Instant 0 on the first rank's clock; None where the ranks share none."""
    span_ns: int
    aligned: bool
    """Whether all ranks are on one clock; otherwise each starts at its own step."""
    step: int | None
    """The median step, which is shown first; None without steps."""
    focus: tuple[int, int]
    """The window that is shown first."""
    steady: tuple[int, ...]
    cut_off: tuple[int, ...]
    ranks: tuple[RankScene, ...]
    ranks_left_out: int
    names: tuple[str, ...]
    modules: tuple[str, ...]
    phases: tuple[tuple[int, ...], tuple[int, ...]]
    """(starts, index into `PHASES` or NONE) of the first rank's phases; each lasts until the next."""
    collectives: tuple[CollectiveKind, ...]
    """Numbered from 1 through all kinds."""
    places: tuple[Place | None, ...]
    """By finding."""
    kept: Kept
    kept_host: Kept
    """The same of CUDA calls and NVTX ranges."""
    events: int
    """Events that are kept one by one."""
    events_as_occupancy: int
    stand: Stand | None = None
    """Where the job stands still; the span ends with it."""


def make_scene(
    analysis: Analysis,
    timeline: Timeline,
    detail: Detail,
    summary: Summary,
    *,
    level: HtmlDetail = HtmlDetail.AUTO,
    max_events: int = MAX_EVENTS,
) -> Scene | None:
    """Lay the job out; None where no rank has operations."""
    step = median_step(analysis)
    every, aligned = place_ranks(analysis, detail.views, detail.waits, step)
    shown = _choose([placed for placed in every if len(placed.view.ops)], summary)
    if not shown:
        return None
    spans = [placed.placed(placed.rank.start_ns, placed.rank.end_ns) for placed in shown]
    origin = min(start for start, _ in spans)
    step_ns = analysis.steady.step_time_ns if analysis.steady else None
    stand = stand_of(analysis.hang, timeline, shown, origin, step_ns)
    span = max([1, *(end - origin for _, end in spans), *([stand.end] if stand else [])])
    frame = Frame(origin=origin, span=span, modules={})
    rows = [
        rows_of(
            placed,
            [other for other in every if other.view.process is placed.view.process and other is not placed],
            vocabulary(timeline, placed.view.process.ranges),
        )
        for placed in shown
    ]
    kept, kept_host = _kept(analysis, shown, rows, level, max_events)
    kinds, numbers = _number(detail.matched, analysis.collectives, detail)
    most = _UNLIMITED if level is HtmlDetail.ALL else max(_MIN_PIECES, MAX_PIECES // len(shown))
    ranks = []
    for i, (placed, own) in enumerate(zip(shown, rows, strict=True)):
        edges, codes = limited(*tile(placed), most, placed, kept)
        ranks.append(
            RankScene(
                rank=placed.rank.rank,
                edges=placed.common(edges) - origin,
                codes=codes,
                steps=tuple((s.step, *_since(placed, origin, s.start_ns, s.end_ns)) for s in placed.rank.steps),
                lanes=lanes_of(placed, own, kept, kept_host, numbers[placed.index], frame),
                streams_left_out=own.streams_left_out,
                pending=stand.pending[i] if stand else (),
            )
        )
    names, ranks = _with_names(ranks, timeline)
    events = sum(len(lane.start) for rank in ranks for lane in rank.lanes)
    return Scene(
        origin_ns=origin if aligned else None,
        span_ns=frame.span,
        aligned=aligned,
        step=step,
        focus=_focus(ranks, step, frame.span) if stand is None else (stand.view, stand.end),
        steady=analysis.steady.steps if analysis.steady else (),
        cut_off=analysis.steady.cut_off if analysis.steady else (),
        ranks=tuple(ranks),
        ranks_left_out=len(analysis.ranks) - len(shown),
        names=names,
        modules=tuple(frame.modules),
        phases=_phases(shown[0], origin),
        collectives=kinds,
        places=tuple(_place(finding, shown, origin, stand) for finding in analysis.findings),
        kept=kept,
        kept_host=kept_host,
        events=events,
        events_as_occupancy=sum(lane.count for rank in ranks for lane in rank.lanes) - events,
        stand=stand,
    )


def _choose(placed: Sequence[PlacedRank], summary: Summary) -> list[PlacedRank]:
    """Return the ranks to show: all, or those with a bar first and then in order."""
    barred = {bar.rank for bar in summary.bars[:BARS_SHOWN]}
    first = sorted(placed, key=lambda each: (each.rank.rank not in barred, each.rank.rank))[:MAX_RANKS]
    return sorted(first, key=lambda each: each.rank.rank)


def _since(placed: PlacedRank, origin: int, start: int, end: int) -> tuple[int, int]:
    first, last = placed.placed(start, end)
    return first - origin, last - origin


def _kept(
    analysis: Analysis, shown: Sequence[PlacedRank], rows: Sequence[Rows], level: HtmlDetail, max_events: int
) -> tuple[Kept, Kept]:
    """What is kept one by one of operations, and of calls and ranges."""
    if level is HtmlDetail.ALL:
        return Kept(whole=True), Kept(whole=True)
    if level is HtmlDetail.SUMMARY:
        return NOTHING, NOTHING
    steps = telling_steps(analysis)
    columns: list[list[tuple[PlacedRank, Int64, Int64]]] = [[], []]
    for placed, own in zip(shown, rows, strict=True):
        ops, calls, ranges = placed.view.ops, placed.view.process.calls, placed.view.process.ranges
        columns[0].append((placed, ops.start[own.ops], ops.end[own.ops]))
        columns[1].append((placed, calls.start[own.calls], calls.end[own.calls]))
        columns[1].append((placed, ranges.start[own.ranges], ranges.end[own.ranges]))

    def choose(of: list[tuple[PlacedRank, Int64, Int64]], budget: int) -> Kept:
        def count(step: int) -> int:
            return sum(int(Kept(steps=(step,)).mask(start, end, p.windows).sum()) for p, start, end in of)

        def lengths() -> Int64:
            return np.concatenate([end - start for _, start, end in of])

        return keep(sum(len(start) for _, start, _ in of), budget, steps, count, lengths)

    kept = choose(columns[0], max_events)
    used = sum(int(kept.mask(start, end, placed.windows).sum()) for placed, start, end in columns[0])
    return kept, choose(columns[1], max_events - used)


def _number(
    matched: Sequence[Matched], collectives: Sequence[Collective], detail: Detail
) -> tuple[tuple[CollectiveKind, ...], list[Int64]]:
    """(the kinds of collectives; for each rank the number of each of its `RankCollectives`, from 1; 0: unmatched)."""
    numbers = [np.zeros(len(view.collectives.row), np.int64) for view in detail.views]
    seqs = [np.zeros(kind.index.shape[1], np.int64) for kind in matched]
    for communicator in {kind.communicator for kind in matched}:
        own = [i for i, kind in enumerate(matched) if kind.communicator == communicator]
        order = np.argsort(np.concatenate([matched[i].end for i in own]), kind="stable")
        ordinal = np.empty(len(order), np.int64)
        ordinal[order] = np.arange(len(order))
        for i, part in zip(own, np.split(ordinal, np.cumsum([len(seqs[i]) for i in own])[:-1]), strict=True):
            seqs[i] = part
    kinds, first = [], 1
    for kind, seq in zip(matched, seqs, strict=True):
        for row, member in enumerate(kind.members):
            have = np.flatnonzero(kind.index[row] != NONE)
            numbers[member][kind.index[row, have]] = first + have
        first += len(seq)
        figures = next((c for c in collectives if (c.communicator, c.op) == (kind.communicator, kind.op)), None)
        known = figures is not None and figures.algbw_gbps and figures.busbw_gbps
        kinds.append(
            CollectiveKind(
                op=kind.op,
                communicator=kind.communicator,
                ranks=tuple(detail.views[member].rank for member in kind.members),
                seqs=seq,
                bus_factor=figures.busbw_gbps / figures.algbw_gbps if known else None,  # type: ignore[union-attr, operator]
                peak_gbps=next((size.peak_gbps for size in figures.by_size if size.peak_gbps), None)
                if figures
                else None,
            )
        )
    return tuple(kinds), numbers


def _with_names(ranks: Sequence[RankScene], timeline: Timeline) -> tuple[tuple[str, ...], list[RankScene]]:
    """The names that any event has, and the same ranks with their lanes' names as positions among these."""
    lanes = [lane for rank in ranks for lane in rank.lanes]
    used = np.unique(np.concatenate([np.empty(0, np.int64), *(np.unique(lane.columns["name"]) for lane in lanes)]))

    def renamed(lane: Lane) -> Lane:
        return replace(lane, columns={**lane.columns, "name": np.searchsorted(used, lane.columns["name"])})

    found = [replace(rank, lanes=tuple(map(renamed, rank.lanes))) for rank in ranks]
    return tuple(timeline.names[i] if i != NONE else "" for i in used.tolist()), found


def _focus(ranks: Sequence[RankScene], step: int | None, span: int) -> tuple[int, int]:
    windows = [(start, end) for rank in ranks for number, start, end in rank.steps if number == step]
    return (min(s for s, _ in windows), max(e for _, e in windows)) if windows else (0, span)


def _phases(placed: PlacedRank, origin: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The phase of an instant is that of the main stream's latest kernel."""
    ops, phase = placed.view.ops, placed.view.labels.phase
    main = np.flatnonzero((ops.stream == placed.view.main_stream) & (ops.kind == Kind.COMPUTE))
    if len(main) == 0 or np.all(phase[main] == NONE):
        return (), ()
    heads = np.flatnonzero(np.append(True, np.diff(phase[main]) != 0))
    starts = placed.common(ops.start[main[heads]]) - origin
    return tuple(starts.tolist()), tuple(phase[main[heads]].tolist())


def _place(finding: Finding, shown: Sequence[PlacedRank], origin: int, stand: Stand | None) -> Place | None:
    span = finding.span
    if stand is not None and span is None and finding.rule.startswith(HANG_RULES):
        return Place(
            rule=finding.rule,
            title=finding.title,
            rank=next((each.rank.rank for each in shown if each.rank.rank in finding.ranks), shown[0].rank.rank),
            start=stand.view,
            end=stand.end,
            cause=STOOD_STILL,
        )
    placed = next((each for each in shown if span and each.rank.rank == span.rank), None)
    if span is None or placed is None:
        return None
    start, end = _since(placed, origin, span.start_ns, span.end_ns)
    return Place(rule=finding.rule, title=finding.title, rank=span.rank, start=start, end=end, cause=span.cause)
