"""The command line of the trainer, as one frozen value, and which combinations cannot work.

Importing this module needs neither torch nor nvtx, so that launchers can refuse a bad command before they start a job.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from instrumented_trainer.errors import TrainerError

STRATEGIES = ("single", "ddp", "zero1", "zero1-ds", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp")
DEEPSPEED = ("zero1-ds", "zero2", "zero3")
FAULTS = (
    "slow-rank", "slow-link", "data-stall", "gc", "sync", "hang",
    "exit", "extra-collective", "skip-step", "reorder", "size-mismatch",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the model: a decoder with RMS norm, rotary positions, grouped-query attention and a gated MLP."""

    name: str = "tiny"
    layers: int = 4
    dim: int = 128
    heads: int = 4
    kv_heads: int = 4
    hidden: int = 344
    vocab: int = 1024
    seq: int = 64
    tied: bool = False
    """The output projection is the embedding table."""

    def check(self) -> None:
        """Raise TrainerError for sizes that do not divide."""
        for name in ("layers", "dim", "heads", "kv_heads", "hidden", "vocab", "seq"):
            if getattr(self, name) < 1:
                raise TrainerError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.dim % (2 * self.heads):
            raise TrainerError(
                f"--dim {self.dim} does not divide into {self.heads} heads of even size",
                hint=f"make --dim a multiple of {2 * self.heads}",
            )
        if self.heads % self.kv_heads:
            raise TrainerError(f"--heads {self.heads} is not a multiple of --kv-heads {self.kv_heads}")

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        kv_dim = self.dim // self.heads * self.kv_heads
        return 2 * self.dim * (self.dim + kv_dim) + 3 * self.dim * self.hidden + 2 * self.dim

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        tables = (1 if self.tied else 2) * self.vocab * self.dim
        return self.layers * self.layer_parameters + tables + self.dim

    def flops_per_token(self) -> int:
        """Model FLOPs a token of one step, forward and backward: 6(N - N_embedding) + 12·layers·dim·seq.

        Only the look-up table counts as embedding; the output projection is a matrix product also where it is tied.
        """
        multiplied = self.parameters - (0 if self.tied else self.vocab * self.dim)
        return 6 * multiplied + 12 * self.layers * self.dim * self.seq


def _llama(name: str, layers: int, dim: int, heads: int, kv_heads: int, hidden: int) -> ModelConfig:
    return ModelConfig(
        name=name, layers=layers, dim=dim, heads=heads, kv_heads=kv_heads, hidden=hidden, vocab=32000, seq=4096
    )


PRESETS = {
    model.name: model
    for model in (
        ModelConfig(),
        ModelConfig(
            name="small", layers=12, dim=768, heads=12, kv_heads=12, hidden=2048, vocab=50304, seq=1024, tied=True
        ),
        ModelConfig(name="medium", layers=24, dim=2048, heads=16, kv_heads=16, hidden=5504, vocab=50304, seq=2048),
        _llama("llama-7b", 32, 4096, 32, 32, 11008),
        _llama("llama-13b", 40, 5120, 40, 40, 13824),
        _llama("llama-70b", 80, 8192, 64, 8, 28672),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run. Field names are the flags with underscores; `parse` documents each."""

    model: ModelConfig
    strategy: str
    steps: int
    batch: int
    seed: int
    lr: float
    device: str
    bf16: bool
    compile: bool
    activation_checkpointing: bool
    grad_accumulation: int
    defer_reduction: bool
    clip: float | None
    cpu_offload: bool
    prefetch: int
    reshard: str
    shard_size: int | None
    meta_init: bool
    fsdp1_sharding: str
    wrap: str
    backward_prefetch: str
    use_orig_params: bool
    bucket_mb: float | None
    fault: str | None
    fault_rank: int | None
    fault_step: int
    fault_size: float | None
    timeout: float
    log_every: int
    capture_after: int | None
    nvtx: bool
    json: str | None
    dry_world: int | None

    @property
    def wrap_size(self) -> int | None:
        """Smallest unit in parameters under ``--wrap size:N``; None wraps each layer."""
        return None if self.wrap == "block" else int(self.wrap.removeprefix("size:"))


class _Parser(argparse.ArgumentParser):
    """Argparse with errors of one line, raised rather than printed: launchers and ranks decide who speaks."""

    def error(self, message: str) -> NoReturn:
        raise TrainerError(message, hint="--help lists the flags")


def parser() -> argparse.ArgumentParser:
    """The command line; `parse` turns it into a checked Config."""
    p = _Parser(
        prog="instrumented_trainer", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Train a small GPT under any sharding strategy, annotated for tracekit. Start it with torchrun.",
    )  # fmt: skip
    m = p.add_argument_group("model")
    m.add_argument("--model", choices=PRESETS, default="tiny", help="preset sizes; each can be changed below")
    for name in ("layers", "dim", "heads", "kv-heads", "hidden", "vocab", "seq"):
        m.add_argument(
            f"--{name}", type=int, help="the preset's" if name != "seq" else "tokens a sequence; the preset's"
        )
    m.add_argument(
        "--tied", action=argparse.BooleanOptionalAction, help="tie output projection and embedding; the preset's"
    )

    r = p.add_argument_group("run")
    r.add_argument("--steps", type=int, default=10, help="optimizer steps")
    r.add_argument("--batch", type=int, default=4, help="sequences a rank and microbatch")
    r.add_argument("--seed", type=int, default=0, help="of weights and data")
    r.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    r.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes a GPU where there is one"
    )
    r.add_argument("--bf16", action="store_true", help="compute in bfloat16; FSDP reduces in float32")
    r.add_argument("--compile", action="store_true", help="compile each layer")
    r.add_argument("--activation-checkpointing", action="store_true", help="recompute each layer in backward")
    r.add_argument("--grad-accumulation", type=int, default=1, metavar="K", help="microbatches a step")
    r.add_argument("--defer-reduction", action=argparse.BooleanOptionalAction, default=True,
                   help="reduce gradients only after the last microbatch")  # fmt: skip
    r.add_argument("--clip", type=float, metavar="NORM", help="clip the gradient norm")
    r.add_argument("--timeout", type=float, default=300, help="seconds after which a stuck collective ends the job")
    r.add_argument("--log-every", type=int, default=10, help="steps between reports; each one synchronises")
    r.add_argument("--json", metavar="FILE", help="rank 0 writes losses, times, memory and bytes there")

    s = p.add_argument_group("sharding")
    s.add_argument("--strategy", choices=STRATEGIES, default="fsdp2", help="zero1-ds, zero2 and zero3 need DeepSpeed")
    s.add_argument(
        "--cpu-offload", action="store_true", help="fsdp1, fsdp2, hsdp, zero2, zero3: keep the shards in host memory"
    )
    s.add_argument("--prefetch", type=int, default=0, metavar="DEPTH",
                   help="fsdp2, hsdp: layers gathered ahead explicitly; 0 leaves it to FSDP2")  # fmt: skip
    s.add_argument("--reshard", default="auto", metavar="auto|always|never|N",
                   help="fsdp2, hsdp: after forward; auto keeps the root whole, N reshards to N ranks")  # fmt: skip
    s.add_argument(
        "--shard-size", type=int, metavar="N", help="hsdp, fsdp1 hybrid: ranks a shard group; default half of the ranks"
    )
    s.add_argument("--meta-init", action="store_true", help="fsdp2, hsdp: never hold the whole model on one rank")
    s.add_argument(
        "--fsdp1-sharding", choices=("full", "grad-op", "hybrid"), default="full", help="fsdp1's ShardingStrategy"
    )
    s.add_argument(
        "--wrap",
        default="block",
        metavar="block|size:N",
        help="fsdp1: a unit a layer, or units of N parameters or more",
    )
    s.add_argument(
        "--backward-prefetch", choices=("pre", "post", "none"), default="pre", help="fsdp1's BackwardPrefetch"
    )
    s.add_argument(
        "--use-orig-params", action=argparse.BooleanOptionalAction, default=True, help="fsdp1's use_orig_params"
    )
    s.add_argument(
        "--bucket-mb", type=float, help="ddp, zero1, DeepSpeed: size of a gradient bucket in MiB; the library's own"
    )

    f = p.add_argument_group("faults (docs/reference/trainer.md says what each one shows)")
    f.add_argument("--fault", choices=FAULTS, help="inject a fault")
    f.add_argument(
        "--fault-rank", type=int, metavar="RANK", help="the culprit; the last rank, for gc each rank in turn"
    )
    f.add_argument(
        "--fault-step",
        type=int,
        default=2,
        metavar="STEP",
        help="first step with the fault; one-off faults: the only one",
    )
    f.add_argument("--fault-size", type=float, help="how much, in the fault's own unit; its own default")

    c = p.add_argument_group("capture and plan")
    c.add_argument("--capture-after", type=int, metavar="STEP",
                   help="open the capture range (profiler API and NVTX) after this many steps")  # fmt: skip
    c.add_argument("--nvtx", action=argparse.BooleanOptionalAction, default=True, help="annotate")
    c.add_argument(
        "--dry-world", type=int, metavar="N", help="print the collectives of a step on N ranks, without running it"
    )
    return p


def parse(argv: Sequence[str]) -> Config:
    """Read and check the flags.

    Raises:
        TrainerError: an unknown flag, or a combination that cannot work, with the reason.
    """
    flags = vars(parser().parse_args(argv))
    model = PRESETS[flags["model"]]
    sizes = {name: flags.pop(name) for name in ("layers", "dim", "heads", "kv_heads", "hidden", "vocab", "seq", "tied")}
    if sizes["heads"] is not None and sizes["kv_heads"] is None:
        sizes["kv_heads"] = sizes["heads"]
    flags["model"] = replace(model, **{name: value for name, value in sizes.items() if value is not None})
    config = Config(**flags)
    config.model.check()
    _check_numbers(config)
    for impossible, reason in _refusals(config):
        if impossible:
            raise TrainerError(reason)
    return config


def _check_numbers(c: Config) -> None:
    for name in ("steps", "batch", "grad_accumulation", "log_every", "dry_world", "shard_size"):
        value = getattr(c, name)
        if value is not None and value < 1:
            raise TrainerError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    for name in ("timeout", "lr", "clip", "bucket_mb", "fault_size"):
        value = getattr(c, name)
        if value is not None and not 0 < value < float("inf"):
            raise TrainerError(f"--{name.replace('_', '-')} must be a positive number, not {value}")
    for name in ("prefetch", "fault_step", "fault_rank", "capture_after"):
        value = getattr(c, name)
        if value is not None and value < 0:
            raise TrainerError(f"--{name.replace('_', '-')} must not be negative, not {value}")
    if not re.fullmatch(r"auto|always|never|[1-9]\d*", c.reshard):
        raise TrainerError(f"--reshard {c.reshard} is none of auto, always, never and a number of ranks")
    if not re.fullmatch(r"block|size:[1-9]\d*", c.wrap):
        raise TrainerError(f"--wrap {c.wrap} is neither block nor size:N")
    if c.capture_after is not None and c.capture_after >= c.steps:
        raise TrainerError(f"--capture-after {c.capture_after} leaves none of --steps {c.steps} to capture")


def _refusals(c: Config) -> list[tuple[bool, str]]:
    """(whether it holds, why it cannot work) for each combination that cannot work, whatever the number of ranks."""
    fsdp2 = c.strategy in ("fsdp2", "hsdp")
    return [
        (c.prefetch > 0 and not fsdp2,
         f"--prefetch is FSDP2's; {c.strategy} has none (fsdp1: --backward-prefetch)"),
        (c.reshard != "auto" and not fsdp2,
         f"--reshard is FSDP2's; {c.strategy} has none (fsdp1: --fsdp1-sharding grad-op keeps parameters whole)"),
        (c.strategy == "hsdp" and c.reshard.isdigit(),
         "--reshard N needs a one-dimensional mesh: with hsdp only auto, always and never work"),
        (c.meta_init and not fsdp2,
         f"--meta-init needs sharding before the weights exist, which {c.strategy} does not do; use fsdp2 or hsdp"),
        (c.meta_init and c.model.tied,
         "--meta-init with tied weights would give the shared table two storages; add --no-tied"),
        (c.cpu_offload and c.strategy not in ("fsdp1", "fsdp2", "hsdp", "zero2", "zero3"),
         f"--cpu-offload: {c.strategy} keeps whole parameters on every device and cannot offload them"),
        (c.cpu_offload and c.device == "cpu",
         "--cpu-offload with --device cpu has nothing to offload: the shards are in host memory already"),
        (c.cpu_offload and c.strategy == "fsdp1" and c.grad_accumulation > 1 and not c.defer_reduction,
         "fsdp1 with --cpu-offload overwrites reduced gradients, so accumulation needs --defer-reduction"),
        (c.compile and c.strategy == "fsdp1" and not c.use_orig_params,
         "fsdp1 with --compile needs --use-orig-params: flattened parameters break the graph"),
        (c.model.tied and c.strategy == "fsdp1" and c.wrap != "block",
         "fsdp1 with --wrap size:N can put tied weights in two units; use --wrap block"),
        (c.compile and c.strategy == "zero3",
         "zero3 gathers parameters in hooks inside each layer, which a compiled layer does not run; use fsdp2"),
        (c.clip is not None and c.strategy == "fsdp1" and c.cpu_offload,
         "fsdp1 with --cpu-offload computes gradient norms on the CPU, where NCCL cannot reduce them; drop --clip"),
        (not c.defer_reduction and c.strategy in DEEPSPEED,
         f"{c.strategy}: DeepSpeed decides itself when to reduce; drop --no-defer-reduction"),
        (c.fault is not None and c.dry_world is not None,
         "--dry-world runs no step that a --fault could disturb"),
    ]  # fmt: skip


def check_world(c: Config, world: int, *, device: str) -> None:
    """Refuse what cannot work on ``world`` ranks.

    Raises:
        TrainerError: with the reason, and the sizes that would work.
    """
    if c.strategy == "single" and world > 1:
        raise TrainerError(f"--strategy single is for one process, not {world}", hint="use ddp")
    if c.fault_rank is not None and c.fault_rank >= world:
        raise TrainerError(f"--fault-rank {c.fault_rank} does not exist: the ranks are 0 to {world - 1}")
    if c.fault in ("extra-collective", "reorder", "size-mismatch", "skip-step", "slow-link") and world == 1:
        raise TrainerError(f"--fault {c.fault} needs at least two ranks")
    if c.strategy == "hsdp" or (c.strategy == "fsdp1" and c.fsdp1_sharding == "hybrid"):
        shard_size(c, world)
    if c.reshard.isdigit() and not (1 < int(c.reshard) < world and world % int(c.reshard) == 0):
        raise TrainerError(f"--reshard {c.reshard} is not a divisor of {world} between 1 and {world}")
    if c.cpu_offload and device == "cpu":
        raise TrainerError("--cpu-offload needs a GPU: here the shards are in host memory already")


def shard_size(c: Config, world: int) -> int:
    """Ranks in a shard group of HSDP: ``--shard-size``, or half of the ranks, or both of two.

    Raises:
        TrainerError: the ranks do not split so; lists the sizes that would work.
    """
    size = c.shard_size if c.shard_size is not None else world // 2 if world > 2 else world
    smallest = 2 if c.strategy == "fsdp1" else 1  # FSDP1 with one rank a shard group forgets to replicate
    if world % size or size < smallest or (c.shard_size is None and world % 2 and world > 2):
        sizes = [n for n in range(smallest, world + 1) if world % n == 0]
        wanted = "two shard groups" if c.shard_size is None else f"shard groups of {size}"
        raise TrainerError(
            f"{c.strategy} cannot split {world} ranks into {wanted}",
            hint=f"--shard-size can be {', '.join(map(str, sizes))}" if sizes else "start at least two ranks",
        )
    return size
