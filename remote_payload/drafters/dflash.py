"""DFlash: a block of masked slots drafts the next tokens from the target's hidden features.

The forward pass of arXiv 2602.06036 (as z-lab/dflash computes it), arranged for replay: features pass
through `fc` and `hidden_norm` only and are never updated by the layers, so each layer's context keys and
values depend on the trajectory alone. They are computed once per trajectory and shared by all its anchors;
a draft at an anchor then costs its own B slots.

Shapes: P trajectories of a batch, T context positions, N (trajectory, anchor) rows, B slots, H hidden,
h/g query/key-value heads, d head dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from remote_payload.drafters.checkpoint import Checkpoint, effective_rule
from remote_payload.drafters.heads import Head, own_head
from remote_payload.drafters.masks import block_mask, context_mask
from remote_payload.drafters.rope import inverse_frequencies

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_payload.drafters.config import RopeConfig
    from remote_payload.drafters.convention import Convention

__all__ = ["Context", "DFlashDrafter"]


@dataclass(frozen=True)
class Context:
    """What a batch of trajectories offers to drafts: per layer keys and values, each [P, g, T, d]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    length: int


class DFlashDrafter:
    """A DFlash drafter under a convention, ready to draft.

    Args:
        checkpoint: the loaded tensors and config.
        convention: how it was trained.
        block_size: B; the checkpoint's own, or an override (fewer slots with the same weights).
        embed: token ids -> the target's embeddings, [..., H]; unused where the checkpoint has its own.
        device, dtype: where and in what precision it computes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        convention: Convention,
        *,
        block_size: int,
        embed: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = checkpoint.config
        self.convention = convention
        self.block_size = block_size
        self.device, self.dtype = device, dtype
        own = checkpoint.own_embedding
        self._embed = embed if own is None else _Embedding(own.to(device, dtype))
        self._own_head = own_head(checkpoint, device, dtype)
        parts = {"embed_tokens": checkpoint.own_embedding, "lm_head": checkpoint.own_head}
        self.own_parts = [name for name, part in parts.items() if part is not None]
        self._weights = {name: t.to(device, dtype) for name, t in checkpoint.tensors.items()}
        self._rule, self.window_rule_assumed = effective_rule(self.config, convention)

    @property
    def feature_indices(self) -> list[int]:
        """Which entries of the target's `hidden_states` it reads (0 is the embedding), in order."""
        return [layer + 1 + self.convention.hidden_index_offset for layer in self.config.target_layer_ids]

    @property
    def drafts(self) -> int:
        """D: tokens drafted per round, B - 1 (B where slot 0 predicts too)."""
        return max(self.block_size - 1 + self.convention.label_offset, 0)

    @property
    def first_label(self) -> int:
        """The first slot whose output is a draft."""
        return 1 - self.convention.label_offset

    def head(self, target_head: Callable[[torch.Tensor], torch.Tensor], vocab_size: int) -> Head:
        """Returns what scores its final hidden states: its own head where it has one, else the target's.

        Args:
            target_head: [..., H] -> [..., V] float32 logits.
            vocab_size: V.
        """
        return self._own_head or Head(target_head, vocab_size)

    # ------------------------------------------------------------------ context

    def prepare(self, features: torch.Tensor) -> Context:
        """Computes every layer's context keys and values.

        Args:
            features: [P, T, K*H], the target's hidden states of `feature_indices`, at positions 0 ... T-1
                (right-padded: positions at or after an anchor are never seen by it).
        """
        hidden = F.linear(features.to(self.device, self.dtype), self._weights["fc.weight"])
        if self.convention.hidden_norm:
            hidden = self._norm(hidden, "hidden_norm.weight")
        length = hidden.shape[1]
        turn = _rotation(torch.arange(length, device=self.device), self.config.head_dim, self.config.rope)
        keys, values = [], []
        for layer in range(self.config.num_layers):
            at = f"layers.{layer}.self_attn."
            keys.append(_rotate(self._heads(hidden, at, "k_proj", "k_norm"), turn))
            values.append(self._heads(hidden, at, "v_proj"))
        return Context(keys, values, length)

    # ------------------------------------------------------------------ drafting

    def draft(
        self, context: Context, trajectories: torch.Tensor, anchors: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """Runs one block per row.

        Args:
            context: from `prepare`.
            trajectories: [N] row's index into the batch.
            anchors: [N] position s of the anchor.
            tokens: [N] the anchor's token id.

        Returns:
            [N, D, H] final hidden states (after `norm`) of the slots that draft, ready for the target's head.
        """
        rows, block = anchors.shape[0], self.block_size
        ids = torch.full((rows, block), self.config.mask_token_id, device=self.device, dtype=torch.long)
        ids[:, 0] = tokens
        hidden = self._embed(ids).to(self.dtype)
        seen = self._visible_length(context, anchors)
        slots = torch.arange(block, device=self.device)
        positions = anchors[:, None] + slots + self.convention.block_position_offset
        turn = _rotation(positions, self.config.head_dim, self.config.rope)
        for layer in range(self.config.num_layers):
            keys = context.keys[layer][trajectories, :, :seen]
            values = context.values[layer][trajectories, :, :seen]
            mask = self._mask(layer, anchors, seen)
            hidden = self._layer(layer, hidden, keys, values, mask, turn)
        return self._norm(hidden[:, self.first_label :], "norm.weight")

    def _visible_length(self, context: Context, anchors: torch.Tensor) -> int:
        furthest = int(anchors.max()) + (1 if self.convention.context == "through_anchor" else 0)
        return min(context.length, furthest)

    def _mask(self, layer: int, anchors: torch.Tensor, seen: int) -> torch.Tensor:
        window = self.config.windows[layer]
        before = context_mask(anchors, seen, self.block_size, self.convention, self._rule, window)
        inside = block_mask(self.block_size, self.convention, self._rule, window, self.device)
        inside = inside.expand(anchors.shape[0], self.block_size, self.block_size)
        return torch.cat([before, inside], dim=-1)[:, None]

    def _layer(
        self,
        layer: int,
        hidden: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        at = f"layers.{layer}."
        inner = self._norm(hidden, at + "input_layernorm.weight")
        queries = _rotate(self._heads(inner, at + "self_attn.", "q_proj", "q_norm"), turn)
        own_keys = _rotate(self._heads(inner, at + "self_attn.", "k_proj", "k_norm"), turn)
        own_values = self._heads(inner, at + "self_attn.", "v_proj")
        groups = self.config.num_heads // self.config.num_kv_heads
        attended = F.scaled_dot_product_attention(
            queries,
            torch.cat([keys, own_keys], dim=2).repeat_interleave(groups, dim=1),
            torch.cat([values, own_values], dim=2).repeat_interleave(groups, dim=1),
            attn_mask=mask,
        )
        attended = attended.transpose(1, 2).flatten(2)
        hidden = hidden + self._linear(attended, at + "self_attn.o_proj")
        inner = self._norm(hidden, at + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(inner, self._weights[at + "mlp.gate_proj.weight"]))
        wide = gate * F.linear(inner, self._weights[at + "mlp.up_proj.weight"])
        return hidden + F.linear(wide, self._weights[at + "mlp.down_proj.weight"])

    # ------------------------------------------------------------------ pieces

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._weights[name + ".weight"], self._weights.get(name + ".bias"))

    def _heads(self, x: torch.Tensor, at: str, projection: str, norm: str = "") -> torch.Tensor:
        """[P, T, H] -> [P, heads, T, d], normalised per head where the model does."""
        y = self._linear(x, at + projection).reshape(*x.shape[:-1], -1, self.config.head_dim)
        if norm:
            y = self._norm(y, f"{at}{norm}.weight")
        return y.transpose(1, 2)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS norm in float32, scaled in the model's own precision (Qwen3)."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        scaled: torch.Tensor = self._weights[name] * wide.to(x.dtype)
        return scaled


class _Embedding:
    """A drafter's own embedding: token ids -> rows."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self._rows)


def _rotation(positions: torch.Tensor, head_dim: int, rope: RopeConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines, [..., d'] float32, d' the dimensions that turn."""
    frequencies, scale = inverse_frequencies(rope, head_dim, positions.device)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def _rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turns [P, heads, T, d] by [T, d'] or [P, T, d']; dimensions past d' pass through."""
    cos, sin = (part.to(x.dtype) for part in turn)
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    width = cos.shape[-1]
    active, rest = x[..., :width], x[..., width:]
    first, second = active.chunk(2, dim=-1)
    turned = active * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
