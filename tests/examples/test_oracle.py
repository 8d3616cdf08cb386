"""The training package's brute-force oracle agrees with the published implementations' stored results."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.files import load_drafter, load_target
from examples.tiny.pairs.oracle import best_first_tree, chain, ddtree, greedy_text, walk_text

ROOT = Path(__file__).parents[2]
MODELS, VECTORS = ROOT / "examples" / "tiny", ROOT / "tests" / "vectors"
PROMPTS = {prompt["id"]: prompt["ids"] for prompt in json.loads((VECTORS / "prompts.json").read_text())}


@pytest.fixture(scope="module", params=["drafter-b8-final", "drafter-b16-final"])
def pair(request: pytest.FixtureRequest) -> tuple[str, Pair]:
    return request.param, Pair(load_target(MODELS / "target-tiny"), load_drafter(MODELS / request.param))


def test_draft_logits_equal_the_published_forward(pair: tuple[str, Pair]) -> None:
    name, drafting = pair
    stored = np.load(VECTORS / f"logits__{name}.npz")
    compared = 0
    for case in ("p0", "p1", "p2"):
        ids = stored[f"{case}_ids"].tolist()
        features = drafting.features(torch.tensor([ids]))[0]
        for anchor, expected in zip(stored[f"{case}_anchors"], stored[f"{case}_logits"], strict=True):
            found = drafting.draft_logits(features, ids, int(anchor)).numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
            compared += 1
    assert compared == 30


def test_trees_equal_the_published_trees() -> None:
    cases, logits = json.loads((VECTORS / "tree_units.json").read_text()), np.load(VECTORS / "tree_units.npz")
    compared = 0
    for name in sorted(set(cases) - {"ties"}):  # "ties" depends on the order that topk gives to equal values
        for budget, expected in cases[name].items():
            tree = best_first_tree(torch.from_numpy(logits[name]), int(budget))
            assert (tree.tokens, tree.depths, [-1, *tree.parents]) == (
                expected["node_token_ids"],
                expected["node_depths"],
                expected["parents"],
            ), (name, budget)
            compared += 1
    assert compared >= 60


def test_greedy_text_and_its_smallest_gap_equal_the_stored_ones(pair: tuple[str, Pair]) -> None:
    stored = json.loads((VECTORS / "greedy__target-tiny.json").read_text())
    run = next(run for run in stored["runs"] if run["prompt"] == "o13")
    text, gap = greedy_text(pair[1].target, PROMPTS["o13"], 24)
    assert text == run["greedy_ids"][:24]
    assert gap == pytest.approx(min(run["top2_gaps"][:24]), abs=1e-4)


def test_chain_walks_equal_the_published_loop_round_by_round(pair: tuple[str, Pair]) -> None:
    name, drafting = pair
    runs = json.loads((VECTORS / f"chain__{name}.json").read_text())["settings"]["main"]["runs"]
    assert _compare(drafting, runs, "acceptance_lengths", chain) > 1.5


def test_tree_walks_equal_the_published_trees_round_by_round(pair: tuple[str, Pair]) -> None:
    name, drafting = pair
    runs = json.loads((VECTORS / f"ddtree__{name}.json").read_text())["budgets"]["8"]
    key = "acceptance_lengths_untruncated_oracle"
    assert _compare(drafting, runs, key, ddtree(8)) > 1.5


def _compare(drafting: Pair, runs: list[dict], key: str, judge: object, rounds: int = 8) -> float:
    """Compares the first rounds of every prompt's list and returns their mean."""
    texts = {run["prompt"]: run["greedy_ids"] for run in _greedy_runs()}
    seen: list[int] = []
    for run in runs:
        expected = run[key][:rounds]
        walk = walk_text(
            drafting, PROMPTS[run["prompt"]], texts[run["prompt"]], judge, max_new_tokens=sum(expected)
        )
        assert walk.accept_lengths == expected, run["prompt"]
        seen += expected
    assert len(runs) == len(PROMPTS)
    return sum(seen) / len(seen)


def _greedy_runs() -> list[dict]:
    return json.loads((VECTORS / "greedy__target-tiny.json").read_text())["runs"]


def test_a_tree_is_closed_under_prefixes_and_chosen_by_falling_probability() -> None:
    logits = torch.randn(5, 17, generator=torch.Generator().manual_seed(3))
    tree = best_first_tree(logits, 40)
    scores = logits.log_softmax(dim=1)
    totals = [0.0]
    for parent, depth, token in zip(tree.parents, tree.depths, tree.tokens, strict=True):
        assert parent < len(totals)
        totals.append(totals[parent] + float(scores[depth - 1, token]))
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(totals))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == 40
