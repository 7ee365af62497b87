"""An analysis as pandas tables, for notebooks: the keys and units are those of the JSON output."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tracekit.report.json import to_dict
from tracekit.results import Analysis


def frames(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """Tables ``ranks`` (totals), ``steps``, ``phases``, ``collectives``, ``stragglers`` and ``findings``.

    One row for each rank, (rank, step), (rank, step, phase), (communicator, op), straggler and finding; times are int64
    ns. Unknown values are missing. A table without rows has no columns.
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
    return {name: pd.DataFrame(table) for name, table in rows.items()}
