"""What is known about the run besides its capture: by the trainer's mark, or by what the user says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tracekit.annotations import mark_fields
from tracekit.metrics.identity import world_size
from tracekit.theory.shapes import Shape
from tracekit.timeline import Timeline

LARGEST = 10**16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model as far as formulas need it."""

    source: str
    """``option`` or ``mark``."""
    parameters: int
    multiplied: int | None
    """Parameters that a token is multiplied with; None where it is not known what the embedding is tied to."""
    trained: int | None = None
    """Parameters with gradients; None for all."""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocab: int | None = None
    layer_parameters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """None is unknown."""

    world_size: int | None = None
    strategy: str | None = None
    """As the trainer calls it."""
    dtype: str | None = None
    """What forward computes in."""
    tokens_per_rank: int | None = None
    """Tokens of one rank in a step."""
    tokens_per_step: int | None = None
    """Tokens of the whole job in a step, where the user says so."""
    sequence: int | None = None
    batch: int | None = None
    """Sequences of one rank in a microbatch."""
    accumulation: int | None = None
    checkpointing: bool | None = None
    model: ModelFacts | None = None


def run_facts(timeline: Timeline, model: ModelFacts | None = None, tokens_per_step: int | None = None) -> RunFacts:
    """The marks of all processes put together, the first that says something counting; then what the user says."""
    facts = RunFacts(world_size=world_size(timeline))
    for mark in _marks(timeline):
        facts = _filled(facts, mark)
    if facts.tokens_per_rank is None and facts.batch and facts.sequence:
        facts = replace(facts, tokens_per_rank=facts.batch * facts.sequence * (facts.accumulation or 1))
    if model is not None:
        facts = replace(facts, model=model)
    return replace(facts, tokens_per_step=tokens_per_step)


def facts_of_shape(shape: Shape) -> ModelFacts:
    """A model that the user names."""
    return ModelFacts(
        source="option",
        parameters=shape.parameters,
        multiplied=shape.multiplied_parameters,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        vocab=shape.vocab,
        layer_parameters=shape.layer_parameters(),
    )


def _marks(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for process in timeline.processes:
        for _, text in process.marks:
            fields = mark_fields(text)
            if "rank" in fields:
                yield fields


def _filled(facts: RunFacts, mark: dict[str, Any]) -> RunFacts:
    """The facts with what the mark adds."""
    checkpointing = mark.get("activation_checkpointing")
    told = checkpointing if isinstance(checkpointing, bool) else None
    return replace(
        facts,
        strategy=facts.strategy or _text(mark, "strategy"),
        dtype=facts.dtype or _text(mark, "dtype"),
        sequence=facts.sequence or _whole(mark, "seq") or _whole(mark, "sequence_length"),
        batch=facts.batch or _whole(mark, "batch"),
        accumulation=facts.accumulation or _whole(mark, "grad_accumulation"),
        checkpointing=told if facts.checkpointing is None else facts.checkpointing,
        model=facts.model or _model(mark.get("model")),
    )


def _model(fields: object) -> ModelFacts | None:
    if not isinstance(fields, dict):
        return None
    layers, heads, vocab = (_whole(fields, key) for key in ("layers", "heads", "vocab"))
    dim, inner = _whole(fields, "dim"), _whole(fields, "hidden")
    if dim and inner and layers and heads and vocab:  # the instrumented trainer: hidden is the MLP's inner size
        kv_heads = _whole(fields, "kv_heads") or heads
        shape = Shape(
            name="",
            layers=layers,
            hidden=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=max(1, dim // heads),
            ffn=inner,
            gated=True,
            vocab=vocab,
            tied=fields.get("tied") is True,
        )
        return replace(facts_of_shape(shape), source="mark")
    parameters, tied = _whole(fields, "parameters"), fields.get("tied")
    if parameters is None:
        return None
    active, trained = _whole(fields, "active_parameters") or parameters, _whole(fields, "trained_parameters")
    multiplied = None
    if tied is True:
        multiplied = active
    elif tied is False and vocab and inner:
        multiplied = active - vocab * inner
    return ModelFacts(
        source="mark",
        parameters=parameters,
        multiplied=multiplied if multiplied is not None and 0 < multiplied <= parameters else None,
        trained=trained if trained is not None and trained < parameters else None,
        layers=layers,
        hidden=inner,
        heads=heads,
        vocab=vocab,
    )


def _whole(fields: dict[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST else None


def _text(fields: dict[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value[:80] if isinstance(value, str) else None
