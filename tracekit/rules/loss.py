"""Lost time that a rule is about: how much, on which ranks, in which steps; claimed in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.activity import Doing
from tracekit.metrics.phases import PHASES
from tracekit.metrics.views import RankView
from tracekit.results import Evidence, Finding
from tracekit.rules.base import Context
from tracekit.timeline import NONE

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """The bubbles of the steady steps that a rule picks."""

    context: Context
    views: tuple[RankView, ...]
    """The ranks that have any."""
    rows: tuple[NDArray[np.intp], ...]
    """Rows of their bubbles, by view."""
    cost_ns: int
    """What no other finding has claimed of them; a step, mean over ranks."""

    @classmethod
    def of(cls, context: Context, pick: Callable[[RankView], Bool]) -> Loss:
        """Weigh what ``pick`` returns for each rank: an (n,) mask of its bubbles."""
        masks = {view.rank: pick(view) & context.ledger.counted(view) for view in context.views}
        having = tuple(view for view in context.views if masks[view.rank].any())
        return cls(
            context=context,
            views=having,
            rows=tuple(np.flatnonzero(masks[view.rank]) for view in having),
            cost_ns=context.ledger.left(lambda view: masks[view.rank]),
        )

    @property
    def share(self) -> float:
        """Cost over the step time."""
        wall = self.context.step.wall_ns
        return self.cost_ns / wall if wall else 0.0

    @property
    def percent(self) -> str:
        """The share in words: ``9 % of the step``."""
        return f"{100 * self.share:.0f} % of the {'step' if self.context.steady else 'capture'}"

    @property
    def windows(self) -> int:
        """Steps, counted on each rank; without steps each rank counts as one."""
        return self.context.ledger.windows

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have any."""
        return tuple(view.rank for view in self.views)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have any, in the order of the steady ones."""
        found = {
            n
            for view, rows in zip(self.views, self.rows, strict=True)
            for n in np.unique(view.bubbles.step[rows]).tolist()
        }
        return tuple(step for step in self.context.steps if step in found)

    def lengths(self) -> Int64:
        """ns of each bubble, over all ranks."""
        parts = [view.bubbles.ns[rows] for view, rows in zip(self.views, self.rows, strict=True)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def report(
        self, rule: str, title: str, evidence: Iterable[Evidence], fix: str, *, at_most_ns: int | None = None
    ) -> Finding:
        """The finding; from now on its time is claimed."""
        chosen = dict(zip(self.ranks, self.rows, strict=True))

        def mask(view: RankView) -> Bool:
            picked = np.zeros(len(view.bubbles), np.bool_)
            picked[chosen.get(view.rank, np.empty(0, np.intp))] = True
            return picked

        cost = self.context.ledger.claim(mask, at_most_ns=at_most_ns)
        return Finding(
            rule=rule,
            severity=self.context.severity(cost),
            title=title,
            ranks=self.ranks,
            steps=self.steps,
            cost_ns=cost,
            gain_ns=None,
            evidence=tuple(evidence),
            fix=fix,
        )


def thread_of(view: RankView, op: Int64) -> Int64:
    """Thread that launched each operation; NONE where either is not known."""
    call = np.where(op != NONE, view.ops.call[np.maximum(op, 0)], NONE)
    threads = view.process.calls.thread
    return np.where(call != NONE, threads[np.maximum(call, 0)], NONE) if len(threads) else call


def blocking_calls(view: RankView, rows: NDArray[np.intp], doing: Doing) -> Int64:
    """The call that the launching thread was last in, in each idle bubble that such a call is the cause of; or NONE."""
    thread, t = thread_of(view, view.bubbles.after[rows]), view.bubbles.end[rows]
    answer = np.full(len(rows), NONE, np.int64)
    for each in np.unique(thread[thread != NONE]).tolist():
        answer[thread == each] = view.activity.call_of(each, t[thread == each], doing)
    return answer


class Weights:
    """Time by name, over ranks."""

    def __init__(self) -> None:
        self._ns: dict[str | None, int] = {}

    def add(self, codes: Int64, ns: Int64, name: Callable[[int], str | None]) -> None:
        """Add time by code; ``name`` is asked once for each distinct code but NONE."""
        distinct, inverse = np.unique(codes, return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, inverse, ns)
        for code, amount in zip(distinct.tolist(), sums.tolist(), strict=True):
            key = name(code) if code != NONE else None
            self._ns[key] = self._ns.get(key, 0) + amount

    def add_one(self, key: str | None, ns: int) -> None:
        """Add time to one name."""
        self._ns[key] = self._ns.get(key, 0) + ns

    def most(self) -> tuple[str | None, int]:
        """(the name with most time, None for what has no name; its time)."""
        name = self.heaviest()
        return name, self._ns.get(name, 0)

    @property
    def others(self) -> int:
        """How many names there are besides the heaviest."""
        return max(len(self._ns) - 1, 0)

    def share(self, key: str | None) -> float:
        """A name's share of all time."""
        whole = sum(self._ns.values())
        return self._ns.get(key, 0) / whole if whole else 0.0

    def heaviest(self) -> str | None:
        """The name with most time; None where that is what has no name, or there is no time."""
        return max(self._ns, key=lambda key: (self._ns[key], key or ""), default=None)


def add_places(weights: Weights, view: RankView, op: Int64, ns: Int64) -> None:
    """Add time by module, else by phase, that each operation was launched in."""
    labels, known = view.labels, np.maximum(op, 0)
    module = np.where(op != NONE, labels.module[known], NONE)
    phase = np.where(op != NONE, labels.phase[known], NONE)
    code = np.where(module != NONE, module, np.where(phase != NONE, len(labels.modules) + phase, NONE))
    names = (*labels.modules, *PHASES)
    weights.add(code, ns, lambda i: names[i])


def milliseconds(ns: float) -> float:
    """For evidence: ms to the µs."""
    return round(ns / 1e6, 3)
