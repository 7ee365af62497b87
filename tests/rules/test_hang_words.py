"""What is said of a hang, and what to do next: by hand, from a few facts."""

import pytest

from tracekit.evidence import Activity, ProcessFacts
from tracekit.results import Hang, LastActivity, Mismatch, ProcessGroup, Waiting
from tracekit.rules.hang_steps import next_steps, user_frame
from tracekit.rules.hang_words import claim, collective, group_name, who

HASH = "0x00000000deadbeef"


def hang(verdict="missing_rank", **facts):
    given = {
        "communicator": HASH, "description": None, "seq": 7, "op": "all_gather", "missing_ranks": (),
        "waiting_ranks": (), "ahead_ranks": (), "behind_ranks": (), "culprits": (), "cycle": (), "mismatches": (),
        "last_activity": (), "step": None, "module": None, "lacking": (), "notes": (),
    }  # fmt: skip
    return Hang(verdict=verdict, **given | facts)


def group(name=HASH, description=None, ranks=(0, 1, 2, 3)):
    return ProcessGroup(name=name, description=description, ranks=ranks)


def did(rank, activity=None, **process):
    return LastActivity(
        rank=rank, communicator=None, seq=None, op=None, state=None, activity=activity or Activity(),
        process=ProcessFacts(**process),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "others", "said"),
    [
        (group("74", "EXPERT_MODEL_PARALLEL_GROUP", (12, 13, 14, 15)), (), "EXPERT_MODEL_PARALLEL_GROUP (12-15)"),
        (group("world"), (), "group world (0-3)"),
        (group(), (), "the communicator of ranks 0-3"),
        (group(), (group("0x00000000deadb00f"),), "communicator 0x…beef (0-3)"),
        (group(), (group("0x00000000deadb00f", ranks=(0, 1)),), "the communicator of ranks 0-3"),
        (group(ranks=None), (), "communicator 0x…beef"),
        (group(ranks=tuple(range(0, 1024, 8))), (), "the communicator of 128 ranks"),
        (group("the stream of all-reduce", ranks=None), (), "the stream of all-reduce"),
    ],
)
def test_a_group_by_its_name_or_its_ranks(known, others, said):
    assert group_name(hang(communicator=known.name, group=known, groups=(known, *others))) == said


def test_one_sequence_has_no_communicator():
    assert collective(hang(communicator="all collectives")) == "all-gather at 7 in the order of all collectives"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((3,), "Rank 3"),
        ((1, 2), "Ranks 1-2"),
        (tuple(range(30)), "30 ranks (0-29)"),
        (tuple(range(0, 1024, 2)), "512 ranks"),
    ],
)
def test_few_ranks_are_told_and_many_counted(ranks, said):
    assert who(ranks) == said


def mismatch(*calls):
    return Mismatch(
        verdict="size_mismatch", communicator=HASH, seq=7, op="all_gather", ranks=(1,), expected=calls[0],
        found=(((0, 2, 3), calls[0]), ((1,), calls[1])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            ("all_gather 8,388,608 -> 33,554,432 bytes", "all_gather 8,912,896 -> 35,651,584 bytes"),
            "rank 1 8.913 MB -> 35.65 MB; ranks 0, 2-3 8.389 MB -> 33.55 MB",
        ),
        (
            ("all_gather 8,388,608 -> 33,554,432 bytes", "all_gather 8,388,609 -> 33,554,432 bytes"),
            "rank 1 8,388,609 -> 33,554,432 bytes; ranks 0, 2-3 8,388,608 -> 33,554,432 bytes",
        ),
        (
            ("all_gather 1,000 -> 4,000 elements", "all_gather 500 -> 2,000 elements"),
            "rank 1 500 -> 2,000 elements; ranks 0, 2-3 1,000 -> 4,000 elements",
        ),
    ],
)
def test_bytes_have_a_unit_unless_that_hides_the_difference(calls, said):
    found = hang("size_mismatch", group=group(), mismatches=(mismatch(*calls),))
    assert claim(found) == f"Ranks called all-gather 7 of the communicator of ranks 0-3 differently: {said}"


def test_the_widest_job_fits_two_lines():
    """GIVEN 1,024 ranks, every second one missing, THEN the sentence still fits two lines of a terminal."""
    wide = group("74", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", tuple(range(1024)))
    odd, even = tuple(range(1, 1024, 2)), tuple(range(0, 1024, 2))
    text = claim(hang(communicator="74", group=wide, missing_ranks=odd, waiting_ranks=even))
    assert text == (
        "512 ranks never launched all-gather 7 of EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP (0-1023); 512 ranks wait"
    )
    assert len(text) <= 158


def test_sends_and_receives_are_called_so():
    edge = {"seq": 1, "op": "send_recv"}
    cycle = (
        Waiting(rank=0, communicator="0: 1 to 0", waits_for=1, **edge),
        Waiting(rank=1, communicator="0: 0 to 1", waits_for=0, **edge),
    )
    found = hang("order_inversion", communicator="0: 1 to 0", op="send_recv", seq=1, missing_ranks=(1,), cycle=cycle)
    assert claim(found).startswith("Ranks 0-1 wait for one another in sends and receives: rank 1 never launched")


@pytest.mark.parametrize("timed", [True, False])
def test_a_suspicion_is_said_where_captures_tell_the_times(timed):
    rows = tuple(did(rank, Activity(idle_ns=5 if timed else None)) for rank in range(4))
    found = hang(
        "undecided",
        group=group(),
        behind_ranks=(3,),
        waiting_ranks=(0, 1, 2),
        lacking=("longer captures",),
        last_activity=rows,
    )
    said = "Suspected, not certain: rank 3 had not launched all-gather 7 of the communicator of ranks 0-3"
    assert claim(found).startswith(said if timed else "Undecided at all-gather 7")
    assert claim(found).endswith("what is lacking: longer captures")


# --- what to do next ---


def test_the_process_is_named_with_its_gpu():
    row = did(3, host="n7", pid=4121, device=1, pci="0000:1b:00.0")
    steps = next_steps(hang(culprits=(3,), last_activity=(did(2, pid=9), row)))
    assert steps[0] == (
        "Look at rank 3 (host n7, pid 4121, GPU 1 at 0000:1b:00.0): py-spy dump --pid 4121 on n7 shows where its"
        " threads are now."
    )
    assert steps[-1] == "Exclude a GPU error: dmesg -T | grep -i xid on n7 (the GPU at 0000:1b:00.0)."


def test_the_users_innermost_frame_leads():
    frames = (
        "all_reduce (/usr/lib/python3/site-packages/torch/distributed.py:9)",
        "norm (clip.py:4)",
        "main (run.py:8)",
    )
    assert user_frame(frames) == "norm (clip.py:4)"
    assert user_frame(frames[:1]) == frames[0]
    assert user_frame(()) is None
    steps = next_steps(hang(culprits=(3,), last_activity=(did(3, Activity(frames=frames)),)))
    assert any("from norm (clip.py:4)" in step for step in steps)


def test_where_it_is_inside_is_told():
    doing = Activity(open_ranges=("step", "forward"), last_call="cudaMalloc", last_call_open=True)
    steps = next_steps(hang("host_blocked", culprits=(3,), last_activity=(did(3, doing),)))
    assert "Rank 3 is inside step > forward, in the call cudaMalloc." in steps


def test_a_call_that_returned_is_not_where_it_is():
    doing = Activity(last_call="cudaMalloc")
    assert not any("inside" in step for step in next_steps(hang(culprits=(3,), last_activity=(did(3, doing),))))


def test_a_rank_without_a_source_is_said_to_have_none():
    steps = next_steps(hang(culprits=(1, 3), last_activity=(did(1),)))
    assert any("no source of rank 3" in step for step in steps)


def test_many_processes_are_told_by_their_ranks():
    rows = tuple(did(rank) for rank in range(64))
    steps = next_steps(hang(culprits=tuple(range(64)), last_activity=rows))
    assert sum(step.startswith("Look at") for step in steps) == 3
    assert "The same for ranks 3-63." in steps


@pytest.mark.parametrize(
    ("verdict", "asks"), [("unfinished", True), ("state_mismatch", True), ("type_mismatch", False)]
)
def test_the_network_is_asked_where_all_have_launched(verdict, asks):
    steps = next_steps(hang(verdict, waiting_ranks=(0, 1), last_activity=(did(0), did(1))))
    assert any("ncclras" in step for step in steps) == asks
    assert any("xid" in step for step in steps) == asks


def test_what_is_no_hang_asks_for_nothing():
    assert next_steps(hang("not_a_hang", last_activity=(did(0),))) == ()
