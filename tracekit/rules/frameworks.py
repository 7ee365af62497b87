"""Which framework shards the job: a fix names that framework's option."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracekit.timeline import Timeline

_SIGNS = (
    ("deepspeed", re.compile("DeepSpeed")),
    ("fsdp2", re.compile(r"FSDP::|split_with_sizes_copy|chunk_cat")),
    ("fsdp1", re.compile("FullyShardedDataParallel")),
    ("ddp", re.compile(r"DistributedDataParallel|torch\.distributed\.ddp\.")),
)
"""Ranges of each framework, and kernels that only one launches; of several the first here counts."""
WORDS = {"fsdp1": "FSDP1", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "ddp": "DDP"}


def framework_of(timeline: Timeline) -> str | None:
    """fsdp1, fsdp2, deepspeed or ddp, as names in the captures tell; None where none does."""
    return next((name for name, sign in _SIGNS if any(map(sign.search, timeline.names))), None)


def fix_for(timeline: Timeline, fixes: Mapping[str, str], general: str = "") -> str:
    """The fix in the job's own framework; where that is not known, in each."""
    known = framework_of(timeline)
    if known:
        own = [fixes[known]] if known in fixes else []
    else:
        own = [f"{WORDS[name]}: {text}" for name, text in fixes.items()]
    return " ".join(filter(None, (general, *own)))
