"""Floating-point operations of a training step, and how well a machine is used.

MFU counts model FLOPs, HFU those that the hardware really does, recomputation included. Sources:

- FLOPs a token: PaLM (arXiv:2204.02311), appendix B: 6 for each multiplied parameter, 12·L·h·s for attention;
- what recomputation adds: Korthikanti et al. (arXiv:2205.05198), section 5 and appendix A.
"""

from __future__ import annotations


def flops_per_token(multiplied_parameters: int, layers: int, hidden: int, sequence: int) -> int:
    """Model FLOPs a token, forward and backward: 6·N + 12·L·h·s, N without embedding look-ups."""
    return 6 * multiplied_parameters + 12 * layers * hidden * sequence


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
