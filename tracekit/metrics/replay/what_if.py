"""What a step would take if something were different: which changes there are, and their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from tracekit.metrics.replay.changes import Changed, Twins, balanced, gap_twins, kernel_twins, no_straggler
from tracekit.metrics.replay.replay import Steps
from tracekit.results import Prediction, Replay, Straggler

NO_STRAGGLER = "straggler=off"


class WhatIf:
    """Changes of the replayed steps of one job."""

    def __init__(self, steps: Steps, ranks: Sequence[int], stragglers: Sequence[Straggler]) -> None:
        """``ranks`` are the numbers of the ranks in the order of the analysis."""
        self._steps = steps
        self._ranks = ranks
        self._stragglers = stragglers
        self._changes: Mapping[str, Callable[[Changed], Changed]] = {NO_STRAGGLER: self._no_straggler}

    @cached_property
    def _kernels(self) -> Twins:
        return kernel_twins(self._steps.graph, self._steps.launched)

    @cached_property
    def _gaps(self) -> Twins:
        return gap_twins(self._steps.graph, self._steps.launched)

    def predict(self, wanted: Iterable[Sequence[str]]) -> tuple[Prediction, ...]:
        """The step time with each set of changes made together."""
        graph = self._steps.graph
        made: dict[str, Changed] = {}
        for together in wanted:
            changed = graph.duration, graph.lag
            for change in together:
                changed = self._changes[change](changed)
            made[",".join(together)] = changed
        now = self._steps.step_ns
        return tuple(
            Prediction(change=change, step_time_ns=round(ns), gain_ns=round(now) - round(ns))
            for change, ns in self._steps.predict(made).items()
        )

    def _no_straggler(self, now: Changed) -> Changed:
        persistent = [self._ranks.index(s.rank) for s in self._stragglers if s.verdict == "persistent"]
        even = any(s.cause == "sequence_length" for s in self._stragglers)
        if persistent and not even:
            return no_straggler(now, self._kernels, self._gaps, persistent)
        return balanced(now, self._kernels, self._gaps)


def replay_result(steps: Steps | str, predictions: tuple[Prediction, ...]) -> Replay:
    """The result, or why there is none."""
    if isinstance(steps, str):
        return Replay(steps=(), step_time_ns=None, unexplained_share=None, reason=steps, predictions=())
    return Replay(
        steps=steps.numbers,
        step_time_ns=round(steps.step_ns),
        unexplained_share=steps.unexplained,
        reason=None,
        predictions=predictions,
    )
