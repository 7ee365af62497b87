"""Which collective a range of the host names: what was asked for, whatever kernel or copy carries it out.

One entry kernel can carry out several collectives (``ncclDevKernel_SendRecv`` an all-to-all, RCCL's
``ncclDevKernel_Generic`` any); the range around its launch says which. Called once for each distinct name. Who writes
what, as read in their sources:

- NCCL and RCCL: the call's own name in domain ``NCCL``; without its domain row the name alone.
- PyTorch: ``nccl:all_reduce``, ``nccl:_all_gather_base``, ``nccl:send 0->1`` around the launch (``xccl:``, ``ucc:``,
  ``mpi:``, ``gloo:`` likewise); the operators ``c10d::allreduce_``, ``_c10d_functional::all_gather_into_tensor``,
  ``symm_mem::...`` under emit_nvtx; FSDP2's ``FSDP::all_gather``.
- XLA: ``Thunk:#hlo_op=all-reduce-start.1#``, domain ``TSL``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tracekit.kernels import nccl_call_op

_PREFIXES = (
    *("nccl:", "rccl:", "xccl:", "ucc:", "mpi:", "gloo:"),
    *("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::", "FSDP::"),
)
_OF_XLA = re.compile(
    r"(?:hlo_op|name)=(?:%)?(ragged-all-to-all|all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    r"|collective-broadcast|send|recv)(?=[-.#,\d]|$)"
)
_OPS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("raggedalltoall", "all_to_all"),
    ("collectivebroadcast", "broadcast"),
    ("collectivepermute", "send_recv"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "send_recv"),
    ("scatter", "send_recv"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
    ("isend", "send_recv"),
    ("irecv", "send_recv"),
)
"""By the beginning of a name without underscores and dashes; the first that fits. NCCL has no kernel for a gather or a
scatter: they are sends and receives."""
_LOCAL = ("copyin", "copyout")
"""FSDP's copies before and after its collectives move nothing between ranks."""


@lru_cache(maxsize=16384)
def range_op(name: str) -> str | None:
    """The collective that a range names, as `tracekit.kernels.KernelName.op` words it; None where it names none.

    A group of calls names nothing by itself.
    """
    op = nccl_call_op(name)
    if op is not None:
        return None if op == "group" else op
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return _op(name[len(prefix) :])
    found = _OF_XLA.search(name) if "=" in name else None
    return _op(found[1]) if found else None


def _op(text: str) -> str | None:
    plain = text.replace("_", "").replace("-", "").lower()
    if any(word in plain for word in _LOCAL):
        return None
    return next((op for word, op in _OPS if plain.startswith(word)), None)
