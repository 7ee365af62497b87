"""The last instants before a job stood still, as a drawing: what each rank had launched, and then nothing.

The standstill is as long as the capture went on, which says little: it is drawn as a narrow band and its length written
into it. Each rank is counted back from the end of its own capture.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.report.words import clean, duration
from tracekit.results import Hang, LastActivity

WIDTH, LEFT, BAND, RIGHT = 1000, 90, 700, 985
"""Width of the drawing; where time begins, where the standstill's band begins, and where it ends (px)."""
ROW, HEAD = 24, 26
ROWS_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank."""

    y: int
    label: str
    marked: bool
    """It is one to look at first."""
    stopped_x: int
    """Where it was last active."""
    pending_x: int | None
    """Where the earliest collective that it has not finished was launched; None where it has none."""
    text: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """The drawing."""

    height: int
    rows: tuple[Row, ...]
    length: str
    """How long nothing has happened."""
    before: str
    """How much time is drawn before it."""
    left_out: int


def standstill(hang: Hang) -> Standstill | None:
    """The drawing; None where no source tells times."""
    known = [row for row in hang.last_activity if row.activity.idle_ns is not None]
    if not known:
        return None
    first = set(hang.culprits) or set(hang.behind_ranks)
    shown = sorted(known, key=lambda row: (row.rank not in first, row.rank))[:ROWS_SHOWN]
    quiet_ns = min(row.activity.idle_ns or 0 for row in known)
    starts = [_start_ns(row) for row in shown]
    before_ns = max([1, *(start - quiet_ns for start in starts)])
    return Standstill(
        height=HEAD + ROW * len(shown),
        rows=tuple(_row(row, HEAD + ROW * i, row.rank in first, quiet_ns, before_ns) for i, row in enumerate(shown)),
        length=duration(quiet_ns),
        before=duration(before_ns),
        left_out=len(known) - len(shown),
    )


def _start_ns(row: LastActivity) -> int:
    """How long before the end of its capture the first thing was that is drawn of a rank."""
    launched = [pending.before_end_ns for pending in row.activity.pending[:1]]
    return max([row.activity.idle_ns or 0, *launched])


def _row(row: LastActivity, y: int, marked: bool, quiet_ns: int, before_ns: int) -> Row:
    def x(before_end_ns: int) -> int:
        part = min(1.0, max(0.0, (before_end_ns - quiet_ns) / before_ns))
        return round(BAND - 8 - (BAND - 8 - LEFT - 8) * part)

    pending, idle_ns = row.activity.pending, row.activity.idle_ns or 0
    op = (row.op or "collective").replace("_", "-")
    if pending:
        count = row.activity.pending_count
        more = f", {count - 1:,} more" if count > 1 else ""
        text = f"{clean(pending[0].name, 20)} {pending[0].seq}{more}: not finished"
    elif row.seq is not None:
        text = f"nothing launched after {op} {row.seq}"
    else:
        text = "no collective is known of it"
    return Row(
        y=y,
        label=f"rank {row.rank}",
        marked=marked,
        stopped_x=x(idle_ns),
        pending_x=x(pending[0].before_end_ns) if pending else None,
        text=clean(text, 44),
        about=clean(f"rank {row.rank}: {text}; last active {duration(idle_ns)} before the end of its capture", 300),
    )
