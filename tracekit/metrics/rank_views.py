"""The ranks' operations row by row: labels, bubbles and causes, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracekit.config import Thresholds
from tracekit.metrics.activity import Activity
from tracekit.metrics.bubbles import Bubbles, BubbleWindows, bubbles_of
from tracekit.metrics.exposure import with_exposure_causes
from tracekit.metrics.host_causes import with_host_causes
from tracekit.metrics.one_rank import RankMeasures, speaker
from tracekit.metrics.parallelism import parallelism_of
from tracekit.metrics.views import OpLabels, RankView, label_ops
from tracekit.metrics.waits import RankWaits
from tracekit.metrics.work import work_of
from tracekit.spool import keep
from tracekit.timeline import Timeline

Int8 = NDArray[np.int8]


def rank_views(
    timeline: Timeline,
    measured: Sequence[RankMeasures],
    waits: Sequence[RankWaits],
    thresholds: Thresholds,
    *,
    causes: bool,
) -> tuple[RankView, ...]:
    """The ranks' operations row by row, with their labels and bubbles.

    Without ``causes`` those of bubbles are only looked for in the waits; the others are ``unknown``.
    """
    activity = [_activity(timeline, m) for m in measured]
    wanted = thresholds if causes else None
    rows = keep(
        (_labels_and_bubbles(timeline, *each, wanted) for each in zip(measured, activity, waits, strict=True)),
        beside=measured[0].track.ops.start,
    )
    return tuple(_view(timeline, m, own, *row) for m, own, row in zip(measured, activity, rows, strict=True))


def _activity(timeline: Timeline, m: RankMeasures) -> Activity:
    process = timeline.processes[m.track.process]
    return Activity.of(process, m.track.ops, timeline.names, m.words, speaker(timeline, m.track, m.marks, m.words))


def _labels_and_bubbles(
    timeline: Timeline, m: RankMeasures, activity: Activity, waits: RankWaits, thresholds: Thresholds | None
) -> tuple[OpLabels, Bubbles, Int8]:
    ops = m.track.ops
    labels = label_ops(ops, activity.process, m.words, m.marks, speaker(timeline, m.track, m.marks, m.words))
    bubbles = bubbles_of(ops, m.covers, m.collectives, waits, BubbleWindows.of(m.steps, m.window))
    if thresholds is None:
        return labels, bubbles, np.zeros(len(m.collectives.row), np.int8)
    # The host's parts of steps that were found by their period touch: what lies between two steps is not known.
    marks = m.marks if m.marks is not None and m.marks.confidence is None else None
    bubbles = with_host_causes(bubbles, ops, activity, m.words, marks, thresholds)
    view = _view(timeline, m, activity, labels, bubbles, np.empty(0, np.int8))
    work = work_of(view, thresholds)
    view = replace(view, parallel=parallelism_of(view, work, thresholds))
    return labels, with_exposure_causes(view, work, thresholds), view.parallel


def _view(
    timeline: Timeline, m: RankMeasures, activity: Activity, labels: OpLabels, bubbles: Bubbles, parallel: Int8
) -> RankView:
    return RankView(
        rank=m.track.rank,
        names=timeline.names,
        ops=m.track.ops,
        process=activity.process,
        covers=m.covers,
        main_stream=m.stream,
        collectives=m.collectives,
        labels=labels,
        bubbles=bubbles,
        activity=activity,
        parallel=parallel,
    )
