"""Prompt files: every line is used or refused with its number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote_payload.errors import PromptError
from remote_payload.prompts import Tokenizing, read_prompts
from tests.payload.conftest import MODELS, PROMPTS, Harness


def _file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ('{"id": "a", "text": "x"}\n\n{"id": "b", "text": "y"}\n', 2, "an empty line"),
        (b'{"id": "a", "text": "x"}\n{"id": "b", "text": "\xff"}\n', 2, "not UTF-8 (byte 21: 0xff)"),
        ('{"id": "a", "text": ""}\n', 1, "an empty prompt"),
        ('{"id": "a", "input_ids": []}\n', 1, "an empty prompt"),
        ('{"id": "a", "turns": ["x", ""]}\n', 1, "an empty prompt"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', 2, "id 'a' was used in line 1"),
        ('{"id": "a", "text": "x", "turns": ["y"]}\n', 1, "exactly one of"),
        ('{"id": "a", "txet": "x"}\n', 1, "unknown: txet"),
        ('{"text": "x"}\n', 1, 'an "id"'),
        ('{"id": "a", "input_ids": [1, -2]}\n', 1, "not of the right kind"),
        ('{"id": "a", "text": "\\ud800"}\n', 1, "half of a surrogate pair"),
        ("[1]\n", 1, "not a JSON object"),
        ("{\n", 1, "not valid JSON"),
        ("\ufeff" + '{"id": "a", "text": "x"}\n', 1, "save the file as UTF-8 without BOM"),
        ('{"id": true, "text": "x"}\n', 1, 'an "id"'),
        ('{"id": "a", "messages": [{"content": "x"}]}\n', 1, 'a list of objects with a "role"'),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(
    tmp_path: Path, content: str | bytes, line: int, message: str
) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(PromptError):
        read_prompts(_file(tmp_path, content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"nothing\.jsonl: No such file"):
        read_prompts(tmp_path / "nothing.jsonl")


def test_text_and_chat_become_the_ids_of_the_reference(harness: Harness) -> None:
    tokenizing = Tokenizing(harness.target.tokenizer(), harness.target.vocab_size)
    prompts = read_prompts(MODELS / "prompts.jsonl")
    found = {tokenized.id: list(tokenized.ids) for tokenized in tokenizing.first_turns(prompts)}
    assert found == {name: PROMPTS[name] for name in found}
    assert len(found) >= 33


def test_count_keeps_the_first(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": str(n), "text": "x"}) + "\n" for n in range(5))
    assert [prompt.id for prompt in read_prompts(_file(tmp_path, lines), 2)] == ["0", "1"]


def test_an_id_outside_the_vocabulary_is_refused(harness: Harness, tmp_path: Path) -> None:
    prompts = read_prompts(_file(tmp_path, '{"id": "a", "input_ids": [264]}\n'))
    with pytest.raises(PromptError, match=r":1: token id 264 is outside the target's 264 embeddings"):
        Tokenizing(None, harness.target.vocab_size).first_turns(prompts)


def test_text_without_a_tokenizer_is_refused_and_ids_are_not(tmp_path: Path) -> None:
    lines = '{"id": "a", "input_ids": [7]}\n{"id": "b", "text": "x"}\n'
    first, second = read_prompts(_file(tmp_path, lines))
    assert Tokenizing(None, 264).first_turns([first])[0].ids == (7,)
    with pytest.raises(PromptError, match="ships no tokenizer"):
        Tokenizing(None, 264).first_turns([second])


def test_a_second_turn_follows_the_answer_to_the_first(harness: Harness, tmp_path: Path) -> None:
    tokenizer = harness.target.tokenizer()
    (prompt,) = read_prompts(_file(tmp_path, '{"id": "a", "turns": ["one", "two"]}\n'))
    tokenizing = Tokenizing(tokenizer, 264)
    answer = list(b"yes")
    later = tokenizing.next_turn(prompt, 1, [answer])
    text = tokenizer.decode(list(later.ids))
    first, middle, last = text.index("one"), text.index("yes"), text.index("two")
    assert first < middle < last
    assert later.turn == 1
