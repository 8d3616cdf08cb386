"""A payload with a one-position bug never becomes current: the push ends with exit 5, by its self-check.

Every mutation is an edit of a copy of the payload's source that compiles, has no undefined name and runs;
only the numbers are wrong. The real `orch push --payload` ships it over SSH.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPO, OrchRun
from tests.mutations import MUTATIONS, mutate

pytestmark = pytest.mark.slow

RunOrch = Callable[..., OrchRun]


@pytest.fixture(scope="module")
def home(sandbox_project: Path) -> Path:
    state = json.loads((sandbox_project / ".orch" / "sandbox" / "state.json").read_text())
    return Path(state["hosts"]["ct129"]["home"])


@pytest.fixture
def sound(sandbox_project: Path, run_orch: RunOrch) -> str:
    """The payload as it is, pushed; returns its release."""
    done = run_orch("push", "ct129", "--json", cwd=sandbox_project)
    assert done.code == 0, done.stderr
    return str(done.json()["release"])


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_payload_is_refused_and_the_one_before_stays(
    sandbox_project: Path, home: Path, sound: str, run_orch: RunOrch, tmp_path: Path, name: str
) -> None:
    tree = tmp_path / "remote_payload"
    shutil.copytree(REPO / "remote_payload", tree, ignore=shutil.ignore_patterns("__pycache__"))
    mutate(tree, name)
    done = run_orch("push", "ct129", "--payload", str(tree), cwd=sandbox_project)
    assert done.code == 5, done.stdout + done.stderr
    assert "ct129" in done.stderr + done.stdout
    assert "self-check" in done.stderr + done.stdout
    releases = home / "orch" / "releases"
    assert (home / "orch" / "current").resolve() == releases / sound
    assert not [entry for entry in releases.iterdir() if entry.name.startswith(".tmp")]
