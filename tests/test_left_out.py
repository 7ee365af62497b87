"""Captures that cannot be read, or hold nothing, among others that do: named, left out, the rest analysed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from nsys_builder import Export, small_job

import tracekit
from tracekit.cli import main
from tracekit.errors import CaptureError
from tracekit.report.json import render_json
from tracekit.report.saved import read_saved


@pytest.fixture
def job(tmp_path: Path) -> list[Path]:
    """Ranks 0 to 4: rank 1's file is no SQLite, rank 2's is empty, rank 3's holds only a launcher's range."""
    paths = [tmp_path / f"rank{rank}.sqlite" for rank in range(5)]
    for rank in (0, 4):
        small_job(pid=100 + rank).write(paths[rank])
    paths[1].write_text("no database")
    paths[2].touch()
    launcher = Export()
    launcher.range("launch", 0, 10, pid=1)
    launcher.write(paths[3])
    return paths


EXPECTED = {1: "not an SQLite file", 2: "an empty file", 3: "it holds no GPU work (1 NVTX ranges)"}


@pytest.mark.parametrize("processes", [0, 2])
def test_the_rest_is_read(processes: int, job: list[Path]) -> None:
    timeline = tracekit.open(*job, strict=False, workers=processes)
    assert [rank.rank for rank in timeline.ranks] == [0, 4]
    assert timeline.left_out == tuple((str(job[rank]), reason) for rank, reason in EXPECTED.items())
    assert [timeline.captures[timeline.processes[r.process].capture].path for r in timeline.ranks] == [
        str(job[0]),
        str(job[4]),
    ]


def test_the_same_whatever_the_number_of_processes(job: list[Path]) -> None:
    one, other = (tracekit.open(*job, strict=False, workers=processes) for processes in (0, 3))
    assert one.names == other.names
    assert render_json(tracekit.analyze(one)) == render_json(tracekit.analyze(other))


def test_by_default_the_first_that_cannot_be_read_is_an_error(job: list[Path]) -> None:
    with pytest.raises(CaptureError, match=r"rank1\.sqlite: not an SQLite file"):
        tracekit.open(*job)


def test_the_command_says_it_everywhere(job: list[Path], tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    ran = CliRunner().invoke(main, ["analyze", *map(str, job), "--json", str(out), "--html", str(page)])
    assert ran.exit_code == 4
    said = " ".join(ran.output.split())
    assert "Left out, and in no figure: rank1.sqlite (not an SQLite file), rank2.sqlite (an empty file)" in said
    document = json.loads(out.read_text("utf-8"))
    assert document["left_out"] == [{"path": str(job[rank]), "reason": why} for rank, why in EXPECTED.items()]
    assert page.read_text("utf-8").count("not an SQLite file") >= 2
    assert [each.reason for each in read_saved(out).left_out] == list(EXPECTED.values())


def test_a_finding_that_fails_goes_before(job: list[Path]) -> None:
    assert CliRunner().invoke(main, ["analyze", "-q", "--fail-on", "info", *map(str, job)]).exit_code == 1


def test_info_names_them_too(job: list[Path]) -> None:
    ran = CliRunner().invoke(main, ["info", *map(str, job)])
    assert ran.exit_code == 4
    assert f"{job[1]}\n  Left out: not an SQLite file" in ran.output


def test_one_alone_is_still_refused(job: list[Path]) -> None:
    assert CliRunner().invoke(main, ["analyze", str(job[1])]).exit_code == 3
    assert CliRunner().invoke(main, ["analyze", str(job[1]), str(job[2])]).exit_code == 3


def test_whole_captures_leave_nothing_out(job: list[Path]) -> None:
    ran = CliRunner().invoke(main, ["analyze", "--json", "-", str(job[0]), str(job[4])])
    assert (ran.exit_code, json.loads(ran.output)["left_out"]) == (0, [])
