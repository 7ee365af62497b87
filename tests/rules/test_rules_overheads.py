"""TK404, TK409 to TK413, TK501, TK909: each fires on its fault, and on nothing that looks like it."""

from dataclasses import replace

import host_jobs as jobs
import pytest
from host_jobs import STEPS, US, job
from nsys_builder import Export
from test_rules_host import ALWAYS, STEADY, findings, value

import tracekit
from tracekit.results import Severity

OURS = {"TK404", "TK409", "TK410", "TK411", "TK412", "TK413", "TK501"}

CASES = [
    (jobs.gather_behind_event, "TK404"),
    (jobs.gather_without_a_wait, None),
    (jobs.gather_long_after, None),
    (jobs.first_use, "TK409"),
    (jobs.first_use_after_a_pause, None),
    (jobs.pause_in_step_2, None),
    (jobs.optimizer, "TK411"),
    (jobs.small_optimizer, None),
    (jobs.churn, "TK501"),
    (jobs.retry, None),
    (jobs.backward(*jobs.FORWARD_PASS, *jobs.GRADIENTS), "TK413"),
    (jobs.backward(*jobs.GRADIENTS), None),
]


@pytest.mark.parametrize(("fault", "rule"), CASES, ids=[f"{fault.__name__}-{rule}" for fault, rule in CASES])
def test_a_rule_fires_on_its_fault_and_on_no_other(fault, rule):
    found = findings(job(None, between=fault))
    assert set(found) & OURS == ({rule} if rule else set())


def test_tk404_takes_the_wait_from_tk402():
    found = findings(job(None, between=jobs.gather_behind_event))
    assert "TK402" not in found


def test_tk409_in_numbers():
    found = findings(job(None, between=jobs.first_use))["TK409"]
    assert found.steps == (3,)
    assert value(found, "gaps that a kernel's first launch ends") == 1
    assert found.title.startswith("Kernels are loaded when they are first used in step 3:")
    assert found.cost_ns == pytest.approx(406 * US / STEADY, rel=0.01)


def test_tk409_claims_the_launch_and_not_the_silence_before_it():
    """Half a second without a call, then a first launch of 40 ms: only that is known to be loading."""

    def silent_before(p):
        if p.step != 3:
            return p
        at = p.gpu + 500_000
        p.rank.kernel(
            jobs.us(at + 40_006), jobs.us(at + 40_106), name="new", called=(jobs.us(at), jobs.us(at + 40_000))
        )
        return jobs.moved(p, at + 40_010, at + 40_106)

    found = findings(job(None, between=silent_before))
    assert found["TK409"].cost_ns == pytest.approx(40_006 * US / STEADY, rel=0.001)
    assert found["TK406"].cost_ns == pytest.approx(500_000 * US / STEADY, rel=0.001)


@pytest.mark.parametrize(
    ("calls", "first_use_us"),
    [
        ([("cuInit", 1_500, 1_501), ("cuLibraryLoadData", 1_800, 1_900)], 2_000),  # a library: from the gap's start on
        ([("cuLibraryLoadData", 1_400, 1_900)], 600),  # code: from its first call on
        ([("cuModuleLoadDataEx", 1_400, 1_410), ("cuModuleLoadDataEx", 1_800, 1_810)], 600),
        ([("cudaStreamBeginCapture", 500, 501), ("cudaGraphInstantiate", 900, 1_900)], 1_500),
        ([("cuKernelGetName", 100, 110), ("cudaEventRecord", 1_000, 1_010)], 0),
    ],
)
def test_first_use_by_the_calls_in_the_gap(calls, first_use_us):
    """A gap of 2 ms in step 3, ended by a quick launch of a kernel that was used before."""

    def loads(p):
        if p.step != 3:
            return p
        for name, start, end in calls:
            p.call(name, p.gpu + start, p.gpu + end)
        return jobs.moved(p, p.gpu + 1_987)

    timeline = job(loads)
    step = next(s for s in tracekit.analyze(timeline).ranks[0].steps if s.step == 3)
    assert step.idle_by_cause.get("first_use", 0) == pytest.approx(first_use_us * US, abs=15 * US)
    assert sum(step.idle_by_cause.values()) == step.account.idle_ns


def test_tk409_in_warm_up_is_said_and_costs_nothing():
    """20 ms of loading in the first step, which is in no figure; 0.2 ms of it would not be worth a word."""

    def in_the_first_step(p, *, took=20_000):
        if p.step:
            return p
        p.rank.kernel(
            jobs.us(p.gpu + took + 6),
            jobs.us(p.gpu + took + 106),
            name="new",
            called=(jobs.us(p.gpu), jobs.us(p.gpu + took)),
        )
        return jobs.moved(p, p.gpu + took + 10, p.gpu + took + 106)

    found = findings(job(None, between=in_the_first_step))["TK409"]
    assert (found.cost_ns, found.gain_ns, found.steps, found.severity) == (None, None, (), Severity.INFO)
    assert "in warm-up" in found.title
    assert "TK409" not in findings(job(None, between=lambda p: in_the_first_step(p, took=210)))


def test_tk409_again_and_again():
    def each_step(p):
        p.call("cuModuleLoadData", p.gpu + 100, p.gpu + 900)
        return jobs.moved(p, p.gpu + 1_000)

    found = findings(job(each_step))["TK409"]
    assert "again and again" in found.title
    assert "unloaded or compiled anew" in found.fix


def test_tk403_says_growth_where_next_to_nothing_is_freed():
    def grows(p):
        if p.step == 2:
            p.call("cudaFree", p.host, p.gpu + 50)
        for k in range(3):
            p.call("cudaMalloc", p.gpu + 100 + 300 * k, p.gpu + 390 + 300 * k)
        return jobs.moved(p, p.gpu + 1_000)

    found = findings(job(grows))["TK403"]
    assert "runs out of memory" not in found.title
    assert "first grows" in found.fix


def test_tk410_in_numbers():
    found = findings(job(jobs.recompile))["TK410"]
    assert found.title == "torch.compile compiles again in 1 of 4 steps"
    assert found.cost_ns == pytest.approx(5_018 * US / STEADY, rel=0.01)


def test_tk410_takes_the_pause_from_tk406():
    assert set(findings(job(jobs.recompile))) - ALWAYS == {"TK410"}
    assert set(findings(job(jobs.pause_in_step_2))) - ALWAYS == {"TK406"}


def test_tk411_in_numbers():
    found = findings(job(None, between=jobs.optimizer))["TK411"]
    assert value(found, "kernels of the optimizer") == 150
    assert found.cost_ns == pytest.approx(149 * 9 * US * 3 / STEADY, rel=0.4)
    assert "fused=True" in found.fix


def test_tk411_without_phases_is_not_checked():
    skipped = {s.rule for s in tracekit.analyze(job(phases=False)).skipped_rules}
    assert {"TK411", "TK413"} <= skipped


def test_tk412_finds_slow_first_steps_in_the_figures():
    """GIVEN steps 0 to 2 twice as long, THEN they are left out, and only with --skip-warmup 0 in the figures."""
    timeline = job(jobs.slow_first_steps, steps=8)
    assert "TK412" not in findings(timeline)
    found = findings(timeline, skip_warmup=0)["TK412"]
    assert found.steps == (0, 1, 2)
    assert value(found, "longest of them") == 2
    assert value(found, "mean step without them") == 5
    assert (found.cost_ns, found.severity) == (None, Severity.INFO)


def test_tk413_in_numbers():
    """Five kernels of 1 ms come again in a step of 16 ms."""
    found = findings(job(None, between=jobs.backward(*jobs.FORWARD_PASS, *jobs.GRADIENTS)))["TK413"]
    assert value(found, "recomputing") == 5
    assert value(found, "forward time whose kernels come again in backward") == 1
    assert (found.cost_ns, found.severity) == (None, Severity.INFO)
    assert found.title.startswith("31 % of the step")


def test_tk501_in_numbers():
    found = findings(job(None, between=jobs.churn))["TK501"]
    assert value(found, "calls that allocate") >= 10
    assert found.cost_ns == 0
    assert found.severity == Severity.INFO


def test_tk501_is_not_said_of_the_first_steps():
    assert "TK501" not in findings(job(None, between=lambda p: jobs.churn(p) if p.step == 0 else p))


# --- TK909 ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Not all CUDA events might have been collected.", True),
        ("Not all CUDA hardware trace events might have been collected.", True),
        ("Some GPU metric events were dropped.", True),
        ("12 events have been lost.", True),
        ("Number of NVTX events dropped: 12", False),
        ("Not all NVTX events might have been collected.", False),
        ("Not all OS runtime libraries events might have been collected.", False),
        ("Not all OpenGL events might have been collected.", False),
        ("CPU IP/backtrace samples were dropped.", False),
        ("No CUDA events collected. Does the process use CUDA?", False),
        ("CPU sampling is not supported.", False),
    ],
)
def test_tk909_believes_the_profilers_own_words(text, says):
    timeline = job()
    told = replace(timeline, captures=tuple(replace(c, diagnostics=(text,)) for c in timeline.captures))
    found = findings(told)
    assert ("TK909" in found) == says
    if says:
        assert found["TK909"].severity == Severity.WARNING
        assert "lower bounds" in found["TK909"].title
        assert value(found["TK909"], "the profiler says") == text


def test_tk909_says_that_a_gap_could_be_what_was_lost():
    timeline = job(jobs.pause_in_step_2)
    lost = ("Not all CUDA events might have been collected.",)
    told = replace(timeline, captures=tuple(replace(c, diagnostics=lost) for c in timeline.captures))
    assert "looks like idle time" in findings(told)["TK909"].title


@pytest.mark.parametrize(("share", "says"), [(0.03, True), (0.01, False), (None, False)])
def test_tk909_counts_the_profilers_own_time(share, says):
    timeline = job()
    span = STEPS * 5_000 * US
    overhead = None if share is None else int(share * span)
    told = replace(timeline, ranks=tuple(replace(r, overhead_ns=overhead) for r in timeline.ranks))
    assert set(findings(told)) - ALWAYS == ({"TK909"} if says else set())


def test_tk909_reads_the_record_of_overhead(tmp_path):
    """Records of two threads at once count once; what lies before the first and after the last operation does not."""
    export = Export()
    export.columns["PROFILER_OVERHEAD"] = ["start", "end", "globalTid", "nameId", "returnValue"]
    export.kernel("gemm", 1_000, 2_000, call=(800, 900))
    export.add("PROFILER_OVERHEAD", start=1_100, end=1_400, globalTid=1, nameId=1, returnValue=0)
    export.add("PROFILER_OVERHEAD", start=1_200, end=1_500, globalTid=2, nameId=1, returnValue=0)
    for start, end in ((0, 1_050), (1_900, 90_000)):
        export.add("PROFILER_OVERHEAD", start=start, end=end, globalTid=1, nameId=1, returnValue=0)
    (rank,) = tracekit.open(export.write(tmp_path / "report.sqlite")).ranks
    assert rank.overhead_ns == 50 + 400 + 100
