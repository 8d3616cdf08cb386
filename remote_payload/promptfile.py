"""Prompt files: from bytes to checked lines. Standard library only: both programs read them with this.

A line is a JSON object with `id` and one of `input_ids`, `text`, `messages`, `turns`; `dataset` is optional.
What always holds: every line is either used or refused with its number; nothing is skipped, trimmed or
repaired. What only the target can judge (its vocabulary, its chat template) is not judged here.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remote_payload.durable import canonical_json
from remote_payload.errors import PromptError

__all__ = ["FORMS", "Prompt", "parse_prompts"]

FORMS = ("input_ids", "text", "messages", "turns")

_KEYS = ("id", "dataset", *FORMS)


@dataclass(frozen=True)
class Prompt:
    """One line of a prompt file. Exactly one of the four forms is set. `where` is file:line."""

    id: str
    dataset: str
    where: str
    input_ids: list[int] | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    turns: list[str] = field(default_factory=list)


def parse_prompts(data: bytes, name: str) -> list[Prompt]:
    """Reads the bytes of a prompt file, all lines of it.

    Args:
        data: UTF-8, one JSON object a line; the last line may lack its newline.
        name: the file's, for messages.

    Raises:
        PromptError: with file and line: not UTF-8, a byte-order mark, an empty line, not JSON, no id, an id
            twice, no form or several, an unknown key, an empty prompt; or the file has no line at all.
    """
    if data.startswith(codecs.BOM_UTF8):
        raise PromptError(f"{name}:1: begins with a byte-order mark; save the file as UTF-8 without BOM")
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        prompt = _parse(line, f"{name}:{number}")
        if prompt.id in seen:
            raise PromptError(f"{name}:{number}: id {prompt.id!r} was used in line {seen[prompt.id]} already")
        seen[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f"{name}: no prompts in it")
    return prompts


def _parse(line: bytes, where: str) -> Prompt:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{where}: not UTF-8 (byte {error.start}: {line[error.start]:#04x})") from error
    if not text.strip():
        raise PromptError(f"{where}: an empty line; remove it")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise PromptError(f'{where}: not a JSON object; it has to be one with an "id"')
    name = record.get("id")
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        raise PromptError(f'{where}: has to be an object with an "id" (text or a whole number)')
    forms = [form for form in FORMS if form in record]
    unknown = sorted(set(record) - set(_KEYS))
    if len(forms) != 1 or unknown:
        found = f"unknown: {', '.join(unknown)}" if unknown else f"found {', '.join(forms) or 'none'}"
        raise PromptError(f"{where}: has to have exactly one of {', '.join(FORMS)} ({found})")
    form, value = forms[0], record[forms[0]]
    _check_form(form, value, where)
    return Prompt(str(name), str(record.get("dataset", "")), where, **{form: value})


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "input_ids": (
        lambda v: isinstance(v, list) and all(type(i) is int and i >= 0 for i in v),
        "a list of whole numbers from 0 up",
    ),
    "text": (lambda v: isinstance(v, str), "text"),
    "messages": (
        lambda v: isinstance(v, list) and all(isinstance(m, dict) and "role" in m for m in v),
        'a list of objects with a "role"',
    ),
    "turns": (lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v), "a list of texts"),
}


def _check_form(form: str, value: Any, where: str) -> None:
    is_right, kind = _KINDS[form]
    if not is_right(value):
        raise PromptError(f"{where}: {form} is not of the right kind: it has to be {kind}")
    try:
        canonical_json(value).encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{where}: {form} holds half of a surrogate pair, which is no text") from error
    except ValueError as error:
        raise PromptError(f"{where}: {form} holds a number that JSON does not have ({error})") from error
    if not value or (form == "turns" and not all(value)):
        raise PromptError(f"{where}: an empty prompt; there has to be at least one token to continue")
