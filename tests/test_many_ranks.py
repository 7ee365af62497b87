"""Many ranks, from files to findings: the samples' known truth, captures put together in all ways, and bad input."""

import json
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tracekit
from tracekit.config import DEFAULT
from tracekit.metrics.accounting import Covers
from tracekit.metrics.identity import communicator_sizes, rank_collectives
from tracekit.metrics.together import put_together
from tracekit.options import Options
from tracekit.rules import RULES

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
SPREAD_NS = 50
"""The kernels of one collective end so far apart in the samples."""
MANY_RANKS = [f"TK20{n}" for n in range(1, 10)]


@cache
def truth(name):
    return json.loads((SAMPLES / f"{name}.expected.json").read_text())


@cache
def timeline(name):
    return tracekit.open(*(SAMPLES / path for path in truth(name)["captures"]))


@cache
def analysis(name, **facts):
    return tracekit.analyze(timeline(name), Options(**facts))


def verdicts(found):
    return [(s.rank, s.verdict, s.cause) for s in found.stragglers]


def test_there_are_samples_of_each_kind():
    kinds = {(truth(name)["straggler"]["verdict"], truth(name)["straggler"]["cause"]) for name in NAMES}
    assert kinds >= {
        ("persistent", "slow_compute"),
        ("persistent", "host_stall"),
        ("persistent", "data"),
        ("rotating", "host_stall"),
        ("rotating", "sequence_length"),
        ("none", "link"),
        ("none", None),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_planted_straggler_is_found_and_nobody_else(name):
    planted, found = truth(name)["straggler"], verdicts(analysis(name))
    if planted["verdict"] == "none":
        assert found == []
    else:
        assert sorted(found) == [(rank, planted["verdict"], planted["cause"]) for rank in planted["ranks"]]


RULE_OF = {
    ("persistent", "slow_compute"): {"TK201", "TK208"},
    ("persistent", "host_stall"): {"TK202"},
    ("persistent", "data"): {"TK202"},
    ("rotating", "host_stall"): {"TK204"},
    ("rotating", "sequence_length"): {"TK205"},
    ("none", "link"): {"TK207"},
    ("none", None): set(),
}


@pytest.mark.parametrize("name", NAMES)
def test_findings_about_many_ranks_are_those_that_were_planted(name):
    planted, found = truth(name)["straggler"], {f.rule for f in analysis(name).findings}
    assert found & set(MANY_RANKS) == RULE_OF[planted["verdict"], planted["cause"]]
    assert found >= set(truth(name)["findings"]) & {rule.code for rule in RULES}


@pytest.mark.parametrize("name", NAMES)
def test_clocks(name):
    """Offsets to 5 us, drifts to 1 ppm, wherever the fit says that the first collective was."""
    for rank in analysis(name).ranks:
        expected = truth(name)["ranks"][str(rank.rank)]
        same = rank.capture == analysis(name).ranks[0].capture
        assert rank.clock.method == ("same_capture" if same else "collectives")
        assert rank.clock.offset_ns == pytest.approx(expected["clock_offset_ns"], abs=5_000)
        assert rank.clock.drift_ppm == (None if same else pytest.approx(expected["drift_ppm"], abs=1))
        assert rank.clock.uncertainty_ns is None if same else 1 <= rank.clock.uncertainty_ns <= 2_000


def waits(name):
    """(RankWaits, RankCollectives) of each rank."""
    tracks = timeline(name).ranks
    covers = [Covers.of(track.ops) for track in tracks]
    sizes = communicator_sizes(timeline(name))
    whole = (-(2**61), 2**61)
    found = [rank_collectives(timeline(name), t, c, whole, sizes) for t, c in zip(tracks, covers, strict=True)]
    together = put_together(timeline(name), tracks, found, covers, DEFAULT, align=True)
    return list(zip(together.waits, found, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_waits_of_each_rank_to_the_nanosecond(name):
    """By communicator and op, in all collectives that every member captured."""
    by_rank = waits(name)
    for entry in truth(name)["collectives"]:
        for rank in entry["ranks"]:
            wait, found = by_rank[rank]
            groups = [
                g
                for g, (communicator, op) in enumerate(found.group)
                if op == entry["op"] and communicator in (None, entry["communicator"])
            ]
            mine = np.isin(found.of, groups) & (wait.wait >= 0)
            expected = sum(
                other["peer_wait_by_rank_ns"][str(rank)]
                for other in truth(name)["collectives"]
                if rank in other["ranks"]
                and other["op"] == entry["op"]
                and (entry["communicator"] in (None, other["communicator"]))
            )
            assert wait.wait[mine].sum() == expected


# In the ragged one a capture begins in a steady step, and what waits there is start-up.
WAITED = [name for name in NAMES if truth(name)["straggler"]["cause"] and name != "straggler_ragged"]


def steady_launches(name, rank):
    """When the host of a rank begins its first steady step, and the first one that was cut off after them."""
    steady = truth(name)["steady"]
    return (
        launch_of_step(name, rank, steady["steps"][0]),
        launch_of_step(name, rank, steady["cut_off"][0]) if steady["cut_off"] else None,
    )


def launch_of_step(name, rank, step):
    """When the host of a rank begins a step; None where it does not."""
    expected = truth(name)["ranks"][str(rank)]
    sql = """SELECT min(start) FROM NVTX_EVENTS JOIN StringIds ON id = textId
             WHERE value = 'step' AND int64Value = ? AND globalTid >> 24 & 0xFFFFFF = ?"""
    with sqlite3.connect(f"file:{SAMPLES / expected['capture']}?mode=ro", uri=True) as db:
        ((first,),) = db.execute(sql, (step, expected["pid"])).fetchall()
    db.close()
    return first


@pytest.mark.parametrize("name", WAITED)
def test_exposed_waits_of_each_rank(name):
    """In collectives launched in steady steps: the truth is from arrivals on one clock, this from durations."""
    for track, (wait, found) in zip(timeline(name).ranks, waits(name), strict=True):
        launched = timeline(name).processes[track.process].calls.start[track.ops.call[found.row]]
        first, last = steady_launches(name, track.rank)
        steady = (launched >= first) & (launched < (last or launched.max() + 1))
        expected = truth(name)["peer_waits"]["exposed_by_rank_ns"][str(track.rank)]
        assert wait.exposed_wait[steady].sum() == pytest.approx(expected, abs=SPREAD_NS * int(steady.sum()))


@pytest.mark.parametrize("name", NAMES)
def test_every_exposed_nanosecond_has_a_cause(name):
    for rank in analysis(name).ranks:
        for step in rank.steps:
            assert sum(step.exposed_comm_by_cause.values()) == step.account.exposed_comm_ns
            assert min(step.exposed_comm_by_cause.values(), default=1) > 0


@pytest.mark.parametrize("name", NAMES)
def test_findings_never_claim_more_than_the_exposed_time(name):
    """TK113's cost lies in compute time."""
    about = [f for f in analysis(name).findings if f.rule[:3] in ("TK1", "TK2") and f.rule != "TK113"]
    claimed = [f.cost_ns for f in about if f.cost_ns is not None]
    assert min(claimed, default=0) >= 0
    assert sum(claimed) <= analysis(name).steady.account.exposed_comm_ns


@pytest.mark.parametrize("name", NAMES)
def test_what_each_step_waited_for_the_ranks_adds_up(name):
    """Summed over ranks: all that was waited for anyone, which is no more than all peer wait."""
    found = analysis(name)
    steps = {step.step for rank in found.ranks for step in rank.steps}
    for number in steps:
        here = [step for rank in found.ranks for step in rank.steps if step.step == number]
        caused = sum(step.caused_wait_ns or 0 for step in here)
        assert all((step.caused_wait_ns or 0) >= 0 for step in here)
        exposed = sum(step.account.exposed_comm_ns for step in here) / len(found.ranks)
        assert caused <= exposed * 1.02 + len(found.ranks)


# --- captures put together in other ways ---


def of_step(found):
    """What must not depend on how the captures were made, by rank and step."""
    return {
        (rank.rank, step.step): (step.account, step.exposed_comm_by_cause, step.caused_wait_ns)
        for rank in found.ranks
        for step in rank.steps
    }


def test_one_report_and_one_a_rank_give_the_same_answer():
    one, each = analysis("straggler_4ranks"), analysis("straggler_4ranks_per_rank")
    assert of_step(one) == of_step(each)
    assert one.stragglers == each.stragglers
    assert one.steady == each.steady
    assert one.collectives == each.collectives
    assert [(f.rule, f.cost_ns, f.ranks) for f in one.findings] == [(f.rule, f.cost_ns, f.ranks) for f in each.findings]


@pytest.mark.shared
def test_one_report_and_one_a_rank_of_a_hand_made_case(shared):
    one = tracekit.analyze(tracekit.open(shared / "cases/straggler.sqlite"))
    each = tracekit.analyze(tracekit.open(shared / "cases/straggler_per_rank"))
    assert of_step(one) == of_step(each)
    assert verdicts(one) == verdicts(each)
    assert [(f.rule, f.cost_ns) for f in one.findings] == [(f.rule, f.cost_ns) for f in each.findings]


@pytest.mark.shared
def test_one_report_and_two_of_a_real_job(shared):
    one = tracekit.analyze(tracekit.open(shared / "traces/hta_128rank_onereport.sqlite"))
    two = tracekit.analyze(tracekit.open(shared / "traces/hta_128rank"))
    assert of_step(one) == of_step(two)
    assert verdicts(one) == verdicts(two)


PER_RANK = "straggler_4ranks_per_rank"


@pytest.fixture
def per_rank(tmp_path):
    """The reports of a job of four, one a rank, to be changed."""
    folder = tmp_path / "job"
    shutil.copytree(SAMPLES / PER_RANK, folder)
    return sorted(folder.glob("*.sqlite"))


def changed(path, *statements):
    """Run SQL on each table with times; {table} is its name."""
    with sqlite3.connect(path) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            if {"start", "end"} <= columns:
                for statement in statements:
                    db.execute(statement.format(table=table))
    db.close()


@pytest.mark.parametrize("shifted", [0, 2, 3])
def test_a_clock_that_is_five_seconds_off_and_drifts_changes_nothing(per_rank, shifted):
    """GIVEN rank ``shifted`` rewritten to read 5 s more and to run 50 ppm fast, THEN all is as before, to a few ns."""
    before = tracekit.analyze(tracekit.open(*per_rank))
    changed(
        per_rank[shifted],
        'UPDATE {table} SET start = start + 5000000000 + start / 20000, "end" = "end" + 5000000000 + "end" / 20000',
    )
    after = tracekit.analyze(tracekit.open(*per_rank))
    assert verdicts(after) == verdicts(before) == [(2, "persistent", "slow_compute")]
    assert [(f.rule, f.ranks) for f in after.findings] == [(f.rule, f.ranks) for f in before.findings]
    for old, new in zip(before.ranks, after.ranks, strict=True):
        moved = int(shifted == new.rank) - int(shifted == 0)
        drift = old.clock.drift_ppm or 0
        assert (new.clock.drift_ppm or 0) == pytest.approx(drift + 50 * moved, abs=1)
    first = after.ranks[shifted or 1]
    reference = before.ranks[shifted or 1].clock.offset_ns
    # 50 ppm of the moment at which the clocks are compared: a capture's times start within its first seconds.
    at = before.ranks[shifted or 1].steps[0].start_ns
    sign = 1 if shifted else -1
    assert first.clock.offset_ns - reference == pytest.approx(sign * (5_000_000_000 + at * 50e-6), abs=5_000)
    for key, (account, causes, caused) in of_step(before).items():
        new_account, new_causes, new_caused = of_step(after)[key]
        assert new_account.wall_ns == pytest.approx(account.wall_ns, rel=60e-6)
        assert new_causes == pytest.approx(causes, rel=60e-6, abs=2_000)
        assert new_caused == pytest.approx(caused, rel=60e-6, abs=2_000)


def test_raw_clocks_on_request():
    """Without alignment offsets are not claimed; waits come from durations and stay."""
    raw = analysis(PER_RANK, align=False)
    assert {(rank.clock.method, rank.clock.offset_ns) for rank in raw.ranks} == {("not_aligned", 0)}
    assert of_step(raw) == of_step(analysis(PER_RANK))


# --- bad input ---


def findings(found):
    return {finding.rule: finding for finding in found.findings}


def test_captures_of_two_jobs(per_rank, tmp_path):
    """GIVEN a report of another job, THEN it is named, and the others' figures are as without it."""
    stranger = tmp_path / "other_rank7.sqlite"
    shutil.copy(next((SAMPLES / "straggler_ragged").glob("*.sqlite")), stranger)
    alone = tracekit.analyze(tracekit.open(*per_rank))
    mixed = tracekit.analyze(tracekit.open(*per_rank, stranger))
    complaint = findings(mixed)["TK908"]
    assert stranger.name in [e.value for e in complaint.evidence]
    (odd,) = complaint.ranks
    assert mixed.ranks[odd].clock.method != "collectives"
    assert [s.rank for s in mixed.stragglers] in ([2], [])
    for rank in range(4):
        assert [s.account for s in mixed.ranks[rank].steps] == [s.account for s in alone.ranks[rank].steps]


def test_the_same_capture_under_two_names(per_rank, tmp_path):
    again = tmp_path / "copy_of_rank1.sqlite"
    shutil.copy(per_rank[1], again)
    found = tracekit.analyze(tracekit.open(*per_rank, again))
    complaint = findings(found)["TK905"]
    assert complaint.ranks == (1,)
    assert again.name in complaint.evidence[0].value
    assert verdicts(found) == [(2, "persistent", "slow_compute")]


def test_a_rank_that_was_not_captured_is_not_blamed_on_another(per_rank):
    """GIVEN the reports of all but the slow rank, THEN nobody is named: what they wait for is not here."""
    found = tracekit.analyze(tracekit.open(*(path for i, path in enumerate(per_rank) if i != 2)))
    assert [rank.rank for rank in found.ranks] == [0, 1, 3]
    assert found.stragglers == ()
    # That their waits cannot be told is not hidden: the rank is named, and the table claims no transfer.
    assert (found.world_size, found.not_captured) == (4, (2,))
    said = findings(found)["TK904"]
    assert said.title == "Rank 2 of 4 was not captured: waits are lower bounds"
    assert said.ranks == (2,)
    assert {row.transfer_ns for row in found.collectives} == {None}


CUT = {
    "second": 'DELETE FROM {{table}} WHERE "end" IS NULL OR "end" > {at}',
    "first": "DELETE FROM {{table}} WHERE start < {at}",
}


@pytest.mark.parametrize("half", CUT)
def test_a_capture_cut_in_half(per_rank, half):
    """GIVEN rank 1's report without its ``half``, THEN what all have is as before, and the rest is said to be out."""
    before = tracekit.analyze(tracekit.open(*per_rank))
    steps = before.ranks[1].steps
    changed(per_rank[1], CUT[half].format(at=steps[len(steps) // 2].start_ns))
    after = tracekit.analyze(tracekit.open(*per_rank))
    assert findings(after)["TK904"].ranks == (0, 1, 2, 3)
    left_out = findings(after)["TK904"].evidence[0].value
    assert 0.3 < left_out / sum(row.count for row in after.collectives) < 0.7
    assert verdicts(after) == [(2, "persistent", "slow_compute")]
    kept = range(1, len(steps) // 2 - 1) if half == "second" else range(len(steps) // 2 + 1, len(steps))
    old, new = of_step(before), of_step(after)
    for number in [steps[i].step for i in kept]:
        assert [new[rank, number] for rank in (0, 2, 3)] == [old[rank, number] for rank in (0, 2, 3)]


def test_ranks_with_different_numbers_of_steps():
    found = analysis("straggler_ragged")
    assert [len(rank.steps) for rank in found.ranks] == [
        len(truth("straggler_ragged")["ranks"][str(r)]["steps"]) for r in range(4)
    ]
    assert len({len(rank.steps) for rank in found.ranks}) > 1
    assert "TK904" in findings(found)


def test_captures_that_do_not_overlap_in_time(per_rank):
    """GIVEN rank 0's first half and rank 1's second one, THEN they share nothing, and no wait between them is told."""
    before = tracekit.analyze(tracekit.open(*per_rank[:2]))
    middle = [rank.steps[len(rank.steps) // 2].start_ns for rank in before.ranks]
    changed(per_rank[0], CUT["second"].format(at=middle[0] - 2_000_000))
    changed(per_rank[1], CUT["first"].format(at=middle[1] + 2_000_000))
    found = tracekit.analyze(tracekit.open(*per_rank[:2]))
    assert found.stragglers == ()
