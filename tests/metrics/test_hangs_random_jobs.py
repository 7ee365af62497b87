"""Thousands of random jobs with faults: whoever is named is at fault, and a job that stands still is never cleared.

The simulator in `random_jobs` knows the truth. Each job is judged from the files that its ranks would dump.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.metrics.random_jobs import random_job, random_recorder, write_dumps
from tracekit.config import DEFAULT
from tracekit.metrics.hangs import diagnose
from tracekit.readers.dumps import read_dumps

MISMATCHES = {"size": "size_mismatch", "op": "type_mismatch", "dtype": "dtype_mismatch"}
BLOCKS = 20


def judged(folder, seed, faults):
    """(hang, faults, run, recorder) of a random job; None where a fault changes nothing, or nobody writes a dump."""
    job = random_job(seed, faults=faults)
    if job is None:
        return None
    run, made = job
    recorder = random_recorder(seed, run, made)
    write_dumps(folder, run, recorder)
    paths = sorted(folder.iterdir())
    hang = diagnose(read_dumps(paths), DEFAULT) if paths else None
    for path in paths:
        path.unlink()
    return None if hang is None else (hang, made, run, recorder)


def named(hang):
    return {rank for each in (hang, *hang.others) for rank in (*each.missing_ranks, *each.culprits)}


def is_decided(hang, faults):
    """A hang is told whose ranks are, or hold, one that is at fault."""
    faulty = {fault.rank for fault in faults}
    inside = {rank for each in (hang, *hang.others) for rank in (*each.waiting_ranks, *each.behind_ranks)}
    inside |= {wait.rank for each in (hang, *hang.others) for wait in each.cycle}
    return hang.is_hang and bool(faulty & (named(hang) | inside))


def check(folder, seeds, faults):
    count = Counter()
    for seed in seeds:
        found = judged(folder, seed, faults)
        if found is None:
            continue
        hang, made, run, recorder = found
        about = f"seed {seed}: {made}, {recorder}: {hang.verdict} of {named(hang)}"
        count["jobs"] += 1
        if not run.stuck:  # the fault had no effect, as where two equal calls changed places
            assert not hang.is_hang, about
            assert not named(hang), about
            continue
        assert named(hang) <= {fault.rank for fault in made}, about
        assert hang.verdict != "not_a_hang", about
        assert hang.verdict != "undecided" or hang.lacking, about
        if recorder.complete:
            count["complete"] += 1
            count["decided"] += is_decided(hang, made)
            count["named"] += bool(named(hang))
            if hang.verdict in MISMATCHES.values() and faults == 1 and made[0].kind in MISMATCHES:
                assert hang.verdict == MISMATCHES[made[0].kind], about
            if made[0].kind == "dead host" and faults == 1:
                assert named(hang) == {made[0].rank}, about
    return count


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_single_fault(tmp_path, block):
    count = check(tmp_path, range(block * 80, block * 80 + 80), 1)
    assert count["jobs"] >= 60
    assert count["decided"] >= 0.9 * count["complete"]
    assert count["named"] >= 0.2 * count["complete"]  # groups of two seldom tell which of them


@pytest.mark.parametrize("block", range(BLOCKS))
def test_two_faults(tmp_path, block):
    count = check(tmp_path, range(100_000 + block * 50, 100_000 + block * 50 + 50), 2)
    assert count["jobs"] >= 30
    assert count["decided"] >= 0.75 * count["complete"]


def test_as_many_jobs_as_promised():
    made = sum(random_job(seed) is not None for seed in range(BLOCKS * 80))
    made += sum(random_job(100_000 + i, faults=2) is not None for i in range(BLOCKS * 50))
    assert made >= 2000
