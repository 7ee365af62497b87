"""The table of ranks: what each computes and waits, what the others wait for it, and its clock."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.metrics.accounting import total
from tracekit.report.summary import steady_steps, told_steps
from tracekit.report.words import Scale, clean, duration, ratio, share
from tracekit.results import Analysis, Clock, Rank, Straggler

MAX_ROWS = 1024
_UNKNOWN = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank as it is shown; a dash where a figure is not known."""

    rank: int
    host: str
    compute: str
    waits: str
    overlap: str
    caused: str
    """Exposed time a step, mean over ranks, that others wait for it."""
    caused_share: str
    """Its share of all waiting."""
    compute_ratio: str
    last: str
    """Share of collectives in which it arrives last."""
    verdict: str
    offset: str
    drift: str
    method: str


@dataclass(frozen=True, slots=True)
class RankTable:
    """The rows, how many there is no room for, and how far the measured clocks can be trusted."""

    rows: tuple[RankRow, ...]
    left_out: int
    clocks_ns: int
    """The largest uncertainty of any clock; 0 where none was measured."""


def rank_rows(analysis: Analysis, scale: Scale) -> RankTable:
    """Return the table, in order of rank."""
    blamed = {straggler.rank: straggler for straggler in analysis.stragglers}
    told = bool(told_steps(analysis))
    ranks = sorted(analysis.ranks, key=lambda rank: rank.rank)
    return RankTable(
        rows=tuple(_row(analysis, rank, scale, blamed.get(rank.rank), told) for rank in ranks[:MAX_ROWS]),
        left_out=max(0, len(ranks) - MAX_ROWS),
        clocks_ns=max((rank.clock.uncertainty_ns or 0 for rank in ranks), default=0),
    )


def _row(
    analysis: Analysis,
    rank: Rank,
    scale: Scale,
    straggler: Straggler | None,
    told: bool,
) -> RankRow:
    steps = steady_steps(analysis, rank)
    account = total([step.account for step in steps]) if steps else None if analysis.steady else rank.totals
    over = max(1, len(steps))
    waited_ns = sum(step.exposed_comm_by_cause.get("peer_wait", 0) for step in steps) / over
    clock = rank.clock
    return RankRow(
        rank=rank.rank,
        host=clean(rank.host, 60) if rank.host else "unknown",
        compute=scale.format(account.compute_ns / over) if account else _UNKNOWN,
        waits=scale.format(waited_ns) if told and steps else _UNKNOWN,
        overlap=ratio(account.overlap_ratio if account else None),
        caused=_UNKNOWN if rank.wait_caused_ns is None else scale.format(rank.wait_caused_ns),
        caused_share=_UNKNOWN if rank.caused_share is None else share(rank.caused_share, 1),
        compute_ratio=_UNKNOWN if rank.compute_ratio is None else f"{rank.compute_ratio:.2f}×",
        last=_UNKNOWN if rank.last_arrivals_share is None else share(rank.last_arrivals_share, 1),
        verdict=_verdict(straggler) if straggler else "",
        offset=_offset(clock),
        drift=_UNKNOWN if clock.drift_ppm is None else f"{clock.drift_ppm:.2f}",
        method=(clock.method or "nothing").replace("_", " "),
    )


def _offset(clock: Clock) -> str:
    if clock.offset_ns is None:
        return "unknown"
    within = f" ± {duration(clock.uncertainty_ns)}" if clock.uncertainty_ns else ""
    return duration(clock.offset_ns) + within


def _verdict(straggler: Straggler) -> str:
    return f"{straggler.verdict}, {straggler.cause.replace('_', ' ')}"
