"""The hidden states of long sequences, in bounded memory.

Beyond the bound on a pass (`target.passes`) sequences run one by one, and in several passes with a cache where
the target `divides`. What always holds: the states equal those of one pass up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from remote_payload.target.lanes import cache_argument
from remote_payload.target.passes import pass_length, spans

if TYPE_CHECKING:
    from remote_payload.target import Target

__all__ = ["states"]


def states(
    target: Target, sequences: Sequence[Sequence[int]], indices: Sequence[int], *, chunk: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `Target.hidden_states` returns, in bounded memory.

    Args:
        target: the model.
        sequences: P sequences of token ids.
        indices: which hidden states.
        chunk: positions per pass, instead of what `pass_length` says.
    """
    longest = max(len(sequence) for sequence in sequences)
    if chunk is None and pass_length(longest, len(sequences)) == longest:
        return target.hidden_states(sequences, indices)
    features = last = torch.empty(0)
    for row, sequence in enumerate(sequences):
        size = chunk or pass_length(len(sequence))
        if size >= len(sequence) or not target.divides:
            own, own_last = target.hidden_states([sequence], indices)
            own, own_last = own[0], own_last[0]
        else:
            own, own_last = _in_passes(target, sequence, indices, size)
        if not row:
            features = own.new_zeros(len(sequences), longest, own.shape[-1])
            last = own_last.new_zeros(len(sequences), longest, own_last.shape[-1])
        features[row, : len(sequence)], last[row, : len(sequence)] = own, own_last
    return features, last


@torch.no_grad()
def _in_passes(
    target: Target, sequence: Sequence[int], indices: Sequence[int], size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs one sequence with a cache: ([T, len(indices)*H], [T, H])."""
    decoder = target.parts.decoder
    argument = cache_argument(decoder)
    cache: dict[str, Any] = {}  # the model makes the kind that it needs
    ids = torch.tensor([list(sequence)], device=target.device)
    mask, positions = torch.ones_like(ids), torch.arange(len(sequence), device=target.device)[None]
    kept: dict[int, torch.Tensor] = {}
    features = last = torch.empty(0)
    with contextlib.ExitStack() as hooks:
        for index in set(indices) - {target.num_layers}:
            hooks.callback(target._capture(index, kept).remove)
        for span in spans(len(sequence), size):
            output = decoder(
                input_ids=ids[:, span],
                attention_mask=mask[:, : span.stop],
                position_ids=positions[:, span],
                use_cache=True,
                **cache,
            )
            cache = {argument: output.get(argument)}
            kept[target.num_layers] = output.last_hidden_state
            if not span.start:
                width = output.last_hidden_state.shape[-1]
                features = output.last_hidden_state.new_empty(len(sequence), width * len(indices))
                last = output.last_hidden_state.new_empty(len(sequence), width)
            features[span] = torch.cat([kept[i][0] for i in indices], dim=-1)
            last[span] = output.last_hidden_state[0]
    return features, last
