"""Finding captures, reading them into one timeline, and files that are damaged."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from nsys_builder import (
    GRAPH,
    JOB_TOTALS,
    MEMSET,
    NCCL_DOMAIN,
    PID,
    SYNC,
    Export,
    global_pid,
    nccl_header,
    small_job,
)

import tracekit
from tracekit.capture import find_captures
from tracekit.errors import CaptureError, NoGpuWorkError


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


# --- finding ---


def test_a_folder_gives_its_captures_in_natural_order(tmp_path: Path) -> None:
    names = ["rank2.sqlite", "rank10.sqlite", "rank9.nsys-rep", "rank1.db", "rank0.sqlite3"]
    files(tmp_path, *names, "notes.txt", "rank3.qdrep", "rank4.sqlite-wal", "deeper/rank5.sqlite")
    found = [path.name for path in find_captures([tmp_path])]
    assert found == ["rank0.sqlite3", "rank1.db", "rank2.sqlite", "rank9.nsys-rep", "rank10.sqlite"]


def test_a_pattern_gives_its_matches_in_natural_order_and_looks_into_folders(tmp_path: Path) -> None:
    files(tmp_path, "run/rank10.sqlite", "run/rank9.sqlite", "run2/a.sqlite", "other/b.sqlite")
    assert [p.name for p in find_captures([str(tmp_path / "run/rank*.sqlite")])] == ["rank9.sqlite", "rank10.sqlite"]
    assert [p.name for p in find_captures([str(tmp_path / "run*")])] == ["rank9.sqlite", "rank10.sqlite", "a.sqlite"]
    assert len(find_captures([str(tmp_path / "**/*.sqlite")])) == 4


def test_files_are_taken_in_the_order_given_and_need_no_suffix(tmp_path: Path) -> None:
    given = files(tmp_path, "rank10.sqlite", "rank9.sqlite", "export")
    assert find_captures(given) == given


def test_a_name_with_the_signs_of_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    given = files(tmp_path, "run[1].sqlite", "run1.sqlite")
    assert find_captures(given[:1]) == given[:1]


def test_one_file_under_many_names_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = files(tmp_path, "run/report.sqlite")
    (tmp_path / "link.sqlite").symlink_to(path)
    (tmp_path / "linked").symlink_to(path.parent)
    monkeypatch.chdir(tmp_path)
    given = [path, path, "run/../run/report.sqlite", "link.sqlite", "linked", str(tmp_path / "r*"), "run"]
    assert find_captures(given) == [path]


def test_an_export_goes_before_its_report(tmp_path: Path) -> None:
    report, export, alone = files(tmp_path, "a.nsys-rep", "a.sqlite", "b.nsys-rep")
    assert find_captures([tmp_path]) == [export, alone]
    assert find_captures([report]) == [report]  # asked for by name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.sqlite", "No such file or directory"),
        ("*.sqlite", "no file matches"),
        ("empty", "no captures in this folder"),
        ("e*", "no file matches"),  # an empty folder is no capture
        ("loop", "Too many levels of symbolic links"),
        ("x" * 100_000, "File name too long"),
        ("file/under", "Not a directory"),
    ],
)
def test_what_is_not_there_is_said(given: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CaptureError, match=said) as caught:
        tracekit.open(tmp_path / given)
    assert caught.value.hint


# --- many captures, one timeline ---


def test_many_captures_are_one_job(tmp_path: Path) -> None:
    for rank in range(12):
        small_job(pid=100 + rank).write(tmp_path / f"report.rank{rank}.sqlite")
    timeline = tracekit.open(tmp_path)
    assert [(rank.rank, rank.pid) for rank in timeline.ranks] == [(rank, 100 + rank) for rank in range(12)]
    assert [timeline.processes[rank.process].capture for rank in timeline.ranks] == list(range(12))
    ranks = tracekit.analyze(timeline).ranks
    assert {rank.totals.wall_ns for rank in ranks} == {JOB_TOTALS["wall_ns"]}
    assert len({timeline.names[name] for rank in timeline.ranks for name in rank.ops.name}) == 3


def test_one_report_and_one_a_rank_give_the_same_figures(tmp_path: Path) -> None:
    one = Export()
    (tmp_path / "many").mkdir()
    for pid in (100, 200):
        export = small_job(pid=pid)
        export.write(tmp_path / "many" / f"rank{pid // 100 - 1}.sqlite")
        texts = {row["id"]: str(row["value"]) for row in export.rows["StringIds"]}
        for table in (name for name in export.rows if name.startswith(("CUPTI", "NVTX"))):
            for row in export.rows[table]:
                for column in row.keys() & {"demangledName", "shortName", "nameId"}:
                    row[column] = one.string(texts[row[column]])
                one.add(table, **row)
    together = tracekit.analyze(tracekit.open(one.write(tmp_path / "one.sqlite")))
    apart = tracekit.analyze(tracekit.open(tmp_path / "many"))
    assert [rank.totals for rank in together.ranks] == [rank.totals for rank in apart.ranks]
    assert [rank.steps for rank in together.ranks] == [rank.steps for rank in apart.ranks]
    assert together.steady == apart.steady


def test_captures_without_gpu_work_beside_one_with(tmp_path: Path) -> None:
    launcher = Export()
    launcher.range("launch", 0, 10, pid=1)
    paths = [launcher.write(tmp_path / "a.sqlite"), small_job().write(tmp_path / "b.sqlite")]
    timeline = tracekit.open(*paths)
    assert [(rank.rank, rank.pid) for rank in timeline.ranks] == [(0, PID)]
    assert len(timeline.captures) == 2
    with pytest.raises(NoGpuWorkError, match=r"a\.sqlite"):
        tracekit.open(paths[0])
    assert tracekit.open(paths[0], require_ranks=False).ranks == ()


CHILD = "No CUDA events collected. Does the process use CUDA?"
DRIVER = "Installed CUDA driver version (13.2) is not supported by this build of Nsight Systems."
START = "CUDA profiling might have not been started correctly."
OTHERS = ("No OpenGL events collected. Does the process use OpenGL?", "Not all NVTX events might have been collected.")


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ((*OTHERS, CHILD), CHILD),
        ((*OTHERS, CHILD, START), START),
        ((*OTHERS, CHILD, START, DRIVER), DRIVER),
        (("Tracing cuDNN library version 90.1 is currently not supported.", CHILD), CHILD),
        (("CUDA device 0: Unified Memory cannot be traced on devices.", START), START),
        (OTHERS, OTHERS[0]),
    ],
)
def test_no_gpu_work_quotes_what_the_profiler_says_of_cuda(said: tuple[str, ...], quoted: str, tmp_path: Path) -> None:
    export = Export()
    export.range("launch", 0, 10, pid=1)
    for text in said:
        export.add("DIAGNOSTIC_EVENT", severity=2, text=text)
    with pytest.raises(NoGpuWorkError, match=f"The profiler said: {re.escape(quoted)}"):
        tracekit.open(export.write(tmp_path / "a.sqlite"))


@pytest.mark.parametrize(
    ("cuda_device", "gpu"),
    [
        ([(2, 0, 4000), (0, 0, 4010)], (2, "0000:1a:00.0")),
        ([], (None, None)),
        ([(0, 0, 77)], (None, None)),
    ],
)
def test_the_gpu_of_the_machine_is_not_the_process_s_ordinal(
    cuda_device: list[tuple[int, int, int]], gpu: tuple[int | None, str | None], tmp_path: Path
) -> None:
    export = small_job("2026.2", pid=4000)
    for number, bus in enumerate(("0000:18:00.0", "0000:19:00.0", "0000:1a:00.0")):
        export.add("TARGET_INFO_GPU", id=number, name="NVIDIA H100", busLocation=bus, cuDevice=0)
    for number, ordinal, pid in cuda_device:
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=ordinal, pid=pid)
    (rank,) = tracekit.analyze(tracekit.open(export.write(tmp_path / "a.sqlite"))).ranks
    assert (rank.device, rank.gpu, rank.pci_bus, rank.device_name) == (0, *gpu, "NVIDIA H100")


def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    said: dict[str, tuple[int, int]] = {}

    def progressing(what: str) -> object:
        return lambda done, expected: said.__setitem__(what, (done, expected))

    tracekit.open(small_job().write(tmp_path / "report.sqlite"), progressing=progressing)  # type: ignore[arg-type]
    assert said["kernels"] == (6, 6)
    assert {"copies", "CUDA API calls", "NVTX ranges"} <= said.keys()


# --- damage ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A capture with something in every table that is read."""
    export = small_job("2026.2")
    export.op(SYNC, 100, 200, call=(90, 210), syncType=3)
    export.op(GRAPH, 30_000, 31_000, call=(29_000, 29_100))
    export.op(MEMSET, 31_000, 31_100, call=(29_200, 29_300), bytes=8)
    export.range("ncclAllReduce", 1_800, 2_000, domain=NCCL_DOMAIN, binaryData=nccl_header(20, 5) + b"\1" * 20)
    export.domain("NCCL", NCCL_DOMAIN)
    export.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", cuDevice=0)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PID)
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node-1")
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    export.add("ANALYSIS_DETAILS", duration=40_000, startTime=0, stopTime=40_000)
    export.add("PROCESSES", globalPid=global_pid(PID), pid=PID, name="python3")
    export.add("DIAGNOSTIC_EVENT", severity=2, text="Not all CUDA events might have been collected")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='RANK="1"')
    return export.write(tmp_path_factory.mktemp("whole") / "whole.sqlite").read_bytes()


def read_or_refused(path: Path) -> bool:
    """Whether the file was read, to figures that add up; a refusal must say what to do."""
    refusal = None
    try:
        analysis = tracekit.analyze(tracekit.open(path))
    except CaptureError as error:
        refusal = error
    if refusal is not None:
        assert str(path) in refusal.message
        assert "\n" not in refusal.message
        assert refusal.hint
        return False
    for rank in analysis.ranks:
        parts = rank.totals.compute_ns + rank.totals.exposed_comm_ns + rank.totals.exposed_copy_ns + rank.totals.idle_ns
        assert parts == rank.totals.wall_ns >= 0
    return True


@pytest.mark.parametrize("position", range(50))
def test_a_file_that_is_cut_off(position: int, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: len(whole) * position // 50])
    assert not read_or_refused(path)
    assert [found.name for found in tmp_path.iterdir()] == ["cut.sqlite"]


@pytest.mark.parametrize("where", ["schema", "rows", "anywhere"])
@pytest.mark.parametrize("seed", range(20))
def test_a_file_with_flipped_bytes(where: str, seed: int, whole: bytes, tmp_path: Path) -> None:
    dice = random.Random(f"{where} {seed}")
    damaged = bytearray(whole)
    # The page size is 4096: the schema starts on the first page, tables follow.
    first, last = {"schema": (100, 3 * 4096), "rows": (3 * 4096, len(whole)), "anywhere": (0, len(whole))}[where]
    used = [at for at in range(first, last) if whole[at]]
    for at in dice.sample(used, dice.choice((1, 2, 8, 64))):
        damaged[at] ^= 1 << dice.randrange(8)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(damaged)
    read_or_refused(path)
    assert path.read_bytes() == damaged
    assert [found.name for found in tmp_path.iterdir()] == ["damaged.sqlite"]


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_a_schema_whose_names_are_not_utf8_any_more(table: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(whole.replace(f"CREATE TABLE {table}".encode(), f"CREA\xf6E TABLE {table}".encode("latin-1"), 1))
    with pytest.raises(CaptureError, match="damaged"):
        tracekit.open(path)


def test_the_undamaged_file_is_read(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "whole.sqlite"
    path.write_bytes(whole)
    assert read_or_refused(path)
    (rank,) = tracekit.open(path).ranks
    assert (rank.rank, rank.host, rank.device_name) == (1, "node-1", "NVIDIA H100")


def test_pages_of_zeros_in_the_middle(whole: bytes, tmp_path: Path) -> None:
    for page in range(1, len(whole) // 4096):
        path = tmp_path / "zeros.sqlite"
        path.write_bytes(whole[: page * 4096] + bytes(4096) + whole[(page + 1) * 4096 :])
        read_or_refused(path)


def test_a_path_through_a_link_and_back(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    small_job().write(tmp_path / "a" / "report.sqlite")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert tracekit.open(tmp_path / "link" / ".." / "report.sqlite").ranks
