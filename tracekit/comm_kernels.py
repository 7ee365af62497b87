"""Communication kernels of libraries other than NCCL, by namespace and by form of the name.

`FAMILIES` is the table: who writes the kernels, what their names look like, which collective they carry out. Names were
read in the sources of each library. A name counts by its function and namespaces, never by its parameters or template
arguments: a kernel that is handed a communication buffer computes all the same.

What only sounds like communication (``block_all_reduce_sum``, a reduction inside one block) is compute. Names with
communication's words that no family knows are *suspected*: they count as compute, and that is said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommKernel:
    """What the table tells of one communication kernel."""

    op: str
    """As `tracekit.kernels.KernelName.op`."""
    source: str
    """Who writes it."""
    fused: bool
    """It also computes: a norm, a residual, an expert's sum."""


@dataclass(frozen=True, slots=True)
class Family:
    """The kernels of one library."""

    source: str
    names: re.Pattern[str]
    """Searched in the qualified name, ``namespace::function``."""
    op: str | None = None
    """None: by the words in the function's name."""
    local: re.Pattern[str] | None = None
    """Functions of the same namespace that move nothing between ranks."""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_ROUTING = _any("layout", "permute", "preprocess", "^scan$", "topk", "[Ss]anitize", "expected_value", "quant")
"""Sorting tokens by expert before they are sent, and after: work on one GPU."""

FAMILIES = (
    Family("NVSHMEM", _any("^_?nvshmem", "::nvshmem")),
    Family("MSCCL++", _any("(?:^|::)mscclpp::")),
    Family("HybridEP", _any("(?:^|::)hybrid_ep::"), local=_ROUTING),
    Family("DeepEP", _any("(?:^|::)deep_ep::", "(?:^|::)nccl_ep::"), local=_ROUTING),
    Family("UCCL-EP", _any("(?:^|::)uccl::"), local=_ROUTING),
    Family("MORI", _any("(?:^|::)mori::(?:moe|collective|shmem|ccl)::", "(?:^|::)Ep(?:Dispatch|Combine)(?=[A-Z])")),
    Family("pplx kernels", _any("(?:^|::)pplx::", "(?:^|::)a2a_(?:dispatch|combine)_(?:send|recv)"), "all_to_all"),
    Family(
        "TensorRT-LLM",
        _any("(?:^|::)moeA2A(?:Prepare)?(?:Dispatch|Combine)", "moe_?[aA]ll_?[tT]o_?[aA]ll(?=Kernel|_kernel)"),
    ),
    Family("Triton-distributed", _any("^kernel_(?:dispatch|combine)_token"), "all_to_all"),
    Family("Transformer Engine", _any("(?:^|::)k?userbuffers_")),
    Family("vLLM, SGLang, AITER", _any("(?:^|::)cross_device_reduce_", "_cross_device_store")),
    Family("AITER", _any("(?:^|::)aiter::(?:all_?gather|all_?reduce|reduce_scatter)")),
    Family(
        "XLA",
        _any(r"stream_executor::gpu::.*?(?:AllReduce|AllGather|AllToAll|CollectivePermute|MultiGpuBarrier)\w*"),
    ),
    Family("PyTorch", _any("(?:^|::)c10d::(?:symmetric_memory|nvshmem_extension|intra_node_comm)::")),
    Family("PyTorch", _any("(?:^|::)reduce_scatter_lastdim_kernel", "(?:^|::)_?multimem_")),
    Family(
        "all-reduces in one or two shots (PyTorch, TensorRT-LLM, FlashInfer, SGLang)",
        re.compile(
            "(?i)(?:one|two)_?shot_?(?:hier_?)?all_?reduce|all_?reduce_(?:prototype_)?(?:kernel_)?(?:one|two)_?shot"
            "|all_?reduce_fusion_kernel|mnnvl_all_?reduce::|hybridCubeMeshAllReduce"
        ),
        "all_reduce",
    ),
)
_SIGNALS = re.compile(r"(?:barrier|put_signal|wait_signal)_kernel\(unsigned int ?\*\*")
"""PyTorch's symmetric memory: the first parameter holds the signal pads of all ranks."""

_HINTS = re.compile(
    "shmem|mscclpp|_ep::|uccl|mori|pplx|a2a|A2A|userbuffers|cross_device|aiter|stream_executor|c10d|multimem"
    "|_lastdim_|signal_kernel|barrier_kernel|(?:Ep|kernel_)(?:Dispatch|Combine|dispatch|combine)"
    "|(?i:all_?reduce|all_?to_?all|all_?gather|reduce_?scatter|send_?recv|nccl)"
)
"""Any name that a family or a suspicion could fit has one of these: what lacks them is told compute in one search."""
_SUSPICIOUS = re.compile("(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|a2a|send_?recv|nccl")
_IN_ONE_BLOCK = re.compile("(?i)(?:block|warp|cta|wave|thread|group|wg)_?all_?reduce")
# TorchInductor names its fusions after the operators around them, collectives included: they compute.
_FUSIONS = ("triton_poi_", "triton_per_", "triton_red_", "triton_for_", "triton_tem_")
_MATMUL = re.compile("(?i)gemm|matmul|_mm_|flash|attn|attention")
"""A matrix product with communication inside: most of its time is the product's."""

_OPS = (
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("exchangesplit", "all_to_all"),
    ("collectivepermute", "send_recv"),
    ("broadcast", "broadcast"),
    ("userbufferspush", "send_recv"),
    ("userbufferspull", "send_recv"),
    ("putsignal", "send_recv"),
    ("waitsignal", "send_recv"),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("devicesync", "barrier"),
    ("cleanlowlatencybuffer", "barrier"),
    ("notify", "all_to_all"),
)
"""By what a function's name without underscores contains; the first that fits."""
_FUSED = re.compile("(?i)fusion|fused|norm|residual|bias")


def known_comm(qualified: str, name: str) -> CommKernel | None:
    """What the table says of a kernel; None for a compute kernel.

    ``qualified`` is the function with its namespaces, ``name`` the whole name as the profiler has it.
    """
    if not _HINTS.search(qualified) or qualified.startswith(_FUSIONS):
        return None
    plain = qualified.rpartition("::")[2]
    for family in FAMILIES:
        if family.names.search(qualified):
            if (family.local and family.local.search(plain)) or _MATMUL.search(plain):
                return None
            return CommKernel(family.op or op_in(plain), family.source, bool(_FUSED.search(plain)))
    if _SIGNALS.search(name):
        return CommKernel(op_in(plain), "PyTorch", False)
    return None


def is_suspected(qualified: str) -> bool:
    """Whether a kernel that no family knows has communication's words in its name."""
    plain = qualified.rpartition("::")[2]
    if _ROUTING.search(plain):
        return False
    return bool(_SUSPICIOUS.search(plain)) and not _IN_ONE_BLOCK.search(plain) and not qualified.startswith(_FUSIONS)


def op_in(plain: str) -> str:
    """The collective that the words of a function's name say, or ``unknown``."""
    squeezed = plain.replace("_", "").lower()
    if "userbuffers_" in plain:  # ..._rr_rs_oop_fp8, ..._rw_ag
        words = plain.split("_")
        if "rs" in words or "ag" in words:
            return "reduce_scatter" if "rs" in words else "all_gather"
    return next((op for word, op in _OPS if word in squeezed), "unknown")
