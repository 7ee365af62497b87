from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest
from builders import MS, by_hand, make_analysis, many_waiting, simulate, straggler, waiting_by_hand
from plotly.offline import get_plotlyjs_version

from tracekit.report.accounts import exposed_by_module
from tracekit.report.details import collective_rows, size_rows
from tracekit.report.figures import (
    MAX_BARS,
    bandwidth_figure,
    collectives_figure,
    heat_figure,
    modules_figure,
    steps_figure,
)
from tracekit.report.heat import HeatMaps, heat_maps
from tracekit.report.palette import STATIC
from tracekit.report.words import Scale
from tracekit.results import Account, Analysis, Module, Step

MILLISECONDS = Scale("ms", 1_000_000, 1)


def traces(figure: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    assert figure
    return {trace["meta"]["family"]: trace for trace in figure["data"]}


def maps_of(analysis: Analysis, rows: int = 64, columns: int = 60) -> HeatMaps:
    maps = heat_maps(analysis, max_rows=rows, max_columns=columns)
    assert maps
    return maps


def test_steps_counted_by_hand() -> None:
    # Means of two ranks: compute (60 + 80) / 2, exposed (30 + 10) / 2, copy 3, nothing 7; three steps alike.
    found = traces(steps_figure(make_analysis(by_hand()), MILLISECONDS))
    assert {key: trace["y"] for key, trace in found.items()} == {
        "compute": [70.0] * 3,
        "comm": [20.0] * 3,
        "copy": [3.0] * 3,
        "idle": [7.0] * 3,
    }
    assert found["compute"]["x"] == ["0", "1", "2"]


def test_collectives_counted_by_hand() -> None:
    figure = collectives_figure(collective_rows(make_analysis(by_hand())))
    assert traces(figure)["comm"]["x"] == [60.0]
    assert figure
    assert figure["layout"]["yaxis"]["ticktext"] == ["all-gather 0x5f1c0d7e"]


def test_exact_causes_are_on_hover() -> None:
    # Step 1: rank 0 waits 20 of its 30 ms, rank 1 none of its 10; step 0: rank 0 waits 25 ms.
    found = traces(steps_figure(waiting_by_hand(), MILLISECONDS))
    assert found["wait"]["customdata"] == ["<br>12.5 peer wait", "<br>10.0 peer wait", "<br>7.5 peer wait"]
    assert found["comm"]["customdata"][1] == "<br>10.0 unknown"
    assert "customdata" not in found["compute"]


def test_a_slow_first_step_does_not_flatten_the_others() -> None:
    # 200 ms of warm-up against steps of 100 ms: cut at 110 ms, and its height is told.
    analysis = make_analysis(by_hand())

    def slow(step: Step) -> Step:
        account = replace(step.account, wall_ns=200 * MS, compute_ns=step.account.compute_ns + 100 * MS)
        return replace(step, account=account)

    ranks = tuple(replace(rank, steps=(slow(rank.steps[0]), *rank.steps[1:])) for rank in analysis.ranks)
    figure = steps_figure(replace(analysis, ranks=ranks), MILLISECONDS)
    assert figure
    assert figure["layout"]["yaxis"]["range"] == pytest.approx([0, 110])
    assert [(note["x"], note["text"]) for note in figure["layout"]["annotations"]] == [(0, "200 ↑")]
    assert traces(figure)["compute"]["marker"]["opacity"] == [0.4, 1, 1]
    plain = steps_figure(analysis, MILLISECONDS)
    assert plain
    assert "range" not in plain["layout"]["yaxis"]


def module(name: str, exposed_ms: int) -> Module:
    figures = {"compute_ns": 0, "exposed_copy_ns": 0, "idle_ns": 0, "comm_ns": 0, "overlapped_comm_ns": 0}
    exposed = exposed_ms * MS
    return Module(module=name, account=Account(wall_ns=exposed, exposed_comm_ns=exposed, **figures))


def test_modules_counted_by_hand() -> None:
    # Over two steady steps: layers.0 is exposed for 8 ms on rank 0 and 4 ms on rank 1, so 3 ms a step and rank.
    analysis = make_analysis(by_hand())
    long = "<a href='//x'>" + "model.blocks." * 4 + "mlp"
    modules = ((module(long, 2), module("layers.0", 8)), (module("layers.0", 4), module("quiet", 0)))
    ranks = tuple(replace(rank, modules=own) for rank, own in zip(analysis.ranks, modules, strict=True))
    rows = exposed_by_module(replace(analysis, ranks=ranks))
    assert rows == [("layers.0", 3 * MS), (long, 0.5 * MS), ("quiet", 0)]
    figure = modules_figure(rows, MILLISECONDS)
    assert traces(figure)["comm"]["x"] == [3.0, 0.5]
    assert figure
    assert figure["layout"]["yaxis"]["ticktext"] == ["layers.0", "…" + long[-27:]]
    assert modules_figure(rows[2:], MILLISECONDS) is None


def test_names_are_text_to_the_chart_library() -> None:
    figure = modules_figure([("<a href='//x'>&amp;</a>", 1.0 * MS)], MILLISECONDS)
    assert figure
    assert figure["layout"]["yaxis"]["ticktext"] == ["&lt;a href='//x'&gt;&amp;amp;&lt;/a&gt;"]


def test_bandwidth_by_size() -> None:
    rows = size_rows(make_analysis(by_hand()))
    figure = bandwidth_figure(rows)
    assert figure
    assert traces(figure)["comm"]["x"] == [325.0]
    assert figure["layout"]["yaxis"]["ticktext"] == ["all-gather 0x5f1c 403 MB"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [450.0]
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["link 450"]
    assert bandwidth_figure([]) is None


def test_plotly_accepts_every_attribute() -> None:
    analysis = make_analysis(simulate())
    maps = maps_of(waiting_by_hand())
    for figure in (
        steps_figure(analysis, MILLISECONDS),
        collectives_figure(collective_rows(analysis)),
        modules_figure([("layers.0", 1.0 * MS)], MILLISECONDS),
        bandwidth_figure(size_rows(analysis)),
        heat_figure(maps, maps.waited, MILLISECONDS),
    ):
        assert figure
        go.Figure(json.loads(json.dumps(figure)), skip_invalid=False)
    broken = steps_figure(analysis, MILLISECONDS)
    assert broken
    broken["layout"]["xaxis"]["no_such_attribute"] = 1
    with pytest.raises(ValueError, match="no_such_attribute"):
        go.Figure(broken)


def test_the_vendored_library_is_the_one_the_figures_are_checked_against() -> None:
    banner = (STATIC / "plotly-basic.min.js").read_text("utf-8")[:200]
    major, minor, _ = get_plotlyjs_version().split(".")
    assert f"plotly.js (basic - minified) v{major}.{minor}." in banner
    table = (STATIC / "VENDORED.md").read_text("utf-8")
    assert hashlib.sha256((STATIC / "plotly-basic.min.js").read_bytes()).hexdigest() in table
    assert "MIT" in (STATIC / "plotly.LICENSE").read_text("utf-8")


def test_thousands_of_steps_become_means_of_neighbours() -> None:
    analysis = make_analysis(by_hand())
    rank = analysis.ranks[0]
    steps = tuple(replace(rank.steps[i % 3], step=i) for i in range(1000))
    found = traces(steps_figure(replace(analysis, ranks=(replace(rank, steps=steps),)), MILLISECONDS))
    assert len(found["compute"]["y"]) == 200 <= MAX_BARS
    assert found["compute"]["x"][:2] == ["0-4", "5-9"]
    assert set(found["compute"]["y"]) == {60.0}


def test_nothing_to_draw() -> None:
    assert steps_figure(make_analysis(by_hand(), steps=False), MILLISECONDS) is None
    assert collectives_figure([]) is None


def test_heat_map_counted_by_hand() -> None:
    maps = maps_of(waiting_by_hand(stragglers=(straggler(1),)))
    assert maps.waited == ((25 * MS, 20 * MS, 10 * MS), (0, 0, 5 * MS))
    assert maps.caused == ((0, 0, 2.5 * MS), (12.5 * MS, 10 * MS, 5 * MS))
    figure = heat_figure(maps, maps.waited, MILLISECONDS)
    steady, warm_up = figure["data"]
    cells = zip(steady["x"], steady["base"], steady["y"], steady["meta"]["values"], strict=True)
    assert list(cells) == [(1, -0.5, 1, 20), (2, -0.5, 1, 10), (1, 0.5, 1, 0), (2, 0.5, 1, 5)]
    assert (warm_up["x"], warm_up["meta"]["values"], warm_up["texttemplate"]) == ([0, 0], [25, 0], "")
    assert steady["meta"]["top"] == warm_up["meta"]["top"] == 20  # the 25 ms of warm-up do not count
    layout = figure["layout"]
    assert layout["yaxis"]["ticktext"] == ["0", "▸ 1"]
    assert [(s["x0"], s["x1"], s["line"]["dash"]) for s in layout["shapes"]] == [(-0.5, 0.5, "dash")]
    assert layout["meta"]["columns"] == ["step 0", "step 1", "step 2"]


def test_a_rank_without_a_step_leaves_a_hole() -> None:
    analysis = waiting_by_hand()
    first, second = analysis.ranks
    maps = maps_of(replace(analysis, ranks=(first, replace(second, steps=second.steps[:2]))))
    assert maps.waited == ((25 * MS, 20 * MS, 10 * MS), (0, 0, None))
    assert len(heat_figure(maps, maps.waited, MILLISECONDS)["data"][0]["x"]) == 3


def test_neighbours_share_rows_and_columns_and_a_straggler_does_not() -> None:
    _, analysis = many_waiting(20, 201, slow_rank=5)
    maps = maps_of(analysis, rows=16, columns=60)
    assert [row.label for row in maps.rows] == [
        "0-1",
        "2-3",
        "4",
        "5",
        "6-7",
        *(f"{n}-{n + 1}" for n in range(8, 20, 2)),
    ]
    assert (maps.ranks_shared, maps.steps_shared) == (18, 4)
    assert [column.label for column in maps.columns][:3] == ["0", "1-4", "5-8"]
    assert len(maps.columns) == 1 + 50
    assert [row[1] for row in maps.waited] == [2 * MS] * 3 + [0] + [2 * MS] * 7
    assert maps.caused
    assert [row[1] for row in maps.caused] == [0] * 3 + [1.5 * MS] + [0] * 7


def test_shared_rows_hold_the_mean_of_waits_and_the_sum_of_what_was_caused() -> None:
    analysis = waiting_by_hand()
    four = tuple(replace(analysis.ranks[r % 2], rank=r) for r in range(4))
    maps = maps_of(replace(analysis, ranks=four), rows=1, columns=3)
    assert [row.ranks for row in maps.rows] == [(0, 1, 2, 3)]
    assert maps.waited == ((12.5 * MS, 10 * MS, 7.5 * MS),)
    assert maps.caused == ((25 * MS, 20 * MS, 15 * MS),)


def test_noise_is_not_painted_like_a_fire() -> None:
    # Steps of 100 ms: full colour stands for at least 2 ms.
    analysis = waiting_by_hand()
    tiny = {"peer_wait": 1000}
    ranks = tuple(
        replace(r, steps=tuple(replace(s, exposed_comm_by_cause=tiny) for s in r.steps)) for r in analysis.ranks
    )
    maps = maps_of(replace(analysis, ranks=ranks))
    assert maps.top_ns(maps.waited) == 2 * MS


def test_no_heat_map_where_waits_cannot_be_told() -> None:
    waiting = waiting_by_hand()
    for analysis in (
        make_analysis(by_hand()),
        replace(waiting, ranks=waiting.ranks[:1]),
        make_analysis(by_hand(), steps=False),
    ):
        assert heat_maps(analysis, max_rows=64, max_columns=60) is None
    untold = tuple(replace(r, steps=tuple(replace(s, caused_wait_ns=None) for s in r.steps)) for r in waiting.ranks)
    assert maps_of(replace(waiting, ranks=untold)).caused is None
