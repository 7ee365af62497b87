"""Words for efficiency and memory, from values made by hand."""

from dataclasses import replace

from tests.report.builders import by_hand, make_analysis
from tracekit.report.theory import memory_lines, roofline, speed_words, theory_lines
from tracekit.results import Efficiency, Memory, MemoryNeed, RankMemory

USED = Efficiency(
    tokens_per_s=None,
    mfu=None,
    hfu=None,
    flops_per_token=None,
    peak_tflops=None,
    formula=None,
    reason="the tokens of a step are not known",
    bound_by="compute",
    shares={"compute": 0.7, "link": 0.1, "wait": 0.1, "launch": 0.07, "copy": 0.03},
)


def test_what_the_step_is_bound_by_and_the_links_speed_in_one_line() -> None:
    analysis = replace(make_analysis(by_hand()), efficiency=USED)
    assert roofline(analysis) == "bound by compute (70 %) · all-gather at 325 GB/s of 450 (NVLink)"
    assert "of a step: compute 70 %, link 10 %, wait 10 %, launch 7 %, copy 3 %" in list(theory_lines(analysis))


def test_without_a_peak_the_speed_alone_and_without_either_nothing() -> None:
    analysis = make_analysis(by_hand())
    bare = tuple(replace(row, by_size=()) for row in analysis.collectives)
    assert list(speed_words(replace(analysis, collectives=bare))) == ["all-gather at 325 GB/s"]
    assert roofline(replace(analysis, collectives=())) is None


def test_memory_names_what_is_unknown() -> None:
    rank = RankMemory(
        rank=3,
        capacity_bytes=80_000_000_000,
        peak_bytes=30_000_000_000,
        steady_peak_bytes=30_000_000_000,
        first_bytes=None,
        last_bytes=None,
        allocations_per_step=12.0,
        frees_per_step=11.5,
        allocated_bytes_per_step=None,
        source="calls",
    )
    need = MemoryNeed(
        weights=2_000_000_000, gradients=1_000_000_000, optimizer=6_000_000_000, gathered=0, activations=None
    )
    found = Memory(ranks=(rank,), expected=need, lacking=("activations",), kept_bytes=None)
    assert list(memory_lines(found)) == [
        "memory: the allocator reserves up to 30 GB of a GPU, 50 GB to spare",
        "memory expected: weights 2.0 GB, gradients 1.0 GB, optimizer 6.0 GB, gathered units 0 B, activations unknown",
        "memory calls: rank 3 allocates 12.0 and frees 11.5 times a step",
    ]
    unknown = Memory(
        ranks=(replace(rank, peak_bytes=None, allocations_per_step=None, frees_per_step=None),),
        expected=None,
        lacking=(),
        kept_bytes=None,
    )
    assert list(memory_lines(unknown)) == []
    assert (unknown.peak_bytes, unknown.spare_bytes, unknown.gap_bytes) == (None, None, None)
