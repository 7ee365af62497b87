"""Which bubbles are accounted for: no nanosecond is claimed by two findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.bubbles import CAUSES, Lost
from tracekit.metrics.views import RankView
from tracekit.results import Account, Rank, Span, Steady
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Pick = Callable[[RankView], Bool]
"""Which of a rank's bubbles: an (n,) mask."""


class Ledger:
    """Bubbles of the steady steps (without steps: of everything) and what of them no finding has claimed yet.

    Rules run in one order; who comes first has the time. Sums are ns a step, mean over ranks, rounded down.
    """

    def __init__(self, views: Sequence[RankView], ranks: Sequence[Rank], step: Account, steady: Steady | None) -> None:
        self._views = views
        self._step = step
        self._counted = [
            np.isin(view.bubbles.step, steady.steps) if steady else np.ones(len(view.bubbles), np.bool_)
            for view in views
        ]
        self._left = [np.where(counted, v.bubbles.ns, 0) for v, counted in zip(views, self._counted, strict=True)]
        kept = frozenset(steady.steps if steady else ())
        self._steps = [sum(step.step in kept for step in rank.steps) if steady else 1 for rank in ranks]
        self._claimed = dict.fromkeys(Lost, 0)
        self._last: Span | None = None

    def claim(self, pick: Pick, at_most_ns: int | None = None) -> int:
        """Claim what is left of the picked bubbles, or at most so much a step, taken evenly; ns a step."""
        masks = [pick(view) for view in self._views]
        self._last = self._longest(masks)
        whole = self._sum(masks)
        share = 1.0 if at_most_ns is None or sum(whole.values()) <= at_most_ns else at_most_ns / sum(whole.values())
        claimed = 0
        for lost, ns in whole.items():
            part = ns if share == 1.0 else int(ns * share)
            self._claimed[lost] += part
            claimed += part
        for left, mask in zip(self._left, masks, strict=True):
            left[mask] -= np.ceil(left[mask] * share).astype(np.int64)
        return claimed

    def claimed_at(self) -> Span | None:
        """The longest bubble of what was claimed since the last time that this was asked; None where nothing was."""
        span, self._last = self._last, None
        return span

    def _longest(self, masks: Sequence[Bool]) -> Span | None:
        """The longest of the picked bubbles that nobody has claimed a part of."""
        best: tuple[int, RankView, int] | None = None
        for view, left, mask in zip(self._views, self._left, masks, strict=True):
            free = np.where(mask & (left == view.bubbles.ns), left, 0)
            row = int(np.argmax(free)) if len(free) else 0
            if len(free) and free[row] > (best[0] if best else 0):
                best = int(free[row]), view, row
        if best is None:
            return None
        bubbles, row = best[1].bubbles, best[2]
        step = int(bubbles.step[row])
        return Span(
            rank=best[1].rank,
            step=step if step != NONE else None,
            start_ns=int(bubbles.start[row]),
            end_ns=int(bubbles.end[row]),
            cause=CAUSES[Lost(int(bubbles.lost[row]))][int(bubbles.cause[row])],
        )

    def left(self, pick: Pick) -> int:
        """What is left of the picked bubbles, ns a step."""
        return sum(self._sum([pick(view) for view in self._views]).values())

    def free(self, view: RankView) -> Bool:
        """(n,) mask of a rank's bubbles that no finding has claimed whole."""
        result: Bool = self._left[self._views.index(view)] > 0
        return result

    def unclaimed(self, lost: Lost) -> int:
        """What is left of one term of the account, ns a step: the term less all claims on it."""
        terms = {
            Lost.EXPOSED_COMM: self._step.exposed_comm_ns,
            Lost.EXPOSED_COPY: self._step.exposed_copy_ns,
            Lost.IDLE: self._step.idle_ns,
        }
        return terms[lost] - self._claimed[lost]

    @property
    def windows(self) -> int:
        """Over how many steps sums are spread: those of each rank; without steps a rank counts as one."""
        return max(sum(self._steps), 1)

    def steps_of(self, view: RankView) -> int:
        """How many of these are a rank's own."""
        return self._steps[self._views.index(view)]

    def counted(self, view: RankView) -> Bool:
        """(n,) mask of a rank's bubbles that lie in the steady steps."""
        return self._counted[self._views.index(view)]

    def _sum(self, masks: Sequence[Bool]) -> dict[Lost, int]:
        sums = dict.fromkeys(Lost, 0)
        for view, left, mask in zip(self._views, self._left, masks, strict=True):
            for lost in Lost:
                sums[lost] += int(left[mask & (view.bubbles.lost == lost)].sum())
        return {lost: ns // self.windows for lost, ns in sums.items()}
