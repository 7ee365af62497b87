"""`tracekit plan` as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tracekit.report.words import clean, duration, sentence
from tracekit.theory.plan import Advice, Job, Outlook

COLUMNS = ("strategy", "state", "activations", "in all", "fits", "wire", "comm", "exposed", "step", "overlap", "MFU")


def render_plan(job: Job, rows: Sequence[Outlook], advice: Advice) -> str:
    """A table for people, what it takes for granted, and the advice. Sizes in GB a GPU."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = list(_job(job))
    for line in cells:
        padded = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *padded[1:]]).rstrip())
    lines += [
        "",
        "GB a GPU; wire: GB that each GPU sends a step. exposed and overlap: the best that overlap can do.",
        "",
        _advice(advice),
    ]
    if advice.strategy is None and advice.change:
        lines.append(f"Try {sentence(advice.change)}")
    return "\n".join(lines)


def _advice(advice: Advice) -> str:
    reason = sentence(advice.reason)
    return f"{advice.strategy}: {reason}" if advice.strategy else reason[0].upper() + reason[1:]


def _job(job: Job) -> Iterator[str]:
    what = clean(job.shape.name) if job.shape else "a model"
    frozen = f", {_count(job.trained)} of them trained" if job.frozen else ""
    nodes = f" in {job.nodes} nodes" if job.nodes > 1 else ""
    yield f"{what} of {_count(job.parameters)} parameters{frozen}, on {job.gpus} x {job.gpu.name}{nodes}"
    microbatches = "1 microbatch" if job.accumulation == 1 else f"{job.accumulation} microbatches"
    yield (
        f"{job.precision.name}, {job.batch} x {job.sequence} tokens x {microbatches} a GPU, "
        f"recomputation: {job.recompute}" + (f", offload: {job.offload}" if job.offload != "none" else "")
    )
    network = f", network {job.network_gb_per_s:g} GB/s a node" if job.nodes > 1 else ""
    yield (
        f"kernels at {100 * job.utilisation:.0f} % of {job.gpu.bf16_tflops:g} TFLOP/s, "
        f"links {job.link_gb_per_s:g} GB/s{network}, memory {job.memory_gb:g} GB"
    )
    if job.shape is None:
        yield "Activations and units are unknown without the model's shape: give --model or --config."
    yield ""


def _cells(row: Outlook) -> tuple[str, ...]:
    return (
        row.strategy,
        _gb(row.model_state_bytes),
        _gb(row.activation_bytes),
        _gb(row.total_bytes),
        {True: "yes", False: "no", None: "?"}[row.fits],
        _gb(row.wire_bytes),
        duration(row.comm_ns) if row.moved else "-",
        duration(row.exposed_ns),
        duration(row.step_ns),
        "-" if row.overlap_bound is None else f"{row.overlap_bound:.2f}",
        f"{100 * row.mfu:.0f} %",
    )


def _gb(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e9:.1f}"


def _count(number: int) -> str:
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)


def render_plan_json(rows: Sequence[Outlook], advice: Advice) -> str:
    """A list of strategies; sizes are whole bytes, times whole ns, unknown values null."""
    return json.dumps([_document(row, advice) for row in rows], indent=2)


def _document(row: Outlook, advice: Advice) -> dict[str, object]:
    chosen = row.strategy == advice.strategy
    return {
        "strategy": row.strategy,
        "recommended": chosen,
        "reason": advice.reason if chosen else None,
        "change_first": advice.change if chosen else None,
        "shards": row.shards,
        "model_state_bytes_per_gpu": row.model_state_bytes,
        "host_bytes_per_gpu": row.host_bytes,
        "activation_bytes_per_gpu": row.activation_bytes,
        "gathered_bytes_per_gpu": row.gathered_bytes,
        "total_bytes_per_gpu": row.total_bytes,
        "fits": row.fits,
        "wire_bytes_per_gpu": row.wire_bytes,
        "collectives": [{"op": item.op, "ranks": item.ranks, "bytes": item.bytes} for item in row.moved],
        "comm_ns": row.comm_ns,
        "compute_ns": row.compute_ns,
        "exposed_ns": row.exposed_ns,
        "step_ns": row.step_ns,
        "overlap_bound": row.overlap_bound,
        "tokens_per_s": row.tokens_per_s,
        "mfu": row.mfu,
    }
