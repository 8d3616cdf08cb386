"""The target: a causal language model that transformers loads, used four ways.

It embeds tokens and scores hidden states for the drafter (through the model's own accessors), continues
sequences, and reports the hidden states of chosen layers. What always holds: sequences of a batch
do not influence each other's results beyond rounding; `hidden_states` are numbered as Hugging Face numbers
them (0 the embedding, i the output of decoder layer i - 1, the last one after the final norm).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache, GenerationConfig
from transformers.utils import logging as transformers_logging

from remote_payload.errors import TargetError

__all__ = ["Step", "Target"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Step(NamedTuple):
    """What a decoding batch goes on with: a token for each sequence that stays.

    `keep` lists the indices, into the present batch, of the sequences that stay; None keeps all.
    """

    tokens: list[int]
    keep: list[int] | None = None


class Target:
    """A loaded target.

    Args:
        path: its folder.
        dtype: float32, bfloat16 or float16.
        device: where it runs.
        attn: transformers' attention implementation.
        trust_remote_code: whether code that comes with the model may run (only if its owner said so).

    Raises:
        TargetError: not there, not loadable, or of a kind that this payload cannot read features from.
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
        quiet: Any = transformers_logging
        quiet.disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(
                path, trust_remote_code=trust_remote_code, local_files_only=True
            )
            model: Any = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=self.dtype,
                attn_implementation=attn,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                use_safetensors=True,
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise TargetError(f"{path}: transformers cannot load this target: {error}") from error
        self.model: Any = model.to(device).eval()
        self.config: Any = config.get_text_config()
        self._decoder: Any = model.get_decoder()
        self._layers: Any = getattr(self._decoder, "layers", None)
        if self._layers is None or len(self._layers) != self.config.num_hidden_layers:
            raise TargetError(
                f"{path}: {type(model).__name__} has no list of decoder layers to read features from"
            )
        self._head: Any = model.get_output_embeddings()
        self._embedding: Any = model.get_input_embeddings()
        # transformers renamed the argument in 5.2x; the old name warns there and is the only one before.
        self._cache_argument = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )

    # ------------------------------------------------------------------ facts

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self._layers)

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding."""
        return int(self._embedding.weight.shape[0])

    def stop_ids(self) -> list[int]:
        """Returns all end-of-sequence ids of the generation config (of the config, where there is none)."""
        ids = self.config.eos_token_id
        if (self.path / "generation_config.json").is_file():
            ids = GenerationConfig.from_pretrained(self.path, local_files_only=True).eos_token_id or ids
        if ids is None:
            return []
        return sorted({int(i) for i in (ids if isinstance(ids, list) else [ids])})

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
        """Returns the embeddings of token ids: [...] -> [..., H]."""
        embedded: torch.Tensor = self._embedding(ids)
        return embedded

    @torch.no_grad()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns float32 logits of final hidden states: [..., H] -> [..., V]."""
        logits: torch.Tensor = self._head(hidden.to(self._head.weight.dtype))
        return logits.float()

    # ------------------------------------------------------------------ sequences

    @torch.no_grad()
    def decode(self, sequences: Sequence[Sequence[int]]) -> Generator[torch.Tensor, Step, None]:
        """Continues a batch with a cache, one token a step, without end: the caller stops asking.

        Yields the logits of the next token, [N, V] float32, and takes the tokens that were chosen.

        Args:
            sequences: token ids of each; at least one token.
        """
        longest = max(len(s) for s in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, longest - len(sequence) :] = torch.tensor(list(sequence))
            mask[row, longest - len(sequence) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        cache = DynamicCache(config=self.config)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        while True:
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: cache},
            )
            step = yield output.logits[:, -1].float()
            if step.keep is not None:
                index = torch.tensor(step.keep, device=self.device)
                cache.batch_select_indices(index)
                mask, positions = mask[index], positions[index]
            ids = torch.tensor(step.tokens, device=self.device)[:, None]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
            positions = positions[:, -1:] + 1

    @torch.no_grad()
    def hidden_states(
        self, sequences: Sequence[Sequence[int]], indices: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs a batch once and keeps chosen hidden states, captured by hooks (the others are never stored).

        Args:
            sequences: token ids of each, right-padded here.
            indices: which hidden states, in Hugging Face's numbering.

        Returns:
            ([P, T, len(indices)*H] the chosen ones side by side, [P, T, H] the last one, after the final norm).

        Raises:
            TargetError: an index outside 0 ... number of layers.
        """
        wrong = [i for i in indices if not 0 <= i <= self.num_layers]
        if wrong:
            raise TargetError(f"hidden_states {wrong} asked for; this target has 0 ... {self.num_layers}")
        longest = max(len(s) for s in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(list(sequence))
            mask[row, : len(sequence)] = 1
        kept: dict[int, torch.Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for index in set(indices) - {self.num_layers}:
                hooks.callback(self._capture(index, kept).remove)
            output = self._decoder(
                input_ids=ids.to(self.device), attention_mask=mask.to(self.device), use_cache=False
            )
        kept[self.num_layers] = output.last_hidden_state
        return torch.cat([kept[i] for i in indices], dim=-1), output.last_hidden_state

    def _capture(self, index: int, kept: dict[int, torch.Tensor]) -> Any:
        """Hooks the entry `index` of hidden_states: the input of layer `index`."""

        def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[index] = args[0] if args else kwargs["hidden_states"]

        return self._layers[index].register_forward_pre_hook(keep, with_kwargs=True)
