from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from fractions import Fraction

import pytest
from builders import (
    MS,
    Job,
    by_hand,
    make_analysis,
    many_waiting,
    simulate,
    some_findings,
    some_gaps,
    straggler,
    waiting_by_hand,
    with_waits,
)

from tracekit import __version__
from tracekit.report.text import render_text
from tracekit.results import Analysis, Clock, Collective, Confidence, Evidence, Finding, Severity, SkippedRule
from tracekit.timeline import Kind

HOSTILE = "[bold red]x[/] \x1b[31mred\x1b[0m :smile: \r\n 矩阵乘法 " + "y" * 300


def plain(analysis: Analysis, width: int = 80, *, unicode: bool = True, verbose: bool = False) -> str:
    return render_text(analysis, width=width, color=False, unicode=unicode, verbose=verbose)


def cells(line: str) -> int:
    """Width in a terminal, by the Unicode database."""
    return len(line) + sum(unicodedata.east_asian_width(c) in "WF" for c in line)


def test_whole_summary_counted_by_hand() -> None:
    # Mean of two ranks: compute (60 + 80) / 2, exposed (30 + 10) / 2, copy 3, idle 7; overlap (10 + 30) / (40 + 40).
    # Whole capture: three gathers, (3 x 30 + 3 x 10) / 2 exposed a rank. A bar has 43 cells for 100 ms; rank 0:
    # 25.8 + 12.9 + 1.29 + 3.01 cells, the two left over go to the remainders .9 and .8.
    assert plain(make_analysis(by_hand())).splitlines() == [
        f"tracekit {__version__} · run1.sqlite · 2 ranks, H100 80GB HBM3 · steps 1-2 (2 of 3)",
        "",
        "20 % of a step is exposed communication.",
        "20.0 of 100.0 ms pass with communication alone. Compute hides 50 % of the",
        "communication. Of the exposed communication 100 % unexplained.",
        "",
        "Mean step  100.0 ms = 70.0 compute + 20.0 exposed comm + 3.0 copy + 7.0 idle",
        "      median 100.0 ms · p95 100.0 ms · overlap 0.50",
        "      all-gather at 325 GB/s of 450 (NVLink)",
        "",
        "█ compute  ▓ exposed comm  ▞ exposed copy  · idle",
        "rank" + " " * 47 + "compute exposed ms  overlap",
        "   0  " + "█" * 26 + "▓" * 13 + "▞" + "·" * 3 + "     60.0       30.0     0.25",
        "   1  " + "█" * 35 + "▓" * 4 + "▞" + "·" * 3 + "     80.0       10.0     0.75",
        "Lost, ms  ▓ unknown 20.0  · unknown 7.0",
        "",
        "Collectives, whole capture, mean a rank    in all  exposed ms  overlap  bus GB/s",
        "  all-gather 0x5f1c0d7e22aa9b04                 3        60.0     0.50       325",
    ]


@pytest.mark.parametrize("slow_rank", [None, 0, 3])
def test_identity_adds_up_as_shown(slow_rank: int | None) -> None:
    text = plain(make_analysis(simulate(slow_rank=slow_rank)))
    found = re.search(
        r"Mean step +([\d.]+) ms = ([\d.]+) compute \+ ([\d.]+) exposed comm \+ ([\d.]+) copy \+ ([\d.]+) idle", text
    )
    assert found
    whole, *parts = map(Fraction, found.groups())
    assert sum(parts) == whole


def hostile_analysis() -> Analysis:
    analysis = make_analysis(simulate(), **some_gaps())
    ranks = tuple(replace(rank, device_name=HOSTILE, rank=rank.rank + 100_000) for rank in analysis.ranks)
    captures = (
        replace(analysis.captures[0], path="/a/" + HOSTILE.replace("/", ""), diagnostics=(HOSTILE,), notes=(HOSTILE,)),
    )
    finding = Finding(
        rule="TK999",
        severity=Severity.ERROR,
        title=HOSTILE,
        ranks=(100_001,),
        steps=(),
        cost_ns=100 * MS,
        gain_ns=None,
        evidence=(Evidence(metric=HOSTILE, value=HOSTILE, unit=HOSTILE),),
        fix=HOSTILE,
    )
    return replace(
        analysis,
        ranks=ranks,
        captures=captures,
        findings=(finding,) * 5,
        skipped_rules=(SkippedRule(rule="TK998", reason=HOSTILE, capture_with=HOSTILE),),
        remedies=((HOSTILE, HOSTILE),),
        collectives=tuple(replace(c, communicator=HOSTILE, op=HOSTILE) for c in analysis.collectives),
    )


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("unicode", [False, True])
@pytest.mark.parametrize("width", [40, 61, 80, 132])
def test_no_line_is_wider_than_asked(width: int, unicode: bool, verbose: bool) -> None:
    jobs = [
        make_analysis(simulate(), findings=some_findings(), **some_gaps()),
        make_analysis(simulate(ranks=1, comm=False), steps=False),
        hostile_analysis(),
        with_waits(hostile_analysis(), lambda r, s: 1.0, lambda r, s: 0.5),
        waiting_by_hand(stragglers=(straggler(1, verdict="undecided"),)),
    ]
    for analysis in jobs:
        text = plain(analysis, width, unicode=unicode, verbose=verbose)
        assert max(map(cells, text.splitlines())) <= width
        assert not any(line.endswith(" ") for line in text.splitlines())


def test_names_are_shown_and_not_interpreted() -> None:
    text = plain(hostile_analysis(), verbose=True)
    flat = re.sub(r"\s+", " ", text)
    assert "[bold red]x[/] �[31mred�[0m :smile: �� 矩阵乘法" in flat
    coloured = render_text(hostile_analysis(), width=80, color=True, unicode=True, verbose=True)
    assert "\x1b[31mred" not in coloured
    assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]", coloured)


def test_colour_only_when_asked() -> None:
    analysis = make_analysis(simulate(), findings=some_findings())
    assert "\x1b" not in plain(analysis)
    coloured = render_text(analysis, width=80, color=True, unicode=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain(analysis)


def test_environment_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = make_analysis(simulate())
    before = render_text(analysis, width=80, color=True, unicode=True)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "20"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert render_text(analysis, width=80, color=True, unicode=True) == before
    assert "\x1b" not in plain(analysis)


def test_ascii_for_terminals_without_utf8() -> None:
    text = plain(make_analysis(by_hand()), unicode=False)
    assert text.isascii()
    assert "   0  " + "#" * 26 + "c" * 13 + "m" + "." * 3 in text
    assert plain(hostile_analysis(), unicode=False, verbose=True).isascii()


def test_without_steps_it_says_so() -> None:
    flat = " ".join(plain(make_analysis(by_hand(), steps=False)).split())
    assert "No steps in this capture. Figures are for the whole of it. Wrap the loop body in" in flat
    # 300 ms a rank: compute 210, exposed 60, copy 9, idle 3 x 7 on the mean
    assert "Capture 300.0 ms = 210.0 compute + 60.0 exposed comm + 9.0 copy + 21.0 idle" in flat
    assert "median" not in flat


def test_without_communication_the_ratio_is_unknown_not_zero() -> None:
    text = plain(make_analysis(simulate(comm=False)))
    assert "no communication" in text
    assert "overlap 0" not in text
    assert re.search(r"^   0  .* 0\.0        –$", text, re.MULTILINE)


def test_many_ranks_become_the_oddest_the_median_and_one_line() -> None:
    text = plain(make_analysis(simulate(ranks=512, steps=3, layers=2, slow_rank=77)))
    bars = re.findall(r"^ *(\d+)  █", text, re.MULTILINE)
    assert len(bars) == 5
    assert "77" in bars
    assert "507 more ranks: " in text


def test_sixteen_ranks_still_have_a_bar_each() -> None:
    text = plain(make_analysis(simulate(ranks=16, steps=3, layers=2)))
    assert len(re.findall(r"^ *\d+  █", text, re.MULTILINE)) == 16
    assert "more rank" not in text


def test_findings_lead_and_name_their_rank() -> None:
    text = plain(make_analysis(simulate(), findings=some_findings(cost_ns=10 * MS)))
    assert text.splitlines()[2].startswith("Rank 2 computes slowly; its peers wait")
    assert "It costs 10.0 of 41.3 ms a step, 24 %. Without it a step takes 29.3 ms." in text
    marked = re.findall(r"^ *(\d+)  █.* <$", text, re.MULTILINE)
    assert marked == ["2"]
    assert re.search(r"^1 error    TK201   12\.0 ms  29 %  Rank 2", text, re.MULTILINE)
    # 12 of 41.3 ms is 29 %, of 4 ranks x 24 hours.
    assert "Fixing it saves 28 of 96 GPU-hours a day." in " ".join(text.split())


def test_a_loss_that_findings_leave_unexplained_leads() -> None:
    # The findings explain 0.15 ms of 20 ms of exposed communication.
    text = plain(make_analysis(by_hand(), findings=some_findings(cost_ns=100_000)))
    assert text.splitlines()[2] == "20 % of a step is exposed communication."


@pytest.mark.parametrize(("unknown_ms", "said"), [(0.9, None), (1, "5 %"), (10, "50 %")])
def test_how_much_of_the_communication_is_unexplained(unknown_ms: float, said: str | None) -> None:
    """Of 20 ms exposed a step, on both ranks."""
    analysis = make_analysis(by_hand())
    split = {"unknown": round(unknown_ms * MS), "bandwidth": round((20 - unknown_ms) * MS)}
    ranks = tuple(
        replace(rank, steps=tuple(replace(step, exposed_comm_by_cause=split) for step in rank.steps))
        for rank in analysis.ranks
    )
    text = " ".join(plain(replace(analysis, ranks=ranks)).split("\n\n")[1].split())
    assert (f"Of the exposed communication {said} unexplained." in text) if said else "unexplained" not in text


def test_what_is_hardly_known_never_leads() -> None:
    """It keeps its place in the list, and says why."""
    first, second, note = some_findings(cost_ns=12 * MS)
    low = replace(first, confidence=Confidence.LOW, confidence_reason="53 % of launches are lost")
    text = plain(make_analysis(simulate(), findings=(low, second, note)))
    assert text.splitlines()[2].startswith("Each forward all-gather starts only when")
    assert re.search(r"^1 error    TK201 ", text, re.MULTILINE)
    assert "low confidence: 53 % of launches are lost" in " ".join(text.split())
    assert (
        plain(make_analysis(simulate(), findings=(first, second, note))).splitlines()[2].startswith("Rank 2 computes")
    )


def test_hang_leads_though_it_has_no_cost() -> None:
    hang = replace(some_findings()[0], title="Rank 1 never launched all-gather 118", cost_ns=None, gain_ns=None)
    assert plain(make_analysis(by_hand(), findings=(hang,))).splitlines()[2] == "Rank 1 never launched all-gather 118."


def test_nothing_stands_out() -> None:
    text = plain(make_analysis(simulate(layers=40, comm=False, slow_rank=None)))
    assert re.search(r"^Nothing stands out: 9[89] % of the step is compute\.$", text, re.MULTILINE)


def test_causes_take_their_families_place_in_the_bars() -> None:
    analysis = make_analysis(by_hand())
    ranks = []
    for rank in analysis.ranks:
        steps = tuple(
            replace(
                step,
                exposed_comm_by_cause={
                    "peer_wait": step.account.exposed_comm_ns // 2,
                    "no_prefetch": step.account.exposed_comm_ns // 2,
                },
                idle_by_cause={"sync_call": step.account.idle_ns},
            )
            for step in rank.steps
        )
        ranks.append(replace(rank, steps=steps))
    text = plain(replace(analysis, ranks=tuple(ranks)), 100)
    assert "█ compute  ▚ peer wait  ▒ schedule  ▞ exposed copy  ░ host" in text
    # 65 cells: compute 39, wait and schedule 9.75 each, copy 1.95, host 4.55
    assert "   0  " + "█" * 39 + "▚" * 10 + "▒" * 10 + "▞" * 2 + "░" * 4 + "     60.0     15.0     0.25" in text


def test_a_capture_of_no_length() -> None:
    job = Job([[(5, 5, 7, Kind.COMPUTE, "k")]], [[5]], [5])
    text = plain(make_analysis(job, steps=False))
    assert "Capture  0.0 µs = 0.0 compute + 0.0 exposed comm + 0.0 copy + 0.0 idle\n" in text


def test_what_cannot_be_told_comes_with_its_flag() -> None:
    text = plain(make_analysis(simulate(), **some_gaps()))
    assert "  what the host waits for: capture with --trace=cuda,nvtx,osrt\n" in text
    assert "  TK501 skipped, no memory events: capture with --cuda-memory-usage=true\n" in text


def test_lists_are_short_until_asked() -> None:
    one = make_analysis(simulate()).collectives[0]
    many: tuple[Collective, ...] = tuple(replace(one, op=f"op_{i}", exposed_ns=1000 - i) for i in range(9))
    analysis = make_analysis(simulate(), collectives=many)
    assert "op-3" not in plain(analysis)
    assert "6 more with --verbose" in plain(analysis)
    assert "op-8" in plain(analysis, verbose=True)


def test_bandwidth_by_size_when_verbose() -> None:
    text = plain(make_analysis(by_hand()), verbose=True)
    assert re.search(r"^Bandwidth by size +size +count +transfer +bus GB/s +of peak$", text, re.MULTILINE)
    assert re.search(r"all-gather 0x5f1c.* 403 MB +\d+ +930\.0 µs +325 +72 % of 450$", text, re.MULTILINE)
    assert "Bandwidth by size" not in plain(make_analysis(by_hand()))


def test_what_the_verdict_rests_on_when_verbose() -> None:
    """Figures of every rank, and not only of those with a verdict."""
    analysis = make_analysis(by_hand())
    ranks = [
        replace(rank, wait_caused_ns=i * MS, caused_share=float(i), last_arrivals_share=0.25, compute_ratio=1 + i / 10)
        for i, rank in enumerate(analysis.ranks)
    ]
    text = plain(replace(analysis, ranks=tuple(ranks)), verbose=True)
    assert re.search(r"^  1 +\S+ +\S+ +1\.0 +100 % +1\.10× +25 %$", text, re.MULTILINE)


def test_three_findings_lead_with_place_cost_and_advice() -> None:
    """What, where, how much and what to do, before bars and tables; what costs nothing comes when asked for."""
    analysis = make_analysis(simulate(), findings=some_findings())
    text = plain(analysis)
    block = text[text.index("Findings, largest gain first") : text.index("█ compute")].splitlines()
    wall = analysis.steady.account.wall_ns if analysis.steady else 0
    assert block[1].startswith("1 error    TK201    5.0 ms")
    assert (
        f"  rank 2, every step; costs 3.0 ms and holds up more; without it {(wall - 5 * MS) / MS:.1f} ms a step"
        in block
    )
    assert "  all ranks, every step; that is its cost: the gain is not known" in block
    assert "  Try  Call set_modules_to_forward_prefetch on each block, one block ahead." in block
    assert "1 more finding with --verbose" in block
    assert not any("TK902" in line for line in block)
    assert "TK902" in plain(analysis, verbose=True)


def test_advice_is_cut_at_a_sentence() -> None:
    long = replace(some_findings()[0], fix=" ".join(f"Sentence number {i} ends here." for i in range(20)))
    text = plain(make_analysis(simulate(), findings=(long,)))
    # 3 lines of 73 characters hold 7 sentences of 28 or 29 and a space each.
    flat = " ".join(text.split())
    assert "Sentence number 6 ends here." in flat
    assert "number 7" not in flat
    assert "all advice: --verbose, or tracekit explain TK201" in text
    assert "number 19" in plain(make_analysis(simulate(), findings=(long,)), verbose=True)


def test_lost_time_is_named_by_cause() -> None:
    # Rank 0 waits 20 and 10 of its 30 exposed ms in the steady steps, rank 1 0 and 5 of 10: mean (30 + 5) / 4.
    assert "Lost, ms  ▓ unknown 11.2  ▚ peer_wait 8.8  · unknown 7.0\n" in plain(waiting_by_hand())


def test_evidence_and_advice_when_verbose() -> None:
    text = plain(make_analysis(simulate(), findings=some_findings()), verbose=True)
    assert "  · same kernel and grid, rank 2 over peers: 1.22 × (threshold 1.05 ×)\n" in text
    assert "  Try  Call set_modules_to_forward_prefetch on each block, one block ahead.\n" in text


@pytest.mark.parametrize(
    ("method", "note"),
    [
        ("session_start", "Clocks are aligned by when"),
        (None, "cannot be aligned"),
        ("not_aligned", "not aligned, as asked"),
    ],
)
def test_weak_clocks_are_told(method: str | None, note: str) -> None:
    analysis = make_analysis(simulate())
    clock = Clock(offset_ns=0, drift_ppm=None, uncertainty_ns=1_000_000, method=method)
    ranks = (analysis.ranks[0], *(replace(rank, clock=clock) for rank in analysis.ranks[1:]))
    assert note in plain(replace(analysis, ranks=ranks))
    assert note not in plain(analysis)


def test_text_needs_neither_templates_nor_charts() -> None:
    code = "import sys, tracekit.report.text; print(sorted({'jinja2', 'plotly', 'pandas'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_heat_maps_counted_by_hand() -> None:
    # Shades are quarters of the largest steady cell: of 20 ms waited, of 10 ms caused. Step 0 is warm-up.
    text = plain(waiting_by_hand(stragglers=(straggler(1),)), verbose=True)
    block = text[text.index("Waits for its peers") : text.index("Collectives, whole")].splitlines()
    assert block == [
        "Waits for its peers, ms a step  · 0  █ 20.0",
        "step        0       1       2",
        "   0  ██ 25.0 ██ 20.0 ▒▒ 10.0",
        "   1  ··  0.0 ··  0.0 ░░  5.0 <",
        "",
        "Makes others wait, ms a step over all ranks  · 0  █ 10.0",
        "step        0       1       2",
        "   0  ··  0.0 ··  0.0 ░░  2.5",
        "   1  ██ 12.5 ██ 10.0 ▒▒  5.0 <",
        "left out of means: 0",
        "",
    ]
    assert "Waits for its peers" not in plain(waiting_by_hand())
    assert "Waits for its peers" not in plain(make_analysis(by_hand()), verbose=True)
    assert "   0  ## 25.0 ## 20.0 ++ 10.0" in plain(waiting_by_hand(), unicode=False, verbose=True)


def test_heat_maps_of_many_ranks_stay_short() -> None:
    _, analysis = many_waiting(64, 200, slow_rank=13)
    lines = plain(analysis, verbose=True).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Waits for"))
    # 16 rows at most: 13 alone, the others in eights; 74 columns at most: the one of warm-up, and 199 / 3.
    rows = [line.split()[0] for line in lines[first + 2 : first + 11]]
    assert rows == ["0-7", "8-15", "13", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"]
    assert "   13 " + "·" * 68 + " <" in lines
    assert "  0-7 " + "█" * 68 in lines
    assert "ranks that share a row: mean, then sum; left out of means: 0" in lines


def test_the_straggler_leads_with_its_reason_and_its_mark() -> None:
    lead = replace(some_findings(8 * MS)[0], ranks=(1,), title="Rank 1 computes slowly, and the others wait for it")
    rest = replace(lead, rule="TK100", title="Communication runs alone", ranks=(0, 1), cost_ns=9 * MS, gain_ns=None)
    lead = replace(lead, gain_ns=None)
    analysis = waiting_by_hand(findings=(rest, lead), stragglers=(straggler(1),))
    lines = plain(analysis).splitlines()
    assert lines[2] == "Rank 1 computes slowly, and the others wait for it."
    assert " ".join(lines[3:6]) == (
        "Its kernels take 1.22× as long as elsewhere. The waiting costs 8.0 of 100.0 ms a step, 8 %. "
        "That is 3.8 of 48 GPU-hours a day. "
        # 35 of the 80 ms exposed on both ranks in the steady steps are waits.
        "Of the exposed communication 56 % unexplained."
    )
    assert "GPU-hours" not in plain(replace(analysis, steady=None))  # a capture without steps is no sample of a day
    # Steady steps: rank 0 waits (20 + 10) / 2, rank 1 (0 + 5) / 2.
    figures = {line.split()[0]: line.split()[2:] for line in lines if re.match(r" +\d +█", line)}
    assert figures == {"0": ["60.0", "15.0", "0.25"], "1": ["80.0", "2.5", "0.75", "<"]}
    assert (
        plain(waiting_by_hand(findings=(rest, replace(lead, cost_ns=4 * MS)))).splitlines()[2]
        == "20 % of a step is exposed communication."
    )
    costly = replace(rest, cost_ns=33 * MS)
    assert plain(waiting_by_hand(findings=(costly, lead))).splitlines()[2] == "Communication runs alone."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cause": "slow_compute", "kernel_ratio": None}, "It computes 1.21× as long as its peers."),
        (
            {"cause": "host_stall", "idle_excess_ns": 3 * MS},
            "Its GPU is idle for 3.0 ms a step longer than its peers'.",
        ),
        ({"cause": "late_launch"}, "It causes 96 % of all waiting."),
        ({"cause": "data", "idle_excess_ns": None}, "It causes 96 % of all waiting."),
    ],
)
def test_each_cause_has_its_reason(changes: dict[str, object], said: str) -> None:
    finding = replace(some_findings(20 * MS)[0], ranks=(1,), gain_ns=None)
    analysis = waiting_by_hand(findings=(finding,), stragglers=(straggler(1, **changes),))
    assert said in " ".join(plain(analysis).split())


def test_what_a_step_takes_at_the_peers_pace_stands_with_the_reason() -> None:
    """GIVEN steps of 100 ms and a finding that gains 31 ms, THEN the cost and the gain are not mixed."""
    finding = replace(some_findings(20 * MS)[0], ranks=(1,), cost_ns=20 * MS, gain_ns=31 * MS)
    said = " ".join(plain(waiting_by_hand(findings=(finding,), stragglers=(straggler(1),))).split())
    assert "; at its peers' pace 69.0 ms a step. The waiting costs 20.0 of 100.0 ms a step, 20 %." in said
    assert "Without it" not in said


def test_ranks_that_take_turns_are_not_marked_where_all_do() -> None:
    finding = replace(some_findings(20 * MS)[0], rule="TK204", ranks=(0, 1))
    turns = tuple(
        straggler(r, verdict="rotating", cause="host_stall", caused_share=s) for r, s in ((1, 0.6), (0, 0.38))
    )
    text = plain(waiting_by_hand(findings=(finding,), stragglers=turns))
    assert "They cause 98 % of all waiting, none of them more than 60 %." in " ".join(text.split())
    assert "<" not in text


def test_undecided_is_said_and_marked_as_such() -> None:
    undecided = straggler(1, verdict="undecided", cause="unknown", caused_share=0.45)
    text = plain(waiting_by_hand(stragglers=(undecided,)))
    assert "Rank 1 causes 45 % of all waiting, 8.0 ms a step; whether it is a straggler is undecided." in " ".join(
        text.split()
    )
    assert re.search(r"^   1  █.* \?$", text, re.MULTILINE)
