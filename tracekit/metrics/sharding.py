"""Which sharding strategy a step's collectives are the pattern of, and what it should move.

Nothing is configured: gathers of parameters before each pass mean that parameters are sharded, gathers after the
optimizer that only its state (and gradients) are, reductions alone that nothing is. Sources of the volumes are in
`theory.volume`; how implementations differ from the papers is said in each explanation.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.metrics.dimensions import SHORT, Dimension
from tracekit.metrics.run import RunFacts
from tracekit.metrics.traffic import AFTER, BACKWARD, FORWARD, SMALL_SHARE, Traffic
from tracekit.results import Sharding, Volume

NONE_AT_ALL, UNDECIDED = "none", "undecided"
DDP, ZERO1, ZERO2, FULL, HYBRID = "DDP", "ZeRO-1", "ZeRO-2 / SHARD_GRAD_OP", "ZeRO-3 / FSDP", "HSDP"
CONFIDENCE = {"high": 0.9, "medium": 0.6, "low": 0.3}
SHARE = 0.05
"""† A kind of collective with less of the traffic than this is incidental (a root unit, buffers, a norm)."""
AGAIN_SHARE = 0.25
"""† Gathers in backward of at least this share of those in forward: units are resharded in between."""
TRAINER_NAMES = {
    DDP: ("ddp",),
    ZERO1: ("zero1", "zero1-ds"),
    ZERO2: ("zero2", "fsdp1", "fsdp2"),
    FULL: ("zero3", "fsdp1", "fsdp2"),
    HYBRID: ("hsdp", "fsdp1"),
}
ITEM_BYTES = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float32": 4, "fp32": 4}


def sharding(traffic: Traffic, facts: RunFacts, sizes: dict[str, int], split: Sequence[Dimension] = ()) -> Sharding:
    """The strategy, what speaks for it, and its volumes.

    ``sizes`` has the number of ranks by communicator, ``split`` the other dimensions of the mesh.
    """
    strategy, evidence = _recognise(traffic, facts)
    if split and not traffic.flows:
        strategy, evidence = NONE_AT_ALL, ["no parameters or gradients pass between ranks"]
    evidence += [each.evidence for each in split]
    shards, replicas = _groups(strategy, traffic, facts, sizes, whole=not split)
    known = strategy not in (NONE_AT_ALL, UNDECIDED)
    confidence = _confidence(strategy, traffic) if strategy != UNDECIDED else None
    if known and facts.strategy and facts.strategy not in TRAINER_NAMES[strategy]:
        evidence.append(f"the trainer's mark says {facts.strategy}")
        confidence = CONFIDENCE["low"]
    model = facts.model
    return Sharding(
        strategy=_mesh(strategy, split),
        confidence=confidence,
        evidence=tuple(evidence),
        shards=shards,
        replicas=replicas,
        parameters=model.parameters if model else None,
        parameters_source=model.source if model else None,
        # Each rank holds a part of the model then, whose size is not known.
        volumes=_volumes(strategy, traffic, facts, shards) if known and not split else _observed(traffic),
    )


def _mesh(strategy: str, split: Sequence[Dimension]) -> str:
    """The strategy with the other dimensions of the mesh: ``ZeRO-3 / FSDP x TP``."""
    names = [SHORT[each.kind] for each in split]
    if not names or strategy == UNDECIDED:
        return strategy
    return " x ".join(names if strategy == NONE_AT_ALL else [strategy, *names])


def _recognise(traffic: Traffic, facts: RunFacts) -> tuple[str, list[str]]:
    """(strategy, evidence): the first pattern that holds."""
    whole = sum(flow.weight for flow in traffic.flows)
    if not whole and facts.world_size in (None, 1):
        return NONE_AT_ALL, ["no collectives ran"]

    def much(*ops: str, part: str | None = None) -> bool:
        return traffic.weight(*ops, part=part) >= SHARE * whole

    scattered = much("reduce_scatter")
    before = much("all_gather", part=FORWARD)
    again = traffic.weight("all_gather", part=BACKWARD) >= AGAIN_SHARE * traffic.weight("all_gather", part=FORWARD)
    after = much("all_gather", "broadcast", part=AFTER)
    patterns = (
        (not whole, UNDECIDED, f"no collectives were captured of a job of {facts.world_size} ranks"),
        (not traffic.steps, UNDECIDED, "without steps, forward and backward cannot be told apart"),
        (
            much("all_reduce", "reduce_scatter", part=FORWARD),
            UNDECIDED,
            "reductions in the forward pass: tensors are split within layers as well",
        ),
        (
            not scattered and not much("all_reduce"),
            UNDECIDED,
            "next to nothing is reduced: no gradients, or too many small collectives",
        ),
        (before and not scattered, UNDECIDED, "gathers in forward, but gradients are not scattered"),
        (before and not again, ZERO2, "parameters are gathered for forward and kept for backward"),
        (
            before and _across_replicas(traffic, facts.accumulation or 1),
            HYBRID,
            "parameters are gathered in forward and in backward; scattered gradients are reduced in another group",
        ),
        (before, FULL, "parameters are gathered in forward and again in backward"),
        (
            after and scattered,
            ZERO2,
            "gradients are scattered, and updated parameters are gathered after the optimizer",
        ),
        (after, ZERO1, "gradients are reduced in full, and updated parameters are gathered after the optimizer"),
        (scattered, UNDECIDED, "gradients are scattered, and nothing is gathered"),
        (True, DDP, "gradients are reduced in full, and nothing is gathered"),
    )
    strategy, reason = next((strategy, reason) for holds, strategy, reason in patterns if holds)
    other = ["other communication too: tensors pass between ranks, or an op is not known"]
    return strategy, [*_counts(traffic), *(other if much("send_recv", "all_to_all", "unknown") else []), reason]


def _across_replicas(traffic: Traffic, microbatches: int) -> bool:
    """Whether all-reduces beside the reduce-scatters are those of hybrid sharding.

    There is one for each scatter, or, deferred, for each scatter of the last microbatch. Where groups are known, they
    are in another group than the scatters; a loss or a norm is not heavy enough.
    """
    scatters = [flow for flow in traffic.flows if flow.op == "reduce_scatter"]
    reduces = [flow for flow in traffic.flows if flow.op == "all_reduce" and flow.part != FORWARD]
    groups = {flow.communicator for flow in scatters}
    if None not in groups:
        reduces = [flow for flow in reduces if flow.communicator not in groups]
    count, each = sum(f.count for f in reduces), sum(f.count for f in scatters)
    if traffic.by_bytes and sum(f.weight for f in reduces) < SMALL_SHARE * sum(f.weight for f in scatters):
        return False
    return bool(reduces) and any(0.8 * each <= times * count <= 1.2 * each for times in {1, microbatches})


def _counts(traffic: Traffic) -> list[str]:
    """How often each op ran in each part, a step and rank."""
    counts: dict[tuple[str, str], float] = {}
    for flow in traffic.flows:
        counts[flow.op, flow.part] = counts.get((flow.op, flow.part), 0) + flow.count
    if not traffic.steps:
        return [f"{count:g} {op.replace('_', '-')} a rank" for (op, _), count in sorted(counts.items())]
    return [
        f"{round(count, 1):g} {op.replace('_', '-')} {'after' if part == AFTER else 'in ' + part} a step"
        for (op, part), count in sorted(counts.items(), key=lambda item: (item[0][0], item[0][1]))
    ]


def _confidence(strategy: str, traffic: Traffic) -> float:
    """Phases, sizes and several steps make it sure. Without phases, gathers after the optimizer may be forward's."""
    sure = traffic.phases_known and traffic.by_bytes and traffic.steps > 1
    unsure = not traffic.steps or (strategy in (ZERO1, ZERO2) and not traffic.phases_known)
    return CONFIDENCE["low" if unsure else "high" if sure else "medium"]


def _groups(
    strategy: str, traffic: Traffic, facts: RunFacts, sizes: dict[str, int], *, whole: bool
) -> tuple[int | None, int | None]:
    """(ranks of a shard group, replicas); ``whole`` where all ranks of the job are data-parallel."""
    if strategy in (NONE_AT_ALL, UNDECIDED):
        return None, None

    def size(ops: Sequence[str]) -> int | None:
        weights: dict[str | None, float] = {}
        for flow in traffic.flows:
            if flow.op in ops:
                weights[flow.communicator] = weights.get(flow.communicator, 0) + flow.weight
        heaviest = max(weights, key=lambda name: weights[name], default=None)
        return sizes.get(heaviest or "")

    world = facts.world_size if whole else None
    if strategy == DDP:
        return 1, size(["all_reduce"]) or world
    shards = size(["all_gather", "reduce_scatter", "broadcast"])
    if strategy != HYBRID:
        return shards or world, 1
    replicas = size(["all_reduce"]) if shards else None
    return shards, replicas or (world // shards if world and shards else None)


def _observed(traffic: Traffic) -> tuple[Volume, ...]:
    ops = sorted({flow.op for flow in traffic.flows})
    return tuple(
        Volume(op=op, bytes=_bytes(traffic, op), expected_bytes=None, explanation=None) for op in ops if traffic.steps
    )


def _bytes(traffic: Traffic, op: str) -> int | None:
    sizes = [flow.bytes for flow in traffic.flows if flow.op == op]
    return None if any(size is None for size in sizes) else round(sum(size or 0 for size in sizes))


def _volumes(strategy: str, traffic: Traffic, facts: RunFacts, shards: int | None) -> tuple[Volume, ...]:
    """Observed volumes beside those of the paper, by op."""
    rows = {row.op: row for row in _observed(traffic)}
    reduce_width = _reduce_width(strategy, traffic, facts)
    expected = _expected(strategy, traffic, facts, shards, reduce_width)
    made = []
    for op in sorted(rows.keys() | expected.keys()):
        observed = rows[op].bytes if op in rows else 0
        wanted = expected.get(op)
        if wanted is None and op in rows and expected and observed is not None and _small(observed, expected):
            continue  # a norm, a loss: nobody expects it to be accounted for
        made.append(
            Volume(
                op=op,
                bytes=observed,
                expected_bytes=wanted,
                explanation=_why(strategy, op, observed, wanted, facts, reduce_width),
            )
        )
    return tuple(made)


def _small(observed: int, expected: dict[str, int]) -> bool:
    return observed < 0.01 * sum(expected.values())


def _expected(
    strategy: str, traffic: Traffic, facts: RunFacts, shards: int | None, reduce_width: int | None
) -> dict[str, int]:
    """Bytes of full tensors by op, by the paper; {} without the model's size or the type that is moved."""
    model, width = facts.model, ITEM_BYTES.get(facts.dtype or "")
    if model is None or not traffic.steps:
        return {}
    if reduce_width is None or (width is None and strategy != DDP):
        return {}
    micro = facts.accumulation or 1
    gradients = (model.trained or model.parameters) * reduce_width
    if strategy == DDP:
        return {"all_reduce": gradients}
    gathered = model.parameters * (width or 0)
    if strategy == ZERO1:
        return {
            "all_reduce" if traffic.weight("all_reduce") else "reduce_scatter": gradients,
            _gather_op(traffic): gathered,
        }
    times = 1 if strategy == ZERO2 else 2 * micro
    volumes = {"all_gather": times * gathered, "reduce_scatter": gradients * micro}
    if strategy == HYBRID and shards:
        volumes["all_reduce"] = gradients * micro // shards
    return volumes


def _gather_op(traffic: Traffic) -> str:
    return "all_gather" if traffic.weight("all_gather") >= traffic.weight("broadcast") else "broadcast"


def _reduce_width(strategy: str, traffic: Traffic, facts: RunFacts) -> int | None:
    """Bytes an element of the reductions: the type that fits what is observed, for captures do not tell it truly."""
    model = facts.model
    op = "all_reduce" if strategy in (DDP, ZERO1) and traffic.weight("all_reduce") else "reduce_scatter"
    observed = _bytes(traffic, op)
    if model is None or not observed:
        return None
    each = observed / (model.trained or model.parameters)
    micro = facts.accumulation or 1
    fits = [w for w in (4, 2) for times in {1, micro} if 0.97 <= each / (w * times) <= 1.1]
    return fits[0] if fits else ITEM_BYTES.get(facts.dtype or "")


def _why(
    strategy: str, op: str, observed: int | None, expected: int | None, facts: RunFacts, reduce_width: int | None
) -> str | None:
    """Why an op moves something else than the paper says."""
    if observed is None or not expected or facts.model is None:
        return None
    ratio, micro = observed / expected, facts.accumulation or 1
    if op in ("reduce_scatter", "all_reduce") and ITEM_BYTES.get(facts.dtype or "") == 2 and reduce_width == 4:
        said = "gradients are reduced in fp32"
        return said if 0.99 <= ratio <= 1.01 else f"{said}; {_ratio(op, ratio, micro, strategy)}"
    return None if 0.99 <= ratio <= 1.01 else _ratio(op, ratio, micro, strategy)


def _ratio(op: str, ratio: float, micro: int, strategy: str) -> str:
    if micro > 1 and 0.97 <= ratio * micro <= 1.1 and op != "all_gather":
        return "reduced once, at the last microbatch"
    if micro > 1 and 0.97 <= ratio / micro <= 1.1:
        return "moved in every microbatch, where once a step would do"
    if op == "all_gather" and strategy in (FULL, HYBRID):
        if ratio > 1.25:
            return f"each unit is gathered {2 * ratio:.1f} times where twice would do: recomputation gathers again"
        if ratio < 1:
            return "some units (the root, the last layer) stay gathered between forward and backward"
    if 1 < ratio <= 1.1:
        return "padding to a multiple of the ranks"
    return f"{ratio:.2f} times what the paper says"
