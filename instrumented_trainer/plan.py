"""The collectives of one step on many ranks, without running it: on fake tensors, or from bucket plans.

FSDP and HSDP really run, on tensors without storage, as rank 0. DDP and ZeRO do not run on fake tensors; their buckets
follow from the order of the parameters, and tests hold the plan against real runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from instrumented_trainer import annotate, formulas, strategies
from instrumented_trainer.config import DEEPSPEED, Config, check_world
from instrumented_trainer.errors import TrainerError
from instrumented_trainer.model import GPT
from instrumented_trainer.output import write_json

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One collective of the step, in the order of issue."""

    op: str
    module: str
    phase: str
    dtype: str
    elements: int
    """Of the full tensor, padding included."""
    bytes: int
    group: str
    group_size: int


def make(config: Config) -> list[Planned]:
    """The collectives of one step on ``config.dry_world`` ranks.

    Raises:
        TrainerError: the strategy cannot work on so many ranks, or is not planned.
    """
    world = config.dry_world or 1
    check_world(config, world, device="cuda")
    if config.strategy == "single" or world == 1:
        return []
    if config.strategy in ("ddp", "zero1", *DEEPSPEED):
        return list(_bucket_plan(config, world))
    return _fake_run(config, world)


# ---------------------------------------------------------------------------------------------- fsdp1, fsdp2, hsdp


def _fake_run(config: Config, world: int) -> list[Planned]:
    # Neither changes a collective, and neither works on fake tensors of the CPU.
    config = replace(config, compile=False, cpu_offload=False, meta_init=False)
    if (
        config.fsdp1_sharding == "grad-op"
    ):  # on fake tensors FSDP1 loses sight of original parameters that it keeps whole
        config = replace(config, use_orig_params=False)
    where = {"phase": "", "module": ""}
    planned: list[Planned] = []
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    annotate.collectives()
    annotate.observe(
        lambda c: planned.append(
            Planned(
                op=c.op,
                module=where["module"],
                phase=where["phase"],
                dtype=c.dtype,
                elements=c.elements,
                bytes=c.bytes,
                group=c.group,
                group_size=c.group_size,
            )
        )
    )
    mesh = strategies.mesh_of(config, "cpu", world)
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True):
        warnings.simplefilter("ignore")  # FSDP1 on what looks like a CPU
        strategy = strategies.build(config, torch.device("cpu"), mesh)
        _tell_modules(strategy.module, where)
        planned.clear()  # what wrapping moved
        tokens = torch.zeros(config.batch, config.model.seq, dtype=torch.long)
        for micro in range(config.grad_accumulation):
            with strategy.microbatch(last=micro == config.grad_accumulation - 1):
                where["phase"] = "forward"
                loss = strategy.forward(tokens, tokens)
                where["phase"] = "backward"
                strategy.backward(loss)
    dist.destroy_process_group()
    return planned


def _tell_modules(root: nn.Module, where: dict[str, str]) -> None:
    """Keep ``where["module"]`` at the unit whose collective comes next."""
    if isinstance(root, FSDPModule):
        for name, module in root.named_modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_Named(name or "root", where, _gather))
                module.set_custom_reduce_scatter(_Named(name or "root", where, _scatter))
        return
    names = {
        id(module._handle): _plain(name) or "root"
        for name, module in root.named_modules()
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None
    }
    # FSDP1 has no public door for this; both take (state, handle, ...) in every version that has FSDP2 too.
    from torch.distributed.fsdp import _runtime_utils  # noqa: PLC0415 - private, and only for FSDP1

    for function in ("_unshard", "_reduce_grad"):
        original = getattr(_runtime_utils, function)

        def told(state: Any, handle: Any, *rest: Any, original: Callable[..., Any] = original) -> Any:
            where["module"] = names.get(id(handle), "?")
            return original(state, handle, *rest)

        setattr(_runtime_utils, function, told)


def _plain(name: str) -> str:
    """A module's name without the wrappers'."""
    return ".".join(part for part in name.split(".") if not part.startswith("_"))


class _Named:
    """FSDP2's interface for custom collectives: the default ones, saying first whose they are."""

    def __init__(self, name: str, where: dict[str, str], call: Callable[..., Any]) -> None:
        self._name, self._where, self._call = _plain(name), where, call

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Plain memory."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the collective."""
        self._where["module"] = self._name
        return self._call(*args, **kwargs)


def _gather(output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return function(output_tensor, input_tensor, group=group, async_op=async_op)


def _scatter(output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


# ------------------------------------------------------------------------------------------------------- ddp, zero*


def _bucket_plan(config: Config, world: int) -> Iterator[Planned]:
    with torch.device("meta"):
        model = GPT(config.model)
    named = list(model.named_parameters())
    reductions = 1 if config.defer_reduction else config.grad_accumulation
    low = torch.bfloat16 if config.bf16 and config.strategy in DEEPSPEED else torch.float32

    def one(op: str, module: str, phase: str, elements: int) -> Planned:
        return Planned(
            op=op, module=module, phase=phase, dtype=str(low).removeprefix("torch."), elements=elements,
            bytes=elements * low.itemsize, group="world", group_size=world,
        )  # fmt: skip

    if config.strategy in ("ddp", "zero1"):
        for bucket in _ddp_buckets(config, named) * reductions:
            yield one("all_reduce", _span(bucket), "backward", sum(p.numel() for _, p in bucket))
        if config.strategy == "zero1":
            for name, elements in _zero1_broadcasts(named, world):
                yield one("broadcast", name, "optimizer", elements)
    elif config.strategy == "zero3":
        yield from _zero3(config, model, world, one)
    else:
        for _ in range(config.grad_accumulation if config.strategy == "zero2" else 1):
            for bucket in _deepspeed_buckets(config, named):
                yield one("all_reduce", _span(bucket), "backward", sum(p.numel() for _, p in bucket))
        yield one("all_gather", "all", "optimizer", _padded(config.model.parameters, 2 * world))


Named = tuple[str, nn.Parameter]


def _ddp_buckets(config: Config, named: list[Named]) -> list[list[Named]]:
    """DDP's buckets after its first step, when it has seen gradients arrive in the reverse order of their use."""
    arrival = named[::-1]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * MIB] if config.bucket_mb is None else [int(config.bucket_mb * MIB)]
    indices, _ = dist._compute_bucket_assignment_by_size([p for _, p in arrival], limits, [False] * len(arrival))
    return [[arrival[i] for i in bucket] for bucket in indices]


def _zero1_broadcasts(named: list[Named], world: int) -> list[tuple[str, int]]:
    """ZeroRedundancyOptimizer's parameters by owner: largest first, each to the rank that has least so far."""
    owned: list[list[Named]] = [[] for _ in range(world)]
    load = [0] * world
    for item in sorted(named, key=lambda item: item[1].numel(), reverse=True):
        rank = load.index(min(load))
        owned[rank].append(item)
        load[rank] += item[1].numel()
    return [(name, p.numel()) for items in owned for name, p in items]


def _deepspeed_buckets(config: Config, named: list[Named]) -> list[list[Named]]:
    """DeepSpeed's gradient buckets, each sent before a gradient that would not fit.

    Filled as gradients arrive, except by ZeRO-1, which goes through the parameters once backward has ended.
    """
    zero = strategies.deepspeed_config(config)["zero_optimization"]
    limit = zero.get("reduce_bucket_size", 500_000_000)
    buckets: list[list[Named]] = [[]]
    elements = 0
    for name, parameter in named if config.strategy == "zero1-ds" else named[::-1]:
        if elements and elements + parameter.numel() > limit:
            buckets.append([])
            elements = 0
        buckets[-1].append((name, parameter))
        elements += parameter.numel()
    return buckets


def _zero3(config: Config, model: GPT, world: int, one: Callable[..., Planned]) -> Iterator[Planned]:
    if config.activation_checkpointing or config.model.tied:
        raise TrainerError(
            "zero3 with recomputation or tied weights is not planned: what is gathered again depends on timing"
        )
    owners = [(name, m) for name, m in model.named_modules() if any(True for _ in m.parameters(recurse=False))]
    gathers = [(name, _padded(m.weight.numel(), world)) for name, m in owners]
    for _ in range(config.grad_accumulation):
        yield from (one("all_gather", name, "forward", elements) for name, elements in gathers)
        yield from (one("all_gather", name, "backward", elements) for name, elements in gathers[::-1])
        for bucket in _deepspeed_buckets(config, list(model.named_parameters())):
            yield one("reduce_scatter", _span(bucket), "backward", sum(_padded(p.numel(), world) for _, p in bucket))


def _padded(elements: int, multiple: int) -> int:
    return -(-elements // multiple) * multiple


def _span(bucket: list[Named]) -> str:
    first, last = bucket[0][0], bucket[-1][0]
    return first if first == last else f"{first} .. {last}"


# ----------------------------------------------------------------------------------------------------------- report


def totals(config: Config, plan: list[Planned]) -> list[dict[str, Any]]:
    """Elements and bytes by op, dtype and group size, beside the formula's; the difference is padding."""
    expected = formulas.step_volumes(config, config.dry_world or 1)
    rows = []
    for key, calls in groupby(sorted(plan, key=_kind), key=_kind):
        op, dtype, group_size = key
        found = list(calls)
        elements = sum(c.elements for c in found)
        formula = sum(v.elements for v in expected or () if (v.op, v.dtype, v.group_size) == key)
        rows.append({
            "op": op, "dtype": dtype, "group_size": group_size, "calls": len(found), "elements": elements,
            "formula_elements": formula if expected is not None else None,
            "padding_elements": elements - formula if expected is not None else None,
            "bytes": sum(c.bytes for c in found),
            "wire_elements": formulas.wire(op, elements, group_size),
            "wire_bytes": formulas.wire(op, sum(c.bytes for c in found), group_size),
        })  # fmt: skip
    return rows


def units(config: Config, plan: list[Planned]) -> dict[str, dict[str, float]]:
    """For FSDP: what the layers and the root unit gather and scatter on the wire, also as a multiple of their P.

    FSDP2's default gives 3·(N-1)/N·P for the layers and 2·(N-1)/N·P for the root, apart from padding.
    """
    if config.strategy not in ("fsdp1", "fsdp2", "hsdp") or config.wrap != "block" or not plan:
        return {}
    in_layers = config.model.layers * config.model.layer_parameters
    result = {}
    for unit, parameters in (("layers", in_layers), ("root", config.model.parameters - in_layers)):
        moves = [c for c in plan if (c.module == "root") == (unit == "root") and c.op != "all_reduce"]
        n = max(c.group_size for c in moves)
        moved = sum(formulas.wire(c.op, c.elements, c.group_size) for c in moves)
        one = parameters * (n - 1) / n
        result[unit] = {"parameters": parameters, "wire_elements": moved, "times_p": moved / one if one else 0.0}
    return result


def _kind(c: Planned) -> tuple[str, str, int]:
    return c.op, c.dtype, c.group_size


def show(config: Config) -> None:
    """Print the plan and its totals, and save both as JSON."""
    plan = make(config)
    rows, world = totals(config, plan), config.dry_world or 1
    paper, moved = formulas.paper_elements(config, world), sum(row["wire_elements"] for row in rows)
    why = formulas.explanation(config)
    path = Path(config.json or f"plan-{config.model.name}-{config.strategy}-{world}.json")
    write_json(path, {
        "strategy": config.strategy, "world_size": world, "model": asdict(config.model),
        "totals": rows, "units": units(config, plan),
        "wire_elements": moved, "paper_wire_elements": paper, "difference": why,
        "collectives": [asdict(c) for c in plan],
    })  # fmt: skip
    print(f"{config.model.name}, {config.model.parameters / 1e9:.3g} B parameters, {config.strategy} on {world} ranks:"
          f" {len(plan)} collectives a step, in order of issue on rank 0")  # fmt: skip
    print(f"{'#':>5} {'phase':<10} {'op':<15} {'module':<52} {'dtype':<9} {'group':<12} {'MB':>11}")
    for i, c in enumerate(plan, 1):
        group = f"{c.group} ({c.group_size})"
        print(f"{i:5d} {c.phase:<10} {c.op:<15} {c.module:<52} {c.dtype:<9} {group:<12} {c.bytes / 1e6:11.3f}")
    for row in rows:
        formula = "no formula" if row["formula_elements"] is None else (
            f"formula {row['formula_elements']:,} + padding {row['padding_elements']:,}")  # fmt: skip
        print(f"{row['op']} in {row['dtype']} over {row['group_size']} ranks: {row['calls']} calls,"
              f" {row['elements']:,} elements ({formula}), {row['wire_bytes'] / 1e9:.3f} GB sent a rank")  # fmt: skip
    for unit, row in units(config, plan).items():
        print(f"{unit}: {row['parameters']:,.0f} parameters, {row['wire_elements']:,.0f} elements a rank on the wire"
              f" = {row['times_p']:.3f} (N-1)/N P")  # fmt: skip
    print(f"a step moves {moved:,.0f} elements a rank; the papers' formula gives {paper:,.0f} a microbatch")
    if why is not None:
        print(f"the difference: {why}")
    print(f"saved as {path}")
