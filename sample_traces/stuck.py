"""Where the ranks of a job part that stands still: who is in which collective, and what each was doing."""

from __future__ import annotations

from jobs import Hang
from layout import Job
from placed import NEVER, TRACEKIT, Collective, Rank


def hang_truth(job: Job, hang: Hang, *, payloads: bool) -> dict[str, object]:
    """Where the ranks part: the first collective that never ended, and what each rank was in."""
    first = job.unfinished[0]
    return {
        "verdict": hang.verdict,
        "culprits": list(hang.culprits),
        **_where(first, payloads=payloads),
        **_parting(job, payloads=payloads),
        "waits": [_where(made, payloads=payloads) for made in _first_of_each(job.unfinished)],
        "launched": {
            rank.rank: [
                {"communicator": _name(made, payloads=payloads), "seq": count}
                for made in _first_of_each(job.unfinished)
                if (count := made.communicator.launched.get(rank.rank, 0))
            ]
            for rank in job.ranks
        },
        "last_activity": {rank.rank: _last_activity(rank) for rank in job.ranks},
    }


def _name(made: Collective, *, payloads: bool) -> str | None:
    return f"0x{made.communicator.hash:016x}" if payloads else None


def _where(made: Collective, *, payloads: bool) -> dict[str, object]:
    absent = sorted(set(made.communicator.ranks) - set(made.launched_by))
    return {
        "communicator": _name(made, payloads=payloads),
        "seq": made.seq,
        "op": made.op,
        "waiting_ranks": sorted(made.launched_by),
        "missing_ranks": absent,
        "full_bytes": {rank: made.full_bytes_on(rank) for rank in sorted(made.launched_by)},
    }


def _parting(job: Job, *, payloads: bool) -> dict[str, object]:
    """The first collective that ranks launched in different steps, where there is one."""
    for made in job.collectives:
        if len({op.step for op in made.ops.values()}) > 1:
            return {"parts_at": {"communicator": _name(made, payloads=payloads), "seq": made.seq, "op": made.op}}
    return {}


def _first_of_each(unfinished: list[Collective]) -> list[Collective]:
    """The first unfinished collective of each communicator."""
    found: dict[int, Collective] = {}
    for made in unfinished:
        found.setdefault(made.communicator.hash, made)
    return list(found.values())


def _last_activity(rank: Rank) -> dict[str, object]:
    still_open = sorted((item for item in rank.ranges if item.end == NEVER), key=lambda item: item.start)
    step = next((item.value for item in still_open if item.domain == TRACEKIT and item.name == "step"), None)
    return {"open_ranges": [item.name for item in still_open], "step": step}
