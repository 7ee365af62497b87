"""Causes of exposed communication: small jobs laid out by hand, each with the cause of each exposed microsecond."""

from pathlib import Path

import pytest
from exposed_jobs import JUST, US, one_rank, op

import tracekit
from tracekit import analysis
from tracekit.metrics.bubbles import EXPOSED_COMM_CAUSES, Lost

BWD_FIRST = [op("gemm", 0, 100), op("rs", 50, 90, ahead=400)]
"""Something ahead, so that what follows is not the first of its step."""


def layers(n, **gather):
    """n layers, each gathered when the one before has ended: 100 us gather, then 200 us compute."""
    return [
        each
        for i in range(n)
        for each in (op("ag", 300 * i, 300 * i + 100, **gather), op("gemm", 300 * i + 100, 300 * i + 300, **gather))
    ]


CASES = {
    "never issued ahead, launched as it starts": (layers(4, ahead=JUST), {"first_gather": 100, "no_prefetch": 300}),
    "never issued ahead, launched long before": (layers(4), {"first_gather": 100, "no_prefetch": 300}),
    "issued ahead, each hidden by the layer before": (
        [
            op("ag", 0, 100, ahead=500),
            op("ag", 100, 200, ahead=550),
            op("gemm", 100, 300),
            op("ag", 300, 400, ahead=600),
            op("gemm", 300, 500),
        ],
        {"first_gather": 100},
    ),
    "issued ahead, but let go only when compute ends": (
        [
            op("ag", -20, 0, ahead=900),
            op("gemm", 0, 100, ahead=300),
            op("gemm", 100, 200, ahead=300),
            op("ag", 200, 300, ahead=450),
            op("gemm", 300, 500, ahead=300),
        ],
        {"first_gather": 20, "serialized": 100},
    ),
    "issued ahead and too long for the layer beside it": (
        [
            op("ag", 0, 100, ahead=500),
            op("ag", 100, 400, ahead=550),
            op("gemm", 100, 300),
            op("ag", 400, 700, ahead=800),
            op("gemm", 400, 600),
            op("gemm", 700, 800),
        ],
        {"first_gather": 100, "bandwidth": 200},
    ),
    "held up by the reduction before it, three times": (
        [
            *BWD_FIRST,
            *(
                each
                for i in range(3)
                for each in (
                    op("rs", 100 + 400 * i, 250 + 400 * i),
                    op("ag", 251 + 400 * i, 350 + 400 * i, ahead=700),
                    op("gemm", 100 + 400 * i, 200 + 400 * i, ahead=600),
                    op("gemm", 350 + 400 * i, 500 + 400 * i, ahead=650),
                )
            ),
        ],
        {"queued_behind_comm": 3 * 99, "bandwidth": 100, "last_reduce": 50},
    ),
    "launched late, in the middle of compute": (
        [op("gemm", 0, 300), op("rs", 20, 60), op("ag", 200, 400, ahead=JUST), op("gemm", 400, 600)],
        {"launched_late": 100},
    ),
    "the last reduction": ([op("gemm", 0, 900), op("ar", 200, 300), op("ar", 900, 980)], {"last_reduce": 80}),
    "the last reduction, which began beside compute": (
        [op("gemm", 0, 900), op("ar", 850, 980), op("adam", 980, 1000)],
        {"last_reduce": 80},
    ),
    "the last reduction, with gradients added up behind it on its own stream": (
        [op("gemm", 0, 900), op("rs", 850, 980), op("gemm", 981, 990, stream=28), op("adam", 992, 1100)],
        {"last_reduce": 80},
    ),
    "reductions that queue: only the last one has nothing to hide behind": (
        [
            op("gemm", 0, 100),
            op("ar", 100, 300, ahead=480),
            op("gemm", 100, 150, ahead=470),
            op("ar", 300, 500, ahead=600),
            op("gemm", 150, 200, ahead=440),
            op("ar", 500, 700, ahead=740),
            op("adam", 700, 800),
        ],
        {"bandwidth": 300, "last_reduce": 200},
    ),
    "gathers that were not issued ahead, beside reductions with gradients added up behind them": (
        [
            *BWD_FIRST,
            *(
                each
                for i in range(3)
                for each in (
                    op("rs", 100 + 400 * i, 180 + 400 * i),
                    op("ag", 100 + 400 * i, 200 + 400 * i, ahead=490),
                    op("gemm", 181 + 400 * i, 190 + 400 * i, stream=28),
                    op("gemm", 200 + 400 * i, 500 + 400 * i, ahead=580),
                )
            ),
        ],
        # Kernels behind the reductions are compute, and hide 9 us of each gather.
        {"no_prefetch": 3 * 91},
    ),
    "a copy ends what a collective ended": (
        [
            op("gemm", 0, 200),
            op("sr", 200, 300),
            op("to_host", 300, 302),
            op("gemm", 303, 500),
            op("gemm", 500, 510, stream=33),
        ],
        {"serialized": 100},
    ),
    "a copy that runs as long as the bubble": (
        [op("gemm", 0, 200), op("sr", 150, 400), op("to_device", 190, 300), op("gemm", 302, 500)],
        {"behind_copy": 102},
    ),
    "a copy that starts in the middle of the bubble": (
        [op("gemm", 0, 200), op("sr", 150, 400), op("to_device", 290, 300), op("gemm", 302, 500)],
        {"unknown": 102},
    ),
    "on the compute stream": (
        [op("gemm", 0, 500), op("ag", 500, 700, stream=7), op("gemm", 700, 1000)],
        {"on_compute_stream": 200},
    ),
    "gathers after the optimizer's kernels": (
        [op("gemm", 0, 500), op("rs", 300, 400), op("adam", 500, 600), op("ag", 600, 800), op("ag", 800, 1000)],
        {"optimizer_phase": 400},
    ),
    "gathers after all reductions, by order alone": (
        [op("gemm", 0, 500), op("rs", 300, 500), op("gemm", 500, 600), op("ag", 600, 800)],
        {"optimizer_phase": 200},
    ),
    "the next step's first gather after the optimizer": (
        [
            *layers(2),
            op("rs", 400, 500),
            op("adam", 600, 700),
            op("ag", 700, 800),
            op("gemm", 800, 900),
            op("ag", 900, 950, ahead=450),
            op("gemm", 950, 990, ahead=400),
        ],
        {"first_gather": 200, "no_prefetch": 150},
    ),
    "in launch order": (
        [
            op("gemm", 0, 200, ahead=JUST),
            op("rs", 200, 280, ahead=JUST),
            op("gemm", 280, 480, ahead=JUST),
            op("rs", 480, 560, ahead=JUST),
            op("gemm", 560, 760, ahead=JUST),
            op("rs", 760, 800, ahead=JUST),
        ],
        {"launch_order": 160, "last_reduce": 40},
    ),
    "waited for, but not in launch order": (
        [
            op("gemm", 0, 200, ahead=JUST),
            op("rs", 200, 280, ahead=JUST),
            op("gemm", 280, 480, ahead=200),
            op("rs", 480, 560, ahead=JUST),
            op("gemm", 560, 760, ahead=300),
            op("gemm", 760, 800, ahead=300),
        ],
        {"serialized": 160},
    ),
    "an all-reduce between two halves of a layer": (
        [op("gemm", 0, 200), op("ar", 200, 300), op("gemm", 300, 500), op("ar", 400, 450)],
        {"serialized": 100},
    ),
    "beside a gap between two kernels": (
        [op("gemm", 0, 200), op("rs", 100, 390), op("gemm", 203, 400, ahead=JUST)],
        {"between_kernels": 3},
    ),
    "compute is launched late": (
        [op("gemm", 0, 200), op("rs", 100, 390), op("gemm", 300, 400, ahead=JUST)],
        {"host_late": 100},
    ),
    "a long reduction beside a gather that was not prefetched": (
        [
            op("ag", 0, 50),
            op("gemm", 50, 200),
            op("rs", 150, 500, ahead=400),
            op("ag", 200, 300, ahead=300),
            op("gemm", 300, 500, ahead=300),
            op("gemm", 500, 600),
        ],
        {"first_gather": 50, "no_prefetch": 100},
    ),
}


def bubbles_of(timeline, monkeypatch):
    """The rank's bubbles, as rules get to see them."""
    seen = []
    monkeypatch.setattr(analysis, "check_all", lambda context: (seen.append(context), ((), ()))[1])
    tracekit.analyze(timeline)
    ((view,),) = [context.views for context in seen]
    return view.bubbles


@pytest.mark.parametrize("name", CASES)
def test_causes(name, monkeypatch):
    ops, expected = CASES[name]
    assert causes_of(one_rank(*ops), monkeypatch) == expected


def causes_of(timeline, monkeypatch):
    """Microseconds by cause of exposed communication."""
    found = bubbles_of(timeline, monkeypatch)
    told = {}
    for lost, cause, ns in zip(found.lost.tolist(), found.cause.tolist(), found.ns.tolist(), strict=True):
        if lost == Lost.EXPOSED_COMM:
            told[EXPOSED_COMM_CAUSES[cause]] = told.get(EXPOSED_COMM_CAUSES[cause], 0) + ns / US
    return told


def test_what_early_microbatches_cost_is_cut_out_of_the_last_reductions(monkeypatch):
    """Two microbatches of 200 us, a reduction of 300 us each: deferred, the step would end 100 us earlier.

    The second reduction is ready at 400 us and waits for the first until 500 us: it ends at 800 us instead of 700 us.
    """
    ops = [
        op("gemm", 0, 100, ahead=900),
        op("gemm", 100, 200, ahead=900),
        op("rs", 200, 500, ahead=800),
        op("gemm", 200, 300, ahead=700),
        op("gemm", 300, 400, ahead=700),
        op("rs", 500, 800, ahead=700),
    ]
    names = ("forward", "backward", "forward", "backward")
    launched = ((-910, -850), (-810, -590), (-510, -450), (-410, -150))
    ranges = [(name, *when) for name, when in zip(names, launched, strict=True)]
    assert causes_of(one_rank(*ops, ranges=ranges), monkeypatch) == {"microbatch_reduce": 100, "last_reduce": 300}
    # Gradients of the first microbatch that are not reduced cost nothing.
    deferred = [ops[0], ops[1], ops[3], ops[4], op("rs", 400, 700, ahead=600)]
    assert causes_of(one_rank(*deferred, ranges=ranges), monkeypatch) == {"last_reduce": 300}


@pytest.mark.parametrize("forward_too", [False, True])
def test_launch_order_holds_up_behind_all_reduces_of_gradients(monkeypatch, forward_too):
    """Two layers, each with a reduction of shards and one of replicas behind it; all starts in the order of launch."""
    ops, ranges = [op("gemm", 0, 100)], [("forward", -510, -450)]
    if forward_too:  # the same kind of all-reduce in the forward pass: tensor parallelism, whose result is needed
        ops = [op("gemm", -300, -200), op("ar", -200, -100), op("gemm", -100, 100)]
        ranges = [("forward", -810, -550)]
    for at in (100, 400):
        ops += [op("gemm", at, at + 100), op("rs", at + 100, at + 200, stream=24), op("ar", at + 200, at + 300)]
    ops += [op("gemm", 700, 800)]
    told = causes_of(one_rank(*ops, ranges=[*ranges, ("backward", -410, 300)]), monkeypatch)
    assert told.get("launch_order", 0) == (0 if forward_too else 400)


def test_layers_computed_again_in_the_backward_pass_are_no_microbatches(monkeypatch):
    forward = [op("gemm", 100 * i, 100 * i + 100, ahead=1000) for i in range(4)]
    backward, ranges = [], [("forward", -1010, -610)]
    for i in range(4):
        at = 400 + 300 * i
        again = op("gemm", at, at + 100, ahead=1000)
        backward += [again, op("gemm", at + 100, at + 200, ahead=1000), op("rs", at + 200, at + 300, ahead=1050)]
        ranges += [("forward", at - 1005, at - 950), ("backward", at - 910, at - 800)]
    told = causes_of(one_rank(*forward, *backward, ranges=ranges), monkeypatch)
    assert "microbatch_reduce" not in told


SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.sqlite"))


@pytest.mark.parametrize("name", CAPTURES)
def test_hardly_anything_of_a_sample_is_unknown(name):
    steps = [step for rank in tracekit.analyze(tracekit.open(SAMPLES / name)).ranks for step in rank.steps]
    assert steps
    exposed = sum(step.account.exposed_comm_ns for step in steps)
    assert sum(step.exposed_comm_by_cause.get("unknown", 0) for step in steps) < 0.01 * exposed
