"""Causes of lost time, gathered into the few families that a reader can tell apart at a glance.

The family gives the colour and the pattern; the exact cause is always in words.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.metrics.bubbles import Lost
from tracekit.rules.exposed import WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of time in the bars."""

    key: str
    label: str
    glyph: str
    """Fills the family's share of a terminal bar; half-tones tell families apart without colour."""
    ascii_glyph: str
    ansi: str


FAMILIES = (
    Family(key="compute", label="compute", glyph="█", ascii_glyph="#", ansi="blue"),
    Family(key="wait", label="peer wait", glyph="▚", ascii_glyph="w", ansi="red"),
    Family(key="order", label="schedule", glyph="▒", ascii_glyph="s", ansi="yellow"),
    Family(key="comm", label="exposed comm", glyph="▓", ascii_glyph="c", ansi="magenta"),
    Family(key="copy", label="exposed copy", glyph="▞", ascii_glyph="m", ansi="green"),
    Family(key="host", label="host", glyph="░", ascii_glyph="h", ansi="bright_magenta"),
    Family(key="idle", label="idle", glyph="·", ascii_glyph=".", ansi="bright_black"),
)
"""In the order in which a bar shows them."""

_LABELS = {
    "offload": "offload copy",
    "input": "input copy",
    "pageable": "pageable copy",
    "peer_copy": "copy between GPUs",
    "migration": "migration of unified memory",
    "on_device": "copy within the GPU",
    "host_copy": "copy between host and GPU",
    "launch_latency": "launch latency",
    "sync_call": "synchronising call",
    "allocator": "allocator",
    "first_use": "code loaded at first use",
    "comm_init": "communicator set up",
    "data_loading": "data loading",
    "host_other": "host late, other work",
    "dependency": "waits for another operation",
}
_UNKNOWN_OF = ("exposed communication", "exposed copy", "idle")
"""By the term of the account (`Lost`) whose cause is unknown."""

_EXPOSED_COMM = {
    "start_up": "wait",
    "peer_wait": "wait",
    "pipeline": "order",
    "rate_limiter": "host",
    "no_prefetch": "order",
    "queued_behind_comm": "order",
    "launched_late": "order",
    "first_gather": "order",
    "microbatch_reduce": "order",
    "last_reduce": "order",
    "optimizer_phase": "order",
    "on_compute_stream": "order",
    "launch_order": "order",
    "serialized": "order",
    "behind_copy": "order",
    "host_late": "host",
    "between_kernels": "host",
}
_IDLE = {
    "launch_latency": "host",
    "sync_call": "host",
    "allocator": "host",
    "first_use": "host",
    "comm_init": "host",
    "data_loading": "host",
    "host_other": "host",
    "dependency": "order",
}


def family_of_exposed(cause: str) -> str:
    """Return the family of a cause of exposed communication; transfer at link speed and unknown ones are plain comm."""
    return _EXPOSED_COMM.get(cause, "comm")


def family_of_idle(cause: str) -> str:
    """Return the family of a cause of idle time; unknown causes are plain idle."""
    return _IDLE.get(cause, "idle")


def label_of_cause(lost: int, cause: str) -> str:
    """Return a cause in words; of unknown ones only the term of the account is said (``lost``, a `Lost`)."""
    if cause == "unknown":
        return _UNKNOWN_OF[lost]
    return (WORDS if lost == Lost.EXPOSED_COMM else _LABELS)[cause]
