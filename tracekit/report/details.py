"""Rows for the lists and tables below the summary, shared by the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracekit.readers.nsys_sqlite import REMEDIES
from tracekit.report.words import Scale, clean, duration, ratio, share, size
from tracekit.results import Analysis, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One communicator and op, with figures as they are shown."""

    op: str
    communicator: str | None
    ranks: int
    count: int
    bytes: int | None
    exposed_ns: float
    """Mean over ranks, a steady step or the whole capture."""
    per_step: bool
    exposed: str
    comm: str
    scale: Scale
    overlap_ratio: float | None
    busbw: str | None
    """GB/s without the unit; None where bytes or transfer time are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """The collectives of one communicator and op with messages of about one size, as they are shown."""

    op: str
    communicator: str | None
    size: str
    """The median message."""
    count: int
    transfer: str
    busbw: str
    """GB/s without the unit; a dash where the op has none."""
    peak: str
    """Share of the link's peak, and the peak; a dash where it is not known."""
    busbw_gbps: float | None
    peak_gbps: float | None


def size_rows(analysis: Analysis) -> list[SizeRow]:
    """Return all size classes, collectives in their order, smallest messages first."""
    return [
        SizeRow(
            op=clean(c.op, 40).replace("_", "-"),
            communicator=clean(c.communicator, 40) if c.communicator else None,
            size=size(each.bytes),
            count=each.count,
            transfer=duration(each.transfer_ns),
            busbw="–" if each.busbw_gbps is None else _gbps(each.busbw_gbps),
            peak="–" if each.peak_share is None else f"{share(each.peak_share, 1)} of {each.peak_gbps:.0f}",
            busbw_gbps=each.busbw_gbps,
            peak_gbps=each.peak_gbps,
        )
        for c in analysis.collectives
        for each in c.by_size
    ]


def why_no_bandwidth(analysis: Analysis) -> str:
    """Return what keeps bus bandwidth from being told, and what would tell it."""
    if not analysis.collectives:
        return "No collectives in this capture."
    if all(c.bytes is None for c in analysis.collectives):
        return f"Message sizes are not known. To have them: {clean(REMEDIES['nccl_payload'][1])}."
    if all(c.transfer_ns is None for c in analysis.collectives if c.bytes is not None):
        return "Transfer times need all ranks of a collective: analyze their captures together."
    return "None of these collectives has a known size, a transfer time and a bus bandwidth."


def _gbps(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def collective_rows(analysis: Analysis) -> list[CollectiveRow]:
    """Return the collectives as rows, most exposed time first, times as the mean over ranks in one unit."""
    ranks = max(1, len(analysis.ranks))
    exposed = [
        c.exposed_ns / ranks if c.exposed_per_step_ns is None else float(c.exposed_per_step_ns)
        for c in analysis.collectives
    ]
    # With steps in the step's own unit, so that the rows can be held against its parts.
    whole = float(analysis.steady.account.wall_ns) if analysis.steady else max(exposed, default=0)
    scale = Scale.of(whole)
    rows = [
        CollectiveRow(
            op=clean(c.op, 40).replace("_", "-"),
            communicator=clean(c.communicator, 40) if c.communicator else None,
            ranks=len(c.ranks),
            count=c.count,
            bytes=c.bytes,
            exposed_ns=ns,
            per_step=c.exposed_per_step_ns is not None,
            exposed=scale.format(ns),
            comm=duration(c.comm_ns / ranks),
            scale=scale,
            overlap_ratio=c.overlap_ratio,
            busbw=None if c.busbw_gbps is None else _gbps(c.busbw_gbps),
        )
        for c, ns in zip(analysis.collectives, exposed, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.exposed_ns)


def evidence_text(evidence: Evidence) -> tuple[str, str, str | None]:
    """Return metric, value and threshold of a piece of evidence in words."""
    unit = evidence.unit
    if evidence.threshold is None:
        threshold = None
    else:
        threshold = share(evidence.threshold, 1) if unit.startswith("of ") else _value(evidence.threshold, unit)
    return clean(evidence.metric).replace("_", " "), _value(evidence.value, unit), threshold


def _value(value: float | int | str | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return f"{clean(value)} {clean(unit, 20)}".rstrip()
    if unit == "ns":
        return duration(value)
    if unit == "ratio":
        return ratio(value)
    if unit.startswith("of "):
        return f"{share(value, 1)} {clean(unit, 40)}"
    number = str(value) if isinstance(value, int) else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{number} {clean(unit, 20)}".rstrip()


def unknowns(analysis: Analysis, *, extras: bool = True) -> list[tuple[str, str | None]]:
    """Return what could not be told, each with what would tell it: remedies first, then skipped rules by reason.

    Without ``extras`` what ordinary captures do not hold is left out.
    """
    lines: list[tuple[str, str | None]] = [(clean(what), clean(how)) for what, how in analysis.remedies]
    rules: dict[tuple[str, str | None], list[str]] = {}
    for skipped in (each for each in analysis.skipped_rules if extras or not each.extra):
        rules.setdefault((skipped.reason, skipped.capture_with), []).append(clean(skipped.rule, 12))
    for (reason, how), codes in rules.items():
        what = f"{listed(dict.fromkeys(codes))} skipped, {clean(reason)}"
        # A flag alone needs a verb before it.
        lines.append((what, f"capture with {clean(how)}" if how and how.startswith("-") else how and clean(how)))
    return list(dict.fromkeys(lines))


def listed(codes: Iterable[str]) -> str:
    """``TK201, TK202 and TK203``."""
    *others, last = codes
    return f"{', '.join(others)} and {last}" if others else last
