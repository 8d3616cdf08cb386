"""The target: a causal language model that transformers loads, used four ways.

It embeds tokens and scores hidden states for the drafter (through the model's own accessors), continues
sequences, and reports the hidden states of chosen layers. What always holds: sequences of a batch
do not influence each other's results beyond rounding, recurrent states included; `hidden_states` are numbered
as Hugging Face numbers them (0 the embedding, i the output of decoder layer i - 1, the last one after the
final norm); `embed` gives hidden_states[0], `head` of the last one the model's own logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig

from remote_payload.errors import TargetError
from remote_payload.target.anatomy import find_parts
from remote_payload.target.lanes import Step, batches_soundly, continue_lanes, divides_soundly, padded
from remote_payload.target.load import load_model
from remote_payload.target.passes import pass_length
from remote_payload.target.scales import read_scales
from remote_payload.target.size import check_fits

__all__ = ["Target"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Target:
    """A loaded target. `notes` collects what a reader of its numbers should know.

    Args:
        path: its folder.
        dtype: float32, bfloat16 or float16.
        device: where it runs.
        attn: transformers' attention implementation.
        trust_remote_code: whether code that comes with the model may run (only if its owner said so).

    Raises:
        TargetError: not there, larger than the device, not loadable, incomplete, or of a kind that this payload cannot read features
            from or score drafts with.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str,
        device: torch.device,
        attn: str = "sdpa",
        trust_remote_code: bool = False,
    ) -> None:
        if dtype not in _DTYPES:
            raise TargetError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
        if not (path / "config.json").is_file():
            raise TargetError(
                f"{path}: no config.json there; the target has to be a folder in transformers' format"
            )
        self.path, self.device, self.dtype, self.dtype_name = path, device, _DTYPES[dtype], dtype
        self._trust = trust_remote_code
        check_fits(path, self.dtype, device)
        model, self.notes = load_model(path, dtype=self.dtype, attn=attn, trust_remote_code=trust_remote_code)
        self.model: Any = model.to(device).eval()
        self.parts = find_parts(self.model, path)
        self.config: Any = self.parts.config
        self.scales = read_scales(self.model, self.parts, path)

    # ------------------------------------------------------------------ facts

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.parts.layers)

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding."""
        return int(self.parts.embedding.weight.shape[0])

    @cached_property
    def batches(self) -> bool:
        """Whether sequences of several lengths may share a batch; tried once, noted where they may not."""
        sound = batches_soundly(self.parts, self.device)
        if not sound:
            self.notes.append(
                f"{self.path.name}: padding changes what {type(self.model).__name__} computes, so its sequences run "
                "one by one"
            )
        return sound

    @cached_property
    def divides(self) -> bool:
        """Whether long prompts may go in by several passes; tried once, when the first one comes."""
        return divides_soundly(self.parts, self.device, together=self.batches)

    def stop_ids(self) -> list[int]:
        """Returns all end-of-sequence ids: the generation config's, else the text model's, else the config's."""
        sources = [self.config, self.model.config]
        if (self.path / "generation_config.json").is_file():
            sources.insert(0, GenerationConfig.from_pretrained(self.path, local_files_only=True))
        for source in sources:
            ids = getattr(source, "eos_token_id", None)
            if ids is not None:
                return sorted({int(i) for i in (ids if isinstance(ids, list) else [ids])})
        return []

    def tokenizer(self) -> Any:
        """Loads the tokenizer beside the target, or returns None if there is none."""
        if not any((self.path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
            return None
        try:
            return AutoTokenizer.from_pretrained(
                self.path, trust_remote_code=self._trust, local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise TargetError(f"{self.path}: its tokenizer cannot be loaded: {error}") from error

    # ------------------------------------------------------------------ for the drafter

    @torch.no_grad()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings of token ids, as they enter the first layer: [...] -> [..., H]."""
        embedded: torch.Tensor = self.parts.embedding(ids)
        return embedded if self.scales.embedding == 1.0 else embedded * self.scales.embedding

    @torch.no_grad()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns float32 logits of final hidden states: [..., H] -> [..., V]."""
        head = self.parts.head
        return self.scales.logits.apply(head(hidden.to(head.weight.dtype))).float()

    # ------------------------------------------------------------------ sequences

    @torch.no_grad()
    def decode(self, sequences: Sequence[Sequence[int]]) -> Generator[torch.Tensor, Step, None]:
        """Continues a batch with a cache, one token a step, without end: the caller stops asking.

        Yields the logits of the next token, [N, V] float32, and takes the tokens that were chosen. Long prompts go
        in by several passes where that is sound; no other logits are made.

        Args:
            sequences: token ids of each; at least one token.
        """
        together = len(sequences) == 1 or self.batches
        longest = max(len(sequence) for sequence in sequences)
        size = pass_length(longest, len(sequences) if together else 1)
        divided = size < longest and self.divides
        states = continue_lanes(
            self.parts, sequences, self.device, together=together, size=size if divided else None
        )
        last = next(states)
        while True:
            last = states.send((yield self.head(last)))

    @torch.no_grad()
    def hidden_states(
        self, sequences: Sequence[Sequence[int]], indices: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs a batch once and keeps chosen hidden states, captured by hooks (the others are never stored).

        Args:
            sequences: token ids of each, right-padded here.
            indices: which hidden states, in Hugging Face's numbering.

        Returns:
            ([P, T, len(indices)*H] the chosen ones side by side, [P, T, H] the last one, after the final norm);
            positions past a sequence's end hold nothing of meaning.

        Raises:
            TargetError: an index outside 0 ... number of layers.
        """
        wrong = [i for i in indices if not 0 <= i <= self.num_layers]
        if wrong:
            raise TargetError(f"hidden_states {wrong} asked for; this target has 0 ... {self.num_layers}")
        if len(sequences) == 1 or self.batches:
            return self._states(sequences, indices)
        longest = max(len(s) for s in sequences)
        features = last = torch.empty(0)
        for row, sequence in enumerate(sequences):
            own, own_last = self._states([sequence], indices)
            if row == 0:
                features = own.new_zeros(len(sequences), longest, own.shape[-1])
                last = own.new_zeros(len(sequences), longest, own_last.shape[-1])
            features[row, : len(sequence)], last[row, : len(sequence)] = own[0], own_last[0]
        return features, last

    def _states(
        self, sequences: Sequence[Sequence[int]], indices: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = padded(sequences, self.device, left=False)
        kept: dict[int, torch.Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for index in set(indices) - {self.num_layers}:
                hooks.callback(self._capture(index, kept).remove)
            output = self.parts.decoder(input_ids=ids, attention_mask=mask, use_cache=False)
        last = kept[self.num_layers] = output.last_hidden_state
        return torch.cat([kept[i] for i in indices], dim=-1), last

    def _capture(self, index: int, kept: dict[int, torch.Tensor]) -> Any:
        """Hooks the entry `index` of hidden_states: the input of layer `index`."""

        def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[index] = args[0] if args else kwargs["hidden_states"]

        return self.parts.layers[index].register_forward_pre_hook(keep, with_kwargs=True)
