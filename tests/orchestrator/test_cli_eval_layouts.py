"""`orch eval` of a trainer's raw state and of a speculators checkpoint, from ct200 on ct129, over SSH."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload import durable, protocol
from tests import layouts
from tests.conftest import OrchRun
from tests.orchestrator.test_cli_eval import QUICK, last_run

CONFIG, TENSORS = layouts.plain()
RunOrch = Callable[..., OrchRun]


def home(project: Path) -> Path:
    return project / ".orch" / "sandbox" / "hosts" / "ct200"


@pytest.mark.slow
def test_raw_and_speculators_checkpoints_are_evaluated_by_their_links(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    there = home(sandbox_project)
    layouts.write_raw(there / "raw", None, {**TENSORS, "left.weight": torch.ones(2)}, step=987)
    layouts.write_speculators(there / "spec", CONFIG, TENSORS, kept=torch.arange(97, 105))
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps(CONFIG))
    done = run_orch(
        "eval", "--ckpt", "ct200:raw/run-latest", "--ckpt", "ct200:spec/checkpoint_best",
        "--ckpt", "ct200:ckpt/step_0987", "--no-baseline", *QUICK, "--draft-config", str(draft),
        "--forgive", "left.weight", "--label", "layouts", "--json", cwd=sandbox_project,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    document: dict[str, Any] = done.json()
    taus = {drafter["label"]: drafter["shapes"]["chain"]["tau"] for drafter in document["drafters"]}
    assert taus.keys() == {"run-step987", "spec/3", "step_0987"}
    assert taus["run-step987"] == taus["step_0987"] > taus["spec/3"] >= 1
    folder = last_run(sandbox_project, "layouts")
    rows = list(durable.iter_jsonl(folder / "rows.jsonl"))
    lists = {(row["drafter"], row["prompt_id"]): row["accept_lengths"] for row in rows}
    for label, prompt in lists:
        if label == "run-step987":
            assert lists[label, prompt] == lists["step_0987", prompt]
    job = protocol.Job.from_json(durable.read_json(folder / "job.json"))
    raw, spec, _ = job.drafters
    assert (raw.step, raw.source, raw.forgive) == (987, f"ct200:{there}/raw/run-step987", ["left.weight"])
    assert (spec.step, spec.source) == (3, f"ct200:{there}/spec/3")
    staged = sandbox_project / ".orch" / "sandbox" / "hosts" / "ct129" / "orch" / "checkpoints" / raw.hash
    assert {path.name for path in staged.iterdir()} >= {"config.json", "model.safetensors"}
    assert not list(staged.glob("*.pt"))
    summary = durable.read_json(folder / "summary.json")
    assert any("spec/3: its vocabulary has 8 tokens" in note for note in summary["notes"])


def test_a_malicious_training_state_is_rejected_before_anything_is_started(
    sandbox_project: Path, run_orch: RunOrch
) -> None:
    mark = home(sandbox_project) / "executed"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    folder = layouts.write_raw(home(sandbox_project) / "evil", CONFIG, TENSORS)
    torch.save({"draft_state_dict": TENSORS, "extra": Evil()}, folder / "training_state.pt")
    before = sorted(path.name for path in (sandbox_project / "runs").glob("*"))
    done = run_orch("eval", "--ckpt", "ct200:evil/run-step40", "--no-baseline", *QUICK, cwd=sandbox_project)
    assert done.code == 10, done.stderr
    assert "posix.system" in done.stderr
    assert not mark.exists()
    assert sorted(path.name for path in (sandbox_project / "runs").glob("*")) == before


def test_a_draft_config_that_nothing_needs_is_refused(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps(CONFIG))
    words = ("eval", "--ckpt", "ct200:ckpt/step_0040", "--no-baseline", *QUICK, "--draft-config")
    done = run_orch(*words, str(draft), cwd=sandbox_project)
    assert done.code == 2, done.stderr
    assert "none of these checkpoints is a raw training state" in done.stderr
    done = run_orch(*words, str(tmp_path / "absent.json"), cwd=sandbox_project)
    assert done.code == 10, done.stderr
    assert "absent.json: cannot be read" in done.stderr
