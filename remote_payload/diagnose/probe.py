"""A DFlash drafter run in a way that is not its declared one, for measurements only.

What always holds: whatever is not altered is computed by `dflash` itself; an alteration that no real harness
could run (other blocks visible, a later feature in the context) exists here and nowhere else.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.drafters.heads import Head
from remote_payload.drafters.slabs import Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from remote_payload.drafters.checkpoint import Checkpoint
    from remote_payload.drafters.convention import Convention
    from remote_payload.drafters.dflash import Context
    from remote_payload.drafters.rope import RopeConfig

__all__ = ["ANCHOR_SHIFT", "Alteration", "ProbeDrafter"]

ANCHOR_SHIFT = 17
"""How far a changed anchor's id is from the true one: any other token does."""
_SHUFFLED = 32
"""Context positions are shuffled within stretches of this length."""


@dataclass(frozen=True)
class Alteration:
    """What differs from the drafter's declared way beyond the settings of a `Convention`.

    Attributes:
        context_order: "", or which positions the context's features get: `reversed` (the oldest is nearest to
            the anchor), `shuffled` (within stretches of 32), `newest` (nothing but the newest is seen).
        positions_from_zero: slot k sits at position k (and the convention's offset).
        feature_indices: entries of `hidden_states` to read instead of the declared ones.
        rope: another rotary embedding than the config's and the convention's.
        mask: a token id whose embedding stands for the mask token's; -1, a zero row.
        anchor_changed: the block starts from another token than the anchor.
        embedding_scale: factor on the block's embeddings.
        head: "", `embedding` (the input embedding scores) or `target` (not the drafter's own head).
        blocks: "", or which other blocks of the same pass a block sees: `all` or `earlier` ones.
    """

    context_order: str = ""
    positions_from_zero: bool = False
    feature_indices: tuple[int, ...] | None = None
    rope: RopeConfig | None = None
    mask: int | None = None
    anchor_changed: bool = False
    embedding_scale: float = 1.0
    head: str = ""
    blocks: str = ""


class ProbeDrafter(DFlashDrafter):
    """A drafter under a convention and an alteration. Arguments as of `DFlashDrafter`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        convention: Convention,
        alteration: Alteration,
        *,
        block_size: int,
        embed: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(
            checkpoint, convention, block_size=block_size, embed=embed, device=device, dtype=dtype
        )
        self.alteration = alteration
        self.rope = alteration.rope or self.rope
        self._together: list[list[int]] = []
        self._watched: list[torch.Tensor] | None = None

    @property
    def feature_indices(self) -> list[int]:
        """As declared, or the alteration's."""
        chosen = self.alteration.feature_indices
        return super().feature_indices if chosen is None else list(chosen)

    def head(self, target_head: Callable[[torch.Tensor], torch.Tensor], vocab_size: int) -> Head:
        """As declared, or the alteration's."""
        if self.alteration.head == "embedding":
            rows = self._embed(torch.arange(vocab_size, device=self.device)).to(self.dtype)
            return Head(lambda hidden: torch.nn.functional.linear(hidden, rows).float(), vocab_size)
        if self.alteration.head == "target":
            return Head(target_head, vocab_size)
        return super().head(target_head, vocab_size)

    # ------------------------------------------------------------------ context

    def context_positions(self, length: int) -> torch.Tensor:
        """As declared, shuffled, or counted backwards from 0.

        Reversed: feature j belongs at position s - 1 - j, which depends on the anchor s. Rotary scores depend on
        differences alone, so with s - 1 taken off everywhere feature j sits at -j for every anchor, and slot k
        at k + 1 (`block_positions`).
        """
        true = super().context_positions(length)
        if self.alteration.context_order == "reversed":
            return -true
        if self.alteration.context_order == "shuffled":
            generator = torch.Generator().manual_seed(length)
            parts = [
                part[torch.randperm(len(part), generator=generator)]
                for part in torch.split(true.cpu(), _SHUFFLED)
            ]
            return torch.cat(parts).to(true.device)
        return true

    def context_seen(self, anchors: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
        """As declared, or the newest feature alone."""
        seen = super().context_seen(anchors, length, window)
        if self.alteration.context_order != "newest":
            return seen
        kv = torch.arange(length, device=anchors.device)
        return seen & (kv >= (seen * (kv + 1)).amax(-1, keepdim=True) - 1)

    # ------------------------------------------------------------------ block

    def block_input(self, tokens: torch.Tensor) -> torch.Tensor:
        """As declared, with another anchor, another mask row, or scaled."""
        changed = self.alteration
        if changed.anchor_changed:
            tokens = (tokens - ANCHOR_SHIFT).abs()
        hidden = super().block_input(tokens)
        if changed.mask is not None and self.block_size > 1:
            row = torch.zeros_like(hidden[0, 0])
            if changed.mask >= 0:
                row = self._embed(torch.tensor(changed.mask, device=self.device)).to(self.dtype)
            hidden = torch.cat([hidden[:, :1], row.expand_as(hidden[:, 1:])], dim=1)
        return hidden * changed.embedding_scale if changed.embedding_scale != 1.0 else hidden

    def block_positions(self, anchors: torch.Tensor) -> torch.Tensor:
        """As declared, or without the anchor's position."""
        if self.alteration.positions_from_zero:
            return super().block_positions(torch.zeros_like(anchors))
        if self.alteration.context_order == "reversed":
            return super().block_positions(torch.ones_like(anchors))
        return super().block_positions(anchors)

    def blocks_seen(self, anchors: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """As declared, or blocks of the same trajectory (the rows of a slab) see one another."""
        kind = self.alteration.blocks
        if not kind:
            return super().blocks_seen(anchors, own)
        _, each = anchors.shape
        earlier = anchors[:, None, :] <= anchors[:, :, None]
        seen = earlier if kind == "earlier" else torch.ones_like(earlier)
        diagonal = torch.eye(each, dtype=torch.bool, device=anchors.device)
        # Of its own block a slot sees what it always does; of another one, all (or, causally, up to its own slot).
        own_slots = torch.kron(diagonal.float(), torch.ones_like(own).float()).bool()
        others = torch.kron(seen.float(), torch.ones_like(own).float()).bool()
        if self.convention.in_block == "causal":
            others &= own.repeat(each, each)
        return torch.where(own_slots, own.repeat(each, each), others)

    def weight(self, name: str) -> torch.Tensor:
        """Returns a tensor of the checkpoint, where and in the precision in which it computes."""
        return self._weights[name]

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[torch.Tensor]]:
        """Keeps every layer's output [N, B, H] of the passes made inside."""
        outputs: list[torch.Tensor] = []
        self._watched = outputs
        try:
            yield outputs
        finally:
            self._watched = None

    def after_attention(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """As declared."""
        output = super().after_attention(layer, hidden, attended)
        if self._watched is not None:
            self._watched.append(output)
        return output

    def slots_together(
        self,
        context: Context,
        groups: Sequence[int],
        trajectories: torch.Tensor,
        anchors: torch.Tensor,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        """As `slots`, where the rows of a group make one pass: their blocks see each other as `blocks` says.

        Args:
            groups: the group of each row; all rows of a group are of one trajectory.
        """
        members: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        self._together = list(members.values())
        try:
            return self.slots(context, trajectories, anchors, tokens)
        finally:
            self._together = []

    def slabs(self, trajectories: list[int], ends: list[int]) -> list[Slab]:
        """As declared, or the groups of `slots_together`, those of one size side by side."""
        if not self._together:
            return super().slabs(trajectories, ends)
        by_size: dict[int, list[list[int]]] = {}
        for rows in self._together:
            by_size.setdefault(len(rows), []).append(rows)
        return [
            Slab(
                [row for rows in same for row in rows],
                [trajectories[rows[0]] for rows in same],
                size,
                max(ends[row] for rows in same for row in rows),
            )
            for size, same in by_size.items()
        ]
