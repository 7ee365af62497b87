"""Simulated jobs: what is measured is what the simulation did."""

import pytest
from lab.capture import write
from lab.labels import label
from lab.loop import run
from lab.scenarios import scenarios

import tracekit

CHOSEN = (
    "healthy_fsdp",
    "healthy_drift",
    "healthy_tp_seqpar",
    "healthy_pp",
    "healthy_moe",
    "healthy_cp",
    "slow_hsdp_1.3",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_totals_and_steps_are_those_of_the_simulation(name, tmp_path):
    scenario = next(s for s in scenarios() if s.name == name)
    job = run(scenario.settings, scenario.fault)
    paths = write(job, tmp_path)
    truth = label(scenario, job, None, [])
    analysis = tracekit.analyze(tracekit.open(*paths))
    for rank in analysis.ranks:
        for field, value in truth["totals"][str(rank.rank)].items():
            assert getattr(rank.totals, field) == pytest.approx(value, abs=1e-9), (rank.rank, field)
    assert analysis.steady.step_time_ns == pytest.approx(truth["step_time_ns"], rel=1e-3)
