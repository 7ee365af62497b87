"""Several ranks late alike: a few of them are all named; half of the ranks are a group, and nobody is."""

import json

import numpy as np
import pytest
from laid_out import LAUNCH_AHEAD, MS, US, Job, lock_step, replicas

import tracekit
from tracekit.config import DEFAULT
from tracekit.metrics.stragglers import hardly_wait
from tracekit.options import Options
from tracekit.report.json import render_json

JITTER_NS = 200
"""Kernels differ by so little that who of two slow ranks is last lies below the timestamps' tick of 1 us."""


def passing_on(job, steps):
    """A send from each rank to the next at the end of every step: stages could be meant."""
    for end in steps[1:]:
        for rank in range(0, job.ranks, 2):
            both = dict.fromkeys((rank, rank + 1), end - 1_000)
            job.collective("send_recv", both, end - 500, communicator=90 + rank, stream=31)


def slow(ranks, who, *, extra=300 * US, sends=False, jitter=JITTER_NS, seed=1, **facts):
    """All compute 600 us a layer, those in ``who`` ``extra`` ns more (by rank where it is a dict)."""
    lots = np.random.default_rng(seed)
    more = extra if isinstance(extra, dict) else dict.fromkeys(who, extra)
    job = Job(ranks)
    job.communicator(1, range(ranks))
    for rank in range(0, ranks, 2):
        job.communicator(90 + rank, [rank, rank + 1])
    starts = lock_step(
        job,
        compute=lambda r, *_: 600 * US + more.get(r, 0) + int(lots.integers(-jitter, jitter + 1)),
        communicator=1 if sends else None,
        **facts,
    )
    if sends:
        passing_on(job, starts)
    return tracekit.analyze(job.timeline())


def verdicts(found):
    return sorted((s.rank, s.verdict, s.cause) for s in found.stragglers)


def the(rule, found):
    (finding,) = [f for f in found.findings if f.rule == rule]
    return finding


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("who", [(1,), (2, 5), (1, 2, 3)])
def test_each_of_a_few_slow_ranks_is_named(who, sends):
    """Fewer than half of eight: five, six or seven ranks wait 300 us a layer for them, five layers a step."""
    found = slow(8, who, sends=sends)
    assert verdicts(found) == [(rank, "persistent", "slow_compute") for rank in who]
    everything = 5 * 300 * US * (8 - len(who)) / 8
    for straggler in found.stragglers:
        # Who is last within 1 us is open: each has its part, and jitter decides a few.
        assert straggler.caused_share == pytest.approx(1 / len(who), abs=0.05)
        assert straggler.wait_caused_ns == pytest.approx(everything / len(who), rel=0.15)
        assert straggler.kernel_ratio == pytest.approx(1.5, abs=0.01)
    assert sum(s.last_arrivals_share for s in found.stragglers) == pytest.approx(1)
    finding = the("TK201", found)
    assert sorted(finding.ranks) == list(who)
    assert finding.cost_ns == pytest.approx(everything, rel=0.01)
    assert "TK206" not in {f.rule for f in found.findings}


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize(("ranks", "who"), [(8, (0, 1, 2, 3)), (8, (0, 2, 4, 5, 7)), (4, (1, 3)), (6, (0, 1, 2, 5))])
def test_half_of_the_ranks_are_a_group_and_nobody_is_slow(ranks, who, sends):
    found = slow(ranks, who, sends=sends)
    assert verdicts(found) == [(rank, "undecided", "stage") for rank in who]
    finding = the("TK206", found)
    assert finding.ranks == who
    assert "50 % more than the others" in finding.title
    assert finding.cost_ns == pytest.approx(5 * 300 * US * (ranks - len(who)) / ranks, rel=0.01)
    assert not {"TK201", "TK205", "TK208"} & {f.rule for f in found.findings}


def test_words_name_all_of_them():
    two, three = slow(8, (2, 5)), slow(8, (1, 2, 3))
    assert the("TK201", two).title == "Ranks 2 and 5 compute slowly, and the others wait for them"
    assert the("TK201", three).title == "Ranks 1, 2 and 3 compute slowly, and the others wait for them"
    assert "device 2, device 5" in the("TK201", two).fix
    assert the("TK208", two).title.startswith("Nearly every kernel of ranks 2 and 5 is slow")
    facts = {e.metric: e.value for e in the("TK201", two).evidence}
    assert facts["share of all waiting that they cause"] == 1
    assert facts["collectives in which one of them arrives last"] == 1
    assert facts["same kernels, the fastest of them over their peers"] == pytest.approx(1.5, abs=0.001)


@pytest.mark.parametrize("jitter", [200, 20_000])
def test_what_the_json_says_of_two_adds_up(jitter):
    """Below the tick and far above it: 20 us of jitter, of which the slow ones wait for each other."""
    found = slow(8, (2, 5), jitter=jitter)
    document = json.loads(render_json(found))
    assert [s["rank"] for s in document["stragglers"]] == [s.rank for s in found.stragglers]
    assert sorted(s["rank"] for s in document["stragglers"]) == [2, 5]
    by_rank = {rank["rank"]: rank for rank in document["ranks"]}
    for straggler in document["stragglers"]:
        for key in ("wait_caused_ns", "caused_share", "last_arrivals_share", "compute_ratio"):
            assert straggler[key] == by_rank[straggler["rank"]][key]
    assert sum(rank["caused_share"] for rank in by_rank.values()) == pytest.approx(1)
    assert sum(rank["last_arrivals_share"] for rank in by_rank.values()) == pytest.approx(1)
    for number in found.steady.steps:
        here = [step for rank in document["ranks"] for step in rank["steps"] if step["step"] == number]
        waited = sum(step["exposed_comm_by_cause"].get("peer_wait", 0) for step in here) / 8
        # What differs by less than the tick is not held against anyone.
        assert sum(step["caused_wait_ns"] for step in here) == pytest.approx(waited, rel=0.001)


def test_a_tie_is_shared_equally():
    """GIVEN ranks 2 and 5 at the very same instant, and 3 within 1 us of them, THEN each has a third."""
    found = slow(8, (2, 3, 5), extra={2: 300 * US, 5: 300 * US, 3: 299_500}, jitter=0)
    assert [s.caused_share for s in found.stragglers] == pytest.approx([1 / 3] * 3)
    found = slow(8, (2, 3, 5), extra={2: 300 * US, 5: 300 * US, 3: 298_000}, jitter=0)
    shares = {s.rank: s.caused_share for s in found.stragglers}
    assert shares == pytest.approx({2: 0.5, 5: 0.5, 3: 0})


def test_a_rank_half_as_late_waits_itself_and_is_not_named():
    """Rank 5 is 150 us late, and waits for rank 2 as long: half of what the others wait."""
    assert verdicts(slow(8, (2, 5), extra={2: 300 * US, 5: 150 * US})) == [(2, "persistent", "slow_compute")]


def test_two_that_are_late_for_reasons_of_their_own():
    """Rank 1 computes 300 us longer, the GPU of rank 6 idles as long."""
    found = slow(8, (1,), idle=lambda r, *_: 300 * US if r == 6 else 0)
    assert verdicts(found) == [(1, "persistent", "slow_compute"), (6, "persistent", "host_stall")]
    assert the("TK201", found).ranks == (1,)
    assert the("TK202", found).ranks == (6,)


def test_two_hosts_that_stall_alike():
    found = slow(8, (), idle=lambda r, *_: 300 * US if r in (3, 6) else 0)
    assert verdicts(found) == [(3, "persistent", "host_stall"), (6, "persistent", "host_stall")]
    assert the("TK202", found).title == "Ranks 3 and 6 stall on the host, and the others wait for them"


def test_two_ranks_in_turns_are_not_slow_alike():
    """Ranks 2 and 5 stall every other step: each waits for the other, half as long as the rest."""
    job = Job(8)
    idle = lambda r, step, layer: 2 * MS if layer == 2 and r == (2, 5)[step % 2] else 0  # noqa: E731
    lock_step(job, steps=13, compute=lambda *_: 600 * US, idle=idle)
    found = tracekit.analyze(job.timeline())
    assert not {"TK201", "TK202", "TK206"} & {f.rule for f in found.findings}
    assert all(s.verdict != "persistent" for s in found.stragglers)


@pytest.mark.parametrize("who", [(5, 6), (1, 5)])
def test_two_in_a_hybrid_sharded_job(who):
    """Two on one node, or one on each, meeting the rest in gathers of four and all-reduces of two."""
    found = tracekit.analyze(replicas(lambda r, _, place: 200_000 if r in who and place < 6 else 0).timeline())
    assert verdicts(found) == [(rank, "persistent", "slow_compute") for rank in who]
    assert sum(s.caused_share for s in found.stragglers) == pytest.approx(1)


def test_a_whole_node_in_a_hybrid_sharded_job():
    """GIVEN ranks 4 to 7 slow alike: their counterparts wait for them in the all-reduces."""
    found = tracekit.analyze(replicas(lambda r, _, place: 200_000 if r > 3 and place < 6 else 0).timeline())
    assert verdicts(found) == [(rank, "undecided", "stage") for rank in (4, 5, 6, 7)]
    assert the("TK206", found).ranks == (4, 5, 6, 7)


def test_more_work_on_two_ranks_is_not_slow_work():
    """Ranks 1 and 4 of eight run eight kernels a layer, the others five, each as long."""
    job, now = Job(8), MS
    for step in range(8):
        begin = now
        for _ in range(5):
            ends = {}
            for rank in range(8):
                ends[rank] = now + (8 if rank in (1, 4) else 5) * 100 * US
                for start in range(now, ends[rank], 100 * US):
                    job.compute(rank, start, start + 100 * US)
            now = max(ends.values()) + 50 * US
            job.collective("all_reduce", ends, now)
        for rank in range(8):
            job.range(rank, "step", begin - LAUNCH_AHEAD - 500, now - LAUNCH_AHEAD - 500, value=step)
    found = tracekit.analyze(job.timeline())
    assert verdicts(found) == [(1, "persistent", "unknown"), (4, "persistent", "unknown")]
    assert "TK201" not in {f.rule for f in found.findings}


def test_who_hardly_waits():
    """The median of those above the mean is what the others wait, however many hardly wait."""
    assert hardly_wait(np.array([0.0, 300, 310, 290]), DEFAULT) == (0,)
    assert hardly_wait(np.array([0.0, 300, 10, 20, 70, 80]), DEFAULT) == (0, 2, 3, 4)
    assert hardly_wait(np.array([200.0, 200, 200]), DEFAULT) == ()
    assert hardly_wait(np.zeros(3), DEFAULT) == ()


def test_many_ranks_slow_alike_cost_no_more_than_their_number():
    """GIVEN 30 of 64 slow: each rank's kernels are looked at once."""
    job, lots = Job(64), np.random.default_rng(2)
    lock_step(
        job,
        steps=4,
        compute=lambda r, *_: 600 * US + 200 * US * (r % 2 and r < 60) + int(lots.integers(0, 200)),
    )
    found = tracekit.analyze(job.timeline(), Options(rules=False))
    assert sorted(s.rank for s in found.stragglers) == list(range(1, 60, 2))
    assert {s.verdict for s in found.stragglers} == {"persistent"}
