"""Shapes of decoder models: parameters by part, from a known name, a Hugging Face ``config.json`` or plain numbers."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError

LARGEST_CONFIG_BYTES = 1_000_000
LARGEST_SIZE = 10**9
"""Of any one dimension: beyond it a config is not one of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder: embedding, layers of attention and MLP, output projection."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Inner size of the MLP (of one expert)."""
    gated: bool
    """The MLP has three matrices rather than two."""
    vocab: int
    tied: bool
    """The output projection is the embedding table."""
    biases: bool = False
    """Every matrix of a layer has a bias, and norms are layer norms with one (as in GPT-2)."""
    qkv_biases: bool = False
    positions: int = 0
    """Learned position embeddings."""
    experts: int = 1
    experts_used: int = 1
    """Experts that each token goes through."""

    @property
    def layer_matrices(self) -> tuple[tuple[str, int, int], ...]:
        """(name, in, out) of the weight matrices of one layer, with all experts' matrices once each."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (("q", self.hidden, q), ("k", self.hidden, kv), ("v", self.hidden, kv), ("o", q, self.hidden))
        mlp = (("up", self.hidden, self.ffn), ("down", self.ffn, self.hidden))
        return attention + mlp + ((("gate", self.hidden, self.ffn),) if self.gated else ())

    def layer_parameters(self, experts: int | None = None) -> int:
        """Parameters of one layer, with ``experts`` of its experts (default: all)."""
        count = self.experts if experts is None else experts
        total = self.hidden * self.experts if self.experts > 1 else 0  # the router
        for name, into, out in self.layer_matrices:
            biased = self.biases or (self.qkv_biases and name in ("q", "k", "v"))
            total += (into * out + (out if biased else 0)) * (count if name in ("up", "down", "gate") else 1)
        return total + 2 * self.hidden * (2 if self.biases else 1)

    @property
    def embedding_parameters(self) -> int:
        """The look-up tables."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def root_parameters(self) -> int:
        """What is in no layer: tables, output projection, last norm."""
        projection = 0 if self.tied else self.vocab * self.hidden
        return self.embedding_parameters + projection + self.hidden * (2 if self.biases else 1)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters() + self.root_parameters

    @property
    def multiplied_parameters(self) -> int:
        """Parameters that a token is multiplied with: without look-ups, with the experts that it goes through.

        The output projection is a matrix product also where it is tied to the embedding.
        """
        active = self.layers * self.layer_parameters(self.experts_used) + self.root_parameters
        return active - self.embedding_parameters + (self.vocab * self.hidden if self.tied else 0)

    def lora_parameters(self, rank: int, *, attention_only: bool = False) -> int:
        """Trainable parameters of LoRA on the matrices of every layer: rank × (in + out) for each.

        Source: LoRA (arXiv:2106.09685), section 4.1. ``attention_only`` adapts q and v, as that paper does.
        """
        names = ("q", "v") if attention_only else None
        each = sum(
            rank * (into + out) * (self.experts if name in ("up", "down", "gate") else 1)
            for name, into, out in self.layer_matrices
            if names is None or name in names
        )
        return self.layers * each


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 32_000) -> Shape:
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=ffn,
        gated=True,
        vocab=vocab,
        tied=False,
    )


def _gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 50_257, positions: int = 2_048) -> Shape:
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        gated=False,
        vocab=vocab,
        tied=True,
        biases=True,
        positions=positions,
    )


MODELS = {
    shape.name: shape
    for shape in (
        _gpt("gpt2", 12, 768, 12, positions=1_024),
        _gpt("gpt2-xl", 48, 1_600, 25, positions=1_024),
        _gpt("gpt3-175b", 96, 12_288, 96),
        _llama("llama-7b", 32, 4_096, 32, 32, 11_008),
        _llama("llama-13b", 40, 5_120, 40, 40, 13_824),
        _llama("llama-30b", 60, 6_656, 52, 52, 17_920),
        _llama("llama-65b", 80, 8_192, 64, 64, 22_016),
        _llama("llama-70b", 80, 8_192, 64, 8, 28_672),
        _llama("llama-3-8b", 32, 4_096, 32, 8, 14_336, 128_256),
        _llama("llama-3-70b", 80, 8_192, 64, 8, 28_672, 128_256),
        _llama("llama-3-405b", 126, 16_384, 128, 8, 53_248, 128_256),
        _llama("mistral-7b", 32, 4_096, 32, 8, 14_336),
    )
}
"""By the sizes that their publishers give."""
ALIASES = {
    "llama-2-7b": "llama-7b",
    "llama-2-13b": "llama-13b",
    "llama-2-70b": "llama-70b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.1-405b": "llama-3-405b",
    "llama-3.3-70b": "llama-3-70b",
    "gpt-3": "gpt3-175b",
    "gpt-2": "gpt2",
}


def model_named(name: str) -> Shape:
    """A known model, by a name in any case.

    Raises `UsageError` with the nearest names for one that is not known.
    """
    wanted = name.strip().lower().replace("_", "-").replace("llama3", "llama-3").replace("llama2", "llama-2")
    wanted = ALIASES.get(wanted, wanted)
    if wanted in MODELS:
        return MODELS[wanted]
    near = difflib.get_close_matches(wanted, [*MODELS, *ALIASES], n=3, cutoff=0.5)
    hint = f"Did you mean {', '.join(near)}?" if near else f"It holds {', '.join(MODELS)}."
    raise UsageError(
        f"there is no model {name!r} in the table", hint=f"{hint} Any other: --config config.json or --params N."
    )


def shape_of_config(path: str) -> Shape:
    """The shape that a Hugging Face ``config.json`` describes: Llama, Mistral, Qwen, Mixtral, GPT-2 and their like.

    Raises `UsageError` for a file that is not one, or that describes something else than a decoder of this form.
    """
    fields = _fields(path)
    text = fields.get("text_config")
    if isinstance(text, dict):  # models that also see or hear
        fields = text
    if "n_embd" in fields:
        return _gpt2_like(path, fields)
    if any(key in fields for key in ("n_routed_experts", "kv_lora_rank", "state_size", "d_state")):
        raise UsageError(f"{path}: this kind of model is not understood", hint="Give its size with --params N.")
    size = _Reader(path, fields)
    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
    kind = str(fields.get("model_type") or Path(path).stem)
    experts = size("num_local_experts", size("num_experts", 1))
    return Shape(
        name=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", max(1, hidden // heads)),
        ffn=size("moe_intermediate_size", size("intermediate_size")) if experts > 1 else size("intermediate_size"),
        gated=kind not in ("gpt_neox", "opt", "phi", "falcon"),
        vocab=size("vocab_size"),
        tied=bool(fields.get("tie_word_embeddings", False)),
        qkv_biases=kind == "qwen2" or bool(fields.get("attention_bias", False)),
        biases=kind in ("gpt_neox", "opt", "phi"),
        experts=experts,
        experts_used=size("num_experts_per_tok", 1),
    )


def _gpt2_like(path: str, fields: dict[str, Any]) -> Shape:
    size = _Reader(path, fields)
    hidden, heads = size("n_embd"), size("n_head")
    return Shape(
        name=str(fields.get("model_type") or "gpt2"),
        layers=size("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        ffn=size("n_inner", 4 * hidden),
        gated=False,
        vocab=size("vocab_size"),
        tied=bool(fields.get("tie_word_embeddings", True)),
        biases=True,
        positions=size("n_positions", 1_024),
    )


class _Reader:
    """Sizes out of a config, checked."""

    def __init__(self, path: str, fields: dict[str, Any]) -> None:
        self.path, self.fields = path, fields

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise UsageError(
                f"{self.path}: this is no config.json of a decoder model: it has no {key}",
                hint="Give the config.json beside the model's weights, or its size with --params N.",
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise UsageError(
                f"{self.path}: {key} is {str(value)[:40]!r}, which is no size", hint="A whole number from 1 on."
            )
        return value


def _fields(path: str) -> dict[str, Any]:
    hint = "Give the config.json beside the model's weights, or its size with --params N."
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file has such a name"
        raise UsageError(f"{path}: cannot be read: {reason}", hint=hint) from error
    if len(raw) > LARGEST_CONFIG_BYTES:
        raise UsageError(f"{path}: too large for a config.json", hint=hint)
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is no JSON", hint=hint) from error
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: this is no config.json of a model", hint=hint)
    return fields
