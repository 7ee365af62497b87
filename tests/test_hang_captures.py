"""Hangs through `analyze` and ``tracekit hang``: samples with known truth, dumps beside captures, bad input."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracekit
from tests.test_hang_command import write_dumps
from tests.test_project import DOCS, keys_in_table, sections_of
from tracekit.cli import main
from tracekit.report.html import render_html
from tracekit.report.text import render_text

SAMPLES = Path(__file__).parents[1] / "sample_traces"
RULES = {
    "hang_missing_rank": "TK301",
    "hang_order_inversion": "TK305",
    "hang_size_mismatch": "TK303",
    "hang_skipped_step": "TK307",
    "recorded/hang_cpu": "TK301",
}
HEADLINES = {
    "hang_missing_rank": "Rank 2 never launched all-gather 26 of the communicator of ranks 0-3; ranks 0-1, 3 wait.",
    "hang_order_inversion": "Ranks 0, 3 wait for one another: all-reduce 36 (0x…2100) and all-reduce 3 "
    "(0x…2131) in different order.",
    "hang_size_mismatch": "Ranks called all-gather 34 of the communicator of ranks 0-3 differently: "
    "rank 1 8.913 MB -> 35.65 MB; ranks 0, 2-3 8.389 MB -> 33.55 MB.",
    "hang_skipped_step": "Rank 3 pairs with other steps' collectives, from all-gather 23 of the "
    "communicator of ranks 0-3 on.",
    "recorded/hang_cpu": "Rank 1 never launched all-gather 28 of group world (0-2); ranks 0, 2 wait.",
}
every_hang = pytest.mark.parametrize("name", RULES)


def captures(name):
    return [SAMPLES / path for path in json.loads((SAMPLES / f"{name}.expected.json").read_text())["captures"]]


def planted(name):
    return json.loads((SAMPLES / f"{name}.expected.json").read_text())["hang"]


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def first_paragraph(text):
    return " ".join(text.split("\n\n")[0].split())


# --- tracekit hang ---


@every_hang
def test_the_command_names_who_it_is(name):
    result = run("hang", *captures(name))
    assert result.exit_code == 1
    assert first_paragraph(result.stdout) == HEADLINES[name]
    assert f"What to try ({RULES[name]})" in result.stdout


@every_hang
def test_its_json_is_documented_and_true(name):
    document = json.loads(run("hang", *captures(name), "--json", "-").stdout)
    sections = sections_of(DOCS / "reference" / "json.md")
    assert document.keys() == keys_in_table(sections["hang"])
    assert document["around"][0].keys() == keys_in_table(sections["around"])
    truth = planted(name)
    assert document["verdict"] == truth["verdict"]
    assert set(truth["culprits"]) <= set(document["culprits"])
    activity = {row["rank"]: row for row in document["last_activity"]}
    for rank, said in truth["last_activity"].items():
        assert activity[int(rank)]["open_ranges"] == said["open_ranges"]


def test_the_table_around_the_point():
    """By the layout: rank 2 launched 25 collectives, the others 33; the first 25 are over everywhere."""
    (around,) = json.loads(run("hang", *captures("hang_missing_rank"), "--json", "-").stdout)["around"]
    assert around["seqs"] == list(range(22, 31))
    behind, ahead = around["rows"]
    assert behind["ranks"] == [2]
    assert behind["states"] == ["completed"] * 4 + ["absent"] * 5
    assert behind["steps"][3:5] == [22, None]
    assert ahead["ranks"] == [0, 1, 3]
    assert ahead["states"] == ["completed"] * 4 + ["issued"] * 5
    assert "rank 2        ● ● ● ● × × × × ×" in run("hang", *captures("hang_missing_rank")).stdout


def test_what_differs_is_marked():
    (around,) = json.loads(run("hang", *captures("hang_size_mismatch"), "--json", "-").stdout)["around"]
    marked = [row["ranks"] for row in around["rows"] if "differs" in row["states"]]
    assert marked == [[1]]


def test_truncated_captures_are_no_hang():
    result = run("hang", SAMPLES / "truncated_captures")
    assert result.exit_code == 0
    assert result.stdout.startswith("No hang: ")


def test_a_file_that_is_neither_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    result = run("hang", tmp_path / "notes.txt")
    assert result.exit_code == 3
    assert "notes.txt" in result.stderr
    assert len(result.stderr.splitlines()) == 2


# --- dumps and captures together ---


def folder_of_both(tmp_path, ranks):
    for path in captures("recorded/hang_cpu"):
        shutil.copy(path, tmp_path)
    return write_dumps(
        tmp_path,
        lambda rank: [("0", 1, "all_reduce", "completed")] + [("0", 2, "all_reduce", "started")] * (rank != 1),
        ranks,
    )


def test_dumps_tell_the_collectives_and_captures_what_ranks_did(tmp_path):
    document = json.loads(run("hang", folder_of_both(tmp_path, (0, 1, 2)), "--json", "-").stdout)
    assert (document["verdict"], document["seq"], document["missing_ranks"]) == ("missing_rank", 2, [1])
    assert document["last_activity"][1]["open_ranges"] == ["step", "forward", "fwd/layers.1"]


def test_captures_tell_them_where_they_have_more_ranks(tmp_path):
    folder_of_both(tmp_path, (0, 1, 2))
    for rank in (0, 2):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    document = json.loads(run("hang", tmp_path, "--json", "-").stdout)
    assert (document["communicator"], document["seq"], document["missing_ranks"]) == ("world", 28, [1])
    assert "those of the captures" in document["notes"][-1]


# --- analyze ---


def analysis(name):
    paths = captures(name)
    return tracekit.analyze(tracekit.open(*paths))


@every_hang
def test_analyze_finds_the_same(name):
    result = run("analyze", *captures(name), "--allow-no-gpu", "--json", "-")
    document = json.loads(result.stdout)
    assert document["hang"] == json.loads(run("hang", *captures(name), "--json", "-").stdout)
    assert "hang" not in document["not_examined"]
    leading = document["findings"][0]
    assert (leading["rule"], leading["severity"]) == (RULES[name], "error")
    assert run("analyze", *captures(name), "--allow-no-gpu", "--fail-on", "error").exit_code == 1


@pytest.mark.parametrize("name", ["truncated_captures", "straggler_4ranks", "straggler_ragged"])
def test_no_sign_of_a_hang_is_null(name):
    assert analysis(name).hang is None


def test_the_text_leads_with_it():
    text = render_text(analysis("hang_missing_rank"), width=80, color=False, unicode=True)
    blocks = text.split("\n\n")
    said = " ".join(blocks[1].split())
    assert said.startswith(HEADLINES["hang_missing_rank"])
    assert "Rank 2 stopped in step 22, module layers.1." in said
    assert "ranks 0-1, 3  ● ● ● ● ○ ○ ○ ○ ○" in blocks[2]
    assert all(len(line) <= 80 for line in text.splitlines())
    plain = render_text(analysis("hang_missing_rank"), width=80, color=False, unicode=False)
    assert "rank 2        F F F F x x x x x" in plain


def test_the_host_view_leads_with_it():
    result = run("analyze", *captures("recorded/hang_cpu"), "--allow-no-gpu")
    assert first_paragraph(result.stdout.split("\n\n", 1)[1]).startswith(HEADLINES["recorded/hang_cpu"])


def test_without_rules_it_is_told_in_the_json_only():
    document = json.loads(run("analyze", *captures("hang_missing_rank"), "--no-rules", "--json", "-").stdout)
    assert document["hang"]["verdict"] == "missing_rank"
    assert document["findings"] == []


def page(name):
    paths = captures(name)
    timeline = tracekit.open(*paths)
    return render_html(tracekit.analyze(timeline), timeline)


def test_the_page_draws_the_point():
    text = page("hang_missing_rank")
    assert "Where the ranks part" in text
    assert text.count('class="s-absent') == 5 + 1  # five cells and the legend
    assert text.count('class="s-issued') == 5 + 1
    assert "<title>Rank 2 never launched all-gather 26" in text
    assert 'title="rank 2, all-gather 26: never launched"' in text


def test_a_page_of_a_healthy_job_has_no_such_section():
    assert "Where the ranks part" not in page("straggler_4ranks")


def test_names_in_the_section_are_escaped(tmp_path):
    """GIVEN an open range whose name is markup, THEN the page shows it as text."""
    path = shutil.copy(captures("hang_missing_rank")[0], tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = '<img src=x>' WHERE value = 'fwd/layers.1'")
    timeline = tracekit.open(path)
    text = render_html(tracekit.analyze(timeline), timeline)
    assert "<img" not in text
    assert "&lt;img src=x&gt;" in text


def test_a_capture_without_gpu_work_has_a_page_that_leads_with_its_hang(tmp_path):
    page = tmp_path / "hang.html"
    arguments = ["analyze", str(SAMPLES / "recorded" / "hang_cpu"), "--allow-no-gpu", "--html", str(page)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    text = page.read_text("utf-8")
    assert "<h1>Rank 1 never launched all-gather 28 of group world (0-2); ranks 0, 2 wait.</h1>" in text
    assert "Where the ranks part" in text
    assert "What to try" in text
    assert "<script" not in text
    assert text.index("Where the ranks part") < text.index("No GPU work in this capture")
