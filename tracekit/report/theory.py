"""Sharding and efficiency as a reader sees them: what the terminal and the page both say."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.report.words import clean, plural, size
from tracekit.results import Analysis, Memory, Sharding, Volume

NO_STRATEGY = ("none", "undecided")
SURE = 0.5
"""Strategies of less confidence are guesses, and stand in no headline."""


def strategy_words(found: Sharding) -> str:
    """``ZeRO-3 / FSDP over 8 ranks``; for hybrid sharding with its replicas."""
    if found.strategy in NO_STRATEGY:
        return {"none": "no sharding", "undecided": "sharding undecided"}[found.strategy]
    if found.strategy == "DDP":
        return f"DDP on {plural(found.replicas, 'rank')}" if found.replicas else "DDP"
    over = f" over {plural(found.shards, 'rank')}" if found.shards else ""
    return f"{found.strategy}{over}" + (f" x {found.replicas} replicas" if (found.replicas or 1) > 1 else "")


def usage_words(analysis: Analysis) -> list[str]:
    """Tokens a second and MFU, as far as they are known."""
    used = analysis.efficiency
    if used is None:
        return []
    words = []
    if used.tokens_per_s is not None:
        words.append(f"{rate(used.tokens_per_s)} tokens/s")
    if used.mfu is not None:
        words.append(f"MFU {100 * used.mfu:.1f} %")
        if used.hfu is not None and used.hfu > used.mfu:
            words.append(f"HFU {100 * used.hfu:.1f} %")
    elif words:
        words.append("MFU unknown")
    return words


def rate(value: float) -> str:
    """A rate or a count with three digits: ``67.0 k``, ``1.3 B``."""
    for unit, factor in ((" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}" if value < 1000 * factor else f"{value / factor:,.0f}{unit}"
    return f"{value:.3g}"


BOUND_BY = {"dependency": "operations that wait for others", "unknown": "idle time of unknown cause"}
"""What needs more than the word itself."""


def roofline(analysis: Analysis) -> str | None:
    """What the step is bound by, and how fast its most exposed op moves bytes: one line, if anything is known."""
    used = analysis.efficiency
    words = []
    if used is not None and used.bound_by:
        words.append(
            f"bound by {BOUND_BY.get(used.bound_by, used.bound_by)} ({100 * used.shares[used.bound_by]:.0f} %)"
        )
    speeds = list(speed_words(analysis))
    return " · ".join([*words, *speeds[:1]]) or None


def speed_words(analysis: Analysis) -> Iterator[str]:
    """Bus bandwidth of each op against its link's peak, most exposed first."""
    told = set()
    for row in analysis.collectives:
        if row.busbw_gbps is None or row.op in told:
            continue
        told.add(row.op)
        peak = next((each.peak_gbps for each in row.by_size if each.peak_gbps), None)
        of = f" of {peak:.0f} (NVLink)" if peak else ""
        yield f"{clean(row.op, 30).replace('_', '-')} at {row.busbw_gbps:.0f} GB/s{of}"


def memory_lines(found: Memory) -> Iterator[str]:
    """What was reserved, and what should be."""
    if found.peak_bytes is not None:
        spare = f", {size(found.spare_bytes)} to spare" if found.spare_bytes is not None else ""
        yield f"memory: the allocator reserves up to {size(found.peak_bytes)} of a GPU{spare}"
    need = found.expected
    if need is not None:
        parts = (
            ("weights", need.weights),
            ("gradients", need.gradients),
            ("optimizer", need.optimizer),
            ("gathered units", need.gathered),
            ("activations", need.activations),
        )
        said = ", ".join(f"{name} {size(value) if value is not None else 'unknown'}" for name, value in parts)
        whole = f"{size(need.total)} = " if need.total is not None else ""
        yield f"memory expected: {whole}{said}"
    per_step = [rank for rank in found.ranks if rank.allocations_per_step or rank.frees_per_step]
    if per_step:
        most = max(per_step, key=lambda rank: rank.allocations_per_step or 0)
        yield (
            f"memory calls: rank {most.rank} allocates {most.allocations_per_step:.1f} and frees "
            f"{most.frees_per_step:.1f} times a step"
        )


def theory_lines(analysis: Analysis) -> Iterator[str]:
    """The strategy, what it moves against what it should, and why MFU is what it is or unknown; for those who ask."""
    found, used = analysis.sharding, analysis.efficiency
    if found is not None:
        sure = f" (confidence {found.confidence:g})" if found.confidence else ""
        yield f"{strategy_words(found)}{sure}: {clean('; '.join(found.evidence))}"
        for row in found.volumes:
            yield _volume(row)
    if used is not None:
        if used.shares:
            yield "of a step: " + ", ".join(f"{name} {100 * part:.0f} %" for name, part in used.shares.items())
        if speeds := ", ".join(speed_words(analysis)):
            yield f"bus bandwidth: {speeds}"
        if used.formula and used.mfu is not None:
            yield f"MFU {100 * used.mfu:.1f} % = {used.formula}"
        elif used.reason:
            yield f"MFU unknown: {used.reason}"
    if analysis.memory is not None:
        yield from memory_lines(analysis.memory)


def _volume(row: Volume) -> str:
    op = row.op.replace("_", "-")
    moved = "unknown bytes" if row.bytes is None else size(row.bytes)
    expected = f" of {size(row.expected_bytes)} expected" if row.expected_bytes is not None else ""
    return f"{op}: {moved} a step{expected}" + (f"; {row.explanation}" if row.explanation else "")
