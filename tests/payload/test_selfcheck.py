"""The self-check means something: each of these mutations of the payload's code makes it fail.

The pushes of mutated payloads are in `tests/orchestrator/test_push_mutations.py`; here the same mutations are
applied in-process, so that each one's effect on the check itself is seen.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remote_payload import selfcheck
from tests.payload.conftest import ROOT
from tests.payload.mutations import MUTATIONS, mutate


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


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_payload_fails(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "remote_payload"
    shutil.copytree(ROOT / "remote_payload", tree, ignore=shutil.ignore_patterns("__pycache__"))
    mutate(tree, name)
    done = subprocess.run(
        [sys.executable, "-m", "remote_payload", "selfcheck", "--json", "--device", "cpu"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["ok"] is False
    assert document["problems"]
