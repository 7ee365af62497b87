"""TK101 to TK114: each with what shows it, what does not, and what looks like it; then the shared cases."""

from __future__ import annotations

import pytest
from exposed_jobs import AHEAD, JUST, US, fill, one_rank, op
from handmade import Sketch
from laid_out import MS, Job
from laid_out import US as NS_PER_US

import tracekit
from tracekit.results import Severity


def rules_of(*ops, ranges=()):
    return {f.rule for f in tracekit.analyze(one_rank(*ops, ranges=ranges)).findings if f.rule < "TK2"}


def the(rule, timeline):
    (found,) = [f for f in tracekit.analyze(timeline).findings if f.rule == rule]
    return found


def layers(n, at=0, *, issue=0, gather=100, work=200, **facts):
    """n layers: a gather issued ``issue`` us before it could be of use (0: when it is needed), then compute."""
    ops = []
    for i in range(n):
        begin = at + i * (gather + work) if not issue else at + gather + i * work
        early = begin if not issue else begin - gather
        ops.append(op("ag", early, early + gather, ahead=AHEAD + (issue and work), **facts))
        ops.append(op("gemm", begin + (0 if issue else gather), begin + (0 if issue else gather) + work, **facts))
    return ops


def passes(*ops, forward=(), backward=()):
    """Ranges for the launches of operations that were launched ``AHEAD`` of their start, as (start, end) in us."""
    ranges = [("forward", a - AHEAD, b - AHEAD) for a, b in forward]
    return [*ranges, *(("backward", a - AHEAD, b - AHEAD) for a, b in backward)]


CASES = {
    "TK101: gathers launched when needed": (layers(5), (), {"TK101", "TK106"}),
    "TK101: a copy-in kernel beside the main stream feeds each gather": (
        [
            each
            for i in range(5)
            for each in (
                op("copy_in", 320 * i, 320 * i + 20),
                op("ag", 320 * i + 20, 320 * i + 120),
                op("gemm", 320 * i + 120, 320 * i + 320),
            )
        ],
        (),
        {"TK101", "TK106"},
    ),
    "TK101, not: every gather issued one layer ahead": (layers(30, issue=1), (), set()),
    "TK101, not: issued ahead, too long for the compute beside it": (
        [
            each
            for i in range(6)
            for each in (op("ag", 200 * i, 200 * i + 200, ahead=900), op("gemm", 200 * i + 200, 200 * i + 300))
        ],
        (),
        {"TK100", "TK106"},
    ),
    "TK102: in a backward range": (
        layers(5),
        passes(forward=[(-10, 50)], backward=[(60, 2_000)]),
        {"TK102", "TK106"},
    ),
    "TK103: gathers behind reductions, launched before their end": (
        [
            op("ag", -20, 0, ahead=900),
            *(
                each
                for i in range(4)
                for each in (
                    op("gemm", 400 * i, 400 * i + 150, ahead=800),
                    op("rs", 400 * i + 100, 400 * i + 250, ahead=700),
                    op("ag", 400 * i + 251, 400 * i + 300, ahead=850),
                    op("gemm", 400 * i + 300, 400 * i + 400, ahead=690),
                )
            ),
        ],
        (),
        {"TK103", "TK100"},
    ),
    "TK103, not: they also run together": (
        [
            op("ag", -20, 0, ahead=900),
            op("rs", -15, -2, ahead=800),
            *(
                each
                for i in range(4)
                for each in (
                    op("gemm", 400 * i, 400 * i + 150, ahead=800),
                    op("rs", 400 * i + 100, 400 * i + 250, ahead=700),
                    op("ag", 400 * i + 251, 400 * i + 300, ahead=850),
                    op("gemm", 400 * i + 300, 400 * i + 400, ahead=690),
                )
            ),
        ],
        (),
        {"TK100"},
    ),
    "TK104: on the compute stream": (
        [op("gemm", 0, 500), op("ag", 500, 700, stream=7), op("gemm", 700, 1000)],
        (),
        {"TK104"},
    ),
    "TK104, not: on a stream with a little compute": (
        [op("gemm", 0, 900), op("gemm", 400, 410, stream=28), op("rs", 500, 600), op("gemm", 900, 1000)],
        (),
        set(),
    ),
    "TK105: forty collectives of 30 us": (
        [each for i in range(40) for each in (op("ag", 30 * i, 30 * i + 30), op("gemm", 30 * i, 30 * i + 20))],
        (),
        {"TK105"},
    ),
    "TK106: a long gather begins the step": (
        [op("ag", 0, 100), op("gemm", 100, 1000)],
        (),
        {"TK106"},
    ),
    "TK106, not: it is short": ([op("ag", 0, 15), op("gemm", 15, 1000)], (), set()),
    "TK107: the last bucket": ([op("gemm", 0, 900), op("ar", 200, 300), op("ar", 900, 980)], (), {"TK107"}),
    "TK107: the last reduce-scatter, then the optimizer": (
        [op("gemm", 0, 900), op("rs", 200, 300), op("rs", 900, 980), op("adam", 980, 1000)],
        (),
        {"TK107"},
    ),
    "TK107, not: hidden by the optimizer of the other units": (
        [op("gemm", 0, 900), op("rs", 900, 980), op("adam", 901, 1000)],
        (),
        set(),
    ),
    "TK107, not: the norm of the gradients": (
        [op("gemm", 0, 900), op("rs", 200, 300), op("adam", 900, 950), op("ar", 950, 990), op("adam", 990, 1100)],
        (),
        {"TK110"},
    ),
    "TK108: in launch order": (
        [
            each
            for i in range(4)
            for each in (
                op("gemm", 280 * i, 280 * i + 200, ahead=JUST),
                op("rs", 280 * i + 200, 280 * i + 280, ahead=JUST),
            )
        ],
        (),
        {"TK108", "TK107"},
    ),
    "TK108, not: reductions beside compute, in launch order": (
        [
            each
            for i in range(4)
            for each in (
                op("gemm", 200 * i, 200 * i + 200, ahead=JUST),
                op("rs", 200 * i + 100, 200 * i + 180, ahead=JUST),
            )
        ],
        (),
        set(),
    ),
    "TK110: gathers after the optimizer's kernels": (
        [op("gemm", 0, 800), op("rs", 300, 400), op("adam", 800, 850), op("ag", 850, 900), op("ag", 900, 950)],
        (),
        {"TK110"},
    ),
    "TK110: in the optimizer's range, whatever the kernels are called": (
        [op("gemm", 0, 800), op("ar", 300, 400), op("gemm", 800, 850), op("ag", 850, 950), op("gemm", 950, 1000)],
        [("backward", -600, 290), ("optimizer", 291, 460)],
        {"TK110"},
    ),
    "TK110, not: the next step's first gather": (
        [*layers(4, issue=1), op("rs", 500, 600), op("adam", 900, 1000), op("ag", 1000, 1100), op("gemm", 1100, 1300)],
        (),
        {"TK106"},
    ),
    "TK111: a reduction after each of two backward passes": (
        [
            op("gemm", 0, 200),
            op("gemm", 200, 500),
            op("ar", 500, 600),
            op("gemm", 600, 800),
            op("gemm", 800, 1100),
            op("ar", 1050, 1095),
        ],
        passes(forward=[(-10, 150), (595, 700)], backward=[(190, 590), (790, 1100)]),
        {"TK111"},
    ),
    "TK111, not: only the last microbatch reduces": (
        [op("gemm", 0, 200), op("gemm", 200, 500), op("gemm", 600, 800), op("gemm", 800, 1100), op("ar", 1000, 1090)],
        passes(forward=[(-10, 150), (595, 700)], backward=[(190, 590), (790, 1100)]),
        set(),
    ),
    "TK113: half as fast under a gather": (
        [op("gemm", 0, 100), op("gemm", 100, 200), op("gemm", 200, 400), op("gemm", 400, 600), op("ag", 200, 600)],
        (),
        {"TK113"},
    ),
    "TK113, not: as fast": (
        [op("gemm", 0, 100), op("gemm", 100, 200), op("gemm", 200, 300), op("gemm", 300, 400), op("ag", 200, 400)],
        (),
        set(),
    ),
    "TK113, not: lengths differ among kernels alone": (
        [op("gemm", 0, 100), op("gemm", 100, 400), op("gemm", 400, 600), op("gemm", 600, 800), op("ag", 400, 800)],
        (),
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    ops, ranges, expected = CASES[name]
    assert rules_of(*ops, ranges=ranges) == expected


@pytest.mark.parametrize("name", CASES)
def test_exposed_findings_never_cost_more_than_the_exposed_time(name):
    ops, ranges, _ = CASES[name]
    result = tracekit.analyze(one_rank(*ops, ranges=ranges))
    costs = [f.cost_ns or 0 for f in result.findings if f.rule < "TK2" and f.rule != "TK113"]
    assert sum(costs) <= result.ranks[0].totals.exposed_comm_ns


def test_costs_and_evidence_by_hand():
    """Five layers of 100 us gather and 200 us compute: the first gather is TK106's, four are TK101's."""
    found = the("TK101", one_rank(*layers(5)))
    assert (found.cost_ns, found.severity, found.ranks, found.steps) == (400 * US, Severity.ERROR, (0,), ())
    assert [e.value for e in found.evidence] == [4.0, 0.0, round(400 / 1500, 4)]
    assert "no range tells" in found.title
    assert "forward_prefetch" in found.fix
    assert "BACKWARD_PRE" in found.fix


def test_contention_s_hidden_cost():
    found = the("TK113", one_rank(*CASES["TK113: half as fast under a gather"][0]))
    assert found.cost_ns == 200 * US
    assert [e.value for e in found.evidence] == [2.0, 200 * US, 2]


def test_over_steps_and_ranks():
    """GIVEN two ranks of three steps, of which one does not prefetch, THEN its cost is shared out over both."""
    made = Sketch()
    for rank in range(2):
        process = made.process()
        for step in range(3):
            at = 10_000 + 2_000 * step
            fill(process, layers(5) if rank else layers(5, issue=1), [("step", -900, 990, step)], at)
    found = the("TK101", made.timeline())
    assert (found.ranks, found.steps, found.cost_ns) == ((1,), (1,), 200 * US)


def test_the_fix_is_the_framework_s_own():
    made = Sketch()
    rank = fill(made.process(), layers(5))
    rank.range("FullyShardedDataParallel._pre_forward", 1, 2)
    fix = the("TK101", made.timeline()).fix
    assert "forward_prefetch=True" in fix
    assert "DeepSpeed" not in fix


def test_without_launch_rows_the_order_of_launch_is_not_told():
    made = Sketch()
    rank = made.process()
    for i in range(4):
        rank.comm(300 * i, 300 * i + 100, name="ncclDevKernel_AllGather_RING_LL")
        rank.kernel(300 * i + 100, 300 * i + 300)
    result = tracekit.analyze(made.timeline())
    assert {f.rule for f in result.findings if f.rule < "TK2"} == {"TK100"}
    skipped = {s.rule: s for s in result.skipped_rules}
    assert {"TK101", "TK102", "TK103", "TK106", "TK107", "TK108", "TK110"} <= set(skipped)
    assert skipped["TK101"].capture_with


def test_without_ranges_accumulation_is_not_told():
    skipped = {s.rule for s in tracekit.analyze(one_rank(*CASES["TK107: the last bucket"][0])).skipped_rules}
    assert "TK111" in skipped


def hybrid(*, microbatches, all_reduce_stream=33):
    """Two ranks that reduce-scatter, then all-reduce, each microbatch; the all-reduces are exposed."""
    job = Job(2)
    for step in range(3):
        now = 1 * MS + step * 3 * MS
        for rank in range(2):
            job.range(rank, "step", now - 150_000, now + 2_800_000, value=step, domain="tracekit")
        for _ in range(microbatches):
            for phase in ("forward", "backward"):
                for rank in range(2):
                    job.range(rank, phase, now - 100_500, now - 99_000 + 300_000, domain="tracekit")
                    job.compute(rank, now, now + 200_000)
                now += 200_000
            arrive = dict.fromkeys(range(2), now - 100_000)
            job.collective(
                "reduce_scatter", arrive, now - 20_000, stream=28, called=dict.fromkeys(range(2), now - 250_000)
            )
            job.collective(
                "all_reduce",
                dict.fromkeys(range(2), now),
                now + 100_000,
                stream=all_reduce_stream,
                called=dict.fromkeys(range(2), now - 249_000),
            )
            now += 400_000
    return job.timeline()


def test_tk112_replicas_reduce_every_microbatch():
    found = {f.rule: f for f in tracekit.analyze(hybrid(microbatches=3)).findings}
    assert "TK112" in found
    assert "TK111" not in found
    assert found["TK112"].cost_ns == 2 * 100 * NS_PER_US


def test_tk112_not_where_there_is_one_microbatch():
    assert "TK112" not in {f.rule for f in tracekit.analyze(hybrid(microbatches=1)).findings}


def test_tk112_on_one_stream():
    found = the("TK112", hybrid(microbatches=1, all_reduce_stream=28))
    assert "one stream" in found.title


@pytest.mark.parametrize(("gathers_on", "fires"), [(1, True), (2, False)])
def test_tk103_asks_for_one_communicator_where_nccl_names_them(gathers_on, fires):
    job = Job(1)
    for number in (1, 2):
        job.communicator(number, [0])

    def collective(op, start, end, number, ahead, stream):
        times = {0: (start - ahead) * NS_PER_US}
        job.collective(op, {0: start * NS_PER_US}, end * NS_PER_US, communicator=number, stream=stream, called=times)

    for i in range(5):
        at = 1_000 + 400 * i
        job.compute(0, at * NS_PER_US, (at + 150) * NS_PER_US, called=(at - 800) * NS_PER_US)
        collective("reduce_scatter", at + 100, at + 250, 1, 700, 28)
        collective("all_gather", at + 251, at + 300, gathers_on, 850, 20)
        job.compute(0, (at + 300) * NS_PER_US, (at + 400) * NS_PER_US, called=(at - 390) * NS_PER_US)
    assert ("TK103" in {f.rule for f in tracekit.analyze(job.timeline()).findings}) == fires
