"""TK401 to TK408 and TK414: each fires on its fault, and on nothing that looks like it."""

from dataclasses import replace

import host_jobs as jobs
import pytest
from handmade import AUTOGRAD, MAIN
from host_jobs import MB, STEPS, US, job
from nsys_builder import PID, global_tid, small_job

import tracekit
from tracekit.options import Options
from tracekit.results import Severity
from tracekit.rules.residue import PARTS, WORDS
from tracekit.timeline import OsCall

ALWAYS = {"TK902", "TK415"}
"""No communication, and what the fault leaves unexplained."""
"""The jobs do not communicate."""
STEADY = STEPS - 1


def findings(timeline, **options):
    return {finding.rule: finding for finding in tracekit.analyze(timeline, Options(**options)).findings}


def value(finding, metric):
    (found,) = [e.value for e in finding.evidence if e.metric == metric]
    return found


CASES = [
    # inside the forward pass
    (jobs.item, None, "TK402"),
    (jobs.event_of_long_ago, None, None),
    (jobs.retry, None, "TK403"),
    (jobs.growing, None, None),
    (jobs.retry_in_step_0, None, None),
    (jobs.loader, None, "TK405"),
    (jobs.quick_loader, None, None),
    (jobs.pause_in_step_2, None, "TK406"),
    (jobs.work_in_each_step, None, "TK401"),
    (jobs.pageable_input, None, "TK408"),
    (jobs.pinned_input_beside, None, None),
    (jobs.offload, None, "TK414"),
    (jobs.offload_beside, None, None),
    (jobs.small_kernels, None, "TK401"),
    (jobs.small_kernels_in_time, None, None),
    # between two steps
    (None, jobs.loader, "TK405"),
    (None, jobs.unannotated_loader, "TK405"),
    (None, jobs.quick_loader, None),
    (None, jobs.save, "TK407"),
    (None, jobs.save_small, None),
    (None, jobs.pageable_input, "TK408"),
    (None, jobs.item, "TK402"),
    (None, None, None),
]


@pytest.mark.parametrize(
    ("fault", "between", "rule"), CASES, ids=[f"{(c[0] or c[1] or job).__name__}-{c[2]}" for c in CASES]
)
def test_a_rule_fires_on_its_fault_and_on_no_other(fault, between, rule):
    timeline = job(fault, between=between)
    found = findings(timeline)
    fired = set(found) - ALWAYS
    if between is jobs.save_small:  # not a checkpoint, and yet something that the GPU waits for
        fired -= {"TK402", "TK405", "TK406", "TK408"}
    assert fired == ({rule} if rule else set())
    analysis = tracekit.analyze(timeline)
    claimed = sum(f.cost_ns or 0 for f in found.values())
    assert claimed <= analysis.steady.account.idle_ns + analysis.steady.account.exposed_copy_ns


def test_tk401_in_numbers():
    """120 kernels of 3 us a step, launched 12 us apart: 9 us of idle time before each but the first."""
    found = findings(job(jobs.small_kernels))["TK401"]
    assert found.cost_ns == pytest.approx(119 * 9 * US, rel=0.05)
    assert value(found, "idle gaps that end with a late launch") > 0.98
    assert value(found, "late launches") == pytest.approx(120, abs=2)
    assert value(found, "median kernel") == 3
    assert value(found, "median time from launch to launch") == 12
    assert found.severity == Severity.ERROR
    assert found.steps == tuple(range(1, STEPS))


def test_tk401_is_about_hosts_that_run_behind_all_the_time():
    assert "TK401" not in findings(job(lambda p: jobs.small_kernels(p, count=4)))


def test_tk401_without_launch_calls_is_not_checked():
    timeline = job()
    lacking = replace(timeline, captures=tuple(replace(c, lacks=("launch_rows",)) for c in timeline.captures))
    skipped = {s.rule: s.capture_with for s in tracekit.analyze(lacking).skipped_rules}
    assert {"TK401", "TK402", "TK403", "TK405", "TK406"} <= set(skipped)
    assert "nsys profile -t cuda" in skipped["TK401"]


def test_tk402_in_numbers():
    """From the copy's end the host needs 4 us to return, 300 of Python, and 8 to the kernel."""
    found = findings(job(jobs.item))["TK402"]
    assert found.cost_ns == 312 * US
    assert found.title == "cudaStreamSynchronize in forward lets the GPU run dry"
    assert value(found, "gaps that they begin") == 1
    assert value(found, "after a copy of a single value to the host") == 1
    assert ".item()" in found.fix


def test_tk402_knows_gradient_norms():
    def clip(p):
        p.rank.range("clip_grad_norm", jobs.us(p.host), jobs.us(p.gpu + 306))
        return jobs.item(p)

    found = findings(job(clip))["TK402"]
    assert "clip_grad_norm" in found.title
    assert "error_if_nonfinite" in found.fix


def test_tk403_in_numbers():
    found = findings(job(jobs.retry))["TK403"]
    assert (value(found, "calls that free"), value(found, "calls that allocate")) == (1, 1)
    assert found.cost_ns == 918 * US
    assert "expandable_segments" in found.fix


def test_tk405_in_numbers():
    found = findings(job(None, between=jobs.loader))["TK405"]
    assert value(found, "told by") == "ranges that load data"
    assert value(found, "longest wait") == pytest.approx(0.7, abs=0.02)
    assert found.cost_ns == pytest.approx(700 * US, rel=0.03)  # the last step, without a wait after it, was cut off
    found = findings(job(None, between=jobs.unannotated_loader))["TK405"]
    assert value(found, "told by") == "gaps between steps without a CUDA call"


def test_tk405_names_the_ranks():
    timeline = job(ranks=2, between=lambda p: jobs.loader(p) if p.rank.pid == 1001 else p)
    found = findings(timeline)["TK405"]
    assert found.ranks == (1,)
    assert found.title.endswith("on 1 of 2 ranks")
    assert found.cost_ns == pytest.approx(350 * US, rel=0.03)


def test_tk406_in_numbers():
    found = findings(job(jobs.pause_in_step_2))["TK406"]
    assert found.steps == (2,)
    assert value(found, "pauses without a CUDA call") == 1
    assert value(found, "longest pause") == pytest.approx(2.5, abs=0.02)
    assert value(found, "steps with a pause") == 1 / STEADY
    assert found.cost_ns == pytest.approx(2_508 * US / STEADY, rel=0.01)


def test_tk406_names_the_one_step_that_pauses():
    assert findings(job(jobs.pause_in_step_2))["TK406"].title == "Step 2, once: the host makes no CUDA call for 2.5 ms"


def test_tk406_suspects_the_collector_only_of_pauses_that_come_again():
    def now_and_then(p):
        return jobs.moved(p, p.gpu + 2_500) if p.step in (2, 4) else p

    often = findings(job(now_and_then, steps=7))["TK406"]
    assert often.title == "The host pauses now and then: it makes no CUDA call for 2.5 ms, in 2 of 6 steps"
    assert "gc.collect()" in often.fix
    assert "garbage" not in findings(job(jobs.pause_in_step_2))["TK406"].fix


def test_tk406_says_what_range_the_host_is_in():
    def evaluation(p):
        if p.step == 2:
            p.rank.range("save samples", jobs.us(p.host), jobs.us(p.gpu + 2_490))
        return jobs.pause_in_step_2(p)

    found = findings(job(evaluation))["TK406"]
    assert found.title == "Step 2, once: the host is in save samples for 2.5 ms"
    assert "garbage" not in found.fix


@pytest.mark.parametrize(
    ("name", "thread", "advice"),
    [
        ("read", MAIN, "read ahead"),
        ("fsync", MAIN, "write in a thread"),
        ("pthread_cond_wait", MAIN, "another one"),
        ("nanosleep", MAIN, "sleeps"),
        ("poll", AUTOGRAD, None),  # not of the thread that launches
    ],
)
def test_tk406_names_the_system_call_that_the_host_is_in(name, thread, advice):
    timeline = job(jobs.pause_in_step_2)
    (rank,) = tracekit.analyze(timeline).ranks
    begun = next(step for step in rank.steps if step.step == 2).start_ns
    call = OsCall(thread=thread, name=name, start=begun + 2_100 * US, end=begun + 4_400 * US)
    (process,) = timeline.processes
    timeline = replace(timeline, processes=(replace(process, long_os_calls=(call,)),))
    found = findings(timeline)["TK406"]
    if advice is None:
        assert "makes no CUDA call" in found.title
    else:
        assert found.title == f"Step 2, once: the host is in the system call {name} for 2.5 ms"
        assert advice in found.fix


def test_long_system_calls_are_read_and_short_ones_are_not(tmp_path):
    export = small_job("2026.2")
    for start, end in ((100, 400_000), (1_000, 900_000), (2_000, None)):
        export.add("OSRT_API", start=start, end=end, globalTid=global_tid(PID), nameId=export.string("fsync"))
    (process,) = tracekit.open(export.write(tmp_path / "a.sqlite")).processes
    assert process.long_os_calls == (OsCall(thread=global_tid(PID), name="fsync", start=1_000, end=900_000),)


@pytest.mark.parametrize("name", ["ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommSplit"])
def test_tk406_names_a_communicator_that_is_set_up(name):
    """Whatever calls are made meanwhile, and on whichever thread, the time is the communicator's."""

    def lazily(p):
        if p.step != 3:
            return p
        p.rank.range(name, jobs.us(p.host), jobs.us(p.gpu + 3_000), domain="NCCL")
        p.call("cudaMalloc", p.gpu + 100, p.gpu + 900)
        p.call("cudaStreamSynchronize", p.gpu + 1_000, p.gpu + 1_500)
        return jobs.moved(p, p.gpu + 3_010)

    found = findings(job(lazily))
    assert set(found) - ALWAYS == {"TK406"}
    assert found["TK406"].title == "Step 3, once: NCCL sets up a communicator, 3.0 ms"
    assert found["TK406"].cost_ns == pytest.approx(3_000 * US / STEADY, rel=0.01)


def test_one_outlier_is_no_host_that_is_late_in_general():
    """0.3 ms of host work in each step, and 30 ms in one: the one is told apart."""

    def mostly_small(p):
        return jobs.moved(p, p.gpu + (30_000 if p.step == 3 else 300))

    found = findings(job(mostly_small, steps=8))
    assert found["TK406"].steps == (3,)
    assert found["TK401"].cost_ns < 0.4e6
    assert "Step 3, once" in found["TK406"].title


def test_pauses_between_steps_in_few_of_them_are_not_data():
    def once(p):
        return jobs.moved(p, p.gpu + 4_000) if p.step == 2 else p

    assert set(findings(job(None, between=once))) - ALWAYS == {"TK406"}


def test_without_data_ranges_the_title_does_not_say_data_for_sure():
    assert "as where it loads data" in findings(job(None, between=jobs.unannotated_loader))["TK405"].title
    assert findings(job(None, between=jobs.loader))["TK405"].title.startswith("The GPU waits for data")


# --- advice in the program's own words ---


def in_process(timeline, name):
    return replace(timeline, processes=tuple(replace(each, name=name) for each in timeline.processes))


FAULTS = (
    jobs.item,
    jobs.retry,
    jobs.loader,
    jobs.pause_in_step_2,
    jobs.work_in_each_step,
    jobs.small_kernels,
    jobs.pageable_input,
    jobs.offload,
)
OF_PYTHON = ("torch", "python", "dataloader", "gc.", ".item()", "py-spy", "fully_shard", "garbage", "pytorch")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_native_program_gets_no_advice_for_python(fault):
    analysis = tracekit.analyze(in_process(job(fault, phases=False), "./saxpy"))
    assert analysis.findings
    for finding in analysis.findings:
        said = " ".join([finding.title, finding.fix, *(str(e.metric) for e in finding.evidence)]).lower()
        assert not [word for word in OF_PYTHON if word in said], (finding.rule, said)
        assert finding.fix


@pytest.mark.parametrize("name", ["python3", "/usr/bin/python3.11", "pt_main_thread"])
def test_a_training_loop_in_python_gets_it(name):
    assert "torch.cuda" in findings(in_process(job(jobs.item), name))["TK402"].fix


def test_jax_gets_its_own_words():
    def step(p):
        p.rank.kernel(
            jobs.us(p.gpu), jobs.us(p.gpu + 5), name="loop_add_fusion_3", called=(jobs.us(p.host), jobs.us(p.host + 5))
        )
        return jobs.small_kernels(jobs.moved(p, p.host + 6, p.gpu + 5))

    fix = findings(job(step, phases=False))["TK401"].fix
    assert "jax.jit" in fix
    assert "torch" not in fix


def test_tk407_in_numbers():
    """A save after step 2, of two copies of 20 MiB and 3 ms of writing; the one after the last step is in none."""
    found = findings(job(None, between=jobs.save))["TK407"]
    assert found.steps == (2,)
    assert value(found, "gaps between steps with copies of tensors to the host") == 1
    assert value(found, "copied to the host each time") == pytest.approx(40 * MB / 1e6, abs=0.1)
    assert value(found, "longest gap") == pytest.approx(5.0, abs=0.03)
    assert found.cost_ns == pytest.approx(5_008 * US / STEADY, rel=0.01)
    assert "async_save" in found.fix


def test_tk408_in_numbers():
    found = findings(job(jobs.pageable_input))["TK408"]
    assert value(found, "pageable") == 1.0
    assert value(found, "copied") == 0.5
    assert found.cost_ns == 448 * US  # the copy, and 48 us until the next kernel


def test_tk408_also_of_pinned_memory_in_the_way_of_compute():
    def in_the_way(p):
        p.copy(p.gpu, p.gpu + 400, called=(p.host, p.host + 5), name="memcpy HtoD", bytes=3 * MB)
        return jobs.moved(p, p.host + 10, p.gpu + 400)

    found = findings(job(None, between=in_the_way))["TK408"]
    assert "on the stream that computes" in found.title
    assert value(found, "pageable") == 0


def test_tk414_in_numbers():
    found = findings(job(jobs.offload))["TK414"]
    assert found.cost_ns == 400 * US
    assert value(found, "to the host") == 1
    assert value(found, "on the stream that computes") == 1
    assert value(found, "copied") == pytest.approx(10 * MB / 1e6, abs=0.1)


def test_every_cause_of_idle_time_and_of_copies_has_words():
    assert set(WORDS) == set(PARTS)
