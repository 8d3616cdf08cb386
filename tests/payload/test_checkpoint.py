"""Strict loading: every way in which a checkpoint can be wrong is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from remote_payload.drafters.checkpoint import check_headers, drafter_hash, load_checkpoint, read_declared
from remote_payload.drafters.config import read_config
from remote_payload.drafters.convention import Convention
from remote_payload.errors import CheckpointError
from remote_payload.plan import check_fit, plan_drafters
from remote_payload.protocol import DrafterSpec, Job, TargetSpec
from tests.payload.conftest import MODELS

Broken = Callable[..., Path]


def _drop(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.pop(name)


def test_a_sound_checkpoint_has_every_tensor_loaded() -> None:
    checkpoint = load_checkpoint(MODELS / "drafter-b8-final")
    assert len(checkpoint.account.loaded) == len(checkpoint.tensors) == 2 * 11 + 3
    assert not checkpoint.account.faults()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (_drop("fc.weight"), ["missing: fc.weight"]),
        (
            lambda s: s.update({"layers.7.mlp.up_proj.weight": torch.ones(2)}),
            ["unknown: layers.7.mlp.up_proj.weight"],
        ),
        (
            lambda s: s.update({"norm.weight": torch.ones(64)}),
            ["wrong shape: norm.weight (64,) instead of (128,)"],
        ),
        (lambda s: s["fc.weight"].view(-1).__setitem__(3, float("nan")), ["NaN or infinite: fc.weight"]),
        (lambda s: s["fc.weight"].view(-1).__setitem__(3, float("inf")), ["NaN or infinite: fc.weight"]),
        (lambda s: s["hidden_norm.weight"].zero_(), ["all zero: hidden_norm.weight"]),
        (
            lambda s: s.update({"renamed.weight": s.pop("fc.weight")}),
            ["missing: fc.weight", "unknown: renamed.weight"],
        ),
    ],
    ids=["missing", "unknown", "misshapen", "nan", "inf", "zero", "renamed"],
)
def test_a_wrong_tensor_is_refused_by_name(broken_copy: Broken, change: Any, names: list[str]) -> None:
    folder = broken_copy(tensors=change)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    for name in names:
        assert name in str(caught.value)
    assert str(folder) in str(caught.value)


def test_names_and_shapes_are_refused_from_the_headers_alone(broken_copy: Broken) -> None:
    folder = broken_copy(tensors=_drop("norm.weight"))
    with pytest.raises(CheckpointError, match=r"missing: norm\.weight"):
        check_headers(folder, read_config(folder / "config.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["dflash_config"].pop("target_layer_ids"), "target_layer_ids is missing"),
        (lambda c: c["dflash_config"].update(target_layer_ids=[]), "has to be a list of layer numbers"),
        (lambda c: c["dflash_config"].pop("mask_token_id"), "mask_token_id is missing"),
        (lambda c: c.pop("block_size"), "block_size is missing"),
        (lambda c: c.update(hidden_size="128"), "hidden_size is '128'"),
        (lambda c: c.pop("rope_theta"), "rope_theta"),
        (lambda c: c.update(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rope type 'dynamic'"),
        (lambda c: c.update(layer_types=["sliding_attention", "full_attention"]), "sliding_window is None"),
        (lambda c: c["dflash_config"].update(projector_type="domino"), "Domino"),
        (lambda c: c["dflash_config"].update(sample_from_anchor=True), "sample_from_anchor"),
        (lambda c: c.update(markov_rank=8), "DSpark"),
    ],
)
def test_a_wrong_config_is_refused_and_never_guessed(broken_copy: Broken, change: Any, message: str) -> None:
    folder = broken_copy(config=lambda c: change(c))
    with pytest.raises(CheckpointError, match=r"config\.json") as caught:
        load_checkpoint(folder)
    assert message in str(caught.value)


def test_block_size_and_rope_are_read_from_either_place(broken_copy: Broken) -> None:
    def move(config: dict[str, Any]) -> None:
        config["dflash_config"]["block_size"] = config.pop("block_size")
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}

    config = read_config(broken_copy(config=move) / "config.json")
    assert config == read_config(MODELS / "drafter-b8-early" / "config.json")


def test_a_truncated_file_is_refused(broken_copy: Broken) -> None:
    folder = broken_copy()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="truncated or still written"):
        load_checkpoint(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(broken_copy: Broken, missing: str) -> None:
    folder = broken_copy()
    (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=missing):
        load_checkpoint(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        load_checkpoint(tmp_path / "nothing")


def test_wrapper_prefixes_are_removed_in_any_order(broken_copy: Broken) -> None:
    def wrap(state: dict[str, torch.Tensor]) -> None:
        for number, name in enumerate(list(state)):
            prefix = [
                "module._orig_mod.",
                "_orig_mod.module.",
                "model.",
                "draft_model._fsdp_wrapped_module.",
            ][number % 4]
            state[prefix + name] = state.pop(name)

    found = load_checkpoint(broken_copy(tensors=wrap))
    plain = load_file(MODELS / "drafter-b8-early" / "model.safetensors")
    assert found.tensors.keys() == plain.keys()
    assert all(torch.equal(found.tensors[name], plain[name]) for name in plain)


def test_shards_are_followed_and_a_missing_one_is_named(broken_copy: Broken) -> None:
    folder = broken_copy()
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: state[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_checkpoint(folder).tensors.keys() == state.keys()
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors not there"):
        load_checkpoint(folder)
    index["weight_map"]["norm.weight"] = "../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_checkpoint(folder)


def test_the_hash_is_of_the_content(broken_copy: Broken) -> None:
    same = broken_copy(name="same")
    assert drafter_hash(same) == drafter_hash(MODELS / "drafter-b8-early")
    other = broken_copy(name="other", tensors=lambda s: s["fc.weight"].mul_(2))
    assert drafter_hash(other) != drafter_hash(same)


def test_a_declared_convention_travels_with_the_checkpoint(broken_copy: Broken) -> None:
    folder = broken_copy()
    (folder / "orch.json").write_text('{"convention": {"block_position_offset": 1}}')
    assert read_declared(folder) == {"block_position_offset": 1}
    (candidate,), refused = plan_drafters(_job(folder))
    assert not refused
    assert candidate.recorded_convention == {"block_position_offset": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {"context": "past"},
        {"block_position_offset": 0.5},
        {"hidden_norm": 1},
        {"label_offset": True},
        {"rope_theta": -1},
        {"rope_theta": True},
        {"rope_theta": float("inf")},
        {"nonsense": 1},
    ],
)
def test_an_unknown_convention_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="convention"):
        Convention.from_mapping(settings)


def test_flags_make_a_convention() -> None:
    flags = ["context=through_anchor", "block_position_offset=-1", "hidden_norm=off"]
    convention = Convention.from_flags(flags)
    assert convention.non_default() == {
        "block_position_offset": -1,
        "context": "through_anchor",
        "hidden_norm": False,
    }


def test_a_number_is_one_setting_however_it_is_written() -> None:
    settings = [Convention.from_flags([f"rope_theta={text}"]) for text in ("1e6", "1000000", "1000000.0")]
    settings.append(Convention.from_mapping({"rope_theta": 1e6}))
    assert {str(convention.non_default()) for convention in settings} == {"{'rope_theta': 1000000}"}


def _job(folder: Path, **changes: Any) -> Job:
    spec = DrafterSpec("d", str(folder), "")
    return Job("j", "", "eval", TargetSpec("t", "t"), [spec], "prompts.jsonl", "", **changes)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"hidden_size": 256}, "hidden_size is 128, the target's is 256"),
        ({"num_layers": 8}, "num_target_layers is 6, the target has 8"),
        ({"vocab_size": 200}, "mask_token_id 258 is outside the target's embedding of 200 rows"),
        ({"embed": lambda _: torch.zeros(128)}, "is zero"),
    ],
)
def test_a_drafter_of_another_target_is_refused(facts: dict[str, Any], message: str) -> None:
    (candidate,), _ = plan_drafters(_job(MODELS / "drafter-b8-early"))
    given = {"num_layers": 6, "hidden_size": 128, "vocab_size": 264, "embed": lambda _: torch.ones(128)}
    assert check_fit(candidate, **given) == []
    with pytest.raises(CheckpointError) as caught:
        check_fit(candidate, **{**given, **facts})
    assert message in str(caught.value)


def test_a_larger_block_than_trained_is_noted(broken_copy: Broken) -> None:
    (candidate,), _ = plan_drafters(_job(broken_copy(), block_size=12))
    assert candidate.notes == ("d: block size 12 is larger than the trained 8",)


def test_a_checkpoint_that_changed_since_it_was_asked_for_is_refused(broken_copy: Broken) -> None:
    folder = broken_copy()
    spec = DrafterSpec("d", str(folder), "0" * 64)
    job = Job("j", "", "eval", TargetSpec("t", "t"), [spec], "prompts.jsonl", "")
    candidates, (refusal,) = plan_drafters(job)
    assert not candidates
    assert "content hash" in refusal.reason
