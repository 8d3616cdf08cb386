"""`orch eval` over the sandbox's SSH hosts: the whole path, what is refused, and Ctrl-C."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from remote_payload import durable, protocol
from tests.conftest import REPO, OrchRun

QUICK = ("--prompt-count", "2", "--max-new-tokens", "16", "--shape", "chain")
RunOrch = Callable[..., OrchRun]


def last_run(project: Path, label: str) -> Path:
    found = [path for path in (project / "runs").iterdir() if f"-{label}-" in path.name]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.slow
def test_checkpoints_are_evaluated_and_their_figures_come_home(
    sandbox_project: Path, run_orch: RunOrch
) -> None:
    refs = ("--ckpt", "ct200:ckpt/step_0040", "--ckpt", "ct200:ckpt/step_09*")
    done = run_orch("eval", *refs, *QUICK, "--label", "whole", "--json", cwd=sandbox_project)
    assert done.code == 0, done.stderr
    document = done.json()
    assert document["schema"] == "orch/eval/1"
    assert document["state"] == "done"
    assert document["complete"] is True
    taus = {drafter["label"]: drafter["shapes"]["chain"]["tau"] for drafter in document["drafters"]}
    assert set(taus) == {"step_0040", "step_0987", "reference"}
    assert all(1.0 <= tau <= 16.0 for tau in taus.values())
    folder = last_run(sandbox_project, "whole")
    rows = list(durable.iter_jsonl(folder / "rows.jsonl"))
    assert {row["drafter"] for row in rows} == set(taus)
    for label, tau in taus.items():
        lengths = [length for row in rows if row["drafter"] == label for length in row["accept_lengths"]]
        assert tau == pytest.approx(sum(lengths) / len(lengths), abs=1e-5)
    assert protocol.verify_manifest(folder, durable.read_json(folder / "MANIFEST.json")) == []
    assert durable.read_json(folder / "pulled.json")["complete"] is True


@pytest.mark.slow
def test_ctrl_c_leaves_the_job_running_and_attach_comes_back(
    sandbox_project: Path, run_orch: RunOrch, empty_home: Path
) -> None:
    words = ("eval", "--ckpt", "ct200:ckpt/step_0160", "--no-baseline", *QUICK, "--label", "interrupted")
    environment = {**os.environ, "HOME": str(empty_home), "PYTHONPATH": str(REPO), "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=sandbox_project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stderr is not None
        said = ""
        while not re.search(r"job \S+ is (running|queued)", said):
            line = client.stderr.readline()
            assert line, said
            said += line
        client.send_signal(signal.SIGINT)
        _, rest = client.communicate(timeout=120)
    assert client.returncode == 130
    run = last_run(sandbox_project, "interrupted").name
    for verb in ("attach", "cancel", "pull"):
        assert f"orch runs {verb} {run}" in rest
    listed = run_orch("runs", "ls", "--json", cwd=sandbox_project).json()
    state = {entry["run"]: entry["state"] for entry in listed["runs"]}[run]
    assert state in ("queued", "running", "done"), "the job must not have been touched"
    back = run_orch("runs", "attach", run, "--json", cwd=sandbox_project)
    assert back.code == 0, back.stderr
    assert back.json()["drafters"][0]["label"] == "step_0160"


def test_a_broken_checkpoint_is_refused_before_anything_is_started(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    broken = shutil.copytree(REPO / "examples/tiny/drafter-b8-mid", tmp_path / "broken")
    tensors = broken / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1000])
    before = sorted(path.name for path in (sandbox_project / "runs").glob("*"))
    words = ("--ckpt", str(broken), "--ckpt", "ct200:ckpt/none", "--wait", "0", *QUICK)
    done = run_orch("eval", *words, cwd=sandbox_project)
    assert done.code == 10, done.stderr
    assert str(broken) in done.stderr
    assert "ckpt/none" in done.stderr, "all that is wrong is said at once"
    assert sorted(path.name for path in (sandbox_project / "runs").glob("*")) == before


@pytest.mark.slow
def test_one_drafter_that_the_host_rejects_does_not_spoil_the_others(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    misfit = shutil.copytree(REPO / "examples/tiny/drafter-b8-mid", tmp_path / "misfit")
    tensors = load_file(misfit / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].copy()
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, misfit / "model.safetensors")
    words = ("--ckpt", str(misfit), "--ckpt", "ct200:ckpt/step_0987", "--no-baseline", *QUICK, "--json")
    done = run_orch("eval", *words, "--label", "misfit", cwd=sandbox_project)
    assert done.code == 10, done.stderr
    document: dict[str, Any] = done.json()
    assert [item["label"] for item in document["rejected"]] == ["misfit"]
    assert "fc.weight" in document["rejected"][0]["reason"]
    assert [drafter["label"] for drafter in document["drafters"]] == ["step_0987"]
    assert "misfit" in done.stderr


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["eval", "dry-run"])
def test_a_wrong_prompt_is_exit_10_with_the_users_own_file_and_line(
    project: Path, run_orch: RunOrch, tmp_path: Path, more: tuple[str, ...]
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"id": "a", "text": "fine"}\n{"id": "b", "text": ""}\n')
    done = run_orch("eval", "--ckpt", "x", "--prompts", str(prompts), *more, cwd=project)
    assert done.code == 10, done.stderr
    assert f"{prompts}:2: an empty prompt" in done.stderr
    assert not (project / "runs").exists()


def test_prompts_that_only_the_target_can_refuse_are_exit_10(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "text": "fine"}\n{"id": "b", "input_ids": [264]}\n')
    words = ("--ckpt", "ct200:ckpt/step_0987", "--no-baseline", *QUICK, "--prompts", str(prompts))
    done = run_orch("eval", *words, cwd=sandbox_project)
    assert done.code == 10, done.stderr
    assert ":2: token id 264 is outside the target's 264 embeddings" in done.stderr
    assert "rejected: error" not in done.stderr


def test_a_dry_run_says_what_would_happen_and_starts_nothing(
    sandbox_project: Path, run_orch: RunOrch
) -> None:
    before = sorted(path.name for path in (sandbox_project / "runs").glob("*"))
    words = ("--ckpt", "ct200:ckpt/step_0160", "--dry-run", "--json")
    document = run_orch("eval", *words, cwd=sandbox_project).json()
    assert document["dry_run"] is True
    assert document["host"] == "ct129"
    assert [drafter["label"] for drafter in document["drafters"]] == ["step_0160", "reference"]
    assert document["shapes"] == ["chain", "ddtree:8", "ddtree:32", "topk:8"]
    assert sorted(path.name for path in (sandbox_project / "runs").glob("*")) == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--ckpt", "x", "--convention", "context"), 2, "KEY=VALUE"),
        (("--ckpt", "x", "--no-stop", "--stop-token-id", "3"), 2, "do not go together"),
        (("--ckpt", "x", "--dtype", "int4"), 2, "float32"),
        (("--ckpt", "x", "--on", "ct130"), 2, "ct129"),
        (("--ckpt", "x", "--target", "tinny"), 2, "did you mean 'tiny'"),
        (("--ckpt", "x", "--suite", "quik"), 2, "did you mean 'quick'"),
        (("--ckpt", "x"), 4, "orch sandbox up"),
        (("--ckpt", "x", "--shape", "nonsense", "--dry-run"), 2, "ddtree:N"),
        (("--ckpt", "x", "--convention", "contxt=before_anchor"), 2, "'context'"),
        (("--ckpt", "x", "--engine", "wat"), 2, "replay"),
        (("--ckpt", "x", "--tail", "wat"), 2, "next: "),
        (("--ckpt", "x", "--block-size", "0"), 2, "--block-size"),
        ((), 2, "--ckpt"),
    ],
    ids=[
        *("convention", "stops", "dtype", "host", "target", "suite", "sandbox-down"),
        *("shape", "convention-name", "engine", "tail", "block-size", "no-ckpt"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_to_do(
    project: Path, run_orch: RunOrch, words: tuple[str, ...], code: int, says: str
) -> None:
    done = run_orch("eval", *words, cwd=project)
    assert done.code == code, done.stderr
    assert says in done.stderr
    assert not (project / "runs").exists()
