"""What to do next about a hang: which process on which host, what to run there, and what its source already tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.results import Hang, LastActivity
from tracekit.runs import few_runs

MOST_PROCESSES = 3
"""Processes that are told one by one."""
MOST_FRAMES = 4
LIBRARIES = ("site-packages/", "dist-packages/", "/torch/", "<frozen ", "/lib/python")
"""Marks frames that are not the user's."""
NEVER_ENDS = ("unfinished", "state_mismatch", "host_blocked")
"""Verdicts that a GPU or the network can be behind."""


def next_steps(hang: Hang, activity: Sequence[LastActivity] | None = None) -> tuple[str, ...]:
    """What to look at, the most telling first; () where nothing stands still.

    ``activity`` is what the ranks did last, where the hang itself does not tell it (one of `Hang.others`).
    """
    if hang.verdict == "not_a_hang":
        return ()
    suspects = hang.culprits or hang.missing_ranks or (() if hang.verdict in NEVER_ENDS else hang.behind_ranks)
    rows = {row.rank: row for row in (hang.last_activity if activity is None else activity)}
    looked_at = [rows[rank] for rank in (suspects or hang.waiting_ranks) if rank in rows]
    steps = [text for row in looked_at[:MOST_PROCESSES] for text in _process(row)]
    if len(looked_at) > MOST_PROCESSES:
        steps.append(f"The same for ranks {few_runs(row.rank for row in looked_at[MOST_PROCESSES:])}.")
    absent = [rank for rank in suspects if rank not in rows]
    if absent:
        ranks = f"rank{'s' if len(absent) > 1 else ''} {few_runs(absent)}"
        steps.append(f"There is no source of {ranks}: see whether the process still lives, and why it wrote none.")
    if hang.verdict in (*NEVER_ENDS, "missing_rank"):
        steps.append(_xid(looked_at))
    if hang.verdict in ("unfinished", "state_mismatch"):
        steps.append(
            "Ask NCCL which ranks it has lost, on any host of the job while it stands: ncclras -v"
            " (NCCL 2.24 or newer, port 28028), then look at the links between those that answer and those that do not."
        )
    return tuple(steps)


def user_frame(frames: Sequence[str]) -> str | None:
    """The innermost frame that is not a library's; the innermost of all where all are."""
    own = [frame for frame in frames if not any(mark in frame for mark in LIBRARIES)]
    return next(iter(own or frames), None)


def _process(row: LastActivity) -> Iterator[str]:
    process, doing = row.process, row.activity
    place = [f"host {process.host}"] if process.host else []
    place += [f"pid {process.pid}"] if process.pid is not None else []
    if process.device is not None or process.pci:
        gpu = "GPU" if process.device is None else f"GPU {process.device}"
        place.append(gpu + (f" at {process.pci}" if process.pci else ""))
    pid = process.pid if process.pid is not None else "PID"
    who = f"rank {row.rank}" + (f" ({', '.join(place)})" if place else "")
    on = f" on {process.host}" if process.host else ""
    yield f"Look at {who}: py-spy dump --pid {pid}{on} shows where its threads are now."
    if frame := user_frame(doing.frames):
        outer = [other for other in doing.frames if other != frame][: MOST_FRAMES - 1]
        under = f", below {', '.join(outer)}" if outer else ""
        yield f"Rank {row.rank} called its last collective from {frame}{under}."
    inside = " > ".join(doing.open_ranges[-MOST_FRAMES:])
    call = f"the call {doing.last_call}" if doing.last_call and doing.last_call_open else None
    if inside or call:
        yield f"Rank {row.rank} is inside {', in '.join(text for text in (inside, call) if text)}."


def _xid(rows: Sequence[LastActivity]) -> str:
    hosts = list(dict.fromkeys(row.process.host for row in rows if row.process.host))
    ranks = [row.rank for row in rows]
    buses = list(dict.fromkeys(row.process.pci for row in rows if row.process.pci))
    theirs = f" on the host of rank{'s' if len(ranks) > 1 else ''} {few_runs(ranks)}" if ranks else " on each host"
    where = f" on {', '.join(hosts[:MOST_PROCESSES])}" if hosts else theirs
    which = f" (the GPU at {', '.join(buses[:MOST_PROCESSES])})" if buses else ""
    return f"Exclude a GPU error: dmesg -T | grep -i xid{where}{which}."
