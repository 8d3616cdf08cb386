"""`orch ckpt`: checkpoints sent ahead to a host and copied here, as a person types it, on sandbox hosts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import OrchRun
from tests.orchestrator.trees import below

RunOrch = Callable[..., OrchRun]
FILES = {"config.json", "model.safetensors"}


@pytest.fixture
def home(sandbox_project: Path) -> Path:
    return sandbox_project / ".orch" / "sandbox" / "hosts"


def test_what_is_sent_ahead_is_sent_once(sandbox_project: Path, home: Path, run_orch: RunOrch) -> None:
    words = ("ckpt", "stage", "ct200:ckpt/step_00*", "--on", "ct129", "--json")
    store = home / "ct129" / "orch" / "checkpoints"
    shutil.rmtree(store, ignore_errors=True)
    first = run_orch(*words, cwd=sandbox_project)
    assert first.code == 0, first.stderr
    document = first.json()
    assert document["schema"] == "orch/ckpt/1"
    rows = document["staged"]
    assert [row["label"] for row in rows] == ["step_0000", "step_0040"]
    for row in rows:
        assert (row["host"], set(row["files"]), row["there_already"]) == ("ct129", FILES, False)
        assert Path(row["path"]).name == row["hash"]
        source = home / "ct200" / "ckpt" / row["label"]
        assert below(Path(row["path"]))["model.safetensors"] == (source / "model.safetensors").read_bytes()
    again = run_orch(*words, cwd=sandbox_project)
    assert [row["there_already"] for row in again.json()["staged"]] == [True, True]
    plain = run_orch("ckpt", "stage", "ct200:ckpt/step_0040", "--on", "ct129", cwd=sandbox_project)
    assert plain.stdout == f"ct129  step_0040  already there  {rows[1]['path']}\n"


def test_a_checkpoint_is_copied_here_once(
    sandbox_project: Path, home: Path, tmp_path: Path, run_orch: RunOrch
) -> None:
    inventory = ("--inventory", str(sandbox_project / "inventory.yaml"))
    done = run_orch("ckpt", "pull", "ct200:ckpt/step_0040", *inventory, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("step_0040  2 files, 1.4 MiB, verified  ")
    assert below(tmp_path / "step_0040") == {
        name: (home / "ct200" / "ckpt" / "step_0040" / name).read_bytes() for name in FILES
    }
    named = run_orch("ckpt", "pull", "ct200:ckpt/step_0040", "mine", *inventory, "--json", cwd=tmp_path)
    pulled = named.json()["pulled"]
    assert (pulled["path"], pulled["label"]) == (str(tmp_path / "mine"), "step_0040")
    assert pulled["sent"] >= pulled["bytes"] > 1_000_000
    again = run_orch("ckpt", "pull", "ct200:ckpt/step_0040", "mine", *inventory, "--json", cwd=tmp_path)
    assert again.json()["pulled"]["sent"] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"step_0040", "mine"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pull", "ct200:ckpt/step_00*", "x"), 2, "names 2 checkpoints"),
        (("pull", "ct200:ckpt/step_0040", "taken"), 6, "taken is in the way (it holds other files)"),
        (("pull", "ct200:ckpt/absent", "x"), 10, "there is no such checkpoint"),
        (("pull", "ct201:ckpt/step_0040", "x"), 2, "did you mean ct200"),
        (("stage", "ct200:ckpt/step_0040", "--on", "ct13"), 2, "ct13"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    sandbox_project: Path, tmp_path: Path, run_orch: RunOrch, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("precious")
    done = run_orch(
        "ckpt", *words, "--inventory", str(sandbox_project / "inventory.yaml"), cwd=tmp_path, timeout=60
    )
    assert (done.code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "next: " in done.stderr
    assert below(tmp_path) == {"taken/notes": b"precious"}
