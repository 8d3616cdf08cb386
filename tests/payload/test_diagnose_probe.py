"""What the sweep runs is what it says: against the reference's wrong variants, and against forms written out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from examples.tiny.pairs.convention import Convention as Trained
from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.files import load_drafter, load_target
from examples.tiny.pairs.training import block_mask
from remote_payload.diagnose.material import Material, gather
from remote_payload.diagnose.probe import Alteration, ProbeDrafter
from remote_payload.diagnose.sweep import Measured, measure
from remote_payload.diagnose.variants import Facts, Variant, neighbours
from remote_payload.drafters.checkpoint import Checkpoint, load_checkpoint
from remote_payload.drafters.convention import Convention
from remote_payload.items import Item
from remote_payload.memory import Room
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.results import Silent
from remote_payload.trajectories import Need
from tests.payload.conftest import MODELS, PROMPTS, VECTORS, Harness

CPU = torch.device("cpu")
WRONG = json.loads((VECTORS / "wrong_variants.json").read_text())
FACTS = Facts(num_layers=6, hidden_size=128, vocab_size=264, tied=False, theta=1e4, special={"eos": 257})
SLUGS: dict[str, tuple[str, dict[str, Any]]] = {
    "correct": ("declared", {}),
    "anchor_in_ctx": ("anchor_in_context", {}),
    "ctx_missing_last": ("context_short", {}),
    "pos_plus1": ("positions_plus1", {}),
    "pos_minus1": ("positions_minus1", {}),
    "pos_zero": ("positions_zero", {}),
    "layer_minus1": ("layer_minus1", {"offset": -1}),
    "layer_plus1": ("layer_plus1", {"offset": 1}),
    "layer_swapped": ("layers_reversed", {}),
    "causal_block": ("causal_block", {}),
    "mask_is_eos": ("mask_token", {"id": 257}),
    "mask_is_zero_id": ("mask_token", {"id": 0}),
    "mask_zero_vec": ("mask_token", {"id": -1}),
    "slice_off_by_one": ("label_shift", {"offset": 1}),
    "rope_theta_of_target": ("rope_theta", {"value": 1e4}),
    "no_final_norm": ("no_final_norm", {}),
    "lm_head_is_embedding": ("head", {}),
    "no_context": ("no_context", {}),
}
"""The reference's names -> slug and parameters here (tests/vectors/README.md has the same table)."""


def _material(harness: Harness, names: list[str], tokens: int, depth: int) -> Material:
    need = Need(tokens, frozenset(WRONG["stop_token_ids"]), depth + 1)
    made = harness.trajectories([PROMPTS[name] for name in names], need)
    items = [
        Item(Tokenized("", name, 0, t.prompt, prompt_hash(t.prompt)), need.cut(t))
        for name, t in zip(names, made, strict=True)
    ]
    return gather(
        harness.target, items, need, range(7), batch_tokens=1 << 14, progress=Silent(), room=Room(CPU)
    )


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(MODELS / WRONG["drafter"])


@pytest.fixture(scope="module")
def material(harness: Harness) -> Material:
    return _material(harness, WRONG["prompts"], WRONG["max_new_tokens"], 7)


@pytest.fixture(scope="module")
def run(harness: Harness, checkpoint: Checkpoint, material: Material) -> Callable[[Variant], Measured]:
    def measured(variant: Variant) -> Measured:
        return measure(
            material,
            _probe(harness, checkpoint, variant),
            label_offset=variant.label_offset,
            depth=7,
            head=harness.target.head,
            vocab_size=harness.target.vocab_size,
            room=Room(CPU),
        )

    return measured


def _probe(harness: Harness, checkpoint: Checkpoint, variant: Variant) -> ProbeDrafter:
    return ProbeDrafter(
        checkpoint,
        variant.convention,
        variant.alteration,
        block_size=variant.block_size,
        embed=harness.target.embed,
        device=CPU,
        dtype=torch.float32,
    )


def _find(slug: str, parameters: dict[str, Any], checkpoint: Checkpoint) -> Variant:
    declared, variants = neighbours(checkpoint.config, Convention(), 8, "none", FACTS)
    if slug == "declared":
        return declared
    # Of a slug that single layers have too, the one that is about all layers.
    return next(
        v
        for v in variants
        if v.slug == slug and "layer" not in v.parameters and parameters.items() <= v.parameters.items()
    )


@pytest.mark.parametrize("name", SLUGS)
def test_a_wrong_variant_gives_the_reference_s_acceptance_lists(
    name: str,
    run: Callable[[Variant], Measured],
    checkpoint: Checkpoint,
    material: Material,
    record_property: Callable[[str, object], None],
) -> None:
    slug, parameters = SLUGS[name]
    lists = run(_find(slug, parameters, checkpoint)).walks(material.ends)
    assert lists == WRONG["variants"][name]["acceptance_lengths"]
    record_property("compared wrong-variant lists", len(lists))


def test_every_variant_of_the_vectors_has_a_slug_and_the_readme_says_which() -> None:
    assert set(SLUGS) | {"fc_random"} == set(WRONG["variants"])
    readme = (VECTORS / "README.md").read_text()
    for name, (slug, _) in SLUGS.items():
        if slug != "declared":
            assert f"| {name} | {slug} |" in readme
    assert "| fc_random | fc_random |" in readme


def test_a_random_fc_leaves_nothing(harness: Harness, checkpoint: Checkpoint, material: Material) -> None:
    generator = torch.Generator().manual_seed(0)
    fc = torch.randn(checkpoint.tensors["fc.weight"].shape, generator=generator) * 0.02
    tensors = {**checkpoint.tensors, "fc.weight": fc, "hidden_norm.weight": torch.ones(128)}
    broken = replace(checkpoint, tensors=tensors)
    declared = _find("declared", {}, checkpoint)
    measured = measure(
        material,
        _probe(harness, broken, declared),
        label_offset=0,
        depth=7,
        head=harness.target.head,
        vocab_size=264,
        room=Room(CPU),
    )
    lists = measured.walks(material.ends)
    assert sum(map(sum, lists)) / sum(map(len, lists)) < 1.3


# --------------------------------------------------------------------------- against forms written out


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(load_target(MODELS / "target-tiny"), load_drafter(MODELS / WRONG["drafter"]))


@pytest.fixture(scope="module")
def ids(harness: Harness) -> list[int]:
    (made,) = harness.trajectories([PROMPTS["o05"]], Need(40, frozenset(), 9))
    return [*made.prompt, *made.tokens]


def _slots(
    harness: Harness, checkpoint: Checkpoint, alteration: Alteration, ids: list[int], anchors: list[int]
) -> torch.Tensor:
    variant = Variant("test", Convention(), alteration, 8, 0)
    probe = _probe(harness, checkpoint, variant)
    features, _ = harness.target.hidden_states([ids], probe.feature_indices)
    context = probe.prepare(features)
    at, rows = torch.tensor(anchors), torch.zeros(len(anchors), dtype=torch.long)
    tokens = torch.tensor([ids[anchor] for anchor in anchors])
    if alteration.blocks:
        hidden = probe.slots_together(context, [0] * len(anchors), rows, at, tokens)
    else:
        hidden = probe.slots(context, rows, at, tokens)
    return probe.finish(hidden)


def _written_out(
    pair: Pair, features: torch.Tensor, ids: list[int], anchor: int, positions: torch.Tensor
) -> torch.Tensor:
    """The training package's own drafter at one anchor: the context's features at given positions."""
    noise = pair.embed(torch.tensor([[ids[anchor]] + [258] * 7]))
    order = positions.argsort()
    # That drafter puts feature j at position j: so the features are sorted by where they belong.
    assert torch.equal(positions[order], torch.arange(len(positions)))
    mask = torch.ones(1, 8, anchor + 8, dtype=torch.bool)
    states: torch.Tensor = pair.drafter(
        noise, features[None, :anchor][:, order], torch.arange(anchor, anchor + 8)[None], mask
    )
    return states[0]


@torch.no_grad()
def test_a_reversed_context_has_its_features_at_reversed_positions(
    harness: Harness, checkpoint: Checkpoint, pair: Pair, ids: list[int]
) -> None:
    anchors = [41, 50, 63]
    got = _slots(harness, checkpoint, Alteration(context_order="reversed"), ids, anchors)
    features = pair.features(torch.tensor([ids]))[0]
    for row, anchor in enumerate(anchors):
        wanted = _written_out(pair, features, ids, anchor, torch.arange(anchor).flip(0))
        torch.testing.assert_close(got[row], wanted, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_a_shuffled_context_keeps_every_feature_within_its_stretch(
    harness: Harness, checkpoint: Checkpoint, pair: Pair, ids: list[int]
) -> None:
    variant = Variant("test", Convention(), Alteration(context_order="shuffled"), 8, 0)
    positions = _probe(harness, checkpoint, variant).context_positions(64)
    assert sorted(positions.tolist()) == list(range(64))
    assert positions.tolist() != list(range(64))
    assert bool((positions // 32 == torch.arange(64) // 32).all())
    # At an anchor where a stretch ends, the shuffled context is a permutation that the other program can run too.
    long = (ids * 2)[:100]
    probe = _probe(harness, checkpoint, variant)
    features = pair.features(torch.tensor([long[:64]]))[0]
    context = probe.prepare(features[None])
    got = probe.finish(probe.slots(context, torch.tensor([0]), torch.tensor([64]), torch.tensor([long[64]])))[
        0
    ]
    torch.testing.assert_close(got, _written_out(pair, features, long, 64, positions), atol=2e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["all", "earlier"])
def test_blocks_that_see_each_other_are_training_s_mask(
    kind: str, harness: Harness, checkpoint: Checkpoint, pair: Pair, ids: list[int]
) -> None:
    anchors = [42, 45, 60]
    got = _slots(harness, checkpoint, Alteration(blocks=kind), ids, anchors)
    at = torch.tensor([anchors])
    mask = block_mask(at, len(ids), 8, Trained(blocks_see_each_other=True))
    if kind == "earlier":
        owner = torch.arange(3).repeat_interleave(8)
        mask[..., len(ids) :] &= owner[:, None] >= owner[None]
    noise = torch.full((1, 3, 8), 258)
    noise[..., 0] = torch.tensor([ids[anchor] for anchor in anchors])
    positions = (at[..., None] + torch.arange(8)).flatten(1)
    features = pair.features(torch.tensor([ids]))
    wanted = pair.drafter(pair.embed(noise.flatten(1)), features, positions, mask)[0].unflatten(0, (3, 8))
    torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_interleaved_rope_turns_neighbours(harness: Harness, checkpoint: Checkpoint) -> None:
    """Complex multiplication of (x[2i], x[2i+1]), written out."""
    from remote_payload.drafters.rope import rotate

    rope = replace(checkpoint.config.rope, interleaved=True)
    variant = Variant("test", Convention(), Alteration(rope=rope), 8, 0)
    probe = _probe(harness, checkpoint, variant)
    x = torch.randn(1, 2, 5, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 1, 7, 30, 100])
    got = rotate(x, probe.turn(positions), rope)
    angles = positions[:, None].double() * (1e5 ** (-torch.arange(16).double() / 16))
    pairs = torch.view_as_complex(x.double().reshape(1, 2, 5, 16, 2).contiguous())
    wanted = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
    # The halves of the result are the pairs' real and imaginary parts: scores do not depend on their order.
    torch.testing.assert_close(
        torch.stack(got.double().chunk(2, dim=-1), dim=-1), wanted, atol=1e-5, rtol=1e-5
    )


def test_the_declared_walk_is_replay_s(
    harness: Harness, checkpoint: Checkpoint, material: Material, run: Callable[[Variant], Measured]
) -> None:
    walks, _ = harness.walk(
        harness.drafter(WRONG["drafter"]),
        [PROMPTS[name] for name in WRONG["prompts"]],
        ["chain"],
        max_new_tokens=WRONG["max_new_tokens"],
        stops=WRONG["stop_token_ids"],
    )
    lists = run(_find("declared", {}, checkpoint)).walks(material.ends)
    assert lists == [walked["chain"].accept_lengths for walked in walks]


def test_no_two_variants_are_the_same(checkpoint: Checkpoint) -> None:
    _, variants = neighbours(checkpoint.config, Convention(), 8, "none", FACTS)
    names = [variant.name for variant in variants]
    assert len(set(names)) == len(names)
    ways = [(v.convention, v.alteration, v.block_size, v.label_offset) for v in variants]
    assert len(set(map(str, ways))) == len(ways)
    for variant in variants:
        assert variant.meaning.what
        assert variant.meaning.training


def test_every_variant_of_a_sliding_drafter_has_another_rule(checkpoint: Checkpoint) -> None:
    sliding = replace(checkpoint.config, windows=(16, None), window_rule="specforge")
    _, variants = neighbours(sliding, Convention(), 8, "specforge", FACTS)
    rules = {v.parameters["value"] for v in variants if v.slug == "window_rule"}
    assert rules == {"speculators", "speculators_noncausal", "none"}


def test_what_restores_the_published_value_is_named_after_the_declared_one(checkpoint: Checkpoint) -> None:
    wrong = Convention(block_position_offset=1, context="through_anchor", in_block="causal")
    _, variants = neighbours(checkpoint.config, wrong, 8, "none", FACTS)
    restoring = {v.slug: v for v in variants if v.restores}
    assert set(restoring) >= {"positions_plus1", "anchor_in_context", "causal_block"}
    assert restoring["positions_plus1"].convention.block_position_offset == 0
