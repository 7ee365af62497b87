from __future__ import annotations

import pytest
from builders import by_hand, make_analysis, some_gaps

from tracekit.report.details import collective_rows, evidence_text, unknowns
from tracekit.results import Evidence


@pytest.mark.parametrize(
    ("value", "unit", "threshold", "shown"),
    [
        (0.17, "of the step", 0.02, ("17 % of the step", "2 %")),
        (0.678, "ratio", None, ("0.68", None)),
        (1_500_000, "ns", 2_000, ("1.5 ms", "2.0 µs")),
        (1.22, "×", 1.05, ("1.22 ×", "1.05 ×")),
        (16782, "ranges", None, ("16782 ranges", None)),
        ("0 of 16", "", None, ("0 of 16", None)),
        (None, "ms", None, ("unknown", None)),
    ],
)
def test_evidence_in_words(
    value: float | str | None, unit: str, threshold: float | None, shown: tuple[str, str | None]
) -> None:
    evidence = Evidence(metric="peer_wait", value=value, unit=unit, threshold=threshold)
    assert evidence_text(evidence) == ("peer wait", *shown)


def test_collectives_are_means_over_ranks() -> None:
    # Three gathers of 40 ms; exposed 30 ms on one rank and 10 ms on the other.
    (row,) = collective_rows(make_analysis(by_hand()))
    assert (row.op, row.count, row.comm, row.exposed, row.busbw) == ("all-gather", 3, "120.0 ms", "60.0", "325")


def test_unknowns_are_said_once() -> None:
    gaps = some_gaps()
    gaps["remedies"] = gaps["remedies"] * 2  # type: ignore[operator]
    lines = unknowns(make_analysis(by_hand(), **gaps))
    assert len(lines) == 3
    assert lines[-1] == ("TK501 skipped, no memory events", "capture with --cuda-memory-usage=true")
