"""An analysis as pandas tables."""

from builders import by_hand, make_analysis

import tracekit


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
