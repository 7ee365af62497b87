"""TK2xx, TK904, TK908 and what TK100 is left with: each with what shows it, what does not, and what looks like it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from laid_out import LAUNCH_AHEAD, MS, US, ClockOf, Job, late_launches, lock_step, more_work, pairs, replicas

import tracekit
from tracekit.options import Options
from tracekit.results import Severity

HOSTS = ["a"] * 4 + ["b"] * 4
NEED_ALL_RANKS = {"TK201", "TK202", "TK203", "TK204", "TK205", "TK207", "TK209", "TK210"}


def analyzed(job, **facts):
    timeline = job.timeline(**{k: facts.pop(k) for k in ("drop", "launches") if k in facts})
    return tracekit.analyze(timeline, Options(**facts))


def rules_of(job, **facts):
    return {finding.rule for finding in analyzed(job, **facts).findings}


def the(rule, job, **facts):
    (found,) = [finding for finding in analyzed(job, **facts).findings if finding.rule == rule]
    return found


def value(finding, metric):
    (found,) = [e.value for e in finding.evidence if e.metric == metric]
    return found


def steady_job(ranks=4, compute=lambda *_: 600 * US, **facts):
    job = Job(ranks)
    lock_step(job, compute=compute, **facts)
    return job


def only(rank, ns, otherwise=0):
    return lambda r, *_: otherwise + (ns if r == rank else 0)


def test_a_balanced_job_has_no_straggler():
    assert rules_of(steady_job()) == {"TK100", "TK107"}


# --- TK201, TK208 ---


def test_tk201_slow_compute():
    """Rank 3 computes 900 us a layer, the others 600; 3 of 4 ranks wait 5 x 300 us of a step of about 5 ms."""
    found = the("TK201", steady_job(compute=only(3, 300 * US, 600 * US)))
    assert found.ranks == (3,)
    assert "Rank 3" in found.title
    assert "device 3" in found.fix
    assert found.cost_ns == 3 * 5 * 300 * US // 4
    # The host launches nothing ahead of its time here: a replay gains 1 % of the step, and severity follows it.
    assert found.gain_ns < 0.02 * 5 * MS
    assert found.severity == Severity.INFO
    assert found.steps == tuple(range(1, 8))
    assert value(found, "same kernels, this rank over its peers") == 1.5
    assert value(found, "compute over its peers' median") == 1.5
    assert value(found, "share of all waiting that it causes") == 1
    assert value(found, "collectives in which it arrives last") == 1


def test_tk201_names_the_host_where_it_is_known():
    job = steady_job(compute=only(3, 300 * US, 600 * US))
    job.hosts = ["n0", "n0", "n1", "n1"]
    assert "device 3 of n1" in the("TK201", job).fix


def test_tk201_and_tk208_are_about_kernels_not_about_work():
    """GIVEN a rank that runs more kernels, each as fast as on its peers, THEN its device is not blamed."""
    job = more_work()
    assert [s.rank for s in analyzed(job).stragglers] == [1]
    assert rules_of(job) - {"TK906"} == {"TK100"}


def test_tk208_every_kernel_is_slow():
    found = the("TK208", steady_job(compute=only(3, 300 * US, 600 * US)))
    assert (found.ranks, found.cost_ns, found.severity) == ((3,), None, Severity.INFO)
    assert value(found, "time in kernels that are slow here") == 1


def test_tk208_is_not_said_where_one_kernel_is_slow():
    job = steady_job(compute=lambda r, _, layer: (1_500 if r == 3 and layer == 2 else 600) * US)
    assert {"TK201"} == rules_of(job) & {"TK201", "TK208"}


# --- TK202 to TK205 ---


def test_tk202_host_stall():
    found = the("TK202", steady_job(idle=only(2, 200 * US)))
    assert found.ranks == (2,)
    assert "stalls on the host" in found.title
    # Of 7 steady steps the last has no next step whose first layer is waited for in it.
    assert value(found, "idle beyond its peers") == pytest.approx(34 * 0.2 / 7, abs=0.001)


def test_tk202_names_the_loader_where_it_is_the_loader():
    job = steady_job(data=lambda r, _, layer: (2_000 if r == 2 else 50) * US if layer == 0 else 0)
    found = the("TK202", job)
    assert "waits for its data" in found.title
    assert "loader" in found.fix


def test_tk202_is_not_said_of_a_rank_that_waits_for_others():
    """Rank 0 to 2 idle nowhere and wait long: rank 3 alone stalls."""
    assert the("TK202", steady_job(idle=only(3, 2 * MS))).ranks == (3,)


def test_tk203_late_launch():
    found = the("TK203", late_launches(lag=5 * US))
    assert found.ranks == (0,)
    assert found.cost_ns == pytest.approx(3 * 5 * 299 * US / 4, rel=0.01)


@pytest.mark.parametrize("facts", [{"lag": 90 * US}, {"lag": 5 * US, "launches": False}])
def test_tk203_needs_to_see_that_the_launch_was_late(facts):
    launches = {"launches": facts.pop("launches")} if "launches" in facts else {}
    assert "TK203" not in rules_of(late_launches(**facts), **launches)


def test_tk204_ranks_take_turns_in_stalling():
    turns = steady_job(steps=13, idle=lambda r, step, layer: 2 * MS if layer == 2 and r == step % 4 else 0)
    found = the("TK204", turns)
    assert sorted(found.ranks) == [0, 1, 2, 3]
    assert "gc.collect" in found.fix
    # Each step the three others wait 2 ms.
    assert found.cost_ns == pytest.approx(3 * 2 * MS / 4, abs=10)


def test_tk204_says_so_where_it_is_data():
    data = steady_job(steps=13, data=lambda r, step, layer: (2 * MS if r == step % 4 else 50 * US) if layer == 0 else 0)
    assert "waiting for data" in the("TK204", data).title


def test_tk204_one_rank_that_stalls_again_and_again_takes_no_turn():
    assert "TK204" not in rules_of(steady_job(idle=only(2, 200 * US)))


def lengths(r, step):
    return [100, 60, 80, 70][(step + r) % 4]


def test_tk205_sequence_lengths():
    found = the("TK205", steady_job(steps=13, compute=lambda r, step, _: 8 * US * lengths(r, step)))
    assert sorted(found.ranks) == [0, 1, 2, 3]
    assert "tokens" in found.fix


def test_tk205_is_not_said_where_only_backward_varies():
    job = steady_job(steps=13, compute=lambda r, step, layer: 8 * US * (lengths(r, step) if layer > 1 else 70))
    assert not {"TK204", "TK205"} & rules_of(job)


# --- TK206 ---


def pipeline(second_stage=1_000, *, sends=True, norm=False):
    """Ranks 0-1 and 2-3 are stages: they pass tensors on, and reduce within the stage; at last all share a ``norm``."""
    job = Job(4)
    job.communicator(9, range(4))
    for number, members in enumerate(([0, 1], [2, 3]), start=1):
        job.communicator(number, members)
    now = MS
    for step in range(6):
        begin = now
        ends = {r: now + (1_000 if r < 2 else second_stage) * US for r in range(4)}
        for r in range(4):
            job.compute(r, now, ends[r])
        if sends:
            for r in (0, 1):
                last = max(ends[r], ends[r + 2]) + 10 * US
                job.collective("send_recv", {r: ends[r], r + 2: ends[r]}, last, communicator=20 + r)
        last = max(ends.values()) + 20 * US
        for number, members in enumerate(([0, 1], [2, 3]), start=1):
            job.collective("all_reduce", dict.fromkeys(members, last), last + 100 * US, communicator=number)
        if norm:
            job.collective("all_reduce", dict.fromkeys(range(4), last + 110 * US), last + 130 * US, communicator=9)
        now = last + 200 * US
        for r in range(4):
            job.range(r, "step", begin - LAUNCH_AHEAD - 50, now - LAUNCH_AHEAD - 60, value=step)
    return job


@pytest.mark.parametrize("norm", [False, True])
def test_tk206_uneven_stages(norm):
    """1,400 us against 1,000: the median of two stages is 1,200, and 1,400 is 17 % more."""
    found = the("TK206", pipeline(1_400, norm=norm))
    assert found.ranks == (2, 3)
    assert value(found, "compute of the slowest stage over the median stage") == pytest.approx(1_400 / 1_200, abs=1e-4)
    assert found.cost_ns is None
    assert "17 %" in found.title


@pytest.mark.parametrize("job", [pipeline(1_000), pipeline(1_080), pipeline(1_400, sends=False)])
def test_tk206_even_stages_and_groups_that_pass_nothing_on(job):
    """1,080 us is 4 % over the median; two groups that send nothing are replicas, not stages."""
    assert "TK206" not in rules_of(job)


def test_no_rank_of_a_slow_stage_is_blamed():
    """GIVEN stages that meet in nothing but the norm of the gradients, the first waiting there for the second.

    THEN none is slow: each rank of the second stage computes as long as its peers of the stage do.
    """
    job = Job(4)
    job.communicator(9, range(4))
    for number, members in enumerate(([0, 1], [2, 3]), start=1):
        job.communicator(number, members)
    now = MS
    for step in range(6):
        begin = now
        ends = {r: now + (1_000 if r < 2 else 1_600 + 3 * (r == 3)) * US for r in range(4)}
        for r in range(4):
            job.compute(r, now, ends[r])
        for r in (0, 1):
            job.collective("send_recv", {r: ends[r], r + 2: ends[r + 2]}, ends[r + 2] + 10 * US, stream=30)
        for number, members in enumerate(([0, 1], [2, 3]), start=1):
            arrivals = {r: ends[r] + 20 * US for r in members}
            job.collective("all_reduce", arrivals, max(arrivals.values()) + 50 * US, communicator=number)
        arrivals = {r: ends[r] + 80 * US for r in range(4)}
        now = max(arrivals.values()) + 20 * US
        job.collective("all_reduce", arrivals, now, communicator=9, stream=31)
        for r in range(4):
            job.range(r, "step", begin - LAUNCH_AHEAD - 50, now - LAUNCH_AHEAD - 60, value=step)
    found = analyzed(job)
    assert found.ranks[0].steps[3].exposed_comm_by_cause["peer_wait"] > 500 * US
    assert found.stragglers == ()


# --- TK207 ---


def test_tk207_a_slow_link():
    """Pair 2 needs three times as long: a third of its peers' bandwidth. 200 of its 300 us are in excess."""
    job = pairs(lambda pair, _: (300 if pair == 2 else 100) * US, hosts=HOSTS)
    found = the("TK207", job)
    assert found.ranks == (2, 6)
    assert value(found, "bus bandwidth of all_reduce over its peers'") == pytest.approx(1 / 3, abs=1e-4)
    assert value(found, "bus bandwidth") == pytest.approx((1 << 20) / 300_000, abs=0.01)
    # On 2 of 8 ranks, in 39 collectives (the first does not count), the whole capture being one step.
    assert found.cost_ns == 2 * 39 * 200 * US // 8
    assert "a and b" in found.fix


def test_tk207_states_the_peak_where_the_link_is_known():
    """Across hosts it is not; on one host of H100s it is NVLink's 450 GB/s in one direction."""
    job = pairs(lambda pair, _: (300 if pair == 2 else 100) * US, hosts=["a"] * 8)
    assert "NVLink peak, one direction" not in {e.metric for e in the("TK207", job).evidence}
    job.gpu = "NVIDIA H100 80GB HBM3"
    assert value(the("TK207", job), "NVLink peak, one direction") == 450
    job.hosts = HOSTS
    assert "NVLink peak, one direction" not in {e.metric for e in the("TK207", job).evidence}


@pytest.mark.parametrize(
    ("why", "transfer", "facts"),
    [
        ("alike", lambda *_: 100 * US, {}),
        ("a little slower", lambda pair, _: (150 if pair == 2 else 100) * US, {}),
        ("late ranks", lambda pair, _: (300 if pair == 2 else 100) * US, {"late": lambda r, _: 400 * US * (r == 2)}),
    ],
)
def test_tk207_is_not_said_of_links(why, transfer, facts):
    assert "TK207" not in rules_of(pairs(transfer, hosts=HOSTS, **facts))


def test_tk207_does_not_compare_links_between_hosts_with_links_inside_one():
    """GIVEN ranks 2 and 6 on two hosts, all other pairs inside one, THEN that it is slower is as it should be."""
    hosts = ["a", "b", "a", "c", "a", "b", "d", "c"]
    assert "TK207" not in rules_of(pairs(lambda pair, _: (300 if pair == 2 else 100) * US, hosts=hosts))


def test_tk207_without_sizes_is_skipped_with_the_flag_that_brings_them():
    analysis = analyzed(pairs(lambda *_: 100 * US, size=None))
    (skipped,) = [s for s in analysis.skipped_rules if s.rule == "TK207"]
    assert "--include-blobs" in skipped.capture_with


def test_one_rank_alone_skips_what_needs_several():
    analysis = analyzed(steady_job(ranks=1))
    assert {s.rule for s in analysis.skipped_rules} == NEED_ALL_RANKS | {"TK411", "TK502"}
    assert all("captures of all ranks" in s.capture_with for s in analysis.skipped_rules if s.rule in NEED_ALL_RANKS)


# --- TK209 ---


def spikes(every, to=400):
    return lambda pair, k: (to if pair == 1 and k % every == 0 else 100) * US


def test_tk209_twenty_are_enough():
    """One more is start-up."""
    assert the("TK209", pairs(spikes(5), n=21)).ranks == (1, 5)


def test_tk209_jitter():
    """Every tenth transfer of pair 1 takes 4 x as long: p95 is 400 us."""
    found = the("TK209", pairs(spikes(10), hosts=HOSTS))
    assert found.ranks == (1, 5)
    assert value(found, "p95 over median transfer") == pytest.approx(4, abs=0.01)
    assert found.cost_ns is None


@pytest.mark.parametrize(
    ("why", "job"),
    [
        ("one in forty", pairs(spikes(30))),
        ("by less than half", pairs(spikes(10, to=140))),
        ("fewer than twenty", pairs(spikes(5), n=20)),
        ("ranks are late", pairs(spikes(10), late=lambda r, k: 300 * US * (r == 5))),
        (
            "it is the wait that varies",
            pairs(lambda *_: 100 * US, late=lambda r, k: 300 * US * (r == 5 and k % 10 == 0)),
        ),
        ("sizes are unknown", pairs(spikes(10), size=None)),
    ],
)
def test_tk209_is_not_jitter(why, job):
    assert "TK209" not in rules_of(job)


# --- TK904, TK908 ---


def test_tk904_ragged_ends():
    """Rank 1 lacks the last 4 collectives of 40, and its peers cannot be compared there."""
    found = the("TK904", steady_job(ranks=3), drop=lambda rank, row: rank == 1 and row >= 2 * 36)
    assert value(found, "collectives left out") == 4
    assert (found.cost_ns, found.severity) == (None, Severity.INFO)


def test_tk904_is_not_said_of_groups_of_their_own():
    """Gathers and all-reduces of other ranks: each group has all of its own."""
    assert "TK904" not in rules_of(replicas(lambda *_: 0))
    assert "TK904" not in rules_of(steady_job())


def test_tk904_counts_every_kind():
    """GIVEN two streams of all-reduces on the same ranks, each with three that rank 1 lacks."""
    job = Job(2)
    for k in range(20):
        start = MS + k * MS
        for stream in (20, 30):
            job.collective("all_reduce", {0: start, 1: start}, start + 9_000 * stream, stream=stream)
    found = the("TK904", job, drop=lambda rank, row: rank == 1 and row >= 34)
    assert value(found, "collectives left out") == 6


EPOCH = 1_700_000_000_000_000_000


def two_captures(offset_ns=5_000_000_000, other=None, *, wall_clocks=True):
    clocks = {0: ClockOf(start_epoch_ns=EPOCH), 1: ClockOf(offset_ns, start_epoch_ns=EPOCH - offset_ns)}
    job = Job(4, [0, 0, 1, 1], clocks if wall_clocks else {1: ClockOf(offset_ns)})
    lock_step(job, compute=lambda *_: 600 * US)
    if other is not None:
        strange = Job(4)
        rng = np.random.default_rng(3)
        lock_step(strange, compute=lambda *_: int(rng.integers(300, 2_000)) * US)
        for rank in (2, 3):
            job.ops[rank], job.ranges[rank] = strange.ops[rank], strange.ranges[rank]
    return job


def test_tk908_a_capture_of_another_job():
    found = the("TK908", two_captures(other=True))
    assert found.ranks == (2, 3)
    assert value(found, "captures") == "run1.sqlite"
    assert found.severity == Severity.WARNING
    assert "1 of 2 captures" in found.title


@pytest.mark.parametrize(("regular", "fits"), [(False, True), (True, False)])
def test_tk908_a_wall_clock_wrong_by_a_day(regular, fits):
    """One lag fits where no step is like the next; where all are alike, every lag does, and nothing is known."""
    day, lots = 86_400 * 1_000_000_000, np.random.default_rng(5)
    job = Job(4, [0, 0, 1, 1], {0: ClockOf(0, 0.0, 10 * day), 1: ClockOf(40_000, 0.0, 11 * day)})
    lock_step(job, compute=lambda r, *_: (600 if regular else int(lots.integers(500, 700)) + 300 * (r == 3)) * US)
    found = analyzed(job)
    assert ("TK908" not in {f.rule for f in found.findings}) == fits
    first, second = found.captures
    assert first.notes == ()
    assert [note for note in second.notes if "wall clocks" in note and "86400 s" in note] == list(second.notes) * fits
    if fits:
        assert {(r.clock.method, r.clock.offset_ns) for r in found.ranks[2:]} == {("collectives", 40_000)}
        assert [s.rank for s in found.stragglers] == [3]
        assert second.notes[0].startswith("ranks 2-3: ")


def test_tk908_clocks_that_fit():
    assert "TK908" not in rules_of(two_captures())


def test_tk908_a_regular_job_without_wall_clocks():
    """Its collectives fit at every layer: which of these is right is not guessed, and a note says so."""
    job = two_captures(wall_clocks=False)
    assert the("TK908", job).ranks == (2, 3)
    analysis = tracekit.analyze(job.timeline())
    assert [any("at several offsets" in note for note in c.notes) for c in analysis.captures] == [False, True]
    assert analysis.ranks[2].clock.offset_ns is None


def test_tk908_captures_that_share_no_collective():
    """GIVEN ranks that never meet the others, THEN it is said that their clocks are not known: of one job?"""
    job = Job(4, [0, 0, 1, 1])
    for number, members in enumerate(([0, 1], [2, 3]), start=1):
        job.communicator(number, members)
        for k in range(20):
            start = MS + k * number * MS
            job.collective("all_reduce", dict.fromkeys(members, start), start + 50 * US, communicator=number)
    found = analyzed(job)
    assert [rank.clock.method for rank in found.ranks] == ["same_capture", "same_capture", None, None]
    assert {f.rule: f.ranks for f in found.findings}["TK908"] == (2, 3)


def test_tk908_is_not_said_of_a_capture_with_hardly_a_collective():
    """Seven tell no clock, and nothing is wrong with them."""
    job = Job(2, [0, 1])
    for k in range(7):
        job.collective("all_reduce", {0: MS * k, 1: MS * k}, MS * k + 50 * US)
    assert "TK908" not in rules_of(job)


def test_raw_clocks_are_not_complained_about():
    assert "TK908" not in rules_of(two_captures(), align=False)


# --- TK100 ---


def test_tk100_carries_what_no_other_rule_explains():
    """GIVEN a slow rank, THEN its peers' waits are TK201's, the last transfer is TK107's, and the others remain."""
    analysis = analyzed(steady_job(compute=only(3, 300 * US, 600 * US)))
    cost = {f.rule: f.cost_ns for f in analysis.findings}
    exposed = analysis.steady.account.exposed_comm_ns
    assert cost["TK201"] + cost["TK107"] + cost["TK100"] == exposed
    (rest,) = [f for f in analysis.findings if f.rule == "TK100"]
    assert "overlap" in rest.title


def test_tk100_says_nothing_where_less_than_two_percent_remain():
    job = steady_job(compute=only(3, 300 * US, 600 * US), transfer=5 * US)
    assert "TK100" not in rules_of(job)


def test_costs_never_exceed_the_exposed_time():
    """GIVEN a slow link and a slow rank together."""
    job = pairs(lambda pair, _: (900 if pair == 2 else 100) * US, late=lambda r, _: 150 * US * (r == 1), hosts=HOSTS)
    analysis = analyzed(job)
    costs = [f.cost_ns or 0 for f in analysis.findings if f.rule.startswith(("TK1", "TK2"))]
    assert sum(costs) <= sum(r.totals.exposed_comm_ns for r in analysis.ranks) / 8


def test_a_slow_link_costs_no_more_than_the_steady_steps_expose():
    """GIVEN two steps of which compute hides all of the second, the steady one, THEN what the first lost is no cost."""
    job = pairs(lambda pair, _: (900 if pair == 2 else 100) * US, hosts=HOSTS)
    middle = sorted(op.start for op in job.ops[0] if op.stream == 7)[20]
    last = max(op.end for op in job.ops[2])
    for rank in range(8):
        job.compute(rank, middle, last, stream=8)
        job.range(rank, "step", MS - LAUNCH_AHEAD - 50, middle - LAUNCH_AHEAD - 50, value=0)
        job.range(rank, "step", middle - LAUNCH_AHEAD - 40, last - LAUNCH_AHEAD, value=1)
    analysis = analyzed(job)
    assert analysis.steady.steps == (1,)
    assert {f.rule: f.cost_ns for f in analysis.findings}["TK207"] == analysis.steady.account.exposed_comm_ns


# --- ranks that are not here ---


def incomplete(rank_sources="nccl_comm_init", without=(3, 7)):
    """Eight ranks by NCCL's word, of which some have no capture."""
    job = Job(8)
    job.communicator(1, range(8))
    lock_step(job, compute=lambda r, *_: 600 * US + (90 * US if r == 2 else 0), communicator=1)
    whole = job.timeline()
    ranks = tuple(replace(t, rank_source=rank_sources) for t in whole.ranks if t.rank not in without)
    return tracekit.analyze(replace(whole, ranks=ranks))


def test_tk904_names_the_ranks_that_were_not_captured():
    found = incomplete()
    (said,) = [f for f in found.findings if f.rule == "TK904"]
    assert said.title == "Ranks 3 and 7 of 8 were not captured: waits are lower bounds"
    assert said.ranks == found.not_captured == (3, 7)
    assert {row.transfer_ns for row in found.collectives} == {None}
    # Of those that are here rank 2 is the last: they wait for it, whoever else is late.
    assert [s.rank for s in found.stragglers] == [2]
    (said,) = [f for f in incomplete(without=(5,)).findings if f.rule == "TK904"]
    assert said.title.startswith("Rank 5 of 8 was not")


def test_tk904_does_not_name_ranks_where_the_captures_do_not_tell_who_they_are():
    found = incomplete(rank_sources="order")
    (said,) = [f for f in found.findings if f.rule == "TK904"]
    assert said.title == "Only 6 of 8 ranks were captured: waits are lower bounds"
    assert (said.ranks, found.not_captured, found.world_size) == ((), (), 8)


def test_one_rank_of_many_is_no_accident():
    assert "TK904" not in {f.rule for f in incomplete(without=range(1, 8)).findings}


def test_a_mark_that_claims_a_job_of_millions_costs_nothing():
    whole = pairs(lambda *_: 100 * US).timeline()
    mark = (None, json.dumps({"world_size": 16_000_000}))
    processes = (replace(whole.processes[0], marks=(mark,)), *whole.processes[1:])
    ranks = tuple(replace(track, rank_source="file_name") for track in whole.ranks)
    found = tracekit.analyze(replace(whole, processes=processes, ranks=ranks))
    assert (found.world_size, found.not_captured) == (16_000_000, ())


# --- TK906 ---


def test_tk906_start_up_skew():
    """GIVEN rank 0 five milliseconds late at the first collective of all, THEN how much is left out is said."""
    starting = [5 * MS]
    job = steady_job(compute=lambda r, *_: 600 * US + (starting.pop() if starting and r == 0 else 0))
    found = the("TK906", job)
    assert found.ranks == (1, 2, 3)
    assert value(found, "longest wait in them") == 5 * MS
    assert value(found, "first collectives left out") == 1
    # The transfer of the first one is 100 us.
    assert value(found, "time in them, mean over ranks") == pytest.approx(5 * MS * 3 / 4 + 100 * US, abs=1)
    assert found.cost_ns is None


def test_tk906_is_not_said_of_ranks_that_start_together():
    assert "TK906" not in rules_of(steady_job())
    assert "TK906" not in rules_of(steady_job(ranks=1))
