"""An analysis as pandas tables, for notebooks: the keys and units are those of the JSON output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracekit.metrics.bubbles import CAUSES, Lost
from tracekit.metrics.views import Detail, RankView
from tracekit.report.json import to_dict
from tracekit.results import Analysis
from tracekit.timeline import NONE


def frames(analysis: Analysis, detail: Detail | None = None) -> dict[str, pd.DataFrame]:
    """Tables ``ranks`` (totals), ``steps``, ``phases``, ``collectives``, ``stragglers`` and ``findings``.

    One row for each rank, (rank, step), (rank, step, phase), (communicator, op), straggler and finding; times are int64
    ns. Unknown values are missing. A table without rows has no columns.

    With what `tracekit.examine` gives beside the analysis also ``bubbles``: a row for each interval without compute,
    in the order of ranks and time; ``start_ns`` and ``end_ns`` are on the clock of the rank's capture.
    """
    document = to_dict(analysis)
    ranks: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    for rank in document["ranks"]:
        facts = {key: value for key, value in rank.items() if not isinstance(value, dict | list)}
        ranks.append(facts | rank["totals"])
        for step in rank["steps"]:
            figures = {key: value for key, value in step.items() if not isinstance(value, dict)}
            steps.append({"rank": rank["rank"]} | figures)
            for phase, account in step["by_phase"].items():
                phases.append({"rank": rank["rank"], "step": step["step"], "phase": phase} | account)
    rows = {"ranks": ranks, "steps": steps, "phases": phases}
    rows |= {name: document[name] for name in ("collectives", "stragglers", "findings")}
    tables = {name: pd.DataFrame(table) for name, table in rows.items()}
    if detail is not None:
        picked = {rank.rank: {step.step for step in rank.steps} for rank in analysis.ranks}
        tables["bubbles"] = _bubbles([(view, picked[view.rank]) for view in detail.views])
    return tables


_KINDS = np.array(["exposed_comm", "exposed_copy", "idle"], object)
"""By `Lost`."""
_CAUSES = np.array([cause for lost in Lost for cause in CAUSES[lost]], object)
_FIRST = np.cumsum([0, *(len(CAUSES[lost]) for lost in Lost)])
"""Where the causes of each kind begin in `_CAUSES`."""


def _bubbles(views: Sequence[tuple[RankView, set[int]]]) -> pd.DataFrame:
    """The bubbles of all ranks; those of steps that were not picked are left out."""
    tables = []
    for view, steps in views:
        bubbles = view.bubbles
        picked = (bubbles.step == NONE) | np.isin(bubbles.step, list(steps))
        rows = np.flatnonzero(picked & (bubbles.end > bubbles.start))
        step = pd.Series(bubbles.step[rows], dtype="Int64")
        columns: dict[str, Any] = {
            "rank": np.full(len(rows), view.rank, np.int64),
            "step": step.mask(step == NONE),
            "start_ns": bubbles.start[rows],
            "end_ns": bubbles.end[rows],
            "ns": bubbles.ns[rows],
            "kind": _KINDS[bubbles.lost[rows]],
            "cause": _CAUSES[_FIRST[bubbles.lost[rows]] + bubbles.cause[rows]],
        }
        for key, at in (("runs", bubbles.op), ("before", bubbles.before), ("after", bubbles.after)):
            columns[key] = _names(view, at[rows])
        tables.append(pd.DataFrame(columns))
    words = ["kind", "cause", "runs", "before", "after"]
    return pd.concat(tables, ignore_index=True).astype(dict.fromkeys(words, "category"))


def _names(view: RankView, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    """Names of operations by row; None for NONE."""
    index = np.where(rows == NONE, NONE, view.ops.name[np.maximum(rows, 0)])
    used, of = np.unique(index, return_inverse=True)
    return np.array([view.names[i] if i != NONE else None for i in used.tolist()], object)[of]
