"""Single collectives: how long each moved data, and at what bus bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.metrics.identity import RankCollectives
from tracekit.metrics.matching import Matched
from tracekit.metrics.waits import split, start_up
from tracekit.theory.volume import BUS_FACTOR
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRates:
    """One rank's communication operations; columns as in its `RankCollectives`."""

    transfer: Int64
    """ns: the shortest duration over the ranks of the communicator; NONE where not all of them are here, for ops that
    ranks do not leave together, and for start-up."""
    busbw: NDArray[np.float64]
    """GB/s, bytes over transfer times the factor of nccl-tests; NaN where unknown."""


def collective_rates(
    found: Sequence[RankCollectives], matched: Sequence[Matched], sizes: Mapping[str | None, int | None]
) -> tuple[RankRates, ...]:
    """Transfer and bus bandwidth of every collective, by rank; ``sizes`` has the ranks of a communicator, if known."""
    rates = tuple(
        RankRates(transfer=np.full(len(each.row), NONE, np.int64), busbw=np.full(len(each.row), np.nan))
        for each in found
    )
    for kind in matched:
        size = sizes.get(kind.communicator)
        if size is not None and len(kind.members) < size:
            continue
        _, transfer = split(kind, found)
        told = (transfer > 0) & ~start_up(kind, found)
        factor = BUS_FACTOR[kind.op](size or len(kind.members)) if kind.op in BUS_FACTOR else np.nan
        for row, member in enumerate(kind.members):
            at = kind.index[row, told]
            moved = found[member].full_bytes[at].astype(np.float64)
            rates[member].transfer[at] = transfer[told]
            rates[member].busbw[at] = np.where(moved > 0, moved, np.nan) / transfer[told] * factor
    return rates
