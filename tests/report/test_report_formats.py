"""Markdown and SARIF, rules and their pages, and which rules are reported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracekit
from tracekit.cli import main
from tracekit.report.markdown import render_markdown
from tracekit.report.pages import rule_page, rule_titles
from tracekit.report.sarif import render_sarif
from tracekit.results import Evidence
from tracekit.rules import RULES, reported

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "straggler_4ranks.sqlite"


@pytest.fixture(scope="module")
def analysis():
    return tracekit.analyze(tracekit.open(SAMPLE))


@pytest.fixture
def hostile(analysis):
    """A finding whose texts try to break out of every format."""
    nasty = "<script>alert(1)</script> | `x` [a](javascript:b) @everyone \x1b[31m\u202e"
    worst = replace(
        analysis.findings[0], title=nasty, fix=nasty, evidence=(Evidence(metric=nasty, value=nasty, unit=""),)
    )
    return replace(analysis, findings=(worst,))


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_markdown_says_what_the_summary_says(analysis):
    text = render_markdown(analysis)
    assert text.startswith("### Rank 2 computes slowly, and the others wait for it.\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    heads = [row.count("|") for row in rows]
    assert set(heads) <= {6, 8}, "every row of a table has its cells"
    step = next(row for row in rows if row.startswith("| ms |"))
    parts = [float(cell) for cell in step.strip("| ").split("|")[1:]]
    assert sum(parts) == pytest.approx(25.4)
    assert any("TK201" in row and "error" in row for row in rows)
    assert "**Try** Compare clocks" in text


def test_markdown_shows_names_as_they_are(hostile):
    text = render_markdown(hostile)
    # < and [ stand only escaped, but for our own tags.
    for tag in ("<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>"):
        text = text.replace(tag, "")
    assert "<" not in text.replace("\\<", "")
    assert "[" not in text.replace("\\[", "")
    assert "@e" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_sarif_has_what_ci_systems_read(analysis):
    run_of_it = json.loads(render_sarif(analysis))["runs"][0]
    rules = run_of_it["tool"]["driver"]["rules"]
    assert [r["level"] for r in run_of_it["results"]] == [
        {"error": "error", "warning": "warning", "info": "note"}[f.severity] for f in analysis.findings
    ]
    for result in run_of_it["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("straggler_4ranks.sqlite")
        assert result["message"]["text"]
    assert len({json.dumps(r["partialFingerprints"]) for r in run_of_it["results"]}) == len(run_of_it["results"])


def test_sarif_of_a_path_that_is_no_text(analysis):
    odd = replace(analysis.captures[0], path="a b\udcff/%.sqlite")
    document = json.loads(render_sarif(replace(analysis, captures=(odd,))))
    uri = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "a%20b%FF/%25.sqlite"


def test_formats_on_the_command_line():
    assert run("analyze", str(SAMPLE), "--format", "md").stdout.startswith("### Rank 2")
    assert json.loads(run("analyze", str(SAMPLE), "--format", "json").stdout)["schema_version"] == 1
    assert json.loads(run("analyze", str(SAMPLE), "--format", "sarif").stdout)["version"] == "2.1.0"
    both = run("analyze", str(SAMPLE), "--format", "md", "--json", "-")
    assert both.exit_code == 2


def test_sarif_without_rules_would_look_like_success():
    assert run("analyze", str(SAMPLE), "--format", "sarif", "--no-rules").exit_code == 2


def test_every_rule_has_a_page():
    assert list(rule_titles()) == sorted(rule.code for rule in RULES)
    for code in rule_titles():
        page = rule_page(code)
        for part in ("What it means", "How it is told apart", "Example", "What to try", "What fools it"):
            assert f"**{part}.**" in page, (code, part)


def test_explain_shows_the_page():
    shown = run("explain", "tk201").stdout
    assert shown.startswith("TK201 A rank computes slowly")
    assert "**" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_explain_of_no_rule():
    result = run("explain", "TK999")
    assert result.exit_code == 2
    assert "TK9" in result.output


def test_rules_lists_all():
    lines = run("rules").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(rule_titles())


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), ["TK100", "TK201", "TK208"]),
        (("TK2",), (), ["TK201", "TK208"]),
        (("TK2",), ("TK208",), ["TK201"]),
        ((), ("TK2",), ["TK100"]),
        (("TK201",), ("TK2",), ["TK201"]),
        (("TK1", "TK208"), ("TK1",), ["TK208"]),
    ],
)
def test_which_rules_are_reported(select, ignore, expected):
    assert [code for code in ("TK100", "TK201", "TK208") if reported(code, select, ignore)] == expected


def test_select_on_the_command_line_and_fail_on():
    picked = json.loads(run("analyze", str(SAMPLE), "--select", "tk2", "--format", "json").stdout)
    assert {finding["rule"][:3] for finding in picked["findings"]} == {"TK2"}
    assert run("analyze", str(SAMPLE), "-q", "--fail-on", "warning").exit_code == 1
    assert run("analyze", str(SAMPLE), "-q", "--fail-on", "warning", "--ignore", "TK1,TK2").exit_code == 0
    unknown = run("analyze", str(SAMPLE), "--select", "TK7")
    assert unknown.exit_code == 2
    assert "TK7" in unknown.output


CALM = ("--threshold", "wait_share=0.5", "--threshold", "pushed_share=0.9")


def test_thresholds_on_the_command_line():
    calm = json.loads(run("analyze", str(SAMPLE), "--format", "json", *CALM).stdout)
    assert "TK201" not in {finding["rule"] for finding in calm["findings"]}
    for wrong in ("wait_share", "wait_shar=1", "wait_share=-1", "wait_share=nan"):
        assert run("analyze", str(SAMPLE), "--threshold", wrong).exit_code == 2


def test_the_projects_table_counts_less_than_an_option(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.tracekit]\nselect = ["TK208"]\nfail-on = "warning"\n')
    monkeypatch.chdir(tmp_path)
    assert run("analyze", str(SAMPLE), "-q").exit_code == 0
    assert run("analyze", str(SAMPLE), "-q", "--select", "TK201").exit_code == 1
    (tmp_path / "pyproject.toml").write_text("[tool.tracekit]\nselct = []\n")
    assert run("analyze", str(SAMPLE), "-q").exit_code == 2
