"""Small jobs that are run to their deadlock, with a fault that was put in: the diagnosis has to name it.

The simulator is the oracle. Each rank's host issues its program in order, at most ``ahead`` collectives beyond what its
GPU has finished; its GPU runs them one after the other, each until all members run it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.evidence_builder import Job
from tracekit.config import DEFAULT
from tracekit.metrics.hangs import diagnose


@dataclass(frozen=True)
class Call:
    communicator: str
    op: str = "all_reduce"
    size: int = 4
    step: int = 0


def run(groups, programs, ahead):
    """(how many each rank issued, how many it finished) when nothing moves any more.

    The k-th call of a communicator on one rank meets the k-th of the others, whatever they call.
    """
    issued, finished = dict.fromkeys(programs, 0), dict.fromkeys(programs, 0)

    def running(rank):
        done = finished[rank]
        if done >= issued[rank]:
            return None
        name = programs[rank][done].communicator
        return name, sum(call.communicator == name for call in programs[rank][:done])

    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while issued[rank] < len(program) and issued[rank] < finished[rank] + ahead:
                issued[rank] += 1
                moved = True
        for name, members in groups.items():
            at = [running(rank) for rank in members]
            if at[0] is not None and at[0][0] == name and len(set(at)) == 1:
                for rank in members:
                    finished[rank] += 1
                moved = True
    return issued, finished


def evidence_of(groups, programs, issued, finished, lost):
    job = Job(groups)
    for rank, program in programs.items():
        row = job.rank(rank, wrapped=lost > 0)
        counts = dict.fromkeys(groups, 0)
        for i, call in enumerate(program[: issued[rank]]):
            counts[call.communicator] += 1
            if i < min(lost, finished[rank]):
                continue
            state = 2 if i < finished[rank] else 1 if i == finished[rank] else 0
            sizes = (call.size, call.size)
            row.entry(call.communicator, counts[call.communicator], call.op, *sizes, state=state, step=call.step)
    return job.evidence()


@st.composite
def jobs(draw):
    """(groups, a program for each rank, in one common order; ahead)."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    ranks = range(rows * columns)
    groups = {f"row{r}": tuple(range(r * columns, (r + 1) * columns)) for r in range(rows)}
    groups |= {f"column{c}": tuple(range(c, rows * columns, columns)) for c in range(columns)} if rows > 1 else {}
    groups["world"] = tuple(ranks)
    kinds = draw(
        st.lists(st.sampled_from(["row", "column", "world"] if rows > 1 else ["row", "world"]), min_size=6, max_size=16)
    )
    programs = {
        rank: [
            Call({"row": f"row{rank // columns}", "column": f"column{rank % columns}"}.get(kind, "world"), step=i // 4)
            for i, kind in enumerate(kinds)
        ]
        for rank in ranks
    }
    return groups, programs, draw(st.integers(1, 4))


@given(jobs(), st.data())
@settings(max_examples=300, deadline=None)
def test_the_rank_that_stops_is_named_and_what_it_would_have_called_next(job, data):
    groups, programs, ahead = job
    culprit = data.draw(st.sampled_from(sorted(programs)))
    stop = data.draw(st.integers(1, len(programs[culprit]) - 1))
    lost = data.draw(st.sampled_from([0, 0, 2]))
    awaited = programs[culprit][stop]
    seq = sum(call.communicator == awaited.communicator for call in programs[culprit][: stop + 1])
    programs = programs | {culprit: programs[culprit][:stop]}
    issued, finished = run(groups, programs, ahead)
    assert any(finished[rank] < len(programs[rank]) for rank in programs)
    hang = diagnose(evidence_of(groups, programs, issued, finished, lost), DEFAULT)
    if lost and hang.verdict == "undecided":  # all that the culprit did in that communicator may be lost
        return
    assert (hang.verdict, hang.culprits) == ("missing_rank", (culprit,))
    if ahead == 1 and not lost:
        assert (hang.communicator, hang.seq) == (awaited.communicator, seq)


@given(jobs(), st.data())
@settings(max_examples=300, deadline=None)
def test_two_collectives_in_the_other_order_on_one_rank_are_an_inversion(job, data):
    groups, programs, ahead = job
    culprit = data.draw(st.sampled_from(sorted(programs)))
    at = data.draw(st.integers(0, len(programs[culprit]) - 2))
    program = list(programs[culprit])
    assume(program[at].communicator != program[at + 1].communicator)
    program[at], program[at + 1] = program[at + 1], program[at]
    programs = programs | {culprit: program}
    issued, finished = run(groups, programs, ahead)
    assume(any(finished[rank] < len(programs[rank]) for rank in programs))
    hang = diagnose(evidence_of(groups, programs, issued, finished, 0), DEFAULT)
    assert hang.verdict == "order_inversion"
    involved = {w.communicator for w in hang.cycle}
    assert {program[at].communicator, program[at + 1].communicator} <= involved
    assert culprit in {w.rank for w in hang.cycle}
    for wait in hang.cycle:  # each edge is true: the rank runs it, the other does not
        assert programs[wait.rank][finished[wait.rank]].communicator == wait.communicator
        other = programs[wait.waits_for]
        done = other[: finished[wait.waits_for]]
        assert sum(call.communicator == wait.communicator for call in done) < wait.seq
        assert other[finished[wait.waits_for]].communicator != wait.communicator


@given(jobs(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_call_with_other_arguments_is_named(job, data):
    groups, programs, ahead = job
    culprit = data.draw(st.sampled_from(sorted(programs)))
    at = data.draw(st.integers(0, len(programs[culprit]) - 1))
    kind = data.draw(st.sampled_from(["type_mismatch", "size_mismatch"]))
    call = programs[culprit][at]
    assume(len(groups[call.communicator]) > 2)
    other = Call(call.communicator, "all_gather", 4) if kind == "type_mismatch" else Call(call.communicator, size=5)
    program = [*programs[culprit][:at], other, *programs[culprit][at + 1 :]]
    programs = programs | {culprit: program}
    # Nobody gets through the mismatched collective.
    stuck = {rank: list(calls) for rank, calls in programs.items()}
    seq = sum(c.communicator == call.communicator for c in program[: at + 1])
    for rank in groups[call.communicator]:
        row = [i for i, c in enumerate(stuck[rank]) if c.communicator == call.communicator][seq - 1]
        stuck[rank] = stuck[rank][: row + 1]
    issued, finished = run(groups, stuck, ahead)
    for rank in groups[call.communicator]:
        finished[rank] = min(finished[rank], len(stuck[rank]) - 1)
    hang = diagnose(evidence_of(groups, stuck, issued, finished, 0), DEFAULT)
    assert (hang.verdict, hang.communicator, hang.seq, hang.culprits) == (kind, call.communicator, seq, (culprit,))


@given(jobs())
@settings(max_examples=100, deadline=None)
def test_a_job_that_ends_is_no_hang(job):
    groups, programs, ahead = job
    issued, finished = run(groups, programs, ahead)
    assert all(finished[rank] == len(programs[rank]) for rank in programs)
    assert diagnose(evidence_of(groups, programs, issued, finished, 0), DEFAULT).verdict == "not_a_hang"
