"""How sure a finding is: what its rule rests on, and what of that the captures hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Flag, auto

from tracekit.results import Confidence, Finding
from tracekit.rules.base import Context

ORDER = (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)


class RestsOn(Flag):
    """What a rule needs to be sure."""

    NOTHING = 0
    LAUNCHES = auto()
    """Which call launched an operation: order of launch, phases, what the host did."""
    PEERS = auto()
    """Waiting for peers apart from transfer: several ranks whose collectives match, and all of them."""
    STEPS = auto()
    """Several steps: what happens once is an incident."""


_EXPOSED = RestsOn.LAUNCHES | RestsOn.PEERS
_STRAGGLER = RestsOn.PEERS | RestsOn.STEPS
_HOST = RestsOn.LAUNCHES | RestsOn.STEPS
RESTS_ON: Mapping[str, RestsOn] = {
    **dict.fromkeys(("TK100", "TK103", "TK104", "TK105", "TK109"), RestsOn.PEERS),
    **dict.fromkeys(("TK101", "TK102", "TK106", "TK107", "TK108", "TK110", "TK111", "TK112", "TK404"), _EXPOSED),
    **dict.fromkeys(("TK201", "TK204", "TK205", "TK206", "TK207", "TK208", "TK209"), _STRAGGLER),
    **dict.fromkeys(("TK202", "TK203"), _STRAGGLER | RestsOn.LAUNCHES),
    **dict.fromkeys(("TK401", "TK402", "TK405", "TK406", "TK415"), _HOST),
    **dict.fromkeys(("TK403", "TK409", "TK411"), RestsOn.LAUNCHES),
}
"""By code. Rules that are not listed rest on what every capture holds."""


def with_confidence(finding: Finding, context: Context) -> Finding:
    """The finding with the least of what its rule states and what the captures allow."""
    limits = [(finding.confidence, finding.confidence_reason or "")] if finding.confidence_reason else []
    limits += _limits(RESTS_ON.get(finding.rule, RestsOn.NOTHING), context)
    if not limits:
        return finding
    least = max((ORDER.index(confidence) for confidence, _ in limits), default=0)
    reasons = dict.fromkeys(reason for _, reason in limits)
    return replace(finding, confidence=ORDER[least], confidence_reason="; ".join(reasons))


def _limits(rests_on: RestsOn, context: Context) -> Iterator[tuple[Confidence, str]]:
    if RestsOn.LAUNCHES in rests_on:
        yield from _of_launches(context)
    if RestsOn.PEERS in rests_on:
        yield from _of_peers(context)
    if RestsOn.STEPS in rests_on and 0 < len(context.steps) < context.thresholds.few_steps:
        count = len(context.steps)
        yield Confidence.MEDIUM, f"{count} step{'s' * (count > 1)} only"


def _of_launches(context: Context) -> Iterator[tuple[Confidence, str]]:
    kernels = sum(rank.kernels for rank in context.ranks)
    known = sum(rank.kernels_launched for rank in context.ranks) / kernels if kernels else 1.0
    if known >= context.thresholds.launch_rows_share:
        return
    surely = known >= context.thresholds.launch_rows_least
    lost = f"{100 * (1 - known):.0f} % of launches are lost" if known else "no launch rows"
    yield Confidence.MEDIUM if surely else Confidence.LOW, lost


def _of_peers(context: Context) -> Iterator[tuple[Confidence, str]]:
    ranks = len(context.ranks)
    if ranks == 1:
        yield Confidence.MEDIUM, "one rank only: wait or transfer is unknown, and waiting counts as transfer"
    elif not context.waits_told:
        yield Confidence.MEDIUM, "the ranks' collectives cannot be matched: waiting for peers counts as transfer"
    elif not context.world.complete:
        yield Confidence.MEDIUM, f"{ranks} of {context.world.size} ranks captured"
