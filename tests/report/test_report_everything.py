"""The folded tables that are not accounts, and the line that says what job it is."""

from __future__ import annotations

from dataclasses import replace

from builders import MS, by_hand, make_analysis, make_timeline, waiting_by_hand
from test_report_html import Page

from tracekit.evidence import Activity
from tracekit.report.everything import causes_table, json_line, theory_tables
from tracekit.report.html import render_html
from tracekit.report.summary import summarise
from tracekit.report.views import job_parts, key_figures
from tracekit.results import (
    Analysis,
    CriticalPath,
    Efficiency,
    Hang,
    LastActivity,
    Memory,
    Mismatch,
    Prediction,
    RankMemory,
    Replay,
    Sharding,
    Volume,
    Waiting,
)

SHARDING = Sharding(
    strategy="ZeRO-3 / FSDP",
    confidence=0.9,
    evidence=("2 all-gather in forward a step",),
    shards=2,
    replicas=1,
    parameters=168_000_000,
    parameters_source="mark",
    volumes=(
        Volume(op="all_gather", bytes=670_000_000, expected_bytes=672_000_000, explanation="the root stays gathered"),
        Volume(op="reduce_scatter", bytes=None, expected_bytes=None, explanation=None),
    ),
)
USAGE = Efficiency(
    tokens_per_s=67_012.0,
    mfu=0.327,
    hfu=0.4,
    flops_per_token=6_000_000_000,
    peak_tflops=989.0,
    formula="6 x N FLOPs",
    reason=None,
    bound_by="wait",
    shares={"wait": 0.6, "compute": 0.4},
)
REPLAY = Replay(
    steps=(1, 2),
    step_time_ns=100 * MS,
    unexplained_share=0.01,
    reason=None,
    predictions=(Prediction(change="straggler=off", step_time_ns=80 * MS, gain_ns=20 * MS),),
    what_if=(Prediction(change="network=2,host=slower", step_time_ns=110 * MS, gain_ns=-10 * MS),),
)
PATH = CriticalPath(
    length_ns=200 * MS,
    by_category={"compute": 150 * MS, "comm": 40 * MS, "copy": 0, "host": 6 * MS, "idle": 4 * MS},
    by_rank={0: 20 * MS, 1: 180 * MS},
    by_module=(("layers.0", 120 * MS), (None, 80 * MS)),
)


def rows_of(analysis: Analysis) -> list[list[str]]:
    return Page(render_html(analysis, make_timeline(by_hand()))).rows


def test_the_job_in_a_line_and_five_figures() -> None:
    analysis = make_analysis(by_hand(), sharding=SHARDING, efficiency=USAGE)
    ranks = tuple(replace(rank, host=f"node{rank.rank}") for rank in analysis.ranks)
    assert job_parts(replace(analysis, ranks=ranks)) == [
        "run1.sqlite",
        "168 M parameters",
        "ZeRO-3 / FSDP over 2 ranks",
        "2 × H100 80GB HBM3",
        "2 hosts",
        "steps 1-2, warm-up 0 left out",
    ]
    assert key_figures(analysis, summarise(analysis)) == [
        ("Step, median", "100.0", "ms"),
        ("Overlap ratio", "0.50", ""),
        ("Exposed comm", "20.0", "ms"),
        ("Tokens/s", "67 k", ""),
        ("MFU", "32.7", "%"),
    ]


def test_what_is_unknown_of_the_job_is_left_out() -> None:
    analysis = make_analysis(by_hand(), steps=False, sharding=replace(SHARDING, confidence=0.3, parameters=None))
    first = replace(analysis.ranks[0], device_name=None, host="node0")
    analysis = replace(analysis, ranks=(first, replace(analysis.ranks[1], host="node0")))
    assert job_parts(replace(analysis, world_size=4, not_captured=(2, 3))) == [
        "run1.sqlite",
        "1 GPU + 1 × H100 80GB HBM3 of 4 ranks",
        "node0",
    ]
    assert [name for name, _, _ in key_figures(analysis, summarise(analysis))] == [
        "Capture",
        "Overlap ratio",
        "Exposed comm",
    ]


def test_lost_time_by_exact_cause() -> None:
    # Steps 1 and 2: rank 0 waits 20 and 10 of 30 ms, rank 1 waits 0 and 5 of 10 ms; both idle for 7 ms a step.
    table = causes_table(summarise(waiting_by_hand()))
    assert table
    assert table.rows == (
        ("unknown", "exposed comm", "11.2", "11 %"),
        ("peer wait", "peer wait", "8.8", "9 %"),
        ("unknown", "idle", "7.0", "7 %"),
    )
    assert causes_table(summarise(make_analysis(by_hand(), steps=False))) is None


def test_theory_efficiency_path_and_replays_are_tables() -> None:
    rows = rows_of(make_analysis(by_hand(), sharding=SHARDING, efficiency=USAGE, replay=REPLAY, critical_path=PATH))
    assert ["all-gather", "670 MB", "672 MB", "1.00", "the root stays gathered"] in rows
    assert ["reduce-scatter", "unknown", "unknown", "–", ""] in rows
    assert ["Model GFLOPs per token", "6"] in rows
    assert ["Bound by", "wait"] in rows
    assert ["Of a step: wait", "60 %"] in rows
    assert ["rank", "1", "90.0", "90 %"] in rows
    assert ["module", "outside of all", "40.0", "40 %"] in rows
    assert ["straggler=off", "80.0 ms", "20.0 ms", "20 %"] in rows
    assert ["network=2, host=slower", "110.0 ms", "-10.0 ms", "10 % longer"] in rows


def test_theory_says_what_is_missing() -> None:
    unknown = replace(USAGE, mfu=None, hfu=None, tokens_per_s=None, formula=None, reason="no tokens: --tokens-per-step")
    analysis = make_analysis(
        by_hand(),
        sharding=replace(SHARDING, parameters=None),
        efficiency=unknown,
        replay=Replay(
            steps=(), step_time_ns=None, unexplained_share=None, reason="no collective was matched", predictions=()
        ),
    )
    tables = {table.title: table for table in theory_tables(analysis, summarise(analysis))}
    assert (
        "What it should move is not known without the model's size: --model tells it."
        in tables["Sharding against theory"].lines
    )
    assert tables["Efficiency"].lines == ("MFU is not known: no tokens: --tokens-per-step.",)
    assert ("Tokens a second", "unknown") in tables["Efficiency"].rows
    assert tables["What if"].lines == ("Nothing is predicted: no collective was matched.",)
    assert not tables["What if"].heads
    assert "Critical path" not in tables
    assert theory_tables(make_analysis(by_hand()), summarise(make_analysis(by_hand()))) == []


def test_memory_by_rank_and_what_is_expected() -> None:
    gb = 1_000_000_000
    rank = RankMemory(
        rank=0,
        capacity_bytes=80 * gb,
        peak_bytes=60 * gb,
        steady_peak_bytes=59 * gb,
        first_bytes=50 * gb,
        last_bytes=None,
        allocations_per_step=2.5,
        frees_per_step=2.5,
        allocated_bytes_per_step=None,
        source="calls",
    )
    analysis = make_analysis(by_hand(), memory=Memory(ranks=(rank,), expected=None, lacking=(), kept_bytes=None))
    assert ["0", "80 GB", "60 GB", "59 GB", "50 GB", "–", "2.5"] in rows_of(analysis)
    assert "Memory: the allocator reserves up to 60 GB of a GPU, 20 GB to spare." in " ".join(
        line for table in theory_tables(analysis, summarise(analysis)) for line in table.lines
    )


def test_a_hang_tells_what_each_rank_did_last() -> None:
    doing = Activity(open_ranges=("step", "<b>"), os_call="recvmsg", last_call_open=True, step=5, idle_ns=3_000_000_000)
    hang = Hang(
        verdict="order_inversion",
        communicator="0xa",
        description=None,
        seq=7,
        op="all_gather",
        missing_ranks=(),
        waiting_ranks=(0, 1),
        ahead_ranks=(),
        behind_ranks=(),
        culprits=(),
        cycle=(Waiting(rank=0, communicator="0xa", seq=7, op="all_gather", waits_for=1),),
        mismatches=(
            Mismatch(
                verdict="size_mismatch",
                communicator="0xa",
                seq=7,
                op="all_gather",
                ranks=(1,),
                expected="4 MB",
                found=(((0,), "4 MB"), ((1,), "8 MB")),
            ),
        ),
        last_activity=(
            LastActivity(rank=0, communicator="0xa", seq=7, op="all_gather", state="started", activity=doing),
            LastActivity(rank=1, communicator=None, seq=None, op=None, state=None, activity=Activity()),
        ),
        step=5,
        module=None,
        lacking=(),
        notes=("1 dump was cut",),
    )
    analysis = make_analysis(by_hand(), hang=hang)
    page = Page(render_html(analysis, make_timeline(by_hand())))
    assert [
        "0",
        "all gather 7 of 0xa",
        "started",
        "5",
        "step > <b>",
        "recvmsg, not returned",
        "3.00 s",
    ] in page.rows
    assert ["1", "–", "–", "–", "–", "–", "–"] in page.rows
    assert "Rank 0 is inside all gather 7 of 0xa and waits for rank 1." in page.flat
    assert "size mismatch at 7 of 0xa: rank 0 4 MB; rank 1 8 MB." in page.flat
    assert "1 dump was cut." in page.flat


def test_the_page_tells_how_to_get_json() -> None:
    analysis = make_analysis(by_hand())
    captures = tuple(replace(analysis.captures[0], path=f"/runs/a b/r{n} $x.sqlite") for n in range(5))
    quoted = " ".join(f"'r{n} $x.sqlite'" for n in range(4))
    assert json_line(analysis) == "tracekit analyze run1.sqlite --json analysis.json"
    assert json_line(replace(analysis, captures=captures)) == f"tracekit analyze {quoted} … --json analysis.json"
