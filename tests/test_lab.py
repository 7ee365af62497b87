"""Simulated jobs: what is measured is what the simulation did, and what is said of them is right."""

import json

import pytest
from lab.accuracy import figures, table
from lab.make import make
from lab.scenarios import scenarios
from lab.scoring import Score, judge

import tracekit
from tracekit.report.json import render_json

MEASURED = (
    "healthy_fsdp",
    "healthy_drift",
    "healthy_tp_payload",
    "healthy_pp",
    "healthy_moe",
    "healthy_cp",
)
"""Jobs without a fault; their totals and step times are held against the simulation."""
FAULTY = (
    "slow_fsdp_1.15",
    "slow_ddp_1.2",
    "slow_hsdp_1.3",
    "data_rank_8000",
    "gc_8000",
    "link_payload_6",
    "no_fwd_prefetch_fsdp_1200",
    "no_fwd_prefetch_zero3_600",
    "root_rs_3000",
    "root_rs_ddp_3000",
    "root_ag_3000",
    "accumulation_fsdp1_8000",
    "zero1_900",
    "compute_stream_900",
    "tiny_90",
    "data_6000",
    "pageable_6000",
    "hang_type_fsdp",
)
"""One of each kind that has to be found, at a middle strength."""
BY_NAME = {scenario.name: scenario for scenario in scenarios()}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """(labels, analysis as JSON) of each chosen job."""
    folder = tmp_path_factory.mktemp("lab")
    made = {}
    for name in MEASURED + FAULTY:
        labels = make(BY_NAME[name], folder)
        analysis = tracekit.analyze(tracekit.open(*(folder / path for path in labels["captures"])))
        made[name] = labels, json.loads(render_json(analysis))
    return made


@pytest.mark.parametrize("name", MEASURED)
def test_totals_and_steps_are_those_of_the_simulation(name, judged):
    labels, result = judged[name]
    for rank in result["ranks"]:
        for field, value in labels["totals"][str(rank["rank"])].items():
            assert rank["totals"][field] == pytest.approx(value, abs=1e-9), (rank["rank"], field)
    assert result["steady"]["step_time_ns"] == pytest.approx(labels["step_time_ns"], rel=1e-3)


def test_what_is_said_of_the_jobs_is_right(judged):
    score = Score()
    for name, (labels, result) in judged.items():
        score.add(judge(name, labels, result))
    assert score.precision >= 0.95, score.false
    assert score.recall >= 0.95, score.missed
    assert all(right for _, right, _ in score.stragglers), score.stragglers
    assert all(right for _, right, there in score.hangs if not there), score.hangs
    given = [error for _, error in score.gains if error is not None]
    assert len(given) >= 0.6 * len(score.gains), score.gains
    assert score.median_gain_error <= 0.1, score.gains


def test_a_silent_diagnosis_misses_all_and_a_loud_one_is_wrong(judged):
    """The score itself can fail."""
    silent, loud = Score(), Score()
    for name, (labels, result) in judged.items():
        silent.add(judge(name, labels, result | {"findings": [], "stragglers": []}))
        rules = [{"rule": f"TK{n}", "gain_ns": None} for n in range(100, 910)]
        loud.add(judge(name, labels, result | {"findings": rules}))
    assert silent.recall == 0
    assert not all(right for _, right, there in silent.stragglers if there)
    assert loud.recall == 1
    assert loud.precision < 0.1


def test_the_table_counts_and_keeps_what_is_not_measured():
    score = Score(right=[("a", "TK101"), ("b", "TK101")], missed=[("c", "TK102")], false=[("d", "TK101")])
    first = table({"simulated": score, "real": score}, "")
    assert "| TK101 | 2 |  | 1 | 2 |  | 1 |" in first
    assert table({"simulated": Score(), "real": None}, first).splitlines()[2] == "| TK101 |  |  |  | 2 |  | 1 |"
    assert "0 of 0 named" in figures(score)
