"""What an analysis picks, measures and reports, on jobs laid out by hand."""

import json
from dataclasses import replace

import pytest
from handmade import COMPUTE, MAIN, SIDE, Sketch

from tracekit.analysis import analyze
from tracekit.errors import NoGpuWorkError, UsageError
from tracekit.metrics.accounting import PARTS, total
from tracekit.options import Options
from tracekit.results import Severity


def train(rank, steps=4, exposed=100):
    """Steps of 1000: compute 100-400 and 500-800, an all-reduce from 300 of which ``exposed`` is exposed.

    The windows are 100-1100, 1100-2100, ...; the last step ends at its own 800.
    """
    for number in range(steps):
        at = 1000 * number
        rank.range("step", at, at + 950, domain="tracekit", value=number)
        rank.range("layers.0", at, at + 50)
        rank.range("layers.1", at + 50, at + 90)
        rank.kernel(at + 100, at + 400, called=at + 10)
        rank.comm(at + 300, at + 400 + exposed, called=at + 20)
        rank.kernel(at + 500, at + 800, called=at + 60)
    return rank


def job(ranks=1, **facts):
    made = Sketch()
    for _ in range(ranks):
        train(made.process(), **facts)
    return made


def analysis(made, **options):
    return analyze(made.timeline(), Options(**options))


# --- measures ---


def test_a_rank_s_figures_by_hand():
    found = analysis(job())
    (rank,) = found.ranks
    assert (rank.start_ns, rank.end_ns, rank.main_stream, rank.step_source) == (100, 3800, COMPUTE, "tracekit")
    assert (rank.totals.wall_ns, rank.totals.compute_ns, rank.totals.idle_ns) == (3700, 2400, 900)
    assert (rank.totals.comm_ns, rank.totals.exposed_comm_ns) == (800, 400)
    assert [(step.step, step.start_ns, step.end_ns) for step in rank.steps] == [
        (0, 100, 1100),
        (1, 1100, 2100),
        (2, 2100, 3100),
        (3, 3100, 3800),
    ]
    assert (rank.kernels, rank.kernels_launched, rank.opaque_ns) == (12, 12, 0)
    assert (found.steady.steps, found.steady.left_out, found.steady.cut_off) == ((1, 2), (0,), (3,))
    assert (found.steady.step_time_ns, found.steady.account.wall_ns) == (1000, 1000)
    assert [step.followed for step in rank.steps] == [True, True, True, False]
    assert found.steady.account.exposed_comm_ns == 100


def test_every_nanosecond_has_a_cause():
    for step in analysis(job()).ranks[0].steps:
        assert sum(step.exposed_comm_by_cause.values()) == step.account.exposed_comm_ns
        assert sum(step.exposed_copy_by_cause.values()) == step.account.exposed_copy_ns
        assert sum(step.idle_by_cause.values()) == step.account.idle_ns
        assert 0 not in step.exposed_copy_by_cause.values()


def test_modules_share_out_the_steady_steps_only():
    found = analysis(job())
    (rank,) = found.ranks
    steady = [step.account for step in rank.steps if step.step in found.steady.steps]
    assert total(module.account for module in rank.modules) == total(steady)
    assert {module.module: module.account.compute_ns for module in rank.modules} == {"layers.0": 600, "layers.1": 600}


def test_without_steps_modules_share_out_everything():
    made = Sketch()
    rank = made.process()
    rank.range("layers.0", 0, 50)
    rank.kernel(10, 40, called=5)
    found = analysis(made)
    assert (found.steady, found.ranks[0].steps, found.ranks[0].step_source) == (None, (), None)
    assert total(module.account for module in found.ranks[0].modules) == found.ranks[0].totals


def test_graphs_are_compute_of_unknown_content():
    made = Sketch()
    rank = made.process()
    rank.kernel(0, 30)
    rank.graph(20, 50)
    rank.graph(40, 60, stream=SIDE)
    found = analysis(made).ranks[0]
    assert (found.totals.compute_ns, found.opaque_ns, found.kernels) == (60, 40, 3)


# --- what is picked ---


def test_picked_ranks():
    made = job(ranks=3)
    assert [rank.rank for rank in analysis(made, ranks=frozenset({0, 2})).ranks] == [0, 2]
    with pytest.raises(UsageError, match="no rank 7") as error:
        analysis(made, ranks=frozenset({1, 7}))
    assert "0-2" in error.value.hint


def test_picked_steps_are_the_steady_ones():
    found = analysis(job(), steps=frozenset({0, 2}))
    assert [step.step for step in found.ranks[0].steps] == [0, 2]
    assert (found.steady.steps, found.steady.left_out) == ((0, 2), ())
    assert found.steady.account.wall_ns == 1000
    assert total(module.account for module in found.ranks[0].modules) == total(
        step.account for step in found.ranks[0].steps
    )


def test_steps_that_are_not_there():
    with pytest.raises(UsageError, match="no step 8") as error:
        analysis(job(), steps=frozenset({8, 9}))
    assert "0-3" in error.value.hint
    made = Sketch()
    made.process().kernel(0, 10)
    with pytest.raises(UsageError, match="hold no steps"):
        analysis(made, steps=frozenset({0}))


def test_skip_warmup():
    assert analysis(job(), skip_warmup=2).steady.steps == (2,)
    assert analysis(job(), skip_warmup=0).steady.steps == (0, 1, 2)


def test_a_window_cuts_totals_and_keeps_whole_steps():
    found = analysis(job(), window=(1050, 3200))
    (rank,) = found.ranks
    assert (rank.start_ns, rank.end_ns) == (1050, 3200)
    assert rank.totals.wall_ns == 2150
    assert sum(getattr(rank.totals, part) for part in PARTS) == 2150
    assert [step.step for step in rank.steps] == [1, 2]
    assert all(step.followed for step in rank.steps)  # the next one begins outside of the window
    assert sum(row.exposed_ns for row in found.collectives) == rank.totals.exposed_comm_ns == 200


def test_a_window_open_at_one_side_reaches_to_the_capture_s_end():
    assert analysis(job(), window=(None, 900)).ranks[0].totals.wall_ns == 800
    assert analysis(job(), window=(3000, None)).ranks[0].totals.wall_ns == 800


@pytest.mark.parametrize("window", [(3800, 5000), (0, 100), (None, 50), (900, 800)])
def test_a_window_without_gpu_work(window):
    with pytest.raises(UsageError, match="rank 0 has no GPU work in it"):
        analysis(job(), window=window)


def test_a_marker_gives_the_steps():
    found = analysis(job(), step_marker=r"layers\.1").ranks[0]
    assert (found.step_source, [step.start_ns for step in found.steps]) == (r"layers\.1", [500, 1500, 2500, 3500])


def test_a_marker_that_marks_nothing():
    with pytest.raises(UsageError, match="'nonsense'") as error:
        analysis(job(), step_marker="nonsense")
    assert "tracekit info" in error.value.hint


def test_without_ranks_there_is_nothing_to_account_for():
    empty = replace(job().timeline(), ranks=())
    with pytest.raises(NoGpuWorkError):
        analyze(empty)


# --- across captures ---


def test_ranks_of_one_capture_share_its_clock():
    assert {rank.clock.offset_ns for rank in analysis(job(ranks=2)).ranks} == {0}
    assert {rank.clock.method for rank in analysis(job(ranks=2)).ranks} == {"same_capture"}


def two_captures():
    made = Sketch()
    train(made.process(capture=0))
    train(made.process(capture=1))
    return made


def test_clocks_of_two_captures_differ_by_their_start():
    """The second one started 250 ns later, so its clock reads 250 less at the same moment."""
    found = analyze(two_captures().timeline(epochs={0: 10_000, 1: 10_250}))
    assert [rank.clock.offset_ns for rank in found.ranks] == [0, -250]
    assert found.ranks[1].clock.method == "session_start"
    assert [capture.ranks for capture in found.captures] == [(0,), (1,)]


def test_clocks_without_a_wall_clock_are_unknown():
    found = analyze(two_captures().timeline(epochs={0: 10_000}))
    assert (found.ranks[1].clock.offset_ns, found.ranks[1].clock.method) == (None, None)


def test_the_world_s_size_comes_from_the_trainer_s_mark():
    """GIVEN two captured ranks of a world of two, or of three, THEN transfer is told only where all are there."""
    for size, transfer in ((2, 200), (3, None)):
        made = Sketch()
        for _ in range(2):
            train(
                made.process(marks=[("tracekit", json.dumps({"world_size": size})), (None, "{not json"), (None, "{}")])
            )
        assert analysis(made).collectives[0].transfer_ns == transfer


# --- findings ---


def codes(found):
    return [finding.rule for finding in found.findings]


@pytest.mark.parametrize(
    ("exposed", "severity"),
    [(0, None), (19, None), (20, Severity.WARNING), (99, Severity.WARNING), (100, Severity.ERROR)],
)
def test_exposed_communication_is_reported_from_two_percent_of_the_step(exposed, severity):
    """The steady steps are 1000 long; the last one of 700 was cut off."""
    found = analysis(job(exposed=exposed))
    reported = [finding for finding in found.findings if finding.rule == "TK100"]
    assert [finding.severity for finding in reported] == ([severity] if severity else [])
    for finding in reported:
        assert (finding.cost_ns, finding.steps, finding.ranks) == (exposed, (1, 2), (0,))
        assert finding.evidence[0].value == round(exposed / 1000, 4)
        assert finding.evidence[0].threshold == 0.02


def test_without_steps_the_whole_capture_counts_as_one():
    made = Sketch()
    rank = made.process()
    rank.kernel(0, 50)
    rank.comm(50, 100)
    found = analysis(made)
    assert set(codes(found)) == {"TK100", "TK901", "TK907"}
    by_rule = {finding.rule: finding for finding in found.findings}
    assert (by_rule["TK100"].cost_ns, by_rule["TK100"].steps) == (50, ())
    assert by_rule["TK901"].severity is Severity.INFO


def test_a_rank_without_steps_is_named():
    made = job()
    made.process().kernel(0, 10, called=0)
    (finding,) = [finding for finding in analysis(made).findings if finding.rule == "TK901"]
    assert finding.ranks == (1,)


def test_no_communication_is_a_finding():
    made = Sketch()
    rank = made.process()
    rank.range("step 1", 0, 100)
    rank.kernel(0, 50, called=0)
    assert codes(analysis(made)) == ["TK902"]


def test_graphs_are_a_finding():
    made = job()
    made.processes[0].graph(100, 200, called=15)
    (finding,) = [finding for finding in analysis(made).findings if finding.rule == "TK903"]
    assert finding.evidence[0].value == round(100 / 2400, 4)


def test_a_rank_that_two_captures_claim_is_a_finding():
    found = analyze(job(ranks=2).timeline(rank_conflicts=((1, ("a.sqlite", "b.sqlite")),)))
    (finding,) = [finding for finding in found.findings if finding.rule == "TK905"]
    assert (finding.ranks, finding.severity) == ((1,), Severity.WARNING)


@pytest.mark.parametrize(("lost", "reported"), [(0, False), (1, False), (2, True)])
def test_missing_launch_rows_are_reported_below_95_percent(lost, reported):
    made = Sketch()
    rank = made.process()
    rank.range("step 1", 0, 1000)
    for at in range(20):
        rank.kernel(20 * at, 20 * at + 10, called=None if at < lost else 20 * at)
    assert ("TK907" in codes(analysis(made))) is reported


def test_costliest_findings_come_first():
    made = job()
    made.processes[0].graph(100, 200, called=15)
    assert codes(analysis(made)) == ["TK415", "TK100", "TK903"]


def test_rules_can_be_left_out():
    assert analysis(job(), rules=False).findings == ()


def test_what_would_tell_more_is_said():
    lacks = ("nvtx", "nccl_payload", "memory")
    told = [what for what, _ in analyze(job().timeline(lacks=lacks)).remedies]
    assert len(told) == 3  # NVTX, payloads, and the other ranks' captures; memory is no matter of time
    assert any("one rank only" in what for what in told)
    assert not any("one rank only" in what for what, _ in analysis(job(ranks=2)).remedies)
    made = Sketch()
    made.process().kernel(0, 10)
    assert len(analyze(made.timeline(lacks=lacks)).remedies) == 1


# --- captures without GPU work ---


def test_the_host_s_view_of_steps():
    """The time of each phase on the thread of the steps, the innermost where they nest."""
    made = Sketch()
    rank = made.process(marks=[])
    rank.range("step", 0, 100, domain="tracekit", value=5)
    rank.range("data", 0, 20, domain="tracekit", thread=MAIN)
    rank.range("forward", 20, 60, domain="tracekit")
    rank.range("zero_grad", 30, 35)
    found = analyze(made.timeline(), Options(allow_no_gpu=True))
    (host,) = found.host_ranks
    assert (host.step_source, found.ranks) == ("tracekit", ())
    (step,) = host.steps
    assert (step.step, step.start_ns, step.end_ns, step.open) == (5, 0, 100, False)
    assert step.by_phase_ns == {"data": 20, "forward": 35, "optimizer": 5}
