"""Every heuristic threshold, in one place, each with where it comes from.

A threshold marked † has no published source: it is ours, chosen on the traces that we have, and meant to be changed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds of the analysis. Shares are 0 to 1, times are ns."""

    warm_up_ratio: float = 1.5
    """† A leading step longer than this × the median is warm-up and left out of the steady figures."""
    error_share: float = 0.10
    """† A finding that costs this share of the step is an error."""
    warning_share: float = 0.02
    """† A finding that costs this share of the step is a warning; exposed time from here on is always reported."""
    launch_rows_share: float = 0.95
    """† Below this share of kernels with a launch row, attribution by NVTX is called incomplete."""


DEFAULT = Thresholds()
