"""A drafter's context while one sequence is being decoded: it only ever grows, by accepted positions.

What always holds: position i's keys and values are written once, when its token's feature is known, and are
never moved or changed by a draft; a draft reads views.
"""

from __future__ import annotations

import torch

__all__ = ["GrowingContext"]


class GrowingContext:
    """Per layer keys and values of `length` positions, in buffers that double: appending costs what is new.

    Args:
        layers: number of the drafter's layers. All of them are appended to before `length` moves on.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes [1, g, n, d] keys and values of a layer at positions length ... length + n - 1."""
        end = self.length + keys.shape[2]
        buffers = self._buffers[layer]
        if buffers is None or buffers[0].shape[2] < end:
            room = max(64, 2 * end)
            fresh = (
                keys.new_empty(1, keys.shape[1], room, keys.shape[3]),
                values.new_empty(1, values.shape[1], room, values.shape[3]),
            )
            if buffers is not None:
                for new, old in zip(fresh, buffers, strict=True):
                    new[:, :, : self.length] = old[:, :, : self.length]
            buffers = self._buffers[layer] = fresh
        buffers[0][:, :, self.length : end] = keys
        buffers[1][:, :, self.length : end] = values

    def view(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a layer's keys and values so far, each [1, g, length, d]."""
        buffers = self._buffers[layer]
        if buffers is None:
            raise RuntimeError("a context is filled before it is read")
        return buffers[0][:, :, : self.length], buffers[1][:, :, : self.length]
