"""Settings of a project, and thresholds by name."""

import dataclasses
import re
from pathlib import Path

import pytest

from tracekit.config import DEFAULT, Thresholds
from tracekit.errors import UsageError
from tracekit.settings import Settings, find_settings, with_thresholds

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"


def project(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_table_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project(tmp_path, '[tool.tracekit]\nfail-on = "error"\n')
    project(tmp_path / "a", "[project]\nname = 'other'\n")
    assert find_settings(inner).fail_on == "error"
    project(
        inner, '[tool.tracekit]\nselect = ["TK1"]\nignore = ["TK105"]\n[tool.tracekit.thresholds]\nwait_share = 0.5\n'
    )
    found = find_settings(inner)
    assert (found.select, found.ignore, found.fail_on) == (("TK1",), ("TK105",), None)
    assert found.thresholds.wait_share == 0.5
    assert found.thresholds.warm_up_ratio == DEFAULT.warm_up_ratio


@pytest.mark.parametrize("text", ["", "[tool.other]\n", "not toml [", "tool = 3\n"])
def test_without_a_table_all_is_as_it_is(tmp_path, text):
    assert find_settings(project(tmp_path, text)) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool]\ntracekit = 3\n", "no table"),
        ("[tool.tracekit]\nselct = []\n", "selct"),
        ("[tool.tracekit]\nselect = 'TK1'\n", "no list"),
        ("[tool.tracekit]\nfail-on = 'never'\n", "never"),
        ("[tool.tracekit]\nthresholds = 1\n", "no table"),
        ("[tool.tracekit.thresholds]\nwait_shares = 1\n", "wait_shares"),
        ("[tool.tracekit.thresholds]\nwait_share = 'much'\n", "much"),
        ("[tool.tracekit.thresholds]\nwait_share = -1\n", "-1"),
        ("[tool.tracekit.thresholds]\nwait_share = nan\n", "nan"),
        ("[tool.tracekit.thresholds]\nwait_share = true\n", "True"),
        ("[tool.tracekit.thresholds]\njitter_count = 1.5\n", "1.5"),
    ],
)
def test_a_wrong_table_is_said(tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as error:
        find_settings(project(tmp_path, text))
    assert error.value.hint


def test_the_nearest_name_is_offered():
    with pytest.raises(UsageError) as error:
        with_thresholds(DEFAULT, {"wait_shares": 1}, "--threshold")
    assert "wait_share" in error.value.hint


def test_every_threshold_is_documented_with_its_default():
    """Run ``python docs/thresholds.py`` after a change."""
    text = DOCS.read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text[text.index("## Thresholds") :], re.MULTILINE))
    assert {name: float(value.replace(",", "")) for name, value in rows.items()} == {
        field.name: float(field.default) for field in dataclasses.fields(Thresholds)
    }
