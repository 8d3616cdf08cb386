"""DFlash: a block of masked slots drafts the next tokens from the target's hidden features.

The forward pass of arXiv 2602.06036 (as z-lab/dflash computes it), arranged for replay: features pass
through `fc` and `hidden_norm` only and are never updated by the layers, so each layer's context keys and
values depend on the trajectory alone. They are computed once per trajectory and shared by all its anchors;
a draft at an anchor then costs its own B slots.

Shapes: P trajectories of a batch, T context positions, N (trajectory, anchor) rows, B slots, H hidden,
h/g query/key-value heads, d head dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from remote_payload.drafters.attention import Reads, attend
from remote_payload.drafters.checkpoint import Checkpoint, effective_rule
from remote_payload.drafters.heads import Head, own_head
from remote_payload.drafters.masks import block_mask, context_end, context_mask
from remote_payload.drafters.rope import rotate, rotation
from remote_payload.drafters.slabs import Slab, arrange

if TYPE_CHECKING:
    from collections.abc import Callable

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
        theta = convention.rope_theta or self.config.rope.theta
        self.rope = replace(self.config.rope, theta=float(theta))

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

    def mask_elements(self, context: Context) -> int:
        """Returns the entries of the attention mask that one anchor costs at most: groups * B * 2 * (T + B)."""
        groups = self.config.num_heads // self.config.num_kv_heads
        return groups * self.block_size * 2 * (context.length + self.block_size)

    # ------------------------------------------------------------------ context

    def prepare(self, features: torch.Tensor) -> Context:
        """Computes every layer's context keys and values.

        Args:
            features: [P, T, K*H], the target's hidden states of `feature_indices`, at positions 0 ... T-1
                (right-padded: positions at or after an anchor are never seen by it).
        """
        hidden = self.project(features)
        length = hidden.shape[1]
        turn = self.turn(self.context_positions(length))
        keys, values = [], []
        for layer in range(self.config.num_layers):
            key, value = self.context_pair(layer, hidden, turn)
            keys.append(key)
            values.append(value)
        return Context(keys, values, length)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Returns what every layer reads of the context: fc and hidden_norm, [P, T, K*H] -> [P, T, H]."""
        hidden = F.linear(features.to(self.device, self.dtype), self._weights["fc.weight"])
        return self._norm(hidden, "hidden_norm.weight") if self.convention.hidden_norm else hidden

    def context_pair(
        self, layer: int, hidden: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a layer's keys and values of projected features, [P, g, T, d] each."""
        at = f"layers.{layer}.self_attn."
        keys = self._heads(hidden, at, "k_proj", "k_norm")
        return rotate(keys, turn, self.rope), self._heads(hidden, at, "v_proj")

    def context_positions(self, length: int) -> torch.Tensor:
        """Returns the positions of context features 0 ... length - 1: [T]."""
        return torch.arange(length, device=self.device)

    def turn(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rotary embedding's cosines and sines of positions: [..., d'] float32 each."""
        return rotation(positions, self.config.head_dim, self.rope)

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
        hidden = self.slots(context, trajectories, anchors, tokens)
        return self.finish(hidden[:, self.first_label :])

    def slots(
        self, context: Context, trajectories: torch.Tensor, anchors: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """Runs one block per row, as `draft`: [N, B, H] of all slots, before the final norm."""
        hidden = self.block_input(tokens)
        turn = self.turn(self.block_positions(anchors))
        reading = self._reading(context, trajectories, anchors)
        for layer in range(self.config.num_layers):
            hidden = self._layer(layer, hidden, context, reading, turn)
        return hidden

    def block_input(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns what the slots hold, the anchor's embedding and the mask token's: [N] -> [N, B, H]."""
        ids = torch.full(
            (len(tokens), self.block_size), self.config.mask_token_id, device=self.device, dtype=torch.long
        )
        ids[:, 0] = tokens
        return self._embed(ids).to(self.dtype)

    def block_positions(self, anchors: torch.Tensor) -> torch.Tensor:
        """Returns the positions of the slots of blocks at these anchors: [N] -> [N, B]."""
        slots = torch.arange(self.block_size, device=self.device)
        return anchors[:, None] + slots + self.convention.block_position_offset

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns what the head reads of the last layer's output: the final norm, if the convention has it."""
        return self._norm(hidden, "norm.weight") if self.convention.final_norm else hidden

    def _reading(
        self, context: Context, trajectories: torch.Tensor, anchors: torch.Tensor
    ) -> list[tuple[Reads, dict[int | None, torch.Tensor]]]:
        """Says what of the context the rows read: once per pass, and per window only once per layer kind."""
        shift = context_end(self.convention)
        ends = [max(0, min(context.length, anchor + shift)) for anchor in anchors.tolist()]
        reading = []
        for slab in self.slabs(trajectories.tolist(), ends):
            everything = slab.rows == list(range(len(ends)))
            rows = None if everything else torch.tensor(slab.rows, device=self.device)
            whole = slab.trajectories == list(range(context.keys[0].shape[0]))
            chosen = None if whole else torch.tensor(slab.trajectories, device=self.device)
            reads = Reads(rows, chosen, len(slab.trajectories), slab.each, slab.seen)
            at = anchors if rows is None else anchors[rows]
            reading.append((reads, {w: self._mask(w, at, reads) for w in set(self.config.windows)}))
        return reading

    def slabs(self, trajectories: list[int], ends: list[int]) -> list[Slab]:
        """Says which rows share a pass over their trajectory's context (`slabs.arrange`)."""
        return arrange(trajectories, ends, self.block_size)

    def _mask(self, window: int | None, anchors: torch.Tensor, reads: Reads) -> torch.Tensor:
        """[trajectories, 1, groups*each*B, seen + each*B], zero where a slot sees and -inf where not."""
        block, each = self.block_size, reads.each
        before = self.context_seen(anchors, reads.seen, window)
        before = before.reshape(reads.size, each * block, reads.seen)
        own = block_mask(block, self.convention, self._rule, window, self.device)
        seen = torch.cat([before, self.blocks_seen(anchors.view(reads.size, each), own)], dim=-1)
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(~seen, float("-inf"))
        groups = self.config.num_heads // self.config.num_kv_heads
        return mask.repeat(1, groups, 1)[:, None]

    def context_seen(self, anchors: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
        """Returns which of `length` context positions each slot sees, [N, B, length] boolean."""
        return context_mask(anchors, length, self.block_size, self.convention, self._rule, window)

    def blocks_seen(self, anchors: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Returns which slots of the blocks that share a trajectory each of their slots sees.

        Args:
            anchors: [trajectories, each] positions.
            own: [B, B] what a slot sees of its own block.

        Returns:
            [trajectories, each*B, each*B] boolean: nothing of another block.
        """
        size, each = anchors.shape
        if each > 1:
            own = torch.kron(torch.eye(each, device=self.device), own.float()).bool()
        return own.expand(size, -1, -1)

    def _layer(
        self,
        layer: int,
        hidden: torch.Tensor,
        context: Context,
        reading: list[tuple[Reads, dict[int | None, torch.Tensor]]],
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        at = f"layers.{layer}."
        inner = self._norm(hidden, at + "input_layernorm.weight")
        queries, keys, values = self.block_parts(layer, inner, turn)
        window = self.config.windows[layer]
        parts = [
            attend(queries, keys, values, (context.keys[layer], context.values[layer]), reads, masks[window])
            for reads, masks in reading
        ]
        attended = parts[0]
        if len(parts) > 1:
            attended = attended.new_empty(hidden.shape[0], *attended.shape[1:])
            for part, (reads, _) in zip(parts, reading, strict=True):
                attended[reads.rows] = part
        return self.after_attention(layer, hidden, attended)

    # ------------------------------------------------------------------ pieces

    def block_parts(
        self, layer: int, inner: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns queries, keys and values of a layer's normalised input: [N, h, B, d], [N, g, B, d] twice."""
        at = f"layers.{layer}.self_attn."
        queries = rotate(self._heads(inner, at, "q_proj", "q_norm"), turn, self.rope)
        keys = rotate(self._heads(inner, at, "k_proj", "k_norm"), turn, self.rope)
        return queries, keys, self._heads(inner, at, "v_proj")

    def after_attention(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Returns a layer's output [N, B, H] from its input and its attention's output [N, B, h*d]."""
        at = f"layers.{layer}."
        hidden = hidden + self._linear(attended, at + "self_attn.o_proj")
        inner = self._norm(hidden, at + "post_attention_layernorm.weight")
        gate = F.silu(self._linear(inner, at + "mlp.gate_proj")) * self._linear(inner, at + "mlp.up_proj")
        return hidden + self._linear(gate, at + "mlp.down_proj")

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
