"""The walk against a naive oracle without any cache, and what must not change it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.tiny.pairs.convention import Convention as OracleConvention
from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.files import load_drafter
from examples.tiny.pairs.oracle import chain, ddtree, walk_text
from remote_payload.drafters.convention import Convention
from remote_payload.shapes import parse_shapes
from remote_payload.trajectories import Need
from tests.payload.conftest import MODELS, PROMPTS, Harness

SOME = ["o00", "o04", "o12", "o20", "o29"]


def _oracle(harness: Harness, name: str, convention: Convention) -> Pair:
    plain = {key: value for key, value in dataclasses.asdict(convention).items() if key != "window_rule"}
    plain["rope_theta"] = plain["rope_theta"] or None
    return Pair(harness.target.model, load_drafter(MODELS / name), OracleConvention(**plain))


@pytest.mark.parametrize(
    "convention",
    [
        Convention(),
        Convention(context="through_anchor"),
        Convention(block_position_offset=1),
        Convention(block_position_offset=-1),
        Convention(hidden_index_offset=-1),
        Convention(label_offset=1),
        Convention(in_block="causal"),
        Convention(hidden_norm=False),
        Convention(context="one_short"),
        Convention(final_norm=False),
        Convention(rope_theta=10000),
        Convention(context="through_anchor", block_position_offset=1, in_block="causal"),
    ],
    ids=lambda c: ",".join(f"{k}={v}" for k, v in c.non_default().items()) or "published",
)
def test_every_convention_equals_a_step_by_step_oracle(harness: Harness, convention: Convention) -> None:
    drafter = harness.drafter("drafter-b8-mid", convention=convention)
    prompts = [PROMPTS[name] for name in SOME]
    walks, _ = harness.walk(drafter, prompts, ["chain", "ddtree:6"], max_new_tokens=16)
    pair = _oracle(harness, "drafter-b8-mid", convention)
    texts = harness.trajectories(prompts, Need(16, frozenset(), drafter.drafts))
    lengths = set()
    for prompt, trajectory, walked in zip(prompts, texts, walks, strict=True):
        for shape, judge in (("chain", chain), ("ddtree:6", ddtree(6))):
            expected = walk_text(pair, prompt, trajectory.tokens, judge, max_new_tokens=16)
            if expected.gap > 1e-4:
                assert walked[shape].accept_lengths == expected.accept_lengths
                lengths |= set(expected.accept_lengths)
    assert len(lengths) > 1, "nothing was accepted: the comparison would be empty"


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(0, 255), min_size=1, max_size=24),
    block=st.integers(2, 8),
    limit=st.integers(1, 12),
)
def test_any_prompt_block_and_limit_equal_the_oracle(
    harness: Harness, ids: list[int], block: int, limit: int
) -> None:
    drafter = harness.drafter("drafter-b8-final", block)
    walks, _ = harness.walk(drafter, [ids], ["chain"], max_new_tokens=limit)
    text = harness.trajectories([ids], Need(limit, frozenset(), drafter.drafts))[0].tokens
    pair = _oracle(harness, "drafter-b8-final", Convention())
    expected = walk_text(pair, ids, text, max_new_tokens=limit, block_size=block)
    if expected.gap > 1e-4:
        assert walks[0]["chain"].accept_lengths == expected.accept_lengths


def test_a_shape_walks_the_same_alone_and_with_others(harness: Harness) -> None:
    drafter = harness.drafter("drafter-b8-mid")
    prompts = [PROMPTS[name] for name in SOME]
    names = ["chain", "ddtree:4", "ddtree:32", "topk:3"]
    together, _ = harness.walk(drafter, prompts, names, max_new_tokens=48)
    for name in names:
        alone, _ = harness.walk(drafter, prompts, [name], max_new_tokens=48)
        assert [w[name] for w in alone] == [w[name] for w in together]
    assert len({tuple(w.accept_lengths) for walks in together for w in walks.values()}) > 4


def test_a_prompt_walks_the_same_alone_and_in_a_batch(harness: Harness) -> None:
    drafter = harness.drafter("drafter-b8-final")
    prompts = [PROMPTS[name] for name in SOME]
    batch, outputs = harness.walk(drafter, prompts, ["chain", "ddtree:8"], max_new_tokens=48)
    for prompt, walks, output in zip(prompts, batch, outputs, strict=True):
        alone, out = harness.walk(drafter, [prompt], ["chain", "ddtree:8"], max_new_tokens=48)
        assert alone[0] == walks
        assert out[0] == output


def test_rounds_start_where_the_last_one_ended_and_cover_the_output(harness: Harness) -> None:
    drafter = harness.drafter("drafter-b8-final")
    walks, outputs = harness.walk(
        drafter, [PROMPTS[name] for name in PROMPTS], ["chain"], max_new_tokens=40, stops=[10]
    )
    for walked, output in zip(walks, outputs, strict=True):
        chain_walk = walked["chain"]
        for anchor, length, following in zip(
            chain_walk.anchors, chain_walk.accept_lengths, chain_walk.anchors[1:], strict=False
        ):
            assert anchor + length == following
        assert 1 + sum(chain_walk.accept_lengths) >= len(output)
        assert chain_walk.anchors[-1] < 40


def test_a_block_of_one_slot_drafts_nothing(harness: Harness) -> None:
    walks, _ = harness.walk(
        harness.drafter("drafter-b8-final", 1), [PROMPTS["o04"]], ["chain"], max_new_tokens=9
    )
    assert walks[0]["chain"].accept_lengths == [1] * 9


def test_a_stop_as_first_token_still_runs_one_round(harness: Harness) -> None:
    drafter = harness.drafter("drafter-b8-final")
    first = harness.trajectories([PROMPTS["o04"]], Need(1, frozenset(), 8))[0].tokens[0]
    walks, outputs = harness.walk(drafter, [PROMPTS["o04"]], ["chain"], max_new_tokens=32, stops=[first])
    assert outputs == [[first]]
    assert len(walks[0]["chain"].accept_lengths) == 1


def test_an_empty_context_works(harness: Harness) -> None:
    """Anchor 0: never met in decoding, but in an evaluation over training's anchors."""
    drafter = harness.drafter("drafter-b8-final")
    ids = torch.tensor([PROMPTS["o04"]])
    features, _ = harness.target.hidden_states(ids.tolist(), drafter.feature_indices)
    zero = torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        hidden = drafter.draft(drafter.prepare(features), zero, zero, ids[0, :1])
        found = harness.target.head(hidden)[0]
        pair = _oracle(harness, "drafter-b8-final", Convention())
        expected = pair.draft_logits(features[0], ids[0].tolist(), 0)
    assert (found - expected).abs().max() < 1e-4


def test_near_ties_are_counted_where_decisions_are_close(harness: Harness) -> None:
    import numpy as np

    from remote_payload.shapes import Chain, Draft

    close = Draft(np.array([[5, 6], [7, 8]]), np.array([[-1.0, -1.00001], [-1.0, -3.0]], dtype=np.float32))
    assert Chain().accept(close, [5, 7]) == (3, True)
    assert Chain().accept(close, [9, 7]) == (1, True)
    clear = Draft(close.ids, np.array([[-1.0, -2.0], [-1.0, -1.00001]], dtype=np.float32))
    assert Chain().accept(clear, [9, 7]) == (1, False)  # the close slot was never reached
    assert parse_shapes(["topk:1"])[0].accept(close, [5, 7]) == (3, True)
