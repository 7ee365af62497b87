"""Sharding and efficiency as a reader sees them: what the terminal and the page both say."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.report.words import clean, plural, size
from tracekit.results import Analysis, Sharding, Volume

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
    return words


def rate(value: float) -> str:
    """A rate or a count with three digits: ``67.0 k``, ``1.3 B``."""
    for unit, factor in ((" B", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}" if value < 1000 * factor else f"{value / factor:,.0f}{unit}"
    return f"{value:.3g}"


def theory_lines(analysis: Analysis) -> Iterator[str]:
    """The strategy, what it moves against what it should, and why MFU is what it is or unknown; for those who ask."""
    found, used = analysis.sharding, analysis.efficiency
    if found is not None:
        sure = f" (confidence {found.confidence:g})" if found.confidence else ""
        yield f"{strategy_words(found)}{sure}: {clean('; '.join(found.evidence))}"
        for row in found.volumes:
            yield _volume(row)
    if used is not None:
        if used.bound_by:
            yield f"bound by {used.bound_by}"
        if used.formula and used.mfu is not None:
            yield f"MFU {100 * used.mfu:.1f} % = {used.formula}"
        elif used.reason:
            yield f"MFU unknown: {used.reason}"


def _volume(row: Volume) -> str:
    op = row.op.replace("_", "-")
    moved = "unknown bytes" if row.bytes is None else size(row.bytes)
    expected = f" of {size(row.expected_bytes)} expected" if row.expected_bytes is not None else ""
    return f"{op}: {moved} a step{expected}" + (f"; {row.explanation}" if row.explanation else "")
