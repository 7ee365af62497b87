"""What collectives move a second: bus bandwidth by size of the message, and the peak that it is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracekit.results import SizeClass
from tracekit.theory.gpus import gpu_of
from tracekit.timeline import RankTrack

Int64 = NDArray[np.int64]


def bandwidth(transfer: Int64, moved: Int64) -> float | None:
    """Median of bytes over transfer time, GB/s (bytes a ns); None where neither is known of any collective."""
    real = (transfer > 0) & (moved > 0)
    return float(np.median(moved[real] / transfer[real])) if real.any() else None


def size_classes(transfer: Int64, moved: Int64, factor: float | None, peak_gbps: float | None) -> tuple[SizeClass, ...]:
    """Collectives of one kind by size, smallest first: a class holds sizes of one power of two up to the next.

    ``transfer`` in ns and ``moved`` in bytes, by collective; ``factor`` from algorithm to bus bandwidth.
    """
    real = (transfer > 0) & (moved > 0)
    transfer, moved = transfer[real], moved[real]
    # frexp is exact where log2 rounds: 2**k - 1 bytes are one class below 2**k.
    exponent = np.frexp(moved.astype(np.float64))[1] - 1
    found = []
    for k in np.unique(exponent).tolist():
        mine = exponent == k
        algbw = bandwidth(transfer[mine], moved[mine])
        found.append(
            SizeClass(
                at_least_bytes=1 << k,
                count=int(np.count_nonzero(mine)),
                bytes=int(np.percentile(moved[mine], 50, method="lower")),  # a size that occurs
                transfer_ns=round(float(np.median(transfer[mine]))),
                algbw_gbps=algbw,
                busbw_gbps=algbw * factor if algbw is not None and factor else None,
                peak_gbps=peak_gbps,
            )
        )
    return tuple(found)


def link_peak(tracks: Sequence[RankTrack], hosts: Sequence[str]) -> float | None:
    """GB/s that a GPU's NVLinks carry in one direction, where these ranks share one host and one model that has them.

    None across hosts, where the network sets the limit that no capture tells, and for GPUs that are not known.
    """
    if len(tracks) < 2 or len(set(hosts)) != 1:
        return None
    models = {gpu_of(track.device_name) for track in tracks}
    gpu = models.pop()
    return gpu.nvlink_gb_per_s if gpu is not None and not models else None
