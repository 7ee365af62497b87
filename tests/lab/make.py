"""Writes the scenarios and their labels: ``python -m lab.make FOLDER [NAME ...]`` with ``tests`` on the path."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from lab.capture import write
from lab.labels import Scenario, label
from lab.loop import run
from lab.scenarios import scenarios


def make(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Write one scenario's captures; returns its labels."""
    job = run(scenario.settings, scenario.fault)
    twin = None
    if not scenario.healthy and "hang" not in scenario.fault:
        twin = run(scenario.without or scenario.settings)
    paths = write(job, folder / scenario.name)
    return label(scenario, job, twin, [str(path.relative_to(folder)) for path in paths])


def main(arguments: Sequence[str]) -> None:
    folder, names = Path(arguments[0]), set(arguments[1:])
    chosen = [scenario for scenario in scenarios() if not names or scenario.name in names]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        labels = dict(zip((s.name for s in chosen), pool.map(partial(make, folder=folder), chosen), strict=True))
    (folder / "labels.json").write_text(json.dumps(labels, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
