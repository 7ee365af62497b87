"""Floating-point operations of a training step, and how well a machine is used.

MFU counts model FLOPs, HFU those that the hardware really does, recomputation included. Sources:

- FLOPs a token: PaLM (arXiv:2204.02311), appendix B: 6 for each multiplied parameter, 12·L·h·s for attention;
- model and hardware FLOPs of a GPT step: Korthikanti et al. (arXiv:2205.05198), section 5 and appendix A.
"""

from __future__ import annotations

RECOMPUTE = ("none", "selective", "full")


def flops_per_token(multiplied_parameters: int, layers: int, hidden: int, sequence: int) -> int:
    """Model FLOPs a token, forward and backward: 6·N + 12·L·h·s, N without embedding look-ups."""
    return 6 * multiplied_parameters + 12 * layers * hidden * sequence


def gpt_step_flops(
    *, batch: int, sequence: int, layers: int, hidden: int, vocab: int, recompute: str | None = None
) -> float:
    """FLOPs of one step of a GPT: the model's (``recompute`` None), or the hardware's with a way of recomputation.

    72·B·L·s·h²·(1 + s/6h + V/12hL); with selective recomputation s/3h in place of s/6h; with full recomputation
    96·B·L·s·h²·(1 + s/6h + V/16hL).
    """
    base = batch * layers * sequence * hidden**2
    if recompute == "full":
        return 96 * base * (1 + sequence / (6 * hidden) + vocab / (16 * hidden * layers))
    attention = sequence / (3 * hidden) if recompute == "selective" else sequence / (6 * hidden)
    return 72 * base * (1 + attention + vocab / (12 * hidden * layers))


def hardware_factor(recompute: str, *, hidden: int | None, sequence: int) -> float:
    """Hardware FLOPs over model FLOPs of a layer: 1 without recomputation, 4/3 with full.

    Selective recomputation does attention's part once more: (1 + s/3h) / (1 + s/6h); without a shape it is taken as 1.
    """
    if recompute == "full":
        return 4 / 3
    if recompute == "selective" and hidden is not None:
        return (1 + sequence / (3 * hidden)) / (1 + sequence / (6 * hidden))
    return 1.0


def utilisation(flops: float, seconds: float, gpus: int, peak_tflops: float) -> float:
    """Share of the GPUs' peak that ``flops`` in ``seconds`` are: MFU of model FLOPs, HFU of hardware FLOPs."""
    return flops / (seconds * gpus * peak_tflops * 1e12)
