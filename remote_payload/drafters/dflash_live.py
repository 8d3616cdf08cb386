"""DFlash on one sequence that is being decoded: the context grows by accepted positions, one block at a time.

The same weights and arithmetic pieces as `dflash`, arranged the other way: no batch, no training mask. What
always holds: position i's keys and values are written once, when its token's feature is known; a block sees
all there is, so a mask exists only where a convention or a window hides something; the anchor is the position
after the context, by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from remote_payload.drafters.masks import block_mask, context_end, context_mask

if TYPE_CHECKING:
    from remote_payload.drafters.dflash import DFlashDrafter

__all__ = ["LiveDFlash"]


class LiveDFlash:
    """A DFlash drafter and the context of one sequence.

    Args:
        drafter: its weights, config and convention.
    """

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._of = drafter
        self._contexts = [_Buffer() for _ in range(drafter.config.num_layers)]

    @property
    def length(self) -> int:
        """Context positions so far: the anchor's position."""
        return self._contexts[0].length

    @torch.no_grad()
    def grow(self, features: torch.Tensor) -> None:
        """Appends the features of the next n positions: [n, K*H], the hidden states of `feature_indices`."""
        of = self._of
        hidden = of.project(features[None])
        turn = self._turn(self.length, len(features))
        for layer, context in enumerate(self._contexts):
            context.append(*of.context_pair(layer, hidden, turn))

    @torch.no_grad()
    def draft(self, token: int) -> torch.Tensor:
        """Runs the block whose anchor, at position `length`, is `token`.

        Returns:
            [1, D, H] final hidden states of the slots that draft, ready for the target's head.
        """
        of = self._of
        hidden = of.block_input(torch.tensor([token], device=of.device))
        turn = self._turn(self.length + of.convention.block_position_offset, of.block_size)
        masks = {window: self._mask(window) for window in set(of.config.windows)}
        for layer in range(of.config.num_layers):
            hidden = self._layer(layer, hidden, turn, masks[of.config.windows[layer]])
        return of.finish(hidden[:, of.first_label :])

    def _turn(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(first, first + count, device=self._of.device)
        return self._of.turn(positions)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """Returns [groups*B, length + B], or None where the block sees everything there is."""
        of = self._of
        windowed = window is not None and of._rule != "none"
        if of.convention.in_block == "bidirectional" and not windowed and not context_end(of.convention):
            return None
        anchor = torch.tensor([self.length], device=of.device)
        before = context_mask(anchor, self.length, of.block_size, of.convention, of._rule, window)[0]
        inside = block_mask(of.block_size, of.convention, of._rule, window, of.device)
        return torch.cat([before, inside], dim=-1).repeat(of.config.num_heads // of.config.num_kv_heads, 1)

    def _layer(
        self,
        layer: int,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        of, at = self._of, f"layers.{layer}."
        inner = of._norm(hidden, at + "input_layernorm.weight")
        queries, own_keys, own_values = of.block_parts(layer, inner, turn)
        keys, values = self._contexts[layer].joined(own_keys, own_values)
        # Query heads that share a key head are one longer block of queries: nothing is repeated per head.
        _, heads, block, width = queries.shape
        grouped = queries.reshape(1, keys.shape[1], -1, width)
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        attended = attended.reshape(1, heads, block, width).transpose(1, 2).flatten(2)
        return of.after_attention(layer, hidden, attended)


class _Buffer:
    """Keys and values of one layer, [1, g, room, d], in memory that doubles: appending costs what is new."""

    def __init__(self) -> None:
        self.length = 0
        self._pair: list[torch.Tensor] = []

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Adds [1, g, n, d] keys and values."""
        self.joined(keys, values)
        self.length += keys.shape[2]

    def joined(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what is kept and, after it, [1, g, n, d] that stay until something else is written there."""
        end = self.length + keys.shape[2]
        if not self._pair or self._pair[0].shape[2] < end:
            kept = self._pair
            self._pair = [
                new.new_empty(1, new.shape[1], 2 * end + 64, new.shape[3]) for new in (keys, values)
            ]
            for new, old in zip(self._pair, kept, strict=False):
                new[:, :, : self.length] = old[:, :, : self.length]
        for whole, new in zip(self._pair, (keys, values), strict=True):
            whole[:, :, self.length : end] = new
        return self._pair[0][:, :, :end], self._pair[1][:, :, :end]
