"""Gains on simulated jobs: what the same job without its fault takes less, by the simulation and not by a replay."""

from statistics import mean

import pytest
from lab.capture import write
from lab.loop import run
from lab.scenarios import scenarios

import tracekit
from tracekit.options import Options

BY_NAME = {scenario.name: scenario for scenario in scenarios()}


def simulated(name, folder):
    """(analysis, what a steady step takes less in the job without the fault, ns)."""
    scenario = BY_NAME[name]
    now, then = run(scenario.settings, scenario.fault), run(scenario.without or scenario.settings)
    (folder / "now").mkdir()
    (folder / "then").mkdir()
    found = tracekit.analyze(tracekit.open(*write(now, folder / "now")))
    twin = tracekit.analyze(tracekit.open(*write(then, folder / "then")), Options(rules=False))
    walls = [
        mean(s.account.wall_ns for r in each.ranks for s in r.steps if s.step in found.steady.steps)
        for each in (found, twin)
    ]
    return found, walls[0] - walls[1]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("moe_hot_1.3", "TK201"),  # waits handed on through all-to-alls
        ("moe_hot_plain_2.0", "TK201"),
        ("root_rs_3000", "TK107"),
        ("root_rs_ddp_1500", "TK107"),
        ("root_ag_6000", "TK106"),
        ("accumulation_zero2_11500", "TK111"),  # reductions that queue, whose gradients come from compute
        ("data_2500", "TK405"),  # a pause between steps, without a range that says so
        ("throttle_7_1.2", "TK201"),  # late from a step on: the gain is on the mean step
        ("pageable_6000", "TK408"),
    ],
)
def test_a_gain_is_what_the_job_without_the_fault_takes_less(name, rule, tmp_path):
    found, truth = simulated(name, tmp_path)
    gains = [finding.gain_ns for finding in found.findings if finding.rule == rule]
    assert gains == [pytest.approx(truth, rel=0.06)]


@pytest.mark.parametrize("name", ["compute_stream_500", "compute_stream_1500"])
def test_collectives_leave_the_compute_stream(name, tmp_path):
    found, truth = simulated(name, tmp_path)
    assert [f.gain_ns for f in found.findings if f.rule == "TK104"] == [pytest.approx(truth, rel=0.25)]


def test_sends_that_nobody_is_matched_with_leave_the_gain_unknown(tmp_path):
    """A ring of sends of which the capture does not tell who receives."""
    found, _ = simulated("cp_slow_1.3", tmp_path)
    (straggler,) = [finding for finding in found.findings if finding.rule == "TK201"]
    assert straggler.gain_ns is None


@pytest.mark.parametrize("name", ["jitter_0.8", "jitter_1.1", "jitter_zero3_0.8"])
def test_a_network_without_jitter(name, tmp_path):
    found, truth = simulated(name, tmp_path)
    assert [f.gain_ns for f in found.findings if f.rule == "TK209"] == [pytest.approx(truth, rel=0.25)]


@pytest.mark.parametrize("name", ["link_6", "link_payload_9"])
def test_an_even_link(name, tmp_path):
    found, truth = simulated(name, tmp_path)
    assert [f.gain_ns for f in found.findings if f.rule == "TK207"] == [pytest.approx(truth, rel=0.06)]
