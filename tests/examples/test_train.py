"""The training script makes pairs that draft, deterministically, under any convention."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from examples.tiny.pairs.convention import PUBLISHED, Convention
from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.files import load_drafter, load_target, save_drafter
from examples.tiny.pairs.oracle import greedy_text, walk_text
from examples.tiny.pairs.presets import BOS, MASK, PRESETS
from examples.tiny.pairs.text import HELD_OUT, held_out_text, training_text
from examples.tiny.pairs.training import (
    block_mask,
    continuations,
    drafter_loss,
    new_drafter,
    new_target,
    train_drafter,
    train_target,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MICRO = ROOT / "remote_payload" / "micro"
CONVENTIONS = [
    PUBLISHED,
    Convention(context="through_anchor"),
    Convention(block_position_offset=1),
    Convention(hidden_index_offset=-1),
    Convention(label_offset=1),
    Convention(in_block="causal"),
    Convention(hidden_norm=False),
    Convention(rope_theta=1e4),
    Convention(context="through_anchor", in_block="causal", label_offset=1, block_position_offset=-1),
]


def _differences(convention: Convention) -> str:
    """Names a test's case by what differs from the published convention."""
    return ",".join(
        f"{key}={value}" for key, value in asdict(convention).items() if value != getattr(PUBLISHED, key)
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    return training_text()


@pytest.fixture(scope="module")
def micro() -> Pair:
    return Pair(load_target(MICRO / "target"), load_drafter(MICRO / "drafter"))


@pytest.mark.slow
def test_a_short_training_raises_the_mean_acceptance_from_one(text: torch.Tensor) -> None:
    preset, seed = PRESETS["micro"], 5
    target = train_target(preset, text, steps=70, seed=seed, report=lambda _: None)
    trained = train_drafter(target, preset, text, steps=70, seed=seed, report=lambda _: None)
    untrained = new_drafter(preset.target, preset.drafter, seed)
    prompts = [tokens[start : start + 24] for tokens in held_out_text().values() for start in (200, 900)]
    assert _tau(Pair(target, untrained), prompts) < 1.1
    assert _tau(Pair(target, trained), prompts) > 1.5


def _tau(pair: Pair, prompts: list[list[int]], count: int = 16) -> float:
    """Mean acceptance length, pooled over prompts."""
    lengths: list[int] = []
    for prompt in prompts:
        text, _ = greedy_text(pair.target, prompt, count + pair.drafter.shape.block_size)
        lengths += walk_text(pair, prompt, text, max_new_tokens=count).accept_lengths
    return sum(lengths) / len(lengths)


@pytest.mark.slow
def test_the_script_is_deterministic_and_writes_what_its_library_makes(
    tmp_path: Path, text: torch.Tensor
) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples/tiny/train.py"),
        "--preset=tiny",
        f"--out={tmp_path}",
        "--seed=3",
    ]
    command += ["--threads=1", "--target-steps=3", "--drafter-steps=3", "--save-at=0,2"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "tiny pair, seed 3" in done.stdout

    preset = PRESETS["tiny"]
    target = train_target(preset, text, steps=3, seed=3, report=lambda _: None)
    drafter = train_drafter(target, preset, text, steps=3, seed=3, report=lambda _: None)
    _same(load_file(tmp_path / "target/model.safetensors"), target.state_dict())
    _same(load_file(tmp_path / "drafter/model.safetensors"), drafter.state_dict())
    _same(
        load_drafter(tmp_path / "drafter-step-0").state_dict(),
        new_drafter(preset.target, preset.drafter, 3).state_dict(),
    )
    assert not torch.equal(load_drafter(tmp_path / "drafter-step-2").fc.weight, drafter.fc.weight)

    from transformers import AutoTokenizer

    load_target(tmp_path / "target")
    assert AutoTokenizer.from_pretrained(tmp_path / "target")("a<|bos|>")["input_ids"] == [97, BOS]
    written, shipped = (
        json.loads((f / "config.json").read_text())
        for f in (tmp_path / "drafter", ROOT / "examples/tiny/drafter-b8-final")
    )
    assert written == shipped


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("convention", CONVENTIONS, ids=_differences)
def test_training_sees_what_drafting_one_block_alone_sees(convention: Convention, micro: Pair) -> None:
    pair = replace(micro, convention=convention)
    size = pair.drafter.shape.block_size
    ids = torch.tensor([tokens[:60] for tokens in itertools.islice(held_out_text().values(), 2)])
    anchors = torch.tensor([[1, 30, 50], [7, 8, 49]])
    losses, weights = [], torch.exp(-torch.arange(size - convention.first_row) / pair.drafter.shape.gamma)
    for row, starts in zip(ids, anchors.tolist(), strict=True):
        features = pair.features(row[None])[0]
        for start in starts:
            logits = pair.draft_logits(features, row.tolist(), start)
            labels = row[start + 1 : start + 1 + len(logits)]
            losses.append((cross_entropy(logits, labels, reduction="none") * weights).sum() / weights.sum())
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(drafter_loss(pair, ids, anchors), expected, atol=1e-5, rtol=1e-5)


def test_blocks_that_see_each_other_change_the_loss(micro: Pair) -> None:
    ids = torch.tensor([next(iter(held_out_text().values()))[:60]])
    anchors = torch.tensor([[5, 20, 40]])
    leaking = replace(micro, convention=Convention(blocks_see_each_other=True))
    leaked, sound = (drafter_loss(pair, ids, anchors).item() for pair in (leaking, micro))
    assert abs(leaked - sound) > 1e-3


@pytest.mark.parametrize(
    "convention", [*CONVENTIONS, Convention(blocks_see_each_other=True)], ids=_differences
)
def test_the_block_mask_is_what_its_words_say(convention: Convention) -> None:
    anchors, length, size = torch.tensor([[2, 5], [0, 4]]), 12, 3
    mask = block_mask(anchors, length, size, convention)
    for row, query in itertools.product(range(2), range(2 * size)):
        block, slot = divmod(query, size)
        last = int(anchors[row, block]) - (convention.context == "before_anchor")
        assert mask[row, query, :length].tolist() == [position <= last for position in range(length)]
        for other in range(2 * size):
            near = other // size == block or convention.blocks_see_each_other
            early = other % size <= slot or convention.in_block == "bidirectional"
            assert bool(mask[row, query, length + other]) == (near and early)


def test_a_convention_is_read_from_settings_and_refuses_unknown_ones() -> None:
    read = Convention.parse(
        ["in_block=causal", "block_position_offset=1", "rope_theta=1e4", "hidden_norm=false"]
    )
    assert read == Convention(in_block="causal", block_position_offset=1, rope_theta=1e4, hidden_norm=False)
    with pytest.raises(ValueError, match="no setting 'in_blok'"):
        Convention.parse(["in_blok=causal"])
    with pytest.raises(ValueError, match="context is 'all'"):
        Convention(context="all")


def test_a_block_without_any_context_can_be_drafted(micro: Pair) -> None:
    logits = micro.draft_logits(torch.zeros(0, 128), [BOS], 0)
    assert logits.shape == (7, 264)
    assert bool(logits.isfinite().all())


def test_continuations_start_with_real_text_and_go_on_greedily(micro: Pair, text: torch.Tensor) -> None:
    preset = replace(PRESETS["micro"], length=40)
    said = continuations(micro.target, preset, text, count=2, seed=1).tolist()
    for row in said:
        assert row[-8:] == greedy_text(micro.target, row[:-8], 8)[0]


def test_held_out_modules_are_never_trained_on(text: torch.Tensor) -> None:
    line = b"class Fraction(numbers.Rational):"
    assert "fractions.py" in HELD_OUT
    assert line in bytes(i for i in held_out_text()["fractions.py"] if i < 256)
    assert line not in bytes(text[text < 256].to(torch.uint8).tolist())
    assert not bool((text == MASK).any())


def test_an_untrained_target_is_the_same_for_the_same_seed() -> None:
    shape = PRESETS["micro"].target
    first, again, other = (new_target(shape, seed).state_dict() for seed in (1, 1, 2))
    _same(first, again)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_a_drafter_with_a_missing_or_an_extra_tensor_is_not_loaded(micro: Pair, tmp_path: Path) -> None:
    save_drafter(micro.drafter, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "fc.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="Missing key"):
        load_drafter(tmp_path)
    save_file({**tensors, "bias": tensors["norm.weight"].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_drafter(tmp_path)
