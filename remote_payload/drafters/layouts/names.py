"""Stored tensor names -> z-lab names: wrappers stripped, aliases resolved, fused projections split.

What always holds: a name is only ever reduced by rules of this file, whatever their order and however often
they apply; two stored tensors never become one; a fused tensor is split only if its shape is exactly that
of its parts one after the other, in the order that the fused name states.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from remote_payload.drafters.layouts.base import StoredTensor
from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ["resolve", "zlab_name"]

_ANYWHERE = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""torch.compile, FSDP and activation checkpointing wrap single layers as well as the whole model."""

_LEADING = frozenset({"module", "model", "draft_model", "dflash_module"})

_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def zlab_name(stored: str) -> str:
    """Returns the z-lab name of a stored tensor (of a fused one: its fused name)."""
    parts = [part for part in stored.split(".") if part not in _ANYWHERE]
    while len(parts) > 1:
        if parts[0] in _LEADING:
            parts = parts[1:]
        elif parts[0] == "midlayer":
            parts = ["layers", "0", *parts[1:]]
        elif parts[:2] == ["encoder", "fc"]:
            parts = parts[1:]
        else:
            break
    return ".".join(parts)


def resolve(
    stored: Iterable[StoredTensor], expected: dict[str, tuple[int, ...]], where: Path
) -> dict[str, StoredTensor]:
    """Returns the tensors under their z-lab names.

    Args:
        stored: as a layout yields them.
        expected: shapes by z-lab name, for splitting.
        where: the folder, for messages.

    Raises:
        CheckpointError: two stored tensors have one name once their wrappers are removed.
    """
    found: dict[str, StoredTensor] = {}
    for tensor in stored:
        for piece in _split(StoredTensor(zlab_name(tensor.name), tensor.shape, tensor.load), expected):
            if piece.name in found:
                raise CheckpointError(
                    f"{where}: {piece.name} is there twice once wrapper prefixes are removed "
                    f"(the second one is stored as {tensor.name})"
                )
            found[piece.name] = piece
    return found


def _split(tensor: StoredTensor, expected: dict[str, tuple[int, ...]]) -> list[StoredTensor]:
    """Returns a fused tensor's parts; anything else, and a fused one of another shape, as it is."""
    body, _, kind = tensor.name.rpartition(".")
    for fused, parts in _FUSED.items():
        if not body.endswith(f".{fused}"):
            continue
        names = [f"{body.removesuffix(fused)}{part}.{kind}" for part in parts]
        shapes = [expected.get(name, ()) for name in names]
        if not all(shapes) or tensor.shape != (sum(s[0] for s in shapes), *shapes[0][1:]):
            return [tensor]
        starts = [sum(s[0] for s in shapes[:place]) for place in range(len(shapes))]
        return [
            StoredTensor(name, shape, partial(_part, tensor, start, shape[0]))
            for name, shape, start in zip(names, shapes, starts, strict=True)
        ]
    return [tensor]


def _part(tensor: StoredTensor, start: int, length: int) -> torch.Tensor:
    return tensor.load().narrow(0, start, length).clone()
