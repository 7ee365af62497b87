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
    HOST_ON_TIME,
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
    STAGES_EVEN,
    STRAGGLER_OFF,
    SYNC_OFF,
    TRANSFERS_STEADY,
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
    "TK206": (STAGES_EVEN,),
    "TK207": (LINKS_EVEN,),
    "TK209": (TRANSFERS_STEADY,),
    "TK401": (HOST_ON_TIME, GRAPHS_ON),
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
SAME_GAIN = 0.005
"""Gains that differ by less than this share are of one change."""
ALIKE = 0.8
"""Gains of two findings about one gap differ by less than this ratio."""
PART_OF_COMPUTE = ("TK113", "TK413")
"""Rules whose time is part of compute, not of what is exposed or idle."""


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
    if not any(len(work.loading.start) or len(work.between_steps.start) for work in steps.graph.work):
        wanted.pop(DATA_ON_TIME, None)  # without anything that may be loading it would change nothing
    if not steps.numbers:
        for whole in (GRAPHS_ON, HOST_ON_TIME):
            wanted.pop(whole, None)  # the host of a whole program also starts, loads and ends
    if not any(np.any(work.waits_for) for work in steps.graph.work):
        wanted.pop(SYNC_OFF, None)  # nor can waits be left out that no synchronisation record tells of
    predictions = what_if.predict([(change,) for change in wanted])
    # What cannot be replayed gains nothing known.
    gains = {prediction.change: max(prediction.gain_ns, 0) for prediction in predictions}
    best = {f.rule: _best(CHANGES_OF_RULE.get(f.rule, ()), gains) for f in findings}
    with_gains = [f if (change := best[f.rule]) is None else replace(f, gain_ns=gains[change]) for f in findings]
    with_gains = bounded(_of_one_gap(with_gains), step, len(ranks), thresholds)
    made = tuple(dict.fromkeys(change for change in best.values() if change is not None and gains[change] > 0))
    together = next(iter(what_if.predict([made])), None) if len(made) > 1 else None
    asked = list(asked)
    result = replay_result(steps, predictions, what_if.predict(asked), together, asked)
    return result, ranked(graded(with_gains, step.wall_ns, thresholds))


def bounded(findings: Sequence[Finding], step: Account, ranks: int, thresholds: Thresholds) -> list[Finding]:
    """Findings without the gains that no loss of theirs accounts for: the model of their fix does not hold here.

    Costs are means over ranks, and a step is as long as its slowest: they count by the ranks that lose. Findings that
    share one change share its gain, and their costs add up.
    """
    lost = step.exposed_comm_ns + step.exposed_copy_ns + step.idle_ns
    room = thresholds.gain_slack * step.wall_ns
    result = []
    for finding in findings:
        gain, scale = finding.gain_ns, _losing(finding, ranks)
        if gain is None or finding.cost_ns is None:
            result.append(finding)
            continue
        sharing = [f for f in findings if f.gain_ns is not None and abs(f.gain_ns - gain) <= SAME_GAIN * gain]
        cost = sum((f.cost_ns or 0) * _losing(f, ranks) for f in sharing)
        most = thresholds.gain_of_cost * cost + room
        if finding.rule not in PART_OF_COMPUTE:
            most = min(most, lost * scale + room)
        # Among several ranks what waits for late collectives is the cost of other findings.
        straggling = finding.rule.startswith(("TK1", "TK2", "TK401")) and ranks > 1
        result.append(
            finding if gain <= most * (thresholds.gain_of_wait if straggling else 1) else replace(finding, gain_ns=None)
        )
    return result


def _of_one_gap(findings: Sequence[Finding]) -> list[Finding]:
    """Findings with one gain for a gap that two of them share: the host synchronises, and then loads data.

    Either fix takes the whole gap away, and each has only its part of it as cost.
    """
    gains = [f.gain_ns for f in findings if f.rule in ("TK402", "TK405") and f.gain_ns is not None]
    if len(gains) != 2 or min(gains) < ALIKE * max(gains):
        return list(findings)
    return [replace(f, gain_ns=min(gains)) if f.rule in ("TK402", "TK405") else f for f in findings]


def _losing(finding: Finding, ranks: int) -> float:
    """By how much more the ranks lose that lose anything than the mean rank: a straggler's peers, else those named."""
    named = len(finding.ranks)
    return ranks / max(1, ranks - named if finding.rule.startswith("TK2") else named)


def _best(changes: Sequence[str], gains: Mapping[str, int]) -> str | None:
    """Of the changes that could be replayed the one that gains most; None where none could."""
    known = [change for change in changes if change in gains]
    return max(known, key=lambda change: gains[change]) if known else None
