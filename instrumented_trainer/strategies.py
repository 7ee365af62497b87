"""Every sharding strategy, each in the few lines that its library asks for, behind one small interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import CustomPolicy, size_based_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel

from instrumented_trainer import annotate
from instrumented_trainer.config import DEEPSPEED, Config, shard_size
from instrumented_trainer.errors import TrainerError
from instrumented_trainer.model import GPT


class Strategy:
    """A model that trains: wrapped module, optimizer, and how gradients are reduced, clipped and applied."""

    def __init__(self, config: Config, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.config, self.module, self.optimizer = config, module, optimizer
        self.layers = nn.ModuleList()
        """The decoder layers in their outermost wrappers."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss of this rank's microbatch."""
        return self.module(tokens, targets)

    def microbatch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Context of one microbatch's forward and backward; gradients are reduced in it unless that is deferred."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients of the mean over the step's microbatches."""
        (loss / self.config.grad_accumulation).backward()

    def clip(self, norm: float) -> None:
        """Scale the gradients down to this total norm."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def step(self) -> None:
        """Clip if asked to, update the weights, drop the gradients."""
        if self.config.clip is not None:
            with annotate.span("clip"):
                self.clip(self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class WithAutocast(Strategy):
    """Whole parameters on every rank: mixed precision is autocast's business."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss of this rank's microbatch."""
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=self.config.bf16):
            return self.module(tokens, targets)


class WithNoSync(Strategy):
    """DDP and FSDP1 defer the reduction through ``no_sync``."""

    def microbatch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Reduce in the last microbatch only, unless asked to reduce in each."""
        return nullcontext() if last or not self.config.defer_reduction else self.module.no_sync()


class DDP(WithAutocast, WithNoSync):
    """DistributedDataParallel; with ZeroRedundancyOptimizer it is ZeRO-1."""


class FSDP1(WithNoSync):
    """FullyShardedDataParallel."""

    def clip(self, norm: float) -> None:
        """FSDP1 needs its own, since no rank has the whole gradient."""
        self.module.clip_grad_norm_(norm)


class FSDP2(Strategy):
    """``fully_shard``, in one or two dimensions."""

    @contextmanager
    def microbatch(self, *, last: bool) -> Iterator[None]:
        """Reduce in the last microbatch only, unless asked to reduce in each."""
        self.module.set_requires_gradient_sync(last or not self.config.defer_reduction)
        self.module.set_is_last_backward(last)
        yield


class DeepSpeed(Strategy):
    """A DeepSpeed engine, which owns the optimizer, the scaling, the clipping and the accumulation."""

    def backward(self, loss: Tensor) -> None:
        """The engine divides by the number of microbatches itself."""
        self.module.backward(loss)

    def microbatch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Step inside the accumulation too: the engine counts its microbatches there."""
        return nullcontext() if last else self._counted()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        yield
        self.module.step()

    def step(self) -> None:
        """The engine clips, steps and drops the gradients."""
        self.module.step()


def mesh_of(config: Config, device_type: str, world: int) -> DeviceMesh | None:
    """The device mesh that the strategy shards over, where it takes one."""
    if config.strategy == "hsdp" or (config.strategy == "fsdp1" and config.fsdp1_sharding == "hybrid"):
        size = shard_size(config, world)
        return init_device_mesh(device_type, (world // size, size), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device_type, (world,), mesh_dim_names=("shard",)) if config.strategy == "fsdp2" else None


def build(config: Config, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    """The model of ``config``, wrapped and sharded over ``mesh`` as it asks, annotated, with its optimizer.

    Raises:
        TrainerError: DeepSpeed is asked for and not installed.
    """
    torch.manual_seed(config.seed)
    with torch.device("meta" if config.meta_init else device):
        model = GPT(config.model)
    _wrap_layers(config, model)
    strategy = _BUILDERS[config.strategy](config, model, device, mesh)
    strategy.layers = model.layers
    layers = {f"layers.{i}": layer for i, layer in enumerate(model.layers)}
    annotate.modules({"embed": model.embed, **layers, "head": model.head})
    return strategy


def _wrap_layers(config: Config, model: GPT) -> None:
    """Checkpoint, then compile each layer: recomputation becomes part of the compiled graph, and hooks stay outside."""
    for i, layer in enumerate(model.layers):
        if config.activation_checkpointing:
            # A compiled layer decides itself what to recompute, and takes no ranges.
            context = {} if config.compile else {"context_fn": annotate.recompute(f"layers.{i}")}
            layer = checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT, **context)  # noqa: PLW2901
        model.layers[i] = torch.compile(layer, fullgraph=True) if config.compile else layer


def _adamw(config: Config, module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=config.lr, fused=device.type == "cuda" and not config.cpu_offload)


def _single(config: Config, model: GPT, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    return WithAutocast(config, model, _adamw(config, model, device))


def _ddp(config: Config, model: GPT, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    module = DistributedDataParallel(model, bucket_cap_mb=config.bucket_mb, gradient_as_bucket_view=True)
    # DDP's own all-reduce happens in C++, out of reach of annotations; this hook does the same in Python.
    module.register_comm_hook(None, allreduce_hook)
    if config.strategy == "ddp":
        return DDP(config, module, _adamw(config, module, device))
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415 - slow to import, and warns of itself

    optimizer = ZeroRedundancyOptimizer(module.parameters(), optimizer_class=torch.optim.AdamW, lr=config.lr)
    return DDP(config, module, optimizer)


def _fsdp1(config: Config, model: GPT, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    sharding = {
        "full": ShardingStrategy.FULL_SHARD,
        "grad-op": ShardingStrategy.SHARD_GRAD_OP,
        "hybrid": ShardingStrategy.HYBRID_SHARD,
    }[config.fsdp1_sharding]
    prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
    layers = set(model.layers)
    policy: Any = CustomPolicy(layers.__contains__)
    if config.wrap_size is not None:
        policy = partial(size_based_auto_wrap_policy, min_num_params=config.wrap_size)
    low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if config.bf16 else None
    module = FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=sharding,
        auto_wrap_policy=policy,
        backward_prefetch=prefetch[config.backward_prefetch],
        mixed_precision=low,
        use_orig_params=config.use_orig_params,
        cpu_offload=CPUOffload(offload_params=True) if config.cpu_offload else None,
        device_id=device,
    )
    return FSDP1(config, module, _adamw(config, module, device))


def _fsdp2(config: Config, model: GPT, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    shard(config, model, mesh)
    if config.meta_init:
        model.to_empty(device="cpu" if config.cpu_offload else device)
        _initialise_shards(model, config.seed, mesh.get_local_rank("shard"))
    return FSDP2(config, model, _adamw(config, model, device))


def shard(config: Config, model: GPT, mesh: DeviceMesh) -> None:
    """``fully_shard`` each layer and then the rest, which forms the root unit (tables and final norm)."""
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    reshard = {"auto": None, "always": True, "never": False}
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": low if config.bf16 else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if config.cpu_offload else OffloadPolicy(),
        "reshard_after_forward": int(config.reshard) if config.reshard.isdigit() else reshard[config.reshard],
    }
    for layer in model.layers:
        fully_shard(layer, **options)
    if config.reshard.isdigit():
        options["reshard_after_forward"] = None  # the root is needed first in backward: FSDP2's default keeps it whole
    fully_shard(model, **options)
    layers = list(model.layers)
    for i, layer in enumerate(layers if config.prefetch else []):
        layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 1 + config.prefetch])
        layer.set_modules_to_backward_prefetch(layers[max(0, i - config.prefetch) : i][::-1])


def _initialise_shards(model: GPT, seed: int, shard_rank: int) -> None:
    """Draw each rank's shard by itself; replicas of a shard draw the same."""
    torch.manual_seed(seed + shard_rank)
    with torch.no_grad():
        for parameter in model.parameters():
            local = parameter.to_local()
            local.fill_(1.0) if parameter.ndim == 1 else local.normal_(std=0.02)


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, with its accelerator chosen.

    Raises:
        TrainerError: it is not installed, or does not import here.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    try:
        import deepspeed  # noqa: PLC0415 - an extra of its own, slow to import
    except ImportError as error:
        raise TrainerError(
            f"zero1-ds, zero2 and zero3 need DeepSpeed, which does not import here ({error})",
            hint='pip install "nsys-tracekit[deepspeed]"',
        ) from None
    return deepspeed


def deepspeed_config(config: Config) -> dict[str, Any]:
    """What `deepspeed.initialize` is given."""
    zero: dict[str, Any] = {"stage": {"zero1-ds": 1, "zero2": 2, "zero3": 3}[config.strategy]}
    if config.bucket_mb is not None:
        zero["reduce_bucket_size"] = int(config.bucket_mb * 2**20 / (2 if config.bf16 else 4))
    if config.strategy == "zero3":
        # The paper's ZeRO-3: gather for forward, free, gather again for backward. DeepSpeed's defaults keep small
        # tensors, and up to 1e9 parameters that are needed again soon, and so move less and hold more.
        zero |= {
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_max_live_parameters": 0,
        }
    if config.cpu_offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if config.strategy == "zero3":
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": config.batch,
        "gradient_accumulation_steps": config.grad_accumulation,
        "gradient_clipping": config.clip or 0.0,
        "bf16": {"enabled": config.bf16},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def _deepspeed(config: Config, model: GPT, device: torch.device, mesh: DeviceMesh | None) -> Strategy:
    deepspeed = import_deepspeed(device)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=config.lr),
        config=deepspeed_config(config),
        dist_init_required=False,
    )
    return DeepSpeed(config, engine, optimizer)


_BUILDERS = {
    "single": _single,
    "ddp": _ddp,
    "zero1": _ddp,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "hsdp": _fsdp2,
    **dict.fromkeys(DEEPSPEED, _deepspeed),
}


def barrier(device: torch.device) -> None:
    """A barrier that names its device, so that NCCL does not guess one."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
