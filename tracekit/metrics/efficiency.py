"""Tokens a second, MFU and HFU of the steady steps, and what the step is bound by."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracekit.metrics.run import RunFacts
from tracekit.results import Efficiency, Rank, Steady, Step
from tracekit.theory.flops import flops_per_token, hardware_factor, utilisation
from tracekit.theory.gpus import Gpu, gpu_of

FP8 = re.compile(r"e4m3|e5m2|fp8|float8|f8f8|_f8", re.IGNORECASE)


def efficiency(
    ranks: Sequence[Rank],
    steady: Steady | None,
    facts: RunFacts,
    kernel_names: Sequence[str],
    gpu: Gpu | None,
    *,
    stands_still: bool = False,
) -> Efficiency:
    """How well the GPUs are used. ``gpu`` overrides the one that the captures name.

    Of a job that stands still the last steps are not complete: nothing is said of rates.
    """
    shares = _shares(ranks, steady)
    tokens = _tokens_per_rank(facts)
    step_s = steady.step_time_ns / 1e9 if steady else None
    world = facts.world_size
    per_s = tokens * world / step_s if tokens and world and step_s and not stands_still else None
    flops = _flops(facts)
    found = gpu or _one_gpu(ranks)
    reason = "the job stands still" if stands_still else _unknown(steady, facts, tokens, flops, found, kernel_names)
    mfu = (
        utilisation(flops * tokens, step_s, 1, found.bf16_tflops)
        if reason is None and flops and tokens and step_s and found
        else None
    )
    if mfu is not None and mfu > 1:
        reason = f"it would be {100 * mfu:.0f} % of the peak: model, tokens a step or the kind of GPU are wrong"
        mfu = None
    return Efficiency(
        tokens_per_s=per_s,
        mfu=mfu,
        hfu=_hfu(mfu, facts),
        flops_per_token=flops,
        peak_tflops=found.bf16_tflops if found else None,
        formula=_formula(facts, tokens, found, steady) if mfu is not None else None,
        reason=reason,
        bound_by=max(shares, key=lambda name: shares[name], default=None),
        shares=shares,
        tokens_per_step=tokens * world if tokens and world else None,
    )


def _tokens_per_rank(facts: RunFacts) -> float | None:
    if facts.tokens_per_step is not None and facts.world_size:
        return facts.tokens_per_step / facts.world_size
    return facts.tokens_per_rank


def _flops(facts: RunFacts) -> int | None:
    model = facts.model
    if model is None or model.multiplied is None or model.trained is not None:
        return None
    if model.layers and model.hidden and facts.sequence:
        return flops_per_token(model.multiplied, model.layers, model.hidden, facts.sequence)
    return 6 * model.multiplied


def _one_gpu(ranks: Sequence[Rank]) -> Gpu | None:
    found = {gpu_of(rank.device_name) for rank in ranks}
    return found.pop() if len(found) == 1 else None


def _unknown(
    steady: Steady | None,
    facts: RunFacts,
    tokens: float | None,
    flops: int | None,
    gpu: Gpu | None,
    kernel_names: Sequence[str],
) -> str | None:
    """Why MFU cannot be told, or None."""
    if steady is None:
        return "there are no steps"
    lacking = (
        (
            facts.model is None,
            "the model's size is not known: --model NAME, --model config.json, or the trainer's mark",
        ),
        (
            facts.model is not None and facts.model.trained is not None,
            "some parameters are frozen: which gradients are computed is not known",
        ),
        (flops is None, "the mark does not say whether the output projection is tied to the embedding: --model NAME"),
        (tokens is None, "the tokens of a step are not known: --tokens N, or the trainer's mark"),
        (gpu is None, "the peak of this GPU is not known, or the ranks have different ones: --gpu NAME"),
        (
            any(FP8.search(name) for name in kernel_names),
            "some products are in fp8, others in 16 bits: there is no one peak to compare with",
        ),
    )
    return next((reason for lacks, reason in lacking if lacks), None)


def _hfu(mfu: float | None, facts: RunFacts) -> float | None:
    if mfu is None or facts.checkpointing is None:
        return None
    hidden = facts.model.hidden if facts.model else None
    return mfu * hardware_factor("full" if facts.checkpointing else "none", hidden=hidden, sequence=facts.sequence or 1)


def _formula(facts: RunFacts, tokens: float | None, gpu: Gpu | None, steady: Steady | None) -> str | None:
    model = facts.model
    if model is None or gpu is None or steady is None:
        return None
    attention = (
        f" + 12 x {model.layers} x {model.hidden} x {facts.sequence}"
        if model.layers and model.hidden and facts.sequence
        else ""
    )
    return (
        f"(6 x {model.multiplied:,}{attention}) FLOPs a token x {tokens:,.0f} tokens a GPU and step / "
        f"({steady.step_time_ns / 1e6:.1f} ms x {gpu.bf16_tflops:g} TFLOP/s)"
    )


_IDLE = {"data_loading": "data", "dependency": "dependency", "unknown": "unknown"}
"""What idle time is called by cause; the rest of it is the host's: it launches late."""


def _idle_parts(steps: Sequence[Step]) -> dict[str, int]:
    parts = {"launch": 0}
    for step in steps:
        for cause, ns in step.idle_by_cause.items():
            name = _IDLE.get(cause, "launch")
            parts[name] = parts.get(name, 0) + ns
    return parts


def _shares(ranks: Sequence[Rank], steady: Steady | None) -> dict[str, float]:
    """What a steady step is spent on: compute, the link (exposed transfer), waiting, copies, or idle by its cause."""
    kept = set(steady.steps) if steady else set()
    steps = [step for rank in ranks for step in rank.steps if step.step in kept]
    waits = sum(step.exposed_comm_by_cause.get(c, 0) for step in steps for c in ("peer_wait", "start_up"))
    exposed = sum(step.account.exposed_comm_ns for step in steps)
    parts = {
        "compute": sum(step.account.compute_ns for step in steps),
        "link": exposed - waits,
        "wait": waits,
        "copy": sum(step.account.exposed_copy_ns for step in steps),
    } | _idle_parts(steps)
    whole = sum(parts.values())
    return {name: ns / whole for name, ns in parts.items()} if whole else {}
