"""The page: one file that opens from disk with no network, under a content security policy that allows only itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tracekit._version import __version__
from tracekit.metrics.views import Detail
from tracekit.report import details, everything, hang_page, squeeze
from tracekit.report.accounts import account_tables, exposed_by_module
from tracekit.report.causes import FAMILIES
from tracekit.report.chart_views import chart_views
from tracekit.report.figures import bandwidth_figure, collectives_figure, heat_figure, modules_figure, steps_figure
from tracekit.report.files import write_whole
from tracekit.report.heat import heat_maps
from tracekit.report.palette import STATIC, stylesheet
from tracekit.report.ranks import rank_rows
from tracekit.report.sheet import Sheet
from tracekit.report.summary import Summary, summarise
from tracekit.report.templating import content_hash, environment, static, styles_of
from tracekit.report.timeline import picture
from tracekit.report.timeline.kept import HtmlDetail
from tracekit.report.timeline.notes import scene_notes
from tracekit.report.timeline.payload import columns, header, pack
from tracekit.report.timeline.scene import MAX_EVENTS, Scene, make_scene
from tracekit.report.views import bar_views, finding_views, job_parts, key_figures
from tracekit.report.wait_views import wait_views
from tracekit.results import Analysis
from tracekit.timeline import Timeline

SCRIPTS = (
    *(
        f"timeline/{part}.js"
        for part in ("unpack", "paint", "view", "stand", "overview", "lookup", "panel", "find", "links", "input")
    ),
    "heat.js",
    "charts.js",
    "page.js",
)
"""Parts of the page's script, in the order in which they are joined."""
CARDS = 3
MAX_HEAT_ROWS, MAX_HEAT_COLUMNS = 64, 60
"""Rows and columns of a heat map, above which neighbours share one."""


def write_html(
    analysis: Analysis,
    timeline: Timeline,
    path: Path,
    *,
    detail: Detail | None = None,
    level: HtmlDetail = HtmlDetail.AUTO,
    max_events: int = MAX_EVENTS,
) -> int:
    """Write the report to ``path`` and return its size in bytes; events beyond ``max_events`` become occupancy.

    Raises:
        TracekitError: the file cannot be written; nothing is left half written.
    """
    page = render_html(analysis, timeline, detail=detail, level=level, max_events=max_events)
    return write_whole(path, page.encode("utf-8"))


def render_html(
    analysis: Analysis,
    timeline: Timeline,
    *,
    detail: Detail | None = None,
    level: HtmlDetail = HtmlDetail.AUTO,
    max_events: int = MAX_EVENTS,
) -> str:
    """Return the report as one HTML document; without ``detail`` it has no timeline."""
    summary = summarise(analysis)
    scene = None
    if detail is not None:
        scene = make_scene(analysis, timeline, detail, summary, level=level, max_events=max_events)
    rows = details.collective_rows(analysis)
    sizes = details.size_rows(analysis)
    maps = heat_maps(analysis, max_rows=MAX_HEAT_ROWS, max_columns=MAX_HEAT_COLUMNS)
    waits = wait_views(analysis, maps, summary.scale)
    figures = {
        "steps": steps_figure(analysis, summary.scale),
        "collectives": collectives_figure(rows),
        "modules": modules_figure(exposed_by_module(analysis), summary.scale),
        "bandwidth": bandwidth_figure(sizes),
        **{view.key: heat_figure(maps, view.cells, summary.scale) for view in waits if maps and view.cells},
    }
    plotly = (STATIC / "plotly-basic.min.js").read_text("utf-8") if any(figures.values()) else None
    templates = environment()
    sheet = Sheet()
    body = templates.get_template("body.html.j2").render(
        analysis=analysis,
        summary=summary,
        job=job_parts(analysis),
        scene=scene,
        version=__version__,
        families=[family for family in FAMILIES if family.key in summary.families],
        figures_shown=key_figures(analysis, summary),
        bars=bar_views(summary, sheet),
        findings=finding_views(analysis, summary, sheet),
        cards=CARDS,
        hang=hang_page.page(analysis.hang) if analysis.hang is not None else None,
        patterns=chart_views(analysis, figures, rows, sizes, waits),
        waits=waits,
        maps=maps,
        ranks=rank_rows(analysis, summary.scale),
        picture=picture.picture(scene) if scene else (),
        area=picture,
        scene_notes=scene_notes(scene) if scene else (),
        streams=picture.stream_rows(scene) if scene else (),
        bubbles=picture.bubble_rows(scene) if scene else (),
        collectives=rows,
        sizes=sizes,
        unknowns=details.unknowns(analysis),
        accounts=account_tables(analysis),
        causes=everything.causes_table(summary),
        theory=everything.theory_tables(analysis, summary),
        json_line=everything.json_line(analysis),
    )
    styles = ["style.css", "timeline.css"] + ["hang.css"] * (analysis.hang is not None)
    style = Markup(stylesheet() + styles_of(*styles) + sheet.css())
    boot = Markup(squeeze.script(static("boot.js")))
    code = "(()=>{'use strict';" + squeeze.script("\n".join(map(static, SCRIPTS))) + "})();"
    return templates.get_template("page.html.j2").render(
        policy=_policy(style, boot, code, plotly),
        title=_title(summary),
        style=style,
        script=boot,
        body=Markup(body),
        data=_data_blocks(scene, figures, code, plotly),
    )


def _title(summary: Summary) -> str:
    return f"{summary.headline.rstrip('.')} · {summary.job.split(' · ')[0]} · tracekit"


def _policy(style: str, boot: str, code: str, plotly: str | None) -> str:
    """Return the content security policy: nothing but the page's own style and scripts, each by its hash.

    The chart library adds an empty style element and fills it through the object model, hence the hash of nothing.
    """
    scripts = " ".join(content_hash(text) for text in (boot, code, plotly) if text is not None)
    styles = " ".join(content_hash(text) for text in (style, "") if text or plotly)
    return f"default-src 'none'; script-src {scripts}; style-src {styles}; base-uri 'none'; form-action 'none'"


def _data_blocks(
    scene: Scene | None, figures: dict[str, Any], code: str, plotly: str | None
) -> list[tuple[str, str, Markup]]:
    """Return the page's data as (id, type, content): scripts that browsers do not run."""
    blocks = [
        ("page-code", "text/plain", Markup(pack(code.encode("utf-8")))),
        ("figures-data", "application/json", _json(figures)),
    ]
    if scene:
        blocks.append(("scene-data", "application/json", _json(header(scene))))
        blocks.append(("scene-columns", "text/plain", Markup(columns(scene))))
    if plotly:
        blocks.append(("plotly-code", "text/plain", Markup(pack(plotly.encode("utf-8")))))
    return blocks


def _json(value: Any) -> Markup:
    """Return JSON that cannot end its script element, whatever names it holds."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
