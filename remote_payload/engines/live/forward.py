"""One pass of the target over a cache: logits and the hidden states that a drafter reads.

What always holds: a pass adds its tokens to the cache it is given and leaves nothing else behind (hooks live
as long as the pass); hidden states are numbered as Hugging Face numbers them (`target`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from remote_payload.target.lanes import cache_argument

if TYPE_CHECKING:
    from remote_payload.target import Target

__all__ = ["CachedForward", "Pass"]


class Pass(NamedTuple):
    """What a pass gives: logits [N, L', V] float32 of the last L' tokens, features [N, L, K*H] of all L."""

    logits: torch.Tensor
    features: torch.Tensor


class CachedForward:
    """Runs a target on caches.

    Args:
        target: the model.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._parts, self.device = target, target.parts, target.device
        self._cache_argument = cache_argument(target.parts.decoder)

    @torch.no_grad()
    def own_cache(self) -> Any:
        """Returns the cache that the model itself makes for a sequence."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        return self._parts.decoder(input_ids=ids, use_cache=True).get(self._cache_argument)

    @torch.no_grad()
    def run(
        self,
        cache: Any,
        ids: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        indices: Sequence[int],
        *,
        mask: Any = None,
        last_only: bool = False,
    ) -> Pass:
        """Runs L tokens of N sequences after what the cache holds.

        Args:
            cache: of N sequences of equal length; it grows by L.
            ids: [N][L] tokens.
            positions: [N][L] their positions.
            indices: which hidden states to keep, K of them.
            mask: None for plain causal attention, else what the model takes for its attention (additive).
            last_only: logits of the last token only.
        """
        kept: dict[int, torch.Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for index in set(indices):
                hooks.callback(self._capture(index, kept).remove)
            output = self._parts.decoder(
                input_ids=torch.tensor(ids, device=self.device),
                attention_mask=mask,
                position_ids=torch.tensor(positions, device=self.device),
                use_cache=True,
                **{self._cache_argument: cache},
            )
        last = output.last_hidden_state
        features = [kept[index].to(self.device) for index in indices]
        logits = self._target.head(last[:, -1:] if last_only else last)
        return Pass(logits, torch.cat(features, dim=-1) if features else last[..., :0])

    def _capture(self, index: int, kept: dict[int, torch.Tensor]) -> Any:
        """Hooks hidden state `index`: what enters layer `index`, or what leaves the decoder (the last one)."""

        def entering(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[index] = args[0] if args else kwargs["hidden_states"]

        def leaving(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
            kept[index] = output[0]

        if index == len(self._parts.layers):
            return self._parts.decoder.register_forward_hook(leaving)
        return self._parts.layers[index].register_forward_pre_hook(entering, with_kwargs=True)
