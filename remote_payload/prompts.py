"""Prompts -> token ids, with the target's tokenizer. What a line may hold: `promptfile`.

What always holds: every prompt is either used or refused by its line; nothing is skipped, trimmed or
repaired. `messages` and `turns` go through the target's own chat template (thinking off by default).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_payload.durable import canonical_json, sha256_hex
from remote_payload.errors import PromptError
from remote_payload.promptfile import Prompt, parse_prompts

__all__ = ["Prompt", "Tokenized", "Tokenizing", "prompt_hash", "read_prompts"]


@dataclass(frozen=True)
class Tokenized:
    """A prompt (or one turn of it) as token ids; `hash` identifies the ids."""

    id: str
    dataset: str
    turn: int
    ids: tuple[int, ...]
    hash: str


def prompt_hash(ids: Sequence[int]) -> str:
    """Returns the identity of a prompt: of its token ids."""
    return sha256_hex(canonical_json(list(ids)))


def read_prompts(path: Path, count: int | None = None) -> list[Prompt]:
    """Reads a prompt file.

    Args:
        path: a .jsonl file, UTF-8.
        count: keep the first so many; None keeps all. All lines are checked.

    Raises:
        PromptError: not there, or as `parse_prompts`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PromptError(f"{path}: {error.strerror}") from error
    return parse_prompts(data, str(path))[:count]


class Tokenizing:
    """Turns prompts into ids with a target's tokenizer.

    Args:
        tokenizer: the target's, or None if it ships none (then only `input_ids` prompts work).
        vocab_size: ids have to be below it.
        enable_thinking: passed to the chat template.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, *, enable_thinking: bool = False) -> None:
        self._tokenizer, self._vocab, self._thinking = tokenizer, vocab_size, enable_thinking

    @property
    def template(self) -> str | None:
        """The chat template's source, if there is one."""
        template = getattr(self._tokenizer, "chat_template", None)
        return template if template is None or isinstance(template, str) else canonical_json(template)

    def first_turns(self, prompts: Iterable[Prompt]) -> list[Tokenized]:
        """Returns the first (usually the only) turn of every prompt."""
        return [self._one(prompt, 0, self._ids(prompt)) for prompt in prompts]

    def next_turn(self, prompt: Prompt, turn: int, answers: Sequence[Sequence[int]]) -> Tokenized:
        """Returns a later turn of a conversation, after the target's own answers to the earlier ones.

        Args:
            prompt: one with `turns`.
            turn: 1 or more.
            answers: output ids (without the stop token) of turns 0 ... turn - 1.
        """
        messages = []
        for user, answer in zip(prompt.turns, answers, strict=False):
            messages.append({"role": "user", "content": user})
            said = self._tokenizer.decode(list(answer), skip_special_tokens=True)
            messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": prompt.turns[turn]})
        return self._one(prompt, turn, self._chat(messages, prompt.where))

    def _ids(self, prompt: Prompt) -> list[int]:
        if prompt.input_ids is not None:
            return prompt.input_ids
        if self._tokenizer is None:
            raise PromptError(f"{prompt.where}: the target ships no tokenizer, so only input_ids can be used")
        if prompt.text is not None:
            return list(self._tokenizer(prompt.text)["input_ids"])
        return self._chat(prompt.messages or [{"role": "user", "content": prompt.turns[0]}], prompt.where)

    def _chat(self, messages: list[dict[str, Any]], where: str) -> list[int]:
        if not self.template:
            raise PromptError(f"{where}: the target's tokenizer has no chat template; use text or input_ids")
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=self._thinking
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _one(self, prompt: Prompt, turn: int, ids: Sequence[int]) -> Tokenized:
        if not ids:
            raise PromptError(
                f"{prompt.where}: an empty prompt; there has to be at least one token to continue"
            )
        high = max(ids)
        if high >= self._vocab:
            raise PromptError(
                f"{prompt.where}: token id {high} is outside the target's {self._vocab} embeddings"
            )
        return Tokenized(prompt.id, prompt.dataset, turn, tuple(ids), prompt_hash(ids))
