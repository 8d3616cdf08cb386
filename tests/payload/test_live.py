"""Live decoding from inside: caches that take tokens back, masks, isolation of siblings, refusals."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash_live import LiveDFlash
from remote_payload.engines.live import LiveDecoder, check_convention, check_shape, make_verifier
from remote_payload.engines.live import verify as verifying
from remote_payload.engines.live.caches import keep_path, new_cache, restore, take_snapshot
from remote_payload.engines.live.forward import CachedForward
from remote_payload.engines.live.masks import ancestors, check_trees, tree_mask
from remote_payload.errors import CheckpointError, InputError, TargetError
from remote_payload.sampling import Choice, Sampling
from remote_payload.shapes import Proposal, parse_shape
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start
from tests.payload.conftest import MODELS, PROMPTS, Harness

CPU = torch.device("cpu")
CLOSE = 2e-4
"""Above what cached and whole passes differ by in float32, far below what another token changes."""

# Two branches of unequal length, siblings at two depths, a node without children in between:
#   0 ─ 1 ─ 2 ─ 5
#   │   └─ 4
#   └─ 3 ─ 6
TREE = Proposal([-1, 101, 32, 116, 33, 10, 104], [-1, 0, 1, 0, 1, 2, 3], [0, 1, 2, 1, 2, 3, 2], [1.0])


@pytest.fixture(scope="module")
def hybrid() -> Harness:
    return Harness(Target(MODELS / "target-hybrid-tiny", dtype="float32", device=CPU))


@pytest.fixture(params=["attention", "recurrent"])
def either(request: pytest.FixtureRequest) -> Harness:
    found: Harness = request.getfixturevalue("harness" if request.param == "attention" else "hybrid")
    return found


def _whole(target: Target, ids: list[int]) -> torch.Tensor:
    """Logits after the last token of one pass without any cache."""
    with torch.no_grad():
        logits: torch.Tensor = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


def _path(proposal: Proposal, node: int) -> list[int]:
    path = [node]
    while proposal.parents[path[-1]] >= 0:
        path.append(proposal.parents[path[-1]])
    return path[::-1]


class _Seen:
    """A `choose` that keeps the logits it is shown and then leads along a wanted path."""

    def __init__(self, proposal: Proposal, path: list[int], bonus: int = 5) -> None:
        self._tokens = [bonus] * len(proposal.tokens)
        for node, following in itertools.pairwise(path):
            self._tokens[node] = proposal.tokens[following]
        self.logits = torch.empty(0)

    def __call__(self, logits: torch.Tensor, depths: Any) -> Choice:
        assert len(logits) == len(depths)
        self.logits = logits
        return Choice(self._tokens[: len(logits)], [1.0] * len(logits))


def _verified(
    harness: Harness, proposal: Proposal, path: list[int], prompt: list[int]
) -> tuple[Any, Any, Any]:
    verifier = make_verifier(harness.target, trees=True)
    verifier.prefill(prompt, (2, 4))
    seen = _Seen(proposal, path)
    return verifier, seen, verifier.verify(proposal, prompt[-1], seen)


# --------------------------------------------------------------------------- verification


def test_every_node_of_a_tree_has_the_logits_of_its_own_path(either: Harness) -> None:
    prompt = PROMPTS["o12"]
    _, seen, _ = _verified(either, TREE, [0], prompt)
    for node in range(len(TREE.tokens)):
        text = [*prompt, prompt[-1], *(TREE.tokens[n] for n in _path(TREE, node)[1:])]
        assert (seen.logits[node] - _whole(either.target, text)).abs().max() < CLOSE


def test_siblings_do_not_touch_each_others_logits(either: Harness) -> None:
    """Another token in one branch changes that branch and nothing else."""
    other = TREE._replace(tokens=[-1, 101, 65, 116, 33, 10, 104])
    changed = {2, 5}
    before = _verified(either, TREE, [0], PROMPTS["o12"])[1].logits
    after = _verified(either, other, [0], PROMPTS["o12"])[1].logits
    differs = (before - after).abs().amax(-1)
    for node in range(len(TREE.tokens)):
        assert (differs[node] > 0.1) if node in changed else (differs[node] < 1e-5), node


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 3], [0, 3, 6], [0, 1, 2, 5], [0, 1, 4]], ids=str)
def test_after_a_round_the_cache_is_that_of_the_committed_tokens(either: Harness, path: list[int]) -> None:
    """The next round's logits are those of a fresh pass, and the features those of a fresh capture."""
    prompt = PROMPTS["o12"]
    verifier, _, round_ = _verified(either, TREE, path, prompt)
    assert round_.path == path
    text = [*prompt, prompt[-1], *(TREE.tokens[node] for node in path[1:])]
    features, _ = either.target.hidden_states([text], (2, 4))
    assert (round_.features - features[0, len(prompt) :]).abs().max() < CLOSE
    alone = Proposal([-1, 97], [-1, 0], [0, 1], [1.0])
    following = _Seen(alone, [0])
    verifier.verify(alone, 44, following)
    assert (following.logits[0] - _whole(either.target, [*text, 44])).abs().max() < CLOSE
    assert (following.logits[1] - _whole(either.target, [*text, 44, 97])).abs().max() < CLOSE


def test_many_branches_are_verified_in_groups(hybrid: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _verified(hybrid, TREE, [0], PROMPTS["o12"])[1].logits
    monkeypatch.setattr(verifying, "PATHS_AT_ONCE", 2)
    grouped = _verified(hybrid, TREE, [0], PROMPTS["o12"])[1].logits
    assert (whole - grouped).abs().max() < 1e-5


@pytest.mark.parametrize("shape", ["chain", "ddtree:6"])
def test_token_by_token_verification_gives_the_same_rounds(
    hybrid: Harness, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    drafter, need = hybrid.drafter("drafter-hybrid-b8-final"), Need(24, frozenset(), 7)

    def rounds() -> list[int]:
        verifier = make_verifier(hybrid.target)
        decoder = LiveDecoder(verifier, drafter, hybrid.target.head, hybrid.target.vocab_size, Sampling())
        starts = [Start(tuple(PROMPTS[name])) for name in ("o03", "o12")]
        return [
            length
            for start in starts
            for length in decoder.decode(start, parse_shape(shape), need).accept_lengths
        ]

    block = rounds()
    monkeypatch.setattr(verifying, "multi_token_pass_is_exact", lambda *_: False)
    assert isinstance(make_verifier(hybrid.target), verifying._TokenByToken)
    assert rounds() == block
    assert len(set(block)) > 1


def test_a_pass_that_forgets_the_recurrent_state_is_found_out(
    hybrid: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = CachedForward(hybrid.target)
    assert verifying.multi_token_pass_is_exact(hybrid.target, forward)
    run = forward.run

    def forgetful(cache: Any, ids: Any, positions: Any, indices: Any, **options: Any) -> Any:
        if len(ids[0]) > 1 and positions[0][0] > 0:
            for layer in cache.layers:
                for states in (getattr(layer, "recurrent_states", {}), getattr(layer, "conv_states", {})):
                    for state in states.values():
                        state.zero_()
        return run(cache, ids, positions, indices, **options)

    monkeypatch.setattr(forward, "run", forgetful)
    assert not verifying.multi_token_pass_is_exact(hybrid.target, forward)


# --------------------------------------------------------------------------- caches


def test_cutting_and_gathering_keep_exactly_the_named_rows(harness: Harness) -> None:
    forward = CachedForward(harness.target)
    for path in ([0], [0, 1, 2], [0, 2, 5], [0, 3]):
        cache = new_cache(harness.target.config)
        forward.run(cache, [list(range(60, 70))], [range(10)], ())
        forward.run(cache, [[1, 2, 3, 4, 5, 6]], [range(10, 16)], ())
        before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        keep_path(cache, 10, path)
        rows = [*range(10), *(10 + node for node in path)]
        for layer, (keys, values) in zip(cache.layers, before, strict=True):
            assert torch.equal(layer.keys, keys[:, :, rows])
            assert torch.equal(layer.values, values[:, :, rows])
        assert cache.get_seq_length() == len(rows)


def test_a_snapshot_can_be_put_back_any_number_of_times(hybrid: Harness) -> None:
    forward, target = CachedForward(hybrid.target), hybrid.target
    cache, prompt = new_cache(target.config), PROMPTS["o12"]
    at = len(prompt)
    forward.run(cache, [prompt], [range(at)], ())
    kept = take_snapshot(cache)
    first = forward.run(cache, [[65, 66, 67]], [range(at, at + 3)], ()).logits
    restore(cache, kept, copies=2)
    two = forward.run(cache, [[65, 66, 67], [70, 71, 72]], [range(at, at + 3)] * 2, ()).logits
    restore(cache, kept)
    again = forward.run(cache, [[65, 66, 67]], [range(at, at + 3)], ()).logits
    assert (first - again).abs().max() < 1e-6
    assert (first[0] - two[0]).abs().max() < 1e-4
    assert (two[0] - two[1]).abs().max() > 0.1


def test_layers_with_a_window_keep_what_has_to_come_back() -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
        use_sliding_window=True,
    )
    assert [type(layer).__name__ for layer in new_cache(config).layers] == ["DynamicLayer"] * 2


@pytest.mark.parametrize("kind", ["layer", "cache"])
def test_a_target_whose_cache_takes_nothing_back_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, harness: Harness, kind: str
) -> None:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    class StreamingLayer(DynamicLayer):  # type: ignore[misc]
        pass

    class StreamingCache(DynamicCache):  # type: ignore[misc]
        pass

    def made(_self: CachedForward) -> Any:
        cache = DynamicCache() if kind == "layer" else StreamingCache()
        cache.layers = [DynamicLayer(), StreamingLayer() if kind == "layer" else DynamicLayer()]
        return cache

    monkeypatch.setattr(CachedForward, "own_cache", made)
    named = "StreamingLayer" if kind == "layer" else "StreamingCache"
    with pytest.raises(TargetError, match=rf"target-tiny: its cache is of kind {named}, .*--engine replay"):
        make_verifier(harness.target)


# --------------------------------------------------------------------------- masks


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(0, 30), max_size=20))
def test_a_node_sees_its_ancestors_and_nothing_else(parents: list[int]) -> None:
    tree = [-1, *(parent % (node + 1) for node, parent in enumerate(parents))]
    seen = ancestors(tree)
    for node in range(len(tree)):
        up = [node]
        while tree[up[-1]] >= 0:
            up.append(tree[up[-1]])
        assert seen[node].nonzero().flatten().tolist() == sorted(up)


def test_a_sliding_layer_counts_its_window_in_depths() -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=3,
        use_sliding_window=True,
    )
    masks = tree_mask(config, TREE.parents, TREE.depths, 5, torch.float32, CPU)
    assert set(masks) == {"sliding_attention", "full_attention"}
    for kind, window in (("sliding_attention", 3), ("full_attention", 99)):
        for node in range(len(TREE.tokens)):
            position = 5 + TREE.depths[node]
            expected = [kv for kv in range(5) if kv > position - window]
            expected += [5 + n for n in _path(TREE, node) if 5 + TREE.depths[n] > position - window]
            found = (masks[kind][0, 0, node] == 0).nonzero().flatten().tolist()
            assert found == sorted(expected), (kind, node)


def test_a_target_with_sliding_layers_decodes_live_as_it_decodes_plainly(tmp_path: Path) -> None:
    """Windows shorter than the text: rounds are taken back past a window's edge."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(5)
    config = Qwen3Config(
        vocab_size=264,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=6,
        use_sliding_window=True,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    sliding = Harness(Target(tmp_path, dtype="float32", device=CPU))
    drafter, need = sliding.drafter("drafter-b8-early"), Need(40, frozenset(), 7)
    (plain,) = sliding.trajectories([PROMPTS["o12"]], need)
    decoder = LiveDecoder(
        make_verifier(sliding.target, trees=True), drafter, sliding.target.head, 264, Sampling()
    )
    for shape in ("chain", "ddtree:12"):
        walk = decoder.decode(Start(tuple(PROMPTS["o12"])), parse_shape(shape), need)
        assert walk.tokens[:40] == list(plain.tokens[:40])
    _, seen, _ = _verified(sliding, TREE, [0], PROMPTS["o12"])
    for node in range(len(TREE.tokens)):
        text = [*PROMPTS["o12"], PROMPTS["o12"][-1], *(TREE.tokens[n] for n in _path(TREE, node)[1:])]
        assert (seen.logits[node] - _whole(sliding.target, text)).abs().max() < 1e-3


# --------------------------------------------------------------------------- refusals


def test_what_live_decoding_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"shape topk:8 is an oracle ceiling .* --engine replay"):
        check_shape(parse_shape("topk:8"))
    with pytest.raises(
        CheckpointError, match=r"context=through_anchor cannot run live.*leak.*--engine replay"
    ):
        check_convention(Convention(context="through_anchor"))
    check_convention(Convention(block_position_offset=1, label_offset=1))


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_attention_without_masks_verifies_no_trees(harness: Harness, implementation: str) -> None:
    with pytest.raises(InputError, match=f"'{implementation}' cannot take the ancestor mask.*--attn sdpa"):
        check_trees(harness.target.config, implementation)


def test_eager_attention_verifies_trees_too(harness: Harness) -> None:
    eager = Harness(Target(MODELS / "target-tiny", dtype="float32", device=CPU, attn="eager"))
    found = _verified(eager, TREE, [0], PROMPTS["o12"])[1].logits
    expected = _verified(harness, TREE, [0], PROMPTS["o12"])[1].logits
    assert (found - expected).abs().max() < CLOSE


# --------------------------------------------------------------------------- the drafter's growing context


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_context_grown_in_pieces_is_the_whole_one(harness: Harness, cuts: list[int]) -> None:
    drafter = harness.drafter("drafter-b8-mid", convention=Convention(block_position_offset=1))
    length = sum(cuts)
    features = torch.randn(length, 256, generator=torch.Generator().manual_seed(length))
    live, at = LiveDFlash(drafter), 0
    for cut in cuts:
        live.grow(features[at : at + cut])
        live.draft(66)  # a draft leaves no trace in the context
        at += cut
    with torch.no_grad():
        found = live.draft(65)
        zero = torch.zeros(1, dtype=torch.long)
        whole = drafter.prepare(features[None])
        expected = drafter.draft(whole, zero, torch.tensor([length]), torch.tensor([65]))
    assert live.length == length
    assert (found - expected).abs().max() < 1e-4
