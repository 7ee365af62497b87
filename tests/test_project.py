"""The project as a whole: what is promised in words is there, and what is there is written down."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import tracekit
from tracekit.cli import ExitStatus, main
from tracekit.rules import RULES

CHECKOUT = Path(__file__).resolve().parent.parent
README = CHECKOUT / "README.md"
DOCS = CHECKOUT / "docs"
CHINESE_README = DOCS / "README.zh.md"
PAGES = sorted(
    [
        README,
        CHECKOUT / "CHANGELOG.md",
        CHECKOUT / "CONTRIBUTING.md",
        CHECKOUT / "benchmarks" / "README.md",
        *DOCS.rglob("*.md"),
    ]
)
SAMPLES = CHECKOUT / "sample_traces"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FOREIGN_PATH = re.compile(r"(?<![\w.$}])/(?:work|root)[\w/]")
"""Absolute paths that exist on one machine only."""


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def prose_of(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links_of(page: Path) -> list[str]:
    """The links to other places in the project."""
    return [link for link in LINK.findall(prose_of(page)) if not re.match(r"[a-z]+:", link)]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files_of_the_project() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: " + listed.stderr.strip())
    return [path for name in listed.stdout.split("\0") if name and (path := CHECKOUT / name).is_file()]


def commands_of(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from commands_of(child, f"{name} {child.name}")


def commands() -> list[tuple[str, click.Command]]:
    return list(commands_of(main, "tracekit"))


def sections_of(page: Path) -> dict[str, str]:
    """The text below each heading (up to the next one, of whatever level), by heading without backticks."""
    found = re.findall(r"^#+ +([^\n]+)\n(.*?)(?=^#|\Z)", prose_of(page), re.MULTILINE | re.DOTALL)
    return {heading.replace("`", ""): text for heading, text in found}


def keys_in_table(text: str) -> set[str]:
    """What stands in backticks in the first column of the tables of a section."""
    return {key for cell in re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE) for key in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_shows_the_two_commands_that_set_everything_up(command: str) -> None:
    blocks = FENCE.findall(README.read_text(encoding="utf-8"))
    assert any(re.search(rf"^{command}\b(?!-)", block, re.MULTILINE) for block in blocks)


def test_readme_shows_what_the_demo_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    readme = (CHECKOUT / "README.md").read_text("utf-8")
    shown = readme.split("<!-- example output: begin -->\n```text\n")[1].split("\n```")[0]
    sample = CHECKOUT / "sample_traces" / "straggler_4ranks.sqlite"
    printed = subprocess.run(
        [sys.executable, "-m", "tracekit", "analyze", str(sample)], capture_output=True, check=True, encoding="utf-8"
    ).stdout
    assert shown == printed.rstrip()


def test_the_chinese_readme_shows_the_same_commands() -> None:
    def commands_in(page: Path) -> tuple[list[str], list[str]]:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        return [re.sub(r" +#.*", "", block) for block in blocks], re.findall(r"^\| (`[^|]*)\|", text, re.MULTILINE)

    assert commands_in(CHINESE_README) == commands_in(README)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors_of(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    todo = [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page)]
    assert sorted(name_of(page) for page in set(DOCS.rglob("*.md")) - seen) == []


def test_public_names_are_there_and_documented() -> None:
    assert set(tracekit.__all__) == keys_in_table(sections_of(DOCS / "reference" / "python.md")["Python names"])
    assert [name for name in tracekit.__all__ if not hasattr(tracekit, name)] == []


def test_the_distribution_carries_its_licence() -> None:
    installed = distribution("nsys-tracekit")
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    licences = [path for path in installed.files or [] if path.parts[-2:] == ("licenses", "LICENSE")]
    assert len(licences) == 1
    assert licences[0].read_text() == (CHECKOUT / "LICENSE").read_text()


def test_no_file_names_a_folder_of_one_machine() -> None:
    faults = []
    for path in files_of_the_project():
        content = path.read_bytes()
        if b"\0" in content or path.suffix == ".js":  # binary, or somebody else's
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if FOREIGN_PATH.search(line):
                faults.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert faults == []


def test_every_command_and_option_has_help() -> None:
    silent = []
    for name, command in commands():
        if not command.help:
            silent.append(name)
        silent += [
            f"{name} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option) and not option.hidden and not option.help
        ]
    assert silent == []


def test_every_command_and_option_is_documented_and_no_other() -> None:
    sections = sections_of(DOCS / "reference" / "cli.md")
    assert {heading for heading in sections if heading.startswith("tracekit")} == {name for name, _ in commands()}
    for name, command in commands():
        documented = {word for cell in keys_in_table(sections[name]) for word in re.findall(r"--[a-z-]+", cell)}
        options = {o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
        # click itself adds --help to every command; the page tells of it once.
        help_option = {"--help"} if name == "tracekit" else set()
        assert documented == {option for option in options if option.startswith("--")} | help_option, name


def test_every_exit_status_is_documented_and_no_other() -> None:
    page = (DOCS / "reference" / "exit-status.md").read_text(encoding="utf-8")
    assert {int(status) for status in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == {int(s) for s in ExitStatus}


def test_every_rule_has_its_section_and_no_other() -> None:
    headings = [heading for heading in sections_of(DOCS / "reference" / "rules.md") if heading.startswith("TK")]
    assert sorted(headings) == sorted(f"{rule.code} {rule.title}" for rule in RULES)


def json_of(*arguments: str) -> dict[str, Any]:
    document = json.loads(CliRunner().invoke(main, ["analyze", *arguments, "--json", "-"]).stdout)
    assert isinstance(document, dict)
    return document


def without_gpu_work(capture: Path, copy: Path) -> Path:
    copy.write_bytes(capture.read_bytes())
    db = sqlite3.connect(copy)
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI_ACTIVITY_KIND_%'").fetchall():
        db.execute(f"DROP TABLE {table}")
    db.commit()
    db.close()
    return copy


def test_every_json_key_is_documented_and_no_other(tmp_path: Path) -> None:
    sample = SAMPLES / "straggler_4ranks.sqlite"
    document = json_of(str(sample))
    host = json_of("--allow-no-gpu", str(without_gpu_work(sample, tmp_path / "host.sqlite")))["host_ranks"][0]
    rank = document["ranks"][0]
    # The sections of the page that list keys, each with an object that they describe.
    described = {
        "Top level": document,
        "An account": rank["totals"],
        "captures": document["captures"][0],
        "ranks": rank,
        "clock": rank["clock"],
        "steps": rank["steps"][0],
        "modules": rank["modules"][0],
        "steady": document["steady"],
        "collectives": document["collectives"][0],
        "efficiency": document["efficiency"],
        "memory": document["memory"],
        "memory.ranks": document["memory"]["ranks"][0],
        "findings": document["findings"][0],
        "evidence": document["findings"][0]["evidence"][0],
        "replay": document["replay"],
        "critical_path": document["critical_path"],
        "predictions": document["replay"]["predictions"][0],
        "host_ranks": host,
        "host_ranks steps": host["steps"][0],
        "host_ranks collectives": host["collectives"][0],
        "remedies": json_of(str(SAMPLES / "fsdp2_nsys_2022.sqlite"))["remedies"][0],
    }
    sections = sections_of(DOCS / "reference" / "json.md")
    account = keys_in_table(sections["An account"])
    for section, found in described.items():
        documented = keys_in_table(sections[section])
        holds_an_account = section in {"steps", "modules", "steady"}
        assert documented | (account if holds_an_account else set()) == found.keys(), section
    assert set(document["not_examined"]) <= sections.keys()


def test_every_json_key_of_a_comparison_is_documented_and_no_other() -> None:
    samples = [str(SAMPLES / name) for name in ("straggler_4ranks.sqlite", "ddp.sqlite")]
    document = json.loads(CliRunner().invoke(main, ["compare", *samples, "--json", "-"]).stdout)
    sections = sections_of(DOCS / "reference" / "json.md")
    [comparison] = document["comparisons"]
    described = {"runs": document["runs"][0], "comparisons": comparison, "A change": comparison["step_time"]}
    assert {section: keys_in_table(sections[section]) for section in described} == {
        section: found.keys() for section, found in described.items()
    }
    keys = set(re.findall(r"`(\w+)`", sections["Comparison"] + sections["comparisons"]))
    rows = [row for name in ("collectives", "findings", "stragglers") for row in comparison[name]]
    assert {key for row in (document, *rows) for key in row} <= keys
    assert {"communicators", *comparison["collectives"][0]["base"]} <= keys


def test_the_recipe_for_sharing_a_capture_keeps_names_and_nothing_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "capture.sqlite") as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'a_kernel'), (2, 'a_range'), (3, 'a_call'), (4, 'TOKEN=secret');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (demangledName INTEGER, shortName INTEGER, mangledName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 1, NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (nameId INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (3);
            CREATE TABLE NVTX_EVENTS (textId INTEGER);
            INSERT INTO NVTX_EVENTS VALUES (2), (NULL);
            CREATE TABLE PROCESSES (name TEXT);
            INSERT INTO PROCESSES VALUES ('secret-process');
            """
        )
    db.close()
    page = (DOCS / "how-to" / "share-a-report.md").read_text(encoding="utf-8")
    recipe = next(block for block in FENCE.findall(page) if "shared.sqlite" in block)
    script = recipe.removeprefix("```sh\n").removesuffix("```").replace("python3", f"'{sys.executable}'")
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, check=True)
    content = (tmp_path / "shared.sqlite").read_bytes()
    assert [name for name in (b"a_kernel", b"a_range", b"a_call") if name not in content] == []
    assert b"secret" not in content


def test_the_benchmarks_work_on_a_small_capture(tmp_path: Path) -> None:
    capture = tmp_path / "small.sqlite"
    size = ["--kernels", "12_000", "--processes", "2"]
    for program in (["generate.py", str(capture), *size], ["read_only.py", str(capture)]):
        script = CHECKOUT / "benchmarks" / program[0]
        done = subprocess.run([sys.executable, str(script), *program[1:]], capture_output=True, text=True, check=True)
    # One launch row a kernel, and 3 steps of 2,000 kernels with a copy each on both processes.
    assert done.stdout.strip() == "{'CUPTI_ACTIVITY_KIND_KERNEL': 12000, 'CUPTI_ACTIVITY_KIND_RUNTIME': 12006}"
    document = json_of(str(capture))
    assert [(rank["kernels"], rank["kernels_launched"]) for rank in document["ranks"]] == [(6000, 6000)] * 2
    assert [[step["step"] for step in rank["steps"]] for rank in document["ranks"]] == [[0, 1, 2]] * 2
    assert sum(row["count"] for row in document["collectives"]) == 300  # each twentieth kernel of a rank


SKIPPED_IN_EVERY_WAY = """
import pytest

@pytest.mark.browser
def test_skips_itself():
    pytest.skip("on purpose")

@pytest.mark.nsys
def test_needs_something_else():
    pytest.skip("on purpose")

def test_uses_the_fixture(chromium):
    pytest.skip("on purpose")

def test_needs_nothing():
    pytest.skip("on purpose")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty suite of tests under this project's conftest."""
    pytester.makeconftest((CHECKOUT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\nmarkers =\n  shared\n  browser\n  nsys\n  torch\n")
    return pytester


def test_a_required_test_that_is_skipped_fails(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_REQUIRE", "browser")
    suite.makepyfile(SKIPPED_IN_EVERY_WAY)
    result = suite.runpytest_subprocess()
    # A fixture that is missing is an error of the set-up, and counts as much.
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 2
    assert outcomes["skipped"] == 2


def test_a_module_without_its_requirement_fails(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_REQUIRE", "torch")
    suite.makepyfile("import pytest\npytest.skip('could not import torch', allow_module_level=True)")
    suite.runpytest_subprocess().assert_outcomes(errors=1)


@pytest.mark.torch
def test_what_no_machine_has_to_have_is_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_REQUIRE", "torch")
    suite.makepyfile(
        "import pytest\n@pytest.mark.torch\ndef test_it():\n    pytest.skip('not required: DeepSpeed, by pip')"
    )
    suite.runpytest_subprocess().assert_outcomes(skipped=1)


def test_what_is_not_required_is_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEKIT_REQUIRE", raising=False)
    suite.makepyfile(SKIPPED_IN_EVERY_WAY)
    result = suite.runpytest_subprocess()
    result.assert_outcomes(skipped=4)
    assert result.ret == pytest.ExitCode.OK


def test_an_unknown_requirement_is_refused(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_REQUIRE", "browsers")
    result = suite.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*TRACEKIT_REQUIRE names browsers; known: shared, browser, nsys, torch*"])
