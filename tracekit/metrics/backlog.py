"""How long the reductions of a step's last microbatch are late because those of earlier ones hold their stream.

Reductions of one stream run one behind the other. Those of early microbatches may be hidden themselves, by the compute
of later ones, and still push the last ones behind the end of the backward pass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.launch_order import NEVER
from tracekit.metrics.roles import Roles
from tracekit.metrics.surroundings import Surroundings
from tracekit.metrics.views import RankView
from tracekit.timeline import NONE

Int64 = NDArray[np.int64]


def late_by_microbatches(
    view: RankView, roles: Roles, around: Surroundings, thresholds: Thresholds
) -> tuple[Int64, Int64]:
    """(starts, ends) of the times, behind the ends of backward passes, that earlier microbatches' reductions cost."""
    rows = np.flatnonzero(roles.reduction & ~roles.optimizer & (roles.backward_end != NEVER) & (roles.ready != NONE))
    begin, late = [], []
    for cycle in np.unique(roles.cycle[rows[roles.microbatch[rows]]]).tolist():
        mine = rows[roles.cycle[rows] == cycle]
        streams = view.ops.stream[view.collectives.row[mine]]
        # Each stream ends later by so much; the step ends with the stream that ends last.
        ends = [_ends(view, roles, around, mine[streams == each], thresholds) for each in np.unique(streams).tolist()]
        delay = max(is_ for is_, _ in ends) - max(could for _, could in ends)
        if delay > 0:
            begin.append(int(roles.backward_end[mine[0]]))
            late.append(delay)
    start = np.array(begin, np.int64)
    return start, start + np.array(late, np.int64)


def _ends(
    view: RankView, roles: Roles, around: Surroundings, rows: NDArray[np.intp], thresholds: Thresholds
) -> tuple[int, int]:
    """(when a stream's reductions of one step end, when they could without those of early microbatches)."""
    row = view.collectives.row[rows]
    start, ready = view.ops.start[row].tolist(), roles.ready[rows].tolist()
    early, free = roles.microbatch[rows].tolist(), around.stream_free[rows].tolist()
    delay = 0
    for i in range(len(rows)):
        if early[i]:
            continue
        queued = i > 0 and free[i] <= thresholds.handover_ns
        earlier = max(start[i] - ready[i], 0)
        delay = 0 if not queued else earlier if early[i - 1] else min(delay, earlier)
    end = int(view.ops.end[row].max())
    return end, end - delay
