"""Which rank a capture is of: by file name, by what the capture says, by order."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from nsys_builder import MARK, NCCL_DOMAIN, Export, nccl_header, small_job

import tracekit
from tracekit.timeline import Timeline


def capture(pid: int = 4000, version: str = "2026.2") -> Export:
    """The least that is a rank."""
    export = Export(version)
    export.kernel("gemm", 0, 10, pid=pid)
    return export


def by_name(folder: Path, *names: str) -> Timeline:
    return tracekit.open(*(capture(4000 + i).write(folder / name) for i, name in enumerate(names)))


def test_a_copy_under_another_name_is_the_same_rank(tmp_path: Path) -> None:
    """GIVEN a capture, its copy, and one of another process, THEN the copy is said to be what it is."""
    paths = [capture(4000).write(tmp_path / "a.sqlite"), capture(4010).write(tmp_path / "c.sqlite")]
    copy = tmp_path / "b.sqlite"
    copy.write_bytes(paths[0].read_bytes())
    timeline = tracekit.open(*paths, copy)
    assert [rank.rank for rank in timeline.ranks] == [0, 1, 2]
    assert timeline.rank_conflicts == ((0, (str(paths[0]), str(copy))),)


FILE_NAMES = {
    # One capture alone.
    ("report.rank3.sqlite",): [3],
    ("rank_3.sqlite",): [3],
    ("rank-3.sqlite",): [3],
    ("rank=03.sqlite",): [3],
    ("RANK3.sqlite",): [3],
    ("global_rank_12.sqlite",): [12],
    ("proc3.sqlite",): [3],
    ("report.3.sqlite",): [3],
    ("report.3.nsys-rep.sqlite",): [3],
    ("job.123456.7.sqlite",): [7],
    ("hta_dlrm_a100_rank3of8.sqlite",): [3],
    ("straggler_4ranks.rank2.sqlite",): [2],
    ("node1_gpu0_rank8.sqlite",): [8],
    # Ranks by a word, whatever other numbers the names hold.
    ("rank10.sqlite", "rank9.sqlite"): [10, 9],
    ("h100_2gpu_rank0.sqlite", "h100_2gpu_rank1.sqlite"): [0, 1],
    ("rank0_a.sqlite", "rank2_b.sqlite", "rank1_c.sqlite"): [0, 2, 1],
    ("proc0.sqlite", "proc1.sqlite"): [0, 1],
    ("128rank.0.sqlite", "128rank.1.sqlite"): [0, 1],
    ("128rank-0.sqlite", "128rank-5.sqlite"): [0, 5],
    ("node0_gpu0_rank0.sqlite", "node1_gpu0_rank8.sqlite"): [0, 8],
    # Versions and dates beside a rank.
    ("nsight-2025.5.2.rank3.sqlite",): [3],
    ("nsight-2025.5.2.rank0.sqlite", "nsight-2025.5.2.rank1.sqlite"): [0, 1],
    ("job.2025-12-01.3.sqlite",): [3],
    ("nsys2024.6_0.sqlite", "nsys2024.6_1.sqlite"): [0, 1],
    # Between dots: the number that is not the job's.
    ("report.0.sqlite", "report.7.sqlite"): [0, 7],
    ("job.123456.0.sqlite", "job.123456.1.sqlite"): [0, 1],
    # Nodes and GPUs of them, counted from 0 and from 1.
    ("node0_gpu0.sqlite", "node0_gpu1.sqlite", "node1_gpu0.sqlite", "node1_gpu1.sqlite"): [0, 1, 2, 3],
    ("node1_gpu1.sqlite", "node1_gpu2.sqlite", "node2_gpu1.sqlite", "node2_gpu2.sqlite"): [0, 1, 2, 3],
    ("host3-device0.sqlite", "host3-device1.sqlite", "host7-device0.sqlite", "host7-device1.sqlite"): [0, 1, 2, 3],
    ("node0_local_rank0.sqlite", "node0_local_rank1.sqlite", "node1_local_rank0.sqlite", "node1_local_rank1.sqlite"): [
        0,
        1,
        2,
        3,
    ],
    ("node0_local_rank0.sqlite", "node1_local_rank1.sqlite"): [0, 3],
    # Not all of them there: as many on each node as the largest number says.
    ("node0_gpu0.sqlite", "node0_gpu1.sqlite", "node1_gpu1.sqlite"): [0, 1, 3],
    ("node1_gpu1.sqlite", "node1_gpu4.sqlite", "node2_gpu2.sqlite"): [0, 3, 5],
    # The only number that differs.
    ("a100_x4_run7.sqlite", "a100_x4_run9.sqlite"): [7, 9],
    ("local_rank0.sqlite", "local_rank1.sqlite"): [0, 1],
    ("2gpu_0_h100.sqlite", "2gpu_1_h100.sqlite"): [0, 1],
    ("report1.sqlite", "report2.sqlite", "report3.sqlite", "report4.sqlite"): [1, 2, 3, 4],
    ("report2.sqlite", "report4.sqlite"): [2, 4],
    ("report0.sqlite", "report1.sqlite"): [0, 1],
}


@pytest.mark.parametrize(("names", "ranks"), FILE_NAMES.items(), ids=lambda value: " ".join(map(str, value)))
def test_rank_by_file_name(names: tuple[str, ...], ranks: list[int], tmp_path: Path) -> None:
    timeline = by_name(tmp_path, *names)
    found = {Path(timeline.captures[timeline.processes[r.process].capture].path).name: r for r in timeline.ranks}
    assert [found[name].rank for name in names] == ranks
    assert {rank.rank_source for rank in timeline.ranks} == {"file_name"}
    assert timeline.rank_conflicts == ()


@pytest.mark.parametrize(
    "names",
    [
        ("report.sqlite",),
        ("report7.sqlite",),  # one number of one file says nothing
        ("h100_2gpu_sendrecv.sqlite",),
        ("hta_128rank_onereport.sqlite",),
        ("crank3.sqlite",),
        ("prank_.sqlite",),
        ("local_rank3.sqlite",),
        ("node1_gpu1.sqlite",),
        ("a.sqlite", "b.sqlite"),
        ("run1_try3.sqlite", "run2_try4.sqlite"),  # two numbers differ
        ("20260131.sqlite", "20260201.sqlite"),  # dates
        ("run_1769900000.sqlite", "run_1769900001.sqlite"),  # times
        ("nsight-2025.5.2.sqlite",),  # versions
        ("nsight.2025.5.2.sqlite",),
        ("cuda12.8.sqlite",),
        ("nsys2024.6.2.sqlite", "nsys2024.6.3.sqlite"),
        ("torch-2.7.sqlite", "torch-2.8.sqlite"),
        ("trace.2025.sqlite",),  # a year
        ("trace_2025-12-01.sqlite", "trace_2025-12-02.sqlite"),
        ("trace_12-30-05.sqlite", "trace_12-30-06.sqlite"),
        ("report.4000.sqlite", "report.4001.sqlite"),  # the processes' own numbers
        ("proc4000.sqlite",),
        ("report.70000.sqlite",),
        ("rank99999999999999999999.sqlite",),
        ("rank٣.sqlite",),
    ],
    ids=" ".join,
)
def test_names_that_tell_no_rank(names: tuple[str, ...], tmp_path: Path) -> None:
    timeline = by_name(tmp_path, *names)
    assert [(rank.rank, rank.rank_source) for rank in timeline.ranks] == [(i, "order") for i in range(len(names))]
    assert timeline.rank_conflicts == ()


def test_the_folder_does_not_tell_the_rank(tmp_path: Path) -> None:
    (tmp_path / "rank5").mkdir()
    assert by_name(tmp_path / "rank5", "report.sqlite").ranks[0].rank_source == "order"


def test_a_file_of_many_ranks_is_not_named_after_one(tmp_path: Path) -> None:
    export = capture(1)
    export.kernel("gemm", 0, 10, pid=2)
    export.kernel("gemm", 0, 10, pid=2, device=1)
    timeline = tracekit.open(export.write(tmp_path / "rank7.sqlite"))
    assert [(rank.rank, rank.pid, rank.device) for rank in timeline.ranks] == [(0, 1, 0), (1, 2, 0), (2, 2, 1)]
    assert {rank.rank_source for rank in timeline.ranks} == {"order"}


# --- what the capture itself says ---


def with_mark(export: Export, rank: object, *, pid: int = 4000, **fields: object) -> Export:
    export.domain("tracekit", 1, pid=pid)
    export.range(json.dumps({"rank": rank, "world_size": 8, **fields}), 5, None, eventType=MARK, domain=1, pid=pid)
    return export


def with_comm_init(export: Export, rank: int, *, ranks: int = 8, device: int = 0, pid: int = 4000) -> Export:
    export.domain("NCCL", NCCL_DOMAIN, pid=pid)
    body = struct.pack("<Qiii", 0xABC, ranks, rank, device)
    export.range("ncclCommInitRank", 6, 7, domain=NCCL_DOMAIN, pid=pid, binaryData=nccl_header(len(body), 0) + body)
    return export


def with_variable(export: Export, setting: str) -> Export:
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=setting)
    return export


def test_priority_of_the_sources(tmp_path: Path) -> None:
    export = capture()
    path = tmp_path / "report.rank4.sqlite"
    seen = []
    for add in (
        lambda: None,
        lambda: with_variable(export, 'RANK="3"'),
        lambda: with_comm_init(export, 2),
        lambda: with_mark(export, 1),
    ):
        add()
        path.unlink(missing_ok=True)
        (rank,) = tracekit.open(export.write(path)).ranks
        seen.append((rank.rank, rank.rank_source))
    assert seen == [(4, "file_name"), (3, "environment"), (2, "nccl_comm_init"), (1, "trainer_mark")]


@pytest.mark.parametrize(
    "rank", ["3", 3.0, -1, None, True, [3], 10**30, 1 << 24], ids=lambda value: f"{type(value).__name__}"
)
def test_a_mark_without_a_sound_rank_says_nothing(rank: object, tmp_path: Path) -> None:
    timeline = tracekit.open(with_mark(capture(), rank).write(tmp_path / "report.sqlite"))
    assert timeline.ranks[0].rank_source == "order"


def test_somebody_elses_json_says_nothing(tmp_path: Path) -> None:
    export = capture()
    export.domain("wandb", 1)
    for text in ('{"rank": 5, "world_size": 8}', '{"rank": 5', "[" * 100_000, "{" * 100_000, '{"rank": 5}', "{}"):
        export.range(text, 5, None, eventType=MARK, domain=1)
    export.range('{"rank": 5}', 5, None, eventType=MARK)
    assert tracekit.open(export.write(tmp_path / "report.sqlite")).ranks[0].rank_source == "order"


@pytest.mark.parametrize(
    ("settings", "rank"),
    [
        (['RANK="3"'], 3),
        (["RANK=3"], 3),
        (['OMPI_COMM_WORLD_RANK="5"'], 5),
        (['PMIX_RANK="5"'], 5),
        (['PMI_RANK="5"'], 5),
        (['MV2_COMM_WORLD_RANK="5"'], 5),
        (['SLURM_PROCID="6"'], 6),
        (['SLURM_PROCID="0"', 'RANK="3"'], 3),  # the launcher nearest to the program
        (['RANK=""', 'SLURM_PROCID="6"'], 6),
        (['RANK="0x3"'], None),
        (['RANK="-1"'], None),
        (['RANK="16777216"'], None),
        (['RANK="٣"'], None),
        (['LOCAL_RANK="3"', 'MY_RANK="3"', 'WORLD_SIZE="8"', "RANK"], None),
    ],
)
def test_rank_by_environment(settings: list[str], rank: int | None, tmp_path: Path) -> None:
    export = capture()
    for setting in settings:
        with_variable(export, setting)
    (found,) = tracekit.open(export.write(tmp_path / "report.sqlite")).ranks
    assert (found.rank, found.rank_source) == ((0, "order") if rank is None else (rank, "environment"))


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        # As nsys 2026.2 writes it, and as nsys 2022.4 does.
        ("HOME=/root;RANK=3;PATH=/bin", 3),
        ("HOME=/root\0RANK=3\0PATH=/bin", 3),
        ("SLURM_PROCID=1\0LS_COLORS=rs=0;RANK=9\0RANK=3", 3),
        ("RANK=3", 3),
        ("MY_RANK=3;HOME", None),
    ],
)
def test_rank_by_the_environment_of_the_profiler(environment: str, rank: int | None, tmp_path: Path) -> None:
    export = capture(version="2022.4")
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="RANK=7")
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=environment)
    (found,) = tracekit.open(export.write(tmp_path / "report.sqlite")).ranks
    assert (found.rank, found.rank_source) == ((0, "order") if rank is None else (rank, "environment"))


def test_the_environment_of_the_program_goes_before_the_profilers(tmp_path: Path) -> None:
    export = with_variable(capture(), 'RANK="3"')
    export.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="RANK=9")
    assert tracekit.open(export.write(tmp_path / "report.sqlite")).ranks[0].rank == 3


def test_the_environment_cannot_tell_ranks_of_one_capture_apart(tmp_path: Path) -> None:
    export = with_variable(capture(1), 'RANK="3"')
    export.kernel("gemm", 0, 10, pid=2)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    assert [(rank.rank, rank.rank_source) for rank in timeline.ranks] == [(0, "order"), (1, "order")]


def test_ranks_of_one_capture_by_their_marks(tmp_path: Path) -> None:
    export = Export()
    for pid, rank in ((10, 5), (20, 2), (30, 7)):
        export.kernel("gemm", 0, 10, pid=pid)
        with_mark(export, rank, pid=pid)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    assert [(rank.rank, rank.pid) for rank in timeline.ranks] == [(2, 20), (5, 10), (7, 30)]


def test_one_process_with_a_communicator_on_each_device(tmp_path: Path) -> None:
    export = Export("2026.2")
    for device, rank in ((0, 6), (1, 4)):
        export.kernel("gemm", 0, 10, device=device)
        with_comm_init(export, rank, device=device)
    timeline = tracekit.open(export.write(tmp_path / "report.sqlite"))
    assert [(r.rank, r.device, r.rank_source) for r in timeline.ranks] == [
        (4, 1, "nccl_comm_init"),
        (6, 0, "nccl_comm_init"),
    ]
    assert [rank.communicators for rank in timeline.ranks] == [((0xABC, 8, 4),), ((0xABC, 8, 6),)]


def test_a_communicator_of_one_rank_tells_nothing(tmp_path: Path) -> None:
    timeline = tracekit.open(with_comm_init(capture(), 0, ranks=1).write(tmp_path / "report.rank4.sqlite"))
    assert (timeline.ranks[0].rank, timeline.ranks[0].rank_source) == (4, "file_name")


def test_what_nobody_claims_gets_the_free_numbers_in_order(tmp_path: Path) -> None:
    paths = [
        capture(10).write(tmp_path / "a.sqlite"),
        with_mark(capture(20), 0, pid=20).write(tmp_path / "b.sqlite"),
        capture(30).write(tmp_path / "c.sqlite"),
        with_mark(capture(40), 2, pid=40).write(tmp_path / "d.sqlite"),
    ]
    timeline = tracekit.open(*paths)
    assert [(rank.rank, rank.pid, rank.rank_source) for rank in timeline.ranks] == [
        (0, 20, "trainer_mark"),
        (1, 10, "order"),
        (2, 40, "trainer_mark"),
        (3, 30, "order"),
    ]


def test_two_captures_that_claim_one_rank(tmp_path: Path) -> None:
    (tmp_path / "monday").mkdir()
    (tmp_path / "tuesday").mkdir()
    names = ("monday/rank0.sqlite", "monday/rank1.sqlite", "tuesday/rank0.sqlite")
    paths = [small_job(pid=100 + i).write(tmp_path / name) for i, name in enumerate(names)]
    timeline = tracekit.open(*paths)
    assert [(rank.rank, rank.pid, rank.rank_source) for rank in timeline.ranks] == [
        (0, 100, "file_name"),
        (1, 101, "file_name"),
        (2, 102, "order"),
    ]
    assert timeline.rank_conflicts == ((0, (str(paths[0]), str(paths[2]))),)
    (finding,) = [finding for finding in tracekit.analyze(timeline).findings if finding.rule == "TK905"]
    assert (finding.ranks, finding.severity) == ((0,), "warning")
    assert "rank 0" in finding.title


def test_of_two_claims_the_more_trusted_one_stands(tmp_path: Path) -> None:
    """GIVEN a file called rank0 and a trainer that marked itself as rank 0, THEN the trainer is rank 0."""
    marked = with_mark(capture(4010), 0, pid=4010)
    paths = [capture(4000).write(tmp_path / "rank0.sqlite"), marked.write(tmp_path / "x.sqlite")]
    timeline = tracekit.open(*paths)
    assert [(rank.rank, rank.pid, rank.rank_source) for rank in timeline.ranks] == [
        (0, 4010, "trainer_mark"),
        (1, 4000, "order"),
    ]
    assert [rank for rank, _ in timeline.rank_conflicts] == [0]


def test_a_process_without_gpu_work_says_where_its_rank_is_from(tmp_path: Path) -> None:
    """GIVEN three processes with a step and no kernels, THEN each rank's source is what told it."""
    export = Export("2026.2")
    for pid in (4000, 4010, 4020):
        export.range("step 0", 0, 100, pid=pid)
    with_comm_init(export, 2, pid=4000)
    with_mark(export, 1, pid=4010)
    timeline = tracekit.open(export.write(tmp_path / "host.sqlite"), require_ranks=False)
    analysis = tracekit.analyze(timeline, tracekit.Options(allow_no_gpu=True))
    assert [(rank.rank, rank.pid, rank.rank_source) for rank in analysis.host_ranks] == [
        (0, 4020, "order"),
        (1, 4010, "trainer_mark"),
        (2, 4000, "nccl_comm_init"),
    ]
