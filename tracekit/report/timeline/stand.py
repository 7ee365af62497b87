"""Where a job stood still, on the timeline: a band for the standstill, and what each rank had launched before it.

The standstill lasts as long as the captures went on. To scale it would leave nothing of the step: it is a band as wide
as a part of a step, with its true length written into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.evidence import Activity
from tracekit.report.timeline.clock import PlacedRank
from tracekit.results import Hang
from tracekit.timeline import Timeline

BAND_SHARE = 0.25
"""Width of the band over that of the view before it."""
STEPS_BEFORE = 1.5
"""Median steps that the view shows before the band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMark:
    """A collective that a rank launched and has not finished."""

    start: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The standstill, in ns since the scene's start."""

    start: int
    end: int
    length_ns: int
    """How long nothing happened."""
    view: int
    """Where the view begins that shows it."""
    pending: tuple[tuple[PendingMark, ...], ...]
    """By rank of the scene, the earliest ones."""


def stand_of(
    hang: Hang | None, timeline: Timeline, shown: Sequence[PlacedRank], origin: int, step_ns: int | None
) -> Stand | None:
    """The standstill of a job that hangs; None where none is known."""
    if hang is None:
        return None
    doing = {row.rank: row.activity for row in hang.last_activity}
    quiet: list[int] = []
    lengths: list[int] = []
    pending: list[tuple[PendingMark, ...]] = []
    for placed in shown:
        activity = doing.get(placed.rank.rank)
        stop_ns = timeline.captures[placed.view.process.capture].stop_ns
        if activity is None or activity.idle_ns is None or stop_ns is None:
            pending.append(())
            continue
        quiet.append(placed.placed(stop_ns - activity.idle_ns)[0] - origin)
        lengths.append(activity.idle_ns)
        pending.append(
            tuple(
                PendingMark(start=placed.placed(each.launched_ns)[0] - origin, label=_label(activity, i))
                for i, each in enumerate(activity.pending)
            )
        )
    if not quiet:
        return None
    start = max(0, *quiet)
    first = min([start, *(mark.start for marks in pending for mark in marks[:1])])
    before = max(int(STEPS_BEFORE * step_ns) if step_ns else start // 4, round(1.1 * (start - first)), 1000)
    return Stand(
        start=start,
        end=start + max(1, round(BAND_SHARE * before)),
        length_ns=min(lengths),
        view=max(0, start - before),
        pending=tuple(pending),
    )


def _label(activity: Activity, i: int) -> str:
    """The name of a rank's collective; with the first one, how many more there are."""
    more = f" + {activity.pending_count - 1:,}" if i == 0 and activity.pending_count > 1 else ""
    return f"{activity.pending[i].name} {activity.pending[i].seq}{more}"
