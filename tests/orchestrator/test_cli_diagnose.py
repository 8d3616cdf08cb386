"""`orch diagnose` over the sandbox's SSH hosts: the verdict, both mends, what is adopted, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from remote_payload import durable, protocol
from tests.conftest import REPO, OrchRun

DRAFTERS = REPO / "tests" / "drafters"
SOME = ("--prompts-file", str(DRAFTERS / "prompts.jsonl"), "--prompts", "40", "--max-new-tokens", "32")
FEW = ("--prompts", "8", "--max-new-tokens", "8", "--no-baseline")
RunOrch = Callable[..., OrchRun]


def _drafter(folder: Path, name: str = "positions_plus1-seed2-step1500") -> Path:
    shutil.copytree(DRAFTERS / name, folder)
    return folder


@pytest.mark.slow
def test_a_mismatch_is_named_adopted_and_evaluated_as_it_was_trained(
    sandbox_project: Path, run_orch: RunOrch
) -> None:
    drafter = _drafter(sandbox_project / "trained_late")
    words = ("diagnose", "--ckpt", str(drafter), *SOME, "--no-baseline")
    done = run_orch(*words, "--adopt", cwd=sandbox_project, timeout=400)
    assert done.code == 1, done.stderr
    assert "convention mismatch: block positions + 1" in done.stdout
    assert "--convention block_position_offset=1" in done.stdout
    assert "training code: let the block's positions begin at the anchor's own" in " ".join(
        done.stdout.split()
    )
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert durable.read_json(drafter / "orch.json") == {"convention": {"block_position_offset": 1}}
    assert f"{drafter / 'orch.json'}: convention block_position_offset=1" in done.stderr

    (run,) = [path for path in (sandbox_project / "runs").iterdir() if "-diagnose-" in path.name]
    document = durable.read_json(run / "diagnosis.json")
    assert (document["verdict"], document["cause"]) == ("convention", "positions_plus1")
    assert protocol.verify_manifest(run, durable.read_json(run / "MANIFEST.json")) == []

    again = run_orch(*words, "--json", cwd=sandbox_project, timeout=400)
    assert again.code == 0, again.stderr
    assert again.json()["verdict"] == "ok"
    assert again.json()["declared"]["convention"] == {"block_position_offset": 1}
    assert again.json()["host"] == "ct129"
    listed = run_orch("runs", "ls", "--json", cwd=sandbox_project).json()["runs"]
    assert {one["results"] for one in listed if "-diagnose-" in one["run"]} == {"complete"}


@pytest.mark.slow
def test_a_checkpoint_on_a_host_gets_its_record_there(
    sandbox_project: Path, run_orch: RunOrch, empty_home: Path
) -> None:
    home = sandbox_project / ".orch" / "sandbox" / "hosts" / "ct200"
    drafter = _drafter(home / "shifted" / "step_77", "label_shift-seed2-step1500")
    done = run_orch(
        "diagnose",
        "--ckpt",
        "ct200:shifted/step_77",
        *SOME,
        "--no-baseline",
        "--adopt",
        "--json",
        cwd=sandbox_project,
    )
    assert done.code == 1, done.stderr
    assert done.json()["cause"] == "label_shift"
    assert durable.read_json(drafter / "orch.json") == {"convention": {"label_offset": 1}}
    assert "ct200:" in done.stderr


@pytest.mark.slow
def test_files_at_fault_and_a_drafter_that_learned_nothing(sandbox_project: Path, run_orch: RunOrch) -> None:
    drafter = _drafter(sandbox_project / "broken")
    tensors = load_file(REPO / "examples" / "tiny" / "drafter-b8-early" / "model.safetensors")
    del tensors["fc.weight"]
    save_file(tensors, drafter / "model.safetensors")
    config = REPO / "examples" / "tiny" / "drafter-b8-early" / "config.json"
    shutil.copy(config, drafter / "config.json")
    done = run_orch("diagnose", "--ckpt", str(drafter), *FEW, "--json", cwd=sandbox_project, timeout=400)
    assert done.code == 1, done.stderr
    assert (done.json()["verdict"], done.json()["cause"]) == ("loading", "tensor_missing")

    done = run_orch("diagnose", "--ckpt", "ct200:ckpt/step_0000", *FEW, cwd=sandbox_project)
    assert done.code == 0, done.stderr
    assert "harness right, model undertrained" in done.stdout


def test_a_wrong_command_line_is_refused_with_what_to_do(sandbox_project: Path, run_orch: RunOrch) -> None:
    for words, code, said in (
        (("--ckpt", "nowhere"), 10, "nowhere"),
        (("--ckpt", "ct200:ckpt/step_0000", "--convention", "postion=1"), 2, "there is no setting"),
        (("--ckpt", "ct200:ckpt/step_0000", "--prompts", "1"), 2, "--prompts"),
        (("--ckpt", "ct200:ckpt/step_0000", "--suite", "none"), 2, "no suite"),
    ):
        done = run_orch("diagnose", *words, cwd=sandbox_project)
        assert done.code == code, (words, done.stderr)
        assert said in done.stderr


def test_a_record_that_is_no_record_is_never_replaced(tmp_path: Path) -> None:
    from orchestrator.checkpoints import adopt
    from orchestrator.errors import OrchError
    from orchestrator.inventory import load_inventory

    inventory = load_inventory(REPO / "inventory.yaml")
    drafter = _drafter(tmp_path / "drafter")

    def opener(name: str) -> None:
        raise AssertionError(name)

    (drafter / "orch.json").write_text("[1, 2]")
    with pytest.raises(OrchError, match="not an object"):
        adopt(inventory, str(drafter), {"label_offset": 1}, opener)  # type: ignore[arg-type]
    assert (drafter / "orch.json").read_text() == "[1, 2]"
    (drafter / "orch.json").write_text(json.dumps({"convention": {"window_rule": "none"}, "note": 1}))
    adopt(inventory, str(drafter), {"label_offset": 1}, opener)  # type: ignore[arg-type]
    assert durable.read_json(drafter / "orch.json") == {
        "convention": {"window_rule": "none", "label_offset": 1},
        "note": 1,
    }
    assert [path.name for path in drafter.iterdir() if path.suffix == ".tmp"] == []
