"""The self-check passes on the shipped pair and compares enough to mean something.

That it fails on one-position bugs is shown by real pushes: `tests/orchestrator/test_push_mutations.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import remote_payload
from remote_payload import selfcheck
from remote_payload.importable import import_problems


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


def test_every_module_is_imported_and_one_that_cannot_be_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "remote_payload" / "mine"
    overlay.mkdir(parents=True)
    (overlay / "__init__.py").write_text("")
    (overlay / "broken.py").write_text("import json\n\nraise RuntimeError('boom')\n")
    (overlay / "leaves.py").write_text("raise SystemExit(3)\n")
    (overlay / "sound.py").write_text("LOADED = True\n")
    monkeypatch.setattr(remote_payload, "__path__", [str(tmp_path / "remote_payload")])
    monkeypatch.setattr(selfcheck, "check", lambda _device: ([], {}))
    assert selfcheck.main(["--json", "--device", "cpu"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == [
        "remote_payload.mine.broken cannot be imported: RuntimeError: boom, remote_payload/mine/broken.py:3",
        "remote_payload.mine.leaves cannot be imported: SystemExit: 3, remote_payload/mine/leaves.py:1",
    ]
    assert sys.modules.pop("remote_payload.mine.sound").LOADED is True
    sys.modules.pop("remote_payload.mine")


def test_all_of_the_shipped_payload_can_be_imported() -> None:
    assert import_problems() == []
    assert "remote_payload.evaluate" in sys.modules
