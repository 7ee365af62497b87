"""Each way of standing still as a small capture: with and without payloads, many lengths of steps, some ranks only."""

from random import Random

import pytest
from hang_jobs import (
    MS,
    Job,
    S,
    begun_later,
    healthy,
    lose_launches,
    missing,
    other_op,
    other_size,
    random_job,
    skipped,
    swapped,
    truncated,
    unfinished,
    write,
)

import tracekit
from tracekit.config import DEFAULT
from tracekit.metrics.hangs import diagnose
from tracekit.metrics.hangs.from_captures import evidence_of

WAYS = {
    "missing_rank": missing,
    "host_blocked": lambda job, rank: missing(job, rank, "cuLibraryLoadData"),
    "type_mismatch": other_op,
    "size_mismatch": other_size,
    "order_inversion": swapped,
    "unfinished": lambda job, _: unfinished(job),
    "step_desync": skipped,
}
CAPTURED = {
    "payloads": {},
    "no payloads": {"payloads": False},
    "communicators made before": {"inits": False},
    "a watchdog polls": {"polls": True, "payloads": False},
    "hosts wait for each": {"ahead": False, "payloads": False},
    "a report a rank": {"reports": "each", "payloads": False},
    "two ranks": {"ranks": 2, "payloads": False},
    "sixteen ranks": {"ranks": 16, "steps": 3},
    "steps of 2 ms": {"step_ns": 2 * MS, "quiet_ns": 600 * MS, "payloads": False},
    "steps of a minute": {"step_ns": 60 * S, "quiet_ns": 400 * S},
    "no call is open": {"waits_in": None, "payloads": False},
    "a clock that does not start at 0": {"start_ns": 40 * MS, "payloads": False},
}

ANALYZED = {"payloads", "no payloads", "steps of 2 ms"}


def opened(job, exports, folder):
    return tracekit.open(*write(job, exports, folder), require_ranks=False)


def asked(job, exports, folder):
    """What ``tracekit hang`` says."""
    return diagnose(evidence_of(opened(job, exports, folder), asked=True), DEFAULT)


@pytest.mark.parametrize("captured", CAPTURED)
@pytest.mark.parametrize("verdict", WAYS)
def test_the_fault_is_named_and_nobody_else(verdict, captured, tmp_path):
    job = Job(**CAPTURED[captured])
    faulty = job.ranks - 1
    timeline = opened(job, WAYS[verdict](job, faulty), tmp_path)
    hang = diagnose(evidence_of(timeline, asked=True), DEFAULT)
    if verdict == "size_mismatch" and not job.payloads:
        verdict = "unfinished"  # no size is known, which the notes say
        assert "different sizes" in " ".join(hang.notes)
    assert hang.verdict == verdict
    if verdict in ("missing_rank", "host_blocked"):
        assert (hang.missing_ranks, hang.culprits) == ((faulty,), (faulty,))
        assert hang.waiting_ranks == tuple(range(faulty))
    elif verdict != "order_inversion":
        assert hang.missing_ranks == ()
        assert set(hang.culprits) <= {faulty}
    if captured in ANALYZED:
        found = tracekit.analyze(timeline).hang
        assert found is not None
        assert found.verdict == verdict


def test_a_second_communicator_that_is_alone_on_its_stream_has_ordinals_of_its_own(tmp_path):
    """GIVEN reductions that run past a gather that hangs, THEN the gather is named, not the scatter after it.

    By the layout: four steps of three gathers and three scatters, one more gather, and the one that hangs: the 26th.
    """
    job = Job(chained=False, payloads=False)
    hang = asked(job, unfinished(job), tmp_path)
    assert (hang.verdict, hang.op, hang.seq) == ("unfinished", "all_gather", 26)
    assert hang.communicator == "the stream of all-gather, reduce-scatter"


def test_what_runs_past_a_mismatch_does_not_hide_it(tmp_path):
    """GIVEN reductions of a second communicator that end after a gather that one rank calls as a scatter."""
    job = Job(chained=False, payloads=False)
    hang = asked(job, other_op(job, 3), tmp_path)
    assert (hang.verdict, hang.seq, hang.culprits) == ("type_mismatch", 26, (3,))


@pytest.mark.parametrize(
    ("captured", "verdict", "named"),
    [
        ((0, 3), "missing_rank", (3,)),
        ((1, 2, 3), "missing_rank", (3,)),
        ((0, 1, 2), "unfinished", ()),
        ((0, 2), "undecided", ()),
        ((0,), "undecided", ()),
        ((3,), "undecided", ()),
    ],
)
def test_captures_of_some_ranks_only(captured, verdict, named, tmp_path):
    """Rank 3 is missing. Without it nobody can be named; the captured ranks' numbers tell whether they can be all."""
    job = Job(payloads=False, reports="each", captured=captured)
    hang = asked(job, missing(job, 3), tmp_path)
    assert (hang.verdict, hang.missing_ranks, hang.culprits) == (verdict, named, named)
    if verdict == "unfinished":
        assert "if these are all 3 ranks" in " ".join(hang.notes)
        # four steps of nine, and two of the fifth
        assert "38 earlier collectives ended on all of ranks 0-2 at one instant" in hang.notes
    if verdict == "undecided":
        assert hang.lacking


def test_the_size_of_a_communicator_tells_that_ranks_are_not_captured(tmp_path):
    job = Job(reports="each", captured=(0, 1, 2))
    assert asked(job, missing(job, 3), tmp_path).verdict == "undecided"


@pytest.mark.parametrize(
    ("step_ns", "quiet_ns", "for_who_asks", "unasked"),
    [
        (100 * MS, 50 * MS, "not_a_hang", None),  # half a step
        (100 * MS, 350 * MS, "undecided", None),  # a few steps, and less than a second
        (100 * MS, 1_500 * MS, "missing_rank", "missing_rank"),
        (2 * MS, 90 * MS, "undecided", None),  # too little for a capture that ends
        (2 * MS, 500 * MS, "missing_rank", "missing_rank"),  # 250 steps
        (60 * S, 100 * S, "undecided", None),  # a slow step
        (60 * S, 200 * S, "missing_rank", "missing_rank"),
    ],
)
def test_quiet_is_measured_against_the_jobs_own_steps(step_ns, quiet_ns, for_who_asks, unasked, tmp_path):
    job = Job(step_ns=step_ns, quiet_ns=quiet_ns, payloads=False)
    timeline = opened(job, missing(job, 3), tmp_path)
    hang = diagnose(evidence_of(timeline, asked=True), DEFAULT)
    assert hang.verdict == for_who_asks
    found = tracekit.analyze(timeline).hang
    assert (found and found.verdict) == unasked
    if for_who_asks == "undecided":
        assert "suspected: rank 3 had not launched it" in hang.notes
        assert "of their steps" in hang.lacking[0]
        assert hang.waiting_ranks == (0, 1, 2)


@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("before", [[30, 80, 30, 30], [60, 61, 62, 110], [5, 5, 5, 5], [45, 45, 300, 45]])
@pytest.mark.parametrize("step_ns", [100 * MS, 10 * S])
def test_captures_that_are_cut_off_are_no_hang(step_ns, before, payloads, tmp_path):
    job = Job(payloads=payloads, step_ns=step_ns, reports="each")
    exports = truncated(job, [ms * step_ns // 100 for ms in before])
    timeline = opened(job, exports, tmp_path)
    assert diagnose(evidence_of(timeline, asked=True), DEFAULT).verdict == "not_a_hang"
    if payloads:
        assert tracekit.analyze(timeline).hang is None


@pytest.mark.parametrize("polls", [True, False])
def test_a_job_that_is_done_and_idles_is_no_hang(polls, tmp_path):
    job = Job(polls=polls)
    assert asked(job, healthy(job), tmp_path).verdict == "not_a_hang"


def test_a_missing_rank_that_does_other_work_is_said_to(tmp_path):
    """GIVEN rank 3 in an evaluation of its own to the end, THEN it is missing, and at work."""
    job = Job(quiet_ns=5 * S)
    (export,) = missing(job, 3)
    for at in range(600 * MS, job.steps * job.step_ns + job.quiet_ns - 20 * MS, 20 * MS):
        export.kernel("gemm", at, at + 15 * MS, call=(at - 5 * MS, at - 4 * MS), pid=4030, device=3)
    hang = asked(job, [export], tmp_path)
    assert (hang.verdict, hang.missing_ranks) == ("missing_rank", (3,))
    assert "rank 3 did other work until the capture ended" in hang.notes


def test_a_collective_that_runs_until_the_capture_ends_has_not_ended(tmp_path):
    """GIVEN kernels that were aborted with the job, THEN they ran to the end and nothing was done meanwhile."""
    job = Job(payloads=False)
    (export,) = missing(job, 3)
    stop = job.steps * job.step_ns + job.quiet_ns
    for rank in range(3):
        calls = [
            row for row in export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"] if row["globalTid"] & 0xFFFFFF == 4000 + 10 * rank
        ]
        done = {row["correlationId"] for row in export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]}
        launch = next(row for row in calls if row["correlationId"] not in done and row["end"] < stop)
        row = export.kernel(
            "ncclDevKernel_AllGather_RING_LL(args)",
            launch["end"] + 9_000,
            stop - MS,
            pid=4000 + 10 * rank,
            device=rank,
            stream=20,
        )
        row["correlationId"] = launch["correlationId"]
    hang = asked(job, [export], tmp_path)
    assert (hang.verdict, hang.missing_ranks, hang.waiting_ranks) == ("missing_rank", (3,), (0, 1, 2))
    assert hang.around[0].rows[1].states[-1] in ("started", "issued")


# --- any of these, also with half of the launches' rows lost ---


@pytest.mark.parametrize("lost", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(16))
def test_random_jobs_name_nobody_else(seed, lost, tmp_path):
    """GIVEN kernels whose launch rows are lost, THEN they are told by their order, and no verdict changes."""
    random = Random(seed)
    verdict = (*WAYS, "not_a_hang")[seed % (len(WAYS) + 1)]
    job = random_job(random, swapped=verdict == "order_inversion")
    faulty = random.randrange(job.ranks)
    exports = healthy(job) if verdict == "not_a_hang" else WAYS[verdict](job, faulty)
    hang = asked(job, lose_launches(exports, lost, random), tmp_path)
    if verdict == "size_mismatch" and not job.payloads:
        verdict = "unfinished"
    assert hang.verdict == verdict
    if job.ranks > 2:  # of two that differ either may be the one
        assert set(hang.culprits) | set(hang.missing_ranks) <= {faulty}


def test_kernels_that_cannot_be_told_by_order_decide_nothing(tmp_path):
    """GIVEN gathers on two streams of one communicator with half of their launches lost, THEN that is lacking."""
    job = Job(payloads=False)
    exports = missing(job, 3)
    gathers = [
        row
        for row in exports[0].rows["CUPTI_ACTIVITY_KIND_KERNEL"]
        if row["shortName"] == exports[0].string("ncclDevKernel_AllGather_RING_LL")
    ]
    for row in gathers[::2]:
        row["streamId"] = 36
    hang = asked(job, lose_launches(exports, 0.5, Random(1)), tmp_path)
    assert (hang.verdict, hang.culprits, hang.missing_ranks) == ("undecided", (), ())
    assert "launched the collectives" in " ".join(hang.lacking)


# --- a capture that begins later than the others ---


@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("verdict", [v for v in WAYS if v != "step_desync"])
def test_a_rank_that_is_captured_from_later_on_is_not_to_blame(verdict, payloads, tmp_path):
    """GIVEN steps so regular that no clock tells which collective is which, THEN their numbers do."""
    job = Job(payloads=payloads, inits=False, reports="each")
    exports = WAYS[verdict](job, 3)
    begun_later(exports[1], 3 * job.step_ns // 2)
    hang = asked(job, exports, tmp_path)
    if verdict == "size_mismatch" and not payloads:
        verdict = "unfinished"
    assert hang.verdict == verdict
    assert set(hang.culprits) | set(hang.missing_ranks) <= {3}


def test_without_steps_such_a_rank_is_not_blamed(tmp_path):
    job = Job(payloads=False, reports="each")
    exports = missing(job, 3)
    begun_later(exports[1], 3 * job.step_ns // 2)
    for export in exports:
        export.rows["NVTX_EVENTS"] = [r for r in export.rows["NVTX_EVENTS"] if not str(r["text"]).startswith("step")]
        del export.rows["TARGET_INFO_SESSION_START_TIME"]
    hang = asked(job, exports, tmp_path)
    assert 1 not in {*hang.culprits, *hang.missing_ranks}
