"""The self-check passes on the shipped pair and compares enough to mean something.

That it fails on one-position bugs is shown by real pushes: `tests/orchestrator/test_push_mutations.py`.
"""

from __future__ import annotations

import json

import pytest
import torch

from remote_payload import selfcheck


def test_the_shipped_pair_passes_and_compares_enough() -> None:
    problems, figures = selfcheck.check(torch.device("cpu"))
    assert problems == []
    assert figures["anchors"] >= 8
    assert figures["lists"] >= 9
    assert figures["max_logit_error"] <= 1e-4


def test_the_stored_lists_accept_more_than_the_bonus_token() -> None:
    expected = json.loads((selfcheck.MICRO / "expected.json").read_text())
    for shape in ("chain", "ddtree:4", "ddtree:8"):
        lengths = [n for prompt in expected["prompts"] for n in prompt["accept_lengths"][shape]]
        assert sum(n > 1 for n in lengths) > len(lengths) / 2


def test_not_a_number_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        selfcheck.Target, "head", lambda _self, hidden: torch.full((*hidden.shape[:-1], 264), float("nan"))
    )
    assert selfcheck.main(["--json", "--device", "cpu"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert "NaN" in document["problems"][0]
