"""The prompts that users see are, token by token, the prompts of the stored results."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "tiny"


def test_every_prompt_becomes_the_stored_tokens() -> None:
    stored = {
        prompt["id"]: prompt["ids"]
        for prompt in json.loads((ROOT / "tests/vectors/prompts.json").read_text())
    }
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target-tiny")
    lines = [json.loads(line) for line in (TINY / "prompts.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == list(stored)
    for line in lines:
        if "messages" in line:
            ids = tokenizer.apply_chat_template(
                line["messages"], add_generation_prompt=True, return_dict=False
            )
        else:
            ids = tokenizer(line["text"])["input_ids"]
        assert list(ids) == stored[line["id"]], line["id"]


def test_prompts_are_text_and_chat_from_several_datasets() -> None:
    lines = [json.loads(line) for line in (TINY / "prompts.jsonl").read_text().splitlines()]
    assert {line["dataset"] for line in lines} == {
        "code-start",
        "code-middle",
        "code-end",
        "code-joined",
        "chat",
    }
    assert {"text", "messages"} <= {key for line in lines for key in line}
