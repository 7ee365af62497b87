"""Verdicts on dumps as jobs write them: unfinished entries alone, counts beside them, messages, lost entries."""

from __future__ import annotations

import pickle

import pytest

from tracekit.config import DEFAULT
from tracekit.metrics.hangs import diagnose
from tracekit.readers.dumps import read_dumps

ASKED = 1_700_000_000_000_000_000


class Dump:
    """What one rank's process has recorded. ``numbers``: its own number of each group."""

    def __init__(self, job, rank, numbers):
        self.job, self.rank, self.numbers = job, rank, numbers
        self.entries, self.status, self.record = [], {}, 0

    def call(self, group, seq, op, *, size=8, out=None, state="scheduled", dtype="BFloat16", **more):
        self.record = more.pop("record", self.record)
        self.entries.append(
            {
                "record_id": self.record,
                "pg_id": self.numbers[group],
                "process_group": (group, self.job.groups[group][0]),
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": f"nccl:{op}",
                "time_created_ns": ASKED + self.record,
                "input_sizes": [[size]],
                "input_dtypes": [dtype],
                "output_sizes": [[out or size]],
                "output_dtypes": [dtype],
                "state": state,
                "retired": state == "completed",
                "is_p2p": False,
            }
            | more
        )
        self.record += 1
        return self

    def calls(self, group, seqs, op, **more):
        for seq in seqs:
            self.call(group, seq, op, **more)
        return self

    def message(self, group, number, text, *, state="scheduled", size=8, **more):
        return self.call(group, 0, text, size=size, state=state, p2p_seq_id=number, is_p2p=True, **more)

    def counts(self, group, launched, completed):
        self.status[str(self.numbers[group])] = {
            "last_enqueued_collective": launched,
            "last_started_collective": -1,
            "last_completed_collective": completed,
        }
        return self


class Job:
    """``groups``: (description, ranks) by name."""

    def __init__(self, groups, size=None):
        size = size or 1 + max(rank for _, ranks in groups.values() for rank in ranks)
        self.groups = {"0": ("default_pg", tuple(range(size))), **groups}
        self.dumps = {}

    def rank(self, rank):
        if rank not in self.dumps:
            own = sorted((name for name, (_, ranks) in self.groups.items() if rank in ranks), key=str)
            numeric = all(name.isdigit() for name in own)
            own = sorted(own, key=int) if numeric else own
            self.dumps[rank] = Dump(self, rank, {name: 2 * i for i, name in enumerate(own)})
        return self.dumps[rank]

    def judge(self, folder, *, without=()):
        for dump in self.dumps.values():
            if dump.rank in without:
                continue
            config = {
                name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
                for name, (desc, ranks) in self.groups.items()
                if name in dump.numbers
            }
            content = {"version": "2.9", "pg_config": config, "pg_status": dump.status, "entries": dump.entries}
            (folder / f"_dump_{dump.rank}").write_bytes(pickle.dumps(content, protocol=2))
        return diagnose(read_dumps(sorted(folder.iterdir())), DEFAULT)


def names(hang):
    return {rank for each in (hang, *hang.others) for rank in (*each.missing_ranks, *each.culprits)}


# --- unfinished entries alone ---


def experts(*, stopped):
    """Ranks 0-3 are experts, 0-1 and 2-3 tensor groups. The host of rank 0 stops after number 36 of the experts.

    The ranks in ``stopped`` list as unfinished what the others have finished with them.
    """
    job = Job({"7": ("EXPERT", (0, 1, 2, 3)), "8": ("TENSOR", (0, 1)), "9": ("TENSOR", (2, 3))})
    for rank in range(4):
        dump, tensor = job.rank(rank), "8" if rank < 2 else "9"
        dump.record = 9000 + 10 * rank
        first, first_tensor = (30, 106) if rank in stopped else (37, 118)
        last, last_tensor = (36, 117) if rank == 0 else (38, 126)
        dump.calls("7", range(first, last + 1), "all_to_all").counts("7", last, first - 1)
        dump.calls(tensor, range(first_tensor, last_tensor + 1), "all_reduce").counts(
            tensor, last_tensor, first_tensor - 1
        )
        dump.counts("0", 3, 3)
    job.rank(3).entries[-1]["record_id"] = 9900  # finished ones between are left out
    return job


@pytest.mark.parametrize("stopped", [(0, 2), ()])
def test_the_rank_whose_last_launched_number_is_lowest_is_missing(tmp_path, stopped):
    hang = experts(stopped=stopped).judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq, hang.op) == ("missing_rank", "7", 37, "all_to_all")
    assert hang.missing_ranks == hang.culprits == (0,)
    assert (hang.waiting_ranks, hang.behind_ranks) == ((1, 2, 3), (0,))
    assert names(hang) == {0}
    assert (hang.launched[0].ranks, hang.launched[0].launched) == ((0,), 36)
    assert {row.launched for row in hang.launched[1:]} == {38}
    told = [note for note in hang.notes if "the GPU failed there" in note]
    assert [note.split(" list")[0] for note in told] == (["ranks 0, 2"] if stopped else [])


def test_a_rank_that_is_ahead_has_launched_all_before(tmp_path):
    # The first known number of ranks 1 and 2 is what they wait in; rank 0, of which earlier ones are known, is behind.
    job = Job({}, size=3)
    job.rank(0).calls("0", range(1000, 1007), "all_reduce")
    for rank in (1, 2):
        job.rank(rank).record = 1007
        job.rank(rank).calls("0", range(1007, 1011), "all_reduce")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.seq, hang.missing_ranks) == ("missing_rank", 1007, (0,))


# --- dumps without entries ---


def locked(numbers, *, names_of_groups=("5", "11")):
    """All of a group of four wait in number 65 but those in ``numbers``, who list nothing and count up to that."""
    tensor, expert = names_of_groups
    job = Job({tensor: ("TENSOR", (0, 1, 2, 3)), expert: ("EXPERT", (0, 1, 2, 3))})
    for rank in range(4):
        dump = job.rank(rank)
        dump.counts("0", 12, 12).counts(tensor, 40, 40)
        if rank in numbers:
            dump.counts(expert, numbers[rank], numbers[rank])
        else:
            dump.record = 800
            dump.call(expert, 65, "all_to_all").call(expert, 66, "all_to_all", record=803).counts(expert, 66, 64)
    return job


def test_empty_dumps_tell_by_their_counts_who_is_missing(tmp_path):
    hang = locked({1: 64, 3: 64}).judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq) == ("missing_rank", "11", 65)
    assert hang.missing_ranks == hang.culprits == (1, 3)
    assert hang.waiting_ranks == (0, 2)
    row = hang.launched[0]
    assert (row.ranks, row.launched, row.completed, row.source) == ((1, 3), 64, 64, "status")
    assert any("mapped by the order in which they were made" in note for note in hang.notes)


def test_a_rank_that_counts_further_is_not_missing(tmp_path):
    # Rank 1 has finished what the others wait in: only rank 3 is behind.
    hang = locked({1: 66, 3: 64}).judge(tmp_path)
    assert (hang.verdict, hang.seq, hang.missing_ranks) == ("missing_rank", 65, (3,))
    assert names(hang) == {3}


def test_counts_of_groups_with_names_that_tell_no_order_are_not_used(tmp_path):
    hang = locked({1: 64}, names_of_groups=("mesh_tp", "mesh_ep")).judge(tmp_path)
    assert (hang.verdict, hang.missing_ranks) == ("missing_rank", (1,))  # it lists nothing: it is in none
    assert hang.launched[0].source == "none"


def test_empty_dumps_without_counts_decide_nothing(tmp_path):
    job = locked({1: 64})
    job.rank(1).status = {}
    hang = job.judge(tmp_path)
    assert (hang.verdict, names(hang)) == ("undecided", set())
    assert any("rank 1" in lack for lack in hang.lacking)


def test_counts_of_operations_of_all_kinds_are_not_taken_for_numbers(tmp_path):
    # torchcomms counts operations: rank 1's count of 900 says nothing of number 65.
    job = locked({1: 900, 3: 64})
    for rank in (0, 2):
        for entry in job.rank(rank).entries:
            entry["op_id"] = 1000 + entry["collective_seq_id"]
        job.rank(rank).counts("11", 1066, 1064)
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.missing_ranks) == ("missing_rank", (1, 3))


def test_counts_of_groups_that_send_and_receive_are_not_taken_for_collectives(tmp_path):
    # The count of the world is of messages on ranks 1 and 3: they have launched the all-reduce that the others are in.
    job = Job({}, size=4)
    for rank in range(4):
        dump = job.rank(rank)
        dump.record = 100
        dump.call("0", 194, "all_reduce", record=150 + rank)
        dump.counts("0", 14_146 if rank % 2 else 194, 14_145 if rank % 2 else 193)
    job.rank(1).message("0", 14_146, "recv 1<-3")
    job.rank(3).message("0", 14_146, "send 3->1")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq, names(hang)) == ("unfinished", "0", 194, set())


# --- several roots ---


def test_two_independent_roots_are_two_findings(tmp_path):
    job = Job({"7": ("EXPERT", (0, 1, 2, 3)), "8": ("EXPERT", (4, 5, 6, 7)), "9": ("DATA", (3, 7))})
    for rank in range(8):
        dump, expert = job.rank(rank), "7" if rank < 4 else "8"
        dump.calls(expert, range(1, 20), "all_to_all", state="completed")
        if rank not in (2, 5):
            dump.call(expert, 20, "all_to_all")
    job.rank(3).call("9", 1, "all_reduce")
    job.rank(7).call("9", 1, "all_reduce")
    hang = job.judge(tmp_path)
    findings = {(h.verdict, h.communicator, h.seq, h.missing_ranks) for h in (hang, *hang.others)}
    assert findings == {("missing_rank", "7", 20, (2,)), ("missing_rank", "8", 20, (5,))}
    assert len(hang.others) == 1
    roots = [wait for wait in hang.waits if wait.is_root]
    assert {wait.missing for wait in roots} == {(2,), (5,)}


@pytest.mark.parametrize("second", [True, False])
def test_what_waits_for_the_root_is_a_consequence(tmp_path, second):
    # Rank 1 of the first stage stops. Its tensor peer, the stage after and the world wait, directly or by others.
    job = Job({"1": ("TENSOR", (0, 1)), "2": ("TENSOR", (2, 3)), "3": ("PIPELINE", (0, 2)), "4": ("PIPELINE", (1, 3))})
    job.rank(0).call("1", 1, "all_reduce").message("3", 1, "send 0->1")
    job.rank(1)
    job.rank(2).message("3", 1, "recv 1<-0")
    job.rank(3).message("4", 1, "recv 1<-0").call("2", 1, "all_reduce")
    job.rank(1).call("0", 1, "all_reduce", state="completed")
    for rank in (0, 2, 3):
        job.rank(rank).entries.insert(0, dict(job.rank(1).entries[0]))
        for record, entry in enumerate(job.rank(rank).entries):
            entry["record_id"] = record
    if second:
        job.rank(2).call("2", 1, "all_reduce")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.culprits, hang.others) == ("missing_rank", (1,), ())


# --- messages ---


def test_a_receive_without_its_send_in_dumps_that_lost_their_beginning(tmp_path):
    job = Job({"3": ("PIPELINE", (0, 1, 2))})
    for rank in range(3):
        job.rank(rank).record = 4000
    for number in range(700, 710):
        job.rank(0).message("3", number, "send 0->1", state="completed")
        job.rank(1).message("3", 2 * number, "recv 1<-0", state="completed")
        job.rank(1).message("3", 2 * number + 1, "send 1->2", state="completed")
        job.rank(2).message("3", number, "recv 2<-1", state="completed")
    job.rank(1).message("3", 1420, "recv 1<-0", state="started")
    job.rank(2).message("3", 710, "recv 2<-1", state="started")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.culprits) == ("missing_rank", "3: 0 to 1", (0,))
    assert (hang.waiting_ranks, hang.seq) == ((1,), 1420)
    assert names(hang) == {0}


def test_messages_that_both_ends_have_launched_blame_nobody(tmp_path):
    job = Job({"3": ("PIPELINE", (0, 1, 2))})
    for rank, text in ((0, "send 0->1"), (1, "recv 1<-0")):
        job.rank(rank).record = 4000
        job.rank(rank).message("3", 700 + 3 * rank, text, state="completed").message("3", 701 + 3 * rank, text)
    job.rank(2).record = 4000
    job.rank(2).call("0", 9, "all_reduce", state="completed")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, names(hang)) == ("unfinished", "3: 0 to 1", set())


def test_numbers_of_two_ranks_are_the_same_where_each_has_its_counterpart(tmp_path):
    # Rank 0 has finished its send 57; rank 1 waits in receive 57: it is launched, so rank 0 is not missing.
    job = Job({"3": ("PIPELINE", (0, 1))})
    for rank, text in ((0, "send 0->1"), (1, "recv 1<-0")):
        job.rank(rank).record = 90
        for number in range(50, 57):
            job.rank(rank).message("3", number, text, state="completed")
        job.rank(rank).message("3", 57, text, state="started" if rank else "completed")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.seq, hang.missing_ranks) == ("state_mismatch", 57, ())


def test_two_ranks_that_both_send_first_wait_for_one_another(tmp_path):
    job = Job({}, size=2)
    job.rank(0).message("0", 1, "send 0->1")
    job.rank(1).message("0", 1, "send 1->0")
    hang = job.judge(tmp_path)
    assert hang.verdict == "order_inversion"
    assert {(wait.rank, wait.communicator, wait.waits_for) for wait in hang.cycle} == {
        (0, "0: 0 to 1", 1),
        (1, "0: 1 to 0", 0),
    }


def test_a_batch_that_waits_for_a_message_which_comes_after_it(tmp_path):
    job = Job({}, size=3)

    def batch(rank, *texts):
        for text in (*texts, "coalesced"):
            job.rank(rank).message("0", 1, text, state="started" if text == "coalesced" else "scheduled")

    batch(0, "send 0->1", "send 0->2")
    batch(1, "recv 1<-0")
    batch(2, "recv 2<-0", "recv 2<-1")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.missing_ranks) == ("order_inversion", "0: 1 to 2", (1,))
    assert [(wait.rank, wait.waits_for) for wait in hang.cycle] == [(2, 1), (1, 0), (0, 2)]


def test_batches_that_fit_and_do_not_end_blame_nobody(tmp_path):
    job = Job({}, size=3)
    for rank in range(3):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        for text in (f"send {rank}->{right}", f"recv {rank}<-{left}", "coalesced"):
            job.rank(rank).message("0", 1, text, state="started" if text == "coalesced" else "scheduled")
    hang = job.judge(tmp_path)
    assert (hang.verdict, names(hang)) == ("unfinished", set())


@pytest.mark.parametrize("sent", [True, False])
def test_batches_that_are_counted_among_the_collectives(tmp_path, sent):
    # Older versions of torch do not count messages, and write the end of a batch down as a collective. Members of a
    # batch are never told to be over: their batch's end is.
    job = Job({"3": ("PIPELINE", (0, 1, 2))})

    def batch(rank, seq, *texts, state="completed"):
        for text in texts:
            job.rank(rank).message("3", 0, text, collective_seq_id=seq)
        job.rank(rank).call("3", seq, "coalesced", state=state, input_sizes=[], output_sizes=[])

    for seq in (1, 2, 3):
        batch(0, seq, "send 0->1")
        batch(1, seq, "recv 1<-0", "send 1->2")
        batch(2, seq, "recv 2<-1")
    batch(1, 4, "recv 1<-0", "send 1->2", state="started")
    batch(2, 4, "recv 2<-1", state="started")
    if sent:
        batch(0, 4, "send 0->1", state="started")
    hang = job.judge(tmp_path)
    assert hang.verdict == ("unfinished" if sent else "missing_rank")
    assert names(hang) == (set() if sent else {0})
    if not sent:
        assert (hang.communicator, hang.seq) == ("3: 0 to 1", 4)


def test_messages_of_different_sizes(tmp_path):
    job = Job({"3": ("PIPELINE", (0, 1, 2))})
    for number in (1, 2, 3):
        state = "completed" if number < 3 else "scheduled"
        job.rank(0).message("3", number, "send 0->1", state=state)
        job.rank(1).message("3", number, "recv 1<-0", state=state, size=16 if number == 3 else 8)
    job.rank(2)
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq) == ("size_mismatch", "3: 0 to 1", 3)


# --- never a false all-clear ---


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_an_unfinished_entry_that_was_passed_over_keeps_a_job_from_being_cleared(tmp_path, state):
    job = Job({}, size=2)
    for rank in range(2):
        job.rank(rank).call("0", 1, "all_reduce", state="completed")
    job.rank(1).message("0", 1, "recv from anyone", state=state)
    hang = job.judge(tmp_path)
    if state == "completed":
        assert (hang.verdict, hang.unfinished) == ("not_a_hang", ())
    else:
        [entry] = hang.unfinished
        assert hang.verdict == "undecided"
        assert (entry.rank, entry.communicator, entry.op, entry.state) == (1, "0", "send_recv", "issued")
        assert any("rank 1" in lack for lack in hang.lacking)


@pytest.mark.parametrize("world", ["default_pg", ""])
@pytest.mark.parametrize("without", [(), (2,)])
def test_a_dump_that_is_lacking_keeps_a_job_from_being_cleared(tmp_path, without, world):
    job = Job({"0": (world, (0, 1, 2))})
    for rank in range(3):
        job.rank(rank).call("0", 1, "all_reduce", state="completed")
    hang = job.judge(tmp_path, without=without)
    assert hang.verdict == ("undecided" if without else "not_a_hang")
    assert any("rank 2" in lack for lack in hang.lacking) == bool(without)


# --- who differs in a group of two ---


@pytest.mark.parametrize("alike", [True, False])
def test_other_groups_that_called_the_same_before_tell_who_differs(tmp_path, alike):
    job = Job({str(n): ("TENSOR", (2 * n - 2, 2 * n - 1)) for n in (1, 2, 3)})
    for rank in range(6):
        dump, tensor = job.rank(rank), str(rank // 2 + 1)
        other_stage = not alike and rank > 1  # it calls other things under the same numbers
        for seq in range(1, 9):
            op = "all_gather" if (seq + other_stage) % 2 else "reduce_scatter"
            sizes = {"size": 8, "out": 16} if op == "all_gather" else {"size": 16, "out": 8}
            dump.call(tensor, seq, op, state="completed", **sizes)
        if rank == 1:
            dump.call(tensor, 9, "all_reduce")
        else:
            dump.call(tensor, 9, "all_gather", size=8, out=16, state="scheduled" if rank < 2 else "completed")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq) == ("type_mismatch", "1", 9)
    assert hang.culprits == ((1,) if alike else ())


def test_the_table_around_the_point_tells_what_the_counts_do(tmp_path):
    hang = locked({1: 64, 3: 64}).judge(tmp_path)
    [table] = hang.around
    assert table.seqs == (65, 66)
    assert [(row.ranks, row.states) for row in table.rows] == [
        ((1, 3), ("absent", "absent")),
        ((0, 2), ("issued", "issued")),
    ]


def test_a_count_of_messages_does_not_excuse_a_rank_that_lists_none(tmp_path):
    # Ranks 0 and 1 send to one another in the world. Rank 3 lists nothing: its 14,146 are messages, not collectives.
    job = Job({}, size=4)
    for rank in range(4):
        dump = job.rank(rank)
        dump.record = 100
        if rank < 3:
            dump.call("0", 194, "all_reduce", record=150 + rank)
        dump.counts("0", 14_146, 14_146)
    job.rank(0).message("0", 14_147, "send 0->1", record=190)
    job.rank(1).message("0", 14_147, "recv 1<-0", record=191)
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, hang.seq) == ("missing_rank", "0", 194)
    assert names(hang) == {3}


def test_the_rank_that_calls_in_another_order_than_most_stands_out(tmp_path):
    job = Job({"1": ("FIRST", (0, 1, 2, 3)), "2": ("SECOND", (0, 1, 2, 3))})
    for rank in range(4):
        job.rank(rank).call("2" if rank == 3 else "1", 1, "all_reduce", state="started")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.culprits) == ("order_inversion", (3,))


def test_nobody_stands_out_where_as_many_call_in_one_order_as_in_the_other(tmp_path):
    job = Job({"1": ("FIRST", (0, 1, 2, 3)), "2": ("SECOND", (0, 1, 2, 3))})
    for rank in range(4):
        job.rank(rank).call("2" if rank > 1 else "1", 1, "all_reduce", state="started")
    hang = job.judge(tmp_path)
    assert (hang.verdict, names(hang)) == ("order_inversion", set())


def test_other_groups_do_not_tell_who_differs_where_nothing_before_is_known(tmp_path):
    # They may be other stages of a pipeline, which call other things under this number.
    job = Job({str(n): ("TENSOR", (2 * n - 2, 2 * n - 1)) for n in (1, 2, 3)})
    for rank in range(6):
        op = "all_reduce" if rank == 1 else "broadcast"
        job.rank(rank).call(str(rank // 2 + 1), 1, op, state="scheduled" if rank < 2 else "completed")
    hang = job.judge(tmp_path)
    assert (hang.verdict, hang.communicator, names(hang)) == ("type_mismatch", "1", set())
