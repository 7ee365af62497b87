"""What a kernel's name tells: communication or compute, which collective, and a name short enough to show.

Called once for each distinct name, never for each row. NCCL's names were read in its sources (2.4 to the current main
branch), RCCL's and Meta's ctran likewise; those of other libraries are in `comm_kernels`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tracekit.comm_kernels import is_suspected, known_comm

SHORT_LENGTH = 80
"""The longest `KernelName.short`, in characters."""


@dataclass(frozen=True, slots=True)
class KernelName:
    """What one kernel's name tells."""

    comm: bool
    op: str | None
    """The collective of a communication kernel: all_gather, reduce_scatter, all_reduce, broadcast, reduce, send_recv,
    all_to_all, barrier, or ``unknown`` where the name does not tell; None for compute."""
    short: str
    """For display: no return type, namespace, template arguments or parameters; at most `SHORT_LENGTH` characters."""
    family: str
    """``comm``; for compute ``matmul`` (convolutions done as matrix products included), ``attention`` or ``other``."""
    source: str | None = None
    """The library of a communication kernel."""
    fused: bool = False
    """A communication kernel that also computes: all of its time counts as communication."""
    suspected: bool = False
    """A compute kernel whose name has communication's words, which no rule knows."""


def describe_kernel(name: str) -> KernelName:
    """Classify one kernel by its demangled name (a mangled or C name will do).

    ``short`` of NCCL's ordinary kernels ends after the collective: what follows names the variant that the kernel
    was compiled around (protocol LL, reduction Sum), whatever ran. Symmetric (``ncclSym...``) and ``ncclGenk``
    kernels are compiled once for each variant, so their names are true and are kept whole.
    """
    qualified, end = _function(name)
    plain = qualified.rpartition("::")[2]
    if plain.startswith(_NCCL_PREFIXES) and "Kernel" in plain:
        return _nccl_kernel(plain)
    if known := known_comm(qualified, name):
        return KernelName(True, known.op, _cap(plain), "comm", known.source, known.fused)
    if plain in _WRAPPERS:
        qualified = _inner(name, end + 1) or qualified
    if end < len(name):  # a million instances of templates have few qualified names; other names come once
        return _cached_compute_kernel(qualified or name[: SHORT_LENGTH + 1])
    return _compute_kernel(qualified or name[: SHORT_LENGTH + 1])


def nccl_call_op(name: str) -> str | None:
    """The collective behind a range of the NVTX domain ``NCCL``, such as ``ncclAllGather``.

    ``group`` for ncclGroupStart and ncclGroupEnd, whose kernels take their op from the calls in the group; None for
    calls that launch no communication (ncclCommInitRank, ncclCommSplit, ncclMemAlloc ...).
    """
    return _NCCL_CALLS.get(name.strip().lower())


# Gather, scatter and the one-sided calls have no kernel of their own: NCCL runs them as sends and receives.
_NCCL_CALLS = {
    "ncclallgather": "all_gather",
    "ncclallgatherv": "all_gather",
    "ncclreducescatter": "reduce_scatter",
    "ncclallreduce": "all_reduce",
    "ncclallreducewithbias": "all_reduce",  # RCCL
    "ncclbroadcast": "broadcast",
    "ncclbcast": "broadcast",
    "ncclreduce": "reduce",
    "ncclsend": "send_recv",
    "ncclrecv": "send_recv",
    "ncclgather": "send_recv",
    "ncclscatter": "send_recv",
    "ncclputsignal": "send_recv",
    "ncclsignal": "send_recv",
    "ncclwaitsignal": "send_recv",
    "ncclalltoall": "all_to_all",  # NCCL's ncclAlltoAll and RCCL's ncclAllToAll
    "ncclalltoallv": "all_to_all",
    "ncclgroupstart": "group",
    "ncclgroupend": "group",
}

_NCCL_PREFIXES = ("nccl", "msccl", "rccl", "ctran")
_NCCL_OP = re.compile("AllGather|ReduceScatter|AllReduce|All[Tt]oAll|Broadcast|SendRecv|Reduce|Send|Recv")
_OPS = {
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
    "AllToAll": "all_to_all",
    "AlltoAll": "all_to_all",
    "Broadcast": "broadcast",
    "SendRecv": "send_recv",
    "Reduce": "reduce",
    "Send": "send_recv",  # ctran
    "Recv": "send_recv",
}


def _nccl_kernel(plain: str) -> KernelName:
    """Every era: ncclAllReduceRingLLKernel_sum_f32, ncclKernel_..., ncclDevKernel_..., ncclSymkDevKernel_..."""
    found = _NCCL_OP.search(plain)
    if found is None:  # RCCL: ncclDevKernel_Generic_4 runs any collective, and so does mscclKernel_Sum_half_Simple
        return KernelName(True, "unknown", _cap(plain), "comm", _library(plain))
    if plain.startswith(("ncclSym", "ncclGenk")):
        short = plain
    elif plain.startswith(("ncclDev", "ncclKernel")):
        short = plain[: found.end()]
    else:
        short = f"nccl{found[0]}Kernel"
    return KernelName(True, _OPS[found[0]], _cap(short), "comm", _library(plain))


def _library(plain: str) -> str:
    return "MSCCL" if plain.startswith("msccl") else "ctran" if "tran" in plain else "NCCL or RCCL"


# Launchers whose first template argument says what they run.
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel", "_kernel_agent"})
# Last names that say nothing without the name before them.
_VAGUE = _WRAPPERS | {"kernel", "run", "operator"}


def _compute_kernel(qualified: str) -> KernelName:
    scope, _, plain = qualified.rpartition("::")
    if plain in _VAGUE and scope:
        plain = f"{scope.rpartition('::')[2]}::{plain}"
    return KernelName(False, None, _cap(plain or qualified), _family(plain), suspected=is_suspected(qualified or plain))


_cached_compute_kernel = lru_cache(maxsize=4096)(_compute_kernel)


def _cap(short: str) -> str:
    return short if len(short) <= SHORT_LENGTH else short[: SHORT_LENGTH - 1] + "…"


# TorchInductor names its fused pointwise and reduction kernels after the operators around them, attention and matrix
# products included; those products themselves are templates (triton_tem_) or library kernels.
_INDUCTOR_FUSIONS = ("triton_poi_", "triton_per_", "triton_red_", "triton_for_")
_ATTENTION = re.compile("attn|attention|fmha|flash_fwd|flash_bwd|sdpa")
_MATMUL = re.compile("gemm|gemv|matmul|nvjet|xmma|splitkreduce|bmm_|cijk_")
_INDUCTOR_MATMUL = re.compile("triton_(?:tem_fused_.*?)?(?:add|b|baddb|scaled_)?mm_")


def _family(plain: str) -> str:
    """From the name without namespaces: ``fbgemm_gpu::`` holds kernels of every kind."""
    lower = plain.lower()
    if lower.startswith("triton_"):
        if lower.startswith(_INDUCTOR_FUSIONS):
            return "other"
        if _INDUCTOR_MATMUL.match(lower):
            return "matmul"
    if _ATTENTION.search(lower):
        return "attention"
    return "matmul" if _MATMUL.search(lower) else "other"


# Up to the first bracket that is not an anonymous namespace.
_HEAD = re.compile(r"(?:void )?([^<({\[]*(?:(?:\(anonymous namespace\)|<unnamed>)[^<({\[]*)*)")
_BRACKET = re.compile(r"[<({\[]")
_ANY_BRACKET = re.compile(r"[<>()]")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w:]*")
_DIGITS = re.compile("[0-9]{1,6}")


def _function(name: str) -> tuple[str, int]:
    """The qualified name of the function, and where its template arguments or parameters begin."""
    head = _HEAD.match(name)
    if head is None or name.startswith("_Z"):
        return _mangled(name), len(name)
    qualified, end = head[1], head.end()
    if end < len(name):
        if name[end] == "<" and not name.startswith("void "):
            qualified, end = _past_return_type(name, qualified, end)
        plain = qualified.rpartition("::")[2].strip()
        if " " in plain:  # unsigned int f(
            return plain.rpartition(" ")[2], end
    return qualified.strip(), end


def _past_return_type(name: str, qualified: str, end: int) -> tuple[str, int]:
    """The function's name where a template may be its return type: ``std::enable_if<...>::type ns::f<...>(``.

    ``end`` is where the first template arguments begin. Linear in the length of the name.
    """
    while end < len(name) and name[end] == "<":
        after = _closing(name, end)
        space = name.find(" ", after)
        bracket = _BRACKET.search(name, after)
        if space < 0 or bracket is None or space > bracket.start():
            break
        if head := _HEAD.match(name, space + 1):
            qualified, end = head[1], head.end()
    return qualified, end


def _closing(text: str, start: int) -> int:
    """Position after the bracket that closes the one at ``start``; a ``>`` inside parentheses is a comparison."""
    open_brackets: list[str] = []
    for match in _ANY_BRACKET.finditer(text, start):
        char = match[0]
        if char in "<(":
            open_brackets.append(char)
        elif char == ")":
            while open_brackets and open_brackets.pop() != "(":
                pass
        elif open_brackets and open_brackets[-1] == "<":
            open_brackets.pop()
        if not open_brackets:
            return match.end()
    return len(text)


def _inner(name: str, start: int) -> str:
    """The name in the template argument at ``start``, looking through ``enable_sm90<...>`` and the like."""
    while found := _IDENTIFIER.match(name, start):
        if not found[0].rpartition("::")[2].startswith("enable_"):
            return found[0]
        start = found.end() + 1
    return ""


def _mangled(name: str) -> str:
    """The function's name in an Itanium-mangled symbol, namespaces joined by ``::``; empty where there is none."""
    nested = name.startswith("_ZN")
    parts = []
    at = 3 if nested else 2
    while found := _DIGITS.match(name, at):
        at = found.end() + int(found[0])
        parts.append(name[found.end() : at])
        if not nested:  # what follows are parameters
            break
    return "::".join(parts)
