"""Who waits for whom in a laid-out job, from the moments at which the ranks arrive at each collective.

All on the job's one clock: found before the captures' clocks come into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layout import Job
from placed import Capture, Collective, Op
from truth import account


def peer_waits(job: Job, steps: Iterable[int]) -> dict[str, Any]:
    """Waits in the collectives launched in ``steps``: how long each rank waits, and at how much of it each was last.

    A rank waits from its own arrival at a collective to that of the last rank. Collectives that some member did not
    capture are left out.
    """
    wanted = set(steps)
    by_rank, by_last = dict.fromkeys(range(job.world_size), 0), dict.fromkeys(range(job.world_size), 0)
    waiting: dict[int, list[tuple[int, int]]] = {number: [] for number in by_rank}
    for made in captured_everywhere(job.collectives):
        if wanted.isdisjoint(op.step for op in made.ops.values() if op.step is not None):
            continue
        arrivals = {number: op.start for number, op in made.ops.items()}
        last = max(arrivals, key=arrivals.__getitem__)
        for number, start in arrivals.items():
            by_rank[number] += arrivals[last] - start
            by_last[last] += arrivals[last] - start
            waiting[number].append((start, arrivals[last]))
    return {
        "by_rank_ns": by_rank,
        "exposed_by_rank_ns": {number: _exposed_ns(job, number, spans) for number, spans in waiting.items()},
        "by_last_rank_ns": by_last,
    }


def captured_everywhere(collectives: Iterable[Collective]) -> list[Collective]:
    """The collectives that every member captured."""
    return [made for made in collectives if len(made.ops) == len(made.communicator.ranks)]


def clocks(job: Job, captures: Iterable[Capture]) -> dict[int, dict[str, int | float]]:
    """For each rank how its capture's clock relates to that of rank 0's capture.

    The offset holds when the first collective ends that all its members captured.
    """
    home = {rank: capture for capture in captures for rank in capture.ranks}
    moment = min(max(op.end for op in made.ops.values()) for made in captured_everywhere(job.collectives))

    def reading(capture: Capture) -> int:
        return capture.local(capture.ticks(moment))

    reference = 1 + home[0].drift_ppm / 1e6
    return {
        rank: {
            "clock_offset_ns": reading(capture) - reading(home[0]),
            "clock_at_ns": reading(capture),
            "drift_ppm": round((1 - reference / (1 + capture.drift_ppm / 1e6)) * 1e6, 6),
        }
        for rank, capture in sorted(home.items())
    }


def _exposed_ns(job: Job, rank: int, spans: list[tuple[int, int]]) -> int:
    """Time in which a rank waits in some collective while it computes nothing."""
    if not spans:
        return 0
    ops = job.ranks[rank].ops
    call = ops[0].call
    waits = [
        Op(source="kernel", kind="comm", stream=0, start=start, end=end, call=call, step=None, phase=None)
        for start, end in spans
    ]
    computes = [op for op in ops if op.kind == "compute"]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    return int(account([*computes, *waits], first, last)["exposed_comm_ns"] or 0)
