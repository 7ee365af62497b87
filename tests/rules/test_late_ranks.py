"""TK210, TK211, and TK207 and TK209 without message sizes: the fault and its twin without it."""

import numpy as np
import pytest
from laid_out import LAUNCH_AHEAD, MS, US, Job

import tracekit


def rules_of(analysis):
    return {f.rule for f in analysis.findings}


def the(rule, analysis):
    (finding,) = [f for f in analysis.findings if f.rule == rule]
    return finding


def replicated(transfer, *, pairs=4, steps=6, layers=4, launches=True):
    """Ranks r and r + pairs all-reduce ``layers`` times a step; nobody names communicators or sizes.

    ``transfer``: ns by (pair, step, layer).
    """
    job = Job(2 * pairs)
    rng = np.random.default_rng(7)
    now = dict.fromkeys(range(2 * pairs), MS)
    for step in range(steps):
        begin = dict(now)
        for layer in range(layers):
            for pair in range(pairs):
                members = (pair, pair + pairs)
                arrivals = {}
                for rank in members:
                    done = now[rank] + 700 * US + int(rng.integers(0, 60 * US))
                    job.compute(rank, now[rank], done)
                    arrivals[rank] = done + 2 * US
                end = max(arrivals.values()) + transfer(pair, step, layer)
                job.collective("all_reduce", arrivals, end)
                now |= dict.fromkeys(members, end + US)
        for rank in range(2 * pairs):
            job.range(rank, "step", begin[rank] - LAUNCH_AHEAD - 50, now[rank] - LAUNCH_AHEAD - 100, value=step)
    return tracekit.analyze(job.timeline(launches=launches))


SIZES = (100 * US, 100 * US, 400 * US, 100 * US)
"""Transfers of a step's layers: the third moves four times the bytes of the others."""


def test_tk207_by_the_place_in_the_step():
    found = the("TK207", replicated(lambda pair, _, layer: SIZES[layer] * (6 if pair == 1 else 1)))
    assert found.ranks == (1, 5)
    assert found.evidence[0].value == pytest.approx(1 / 6, rel=0.01)


@pytest.mark.parametrize("pairs", [4, 2])
def test_tk207_is_silent_where_all_are_alike_or_there_is_no_majority(pairs):
    factor = 1 if pairs == 4 else 6
    found = replicated(lambda pair, _, layer: SIZES[layer] * (factor if pair == 1 else 1), pairs=pairs)
    assert "TK207" not in rules_of(found)


def test_tk209_by_the_place_in_the_step():
    """Every tenth transfer takes three times as long as usual at its place."""
    spikes = np.random.default_rng(3).random((4, 6, 4)) < 0.1
    found = the("TK209", replicated(lambda p, s, layer: SIZES[layer] * (3 if spikes[p, s, layer] else 1)))
    assert found.evidence[0].value == pytest.approx(3, rel=0.01)


def test_tk209_is_silent_about_layers_of_unlike_size():
    """The 95th percentile of all transfers is four times their median, and each place takes what it always takes."""
    assert "TK209" not in rules_of(replicated(lambda _p, _s, layer: SIZES[layer]))


def one_of_two(gathers, *, world=2):
    """Rank 0 of ``world``: all-gathers of one size with these durations, each step, waited for at once."""
    job = Job(1)
    job.communicator(7, [0])
    job.communicators[0] = [(7, world, 0)]
    now = MS
    for step in range(6):
        begin = now
        for ns in gathers:
            job.compute(0, now, now + 600 * US)
            now += 600 * US
            job.collective("all_gather", {0: now}, now + ns, communicator=7, size=1 << 22)
            now += ns + US
        job.range(0, "step", begin - LAUNCH_AHEAD - 50, now - LAUNCH_AHEAD - 100, value=step)
    return tracekit.analyze(job.timeline())


def test_tk210_one_gather_takes_ten_times_as_long_as_its_siblings():
    analysis = one_of_two([450 * US] * 5 + [4_700 * US])
    found = the("TK210", analysis)
    assert found.cost_ns == pytest.approx((4_700 - 450) * US, rel=0.01)
    assert "likely waiting" in found.title
    assert "unknown from one rank" in found.fix
    assert found.confidence == "medium"


@pytest.mark.parametrize("gathers", [[450 * US] * 6, [450 * US] * 5 + [900 * US], [4_700 * US] * 6])
def test_tk210_is_silent_where_gathers_take_what_gathers_take(gathers):
    assert "TK210" not in rules_of(one_of_two(gathers))


def starting(late, *, busy=True):
    """Four ranks in one report; rank 0 comes ``late`` ns late to the first collective, after it had computed."""
    job = Job(4)
    now = MS
    for rank in range(1 - busy, 4):
        job.compute(rank, now, now + 500 * US)
    for k in range(10):
        arrivals = {r: now + 600 * US + (late if r == 0 and k == 0 else 0) for r in range(4)}
        if k:
            for rank in range(4):
                job.compute(rank, now, now + 590 * US)
        now = max(arrivals.values()) + 100 * US
        job.collective("all_gather", arrivals, now)
    return tracekit.analyze(job.timeline())


def test_tk211_who_comes_late_to_the_first_collective():
    analysis = starting(300 * MS)
    found = the("TK211", analysis)
    assert found.ranks == (0,)
    exposed = sum(rank.totals.exposed_comm_ns for rank in analysis.ranks) / 4
    assert found.cost_ns >= 0.95 * exposed
    assert "0.30 s" in found.title


@pytest.mark.parametrize(("late", "busy"), [(0, True), (300 * MS, False)])
def test_tk211_is_silent_where_nobody_is_late_or_the_capture_may_just_have_begun(late, busy):
    assert "TK211" not in rules_of(starting(late, busy=busy))
