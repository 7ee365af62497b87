"""Dumps of PyTorch's flight recorder: real ones, written ones of each version's shape, and hostile ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.config import DEFAULT
from tracekit.errors import CaptureError
from tracekit.evidence import State
from tracekit.metrics.hangs import diagnose
from tracekit.readers.collective_ops import op_of
from tracekit.readers.dump_files import dumps_in, load_dump
from tracekit.readers.dumps import read_dumps

REAL = Path(__file__).parent / "flight_recorder"
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(seq, name="nccl:all_reduce", size=(4,), out=None, *, state="completed", group=("0", "default_pg"), **more):
    made = {
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(out or size)],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    }
    return made | more


def dump(path, entries, *, config=WORLD, version="2.4", as_json=False, **more):
    data = {"version": version, "pg_config": config, "entries": entries, **more}
    path.write_bytes(json.dumps(data).encode() if as_json else pickle.dumps(data, protocol=2))
    return path


def columns(evidence, rank=0):
    entries = evidence.ranks[rank].entries
    names = evidence.names
    return [
        (evidence.communicators[c].name, s, names[o], i, u, State(t))
        for c, s, o, i, u, t in zip(
            *(
                getattr(entries, n).tolist()
                for n in ("communicator", "seq", "op", "elements_in", "elements_out", "state")
            ),
            strict=True,
        )
    ]


def test_a_real_job_as_pickles_and_json():
    evidence = read_dumps(dumps_in(REAL))
    assert [(r.rank, r.rank_source, len(r.entries), r.wrapped) for r in evidence.ranks] == [
        (0, "file_name", 10, False),
        (1, "file_name", 10, False),
        (2, "file_name", 6, False),
    ]
    assert [(c.name, c.description, c.ranks) for c in evidence.communicators] == [
        ("0", "default_pg", None),
        ("1", "tensor_parallel", None),
    ]
    first = columns(evidence, 1)
    assert first[0] == ("0", 1, "all_gather", 6, 18, State.COMPLETED)
    assert first[1] == ("1", 1, "broadcast", 6, 6, State.COMPLETED)
    assert first[-1] == ("0", 7, "all_reduce", 6, 6, State.ISSUED)
    hang = diagnose(evidence, DEFAULT)
    assert (hang.verdict, hang.seq, hang.missing_ranks, hang.waiting_ranks) == ("missing_rank", 7, (2,), (0, 1))
    assert hang.last_activity[0].activity.frames[-1] == "<module> (job.py:22)"


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("version", ["2.2", "2.4", "2.10", None])
def test_all_versions_and_both_formats(tmp_path, version, as_json):
    for rank in (0, 1):
        entries = [entry(1), entry(2, "nccl:_all_gather_base", (4,), (8,), state="started")]
        dump(tmp_path / f"nccl_trace_rank_{rank}", entries, version=version, as_json=as_json)
    evidence = read_dumps(dumps_in(tmp_path))
    assert evidence.communicators[0].ranks == (0, 1)
    assert evidence.world_size == 2
    assert columns(evidence) == [
        ("0", 1, "all_reduce", 4, 4, State.COMPLETED),
        ("0", 2, "all_gather", 4, 8, State.STARTED),
    ]
    assert diagnose(evidence, DEFAULT).verdict == "unfinished"


def test_the_rank_is_told_by_the_content_before_the_name(tmp_path):
    one = dump(tmp_path / "trace_7", [entry(1)], rank=1)
    state = {"0xabc": {"rank": "0", "nRanks": "2"}, "0xdef": {"rank": "1", "nRanks": "1"}}
    two = dump(tmp_path / "trace_8", [entry(1)], nccl_comm_state=state)
    assert [(r.rank, r.rank_source) for r in read_dumps([one, two]).ranks] == [(0, "nccl_comm_state"), (1, "dump")]


@pytest.mark.parametrize("name", ["nccl_trace_rank_1", "x.rank1.pickle", "job-12_node3_1.json.bak"])
def test_the_rank_is_told_by_the_last_number_of_the_name(tmp_path, name):
    assert read_dumps([dump(tmp_path / name, [entry(1)])]).ranks[0].rank == 1


def test_a_dump_whose_rank_nothing_tells(tmp_path):
    with pytest.raises(CaptureError, match="which rank"):
        read_dumps([dump(tmp_path / "trace", [entry(1)])])


def test_several_processes_read_the_same(tmp_path, monkeypatch):
    paths = [dump(tmp_path / f"r_{rank}", [entry(1), entry(2, state="started")], config={}) for rank in range(40)]
    alone = read_dumps(paths)
    monkeypatch.setattr("tracekit.readers.dumps.PARALLEL_FROM", 0)
    monkeypatch.setattr("tracekit.readers.dumps.cores", lambda: 2)
    told = []
    together = read_dumps(paths, lambda done, expected: told.append((done, expected)))
    assert [columns(together, row) for row in range(40)] == [columns(alone, row) for row in range(40)]
    assert told == [(16, 40), (32, 40), (40, 40)]
    paths[20].write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(CaptureError, match="wants to load") as caught:
        read_dumps(paths)
    assert caught.value.hint


def test_two_dumps_of_one_rank(tmp_path):
    paths = [dump(tmp_path / f"{name}_1", [entry(1)]) for name in ("a", "b")]
    with pytest.raises(CaptureError, match="two dumps of rank 1"):
        read_dumps(paths)


def test_dumps_of_different_jobs(tmp_path):
    other = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    paths = [dump(tmp_path / "r_0", [entry(1)]), dump(tmp_path / "r_1", [entry(1)], config=other)]
    with pytest.raises(CaptureError, match="different jobs"):
        read_dumps(paths)


def test_a_rank_beyond_the_job(tmp_path):
    with pytest.raises(CaptureError, match="rank 5 is not in a job of 2 ranks"):
        read_dumps([dump(tmp_path / "r_5", [entry(1)])])


def test_groups_of_one_name_and_other_ranks_are_two_communicators(tmp_path):
    world = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    paths = []
    for rank in range(4):
        ranks = "[0, 1]" if rank < 2 else "[2, 3]"
        config = world | {"tp": {"name": "tp", "desc": "mesh_tp", "ranks": ranks}}
        paths.append(dump(tmp_path / f"r_{rank}", [entry(1, group=("tp", "mesh_tp"))], config=config))
    assert [c.ranks for c in read_dumps(paths).communicators] == [(0, 1), (2, 3)]


def test_an_empty_dump(tmp_path):
    paths = [dump(tmp_path / "r_0", [entry(1), entry(2, state="started")]), dump(tmp_path / "r_1", [])]
    hang = diagnose(read_dumps(paths), DEFAULT)
    assert hang.verdict == "undecided"
    assert any("rank 1" in lack for lack in hang.lacking)


def test_a_wrapped_ring_buffer(tmp_path):
    old = [entry(seq) for seq in range(900, 1000)]
    young = [entry(seq) for seq in range(950, 1000)] + [entry(1000, state="started")]
    evidence = read_dumps([dump(tmp_path / "r_0", old), dump(tmp_path / "r_1", young)])
    assert [r.wrapped for r in evidence.ranks] == [True, True]
    hang = diagnose(evidence, DEFAULT)
    assert (hang.verdict, hang.seq, hang.missing_ranks) == ("missing_rank", 1000, (0,))


def test_a_coalesced_group_is_one_collective(tmp_path):
    def member(record, name, size, out, state="scheduled"):
        return entry(3, f"nccl:{name}", size, out, state=state, record_id=record, retired=False)

    entries = [
        entry(2),
        member(2, "all_gather_into_tensor_coalesced", (4,), (8,)),
        member(3, "all_gather_into_tensor_coalesced", (5,), (10,)),
        member(4, "coalesced", (), (), state="started") | {"input_sizes": [], "output_sizes": []},
        entry(4, state="scheduled", retired=False),
    ]
    evidence = read_dumps([dump(tmp_path / "r_0", entries)])
    assert columns(evidence)[1:] == [
        ("0", 3, "all_gather", 9, 18, State.STARTED),
        ("0", 4, "all_reduce", 4, 4, State.ISSUED),
    ]


def test_a_receive_without_its_send(tmp_path):
    def peer(name, seq, state):
        return entry(1, f"nccl:{name}", p2p_seq_id=seq, is_p2p=True, state=state, retired=state == "completed")

    first = [peer("send 0->1", 1, "completed"), peer("recv 0<-1", 2, "started")]
    second = [peer("recv 1<-0", 1, "completed")]
    evidence = read_dumps([dump(tmp_path / "r_0", first), dump(tmp_path / "r_1", second)])
    assert {c.name: c.ranks for c in evidence.communicators if " to " in c.name} == {
        "0: 0 to 1": (0, 1),
        "0: 1 to 0": (1, 0),
    }
    hang = diagnose(evidence, DEFAULT)
    assert (hang.verdict, hang.communicator, hang.culprits) == ("missing_rank", "0: 1 to 0", (1,))


def test_states_by_version(tmp_path):
    entries = [
        entry(1, state="scheduled", retired=True),
        entry(2, state="started", retired=False, time_discovered_completed_ns=5),
        entry(3, state="started", retired=True),
        entry(4, state=None, retired=False),
        entry(5, state=None, retired=False),
    ]
    status = {"0": {"last_completed_collective": 4}}
    evidence = read_dumps([dump(tmp_path / "r_0", entries, pg_status=status)])
    assert [row[-1].name for row in columns(evidence)] == ["COMPLETED", "COMPLETED", "STARTED", "COMPLETED", "ISSUED"]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:REDUCE_SCATTER_coalesced", "reduce_scatter"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:send 1->2", "send_recv"),
        ("xccl:all_to_all", "all_to_all"),
        ("nccl:something_new", "something_new"),
        ("nccl:all_gather_single", "all_gather"),
        ("ncclx:all_gather_single", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather"),
        ("nccl:all_gather_v", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("nccl:reduce_scatter_single", "reduce_scatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:_reduce_scatter_oop", "reduce_scatter"),
        ("ncclx:reduce_scatter_v", "reduce_scatter"),
        ("nccl:all_to_all_single", "all_to_all"),
        ("nccl:all_to_all_v_single", "all_to_all"),
        ("ucc:alltoall_base", "all_to_all"),
        ("nccl:ALLTOALL_BASE", "all_to_all"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:all_reduce_sparse", "all_reduce"),
        ("nccl:_reduce_oop", "reduce"),
        ("gloo:barrier", "barrier"),
        ("gloo:gather", "gather"),
        ("nccl:scatter", "scatter"),
        ("xccl:_allgather_base", "all_gather"),
        ("nccl:recv 0<-1", "send_recv"),
        ("nccl:coalesced", "coalesced"),
    ],
)
def test_ops_by_torchs_names(name, op):
    assert op_of(name) == op


@pytest.mark.parametrize(
    ("name", "into", "out", "fits"),
    [
        ("nccl:all_gather_single", 10, 20, True),
        ("nccl:all_gather_single", 10, 10, False),
        ("nccl:reduce_scatter_single", 20, 10, True),
        ("nccl:reduce_scatter_single", 10, 10, False),
        ("nccl:reduce_scatter_tensor_coalesced", 20, 10, True),
        ("ncclx:reduce_scatter_v", 20, 5, False),
        ("nccl:allreduce_coalesced", 10, 10, True),
        ("gloo:all_reduce", 10, 20, False),
        ("nccl:all_to_all_single", 10, 10, True),
    ],
)
def test_sizes_are_compared_under_every_name(tmp_path, name, into, out, fits):
    for rank in (0, 1):
        dump(tmp_path / f"r_{rank}", [entry(1, name, (into,), (out,), state="scheduled")])
    hang = diagnose(read_dumps(dumps_in(tmp_path)), DEFAULT)
    assert hang.verdict == ("unfinished" if fits else "size_mismatch")


def test_the_host_and_the_thread_are_told_where_the_dump_or_its_name_does(tmp_path):
    started = entry(1, thread_name="pt_autograd_0", thread_id="140")
    paths = [
        dump(tmp_path / "nccl_trace_rank_node-07.cluster_1", [started]),
        dump(tmp_path / "nccl_trace_rank_0", [entry(1)], hostname="node-06", pid=4711),
    ]
    first, second = (rank.process for rank in read_dumps(paths).ranks)
    assert (first.host, first.pid, first.thread) == ("node-06", 4711, None)
    assert (second.host, second.pid, second.thread) == ("node-07.cluster", None, "pt_autograd_0 140")


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("it_ran",)


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in range(2, 6):
        path = tmp_path / f"evil_{protocol}"
        path.write_bytes(pickle.dumps({"version": "2.4", "entries": [RunsCode()]}, protocol=protocol))
        with pytest.raises(CaptureError, match=r"wants to load posix\.mkdir"):
            read_dumps([path])
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nmkdir\n(S'it_ran'\ntR.",  # GLOBAL and REDUCE
        b"(S'it_ran'\nios\nmkdir\n.",  # INST
        b"(cos\nmkdir\nS'it_ran'\no.",  # OBJ
        b"\x8c\x02os\x8c\x05mkdir\x93\x8c\x06it_ran\x85R.",  # STACK_GLOBAL
        b"\x82\x01.",  # EXT1
        b"Psomewhere\n.",  # PERSID
    ],
)
def test_every_way_of_a_pickle_to_reach_code_is_closed(tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil_0"
    path.write_bytes(b"\x80\x04" + code)
    with pytest.raises(CaptureError):
        load_dump(path)
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit needs Linux")
def test_a_few_bytes_that_ask_for_gigabytes(tmp_path):
    path = tmp_path / "greedy_0"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")  # LONG_BINPUT: a memo of two thousand million
    with pytest.raises(CaptureError, match="memory"):
        load_dump(path)


BOMB: list[object] = [8]
for _ in range(60):
    BOMB = [BOMB, BOMB]  # a few hundred bytes as a pickle, 2 ** 60 numbers as text


@pytest.mark.parametrize(
    "value",
    [BOMB, [[1 << 40, [0]]], [["x", 1 << 33]], 10**5000, [[10**5000] * 64]],
    ids=["lists", "long list", "long text", "number", "product"],
)
@pytest.mark.parametrize(
    "key", ["profiling_name", "state", "record_id", "input_sizes", "input_dtypes", "frames", "is_p2p", "pg_status"]
)
def test_values_that_would_grow_without_end(tmp_path, key, value):
    status = {"0": {"last_completed_collective": value}} if key == "pg_status" else {}
    path = dump(tmp_path / "trace_0", [entry(1, state=None) | {key: value}], pg_status=status, rank=value)
    evidence = read_dumps([path])
    assert [rank.rank for rank in evidence.ranks] == [0]
    assert diagnose(evidence, DEFAULT).verdict


def test_names_that_would_grow_without_end(tmp_path):
    group = dump(tmp_path / "group_0", [entry(1, group=(BOMB, BOMB))])
    assert len(read_dumps([group]).ranks[0].entries) == 0
    config = {"0": {"name": BOMB, "desc": BOMB, "ranks": BOMB}}
    assert len(read_dumps([dump(tmp_path / "config_0", [entry(1)], config=config)]).ranks[0].entries) == 1
    with pytest.raises(CaptureError, match="version"):
        read_dumps([dump(tmp_path / "version_0", [entry(1)], version=BOMB)])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"{", "damaged"),
        (b"[]", "not a dump"),
        (b"{}", "no entries"),
        (b'{"entries": 3}', "not a dump"),
        (b"\x80\x02}q\x00(X\x07\x00", "damaged"),
        (b'{"version": "3.0", "entries": []}', "version 3.0"),
        (b'{"version": "1.4", "entries": []}', "version 1.4"),
        (b"\xff\xfe{", "damaged"),
    ],
)
def test_what_is_no_dump(tmp_path, content, words):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=words):
        read_dumps([path])


def test_a_dump_that_was_cut_off_does_not_hide_the_others(tmp_path):
    for rank in range(3):
        started = [] if rank == 1 else [entry(2, state="started")]
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        path = dump(tmp_path / f"r_{rank}", [entry(1), *started], config=config)
        if rank == 2:
            path.write_bytes(path.read_bytes()[:-40])
    evidence = read_dumps(sorted(tmp_path.iterdir()))
    assert [rank.rank for rank in evidence.ranks] == [0, 1]
    [note] = [note for note in evidence.notes if "passed over" in note]
    assert "r_2" in note
    assert "damaged or cut-off" in note
    hang = diagnose(evidence, DEFAULT)
    assert (hang.verdict, hang.missing_ranks) == ("missing_rank", (1,))


def test_a_folder_holds_other_files_too(tmp_path):
    dump(tmp_path / "nccl_trace_rank_0", [entry(1)])
    dump(tmp_path / "any.name.1", [entry(1)], as_json=True)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "log.txt").write_text("step 1")
    (tmp_path / "folder").mkdir()
    assert [path.name for path in dumps_in(tmp_path)] == ["any.name.1", "nccl_trace_rank_0"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(entry(1))


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), ANYTHING), max_size=4), ANYTHING, ANYTHING)
def test_entries_of_any_content_are_read_or_passed_over(tmp_path_factory, changes, config, status):
    path = tmp_path_factory.mktemp("dumps") / "r_0"
    dump(path, [entry(2) | change for change in changes], config=config, pg_status=status)
    try:
        evidence = read_dumps([path])
    except CaptureError:
        return
    assert diagnose(evidence, DEFAULT).verdict
