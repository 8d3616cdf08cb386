"""A target's cache that can take back what it was given, across transformers 4.57 ... 5.24.

What always holds: attention layers keep every position (also those of sliding-window layers: a window that
has moved on cannot be taken back), so that keeping n positions is a slice; recurrent layers (Gated DeltaNet,
short convolutions, Mamba) hold the state after their last token only, so they are copied before tokens that
may have to be taken back. transformers' own `crop` is not used: its meaning changed at 5.20, and it does
nothing for a recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from remote_payload.errors import TargetError

__all__ = [
    "Snapshot",
    "check_cache",
    "is_recurrent",
    "keep_path",
    "keep_positions",
    "new_cache",
    "restore",
    "take_snapshot",
]

Snapshot = list[dict[str, Any]]
"""Per layer: its attributes, with tensors that the model writes in place copied."""

_GROWN = {"keys", "values"}
"""Attributes that grow by concatenation into new tensors: a reference is a copy."""


def check_cache(cache: Any, where: str) -> None:
    """Refuses a target by the cache that its model makes.

    Args:
        cache: what the model itself made.
        where: names the target in errors.

    Raises:
        TargetError: it can neither be cut nor copied (the message names its class).
    """
    strange = {type(cache).__name__} if type(cache) is not DynamicCache else set()
    if not strange:
        strange = {type(layer).__name__ for layer in cache.layers if not _reversible(layer)}
    if strange:
        raise TargetError(
            f"{where}: its cache is of kind {', '.join(sorted(strange))}, which live decoding can neither crop nor "
            "copy; use --engine replay, which takes nothing back, or another transformers on this host"
        )


def new_cache(config: Any) -> Any:
    """Returns an empty cache (a DynamicCache) for a target of this (text) config."""
    cache: Any = DynamicCache(config=config)
    plain: Any = DynamicLayer
    cache.layers = [plain() if _slides(layer) else layer for layer in cache.layers]
    return cache


def is_recurrent(cache: Any) -> bool:
    """Whether any layer holds a recurrent or convolution state."""
    return any(_recurrent(layer) for layer in cache.layers)


def _slides(layer: Any) -> bool:
    return type(layer).__name__ == "DynamicSlidingWindowLayer"


def _reversible(layer: Any) -> bool:
    # A subclass of an attention layer may keep more than keys and values: it has to be known by name.
    known = type(layer) is DynamicLayer or type(layer).__name__ == "DummyLayer"
    return known or _slides(layer) or _recurrent(layer)


def _recurrent(layer: Any) -> bool:
    return hasattr(layer, "recurrent_states") or hasattr(layer, "conv_states")


# --------------------------------------------------------------------------- attention layers: cut


def keep_positions(cache: Any, length: int) -> None:
    """Cuts every layer to its first `length` positions."""
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]


def keep_path(cache: Any, length: int, path: Sequence[int]) -> None:
    """Keeps the first `length` positions and, of those after them, the ones that `path` names, in order.

    The accepted rows move to the front in place: only they are copied. `path` is ascending and starts with 0.
    """
    end = length + len(path)
    if list(path) == list(range(len(path))):
        keep_positions(cache, end)
        return
    rows: torch.Tensor | None = None
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue
        if rows is None or rows.device != layer.keys.device:
            rows = torch.tensor(path, device=layer.keys.device) + length
        for name in ("keys", "values"):
            whole = getattr(layer, name)
            whole[:, :, length:end] = whole.index_select(2, rows)
            setattr(layer, name, whole[:, :, :end])


# --------------------------------------------------------------------------- any layer: copy and put back


def take_snapshot(cache: Any) -> Snapshot:
    """Returns the state of every layer."""
    return [{name: _copied(name, value) for name, value in vars(layer).items()} for layer in cache.layers]


def restore(cache: Any, snapshot: Snapshot, copies: int = 1) -> None:
    """Puts a state of one sequence back, for `copies` sequences that start from it. It can be used again."""
    for layer, state in zip(cache.layers, snapshot, strict=True):
        for name, value in state.items():
            setattr(layer, name, _copied(name, value, copies))


def _copied(name: str, value: Any, copies: int = 1) -> Any:
    if isinstance(value, dict):
        return {key: _copied(name, item, copies) for key, item in value.items()}
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if name in _GROWN:
        return value.expand(copies, *value.shape[1:]) if copies > 1 else value
    return value.repeat_interleave(copies, dim=0) if copies > 1 else value.clone()
