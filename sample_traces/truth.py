"""What is true of a laid-out job: its account, found by walking over the placed intervals' end points.

Deliberately plain: between two neighbouring end points nothing starts or stops, so each such slice of a window counts
as a whole by what covers it. It shares no code with the product whose figures are checked against it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from layout import Job
from placed import COMPUTE, Capture, Collective, Op, Rank
from strategies import Strategy

PEAK_FLOPS_PER_NS = 989_000
"""Dense bfloat16 of the H100 SXM, by its data sheet."""

WARM_UP_FACTOR = 1.5
CUT_OFF_FACTOR = 0.95
"""Leading steps longer than this times the median are warm-up, beside the first."""
FIGURES = ("wall_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "comm_ns", "overlapped_comm_ns")
Account = dict[str, int | float | None]


def account(ops: Iterable[Op], start: int, end: int) -> Account:
    """Where the time of ``[start, end)`` goes."""
    changes: dict[int, dict[str, int]] = {start: {}, end: {}}
    for op in ops:
        first, last = max(op.start, start), min(op.end, end)
        if first < last:
            for at, step in ((first, 1), (last, -1)):
                counts = changes.setdefault(at, {})
                counts[op.kind] = counts.get(op.kind, 0) + step
    running = {"compute": 0, "comm": 0, "copy": 0}
    spent = dict.fromkeys(("compute", "exposed_comm", "exposed_copy", "idle", "comm", "overlapped_comm"), 0)
    for at, until in pairwise(sorted(changes)):
        for kind, step in changes[at].items():
            running[kind] += step
        length = until - at
        if running["comm"]:
            spent["comm"] += length
        if running["compute"]:
            spent["compute"] += length
            spent["overlapped_comm"] += length if running["comm"] else 0
        elif running["comm"]:
            spent["exposed_comm"] += length
        elif running["copy"]:
            spent["exposed_copy"] += length
        else:
            spent["idle"] += length
    figures: Account = {"wall_ns": end - start, **{f"{name}_ns": ns for name, ns in spent.items()}}
    figures["overlap_ratio"] = spent["overlapped_comm"] / spent["comm"] if spent["comm"] else None
    return figures


def rank_truth(rank: Rank, capture: Capture, clock: dict[str, int | float], *, phases: bool) -> dict[str, Any]:
    """A rank's totals and steps on its capture's clock, and what is known of that clock."""
    first, last = min(op.start for op in rank.ops), max(op.end for op in rank.ops)
    return {
        "pid": rank.pid,
        "device": rank.device,
        "capture": capture.path,
        **clock,
        "main_stream": rank.stream_ids[COMPUTE],
        "totals": account(rank.ops, first, last),
        "opaque_ns": union_ns([op for op in rank.ops if op.source == "graph"]),
        "collectives": sum(op.kind == "comm" for op in rank.ops),
        "steps": [
            {"step": number, "start_ns": capture.local(start), "end_ns": capture.local(end)}
            | account(rank.ops, start, end)
            | ({"by_phase": phase_truth(rank, number, start, end)} if phases else {})
            for number, start, end in step_windows(rank)
        ],
    }


def step_windows(rank: Rank) -> list[tuple[int, int, int]]:
    """(step, start, end) of each step: from anchor to anchor, the last to the end of its last operation."""
    numbers = sorted({op.step for op in rank.ops if op.step is not None})
    numbers = [number for number in numbers if anchoring(rank, number)]
    starts = [min(op.start for op in anchoring(rank, number)) for number in numbers]
    last = max(op.end for op in rank.ops if op.step == numbers[-1])
    return list(zip(numbers, starts, [*starts[1:], last], strict=True))


def anchoring(rank: Rank, step: int) -> list[Op]:
    """The kernels on the main compute stream that a step launched."""
    return [
        op for op in rank.ops if op.source == "kernel" and op.stream == rank.stream_ids[COMPUTE] and op.step == step
    ]


def phase_truth(rank: Rank, step: int, start: int, end: int) -> dict[str, Account]:
    """A step's phases, which tile it: each from its first kernel on the main compute stream to the next phase's.

    With several microbatches the forward and the backward pass come more than once; their times are added up.
    """
    turns: list[tuple[str, int]] = []
    for op in sorted(anchoring(rank, step), key=lambda op: op.start):
        if op.phase and (not turns or op.phase != turns[-1][0]):
            turns.append((op.phase, op.start))
    bounds = [start, *(at for _, at in turns[1:]), end]
    parts: dict[str, list[Account]] = {}
    for (name, _), (low, high) in zip(turns, pairwise(bounds), strict=True):
        parts.setdefault(name, []).append(account(rank.ops, low, high))
    return {name: added(accounts) for name, accounts in parts.items()}


def added(accounts: list[Account]) -> Account:
    """The account of several windows together."""
    figures: Account = {name: sum(int(one[name] or 0) for one in accounts) for name in FIGURES}
    comm = figures["comm_ns"]
    figures["overlap_ratio"] = (figures["overlapped_comm_ns"] or 0) / comm if comm else None
    return figures


def steady_truth(ranks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Which steps are steady, the median of their time and their sums, from what `rank_truth` found for each rank."""
    windows = [step for rank in ranks.values() for step in rank["steps"]]
    numbers = list(dict.fromkeys(step["step"] for step in windows))
    usual = statistics.median(step["wall_ns"] for step in windows)
    first = 1
    while statistics.median(s["wall_ns"] for s in windows if s["step"] == numbers[first]) > WARM_UP_FACTOR * usual:
        first += 1
    cut = cut_off(ranks, numbers[first:])
    kept = [number for number in numbers[first:] if number not in cut]
    steady = [step for step in windows if step["step"] in kept]
    return {
        "steps": kept,
        "left_out": numbers[:first],
        "cut_off": cut,
        "step_time_ns": statistics.median(step["wall_ns"] for step in steady),
        "windows": len(steady),
        "sums": {name: sum(step[name] for step in steady) for name in FIGURES},
    }


def cut_off(ranks: dict[str, dict[str, Any]], numbers: list[int]) -> list[int]:
    """The steps in which a rank's capture ends, where they are clearly shorter than the others; none if all are."""
    mean = {
        number: statistics.mean(s["wall_ns"] for rank in ranks.values() for s in rank["steps"] if s["step"] == number)
        for number in numbers
    }
    found: list[int] = []
    for number in numbers[:0:-1]:
        ends = [rank["steps"][-1]["wall_ns"] for rank in ranks.values() if rank["steps"][-1]["step"] == number]
        usual = statistics.median(mean[other] for other in numbers if other not in {number, *found})
        if ends and statistics.mean(ends) < CUT_OFF_FACTOR * usual:
            found.insert(0, number)
    return found


def efficiency_truth(strategy: Strategy, step_time_ns: float) -> dict[str, float | None]:
    """Tokens a second of all ranks, and the share of the GPUs' peak that the model's own arithmetic is.

    None where the reports do not say what it takes to know it: nothing of the run, no length of sequences, or which
    gradients are not computed.
    """
    model = strategy.model
    told = strategy.job.annotated and not model.lengths_vary
    tokens = model.tokens * strategy.microbatches if told else None
    mfu = None
    if tokens is not None and not model.frozen_root:
        mfu = model.flops_a_token * tokens / (step_time_ns * PEAK_FLOPS_PER_NS)
    recomputed = 4 / 3 if strategy.recomputes else 1
    return {
        "tokens_per_s": tokens * strategy.job.world_size / step_time_ns * 1e9 if tokens is not None else None,
        "mfu": mfu,
        "hfu": mfu * recomputed if mfu is not None else None,
    }


def memory_truth(job: Job, home: dict[int, Capture], steady: list[int]) -> dict[str, Any]:
    """By rank, what of the GPU's memory is taken: at most, and how often and how much a steady step.

    Calls count from the first launch of the steady steps to the last one. Empty for jobs whose reports show no memory.

    Found by looking at every call that takes or gives back, one after the other.
    """
    made = {}
    for rank in job.ranks:
        events = []
        for segment in rank.segments:
            events.append((home[rank.rank].local(segment.taken.start), segment.bytes))
            if segment.given_back is not None:
                events.append((home[rank.rank].local(segment.given_back.start), -segment.bytes))
        if not events:
            return {}
        launches = [op.call for op in rank.ops if op.step in steady]
        local = home[rank.rank].local
        start, end = local(min(call.start for call in launches)), local(max(call.end for call in launches))
        held, peak = 0, 0
        taken, given, size = 0, 0, 0
        for at, change in sorted(events):
            held += change
            peak = max(peak, held)
            if start <= at < end:
                taken, given, size = taken + (change > 0), given + (change < 0), size + max(change, 0)
        made[str(rank.rank)] = {
            "peak_bytes": peak,
            "allocations_per_step": taken / len(steady),
            "frees_per_step": given / len(steady),
            "allocated_bytes_per_step": size / len(steady),
        }
    return {"memory": made}


def collectives_truth(job: Job, steady: list[int], *, payloads: bool) -> list[dict[str, object]]:
    """For each communicator and operation: how many, how large, how long, over the whole capture.

    The communicator is None where the capture lacks NCCL's payloads. Exposed time that a rank spends in several
    collectives at once counts for the one that started first. Transfer and waits are of the collectives that every
    member captured.
    """
    source = "nccl_payload" if payloads else "annotation" if job.annotated else None
    groups: dict[tuple[int, str], list[Collective]] = {}
    for item in job.collectives:
        groups.setdefault((item.communicator.hash, item.op), []).append(item)
    made: list[dict[str, object]] = []
    for (value, op), items in sorted(groups.items()):
        whole = [item for item in items if len(item.ops) == len(item.communicator.ranks)]
        waits = waits_ns(whole)
        later = [item for item in whole if any(op.step in steady for op in item.ops.values())]
        by_rank = {job.ranks[rank]: [item.ops[rank] for item in items if rank in item.ops] for rank in waits}
        made.append(
            {
                "communicator": f"0x{value:016x}" if payloads else None,
                "op": op,
                "ranks": list(items[0].communicator.ranks),
                "count": len(items),
                "full_bytes": statistics.median_low(item.full_bytes for item in items),
                "full_bytes_sum": sum(item.full_bytes for item in items),
                "message_bytes": statistics.median_low(item.message_bytes for item in items),
                "bytes_source": source,
                "comm_ns": sum(union_ns(ops) for ops in by_rank.values()),
                "exposed_ns": sum(exposed_ns(rank, ops) for rank, ops in by_rank.items()),
                "transfer_ns": statistics.median(min(duration(op) for op in item.ops.values()) for item in whole),
                "peer_wait_ns": sum(waits.values()),
                "peer_wait_by_rank_ns": waits,
                "steady_peer_wait_by_rank_ns": waits_ns(later),
            }
        )
    return made


def duration(op: Op) -> int:
    """Length of an operation."""
    return op.end - op.start


def waits_ns(items: list[Collective]) -> dict[int, int]:
    """How much longer the collectives took on each rank than on the rank where each was shortest."""
    shortest = [min(duration(op) for op in item.ops.values()) for item in items]
    ranks = items[0].communicator.ranks
    return {r: sum(duration(i.ops[r]) - least for i, least in zip(items, shortest, strict=True)) for r in ranks}


def exposed_ns(rank: Rank, collectives: list[Op]) -> int:
    """Time in which one of the collectives runs, none that started earlier and no compute."""
    mine = {id(op) for op in collectives}
    counted: list[Op] = []
    until = 0
    for op in sorted((op for op in rank.ops if op.kind == "comm"), key=lambda op: op.start):
        if id(op) in mine and op.end > until:
            counted.append(replace(op, start=max(op.start, until)))
        until = max(until, op.end)
    computes = [op for op in rank.ops if op.kind == "compute"]
    spent = account([*computes, *counted], min(op.start for op in rank.ops), max(op.end for op in rank.ops))
    return int(spent["exposed_comm_ns"] or 0)


def union_ns(ops: list[Op]) -> int:
    """Time in which at least one of the operations runs."""
    total, until = 0, 0
    for op in sorted(ops, key=lambda op: op.start):
        total += max(0, op.end - max(op.start, until))
        until = max(until, op.end)
    return total


def kernels_truth(ranks: Iterable[Rank]) -> dict[str, int]:
    """What a plain sum over kernels gives: not an account, but what `nsys stats` prints."""
    kernels = [op for rank in ranks for op in rank.ops if op.source == "kernel"]
    return {"count": len(kernels), "sum_ns": sum(duration(op) for op in kernels)}
