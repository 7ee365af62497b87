"""What the program is made with: a fix names that framework's option, and no other's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tracekit.annotations import describe_range
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


_OF_TORCH = re.compile(
    r"at::native|at_cuda_detail|\bc10::|torch|\baten::|\bProfilerStep#|\bOptimizer\.(?:step|zero_grad)#|\bnccl:|FSDP"
    r"|autograd|DistributedDataParallel|DeepSpeed|\btriton_(?:poi|red|per|tem)_|\[pl\]\[|enumerate\(DataLoader\)"
)
_OF_JAX = re.compile(
    r"XlaModule|\bhlo_op=|\bTSL:|\bxla::|\bstream_executor::|\bjit_\w|\b(?:loop|input)_\w*fusion(?:_[0-9]+)?\b|\bjax\b"
)
_PYTHON = re.compile(r"python|pt_main|torchrun|\bray\b|ray::|jupyter|sglang|vllm|accelerate|deepspeed", re.IGNORECASE)


def runtime_of(timeline: Timeline) -> str | None:
    """``torch``, ``jax``, ``python`` or ``native``, by names in the captures and of their processes; None if not known.

    Where kernels do not tell and the process is not known to be native, phases of a training step are taken for a sign
    of PyTorch.
    """
    processes = {timeline.processes[track.process].name for track in timeline.ranks}
    return _runtime(tuple(timeline.names), tuple(sorted(name for name in processes if name)))


@lru_cache(maxsize=2)
def _runtime(names: tuple[str, ...], known: tuple[str, ...]) -> str | None:
    """``known``: names of the ranks' processes."""
    if any(map(_OF_JAX.search, names)):
        return "jax"
    if any(map(_OF_TORCH.search, names)):
        return "torch"
    in_python = any(map(_PYTHON.search, known))
    if known and not in_python:
        return "native"
    if any((told := describe_range(None, name)) and told.phase for name in names):
        return "torch"
    return "python" if in_python else None


def in_words_of(timeline: Timeline, general: str = "", **fixes: str) -> str:
    """The general advice, and that for the program's own runtime; ``python`` counts for torch and JAX as well.

    Advice for a runtime that was not seen is not given.
    """
    runtime = runtime_of(timeline)
    seen = {runtime, "python"} if runtime in ("torch", "jax") else {runtime}
    return " ".join(filter(None, (general, *(text for name, text in fixes.items() if name in seen))))


_PYTHON_WORDS = re.compile(
    r"torch|python|\.item\(\)|DataLoader|fully_shard|\bFSDP|DeepSpeed|Megatron|\bAdamW?\(|\bgc\.|py-spy|garbage"
    r"|pin_memory|non_blocking|async_op|bucket_cap_mb"
    r"|auto_wrap|caching allocator|nvtx\.annotate|set_requires|reshard_after|num_workers|BACKWARD_P",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;]) +(?=[A-Z\"'(0-9])")
_OF_XLA = (
    "JAX: XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true lets collectives run beside compute; "
    "--xla_gpu_all_gather_combine_threshold_bytes and its like for other collectives set how many are merged."
)
_NATIVE = {
    "TK408": "Pin the host's memory (cudaHostAlloc or cudaHostRegister) and copy with cudaMemcpyAsync on a stream of "
    "its own.",
    "TK901": "Mark the steps with NVTX ranges, or name the range that marks a step with --step-marker.",
}
"""What a program without Python can do, where a rule's own advice is all of Python."""


def own_words(timeline: Timeline, rule: str, fix: str) -> str:
    """A rule's advice without what is of frameworks that the program is not made with; JAX gets XLA's flags."""
    runtime = runtime_of(timeline)
    if runtime not in ("native", "jax") or not _PYTHON_WORDS.search(fix):
        return fix
    kept = [text for text in _SENTENCE.split(fix) if not _PYTHON_WORDS.search(text)]
    if runtime == "jax":
        kept += [_OF_XLA] if rule.startswith("TK1") else []
    else:
        kept += [_NATIVE[rule]] if rule in _NATIVE else []
    return " ".join(kept) or "What to change is the program's own matter: no advice for its framework is known."
