"""Findings as SARIF 2.1.0, the format in which CI systems take results of analysers (OASIS, 2020)."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from tracekit._version import __version__
from tracekit.report.details import evidence_text
from tracekit.report.gain import confidence_words
from tracekit.report.pages import rule_page, rule_titles
from tracekit.report.words import clean, duration, sentence
from tracekit.results import Analysis, Finding, Severity
from tracekit.runs import runs

LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render_sarif(analysis: Analysis) -> str:
    """One run with all findings; each stands at the captures of its ranks. Without a final newline."""
    titles = rule_titles()
    codes = sorted({finding.rule for finding in analysis.findings})
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tracekit",
                        "version": __version__,
                        "rules": [_rule(code, titles.get(code, code)) for code in codes],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": f"{s.rule} could not be checked: {s.reason}"},
                                "associatedRule": {"id": s.rule},
                            }
                            for s in analysis.skipped_rules
                        ],
                    }
                ],
                "results": [_result(analysis, finding, codes.index(finding.rule)) for finding in analysis.findings],
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)


def _rule(code: str, title: str) -> dict[str, Any]:
    page = rule_page(code)
    rule: dict[str, Any] = {"id": code, "shortDescription": {"text": sentence(title)}}
    if page:
        rule["help"] = {"text": page, "markdown": page}
    return rule


def _result(analysis: Analysis, finding: Finding, index: int) -> dict[str, Any]:
    evidence = [evidence_text(row) for row in finding.evidence]
    text = [sentence(clean(finding.title))]
    if finding.cost_ns is not None:
        text.append(f"It costs {duration(finding.cost_ns)} a step.")
    if finding.gain_ns is not None:
        text.append(f"Fixing it gains {duration(finding.gain_ns)} a step.")
    if words := confidence_words(finding):
        text.append(sentence(clean(words)))
    text += [f"{name}: {value}" + (f" (threshold {limit})" if limit else "") for name, value, limit in evidence]
    text.append(f"Try: {sentence(clean(finding.fix, 2000))}")
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": LEVEL[finding.severity],
        "message": {"text": "\n".join(text)},
        "locations": [_location(path) for path in _captures(analysis, finding)],
        "partialFingerprints": {"rule/ranks": f"{finding.rule}/{runs(finding.ranks)}"},
        "properties": {
            "ranks": list(finding.ranks),
            "steps": list(finding.steps),
            "cost_ns": finding.cost_ns,
            "gain_ns": finding.gain_ns,
            "confidence": str(finding.confidence),
            "confidence_reason": finding.confidence_reason,
        },
    }


def _captures(analysis: Analysis, finding: Finding) -> list[str]:
    """Paths of the captures of the finding's ranks, at most ten; of all where it names none."""
    paths = [c.path for c in analysis.captures if not finding.ranks or set(c.ranks) & set(finding.ranks)]
    return (paths or [c.path for c in analysis.captures])[:10]


def _location(path: str) -> dict[str, Any]:
    # A path that is not UTF-8 holds lone surrogates: as bytes it can be quoted all the same.
    uri = quote(PurePath(path).as_posix().encode("utf-8", "surrogateescape"), safe="/:._-~")
    return {"physicalLocation": {"artifactLocation": {"uri": uri}}}
