"""The model: a decoder of a few dozen lines, from embedding to loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everyone writes it
from torch import Tensor, nn

from instrumented_trainer.config import ModelConfig


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of ``x`` (batch, heads, seq, head size), computed in float32."""
    seq, size = x.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
    angle = torch.outer(torch.arange(seq, device=x.device, dtype=torch.float32), frequency)
    cos, sin = angle.cos(), angle.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = c.heads, c.kv_heads, c.dim // c.heads
        self.qkv = nn.Linear(c.dim, (c.heads + 2 * c.kv_heads) * self.size, bias=False)
        self.out = nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, dim) to the same."""
        batch, seq, dim = x.shape
        heads = self.qkv(x).view(batch, seq, -1, self.size).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        grouped = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, seq, dim))


class MLP(nn.Module):
    """Gated MLP."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(c.dim, c.hidden, bias=False)
        self.up = nn.Linear(c.dim, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, dim) to the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """One decoder layer: the unit of sharding, compilation and checkpointing."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(c.dim, eps=1e-5), Attention(c)
        self.mlp_norm, self.mlp = nn.RMSNorm(c.dim, eps=1e-5), MLP(c)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, dim) to the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Head(nn.Module):
    """Final norm, output projection and loss."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(c.dim, eps=1e-5)
        self.projection = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of (batch, seq, dim) against (batch, seq), in float32."""
        logits = self.projection(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class GPT(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.head = Head(c)
        if c.tied:
            self.head.projection.weight = self.embed.weight
        self.initialise()

    def initialise(self) -> None:
        """Draw every weight again: N(0, 0.02) for tables and matrices, ones for norms."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Loss of (batch, seq) token numbers."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, targets)
