"""Attention of draft blocks to the contexts of their trajectories, without a copy of a context per anchor.

Shapes: N (trajectory, anchor) rows of a pass, P trajectories of a batch, T context positions, B slots, h/g query/key-value
heads, d head dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

__all__ = ["Reads", "attend"]


class Reads(NamedTuple):
    """A slab of `size` trajectories (see `slabs`) as tensors: `rows` and `trajectories` are None where they are all, in order."""

    rows: torch.Tensor | None
    trajectories: torch.Tensor | None
    size: int
    each: int
    seen: int


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: tuple[torch.Tensor, torch.Tensor],
    reads: Reads,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Attention of a slab's rows to their trajectory's context and their own blocks.

    Query heads that share a key head, and the rows that share a context, are laid out as one long sequence
    of queries: keys and values are neither repeated per head nor copied per row.

    Args:
        queries: [N, h, B, d] of the whole pass; keys, values: [N, g, B, d].
        context: keys and values of the layer, [P, g, T, d].
        reads: the slab.
        mask: from `_mask`.

    Returns:
        [rows of the slab, B, h*d].
    """
    if reads.rows is not None:
        queries, keys, values = queries[reads.rows], keys[reads.rows], values[reads.rows]
    rows, heads, block, width = queries.shape
    kv, count, each = keys.shape[1], reads.size, reads.each
    asked = queries.reshape(count, each, kv, heads // kv, block, width).permute(0, 2, 3, 1, 4, 5)
    stored = []
    for own, before in zip((keys, values), context, strict=True):
        before = before[:, :, : reads.seen]
        before = before if reads.trajectories is None else before[reads.trajectories]
        own = (
            own.reshape(count, each, kv, block, width).transpose(1, 2).reshape(count, kv, each * block, width)
        )
        stored.append(torch.cat([before, own], dim=2))
    attended = F.scaled_dot_product_attention(
        asked.reshape(count, kv, -1, width), stored[0], stored[1], attn_mask=mask
    )
    attended = attended.reshape(count, kv, heads // kv, each, block, width).permute(0, 3, 4, 1, 2, 5)
    return attended.reshape(rows, block, heads * width)
