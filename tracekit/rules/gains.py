"""What mending each finding gains: which change of the replayed steps stands for its fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracekit.config import Thresholds
from tracekit.metrics.replay.replay import Steps
from tracekit.metrics.replay.what_if import (
    ALLOCATOR_OFF,
    COLLECTIVES_APART,
    COLLECTIVES_COALESCED,
    COMMUNICATORS_SEPARATE,
    CONNECTIONS_MANY,
    CONTENTION_OFF,
    DATA_ON_TIME,
    FIRST_GATHER_SMALL,
    FIRST_GATHER_SPLIT,
    GATHERS_UNDER_FORWARD,
    GRAPHS_ON,
    LINKS_EVEN,
    OFFLOAD_APART,
    PAGEABLE_OFF,
    PAUSES_OFF,
    PREFETCH_BACKWARD,
    PREFETCH_FORWARD,
    REDUCTION_IN_PIECES,
    REDUCTION_SMALL,
    REDUCTIONS_DEFERRED,
    SAVES_BESIDE,
    STRAGGLER_OFF,
    SYNC_OFF,
    WhatIf,
    replay_result,
)
from tracekit.results import Account, Finding, Replay, Straggler
from tracekit.rules import graded, ranked

CHANGES_OF_RULE: Mapping[str, tuple[str, ...]] = {
    "TK101": (PREFETCH_FORWARD,),
    "TK102": (PREFETCH_BACKWARD,),
    "TK103": (COMMUNICATORS_SEPARATE,),
    "TK104": (COLLECTIVES_APART,),
    "TK105": (COLLECTIVES_COALESCED,),
    "TK106": (FIRST_GATHER_SMALL, FIRST_GATHER_SPLIT),
    "TK107": (REDUCTION_SMALL, REDUCTION_IN_PIECES),
    "TK108": (CONNECTIONS_MANY,),
    "TK110": (GATHERS_UNDER_FORWARD,),
    "TK111": (REDUCTIONS_DEFERRED,),
    "TK112": (REDUCTIONS_DEFERRED,),
    "TK113": (CONTENTION_OFF,),
    "TK201": (STRAGGLER_OFF,),
    "TK202": (STRAGGLER_OFF,),
    "TK203": (STRAGGLER_OFF,),
    "TK204": (STRAGGLER_OFF,),
    "TK205": (STRAGGLER_OFF,),
    "TK207": (LINKS_EVEN,),
    "TK401": (GRAPHS_ON,),
    "TK402": (SYNC_OFF,),
    "TK403": (ALLOCATOR_OFF,),
    "TK404": (SYNC_OFF,),
    "TK405": (DATA_ON_TIME,),
    "TK406": (PAUSES_OFF,),
    "TK407": (SAVES_BESIDE,),
    "TK408": (PAGEABLE_OFF,),
    "TK414": (OFFLOAD_APART,),
}
"""By code of the rule, alternatives of which the best counts. Rules that no change stands for have none."""


def replayed(
    steps: Steps | str,
    ranks: Sequence[int],
    stragglers: Sequence[Straggler],
    findings: tuple[Finding, ...],
    asked: Iterable[Sequence[str]],
    step: Account,
    thresholds: Thresholds,
) -> tuple[Replay, tuple[Finding, ...]]:
    """The predictions for the fixes of findings and for what was asked; the findings ranked again, with their gains.

    ``steps`` are the replayable steps, or why there are none; ``ranks`` the numbers of their ranks;
    ``step`` is the mean step.
    """
    if isinstance(steps, str):
        return replay_result(steps), findings
    what_if = WhatIf(steps, ranks, stragglers, thresholds)
    wanted = dict.fromkeys(change for f in findings for change in CHANGES_OF_RULE.get(f.rule, ()))
    if not any(len(work.loading.start) for work in steps.graph.work):
        wanted.pop(DATA_ON_TIME, None)  # it replays ranges that load data; without any it would change nothing
    if not any(np.any(work.waits_for) for work in steps.graph.work):
        wanted.pop(SYNC_OFF, None)  # nor can waits be left out that no synchronisation record tells of
    predictions = what_if.predict([(change,) for change in wanted])
    # What cannot be replayed gains nothing known.
    gains = {prediction.change: max(prediction.gain_ns, 0) for prediction in predictions}
    best = {f.rule: _best(CHANGES_OF_RULE.get(f.rule, ()), gains) for f in findings}
    with_gains = [f if (change := best[f.rule]) is None else replace(f, gain_ns=gains[change]) for f in findings]
    made = tuple(dict.fromkeys(change for change in best.values() if change is not None and gains[change] > 0))
    together = next(iter(what_if.predict([made])), None) if len(made) > 1 else None
    asked = list(asked)
    result = replay_result(steps, predictions, what_if.predict(asked), together, asked)
    return result, ranked(graded(with_gains, step.wall_ns, thresholds))


def _best(changes: Sequence[str], gains: Mapping[str, int]) -> str | None:
    """Of the changes that could be replayed the one that gains most; None where none could."""
    known = [change for change in changes if change in gains]
    return max(known, key=lambda change: gains[change]) if known else None
