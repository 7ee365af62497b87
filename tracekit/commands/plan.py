"""``tracekit plan``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.commands.output import check_outputs, print_text, size_words, write
from tracekit.commands.status import ExitStatus
from tracekit.commands.types import Count
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.theory.plan import Job
    from tracekit.theory.shapes import Shape


class Positive(click.ParamType[float]):
    """A number above 0."""

    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse; nan and infinity are no numbers here."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < 1e9:
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


@click.command()
@click.option("--params", type=Count(), help="Number of parameters, e.g. 70e9 or 7B.")
@click.option("--model", metavar="NAME", help="A known model, e.g. llama-70b.")
@click.option("--config", "config_path", metavar="FILE", help="A Hugging Face config.json.")
@click.option("--gpus", type=click.IntRange(1, 10**6), required=True, metavar="N", help="Number of GPUs.")
@click.option("--gpu", "gpu_name", default="H100", show_default=True, metavar="NAME", help="Kind of GPU.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), metavar="N", help="GPUs in a node (default: 8).")
@click.option("--nodes", type=click.IntRange(1, 10**6), metavar="N", help="Number of nodes, in place of that.")
@click.option("--memory", type=Positive(), metavar="GB", help="Memory of a GPU (default: by its kind).")
@click.option("--link", type=Positive(), metavar="GB/S", help="Link between GPUs of a node, one direction.")
@click.option("--network", type=Positive(), metavar="GB/S", help="Network of a whole node, one direction.")
@click.option(
    "--batch", type=click.IntRange(1, 10**6), default=1, show_default=True, help="Sequences in a microbatch of a GPU."
)
@click.option("--seq", type=click.IntRange(1, 10**8), default=4096, show_default=True, help="Tokens in a sequence.")
@click.option(
    "--accumulation", type=click.IntRange(1, 10**6), default=1, show_default=True, help="Microbatches a step."
)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp32"]),
    default="bf16",
    show_default=True,
    help="Mixed precision, or single precision throughout.",
)
@click.option("--no-master-weights", is_flag=True, help="No fp32 copy of the weights in the optimizer.")
@click.option(
    "--checkpointing",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
    help="Activation checkpointing.",
)
@click.option("--no-flash", is_flag=True, help="Attention keeps its scores.")
@click.option(
    "--offload",
    type=click.Choice(["none", "optimizer", "all"]),
    default="none",
    show_default=True,
    help="Model state that is in the host's memory.",
)
@click.option("--lora", type=click.IntRange(1, 65536), metavar="RANK", help="Train LoRA adapters on all matrices only.")
@click.option("--qlora", type=click.IntRange(1, 65536), metavar="RANK", help="The same on 4-bit frozen weights.")
@click.option("--trained-params", type=Count(), help="Train so many parameters, the others are frozen.")
@click.option(
    "--mfu", type=Positive(), metavar="SHARE", help="Share of the peak that kernels reach while running (default: 0.5)."
)
@click.option("--json", "json_path", metavar="FILE", help="Write the table as JSON; - for standard output.")
def plan(json_path: str | None, **given: Any) -> int:
    """Compare sharding strategies for a job before it runs: memory, traffic, time, and which to take.

    Name the model with one of --params, --model and --config.
    """
    from tracekit.report.plan import render_plan, render_plan_json
    from tracekit.theory.plan import advise, compare

    if json_path is not None:
        check_outputs([path for path in (json_path,) if path != "-"], [])
    job = _job(**given)
    rows = compare(job)
    advice = advise(job, rows)
    document = (render_plan_json(rows, advice) + "\n").encode()
    if json_path == "-":
        write(document)
        return ExitStatus.DONE
    print_text(render_plan(job, rows, advice))
    if json_path:
        from tracekit.report.files import write_whole

        print_text(f"\nWrote {json_path} ({size_words(write_whole(Path(json_path), document))})")
    return ExitStatus.DONE


def _job(**given: Any) -> Job:
    from tracekit.config import PLANNING
    from tracekit.theory.gpus import gpu_named
    from tracekit.theory.memory import precision
    from tracekit.theory.plan import Job

    shape, parameters = _model(given["params"], given["model"], given["config_path"])
    trained, frozen_bytes = _trained(parameters, shape, given["lora"], given["qlora"], given["trained_params"])
    frozen = 0 if trained is None else parameters if given["trained_params"] is None else parameters - trained
    gpu = gpu_named(given["gpu_name"])
    per_node = _per_node(given["gpus"], given["nodes"], given["gpus_per_node"])
    if given["mfu"] is not None and given["mfu"] > 1:
        raise UsageError(f"--mfu {given['mfu']:g} is more than the whole peak", hint="Give a share such as 0.45.")
    each = precision(given["precision"], master_weights=not given["no_master_weights"])
    return Job(
        trained=parameters if trained is None else trained,
        frozen=frozen,
        frozen_bytes=each.weight if frozen_bytes is None else frozen_bytes,
        shape=shape,
        gpus=given["gpus"],
        gpus_per_node=per_node,
        gpu=gpu,
        memory_gb=given["memory"] or gpu.memory_gb,
        link_gb_per_s=given["link"] or gpu.nvlink_gb_per_s or PLANNING.pcie_gb_per_s,
        network_gb_per_s=given["network"] or PLANNING.network_gb_per_s_per_gpu * per_node,
        batch=given["batch"],
        sequence=given["seq"],
        accumulation=given["accumulation"],
        precision=each,
        recompute=given["checkpointing"],
        flash=not given["no_flash"],
        offload=given["offload"],
        utilisation=given["mfu"] or PLANNING.utilisation,
    )


def _model(params: int | None, model: str | None, config: str | None) -> tuple[Shape | None, int]:
    from tracekit.theory.shapes import model_named, shape_of_config

    if sum(x is not None for x in (params, model, config)) != 1:
        raise UsageError(
            "name the model with exactly one of --params, --model and --config",
            hint="For example: tracekit plan --model llama-70b --gpus 64",
        )
    if params is not None:
        return None, params
    shape = model_named(model) if model is not None else shape_of_config(config or "")
    return shape, shape.parameters


def _trained(
    parameters: int, shape: Shape | None, lora: int | None, qlora: int | None, trained: int | None
) -> tuple[int | None, float | None]:
    """(trained parameters, None for all; bytes of a frozen one, None for those of the precision)."""
    from tracekit.theory.memory import QLORA_BYTES

    if sum(x is not None for x in (lora, qlora, trained)) > 1:
        raise UsageError("--lora, --qlora and --trained-params exclude each other", hint="Give one of them.")
    if trained is not None:
        if trained > parameters:
            raise UsageError(
                f"--trained-params {trained} is more than the {parameters} that there are", hint="Leave it out for all."
            )
        return (None if trained == parameters else trained), None
    rank = lora or qlora
    if rank is None:
        return None, None
    if shape is None:
        raise UsageError(
            "the size of LoRA's adapters depends on the model's shape",
            hint="Give --model or --config, or --trained-params N.",
        )
    return shape.lora_parameters(rank), QLORA_BYTES if qlora else None


def _per_node(gpus: int, nodes: int | None, per_node: int | None) -> int:
    from tracekit.config import PLANNING

    if nodes is None:
        return min(gpus, per_node or PLANNING.gpus_per_node)
    if gpus % nodes or (per_node is not None and gpus // nodes != per_node):
        raise UsageError(
            f"{gpus} GPUs are not {nodes} nodes" + (f" of {per_node}" if per_node else " of equal size"),
            hint="Give --gpus and one of --nodes and --gpus-per-node.",
        )
    return gpus // nodes
