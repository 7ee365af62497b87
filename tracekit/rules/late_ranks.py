"""TK210, TK211: waiting for ranks that were not captured, and for ranks of which the captures do not show why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import Lost
from tracekit.metrics.views import RankView
from tracekit.results import Confidence, Evidence, Finding, SkippedRule, Straggler
from tracekit.rules.base import Context
from tracekit.rules.network import NO_SIZES, WITH_SIZES
from tracekit.rules.stragglers import ALL_CAPTURES, ranks_in_words, waiting
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

FEWEST_ALIKE = 4
"""Collectives of one size of which it can be told what is usual."""


class LikelyWaiting:
    """TK210: collectives that take far longer than others of their size, while ranks are missing."""

    code = "TK210"
    title = "Likely waiting for ranks that were not captured"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Holds each collective against those of the same op and size on the same rank."""
        if context.waits_told and context.world.complete:
            return
        communicates = any(len(view.collectives.row) for view in context.views)
        if communicates and not any(np.any(view.collectives.full_bytes != NONE) for view in context.views):
            reason = f"wait or transfer: unknown from {_who_is_here(context)}, with {NO_SIZES}"
            yield SkippedRule(rule=self.code, reason=reason, capture_with=f"{ALL_CAPTURES}; sizes: {WITH_SIZES}")
            return
        long = {view.rank: _long(view, context) for view in context.views}
        limit = sum(_excess(view, *long[view.rank], context) for view in context.views) // context.ledger.windows
        if not limit or limit < context.thresholds.warning_share * context.step.wall_ns:
            return
        cost = context.ledger.claim(lambda view: _of_rows(view, long[view.rank][0]), at_most_ns=limit)
        usual, longest, count = _figures(context, long)
        yield Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"Collectives take up to {longest / usual:.0f} x what others of their size take: likely waiting for "
            "ranks that were not captured",
            ranks=tuple(rank for rank, (rows, _) in long.items() if len(rows)),
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(
                Evidence(metric="longest", value=round(longest / 1e6, 3), unit="ms"),
                Evidence(metric="usual for its op and size", value=round(usual / 1e6, 3), unit="ms"),
                Evidence(
                    metric="collectives that take so much longer",
                    value=count,
                    unit="collectives",
                    threshold=context.thresholds.likely_wait_ratio,
                ),
            ),
            fix=(
                f"Wait or transfer: unknown from {_who_is_here(context)}. Capture all ranks over the same steps and "
                "analyze them together: who arrives late is then named."
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason=f"wait or transfer: unknown from {_who_is_here(context)}",
        )


def _who_is_here(context: Context) -> str:
    count = len(context.ranks)
    if count == 1:
        return "one rank"
    return f"{count} of {context.world.size} ranks" if context.world.size else f"{count} ranks that cannot be matched"


def _long(view: RankView, context: Context) -> tuple[Int64, Int64]:
    """(rows of collectives that take far longer than others of their op and size, what is usual for each, ns)."""
    found = view.collectives
    rows, usual = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    known = found.full_bytes != NONE
    for kind in np.unique(np.stack([found.of[known], found.full_bytes[known]]), axis=1).T:
        mine = np.flatnonzero((found.of == kind[0]) & (found.full_bytes == kind[1]))
        typical = float(np.percentile(found.duration[mine], 10))
        long = mine[found.duration[mine] >= context.thresholds.likely_wait_ratio * typical]
        if len(mine) >= FEWEST_ALIKE and typical > 0:
            rows.append(found.row[long])
            usual.append(np.full(len(long), round(typical)))
    return np.concatenate(rows), np.concatenate(usual)


def _of_rows(view: RankView, rows: Int64) -> Bool:
    """The bubbles in which these collectives are exposed, but for waits that are known."""
    bubbles = view.bubbles
    told = bubbles.of_cause(Lost.EXPOSED_COMM, "peer_wait", "start_up")
    result: Bool = (bubbles.lost == Lost.EXPOSED_COMM) & ~told & np.isin(bubbles.op, rows)
    return result


def _excess(view: RankView, rows: Int64, usual: Int64, context: Context) -> int:
    """Exposed time of the long collectives beyond what is usual, in the steps that count, ns."""
    picked = _of_rows(view, rows) & context.ledger.counted(view)
    order = np.argsort(rows)
    exposed = np.zeros(len(rows), np.int64)
    place = order[np.searchsorted(rows[order], view.bubbles.op[picked])]
    np.add.at(exposed, place, view.bubbles.ns[picked])
    beyond = view.ops.end[rows] - view.ops.start[rows] - usual
    return int(np.minimum(exposed, beyond).sum())


def _figures(context: Context, long: dict[int, tuple[Int64, Int64]]) -> tuple[int, int, int]:
    """(what is usual where the longest is, the longest, how many), ns: of all ranks."""
    of_all = [
        (int(view.ops.end[row] - view.ops.start[row]), usual)
        for view in context.views
        for row, usual in zip(*(part.tolist() for part in long[view.rank]), strict=True)
    ]
    longest, usual = max(of_all, key=lambda pair: pair[0] / pair[1])
    return usual, longest, len(of_all)


class LateUnexplained:
    """TK211: others wait for a rank, and the captures do not show why, or not that it is always so."""

    code = "TK211"
    title = "Others wait for a rank, for reasons that the captures do not show"

    def check(self, context: Context) -> Iterable[Finding | SkippedRule]:
        """Reports undecided stragglers, and who is late at the first collective of the capture."""
        mine = [s for s in context.stragglers if s.verdict == "undecided" and s.cause not in {"stage", "link"}]
        if mine:
            yield self._undecided(context, mine)
        yield from self._at_start(context)

    def _undecided(self, context: Context, stragglers: list[Straggler]) -> Finding:
        cost = context.ledger.claim(waiting, at_most_ns=sum(s.wait_caused_ns for s in stragglers))
        who = ranks_in_words(stragglers).capitalize()
        alone = len(stragglers) == 1
        return Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"{who} {'makes' if alone else 'make'} the others wait: it is open why",
            ranks=tuple(s.rank for s in stragglers),
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(
                Evidence(
                    metric=f"share of all waiting that {'it causes' if alone else 'they cause'}",
                    value=round(sum(s.caused_share for s in stragglers), 4),
                    unit="ratio",
                    threshold=context.thresholds.persistent_share,
                ),
                Evidence(
                    metric="compute over its peers' median" if alone else "compute over their peers' median, the most",
                    value=round(max(s.compute_ratio for s in stragglers), 4),
                    unit="x",
                    threshold=context.thresholds.slow_compute_ratio,
                ),
            ),
            fix=(
                f"Look at {ranks_in_words(stragglers)} in the timeline where the others wait longest. Capture more "
                "steps, with launch rows (-t cuda,nvtx) and host activity (-t osrt), to see whether it is always so."
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="no cause shows for the whole of the lateness",
        )

    def _at_start(self, context: Context) -> Iterator[Finding]:
        late = _late_at_start(context)
        if late is None:
            return
        rank, by_ns = late
        if context.ledger.left(_starting) < context.thresholds.warning_share * context.step.wall_ns:
            return
        cost = context.ledger.claim(_starting)
        yield Finding(
            rule=self.code,
            severity=context.severity(cost),
            title=f"Rank {rank} comes to its first collective {by_ns / 1e9:.2f} s after the others, which wait for it",
            ranks=(rank,),
            steps=context.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=(Evidence(metric="the longest wait at the start", value=round(by_ns / 1e6, 3), unit="ms"),),
            fix=(
                f"Look at what rank {rank} does before its first collective that the others do not: downloads, "
                "preparing data, compiling, logging. Start the capture after the warm-up to see the steps alone."
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="it is the start of the capture, once",
        )


def _starting(view: RankView) -> Bool:
    """The bubbles of first collectives."""
    return view.bubbles.of_cause(Lost.EXPOSED_COMM, "start_up")


def _late_at_start(context: Context) -> tuple[int, int] | None:
    """(rank, by how many ns) of the one that comes last to the first collective.

    None where its capture may just have begun: it has to have run something for as long as the others waited for it.
    """
    waits = context.start_up.wait_ns
    rows = [row for row, view in enumerate(context.views) if len(view.collectives.row)]
    if context.steady is not None or len(rows) < 2 or not any(waits):
        return None
    last = min(rows, key=lambda row: waits[row])
    longest = max(waits[row] for row in rows)
    view = context.views[last]
    captured = int(view.ops.start[view.collectives.row[0]] - view.ops.start[0])
    return (view.rank, longest) if captured >= longest and waits[last] == 0 else None
