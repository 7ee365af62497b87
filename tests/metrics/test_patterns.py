"""In which steps a rank is late: by hand, and in jobs where it slows down at a step or in every third."""

import numpy as np
import pytest
from laid_out import US, Job, lock_step

import tracekit
from tracekit.config import DEFAULT
from tracekit.metrics.patterns import pattern_of

STEP = 10_000.0


@pytest.mark.parametrize(
    ("late", "kind", "from_step", "period"),
    [
        ([900] * 8, "always", None, None),
        ([900, 900, 0, 900, 900, 900, 900, 900], "always", None, None),
        ([0, 0, 0, 0, 0, 900, 900, 900], "from_step", 15, None),
        ([0, 0, 10, 900, 850, 30, 900, 900, 900, 900], "from_step", 13, None),
        ([900, 0, 0, 900, 0, 0, 900, 0, 0], "periodic", None, 3),
        ([0, 0, 900, 0, 0, 900, 0, 0, 900, 0], "periodic", None, 3),
        ([0, 900, 0, 0, 900, 0, 0, 0, 0, 900], None, None, None),
        ([0, 0, 0, 900, 0, 0, 0, 0], None, None, None),
        ([0, 0, 0, 0, 0, 0, 0, 900], None, None, None),
        ([0] * 8, None, None, None),
        ([199] * 8, None, None, None),
    ],
)
def test_by_hand(late, kind, from_step, period):
    """Steps 10 and up of 10,000 ns; less than 2 % of a step is not late."""
    found = pattern_of(np.array(late, float), range(10, 10 + len(late)), STEP, DEFAULT)
    assert (found.kind, found.from_step, found.period) == (kind, from_step, period)


def slow_in(steps, ranks=(2,), *, of=4, factor=1.5, **facts):
    job = Job(of, **facts)
    lots = np.random.default_rng(1)
    lock_step(
        job,
        steps=12,
        compute=lambda r, s, _: (
            int(600 * US * (factor if r in ranks and s in steps else 1)) + int(lots.integers(0, 300))
        ),
    )
    return tracekit.analyze(job.timeline())


@pytest.mark.parametrize(
    ("steps", "pattern", "words"),
    [
        (range(12), ("always", None, None), "computes slowly, and"),
        (range(8, 12), ("from_step", 8, None), "computes slowly from step 8 on, and"),
        (range(1, 12, 3), ("periodic", None, 3), "computes slowly in every third step, and"),
    ],
)
def test_a_slow_rank_is_named_with_when(steps, pattern, words):
    """The kernels of the slow steps are 1.5 times as long; the median over all steps would say that none is."""
    analysis = slow_in(steps)
    (straggler,) = analysis.stragglers
    assert (straggler.rank, straggler.verdict, straggler.cause) == (2, "persistent", "slow_compute")
    assert (straggler.pattern, straggler.from_step, straggler.period) == pattern
    assert straggler.kernel_ratio == pytest.approx(1.5, abs=0.01)
    (finding,) = [f for f in analysis.findings if f.rule == "TK201"]
    assert words in finding.title


def test_nobody_is_named_where_nobody_is_slow():
    assert slow_in(()).stragglers == ()


def test_all_ranks_of_a_host_are_slow():
    """Half of the ranks, and their kernels are longer: that is the host, not a stage with more work."""
    hosts = ["node0"] * 4 + ["node1"] * 4
    analysis = slow_in(range(12), range(4, 8), of=8, factor=1.2, hosts=hosts)
    assert [(s.rank, s.verdict, s.hosts) for s in sorted(analysis.stragglers, key=lambda s: s.rank)] == [
        (rank, "persistent", ("node1",)) for rank in range(4, 8)
    ]
    (finding,) = [f for f in analysis.findings if f.rule == "TK201"]
    assert finding.title.startswith("All 4 ranks of node1 compute slowly")
    assert "TK206" not in {f.rule for f in analysis.findings}


def test_half_of_the_ranks_of_each_host_are_a_group():
    hosts = ["node0"] * 4 + ["node1"] * 4
    analysis = slow_in(range(12), (0, 1, 4, 5), of=8, factor=1.2, hosts=hosts)
    assert {s.cause for s in analysis.stragglers} == {"stage"}
    assert all(s.hosts == () for s in analysis.stragglers)
