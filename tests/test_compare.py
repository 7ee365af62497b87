"""Two runs held against each other: pairs of samples whose difference is known, and made-up runs."""

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.builders import by_hand, make_analysis, some_findings, straggler

import tracekit
from tracekit.compare import compare
from tracekit.comparison import Verdict
from tracekit.report.comparing import certainty, sections, sentence
from tracekit.results import Efficiency, SkippedRule
from tracekit.rules import RULES

SAMPLES = Path(__file__).parents[1] / "sample_traces"
TERMS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
CAUSES = {
    "TK101": {"no_prefetch"},
    "TK102": {"no_prefetch"},
    "TK103": {"queued_behind_comm"},
    "TK104": {"on_compute_stream"},
    "TK105": {"latency_bound"},
    "TK106": {"first_gather"},
    "TK107": {"last_reduce"},
    "TK108": {"launch_order"},
    "TK109": {"bandwidth"},
    "TK110": {"optimizer_phase"},
    "TK111": {"microbatch_reduce"},
    "TK112": {"microbatch_reduce"},
    "TK113": {"compute"},
    "TK201": {"peer_wait"},
    "TK202": {"peer_wait"},
    "TK204": {"peer_wait"},
    "TK205": {"peer_wait"},
    "TK207": {"last_reduce"},
    "TK401": {"host_other"},
    "TK402": {"sync_call"},
    "TK403": {"allocator"},
    "TK404": {"rate_limiter"},
    "TK405": {"data_loading", "peer_wait"},
    "TK407": {"copies", "idle"},
    "TK408": {"pageable", "input"},
    "TK413": {"compute"},
    "TK414": {"offload"},
}
"""What the sentence has to name for each fault: the cause, or the term where it has none. A slow link makes the last
reduction slow."""


@cache
def truth(folder, name):
    return json.loads((folder / f"{name}.expected.json").read_text())


@cache
def analysis(folder, name, steps=None):
    timeline = tracekit.open(*(folder / path for path in truth(folder, name)["captures"]))
    return tracekit.analyze(timeline, tracekit.Options(steps=steps))


BUILT = {rule.code for rule in RULES}
PAIRED = sorted(
    path.name.removesuffix(".expected.json")
    for path in SAMPLES.glob("*.expected.json")
    if json.loads(path.read_text())["without_fault"]
)


@pytest.mark.parametrize("name", PAIRED)
def test_the_difference_of_a_pair_is_the_fault(name, twins):
    """The change of the step and of each term is the laid-out one, and the sentence names the fault's cause."""
    facts = truth(SAMPLES, name)
    found = compare(analysis(SAMPLES, name), analysis(twins, f"{name}_fixed"))
    before, after = facts["steady"], facts["without_fault"]

    def expected(key):
        return after["sums"][key] / after["windows"] - before["sums"][key] / before["windows"]

    assert found.step_time.difference == pytest.approx(expected("wall_ns"), abs=2)
    assert [t.change.metric for t in found.terms] == list(TERMS)
    for term in found.terms:
        assert term.change.difference == pytest.approx(expected(term.change.metric), abs=3)
        if term.causes:
            assert sum(cause.difference for cause in term.causes) == term.change.difference
    assert sum(term.change.difference for term in found.terms) == found.step_time.difference
    said = sentence(found)
    assert "shorter" in said
    assert any(word in said for word in CAUSES[facts["findings"][0]]), said
    gone = {row.rule for row in found.findings if row.status == "went"}
    assert set(facts["findings"]) & BUILT - {"TK904"} <= gone
    assert (found.step_time.verdict is Verdict.TOO_FEW_STEPS) == (len(before["steps"]) < 3)
    assert found.regression == (None if len(before["steps"]) < 3 else 0)


@pytest.mark.parametrize("name", ["straggler_4ranks", "recompute", "offload", "zero3_no_prefetch"])
def test_a_fault_that_comes_is_a_regression(name, twins):
    facts = truth(SAMPLES, name)
    found = compare(analysis(twins, f"{name}_fixed"), analysis(SAMPLES, name))
    slower = facts["steady"]["step_time_ns"] / facts["without_fault"]["step_time_ns"] - 1
    assert found.step_time.verdict is Verdict.DIFFERS
    assert found.regression == pytest.approx(slower, abs=0.01)
    assert set(facts["findings"]) & BUILT <= {row.rule for row in found.findings if row.status == "came"}


def test_two_halves_of_a_healthy_job_are_inside_the_noise(twins):
    """Eight steady steps without a fault, four and four; also alternating."""
    steps = truth(twins, "gc_pauses_fixed")["steady"]["steps"]
    for first in (frozenset(steps[:4]), frozenset(steps[::2])):
        halves = (analysis(twins, "gc_pauses_fixed", s) for s in (first, frozenset(steps) - first))
        found = compare(*halves)
        assert found.step_time.verdict is Verdict.WITHIN_NOISE
        assert {term.change.verdict for term in found.terms} == {Verdict.WITHIN_NOISE}
        assert found.regression == 0
        assert sentence(found).startswith("The step takes as long as before")


def test_a_run_does_not_differ_from_itself():
    for name in ("straggler_4ranks", "sync_call", "hsdp_accumulation", "forward_prefetch_off"):
        run = analysis(SAMPLES, name)
        found = compare(run, run)
        changes = [found.step_time, *found.figures, *found.bytes_per_step]
        changes += [c for term in found.terms for c in (term.change, *term.causes)]
        assert {change.difference for change in changes} <= {0, None}
        assert Verdict.DIFFERS not in {change.verdict for change in changes}
        assert {row.status for row in found.findings} <= {"stayed"}
        assert [row for row in found.collectives if row.base != row.new] == []
        assert found.notes == ()


@cache
def made_up(seed=0, steps=9, slower=1.0):
    """`by_hand` with many steps, of a length that varies by 1 %."""
    run = make_analysis(by_hand())
    rng = random.Random(seed)
    ranks = []
    factors = [slower * rng.uniform(0.99, 1.01) for _ in range(steps)]
    for rank in run.ranks:
        own = []
        for number, factor in enumerate(factors):
            part = rank.steps[-1].account
            compute = round(part.compute_ns * factor)
            account = replace(part, compute_ns=compute, wall_ns=part.wall_ns - part.compute_ns + compute)
            own.append(replace(rank.steps[-1], step=number, account=account))
        ranks.append(replace(rank, steps=tuple(own)))
    means = [sum(r.steps[i].account.wall_ns for r in ranks) / len(ranks) for i in range(steps)]
    compute = round(sum(s.account.compute_ns for r in ranks for s in r.steps) / len(ranks) / steps)
    shrunk = replace(
        run.steady.account,
        compute_ns=compute,
        wall_ns=run.steady.account.wall_ns - run.steady.account.compute_ns + compute,
    )
    steady = replace(
        run.steady, steps=tuple(range(steps)), step_time_ns=round(sorted(means)[steps // 2]), account=shrunk
    )
    return replace(run, ranks=tuple(ranks), steady=steady)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.9, 1.0, 1.1]))
def test_the_other_way_round_is_the_mirror(seed, other, steps, more, slower):
    base, new = made_up(seed, steps), made_up(other, more, slower)
    there, back = compare(base, new), compare(new, base)
    pairs = [(there.step_time, back.step_time), *zip(there.figures, back.figures, strict=True)]
    pairs += [(a.change, b.change) for a, b in zip(there.terms, back.terms, strict=True)]
    for a, b in pairs:
        assert (a.base, a.new, a.verdict) == (b.new, b.base, b.verdict)
        if a.low is not None:
            assert (a.shift, a.low, a.high) == (-b.shift, -b.high, -b.low)


def test_the_gate_counts_a_typical_step_and_not_an_outlier():
    base, slow = made_up(1), made_up(2, 9, 1.05)
    found = compare(base, slow)
    # Compute is 60 and 80 of 100 ms: 5 % more of it is 3.5 ms.
    assert found.regression == pytest.approx(0.035, abs=0.01)
    first = slow.ranks[0]
    stretched = replace(first.steps[0], account=replace(first.steps[0].account, wall_ns=10**9))
    outlier = replace(slow, ranks=(replace(first, steps=(stretched, *first.steps[1:])), *slow.ranks[1:]))
    assert compare(base, outlier).regression == pytest.approx(found.regression, abs=0.01)


def test_noise_that_hides_a_regression_is_known():
    found = compare(made_up(1, 3), made_up(2, 3))
    assert found.step_time.verdict is Verdict.WITHIN_NOISE
    assert found.hides(0.0001)
    assert not found.hides(0.1)


def test_runs_that_are_not_of_one_job_are_told():
    run = make_analysis(by_hand())
    other = replace(run, ranks=run.ranks[:1], world_size=None)
    assert "Not the same number of ranks: base 2, new 1." in compare(run, other).notes


def trained(tokens, **changes):
    """By hand: a step of 100 ms that holds so many tokens."""
    run = make_analysis(by_hand())
    used = Efficiency(
        tokens_per_s=tokens * 1e9 / run.steady.step_time_ns,
        mfu=None,
        hfu=None,
        flops_per_token=None,
        peak_tflops=None,
        formula=None,
        reason=None,
        bound_by=None,
        tokens_per_step=tokens,
    )
    return replace(run, efficiency=used, **changes)


def test_jobs_with_different_tokens_a_step_have_no_headline_about_the_step():
    base, new = trained(8192), trained(4096)
    found = compare(base, new)
    assert found.unlike == ("tokens a step",)
    assert "Not the same tokens a step: base 8192, new 4096." in found.notes
    said = sentence(found)
    assert said.startswith("Throughput is 81.9 k and 41 k tokens/s, of two different jobs")
    assert "shorter" not in said
    assert (found.regression, certainty(found)) == (None, "")


def test_throughput_leads_where_it_is_known():
    found = compare(trained(8192), trained(8192))
    assert found.unlike == ()
    first, second = list(sections(found, everything=False))[:2]
    assert first.heads[0] == "Throughput"
    assert first.rows[0][:3] == ("tokens/s", "81.9 k", "81.9 k")
    assert "tokens/s" not in [row[0] for row in second.rows]
    assert "takes as long as before" in sentence(found)


def test_jobs_of_different_size_are_told_apart():
    run = make_analysis(by_hand())
    found = compare(run, replace(run, world_size=16))
    assert found.unlike == ("number of ranks",)
    assert sentence(found) == "Two different jobs (not the same number of ranks): their step times do not compare"


def test_versions_of_the_profiler_are_listed_and_make_no_other_job():
    run = make_analysis(by_hand())
    base, new = (
        replace(run, captures=tuple(replace(c, nsys_version=version) for c in run.captures))
        for version in ("2024.1", "2025.3")
    )
    found = compare(base, new)
    assert "Not the same version of the profiler: base 2024.1, new 2025.3." in found.notes
    assert found.unlike == ()


def test_a_run_without_steps_has_no_times():
    run = make_analysis(by_hand())
    bare = replace(run, steady=None, ranks=tuple(replace(rank, steps=()) for rank in run.ranks))
    found = compare(run, bare)
    assert (found.step_time.difference, found.step_time.verdict, found.terms, found.regression) == (
        None,
        None,
        (),
        None,
    )
    assert sentence(found) == "The step times cannot be compared: new has no steps"
    # Both ranks: 40 ms of communication a step, of which 10 and 30 ms are hidden; by hand.
    assert [c.new for c in found.figures if c.metric == "overlap_ratio"] == [0.5]


def test_a_rule_that_could_not_be_checked_has_not_gone():
    base = make_analysis(by_hand(), findings=some_findings())
    none = make_analysis(by_hand())
    with_sharding = replace(none, sharding=analysis(SAMPLES, "ddp").sharding)
    blind = replace(with_sharding, skipped_rules=(SkippedRule(rule="TK101", reason="x", capture_with=None),))
    status = {row.rule: row.status for row in compare(base, blind).findings}
    assert status == {"TK201": "went", "TK101": "not_checked_in_new", "TK902": "went"}
    assert {row.status for row in compare(base, none).findings} == {"not_checked_in_new"}


def test_stragglers_of_both_runs_are_listed():
    run = make_analysis(by_hand())
    found = compare(replace(run, stragglers=(straggler(0),)), replace(run, stragglers=(straggler(1),)))
    assert [(row.rank, row.base, row.new) for row in found.stragglers] == [
        (0, "persistent, slow_compute", None),
        (1, None, "persistent, slow_compute"),
    ]


def test_collectives_are_put_together_by_op_and_role():
    """Communicators have other hashes in each run; shards and replicas are told apart by how many ranks they have."""
    found = compare(analysis(SAMPLES, "straggler_32ranks_4nodes"), analysis(SAMPLES, "ddp"))
    rows = {(row.op, row.role): (row.base, row.new) for row in found.collectives}
    facts = [row for row in truth(SAMPLES, "straggler_32ranks_4nodes")["collectives"] if row["op"] == "all_gather"]
    base, new = rows["all_gather", "groups of 8"]
    assert new is None
    assert base.communicators == len(facts) == 4
    assert base.count == sum(row["count"] for row in facts)
    assert base.bytes == facts[0]["full_bytes"]
    assert rows["all_reduce", "all ranks"][0] is None
