"""The names under which backends and versions of torch record collectives, in the words of this project.

One table for all: NCCL, Gloo, XCCL, UCC and torchcomms, list and tensor variants, coalesced and uneven ones.
"""

from __future__ import annotations

import re

LONGEST_NAME = 200
GROUP_END = "coalesced"
"""Entry that torch writes at the end of a coalesced group."""
SEND_RECV = "send_recv"
VARIANTS = re.compile(r"_(coalesced|oop|base|into_tensor|tensor|single|inplace|out|sparse|uneven|v)$")
"""Endings that tell how the tensors are passed, not what the op does."""
OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "send": SEND_RECV,
    "isend": SEND_RECV,
    "recv": SEND_RECV,
    "irecv": SEND_RECV,
    "recvanysource": SEND_RECV,
}
"""By name without underscores and without the ending of the variant."""
PEERS = re.compile(r"\bi?(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")


def op_of(profiling_name: str) -> str:
    """The op in the words of this project: ``nccl:_all_gather_base`` is ``all_gather``."""
    told = profiling_name.split(":", 1)[-1].strip().split(" ", maxsplit=1)[0].lower().lstrip("_")[:LONGEST_NAME]
    name = told
    while (base := VARIANTS.sub("", name)) != name:
        name = base
    return OPS.get(name.replace("_", ""), told)


def peers_of(profiling_name: str) -> tuple[bool, int, int] | None:
    """(whether it sends, the rank's own number, its peer's) of a send or receive; None where the name does not tell."""
    match = PEERS.search(profiling_name)
    return None if match is None else (match[1] == "send", int(match[2]), int(match[3]))
