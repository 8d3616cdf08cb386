"""`python -m remote_payload diagnose`: the document, the exit codes, files that are at fault, what is adopted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload.cli import worker_main
from remote_payload.diagnose.cli import diagnose_main
from remote_payload.diagnosis import WIDTH, as_text, exit_code
from remote_payload.durable import read_json
from tests.drafters.confusion import PROMPTS, TINY, diagnosed

DRAFTERS = Path(__file__).parents[1] / "drafters"
WRONG = DRAFTERS / "positions_plus1-seed2-step1500"
FIELDS = {"schema", "verdict", "cause", "confidence", "candidates", "checks"}
CANDIDATE = {"variant", "tau", "delta", "low", "high", "what"}

Run = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(
        drafter: Path, *more: str, prompts: int = 12, tokens: int = 32
    ) -> tuple[int, str, dict[str, Any]]:
        argv = ["--target", str(TINY / "target-tiny"), "--drafter", str(drafter), "--prompts", str(PROMPTS)]
        argv += ["--prompt-count", str(prompts), "--max-new-tokens", str(tokens), "--cache", str(cache)]
        argv += [] if "--dtype" in more else ["--dtype", "float32"]
        code = diagnose_main([*argv, "--threads", "1", *more])
        *said, last = capsys.readouterr().out.splitlines()
        return code, "\n".join(said), json.loads(last)

    return call


@pytest.mark.slow
def test_a_mismatch_is_said_adopted_and_gone(run: Run, tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    shutil.copytree(WRONG, drafter)
    (drafter / "orch.json").write_text(json.dumps({"convention": {"window_rule": "none"}, "note": "kept"}))

    code, said, found = run(drafter, "--adopt", prompts=48, tokens=48)
    assert (code, found["verdict"], found["cause"]) == (1, "convention", "positions_plus1")
    assert set(found) >= FIELDS
    assert found["schema"] == "orch/diagnose/1"
    assert set(found["candidates"][0]) >= CANDIDATE
    assert found["candidates"][0]["offset"] == 1
    assert found["candidates"][0]["low"] > 0
    assert "--convention block_position_offset=1" in said
    assert "in training" in said
    assert "training code" in said
    assert max(map(len, said.splitlines())) <= WIDTH
    assert as_text(found) == said + "\n"

    record = read_json(drafter / "orch.json")
    assert record == {"convention": {"window_rule": "none", "block_position_offset": 1}, "note": "kept"}
    code, _, again = run(drafter, prompts=48, tokens=48)
    assert (code, again["verdict"]) == (0, "ok")
    assert again["declared"]["tau"] == pytest.approx(found["candidates"][0]["tau"], abs=1e-6)


@pytest.mark.slow
def test_a_record_that_cannot_be_written_costs_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    from remote_payload.diagnose import adopt

    def refuse(path: Path, _record: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(adopt, "write_json", refuse)
    drafter = tmp_path / "drafter"
    shutil.copytree(WRONG, drafter)
    argv = ["--target", str(TINY / "target-tiny"), "--drafter", str(drafter), "--prompts", str(PROMPTS)]
    argv += ["--prompt-count", "40", "--max-new-tokens", "32", "--cache", str(cache), "--dtype", "float32"]
    assert diagnose_main([*argv, "--threads", "1", "--json", "--adopt"]) == 6
    said = capsys.readouterr()
    assert json.loads(said.out)["cause"] == "positions_plus1"
    assert f"{drafter / 'orch.json'}: Permission denied; nothing was adopted" in said.err


def _damage(tensors: dict[str, torch.Tensor], how: str) -> None:
    if how == "missing":
        del tensors["layers.1.mlp.up_proj.weight"]
    elif how == "renamed":
        tensors["layers.0.mlp.extra.weight"] = torch.ones(3, 3)
    elif how == "nan":
        tensors["fc.weight"][0, 0] = float("nan")
    elif how == "zero":
        tensors["norm.weight"].zero_()


@pytest.mark.parametrize(
    ("how", "slug", "name"),
    [
        ("missing", "tensor_missing", "layers.1.mlp.up_proj.weight"),
        ("renamed", "tensor_unknown", "layers.0.mlp.extra.weight"),
        ("nan", "nan", "fc.weight"),
        ("zero", "tensor_missing", "norm.weight"),
    ],
)
def test_files_at_fault_are_a_verdict(
    how: str, slug: str, name: str, run: Run, broken_copy: Callable[..., Path]
) -> None:
    code, said, found = run(broken_copy(tensors=lambda tensors: _damage(tensors, how)))
    assert (code, found["verdict"], found["cause"]) == (1, "loading", slug)
    assert name in said
    assert found["sweep"] == []


def test_a_config_of_another_target_is_a_verdict_without_a_name(
    run: Run, broken_copy: Callable[..., Path]
) -> None:
    code, said, found = run(broken_copy(config=lambda config: config.update(num_target_layers=9)))
    assert (code, found["verdict"], found["cause"]) == (1, "loading", None)
    assert "num_target_layers" in said


def test_a_config_that_differs_from_the_target_s_is_a_note(run: Run) -> None:
    _, _, found = run(TINY / "drafter-b8-final", prompts=2, tokens=8)
    notes = {check["check"]: check for check in found["checks"] if check["state"] == "note"}
    assert notes["rope theta"]["values"] == {"drafter": 1e5, "target": 1e4}


def test_a_head_of_its_own_that_is_not_the_target_s(run: Run, broken_copy: Callable[..., Path]) -> None:
    """The file carries the embedding as its head, as an export does that ties what is not tied."""
    from safetensors.torch import load_file

    rows = load_file(TINY / "target-tiny" / "model.safetensors")["model.embed_tokens.weight"]

    def tie(tensors: dict[str, torch.Tensor]) -> None:
        final = load_file(TINY / "drafter-b8-final" / "model.safetensors")
        tensors.update(final)
        tensors["lm_head.weight"] = rows.clone()

    code, _, found = run(broken_copy(tensors=tie))
    assert (code, found["verdict"], found["cause"]) == (1, "loading", "head")
    head = next(check for check in found["checks"] if check["check"] == "head")
    assert head["state"] == "note"
    assert head["values"]["relative_difference"] > 0.5


def test_float16_overflows_by_name(run: Run, broken_copy: Callable[..., Path]) -> None:
    def loud(tensors: dict[str, torch.Tensor]) -> None:
        tensors["norm.weight"] *= 2e5

    code, _, found = run(broken_copy(tensors=loud), "--dtype", "float16", prompts=3, tokens=8)
    assert (code, found["verdict"], found["cause"]) == (1, "numerics", "fp16_overflow")


@pytest.mark.slow
def test_a_random_fc_is_suspected_not_guessed(run: Run, broken_copy: Callable[..., Path]) -> None:
    from safetensors.torch import load_file

    def scramble(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update(load_file(TINY / "drafter-b8-final" / "model.safetensors"))
        generator = torch.Generator().manual_seed(3)
        tensors["fc.weight"] = torch.randn(tensors["fc.weight"].shape, generator=generator) * 0.02
        tensors["hidden_norm.weight"] = torch.ones_like(tensors["hidden_norm.weight"])

    code, _, found = run(broken_copy(tensors=scramble), prompts=24)
    assert (code, found["verdict"], found["cause"]) == (1, "unknown", None), found["sentence"]
    assert [one["variant"] for one in found["candidates"]] == ["fc_random"]
    assert found["declared"]["tau"] < 1.3


def test_a_block_that_drafts_nothing_is_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--target", str(TINY / "target-tiny"), "--drafter", str(TINY / "drafter-b8-final")]
    argv += ["--prompts", str(PROMPTS), "--dtype", "float32", "--block-size", "1", "--cache", str(cache)]
    assert diagnose_main(argv) == 10
    assert "a block of 1 drafts nothing" in capsys.readouterr().err


def test_an_untrained_drafter_leaves_the_harness_right(run: Run) -> None:
    code, said, found = run(TINY / "drafter-b8-untrained")
    assert (code, found["verdict"], found["cause"]) == (0, "undertrained", None)
    assert said.splitlines()[2].startswith("harness right, model undertrained")


def test_a_reference_stands_beside_it(run: Run) -> None:
    code, said, found = run(
        TINY / "drafter-b8-early", "--reference", f"published={TINY / 'drafter-b8-final'}", prompts=6
    )
    assert (code, found["verdict"]) == (0, "undertrained")
    assert found["reference"]["label"] == "published"
    assert found["reference"]["tau"] > found["declared"]["tau"]
    assert "reference: mean" in said


def test_what_cannot_be_used_exits_10(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--target", str(TINY / "target-tiny"), "--drafter", str(WRONG), "--dtype", "float32"]
    assert diagnose_main([*argv, "--prompts", str(tmp_path / "none.jsonl")]) == 10
    assert "none.jsonl" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"id": "a"}\n')
    assert diagnose_main([*argv, "--prompts", str(tmp_path / "bad.jsonl")]) == 10
    assert "bad.jsonl:1" in capsys.readouterr().err


def test_a_job_of_kind_diagnose_leaves_its_document(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job"
    argv = ["--target", str(TINY / "target-tiny"), "--drafter", str(TINY / "drafter-b8-final")]
    argv += ["--prompts", str(PROMPTS), "--prompt-count", "2", "--max-new-tokens", "8", "--dtype", "float32"]
    assert diagnose_main([*argv, "--out", str(out), "--cache", str(cache), "--json"]) in {0, 1}
    (line,) = capsys.readouterr().out.splitlines()
    first = json.loads(line)
    assert read_json(out / "diagnosis.json") == first
    assert "diagnosis.json" in read_json(out / "MANIFEST.json")["files"]

    assert worker_main(["--job", str(out), "--cache", str(cache)]) == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {**second, "seconds": 0} == {**first, "seconds": 0}


def test_hostile_names_do_not_reach_the_terminal(cache: Path) -> None:
    found = diagnosed(TINY / "drafter-b8-final", cache, prompts=2, max_new_tokens=8)
    found["drafter"]["label"] = "evil\x1b[2J\u202ename"
    text = as_text(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert exit_code({"verdict": "convention"}) == 1
