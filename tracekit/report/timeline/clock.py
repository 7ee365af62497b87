"""Every rank on the scene's one clock, offset and drift taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.metrics.views import RankView
from tracekit.metrics.waits import RankWaits
from tracekit.results import Analysis, Rank
from tracekit.timeline import Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRank:
    """A rank, what lies behind it, and how to get from its capture's clock to the scene's."""

    index: int
    """Position in `Detail.views`."""
    rank: Rank
    view: RankView
    waits: RankWaits
    offset_ns: int
    drift: float = 0.0
    """Dimensionless, counted from ``since_ns``."""
    since_ns: int = 0

    def common(self, t: Int64) -> Int64:
        """Instants on the scene's clock, ns."""
        drifted: Int64 = np.rint(self.drift * (t - self.since_ns)).astype(np.int64)
        return t - self.offset_ns - drifted

    def placed(self, *t: int) -> list[int]:
        """The same for single instants."""
        found: list[int] = self.common(np.array(t, np.int64)).tolist()
        return found

    @property
    def windows(self) -> dict[int, tuple[int, int]]:
        """Its steps on its own clock, by number."""
        return {step.step: (step.start_ns, step.end_ns) for step in self.rank.steps}

    @property
    def span(self) -> tuple[int, int]:
        """What is accounted for on its own clock: from the first step to the last one, or everything."""
        steps = self.rank.steps
        return (steps[0].start_ns, steps[-1].end_ns) if steps else (self.rank.start_ns, self.rank.end_ns)


def place_ranks(
    analysis: Analysis, views: Sequence[RankView], waits: Sequence[RankWaits], step: int | None
) -> tuple[list[PlacedRank], bool]:
    """(the ranks, whether they share a clock). Without one, all start ``step`` (or their work) together."""
    placed = []
    for index, (rank, view, waited) in enumerate(zip(analysis.ranks, views, waits, strict=True)):
        clock = rank.clock
        since, drift = (clock.origin_ns, clock.drift_ppm) if clock.origin_ns is not None else (0, None)
        placed.append(
            PlacedRank(
                index=index,
                rank=rank,
                view=view,
                waits=waited,
                offset_ns=clock.offset_ns or 0,
                drift=(drift or 0.0) * 1e-6,
                since_ns=since,
            )
        )
    if _share_a_clock(placed, step):
        return placed, True
    return [replace(each, offset_ns=_window(each, step)[0], drift=0.0) for each in placed], False


def _window(each: PlacedRank, step: int | None) -> tuple[int, int]:
    return each.windows.get(step, each.span) if step is not None else each.span


def _share_a_clock(placed: Sequence[PlacedRank], step: int | None) -> bool:
    """Whether offsets put the ranks beside each other: all known, and where not measured, near enough to overlap."""
    clocks = [each.rank.clock for each in placed]
    if len(placed) > 1 and any(clock.offset_ns is None for clock in clocks):
        return False
    if not any(clock.method in {"session_start", "not_aligned"} for clock in clocks):
        return True
    windows = [_window(each, step) for each in placed]
    starts = [each.placed(start)[0] for each, (start, _) in zip(placed, windows, strict=True)]
    return max(starts) - min(starts) < max(end - start for start, end in windows)
