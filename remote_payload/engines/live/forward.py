"""One pass of the target over a cache: logits and the hidden states that a drafter reads.

What always holds: a pass adds its tokens to the cache it is given and leaves nothing else behind (hooks live
as long as the pass); hidden states are numbered as Hugging Face numbers them (`target`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from remote_payload.errors import TargetError

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

    Raises:
        TargetError: the model has no list of decoder layers to read features from.
    """

    def __init__(self, target: Target) -> None:
        self._model: Any = target.model
        self._decoder: Any = target.model.get_decoder()
        self._layers: Any = getattr(self._decoder, "layers", None)
        if self._layers is None or len(self._layers) != target.num_layers:
            raise TargetError(
                f"{target.path}: {type(target.model).__name__} has no list of decoder layers to read features from"
            )
        self.device = target.device
        # transformers renamed the argument in 5.2x; the old name warns there and is the only one before.
        names = inspect.signature(target.model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

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
            output = self._model(
                input_ids=torch.tensor(ids, device=self.device),
                attention_mask=mask,
                position_ids=torch.tensor(positions, device=self.device),
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                **{self._cache_argument: cache},
            )
        features = [kept[index].to(self.device) for index in indices]
        return Pass(
            output.logits.float(), torch.cat(features, dim=-1) if features else output.logits[..., :0]
        )

    def _capture(self, index: int, kept: dict[int, torch.Tensor]) -> Any:
        """Hooks hidden state `index`: what enters layer `index`, or what leaves the decoder (the last one)."""

        def entering(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[index] = args[0] if args else kwargs["hidden_states"]

        def leaving(_module: Any, _args: tuple[Any, ...], output: Any) -> None:
            kept[index] = output[0]

        if index == len(self._layers):
            return self._decoder.register_forward_hook(leaving)
        return self._layers[index].register_forward_pre_hook(entering, with_kwargs=True)
