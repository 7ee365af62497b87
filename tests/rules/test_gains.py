"""Order, severity and bounds of findings by what fixing them saves."""

import pytest

from tracekit.config import DEFAULT
from tracekit.results import Account, Finding, Severity
from tracekit.rules import graded, ranked
from tracekit.rules.gains import bounded

STEP = Account(
    wall_ns=1000,
    compute_ns=600,
    exposed_comm_ns=250,
    exposed_copy_ns=50,
    idle_ns=100,
    comm_ns=250,
    overlapped_comm_ns=0,
)


def finding(rule, cost, gain, *, severity=Severity.INFO, ranks=(0, 1, 2, 3)):
    return Finding(
        rule=rule,
        severity=severity,
        title=rule,
        ranks=ranks,
        steps=(1,),
        cost_ns=cost,
        gain_ns=gain,
        evidence=(),
        fix="",
    )


def test_largest_gain_first_and_the_cost_where_none_is_known():
    found = [
        finding("TK401", 300, 10),
        finding("TK107", 90, None),
        finding("TK402", 20, 95),
        finding("TK301", None, None),
    ]
    assert [f.rule for f in ranked(found)] == ["TK301", "TK402", "TK107", "TK401"]


@pytest.mark.parametrize(
    ("cost", "gain", "before", "after"),
    [
        (300, 0, Severity.ERROR, Severity.INFO),
        (300, 19, Severity.ERROR, Severity.INFO),
        (300, 20, Severity.ERROR, Severity.WARNING),
        (300, 99, Severity.ERROR, Severity.WARNING),
        (50, 100, Severity.WARNING, Severity.ERROR),
        (300, None, Severity.ERROR, Severity.ERROR),
        (300, 0, Severity.INFO, Severity.INFO),  # a rule that only informs, whatever it costs
        (None, None, Severity.WARNING, Severity.WARNING),
        (None, 100, Severity.INFO, Severity.ERROR),  # what has no cost of its own may gain all the same
    ],
)
def test_severity_follows_what_is_saved(cost, gain, before, after):
    (told,) = graded([finding("TK401", cost, gain, severity=before)], 1000, DEFAULT)
    assert told.severity is after


@pytest.mark.parametrize(
    ("cost", "gain", "kept"),
    [
        (100, 135, True),  # 1.25 x 100 + 10
        (100, 136, False),
        (100, 0, True),
        (0, 10, True),
        (0, 11, False),
        (390, 410, True),  # all that is exposed or idle is 400, and 10
        (390, 411, False),
    ],
)
def test_a_gain_that_no_loss_accounts_for_is_unknown(cost, gain, kept):
    (told,) = bounded([finding("TK402", cost, gain)], STEP, 4, DEFAULT)
    assert told.gain_ns == (gain if kept else None)


def test_findings_that_share_a_change_share_its_bound():
    """Two of 60 account for 160, one of 60 for 85."""
    both = [finding("TK402", 60, 150), finding("TK404", 60, 150)]
    assert [f.gain_ns for f in bounded(both, STEP, 4, DEFAULT)] == [150, 150]
    assert [f.gain_ns for f in bounded(both[:1], STEP, 4, DEFAULT)] == [None]


def test_costs_are_scaled_to_the_ranks_that_lose():
    """One of four ranks loses 4 x 50 = 200, so that its step may gain 260: 1.25 x 200 + 10."""
    told = [bounded([finding("TK402", 50, gain, ranks=(2,))], STEP, 4, DEFAULT)[0].gain_ns for gain in (260, 261)]
    assert told == [260, None]


def test_what_queues_behind_a_straggler_is_the_cost_of_others():
    """Three of four ranks lose 4/3 x 75 = 100 to it: 135, and among more than two ranks twice that."""
    late = [finding("TK201", 75, gain, ranks=(2,)) for gain in (270, 271)]
    assert [bounded([each], STEP, 4, DEFAULT)[0].gain_ns for each in late] == [270, None]
    alone = [finding("TK103", 100, gain, ranks=(0,)) for gain in (135, 136)]
    assert [bounded([each], STEP, 1, DEFAULT)[0].gain_ns for each in alone] == [135, None]
