"""Captures of several jobs are refused, with the groups listed; those of one job never."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from nsys_builder import JOB_STEP_NS, MARK, Export, nccl_header, small_job

from tracekit.cli import main

HOUR = 3_600_000_000_000
BEGUN = 1_780_000_000_000_000_000


def capture(folder: Path, name: str, pid: int, *, at: int = BEGUN, mark: dict[str, object] | None = None) -> Path:
    export = small_job("2026.2", pid=pid)
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=at)
    if mark is not None:
        export.domain("tracekit", 1, pid=pid)
        export.range(json.dumps(mark), 5, None, pid=pid, domain=1, eventType=MARK)
    return export.write(folder / name)


def other_model(folder: Path, name: str, pid: int) -> Path:
    export = Export("2026.2")
    for step in range(3):
        t = step * JOB_STEP_NS
        export.kernel("void flash::flash_fwd_kernel<128>(int)", t + 1000, t + 2500, call=(t + 800, t + 900), pid=pid)
    return export.write(folder / name)


def ran(*words: object) -> Result:
    return CliRunner().invoke(main, ["analyze", "--json", "-", *map(str, words)])


def refused(result: Result, *groups: str) -> None:
    assert result.exit_code == 2, result.output
    assert f"the captures are of {len(groups)} jobs" in result.stderr
    for group in groups:
        assert group in result.stderr
    assert "--force" in result.stderr


def test_hours_apart(tmp_path: Path) -> None:
    paths = [capture(tmp_path, f"rank{i}.sqlite", 100 + i, at=BEGUN + (3 * HOUR if i > 1 else 0)) for i in range(4)]
    refused(
        ran(*paths), "rank0.sqlite, rank1.sqlite (2026-05-28 20:26 UTC)", "rank2.sqlite, rank3.sqlite (2026-05-28 23:26"
    )
    assert ran("--force", *paths).exit_code == 0
    assert ran("--threshold", f"same_job_ns={4 * HOUR}", *paths).exit_code == 0


def test_minutes_apart_are_one_job(tmp_path: Path) -> None:
    paths = [capture(tmp_path, f"rank{i}.sqlite", 100 + i, at=BEGUN + i * HOUR // 2) for i in range(4)]
    assert ran(*paths).exit_code == 0


def test_another_world(tmp_path: Path) -> None:
    paths = [
        capture(tmp_path, f"rank{i}.sqlite", 100 + i, mark={"rank": i, "world_size": 2 if i < 2 else 8})
        for i in range(4)
    ]
    refused(ran(*paths), "rank0.sqlite, rank1.sqlite (2 ranks", "rank2.sqlite, rank3.sqlite (8 ranks")


def test_another_model_by_the_trainers_mark(tmp_path: Path) -> None:
    models = [{"name": "small", "layers": 2}, {"name": "large", "layers": 90}]
    paths = [
        capture(tmp_path, f"rank{i}.sqlite", 100 + i, mark={"rank": i, "world_size": 2, "model": model})
        for i, model in enumerate(models)
    ]
    refused(ran(*paths), "rank0.sqlite", "rank1.sqlite")
    same = [capture(tmp_path, f"same{i}.sqlite", 1, mark={"world_size": 2, "model": models[0]}) for i in range(2)]
    assert ran(*same).exit_code == 0


def test_hardly_a_kernel_in_common(tmp_path: Path) -> None:
    paths = [capture(tmp_path, "rank0.sqlite", 100), other_model(tmp_path, "rank1.sqlite", 101)]
    refused(ran(*paths), "rank0.sqlite", "rank1.sqlite")
    assert ran("--threshold", "same_job_kernels_share=0", *paths).exit_code == 0


def test_other_gpus_have_other_kernels(tmp_path: Path) -> None:
    """A job on two kinds of GPU shares no kernel by name, and is one."""
    paths = [capture(tmp_path, "rank0.sqlite", 100), tmp_path / "rank1.sqlite"]
    export = Export("2026.2")
    export.add("TARGET_INFO_GPU", id=0, name="NVIDIA H200", cuDevice=0)
    export.kernel("sm90_other(float*)", 1000, 2500, call=(800, 900), pid=101)
    export.write(paths[1])
    assert ran(*paths).exit_code == 0


def test_ranks_that_share_a_communicator_are_one_job_whatever_their_clocks(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        export = small_job("2026.2", pid=100 + rank)
        export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BEGUN + rank * 9 * HOUR)
        export.domain("NCCL", 5, pid=100 + rank)
        fields = (77).to_bytes(8, "little") + b"".join(n.to_bytes(4, "little") for n in (2, rank, 0))
        payload = nccl_header(20, 2) + fields
        export.range("ncclCommInitRank", 10, 20, pid=100 + rank, domain=5, binaryData=payload)
        paths.append(export.write(tmp_path / f"rank{rank}.sqlite"))
    assert ran(*paths).exit_code == 0


def test_a_capture_alone_is_one_job(tmp_path: Path) -> None:
    assert ran(capture(tmp_path, "a.sqlite", 100)).exit_code == 0


@pytest.mark.parametrize("command", ["info", "hang"])
def test_what_only_looks_refuses_nothing(command: str, tmp_path: Path) -> None:
    paths = [capture(tmp_path, "rank0.sqlite", 100), other_model(tmp_path, "rank1.sqlite", 101)]
    assert CliRunner().invoke(main, [command, *map(str, paths)]).exit_code in (0, 1)
