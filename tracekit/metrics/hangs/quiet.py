"""How long a rank has to be quiet before that is more than a slow step, or a capture that was cut off."""

from __future__ import annotations

from enum import IntEnum

from tracekit.config import Thresholds


class Quiet(IntEnum):
    """How much a quiet end says."""

    NO = 0
    """Less than a few steps: any capture ends like this."""
    LONG = 1
    """Suspicious: a few steps long, or a second, and not both."""
    STILL = 2
    """No job that goes on is quiet for that long."""


def how_quiet(idle_ns: int | None, usual_step_ns: int | None, thresholds: Thresholds) -> Quiet:
    """What a rank's quiet end says, measured against its own steps where these are known."""
    if idle_ns is None:
        return Quiet.NO
    if idle_ns >= standstill_ns(usual_step_ns, thresholds):
        return Quiet.STILL
    few_steps = usual_step_ns is not None and idle_ns >= thresholds.still_steps * usual_step_ns
    return Quiet.LONG if idle_ns >= thresholds.still_ns or few_steps else Quiet.NO


def standstill_ns(usual_step_ns: int | None, thresholds: Thresholds) -> int:
    """From how long on a quiet end is a standstill: a second and a few steps, or very many steps."""
    if not usual_step_ns:
        return thresholds.still_ns
    long = max(thresholds.still_ns, int(thresholds.still_steps * usual_step_ns))
    many = max(thresholds.still_least_ns, int(thresholds.still_many_steps * usual_step_ns))
    return min(long, many)
