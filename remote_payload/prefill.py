"""The hidden states of long sequences, in bounded memory.

A batch in one pass needs an attention mask of P * T * T entries, and a layer's activations for all P * T
positions. Beyond `MASK_ELEMENTS` of the one or `PASS_TOKENS` of the other, sequences run one by one, and in
chunks with a cache where every layer is plain attention: a chunk's mask then has chunk * T entries. (A model
with recurrent or sliding layers runs a sequence in one pass: those layers have no T * T mask, and alone in its
batch a sequence needs none at all.) What always holds: the states equal those of one pass up to rounding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from remote_payload.memory import MASK_ELEMENTS

if TYPE_CHECKING:
    from remote_payload.target import Target

__all__ = ["PASS_TOKENS", "chunk_length", "states"]

PASS_TOKENS = 1 << 15
"""Positions of one forward pass."""


def states(
    target: Target, sequences: Sequence[Sequence[int]], indices: Sequence[int], *, chunk: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `Target.hidden_states` returns, in bounded memory.

    Args:
        target: the model.
        sequences: P sequences of token ids.
        indices: which hidden states.
        chunk: positions per pass, instead of what `chunk_length` says.
    """
    longest = max(len(sequence) for sequence in sequences)
    if chunk is None and len(sequences) * longest * longest <= MASK_ELEMENTS:
        return target.hidden_states(sequences, indices)
    size = chunk or chunk_length(longest)
    features = last = torch.empty(0)
    for row, sequence in enumerate(sequences):
        if size >= len(sequence) or not _plain_attention(target.config):
            own, own_last = target.hidden_states([sequence], indices)
            own, own_last = own[0], own_last[0]
        else:
            own, own_last = _in_chunks(target, sequence, indices, size)
        if not row:
            features = own.new_zeros(len(sequences), longest, own.shape[-1])
            last = own_last.new_zeros(len(sequences), longest, own_last.shape[-1])
        features[row, : len(sequence)], last[row, : len(sequence)] = own, own_last
    return features, last


def chunk_length(length: int) -> int:
    """Returns the positions of a chunk of a sequence of this length: `MASK_ELEMENTS` / length, at least 16."""
    return min(PASS_TOKENS, max(16, MASK_ELEMENTS // length))


def _plain_attention(config: Any) -> bool:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not getattr(config, "sliding_window", None)


@torch.no_grad()
def _in_chunks(
    target: Target, sequence: Sequence[int], indices: Sequence[int], size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs one sequence with a cache: ([T, len(indices)*H], [T, H])."""
    decoder = target.model.get_decoder()
    names = inspect.signature(decoder.forward).parameters
    # transformers renamed the argument in 5.2x; the old name warns there and is the only one before.
    cache = {("cache" if "cache" in names else "past_key_values"): DynamicCache(config=target.config)}
    ids = torch.tensor([list(sequence)], device=target.device)
    mask, positions = torch.ones_like(ids), torch.arange(len(sequence), device=target.device)[None]
    kept: dict[int, torch.Tensor] = {}
    features = last = torch.empty(0)
    with contextlib.ExitStack() as hooks:
        for index in set(indices) - {target.num_layers}:
            hooks.callback(target._capture(index, kept).remove)
        for start in range(0, len(sequence), size):
            stop = min(start + size, len(sequence))
            output = decoder(
                input_ids=ids[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=positions[:, start:stop],
                use_cache=True,
                **cache,
            )
            kept[target.num_layers] = output.last_hidden_state
            if not start:
                width = output.last_hidden_state.shape[-1]
                features = output.last_hidden_state.new_empty(len(sequence), width * len(indices))
                last = output.last_hidden_state.new_empty(len(sequence), width)
            features[start:stop] = torch.cat([kept[i][0] for i in indices], dim=-1)
            last[start:stop] = output.last_hidden_state[0]
    return features, last
