"""The micro pair in the payload is trained, small, and stored with figures that no faulty harness meets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.expected import JUDGES, MUTATIONS, Case, sensitivity
from examples.tiny.pairs.files import load_drafter, load_target
from examples.tiny.pairs.oracle import greedy_text, walk_text

MICRO = Path(__file__).parents[2] / "remote_payload" / "micro"
EXPECTED = json.loads((MICRO / "expected.json").read_text())
PROMPTS = EXPECTED["prompts"]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(load_target(MICRO / "target"), load_drafter(MICRO / "drafter"))


def test_the_stored_draft_logits_are_the_oracles(pair: Pair) -> None:
    stored = load_file(MICRO / "expected.safetensors")["draft_logits"]
    assert stored.shape == (len(EXPECTED["anchors"]), EXPECTED["block_size"] - 1, 264)
    assert len(EXPECTED["anchors"]) >= 8
    for anchor, expected in zip(EXPECTED["anchors"], stored, strict=True):
        prompt, position = PROMPTS[anchor["prompt"]], anchor["position"]
        ids = [*prompt["input_ids"], *prompt["greedy_ids"]]
        found = pair.draft_logits(pair.features(torch.tensor([ids]))[0], ids, position)
        torch.testing.assert_close(found, expected, atol=EXPECTED["logits_tolerance"], rtol=0)


def test_the_stored_texts_and_lists_are_the_oracles(pair: Pair) -> None:
    for prompt in PROMPTS:
        text, gap = greedy_text(pair.target, prompt["input_ids"], len(prompt["greedy_ids"]))
        assert text == prompt["greedy_ids"]
        assert gap >= prompt["min_gap"] - 1e-4 > 5e-4
        for shape, judge in JUDGES.items():
            walk = walk_text(
                pair, prompt["input_ids"], text, judge, max_new_tokens=EXPECTED["max_new_tokens"]
            )
            assert walk.accept_lengths == prompt["accept_lengths"][shape], (prompt["id"], shape)
            assert walk.gap >= prompt["min_gap"] - 1e-4


def test_acceptance_is_that_of_a_trained_pair() -> None:
    for shape in JUDGES:
        lists = [prompt["accept_lengths"][shape] for prompt in PROMPTS]
        assert all(len(set(lengths)) >= 4 for lengths in lists), shape
        assert sum(map(sum, lists)) / sum(map(len, lists)) > 2


def test_every_mutation_moves_every_stored_logit_row_far_past_the_tolerance(pair: Pair) -> None:
    stored = load_file(MICRO / "expected.safetensors")["draft_logits"]
    cases = [
        Case(p["id"], p["input_ids"], p["greedy_ids"], p["min_gap"], p["accept_lengths"]) for p in PROMPTS
    ]
    anchors = [(anchor["prompt"], anchor["position"]) for anchor in EXPECTED["anchors"]]
    found = sensitivity(pair, cases, anchors, stored)
    assert found.keys() == {*MUTATIONS, "fc not loaded"}
    for name, moved in found.items():
        assert moved["least_over_anchors"] > 100 * EXPECTED["logits_tolerance"], name
        assert sum(moved["lists_that_differ"].values()) >= 1, name


def test_the_norms_are_trained_and_the_weights_are_half_precision() -> None:
    target, drafter = (load_file(MICRO / name / "model.safetensors") for name in ("target", "drafter"))
    for norm in (target["model.norm.weight"], drafter["norm.weight"], drafter["hidden_norm.weight"]):
        assert float((norm - 1).abs().max()) > 0.05
    assert {tensor.dtype for tensor in (*target.values(), *drafter.values())} == {torch.float16}


def test_the_folder_stays_small_enough_to_travel_with_every_push() -> None:
    files = [file for file in MICRO.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 620_000
