"""The attention masks of a draft tree in one pass of the target.

A node sees the whole committed text and its own ancestors, itself included, and nothing else of the tree. In
a layer with a sliding window W it sees, of those, positions greater than its own minus W (the rule of plain
decoding in transformers), counted in depths, not in places of the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from remote_payload.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ancestors", "check_trees", "tree_mask"]

_MASKED = ("sdpa", "eager")


def ancestors(parents: Sequence[int]) -> torch.Tensor:
    """Returns [M, M] boolean: row i marks node i and its ancestors. Parents come before children."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def check_trees(config: Any, implementation: str) -> None:
    """Raises InputError if a target's attention cannot take the mask of a draft tree.

    Args:
        config: its (text) config.
        implementation: transformers' name of its attention implementation.
    """
    if implementation not in _MASKED:
        raise InputError(
            f"attention implementation {implementation!r} cannot take the ancestor mask of a draft tree; use --attn "
            "sdpa, the chain, or --engine replay"
        )
    if "chunked_attention" in (getattr(config, "layer_types", None) or []):
        raise InputError(
            "the target has chunked attention, for which draft trees are not verified live; use the chain, or "
            "--engine replay"
        )


def tree_mask(
    config: Any, parents: Sequence[int], depths: Sequence[int], length: int, dtype: torch.dtype, device: Any
) -> Any:
    """Returns the additive mask of a tree after `length` committed positions.

    Returns:
        [1, 1, M, length + M], or a dict of such per layer type where the target's layers differ.
    """
    seen = torch.cat([torch.ones(len(parents), length, dtype=torch.bool), ancestors(parents)], dim=-1)
    depth = torch.tensor(depths)
    places = torch.cat([torch.arange(length), length + depth])
    window = getattr(config, "sliding_window", None)
    near = seen & (places[None, :] > (length + depth)[:, None] - window) if window else seen
    kinds = set(getattr(config, "layer_types", None) or [])
    if "sliding_attention" in kinds:
        full, sliding = _additive(seen, dtype, device), _additive(near, dtype, device)
        return {kind: sliding if kind == "sliding_attention" else full for kind in kinds}
    # Without layer types a window belongs to every layer; with them, none of them slides.
    return _additive(seen if kinds else near, dtype, device)


def _additive(seen: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return mask[None, None].to(device)
