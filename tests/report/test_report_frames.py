"""An analysis as pandas tables."""

import json
from pathlib import Path

from builders import by_hand, make_analysis
from handmade import Sketch

import tracekit

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def test_tables_counted_by_hand() -> None:
    """GIVEN two ranks with three steps each, THEN a row for each, with the figures of the JSON."""
    analysis = make_analysis(by_hand())
    tables = tracekit.frames(analysis)
    assert sorted(tables) == ["collectives", "findings", "phases", "ranks", "steps", "stragglers"]
    assert tables["ranks"]["rank"].tolist() == [rank.rank for rank in analysis.ranks]
    assert len(tables["steps"]) == sum(len(rank.steps) for rank in analysis.ranks)
    parts = tables["steps"][["compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"]]
    assert (parts.sum(axis=1) == tables["steps"]["wall_ns"]).all()
    assert tables["steps"]["wall_ns"].dtype == "int64"
    assert tables["stragglers"].empty


def test_bubbles_row_by_row_add_up_to_the_accounts_of_the_layout() -> None:
    """GIVEN a sample, THEN its bubbles' lengths by rank, step and kind are what was laid out."""
    truth = json.loads((SAMPLES / "straggler_4ranks.expected.json").read_text("utf-8"))
    analysis, detail = tracekit.examine(tracekit.open(SAMPLES / "straggler_4ranks.sqlite"))
    table = analysis.frames(detail)["bubbles"]
    found = table.groupby(["rank", "step", "kind"], observed=True)["ns"].sum().to_dict()
    there = {
        (int(rank), step["step"], kind): step[f"{kind}_ns"]
        for rank, facts in truth["ranks"].items()
        for step in facts["steps"]
        for kind in ("exposed_comm", "exposed_copy", "idle")
        if step[f"{kind}_ns"]
    }
    assert found == there
    assert (table["end_ns"] - table["start_ns"] == table["ns"]).all()
    comm = table[table["kind"] == "exposed_comm"]
    assert comm["runs"].str.startswith("nccl").all()
    assert table[table["kind"] == "idle"]["runs"].isna().all()
    assert "peer_wait" in set(comm["cause"])


def test_bubbles_of_picked_steps_only() -> None:
    options = tracekit.Options(steps=frozenset({203}), ranks=frozenset({1, 3}))
    analysis, detail = tracekit.examine(tracekit.open(SAMPLES / "straggler_4ranks.sqlite"), options)
    table = tracekit.frames(analysis, detail)["bubbles"]
    assert set(table["step"]) == {203}
    assert set(table["rank"]) == {1, 3}


def test_bubbles_without_steps_have_none() -> None:
    job = Sketch()
    rank = job.process()
    rank.kernel(0, 10, name="a")
    rank.kernel(30, 40, name="b")
    analysis, detail = tracekit.examine(job.timeline())
    table = analysis.frames(detail)["bubbles"]
    assert table["step"].isna().all()
    assert table[["ns", "before", "after"]].values.tolist() == [[20, "a", "b"]]
