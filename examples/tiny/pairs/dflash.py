"""A DFlash drafter in plain torch, and the pair that it makes with a target.

What always holds:

* The modules are named as the published checkpoints name their tensors: a state dict is the file.
* Context features pass through `fc` and `hidden_norm` and are then only read: each layer takes its queries
  from the block, its keys and values from [context, block].
* Slot 0 of a block holds the anchor's embedding, the others the mask token's. Under the published
  convention slot k predicts the token at the anchor's position + k, and slot 0 predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .convention import PUBLISHED, Convention
from .presets import MASK, DrafterShape, TargetShape

__all__ = ["Drafter", "Pair"]


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned scale."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def _rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Applies the rotary embedding to [N, heads, T, head_dim] at positions [N, T]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = (positions[..., None].float() * frequencies)[:, None]
    low, high = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Attention(nn.Module):
    """Queries from the block; keys and values from context and block through the same projections."""

    def __init__(self, target: TargetShape) -> None:
        super().__init__()
        self.head_dim = target.head_dim
        self.q_proj = _linear(target.hidden, target.heads * target.head_dim)
        self.k_proj = _linear(target.hidden, target.kv_heads * target.head_dim)
        self.v_proj = _linear(target.hidden, target.kv_heads * target.head_dim)
        self.o_proj = _linear(target.heads * target.head_dim, target.hidden)
        self.q_norm = RMSNorm(target.head_dim)
        self.k_norm = RMSNorm(target.head_dim)

    def forward(self, block: torch.Tensor, context: torch.Tensor, where: _Where) -> torch.Tensor:
        keys = torch.cat([context, block], dim=1)
        q = self.q_norm(self._heads(self.q_proj(block))).transpose(1, 2)
        k = self.k_norm(self._heads(self.k_proj(keys))).transpose(1, 2)
        v = self._heads(self.v_proj(keys)).transpose(1, 2)
        q = _rotate(q, where.block, where.theta)
        k = _rotate(k, torch.cat([where.context, where.block], dim=1), where.theta)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=where.mask[:, None])
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden, size)
        self.up_proj = _linear(hidden, size)
        self.down_proj = _linear(size, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A pre-norm layer; the context enters attention as it is."""

    def __init__(self, target: TargetShape, mlp: int) -> None:
        super().__init__()
        self.self_attn = Attention(target)
        self.mlp = MLP(target.hidden, mlp)
        self.input_layernorm = RMSNorm(target.hidden)
        self.post_attention_layernorm = RMSNorm(target.hidden)

    def forward(self, block: torch.Tensor, context: torch.Tensor, where: _Where) -> torch.Tensor:
        block = block + self.self_attn(self.input_layernorm(block), context, where)
        return block + self.mlp(self.post_attention_layernorm(block))


class _Where(NamedTuple):
    """Positions of the context [N, C] and the block [N, Q], who sees whom [N, Q, C + Q], and rope's base."""

    context: torch.Tensor
    block: torch.Tensor
    mask: torch.Tensor
    theta: float


class Drafter(nn.Module):
    """The drafter: no embedding and no head of its own."""

    def __init__(self, target: TargetShape, shape: DrafterShape) -> None:
        super().__init__()
        self.shape, self.target_shape = shape, target
        self.layers = nn.ModuleList(Layer(target, shape.mlp) for _ in range(shape.layers))
        self.fc = _linear(len(shape.target_layer_ids) * target.hidden, target.hidden)
        self.hidden_norm = RMSNorm(target.hidden)
        self.norm = RMSNorm(target.hidden)

    def forward(
        self,
        noise: torch.Tensor,
        features: torch.Tensor,
        block_positions: torch.Tensor,
        mask: torch.Tensor,
        convention: Convention = PUBLISHED,
    ) -> torch.Tensor:
        """Returns the hidden states of block slots.

        Args:
            noise: embeddings of the slots, [N, Q, hidden].
            features: the target's features of positions 0 ... C-1, [N, C, ids * hidden].
            block_positions: position of each slot, [N, Q].
            mask: True where a slot sees [context, slots], [N, Q, C + Q].
        """
        context = self.fc(features)
        if convention.hidden_norm:
            context = self.hidden_norm(context)
        positions = torch.arange(features.shape[1]).expand(len(features), -1)
        theta = convention.rope_theta or self.shape.rope_theta
        where = _Where(positions, block_positions, mask, theta)
        block = noise
        for layer in self.layers:
            block = layer(block, context, where)
        return self.norm(block) if convention.final_norm else block


@dataclass(frozen=True)
class Pair:
    """A target, a drafter for it, and the convention under which the drafter drafts."""

    target: Any
    drafter: Drafter
    convention: Convention = PUBLISHED

    @property
    def embed(self) -> nn.Module:
        """The target's input embedding."""
        return self.target.get_input_embeddings()

    @property
    def head(self) -> nn.Module:
        """The target's output embedding."""
        return self.target.get_output_embeddings()

    @torch.no_grad()
    def features(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the context features of every position, [N, T, ids * hidden], by one plain forward."""
        states = self.target(ids, output_hidden_states=True, use_cache=False).hidden_states
        first = 1 + self.convention.hidden_index_offset
        return torch.cat([states[layer + first] for layer in self.drafter.shape.target_layer_ids], dim=-1)

    @torch.no_grad()
    def draft_logits(
        self, features: torch.Tensor, ids: list[int], anchor: int, block_size: int | None = None
    ) -> torch.Tensor:
        """Returns the logits of the slots that predict, [drafts, vocabulary], for one anchor.

        Args:
            features: features of (at least) the context, [T, ids * hidden].
            ids: tokens up to the anchor or further; tokens after the anchor are not looked at.
            anchor: the anchor's position.
            block_size: another block size than the drafter's.
        """
        size = block_size or self.drafter.shape.block_size
        context = features[None, : max(0, anchor + self.convention.context_end)]
        noise = self.embed(torch.tensor([[ids[anchor]] + [MASK] * (size - 1)]))
        positions = torch.arange(anchor, anchor + size)[None] + self.convention.block_position_offset
        own = torch.ones(size, size, dtype=torch.bool)
        if self.convention.in_block == "causal":
            own = own.tril()
        mask = torch.cat([torch.ones(size, context.shape[1], dtype=torch.bool), own], dim=1)[None]
        states = self.drafter(noise, context, positions, mask, self.convention)
        return self.head(states[0, self.convention.first_row :])
