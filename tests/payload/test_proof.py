"""A run whose engines really differ says so by its exit code, with all its rows; ties and replay alone never do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_payload.cli import eval_main, worker_main
from remote_payload.durable import iter_jsonl, read_json
from remote_payload.engines.live import verify as verifying
from remote_payload.proof import fault, headlines
from tests.payload.conftest import MODELS, PROMPTS, ROOT
from tests.payload.runs import make_job, with_another_anchor


def _summary(parity: int | None = None, lossless: int | None = None, ties: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = {"schema": "orch/summary/1"}
    if parity is not None:
        record["parity"] = {
            "equal_rounds": 9, "rounds": 12, "equal_walks": 3, "walks": 4, "near_ties": ties, "real": parity,
        }  # fmt: skip
    if lossless is not None:
        record["lossless"] = {"equal": 3, "outputs": 4, "near_ties": ties, "real": lossless}
    return record


def test_only_real_differences_fail_a_run() -> None:
    for sound in (_summary(), _summary(0, 0), _summary(0, 0, ties=4), _summary(lossless=0)):
        assert fault(sound) == ""
    assert fault(_summary(2, 0)) == (
        "live decoding and replay part in 2 of 4 walks where no near tie explains it"
    )
    assert fault(_summary(lossless=1)).startswith("1 of 4 live outputs are not plain decoding's")
    assert "2 of 4 walks" in fault(_summary(2, 1))
    assert "1 of 4 live outputs" in fault(_summary(2, 1))


def test_reports_that_are_there_are_told_in_a_line_each() -> None:
    assert headlines(_summary()) == {}
    told = headlines(_summary(1, 0))
    assert list(told) == ["parity", "lossless"]
    assert told["parity"].startswith("parity: 9 of 12 rounds equal")
    assert told["lossless"].startswith("losslessness: 3 of 4 live outputs")


@pytest.mark.parametrize("garbage", [None, 7, [], {}, {"real": 3}, {"real": "3", "outputs": 4}])
def test_a_report_of_another_form_is_no_report(garbage: Any) -> None:
    for name in ("parity", "lossless"):
        assert fault({name: garbage}) == ""
        assert headlines({name: garbage}) == {}


def _eval(out: Path, *extra: str) -> int:
    prompts = out.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": n, "input_ids": PROMPTS[n]}) + "\n" for n in ("o00", "o12")))
    return eval_main(
        [
            *("--target", str(MODELS / "target-tiny"), "--drafter", str(MODELS / "drafter-b8-final")),
            *("--prompts", str(prompts), "--out", str(out), "--cache", str(out.parent / "cache")),
            *("--dtype", "float32", "--device", "cpu", "--threads", "1", "--max-new-tokens", "16", *extra),
        ]
    )


def test_live_outputs_that_are_not_the_targets_own_end_with_1_and_keep_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verifying, "keep_path", lambda *_: None)  # rejected tokens stay in the cache
    out = tmp_path / "out"
    assert _eval(out, "--engine", "live") == 1
    told = capsys.readouterr()
    lossless = read_json(out / "summary.json")["lossless"]
    assert lossless["real"] >= 1
    assert len(list(iter_jsonl(out / "rows.jsonl"))) == 2
    assert "rows.jsonl" in read_json(out / "MANIFEST.json")["files"]
    assert "drafter-b8-final" in told.out
    assert "a real difference of the target's choice" in told.out
    error = next(line for line in told.err.splitlines() if line.startswith("error: "))
    assert f"{lossless['real']} of 2 live outputs are not plain decoding's" in error
    assert f"{out / 'summary.json'} lists where" in error


def test_engines_that_draft_differently_end_a_job_with_1_also_where_a_drafter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_copy: Callable[..., Path]
) -> None:
    with_another_anchor(monkeypatch)
    bad = broken_copy(config=lambda c: c.update(num_target_layers=9))
    drafters = [bad, MODELS / "drafter-b8-final"]
    folder = make_job(tmp_path / "out", prompts=3, drafters=drafters, engine="both", max_new_tokens=12)
    assert worker_main(["--job", str(folder), "--cache", str(tmp_path / "cache")]) == 1
    summary = read_json(folder / "summary.json")
    assert (summary["parity"]["real"] >= 1, summary["lossless"]["real"]) == (True, 0)
    assert [entry["label"] for entry in summary["rejected"]] == ["drafter"]
    assert len(list(iter_jsonl(folder / "rows.jsonl"))) == 12
    monkeypatch.undo()
    whole = make_job(tmp_path / "whole", prompts=3, drafters=drafters[1:], engine="both", max_new_tokens=12)
    assert worker_main(["--job", str(whole), "--cache", str(tmp_path / "cache")]) == 0


def test_a_fault_of_the_payload_itself_is_not_the_answer_no(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "remote_payload", "worker", "--job", str(tmp_path / "nowhere")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError: ")
