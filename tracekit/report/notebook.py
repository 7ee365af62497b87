"""An analysis as it shows itself in a notebook: verdict, identity, findings. No script, and nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import escape

from tracekit.report import words
from tracekit.report.causes import FAMILIES
from tracekit.report.host import render_host
from tracekit.report.palette import palette
from tracekit.report.summary import Summary, summarise
from tracekit.results import Analysis
from tracekit.runs import runs

FINDINGS_SHOWN = 10


def render_notebook(analysis: Analysis) -> str:
    """A fragment of HTML that takes its text colour from the notebook."""
    if not analysis.ranks:
        return f"<pre>{escape(render_host(analysis))}</pre>"
    summary = summarise(analysis)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": words.clean, "ratio": words.ratio, "runs": runs, "plural": words.plural}
    return environment.get_template("notebook.html.j2").render(
        summary=summary,
        families=_families(summary),
        identity=_identity(summary),
        findings=analysis.findings[:FINDINGS_SHOWN],
        more=max(0, len(analysis.findings) - FINDINGS_SHOWN),
    )


def _families(summary: Summary) -> list[dict[str, object]]:
    """The parts of the mean bar: colour, share of the bar, and both in words."""
    time, colours = summary.mean.families, palette()["light"]
    shown = summary.mean.shown(summary.scale)
    whole = sum(time.values()) or 1.0
    return [
        {
            "colour": colours[family.key],
            "percent": 100 * time[family.key] / whole,
            "words": f"{family.label} {shown[family.key]} {summary.scale.unit}",
        }
        for family in FAMILIES
        if time.get(family.key)
    ]


def _identity(summary: Summary) -> str:
    """The figures that add up, as an equation."""
    compute, comm, copy, idle = words.add_up(summary.mean.parts_ns, summary.scale)
    whole = summary.scale.with_unit(sum(summary.mean.parts_ns))
    name = "mean step" if summary.whole == "step" else "capture"
    return f"{name} {whole} = compute {compute} + exposed comm {comm} + exposed copy {copy} + idle {idle}"
