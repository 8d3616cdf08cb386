"""Shapes: trees against brute force, bounds, ties, and what contains what."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_payload.engines.candidates import best_candidates
from remote_payload.errors import InputError
from remote_payload.shapes import Chain, DDTree, Draft, TopK, build_tree, parse_shape, parse_shapes
from tests.payload.conftest import VECTORS


def _draft(logits: np.ndarray) -> Draft:
    ids, logs = best_candidates(torch.tensor(logits, dtype=torch.float32), logits.shape[-1])
    return Draft(ids.numpy(), logs.numpy())


@st.composite
def drafts(draw: st.DrawFn, depth: int = 4, vocab: int = 6) -> Draft:
    slots, width = draw(st.integers(1, depth)), draw(st.integers(2, vocab))
    # Distinct values keep the expected order unambiguous; ties have their own tests.
    values = draw(st.permutations(range(slots * width)))
    scale = draw(st.floats(0.05, 0.6))
    return _draft(np.array(values, dtype=np.float64).reshape(slots, width) * scale)


def _prefix_scores(draft: Draft) -> dict[tuple[int, ...], float]:
    scores: dict[tuple[int, ...], float] = {}
    for depth in range(1, draft.ids.shape[0] + 1):
        for ranks in itertools.product(range(draft.ids.shape[1]), repeat=depth):
            tokens = tuple(int(draft.ids[d, r]) for d, r in enumerate(ranks))
            scores[tokens] = sum(float(draft.logprobs[d, r]) for d, r in enumerate(ranks))
    return scores


def _paths(draft: Draft, budget: int) -> set[tuple[int, ...]]:
    tree = build_tree(draft, budget)
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], token))
    assert [len(path) for path in paths] == tree.depths
    assert len(set(paths)) == len(paths)
    return set(paths[1:])


@settings(max_examples=60, deadline=None)
@given(drafts(), st.integers(1, 20))
def test_a_tree_holds_the_most_probable_prefixes(draft: Draft, budget: int) -> None:
    scores = _prefix_scores(draft)
    chosen = _paths(draft, budget)
    assert len(chosen) == min(budget, len(scores))
    worst = min(scores[path] for path in chosen)
    left = [score for path, score in scores.items() if path not in chosen]
    assert not left or max(left) <= worst + 1e-5


@settings(max_examples=60, deadline=None)
@given(drafts(), st.integers(1, 12), st.data())
def test_no_round_is_longer_than_its_bound(draft: Draft, budget: int, data: st.DataObject) -> None:
    slots = draft.ids.shape[0]
    truth = [int(data.draw(st.sampled_from(draft.ids[d].tolist()))) for d in range(slots)]
    for shape in (Chain(), DDTree(budget), TopK(min(budget, 3))):
        length = shape.accept(draft, truth).length
        assert 1 <= length <= shape.bound(slots + 1)
    path = tuple(truth)
    expected = 1 + max(d for d in range(slots + 1) if d == 0 or path[:d] in _paths(draft, budget))
    assert DDTree(budget).accept(draft, truth).length == expected


@settings(max_examples=40, deadline=None)
@given(drafts(), st.integers(1, 11))
def test_a_larger_budget_contains_the_smaller(draft: Draft, budget: int) -> None:
    assert _paths(draft, budget) <= _paths(draft, budget + 1)


@settings(max_examples=40, deadline=None)
@given(drafts(), st.integers(1, 12), st.data())
def test_coverage_is_a_ceiling_of_the_tree(draft: Draft, budget: int, data: st.DataObject) -> None:
    truth = [int(data.draw(st.sampled_from(draft.ids[d].tolist()))) for d in range(draft.ids.shape[0])]
    tree = DDTree(budget).accept(draft, truth).length
    assert tree <= TopK(budget).accept(draft, truth).length


def test_trees_equal_the_reference_implementation() -> None:
    arrays, cases = np.load(VECTORS / "tree_units.npz"), json.loads((VECTORS / "tree_units.json").read_text())
    compared = 0
    for name, budgets in cases.items():
        if name == "ties":  # the reference keeps the order in which its kernel returned equal values
            continue
        draft = _draft(arrays[name])
        for budget, stored in budgets.items():
            tree = build_tree(draft, int(budget))
            assert tree.tokens[1:] == stored["node_token_ids"], (name, budget)
            assert tree.parents == stored["parents"], (name, budget)
            assert tree.depths[1:] == stored["node_depths"], (name, budget)
            compared += 1
    assert compared >= 100


def test_equal_candidates_are_ordered_by_token_id_whatever_was_asked_for() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.5]])
    for count in range(1, 9):
        ids, logs = best_candidates(logits, count)
        assert ids[0].tolist() == [1, 6, 2, 3, 4, 5, 7, 0][:count]
        assert logs[0].tolist() == sorted(logs[0].tolist(), reverse=True)
    assert math.isclose(float(best_candidates(logits, 8)[1].exp().sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize(("name", "nodes"), [("chain", 8), ("ddtree:3", 4), ("ddtree:64", 8), ("topk:8", 8)])
def test_names_and_bounds(name: str, nodes: int) -> None:
    shape = parse_shape(name)
    assert shape.name == name
    assert shape.bound(8) == nodes


@pytest.mark.parametrize(
    "name", ["", "tree", "ddtree", "ddtree:0", "ddtree:-1", "topk:1.5", "ddtree:08", "chain:2"]
)
def test_an_unknown_shape_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match="unknown shape"):
        parse_shape(name)


def test_a_shape_given_twice_counts_once() -> None:
    assert [shape.name for shape in parse_shapes(["ddtree:4", "chain", "ddtree:4"])] == ["ddtree:4", "chain"]
