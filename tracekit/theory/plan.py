"""Strategies compared before anything runs: what each holds, moves and takes on given GPUs.

Every figure is a bound or an estimate from the formulas in `memory`, `volume` and `flops`, under assumptions that
`Job` and `config.Planning` name. Times are ns, sizes bytes, all for one GPU and one optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.config import PLANNING, Planning
from tracekit.theory.flops import flops_per_token, hardware_factor, utilisation
from tracekit.theory.gpus import Gpu
from tracekit.theory.memory import Precision, layer_activations, model_state, output_activations
from tracekit.theory.shapes import Shape
from tracekit.theory.volume import Moved, step_volume

STRATEGIES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP", "HSDP")
SIMPLEST = ("DDP", "FSDP", "HSDP", "ZeRO-2", "ZeRO-1", "ZeRO-3")
"""Of equally fast strategies the first is advised: torch's own before those that need another library."""
GATHERING = ("ZeRO-3", "FSDP", "HSDP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained, and on what."""

    trained: int
    """Parameters with gradients."""
    frozen: int
    frozen_bytes: float
    """Bytes of each frozen parameter."""
    shape: Shape | None
    """None where only the number of parameters is known: activations and units are then unknown."""
    gpus: int
    gpus_per_node: int
    gpu: Gpu
    memory_gb: float
    link_gb_per_s: float
    """One direction, between GPUs of one node."""
    network_gb_per_s: float
    """One direction, of a whole node."""
    batch: int
    """Sequences in a microbatch of one GPU."""
    sequence: int
    accumulation: int
    precision: Precision
    recompute: str
    flash: bool
    offload: str
    utilisation: float
    """Share of the GPU's peak that its kernels reach while they run, recomputation counted (HFU)."""

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.trained + self.frozen

    @property
    def nodes(self) -> int:
        """Nodes that the GPUs are in."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def tokens(self) -> int:
        """Tokens of a step, over all GPUs."""
        return self.batch * self.sequence * self.accumulation * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One strategy's figures. None is unknown: without a shape nobody can tell."""

    strategy: str
    shards: int
    """GPUs that what is sharded is spread over."""
    model_state_bytes: int
    host_bytes: int
    """Offloaded model state in the host's memory, for one GPU."""
    activation_bytes: int | None
    gathered_bytes: int | None
    """Units that are whole at one time, with the gradients of one."""
    total_bytes: int | None
    fits: bool | None
    moved: tuple[Moved, ...]
    wire_bytes: int
    comm_ns: int
    compute_ns: int
    exposed_ns: int
    """Communication (and transfers to the host) that cannot be hidden even with perfect overlap."""
    step_ns: int
    overlap_bound: float | None
    """Best overlap ratio; None without communication."""
    tokens_per_s: float
    mfu: float


def outlook(job: Job, strategy: str, assumed: Planning = PLANNING) -> Outlook | None:
    """The figures of one strategy; None for HSDP within one node, where it is FSDP."""
    shards, replicas = job.gpus, 1
    if strategy == "HSDP":
        if job.nodes == 1 or job.gpus % job.gpus_per_node:
            return None
        shards, replicas = job.gpus_per_node, job.nodes
    state = model_state(
        strategy,
        trained=job.trained,
        frozen=job.frozen,
        frozen_bytes=job.frozen_bytes,
        shards=shards,
        each=job.precision,
        offload=job.offload,
    )
    moved = step_volume(
        strategy,
        trained=job.trained,
        frozen=job.frozen,
        shards=shards,
        replicas=replicas,
        weight_bytes=job.precision.moved,
        frozen_bytes=job.frozen_bytes,
        gradient_bytes=job.precision.gradient,
        accumulation=job.accumulation,
    )
    activations, gathered = _activations(job), _gathered(job, strategy)
    total = None if activations is None or gathered is None else state.gpu + activations + gathered
    capacity = job.memory_gb * 1e9 * assumed.usable_memory_share
    # More than there is does not fit, whatever the unknown rest.
    fits = False if state.gpu > capacity else None if total is None else total <= capacity
    comm_ns = sum(_transfer_ns(job, item) for item in moved)
    host_ns = _host_ns(job, shards if strategy != "DDP" else 1, assumed)
    compute_ns, model_flops = _compute(job)
    exposed = _exposed_ns(job, strategy, moved, compute_ns) + host_ns
    step_ns = compute_ns + exposed
    return Outlook(
        strategy=strategy,
        shards=1 if strategy == "DDP" else shards,
        model_state_bytes=state.gpu,
        host_bytes=state.host,
        activation_bytes=activations,
        gathered_bytes=gathered,
        total_bytes=total,
        fits=fits,
        moved=moved,
        wire_bytes=round(sum(item.wire_bytes for item in moved)),
        comm_ns=round(comm_ns),
        compute_ns=round(compute_ns),
        exposed_ns=round(exposed),
        step_ns=round(step_ns),
        overlap_bound=1 - (exposed - host_ns) / comm_ns if comm_ns else None,
        tokens_per_s=job.tokens / (step_ns / 1e9),
        mfu=utilisation(model_flops, step_ns / 1e9, job.gpus, job.gpu.bf16_tflops),
    )


def _activations(job: Job) -> int | None:
    shape = job.shape
    if shape is None:
        return None
    layer = layer_activations(
        sequence=job.sequence,
        batch=job.batch,
        hidden=shape.hidden,
        heads=shape.heads,
        recompute=job.recompute,
        flash=job.flash,
    )
    whole = layer * shape.layers
    if job.recompute == "full":  # the layer that is being recomputed is there in full
        whole += layer_activations(
            sequence=job.sequence,
            batch=job.batch,
            hidden=shape.hidden,
            heads=shape.heads,
            recompute="none",
            flash=job.flash,
        )
    return round(
        whole + output_activations(sequence=job.sequence, batch=job.batch, hidden=shape.hidden, vocab=shape.vocab)
    )


def _gathered(job: Job, strategy: str) -> int | None:
    """The unit in use and the next, the root unit, and one unit's gradients before they are scattered."""
    if strategy not in GATHERING:
        return 0
    if job.shape is None:
        return None
    each = job.frozen_bytes if job.frozen else job.precision.moved
    layer, root = job.shape.layer_parameters(), job.shape.root_parameters
    gradients = 0 if job.frozen else layer * job.precision.gradient
    return round((2 * layer + root) * each + gradients)


def _transfer_ns(job: Job, item: Moved) -> float:
    """Time on the wire of all collectives of one op, at the full speed of the slowest link that they cross.

    A ring over several nodes crosses each node's border once, so that a node's whole network carries it. The groups of
    HSDP's replicas, one for each place in a node, share that network.
    """
    within_node = item.ranks < job.gpus and item.op != "all_reduce"  # the shards of HSDP
    if job.nodes == 1 or within_node:
        rate = job.link_gb_per_s
    elif item.ranks == job.gpus:
        rate = min(job.link_gb_per_s, job.network_gb_per_s)
    else:
        rate = min(job.link_gb_per_s, job.network_gb_per_s / job.gpus_per_node)
    return item.wire_bytes / rate


def _host_ns(job: Job, shards: int, assumed: Planning) -> float:
    """Transfers of offloaded state: gradients down and weights up, once a step; with ``all`` weights for every pass."""
    if job.offload == "none":
        return 0.0
    part = job.trained / shards
    size = part * (job.precision.gradient + job.precision.weight)
    if job.offload == "all":
        size += 2 * job.accumulation * (part * job.precision.weight + job.frozen * job.frozen_bytes / shards)
    return size / assumed.pcie_gb_per_s


def _compute(job: Job) -> tuple[float, float]:
    """(compute of a step on one GPU in ns, model FLOPs of the step on all GPUs)."""
    shape = job.shape
    if shape is not None:
        token = flops_per_token(shape.multiplied_parameters, shape.layers, shape.hidden, job.sequence)
    else:
        token = 6 * job.parameters
    # Frozen weights have no gradients of their own: of forward, backward through and backward of, the last is left out.
    if job.frozen:
        token = round(token * (2 * job.parameters + job.trained) / (3 * job.parameters))
    flops = token * job.tokens
    factor = hardware_factor(job.recompute, hidden=shape.hidden if shape else None, sequence=job.sequence)
    seconds = flops * factor / (job.gpus * job.gpu.bf16_tflops * 1e12 * job.utilisation)
    return seconds * 1e9, flops


def _exposed_ns(job: Job, strategy: str, moved: tuple[Moved, ...], compute_ns: float) -> float:
    """Communication that perfect overlap leaves, unit by unit; the first gather and the last reduction never hide."""
    units = job.shape.layers + 1 if job.shape else PLANNING.units
    backward_share = 0.75 if job.recompute == "full" else 2 / 3
    backward = compute_ns * backward_share / job.accumulation
    forward = compute_ns * (1 - backward_share) / job.accumulation
    gather = sum(_transfer_ns(job, m) for m in moved if m.op == "all_gather")
    reduce = sum(_transfer_ns(job, m) for m in moved if m.op != "all_gather")
    if strategy not in GATHERING:
        # Reductions hide under the backward pass that makes them; the gather after the optimizer hides under nothing.
        passes = job.accumulation if strategy == "ZeRO-2" else 1
        return gather + passes * _left(reduce / passes, backward, units)
    gather, reduce = gather / (2 * job.accumulation), reduce / job.accumulation
    return job.accumulation * (_left(gather, forward, units) + _left(gather + reduce, backward, units))


def _left(comm: float, compute: float, units: int) -> float:
    """What ``comm`` sticks out of ``compute`` when both are in ``units`` equal parts, one part ahead of the other."""
    return max(comm / units, comm - compute * (units - 1) / units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which strategy, and why."""

    strategy: str | None
    """None where nothing fits."""
    reason: str
    change: str | None = None
    """What has to be changed first for it to fit."""


def compare(job: Job) -> tuple[Outlook, ...]:
    """All strategies that make sense on these GPUs."""
    return tuple(row for name in STRATEGIES if (row := outlook(job, name)) is not None)


def advise(job: Job, rows: tuple[Outlook, ...], assumed: Planning = PLANNING) -> Advice:
    """The strategy to take. What fits comes first, then the time of a step, then simplicity."""
    open_ones = [row for row in rows if row.fits is not False]
    if not open_ones:
        return _make_room(job)
    unsure = " by its model state; activations are unknown without a shape" if open_ones[0].fits is None else ""
    names = {row.strategy: row for row in open_ones}
    if job.gpus == 1:
        return Advice(strategy="DDP", reason="one GPU: there is nothing to shard over")
    if job.frozen and "ZeRO-2" in names:
        return Advice(
            strategy="ZeRO-2",
            reason="the frozen weights fit on every GPU, so that only the adapters' gradients have to move" + unsure,
        )
    fastest = min(row.step_ns for row in open_ones)
    close = [row for row in open_ones if row.step_ns <= fastest * (1 + assumed.tie_share)]
    best = next(row for name in SIMPLEST for row in close if row.strategy == name)
    others = [row.strategy for row in rows if row.fits is False]
    why = f"it fits{unsure}"
    if others:
        why += f", and {' and '.join(others) if len(others) < 3 else ', '.join(others)} would not"
    if len(open_ones) > 1:
        why += "; no other that fits is faster" if best.step_ns <= fastest else "; the fastest is hardly faster"
    return Advice(strategy=best.strategy, reason=why)


def _make_room(job: Job) -> Advice:
    """What to change for FSDP to fit, the cheapest change first."""
    full, offloaded = "full activation checkpointing", "the optimizer state offloaded to the host"
    all_of_it = "parameters and optimizer state offloaded to the host"
    lean = replace(job, recompute="full")
    first = [(full, lean)] if job.recompute != "full" else []
    before = f"{full} and " if first else ""
    changes = [*first]
    if job.offload == "none":
        changes.append((before + offloaded, replace(lean, offload="optimizer")))
    if job.offload != "all":
        changes.append((before + all_of_it, replace(lean, offload="all")))
    for change, changed in changes:
        row = outlook(changed, "FSDP")
        if row is not None and row.fits is not False:
            needs = f" ({row.host_bytes / 1e9:.0f} GB of its host's memory for each GPU)" if row.host_bytes else ""
            return Advice(
                strategy="FSDP", reason=f"nothing fits as asked; FSDP does with {change}{needs}", change=change
            )
    return Advice(
        strategy=None,
        reason="nothing fits on these GPUs, not even FSDP with checkpointing and everything offloaded",
        change="more GPUs, a smaller microbatch or shorter sequences, or tensor and pipeline parallelism",
    )
