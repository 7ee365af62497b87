"""What a step would take if something were different: which changes there are, and their predictions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tracekit.config import Thresholds
from tracekit.errors import UsageError
from tracekit.intervals import Cover
from tracekit.metrics.replay.apart import collectives_apart, offload_apart
from tracekit.metrics.replay.changes import (
    Changed,
    balanced,
    deferred_reductions,
    even_stages,
    faster_network,
    host_on_time,
    many_connections,
    no_contention,
    no_pageable_copies,
    no_straggler,
    no_synchronisation,
    separate_communicators,
    without_host_time,
)
from tracekit.metrics.replay.graph import Graph
from tracekit.metrics.replay.host_changes import in_graphs, no_pauses, saved_beside
from tracekit.metrics.replay.longest_path import CycleError, Order
from tracekit.metrics.replay.pieces import gathers_under_forward, last_reduction_in_pieces
from tracekit.metrics.replay.prefetch import prefetched
from tracekit.metrics.replay.replay import Steps
from tracekit.metrics.replay.transfer_changes import (
    coalesced,
    even_links,
    first_gather_small,
    first_gather_split,
    last_reduction_small,
    steady_transfers,
)
from tracekit.metrics.replay.twins import Twins, gap_twins, gaps_of_steps, kernel_twins
from tracekit.results import Prediction, Replay, Straggler
from tracekit.timeline import NONE

STRAGGLER_OFF = "straggler=off"
PREFETCH_ON = "prefetch=on"
PREFETCH_FORWARD = "prefetch=forward"
PREFETCH_BACKWARD = "prefetch=backward"
COLLECTIVES_APART = "collectives=apart"
REDUCTION_IN_PIECES = "last-reduction=pieces"
GATHERS_UNDER_FORWARD = "gathers=under-forward"
OFFLOAD_APART = "offload=apart"
HOST_ON_TIME = "host=on-time"
CONTENTION_OFF = "contention=off"
SYNC_OFF = "sync=off"
DATA_ON_TIME = "data=on-time"
ALLOCATOR_OFF = "allocator=off"
COMMUNICATORS_SEPARATE = "communicators=separate"
CONNECTIONS_MANY = "connections=many"
PAGEABLE_OFF = "pageable=off"
REDUCTIONS_DEFERRED = "reductions=deferred"
GRAPHS_ON = "graphs=on"
PAUSES_OFF = "pauses=off"
SAVES_BESIDE = "saves=beside"
COLLECTIVES_COALESCED = "collectives=coalesced"
FIRST_GATHER_SPLIT = "first-gather=split"
FIRST_GATHER_SMALL = "first-gather=small"
REDUCTION_SMALL = "last-reduction=small"
LINKS_EVEN = "links=even"
STAGES_EVEN = "stages=even"
TRANSFERS_STEADY = "transfers=steady"
REWIRING: Mapping[str, Callable[[Graph, Thresholds], Graph | None]] = {
    PREFETCH_ON: lambda graph, _: prefetched(graph, forward=True, backward=True),
    PREFETCH_FORWARD: lambda graph, _: prefetched(graph, forward=True, backward=False),
    PREFETCH_BACKWARD: lambda graph, _: prefetched(graph, forward=False, backward=True),
    COLLECTIVES_APART: lambda graph, _: collectives_apart(graph),
    REDUCTION_IN_PIECES: last_reduction_in_pieces,
    GATHERS_UNDER_FORWARD: lambda graph, _: gathers_under_forward(graph),
    OFFLOAD_APART: lambda graph, _: offload_apart(graph),
}
"""Changes of what waits for what; None where there is nothing to change."""
CHANGES = (
    STRAGGLER_OFF,
    *REWIRING,
    HOST_ON_TIME,
    CONTENTION_OFF,
    SYNC_OFF,
    DATA_ON_TIME,
    ALLOCATOR_OFF,
    COMMUNICATORS_SEPARATE,
    CONNECTIONS_MANY,
    PAGEABLE_OFF,
    REDUCTIONS_DEFERRED,
    GRAPHS_ON,
    PAUSES_OFF,
    SAVES_BESIDE,
    COLLECTIVES_COALESCED,
    FIRST_GATHER_SPLIT,
    FIRST_GATHER_SMALL,
    REDUCTION_SMALL,
    LINKS_EVEN,
    STAGES_EVEN,
    TRANSFERS_STEADY,
)
"""The changes that can be made, besides ``bandwidth=2x``, with any factor."""
BANDWIDTH = re.compile(r"bandwidth=(\d{1,4}(?:\.\d{1,3})?)x")


def parse_changes(text: str) -> tuple[str, ...]:
    """The changes in a list such as ``bandwidth=2x,straggler=off``. Raises `UsageError` for one that cannot be made."""
    changes = tuple(part.strip() for part in text.split(","))
    for change in changes:
        factor = BANDWIDTH.fullmatch(change)
        if float(factor[1]) == 0 if factor else change not in CHANGES:
            raise UsageError(
                f"--what-if: {change!r} is not a change that can be replayed",
                hint=f"There are bandwidth=2x (any factor), {', '.join(CHANGES)}.",
            )
    return changes


class WhatIf:
    """Changes of the replayed steps of one job."""

    def __init__(
        self, steps: Steps, ranks: Sequence[int], stragglers: Sequence[Straggler], thresholds: Thresholds
    ) -> None:
        """``ranks`` are the numbers of the ranks in the order of the analysis."""
        self._steps = steps
        self._ranks = ranks
        self._stragglers = stragglers
        self._thresholds = thresholds
        self._by_wiring: dict[tuple[str, ...], WhatIf | None] = {}
        graph = steps.graph
        self._changes: Mapping[str, Callable[[Changed], Changed | None]] = {
            STRAGGLER_OFF: self._straggler_off,
            HOST_ON_TIME: lambda now: host_on_time(now, graph),
            CONTENTION_OFF: lambda now: no_contention(now, graph, thresholds),
            SYNC_OFF: lambda now: no_synchronisation(now, graph, thresholds),
            DATA_ON_TIME: lambda now: without_host_time(now, graph, _fetching(graph)),
            ALLOCATOR_OFF: lambda now: without_host_time(now, graph, [work.allocating for work in graph.work]),
            COMMUNICATORS_SEPARATE: lambda now: separate_communicators(now, graph),
            CONNECTIONS_MANY: lambda now: many_connections(now, graph),
            REDUCTIONS_DEFERRED: lambda now: deferred_reductions(now, graph),
            GRAPHS_ON: lambda now: in_graphs(now, graph, thresholds),
            PAUSES_OFF: lambda now: no_pauses(now, self._gaps_of_steps, steps.starts.shape[1], thresholds),
            SAVES_BESIDE: lambda now: saved_beside(now, graph, thresholds),
            COLLECTIVES_COALESCED: lambda now: coalesced(now, graph, thresholds),
            FIRST_GATHER_SPLIT: lambda now: first_gather_split(now, graph, thresholds),
            FIRST_GATHER_SMALL: lambda now: first_gather_small(now, graph, thresholds),
            REDUCTION_SMALL: lambda now: last_reduction_small(now, graph, thresholds),
            TRANSFERS_STEADY: lambda now: steady_transfers(now, graph),
            STAGES_EVEN: self._stages_even,
            LINKS_EVEN: lambda now: even_links(now, graph, thresholds),
            PAGEABLE_OFF: lambda now: no_pageable_copies(now, graph, thresholds),
        }

    def predict(self, wanted: Iterable[Sequence[str]]) -> tuple[Prediction, ...]:
        """The step time with each set of changes made together; without those that cannot be replayed."""
        by_wiring: dict[tuple[str, ...], dict[str, Changed]] = {}
        for together in wanted:
            wiring = tuple(change for change in REWIRING if change in together)
            what_if = self._rewired(wiring)
            if what_if is None:
                continue
            changed: Changed | None = (what_if._steps.graph.duration, what_if._steps.graph.lag)
            for change in together:
                if changed is not None and change not in REWIRING:
                    changed = what_if._change(change, changed)
            if changed is not None:
                by_wiring.setdefault(wiring, {})[",".join(together)] = changed
        now = round(self._steps.step_ns)
        return tuple(
            Prediction(change=change, step_time_ns=round(ns), gain_ns=now - round(ns))
            for wiring, made in by_wiring.items()
            if (what_if := self._rewired(wiring)) is not None
            for change, ns in what_if._steps.predict(made).items()
        )

    def _rewired(self, wiring: tuple[str, ...]) -> WhatIf | None:
        """The same steps with other dependencies; None where they cannot be replayed so."""
        if not wiring:
            return self
        if wiring not in self._by_wiring:
            self._by_wiring[wiring] = self._rewire(wiring)
        return self._by_wiring[wiring]

    def _rewire(self, wiring: tuple[str, ...]) -> WhatIf | None:
        graph: Graph | None = self._steps.graph
        for change in wiring:
            graph = REWIRING[change](graph, self._thresholds) if graph is not None else None
        if graph is None:
            return None
        try:
            order = Order.of(len(graph.kind), graph.source, graph.target)
        except CycleError:
            return None
        steps = replace(self._steps, graph=graph, order=order)
        return WhatIf(steps, self._ranks, self._stragglers, self._thresholds)

    def _change(self, change: str, now: Changed) -> Changed | None:
        factor = BANDWIDTH.fullmatch(change)
        if factor:
            return faster_network(now, self._steps.graph, float(factor[1]), self._thresholds)
        return self._changes[change](now)

    def _straggler_off(self, now: Changed) -> Changed | None:
        if self._unmatched_share() > self._thresholds.replay_error_share:
            return None  # who waits for whom in them is not known
        if self._launched_share() < self._thresholds.launch_rows_share:
            return None  # nor what would come earlier
        persistent = [self._ranks.index(s.rank) for s in self._stragglers if s.verdict == "persistent"]
        even = any(s.cause == "sequence_length" for s in self._stragglers)
        if persistent and not even:
            return no_straggler(now, self._kernels, self._gaps, persistent)
        return balanced(now, self._kernels, self._gaps)

    def _stages_even(self, now: Changed) -> Changed | None:
        if self._unmatched_share() > self._thresholds.replay_error_share:
            return None
        return even_stages(now, self._steps.graph)

    def _launched_share(self) -> float:
        """Share of the replayed operations whose launch is known."""
        works = self._steps.graph.work
        return sum(int((work.call != NONE).sum()) for work in works) / max(sum(len(work) for work in works), 1)

    def _unmatched_share(self) -> float:
        """Share of the steps in sends, receives and all-to-alls that are not matched across ranks, mean over ranks."""
        graph, alone = self._steps.graph, 0.0
        for work, node, end in zip(graph.work, graph.op_node, graph.end_node, strict=True):
            alone += float(graph.duration[node[work.exchange & (node != NONE) & (node == end)]].sum())
        return alone / max(float(self._steps.walls.sum()), 1.0)

    @cached_property
    def _kernels(self) -> Twins:
        return kernel_twins(self._steps.graph, self._steps.launched, self._steps.begun)

    @cached_property
    def _gaps_of_steps(self) -> Twins:
        return gaps_of_steps(self._steps.graph, self._steps.launched)

    @cached_property
    def _gaps(self) -> Twins:
        return gap_twins(self._steps.graph, self._steps.launched)


def _fetching(graph: Graph) -> list[Cover]:
    """When each host loads data: in ranges that say so; where there are none, in long pauses from step to step."""
    told = any(len(work.loading.start) for work in graph.work)
    return [work.loading if told else work.between_steps for work in graph.work]


def replay_result(
    steps: Steps | str,
    predictions: tuple[Prediction, ...] = (),
    what_if: tuple[Prediction, ...] = (),
    together: Prediction | None = None,
    asked: Sequence[Sequence[str]] = (),
) -> Replay:
    """The result, or why there is none; ``asked`` are the changes that ``what_if`` answers, as far as they apply."""
    if isinstance(steps, str):
        return Replay(steps=(), step_time_ns=None, unexplained_share=None, reason=steps, predictions=())
    return Replay(
        steps=steps.numbers,
        step_time_ns=round(steps.step_ns),
        unexplained_share=steps.unexplained,
        reason=None,
        predictions=predictions,
        what_if=what_if,
        together=together,
        not_made=tuple(change for change in map(",".join, asked) if change not in {row.change for row in what_if}),
    )
