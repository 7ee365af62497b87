"""Makes the table of docs/explanation/accuracy.md: ``python -m lab.accuracy [EVERY]`` with ``tests`` on the path.

Made-up jobs are the samples, simulated ones those of the lab (with EVERY each so-many-th of them). Real captures come
from the folder of shared captures, with an expert's statement each; without it their columns stay as the page has them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lab.labels import Scenario
from lab.make import make
from lab.scenarios import scenarios
from lab.scoring import Score, judge

import tracekit
from tracekit.report.json import render_json

CHECKOUT = Path(__file__).resolve().parents[2]
SAMPLES = CHECKOUT / "sample_traces"
PAGE = CHECKOUT / "docs" / "explanation" / "accuracy.md"
COLUMNS = ("right", "missed", "false")
Table = dict[str, dict[str, Counter[str]]]
"""By origin, rule and column."""


def analyzed(paths: Sequence[Path]) -> dict[str, Any]:
    """The JSON of an analysis."""
    document: dict[str, Any] = json.loads(render_json(tracekit.analyze(tracekit.open(*paths))))
    return document


def simulated(scenario: Scenario) -> Score:
    """One scenario of the lab."""
    with tempfile.TemporaryDirectory() as folder:
        labels = make(scenario, Path(folder))
        return judge(scenario.name, labels, analyzed([Path(folder) / path for path in labels["captures"]]))


def made_up(name: str) -> Score:
    """One sample: its planted faults, and what fires loudly without reason."""
    truth = json.loads((SAMPLES / f"{name}.expected.json").read_text())
    result = analyzed([SAMPLES / path for path in truth["captures"]])
    fired = {f["rule"] for f in result["findings"]}
    loud = {f["rule"] for f in result["findings"] if f["severity"] != "info"}
    planted = truth["findings"]
    return Score(
        right=[(name, rule) for rule in planted if rule in fired],
        missed=[(name, rule) for rule in planted if rule not in fired],
        false=[(name, rule) for rule in sorted(loud - set(planted) - set(truth["may"]))],
    )


def real(path: Path, stated: dict[str, Any]) -> Score:
    """One real capture against an expert's statement."""
    fired = {f["rule"] for f in analyzed([path])["findings"]}
    leading = stated.get("top_any", [])
    hit = sorted(fired & set(leading))
    return Score(
        right=[(path.name, hit[0])] if hit else [],
        missed=[(path.name, leading[0])] if leading and not hit else [],
        false=[(path.name, rule) for rule in sorted(fired & set(stated.get("must_not", {})))],
    )


def _real_scores() -> Score | None:
    folder = Path(os.environ.get("TRACEKIT_SHARED") or CHECKOUT.parent / "shared") / "real"
    if not (folder / "headlines.json").is_file():
        return None
    score = Score()
    for name, stated in json.loads((folder / "headlines.json").read_text())["captures"].items():
        if (folder / name).is_file():
            score.add(real(folder / name, stated))
    return score


def measured(every: int) -> tuple[dict[str, Score | None], int, int]:
    """(scores by origin, samples, scenarios)."""
    names = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
    chosen = list(scenarios())[::every]
    samples, lab = Score(), Score()
    with ProcessPoolExecutor(2) as pool:
        for score in pool.map(simulated, chosen):
            lab.add(score)
        for score in pool.map(made_up, names):
            samples.add(score)
    return {"made up": samples, "simulated": lab, "real": _real_scores()}, len(names), len(chosen)


def table(scores: dict[str, Score | None], before: str) -> str:
    """The table in Markdown; columns of origins that were not measured are taken from the page."""
    counts = {
        origin: score.by_rule() if score is not None else _kept(before, origin) for origin, score in scores.items()
    }
    rules = sorted({rule for by_rule in counts.values() for rule in by_rule})
    heads = [f"{origin}: {column}" for origin in counts for column in COLUMNS]
    lines = ["| rule | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for rule in rules:
        cells = [str(by_rule.get(rule, Counter())[column] or "") for by_rule in counts.values() for column in COLUMNS]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    sums = [sum(c[column] for c in by_rule.values()) for by_rule in counts.values() for column in COLUMNS]
    lines.append("| all | " + " | ".join(map(str, sums)) + " |")
    return "\n".join(lines)


def _kept(page: str, origin: str) -> dict[str, Counter[str]]:
    """One origin's columns of the table that the page has."""
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    heads = next((row for row in rows if row[0] == "rule"), [])
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if re.fullmatch(r"TK\d{3}", row[0]):
            cells = dict(zip(heads, row, strict=False))
            found[row[0]] = Counter({c: int(cells.get(f"{origin}: {c}") or 0) for c in COLUMNS})
    return found


def figures(score: Score) -> str:
    """Stragglers, hangs and gains of the simulated jobs, as a list."""
    given = [error for _, error in score.gains if error is not None]
    named = [right for _, right, there in score.stragglers if there]
    others = [right for _, right, there in score.stragglers if not there]
    stuck = [right for _, right, there in score.hangs if there]
    running = [right for _, right, there in score.hangs if not there]
    return f"""\
- slow ranks: {sum(named)} of {len(named)} named exactly; somebody blamed in {others.count(False)} of {len(others)} \
jobs without one;
- hangs: {sum(stuck)} of {len(stuck)} right; {running.count(False)} of {len(running)} other jobs called one;
- gains: given for {len(given)} of {len(score.gains)}, median error {100 * score.median_gain_error:.1f} %, \
{sum(error > 0.25 for error in given)} wrong by more than a quarter."""


def main(arguments: Sequence[str]) -> None:
    before = PAGE.read_text()
    scores, samples, jobs = measured(int(arguments[0]) if arguments else 1)
    lab = scores["simulated"]
    assert lab is not None
    counted = f"{samples} made-up jobs, {jobs} simulated ones."
    made = [counted, table(scores, before), "Of the simulated jobs:", figures(lab)]
    new = "<!-- measured -->\n" + "\n\n".join(made) + "\n<!-- end -->"
    PAGE.write_text(re.sub(r"<!-- measured -->.*<!-- end -->", lambda _: new, before, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])
