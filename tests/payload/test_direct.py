"""An evaluation that somebody starts by hand leases its GPUs like any job."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_payload import cli
from remote_payload.errors import InputError
from remote_payload.protocol import Job
from remote_payload.supervise.direct import holding_gpus
from remote_payload.supervise.lockdir import LockDir
from remote_payload.supervise.slots import HostRules
from tests.payload import fake_tree
from tests.payload.conftest import MODELS
from tests.payload.fake_smi import FakeSmi


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostRules]:
    smi = FakeSmi(tmp_path / "bin")
    monkeypatch.setenv("PATH", smi.path())
    for name in ("CUDA_VISIBLE_DEVICES", "ORCH_LEASED_GPUS"):
        monkeypatch.setenv(name, "x")  # so that what is set below is undone at the end
        monkeypatch.delenv(name)
    return HostRules(str(tmp_path / "locks"))


def test_the_gpus_are_held_shown_and_given_back(rules: HostRules) -> None:
    locks = LockDir(rules.lock_dir, shared=True)
    with holding_gpus(replace(fake_tree.job("a"), gpus=2), lambda _: None, rules):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-000,GPU-111"
        assert (locks.holder("GPU-111") or {})["job_id"] == "a"
    assert locks.holder("GPU-111") is None
    assert locks.line() == []


def test_it_waits_in_line_and_says_for_what(rules: HostRules) -> None:
    taken = [LockDir(rules.lock_dir, shared=True).take(name) for name in ("GPU-000", "GPU-111")]
    said: list[str] = []

    def hear(words: str) -> None:
        said.append(words)
        threading.Timer(0.2, lambda: os.close(taken[1] or -1)).start()

    with holding_gpus(fake_tree.job("a"), hear, rules):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-111"
    assert said == ["next in line for a GPU (GPU 0 is taken; GPU 1 is taken)"]


def test_a_run_without_a_gpu_is_shown_none_and_leases_none(rules: HostRules) -> None:
    with holding_gpus(replace(fake_tree.job("a"), device="cpu"), lambda _: None, rules):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not Path(rules.lock_dir).exists()


def test_more_than_there_is_is_refused(rules: HostRules) -> None:
    with (
        pytest.raises(InputError, match="asks for 3 GPUs"),
        holding_gpus(replace(fake_tree.job("a"), gpus=3), lambda _: None, rules),
    ):
        raise AssertionError("it was let in")


def test_the_command_on_the_box_runs_inside_its_lease(
    rules: HostRules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCH_LOCK_DIR", rules.lock_dir)
    seen: list[str | None] = []

    def run(job: Job, *_: object) -> int:
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        assert LockDir(rules.lock_dir, shared=True).holder("GPU-000")
        return 0

    monkeypatch.setattr(cli, "_run", run)
    (tmp_path / "p.jsonl").write_text('{"id": "a", "text": "x"}\n')
    words = [
        "--target",
        "t",
        "--drafter",
        str(MODELS / "drafter-b8-final"),
        "--prompts",
        str(tmp_path / "p.jsonl"),
        "--out",
        str(tmp_path / "o"),
    ]
    assert cli.eval_main(words) == 0
    assert cli.eval_main([*words, "--gpus", "3"]) == 10
    assert seen == ["GPU-000"]
    assert "error: the job asks for 3 GPUs" in capsys.readouterr().err
