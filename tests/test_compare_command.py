"""``tracekit compare``: what it reads, prints, writes and exits with."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from nsys_builder import Export

import tracekit
from tracekit.cli import main
from tracekit.commands.compare import run_names
from tracekit.errors import CaptureError
from tracekit.report.json import render_json, to_dict
from tracekit.report.saved import is_saved, read_saved

SAMPLES = Path(__file__).parents[1] / "sample_traces"
STRAGGLER = SAMPLES / "straggler_4ranks.sqlite"
FOLDER = SAMPLES / "straggler_4ranks_per_rank"


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@cache
def document(name):
    return render_json(tracekit.analyze(tracekit.open(SAMPLES / name)))


@pytest.fixture
def saved(tmp_path):
    """Writes a document, changed as asked for, and returns its path."""

    def write(name="straggler_4ranks.sqlite", file="base.json", **changes):
        path = tmp_path / file
        path.write_text(json.dumps(json.loads(document(name)) | changes))
        return path

    return write


def shortened(walls):
    """Ranks of the straggler's document with steady steps of these lengths in ns; only wall and compute change."""
    ranks = json.loads(document("straggler_4ranks.sqlite"))["ranks"]
    for rank in ranks:
        template = rank["steps"][1]
        rank["steps"] = [
            template | {"step": n, "wall_ns": wall, "compute_ns": template["compute_ns"] + wall - template["wall_ns"]}
            for n, wall in enumerate(walls)
        ]
    steady = json.loads(document("straggler_4ranks.sqlite"))["steady"]
    mean = round(sum(walls) / len(walls))
    steady |= {"compute_ns": steady["compute_ns"] + mean - steady["wall_ns"], "wall_ns": mean}
    steady |= {"steps": list(range(len(walls))), "step_time_ns": sorted(walls)[len(walls) // 2]}
    return {"ranks": ranks, "steady": steady}


@pytest.mark.parametrize(
    "name", ["straggler_4ranks.sqlite", "hsdp_accumulation", "ddp.sqlite", "fsdp2_cuda_graph.sqlite"]
)
def test_what_analyze_writes_is_read_back(name, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(document(name))
    assert is_saved(path)
    again, before = to_dict(read_saved(path)), json.loads(document(name))
    kept = ("captures", "ranks", "steady", "collectives", "sharding", "efficiency", "stragglers", "findings")
    for key in (*kept, "skipped_rules", "world_size", "not_captured"):
        assert again[key] == before[key], key


def test_a_capture_a_folder_and_a_file_are_the_same_run(saved, twins):
    new = twins / "straggler_4ranks_fixed.sqlite"
    texts = [run(base, new).stdout for base in (STRAGGLER, FOLDER, saved())]
    for text in texts:
        assert "The step is 4.70 ms (18.5 %) shorter: exposed communication −3.50 ms, mostly" in text
        assert max(map(len, text.splitlines())) <= 80
    # The measured account does not depend on the form; 5.4 ms of clock offsets between reports does not matter.
    tables = [re.search(r"A step, ms.*?\n\n", text, re.S)[0] for text in texts]
    assert tables[0] == tables[2]


def test_status_of_the_gate(saved, twins):
    fixed = twins / "straggler_4ranks_fixed.sqlite"
    assert run(fixed, STRAGGLER, "--max-regression", "3%").exit_code == 1
    assert run(fixed, STRAGGLER, "--max-regression", "0.3").exit_code == 0
    assert run(STRAGGLER, fixed, "--max-regression", "3%").exit_code == 0
    assert run(fixed, STRAGGLER).exit_code == 0
    assert run(STRAGGLER, STRAGGLER, "--max-regression", "0").exit_code == 0


MS = 1_000_000


def test_the_gate_says_what_noise_hides(saved):
    base = saved(file="base.json", **shortened([100 * MS, 99 * MS, 101 * MS, 100 * MS]))
    wide = saved(file="wide.json", **shortened([99 * MS, 108 * MS, 101 * MS, 112 * MS]))
    result = run(base, wide, "--max-regression", "3%")
    assert result.exit_code == 0
    assert "the noise of wide hides a regression of 3.0%" in result.stderr
    assert (
        json.loads(run(base, wide, "--max-regression", "3%", "--json", "-").stdout)["comparisons"][0]["passed"] is None
    )


@pytest.mark.parametrize("steps", [[100 * MS], [100 * MS, 101 * MS]])
def test_the_gate_does_not_pass_what_cannot_be_told(saved, steps):
    base, new = saved(file="a.json", **shortened(steps)), saved(file="b.json", **shortened([130 * MS, 131 * MS]))
    result = run(base, new, "--max-regression", "3%")
    assert result.exit_code == 2
    assert "whether b regressed cannot be told from so few steps" in result.stderr
    assert "%) longer: compute +30.00 ms" in result.stdout or "%) longer: compute +30.50 ms" in result.stdout
    assert "too few to tell" in result.stdout


def test_no_steps_no_gate(saved):
    ranks = json.loads(document("straggler_4ranks.sqlite"))["ranks"]
    bare = saved(file="bare.json", steady=None, ranks=[rank | {"steps": []} for rank in ranks])
    result = run(STRAGGLER, bare)
    assert result.exit_code == 0
    assert "The step times cannot be compared: bare has no steps." in result.stdout
    assert "bare has no steps: its times cannot be compared" in result.stdout
    assert run(STRAGGLER, bare, "--max-regression", "3%").exit_code == 2


def test_several_runs_are_listed_beside_each_other(saved):
    new = [SAMPLES / f"{name}.sqlite" for name in ("ddp", "zero1", "zero2")]
    text = run(STRAGGLER, *new).stdout
    assert max(map(len, text.splitlines())) <= 80
    for name, strategy in (("straggler_4ranks", "ZeRO-3 / FSDP"), ("ddp", "DDP"), ("zero1", "ZeRO-1")):
        expected = json.loads((SAMPLES / f"{name}.expected.json").read_text())["steady"]
        mean = expected["sums"]["wall_ns"] / expected["windows"] / MS
        overlap = expected["sums"]["overlapped_comm_ns"] / expected["sums"]["comm_ns"]
        line = next(line for line in text.splitlines() if line.startswith(f"  {name[:12]}"))
        assert strategy in line
        assert f"{overlap:.2f}" in line
        assert f"{mean:.2f}" in line
    found = json.loads(run(STRAGGLER, *new, "--json", "-").stdout)
    assert [r["name"] for r in found["runs"]] == ["straggler_4ranks", "ddp", "zero1", "zero2"]
    assert {r["peak_memory_bytes"] for r in found["runs"]} == {None}
    assert [c["new"] for c in found["comparisons"]] == ["ddp", "zero1", "zero2"]


def test_no_communication_is_no_overlap(saved):
    def without(account):
        return account | {"comm_ns": 0, "overlapped_comm_ns": 0, "exposed_comm_ns": 0}

    found, no_causes = json.loads(document("straggler_4ranks.sqlite")), {"exposed_comm_by_cause": {}}
    ranks = [
        rank
        | {
            "totals": without(rank["totals"]),
            "steps": [without(s) | no_causes for s in rank["steps"]],
        }
        for rank in found["ranks"]
    ]
    alone = saved(file="alone.json", ranks=ranks, steady=without(found["steady"]), collectives=[])
    text = run(STRAGGLER, alone).stdout
    assert "alone has no communication: its overlap ratio is unknown, not 0." in text
    assert re.search(r"overlap ratio +0\.68 +– +–", text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged JSON"),
        ("[1]", "JSON, but not of tracekit analyze"),
        ('{"schema_version": 1}', "JSON, but not of tracekit analyze"),
        ("[" * 100_000, "damaged JSON"),
        ('{"a": NaN}', "damaged JSON"),
        ('{"a": ' + "9" * 5000 + "}", "damaged JSON"),
    ],
)
def test_other_json_is_refused(tmp_path, content, message):
    path = tmp_path / "other.json"
    path.write_text(content)
    result = run(STRAGGLER, path)
    assert result.exit_code == 3
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "schema version 2; this tracekit reads version 1"),
        ({"schema_version": "1\x1b[31m"}, "schema version 1\ufffd[31m"),
        ({"ranks": []}, "holds no GPU work"),
        ({"ranks": {}}, "ranks is no list of objects"),
        ({"ranks": [{"rank": 0}]}, "ranks[0].rank_source is missing"),
        ({"steady": {"steps": [1]}}, "steady.left_out is missing"),
        ({"world_size": float("inf")}, "damaged JSON"),
        ({"world_size": 3.5}, "world_size is 3.5"),
        ({"world_size": True}, "world_size is True"),
        ({"world_size": 2**70}, "world_size is 1180591620717411303424"),
        ({"findings": [{"rule": "TK1", "severity": "loud"}]}, "findings[0].severity is 'loud'"),
        ({"sharding": 3}, "bytes_per_step is missing"),
    ],
)
def test_damaged_documents_are_refused(saved, changes, message):
    with pytest.raises(CaptureError, match=re.escape(message)) as caught:
        read_saved(saved(**changes))
    assert caught.value.hint


def test_keys_of_a_later_version_are_ignored(saved):
    assert len(read_saved(saved(something_new={"a": [1]})).ranks) == 4


def test_names_cannot_steer_the_terminal_or_the_page(saved):
    nasty = "\x1b[31m<b>|x|\u202e"
    base = saved()
    found = json.loads(base.read_text())
    for finding in found["findings"]:
        finding["title"] = nasty
    found["sharding"]["strategy"] = nasty
    base.write_text(json.dumps(found))
    text = run(base, STRAGGLER).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = run(base, STRAGGLER, "--format", "md").stdout
    assert "<b>" not in page.replace("\\<", "")
    widths = [line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("| TK")]
    assert len(set(widths)) == 1


def test_outputs(tmp_path, saved):
    out = tmp_path / "out.json"
    result = run(STRAGGLER, STRAGGLER, "--json", out)
    assert json.loads(out.read_text())["comparisons"][0]["step_time"]["difference"] == 0
    assert "The step takes as long as before" in result.stdout
    assert run(STRAGGLER, STRAGGLER, "--json", "-", "--format", "md").exit_code == 2
    assert run(STRAGGLER, STRAGGLER, "--json", STRAGGLER).exit_code == 2
    assert run(STRAGGLER, STRAGGLER, "--quiet").stdout == ""
    assert run(STRAGGLER, STRAGGLER, "--format", "md").stdout.startswith("### The step takes as long as before")


@pytest.mark.parametrize("share", ["", "3 percent", "-3%", "1e400", "nan"])
def test_shares_that_are_none(share):
    assert run(STRAGGLER, STRAGGLER, "--max-regression", share).exit_code == 2


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/a/x.sqlite", "/b/y.json"], ["x", "y"]),
        (["/a/before/rank0.sqlite", "/a/after/rank0.sqlite"], ["before/rank0", "after/rank0"]),
        (["/runs/a/", "/runs/b"], ["a", "b"]),
        (["/a/x.sqlite", "/a/x.sqlite"], ["x", "x"]),
    ],
)
def test_names_tell_runs_apart(paths, names):
    assert run_names(paths) == names


def test_a_missing_file_is_two_lines():
    result = run(STRAGGLER, "nowhere.json")
    assert result.exit_code == 3
    assert len(result.stderr.strip().splitlines()) == 2


def test_a_folder_of_json_has_no_captures(tmp_path):
    shutil.copy(SAMPLES / "ddp.expected.json", tmp_path / "x.json")
    assert run(STRAGGLER, tmp_path).exit_code == 3


def test_a_bare_number_above_one_is_no_share():
    """``--max-regression 3`` would let a step three times as long pass, where 3 % was meant."""
    result = run(STRAGGLER, STRAGGLER, "--max-regression", "3")
    assert (result.exit_code, "write it with %" in result.stderr) == (2, True)


def test_what_both_runs_lack_is_said_once(tmp_path):
    """GIVEN one capture without steps as both runs THEN it is named once in the sentence and once in the notes."""
    export = Export()
    export.kernel("gemm", 1_000, 2_000, call=(500, 600))
    path = export.write(tmp_path / "report.sqlite")
    assert " ".join(run(path, path).stdout.split()).count("report has no steps") == 2
