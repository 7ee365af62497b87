"""Peaks of GPUs, by the name that the driver gives them.

Source: NVIDIA's data sheets of each product. FLOP/s are dense bfloat16 (data sheets lead with the sparse figure, twice
as much); NVLink is one direction (data sheets give both together), which is what a bus bandwidth compares with.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tracekit.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One product."""

    name: str
    words: tuple[str, ...]
    """What the driver's name has to contain, word by word."""
    bf16_tflops: float
    """Dense bfloat16 peak, in units of 1e12 FLOP/s."""
    memory_gb: float
    """Capacity, in units of 1e9 bytes."""
    nvlink_gb_per_s: float | None
    """One direction, all links of one GPU; None where the product has none or only an optional bridge."""


GPUS = tuple(
    Gpu(name=name, words=words, bf16_tflops=tflops, memory_gb=memory, nvlink_gb_per_s=nvlink)
    for name, words, tflops, memory, nvlink in (
        ("A100 PCIe 40GB", ("A100", "PCIE", "40GB"), 312, 40, None),
        ("A100 PCIe", ("A100", "PCIE"), 312, 80, None),
        ("A100 40GB", ("A100", "40GB"), 312, 40, 300),
        ("A100", ("A100",), 312, 80, 300),
        ("A800", ("A800",), 312, 80, 200),
        ("H100 PCIe", ("H100", "PCIE"), 756, 80, None),
        ("H100 NVL", ("H100", "NVL"), 835, 94, None),
        ("H100", ("H100",), 989, 80, 450),
        ("H800", ("H800",), 989, 80, 200),
        ("H200", ("H200",), 989, 141, 450),
        ("H20", ("H20",), 148, 96, 450),
        ("B200", ("B200",), 2250, 180, 900),
        ("GB200", ("GB200",), 2500, 186, 900),
        ("L40S", ("L40S",), 362, 48, None),
    )
)
"""The first that fits counts: variants stand before the product they are variants of."""


def gpu_of(device_name: str | None) -> Gpu | None:
    """The product that a driver's name, such as ``NVIDIA H100 80GB HBM3``, means; None for one that is not listed."""
    words = set(re.findall(r"[A-Z0-9]+", (device_name or "").upper()))
    return next((gpu for gpu in GPUS if words.issuperset(gpu.words)), None)


def gpu_named(name: str) -> Gpu:
    """The product that a user names, in any spelling.

    Raises `UsageError` with the nearest names for one that is not listed.
    """
    found = gpu_of(name)
    if found is not None:
        return found
    names = [gpu.name for gpu in GPUS]
    near = difflib.get_close_matches(name.upper(), names, n=3, cutoff=0.4)
    hint = f"Did you mean {', '.join(near)}?" if near else f"It holds {', '.join(names)}."
    raise UsageError(f"there is no GPU {name!r} in the table", hint=hint)
