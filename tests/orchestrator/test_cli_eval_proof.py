"""`orch eval --engine both` of a payload whose engines differ: everything comes home, and the answer is no."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from remote_payload import durable
from tests.conftest import REPO, OrchRun
from tests.orchestrator.test_cli_eval import last_run

RunOrch = Callable[..., OrchRun]

WRONG_ANCHOR = """

_draft = LiveDFlash.draft
LiveDFlash.draft = lambda self, token: _draft(self, (token + 1) % 256)
"""


@pytest.mark.slow
def test_an_overlay_that_breaks_live_decoding_ends_with_1_and_all_its_results(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    """The self-check replays only, so it cannot see a bug of the cache path: the run's own proof has to."""
    source = (REPO / "remote_payload" / "drafters" / "dflash_live.py").read_text()
    (tmp_path / "drafters").mkdir()
    (tmp_path / "drafters" / "dflash_live.py").write_text(source + WRONG_ANCHOR)
    done = run_orch(
        "eval", "--ckpt", "ct200:ckpt/step_0987", "--no-baseline", "--payload", str(tmp_path),
        "--engine", "both", "--prompt-count", "2", "--max-new-tokens", "16", "--shape", "chain",
        "--label", "proof", "--json", cwd=sandbox_project, timeout=300,
    )  # fmt: skip
    assert done.code == 1, done.stderr
    document = done.json()
    assert (document["state"], document["complete"]) == ("done", True)
    assert document["parity"]["real"] == 2
    assert document["lossless"]["equal"] == document["lossless"]["outputs"] == 2
    assert "live decoding and replay part in 2 of 2 walks" in document["reason"]
    assert "do not agree: live decoding and replay part in 2 of 2 walks" in done.stderr
    assert "--dtype float32" in done.stderr
    folder = last_run(sandbox_project, "proof")
    assert len(list(durable.iter_jsonl(folder / "rows.jsonl"))) == 4
    state = run_orch("runs", "show", folder.name, "--json", cwd=sandbox_project).json()
    assert (state["state"], state["pulled"]) == ("done", "complete")
    again = run_orch("runs", "attach", folder.name, "--quiet", cwd=sandbox_project)
    assert again.code == 1, again.stderr
