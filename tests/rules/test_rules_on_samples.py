"""The rules on the samples: each finds its fault, says nothing of anything else, and is silent without the fault."""

import json
from functools import cache
from pathlib import Path

import pytest

import tracekit
from tracekit.results import Severity
from tracekit.rules import RULES

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAMPLES.glob("*.expected.json"))
BUILT = {rule.code for rule in RULES}


@cache
def truth(name, folder=SAMPLES):
    return json.loads((folder / f"{name}.expected.json").read_text())


PAIRED = [name for name in NAMES if truth(name)["without_fault"]]


def findings(name, folder=SAMPLES):
    return tracekit.analyze(tracekit.open(*(folder / path for path in truth(name, folder)["captures"]))).findings


def loud(found):
    """Codes of warnings and errors; the residue of idle time and copies accuses nobody."""
    return {finding.rule for finding in found if finding.severity is not Severity.INFO} - {"TK415"}


@pytest.mark.parametrize("name", NAMES)
def test_rules_fire_on_their_fault_only(name):
    """What was planted is found, and nothing else is a warning."""
    planted = set(truth(name)["findings"])
    if missing := planted - BUILT:
        pytest.skip(f"not built yet: {', '.join(sorted(missing))}")
    found = findings(name)
    assert planted <= {finding.rule for finding in found}
    assert loud(found) <= planted | set(truth(name)["may"])


@pytest.mark.parametrize("name", PAIRED)
def test_rules_are_silent_without_the_fault(name, twins):
    assert loud(findings(f"{name}_fixed", twins)) <= set(truth(f"{name}_fixed", twins)["may"])
