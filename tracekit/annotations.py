"""The NVTX vocabulary of training frameworks: what a range's name says about step, phase and module.

Called once for each distinct (domain, name), never for each row. Who emits what, as read in their sources:

- PyTorch: ``record_function`` names reach NVTX through ``emit_nvtx`` (or a converted profiler trace): the profiler's
  steps, optimizers, data loaders, DDP, FSDP1, FSDP2, pipeline schedules, autograd's nodes.
- Lightning: every profiled action as ``[pl][profile]...``, modules as ``[pl][module]...``; Fabric has none.
- DeepSpeed: the qualified names of instrumented methods. ``DeepSpeedEngine.step`` is the optimizer, no range is a step.
- DLRM, TorchRec and others: ``## forward ##``.
- Megatron-LM, NeMo and Transformer Engine label functions and operators, at most a microbatch's part of a step, and
  recompute the same names inside the backward pass: nothing is read from them. NeMo, Transformers, Accelerate and
  torchtitan bring no step range of their own (their steps show as ``ProfilerStep#`` or as a user's ``step 12``).
- The instrumented trainer: domains ``tracekit`` and ``tracekit.comm``.

Ranges nest: the innermost phase around a launch is the one that counts. ``Optimizer.step#`` encloses forward and
backward where a closure is passed (Lightning always does). A name that can mean two things means nothing here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tracekit.step_names import step_of, xla_step


@dataclass(frozen=True, slots=True)
class Annotation:
    """What one range's name tells; at least one field is not None."""

    step: str | None = None
    """One of `STEP_FAMILIES` where the range is a whole training step."""
    step_number: int | None = None
    """The number in the name; a range may carry it as payload instead."""
    phase: str | None = None
    """forward, backward, optimizer or data."""
    module: str | None = None
    """Module path such as ``layers.3`` or ``transformer.h.0.mlp``, wrappers removed."""


def describe_range(domain: str | None, name: str) -> Annotation | None:
    """What a range's name tells, or None. ``domain`` is None for the default domain and where it is not known."""
    if domain is not None:
        if domain == "tracekit":
            return _own_range(name)
        if domain in _LIBRARY_DOMAINS:
            return None
    name = base_name(name)
    if name.startswith(_FRAMEWORK_PREFIXES):
        return _framework_range(name)
    if name.isidentifier() and _AUTOGRAD_NODE.search(name):
        return _BACKWARD
    if len(name) > _LONGEST_USER_NAME or "::" in name:  # aten::mm: operators, most of the names under emit_nvtx
        return None
    return _user_range(name) or _module_range(name)


def mark_fields(text: str) -> dict[str, Any]:
    """The fields of a mark that holds a JSON object; {} for any other text."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def base_name(name: str) -> str:
    """The name without what emit_nvtx appends for each call: sequence number, operator id, sizes, inputs."""
    if " = " not in name:
        return name
    cuts = [at for mark in _SERIALS if (at := name.find(mark)) >= 0]
    return name[: min(cuts)] if cuts else name


_SERIALS = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
_LIBRARY_DOMAINS = frozenset({"NCCL", "CCCL", "NVSHMEM", "TensorRT", "tracekit.comm"})
_LONGEST_USER_NAME = 200

_FORWARD = Annotation(phase="forward")
_BACKWARD = Annotation(phase="backward")
_OPTIMIZER = Annotation(phase="optimizer")
_DATA = Annotation(phase="data")

_PHASES = {"forward": _FORWARD, "fwd": _FORWARD, "backward": _BACKWARD, "bwd": _BACKWARD}


def _own_range(name: str) -> Annotation | None:
    """The instrumented trainer: step (its number is the payload), data, forward, backward, optimizer, fwd/layers.N."""
    if name == "step":
        return Annotation(step="tracekit")
    direction, slash, module = name.partition("/")
    if slash and direction in ("fwd", "bwd"):
        return Annotation(phase=_PHASES[direction].phase, module=_module_path(module))
    return _USER_PHASES.get(name)


# --- frameworks ---

# AddmmBackward0; but not RegisterPostBackwardFunction, which FSDP2 runs in the forward.
_AUTOGRAD_NODE = re.compile("[A-Za-z]Backward[0-9]*$")
_PIPELINE_ACTION = re.compile("[0-9]+([FBIW])[0-9]+")  # stage, action, microbatch


def _framework_range(name: str) -> Annotation | None:
    for prefix, describe in _FRAMEWORKS:
        if name.startswith(prefix):
            return describe(name[len(prefix) :]) if callable(describe) else describe
    return None


def _profiler_step(rest: str) -> Annotation | None:
    number = _number(rest)
    return None if number is None else Annotation(step="ProfilerStep#", step_number=number)


def _fsdp1(method: str) -> Annotation | None:
    """FullyShardedDataParallel.: forward, _pre_forward, _pre_backward_hook, _post_backward_prefetch ..."""
    return _BACKWARD if "backward" in method else _FORWARD if "forward" in method else None


def _fsdp2(rest: str) -> Annotation | None:
    """FSDP::: ``pre_forward (layers.0)``, ``backward_prefetch for layers.1``, ``all_gather (norm, output) [pg=8]`` ...

    These ranges hold FSDP's own work around a module, not the module's compute; gathers happen in both directions.
    """
    action, _, target = rest.partition(" ")
    phase = "backward" if "backward" in action else "forward" if "forward" in action else None
    module = None
    if target.startswith("for "):
        module = _module_path(target[4:])
    elif target.startswith("(") and ")" in target:
        module = _module_path(target[1 : target.rindex(")")])
    return Annotation(phase=phase, module=module) if phase or module else None


def _lightning(action: str) -> Annotation | None:
    """``run_training_batch`` is forward, backward and optimizer; ``training_step`` is the forward only.

    ``optimizer_step`` runs all three through its closure, so it is no phase.
    """
    if action == "run_training_batch":
        return Annotation(step="lightning")
    return _LIGHTNING_HOOKS.get(action.rpartition(".")[2])


_LIGHTNING_HOOKS = {
    "training_step": _FORWARD,
    "model_forward": _FORWARD,
    "backward": _BACKWARD,
    "optimizer_zero_grad": _OPTIMIZER,
    "configure_gradient_clipping": _OPTIMIZER,
    "train_dataloader_next": _DATA,
    "get_train_batch": _DATA,
    "batch_to_device": _DATA,
    "transfer_batch_to_device": _DATA,
}


def _lightning_module(rest: str) -> Annotation | None:
    """``torch.nn.modules.linear.Linear: layers.3.mlp``"""
    module = _module_path(rest.partition(": ")[2])
    return Annotation(module=module) if module else None


def _deepspeed(rest: str) -> Annotation | None:
    """Class.method. Fetching parameters (PartitionedParameterCoordinator) happens in both directions."""
    return _DEEPSPEED_METHODS.get(rest.partition(".")[2])


_DEEPSPEED_METHODS = {
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "allreduce_gradients": _BACKWARD,
    "step": _OPTIMIZER,
    "pre_sub_module_forward_function": _FORWARD,
    "post_sub_module_forward_function": _FORWARD,
    "pre_sub_module_backward_function": _BACKWARD,
    "post_sub_module_backward_function": _BACKWARD,
}


def _pipeline(rest: str) -> Annotation | None:
    """torch.distributed.pipelining: F forward; B, I, W backward (whole, inputs, weights)."""
    found = _PIPELINE_ACTION.fullmatch(rest)
    return None if found is None else _FORWARD if found[1] == "F" else _BACKWARD


def _xla(rest: str) -> Annotation | None:
    """A run of a compiled program; of their names only that of a training step is told apart."""
    return Annotation(step="XlaModule") if xla_step(f"XlaModule:#{rest}") else None


_FRAMEWORKS = (
    ("ProfilerStep#", _profiler_step),
    ("autograd::engine::evaluate_function: ", _BACKWARD),
    ("torch::autograd::AccumulateGrad", _BACKWARD),
    ("torch.distributed.ddp.reducer::copy_bucket_to_grad", _BACKWARD),
    ("Optimizer.step#", _OPTIMIZER),
    ("Optimizer.zero_grad#", _OPTIMIZER),
    ("enumerate(DataLoader)#", _DATA),
    ("DistributedDataParallel.forward", _FORWARD),
    ("DataParallel.forward", _FORWARD),
    ("FullyShardedDataParallel.", _fsdp1),
    ("FSDP::", _fsdp2),
    ("PP:", _pipeline),
    ("[pl][profile]", _lightning),
    ("[pl][module]", _lightning_module),
    ("DeepSpeed", _deepspeed),
    ("XlaModule:#", _xla),
    ("TSL:XlaModule:#", _xla),
)
_FRAMEWORK_PREFIXES = tuple(prefix for prefix, _ in _FRAMEWORKS)

# --- what users write ---

_DECORATION = " \t#*=<>[]"
_SEPARATORS = str.maketrans(" -./:", "_____")

_USER_PHASES = {
    word: annotation
    for annotation, words in (
        (_FORWARD, "forward fwd forward_pass fwd_pass model_forward"),
        (_BACKWARD, "backward bwd backward_pass bwd_pass loss_backward model_backward"),
        (
            _OPTIMIZER,
            "optimizer optim opt optimizer_step optim_step opt_step step_optimizer zero_grad optimizer_zero_grad"
            " clip_grad clip_grad_norm clip_gradients grad_clip gradient_clipping",
        ),
        (
            _DATA,
            "data dataloader data_loader dataloading data_loading data_load load_data load_batch batch_load get_batch"
            " next_batch fetch_batch fetch_data wait_for_batch batch_generator batch_to_device data_to_device",
        ),
    )
    for word in words.split()
}

_LONGEST_WORD = 1 + max(map(len, _USER_PHASES))


def _user_range(name: str) -> Annotation | None:
    """``forward``, ``## forward:tower ##``, ``opt.step()``, ``Fwd_3`` (microbatch), ``step 12``, ``Iteration_7`` ..."""
    text = name.strip(_DECORATION)
    if name.startswith("##"):
        text = text.partition(":")[0]
    if (step := step_of(text)) is not None:
        return Annotation(step=step[0], step_number=step[1])
    text = text.removesuffix("()").lower()
    stem = text.rstrip("0123456789")
    if len(stem) > _LONGEST_WORD:
        return None
    return _USER_PHASES.get(stem.rstrip(" _-#:=./").translate(_SEPARATORS))


def _number(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) <= 18 else None


# --- modules ---

# A numbered member of what models call their stack of layers.
_IN_A_STACK = re.compile(
    r"(?:^|[./: ])(?:(?:layers?|blocks?|h|resblocks|stages)\.[0-9]+|(?:layer|block)_?[0-9]+)(?:[./: ]|$)"
)
_DIRECTED = re.compile(
    r"(?:(fwd|bwd|forward|backward)[/: ])?([A-Za-z_][\w.]*?)(?:[./: ](fwd|bwd|forward|backward))?", re.ASCII
)
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})


def _module_range(name: str) -> Annotation | None:
    """``layers.3``, ``transformer.h.0.mlp``, ``fwd/layers.3``, ``layers.3.forward``."""
    if not _IN_A_STACK.search(name):
        return None
    found = _DIRECTED.fullmatch(name)
    if found is None or (found[1] and found[3]):
        return None
    direction = found[1] or found[3]
    return Annotation(phase=_PHASES[direction].phase if direction else None, module=_module_path(found[2]))


def _module_path(path: str) -> str | None:
    """The path without the layers that wrappers put in; None where nothing is left."""
    path = path.strip()
    if "_wrapped_module" in path or "_orig_mod" in path:
        path = ".".join(part for part in path.split(".") if part not in _WRAPPERS)
    return path.removeprefix("module.") or None  # DDP and DeepSpeed wrap at the root
