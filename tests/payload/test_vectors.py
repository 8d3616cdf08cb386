"""Replay equals the public reference implementations, entry by entry, on every stored list.

`tests/vectors/README.md` says what computed the references. A difference is excused only where the stored
run has a decision closer than 1e-4, and is printed; a difference anywhere else fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.trajectories import Need
from tests.payload.conftest import PROMPTS, VECTORS, Harness

CHAINS = sorted(VECTORS.glob("chain__*.json"))
TREES = sorted(VECTORS.glob("ddtree__*.json"))
HYBRIDS = sorted(VECTORS.glob("hybrid-oracle__*.json"))
LOGITS = sorted(VECTORS.glob("logits__*.npz"))
EXCUSED_GAP = 1e-4
compared = {"chain lists": 0, "tree lists": 0, "outputs": 0, "logit blocks": 0, "drafts": 0, "excused": 0}
compared |= {"hybrid chain lists": 0, "hybrid tree lists": 0, "hybrid drafts": 0, "greedy texts": 0}


@pytest.fixture(autouse=True)
def _counted(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Hands what this test compared to the run's summary (`tests/conftest.py`)."""
    before = dict(compared)
    yield
    for what, count in compared.items():
        record_property(f"compared: {what}", count - before[what])


def _same(found: list[int], expected: list[int], run: dict[str, Any], where: str) -> None:
    if found == expected:
        return
    gap = min(run.get("min_top2_gap_target", 1.0), run.get("min_top2_gap_draft", 1.0))
    print(f"{where}: {found} instead of {expected}; the run's closest decision is {gap:.1e}")
    assert gap < EXCUSED_GAP, f"{where}: {found} instead of {expected}"
    compared["excused"] += 1


@pytest.mark.parametrize("path", CHAINS, ids=lambda p: p.stem)
def test_chain_lists_and_outputs_equal_the_reference(harness: Harness, path: Path) -> None:
    record = json.loads(path.read_text())
    for name, setting in record["settings"].items():
        given, runs = setting["params"], setting["runs"]
        drafter = harness.drafter(record["drafter"], given.get("block_size"))
        walks, outputs = harness.walk(
            drafter,
            [PROMPTS[run["prompt"]] for run in runs],
            ["chain"],
            max_new_tokens=given["max_new_tokens"],
            stops=given["stop_token_ids"] or (),
        )
        for run, walked, output in zip(runs, walks, outputs, strict=True):
            where = f"{path.stem} {name} {run['prompt']}"
            _same(walked["chain"].accept_lengths, run["acceptance_lengths"], run, where)
            _same(output, run["output_ids"], run, where + " output")
            compared["chain lists"] += 1
            compared["outputs"] += 1
    assert len(record["settings"]) in (1, 11)


@pytest.mark.parametrize("path", CHAINS, ids=lambda p: p.stem)
def test_drafts_equal_the_reference(harness: Harness, path: Path) -> None:
    """The argmax of every slot, in every round: stronger than the acceptance lengths."""
    record = json.loads(path.read_text())
    setting = record["settings"]["main"]
    drafter = harness.drafter(record["drafter"])
    params = setting["params"]
    need = Need(params["max_new_tokens"], frozenset(params["stop_token_ids"]), drafter.drafts)
    compared["drafts"] += _compare_drafts(harness, drafter, need, setting["runs"], path.stem)


def _compare_drafts(
    harness: Harness, drafter: DFlashDrafter, need: Need, runs: list[dict[str, Any]], where: str
) -> int:
    """Holds every slot of every stored round against ours; returns how many were compared."""
    trajectories = harness.trajectories([PROMPTS[run["prompt"]] for run in runs], need)
    replay = harness.replay(drafter, trajectories)
    slots = 0
    for row, run in enumerate(runs):
        anchors = [0]
        for length in run["acceptance_lengths"][:-1]:
            anchors.append(anchors[-1] + length)
        drafts = replay.drafts([(row, anchor) for anchor in anchors], 2)
        for draft, expected in zip(drafts, run["drafts"], strict=True):
            # The stored gap covers only slots that decide; slots behind the first miss have their own.
            differs = draft.ids[:, 0] != np.array(expected)
            gaps = draft.logprobs[:, 0] - draft.logprobs[:, 1]
            assert (gaps[differs] < EXCUSED_GAP).all(), f"{where} {run['prompt']}"
            slots += len(expected)
    return slots


@pytest.mark.parametrize("path", TREES, ids=lambda p: p.stem)
def test_every_budget_equals_the_reference(harness: Harness, path: Path) -> None:
    record = json.loads(path.read_text())
    drafter = harness.drafter(record["drafter"])
    names = {budget: "chain" if budget == "chain" else f"ddtree:{budget}" for budget in record["budgets"]}
    prompts = [run["prompt"] for run in record["budgets"]["chain"]]
    walks, _ = harness.walk(
        drafter,
        [PROMPTS[prompt] for prompt in prompts],
        list(names.values()),
        max_new_tokens=record["max_new_tokens"],
        stops=record["stop_token_ids"],
    )
    for budget, runs in record["budgets"].items():
        assert [run["prompt"] for run in runs] == prompts
        for run, walked in zip(runs, walks, strict=True):
            found = walked[names[budget]].accept_lengths
            expected = run.get("acceptance_lengths_untruncated_oracle")
            if expected is None:
                # The reference cut the block short in these rounds (its own buffer): comparable before them.
                cut = min(run.get("truncated_block_rounds") or [len(run["acceptance_lengths"])])
                found, expected = found[:cut], run["acceptance_lengths"][:cut]
            _same(found, expected, run, f"{path.stem} {budget} {run['prompt']}")
            compared["tree lists"] += 1


@pytest.mark.parametrize("path", HYBRIDS, ids=lambda p: p.stem)
def test_replay_on_a_hybrid_target_equals_the_stored_oracle(hybrid: Harness, path: Path) -> None:
    """Chains, every tree budget, block 4 and another stop: no rollback of a recurrent state is needed."""
    record = json.loads(path.read_text())
    drafter = hybrid.drafter(record["drafter"], record["bs_used"])
    runs = record["runs"]
    names = {budget: f"ddtree:{budget}" for budget in record["budgets"]}
    walks, outputs = hybrid.walk(
        drafter,
        [PROMPTS[run["prompt"]] for run in runs],
        ["chain", *names.values()],
        max_new_tokens=record["max_new_tokens"],
        stops=record["stop_token_ids"],
    )
    for run, walked, output in zip(runs, walks, outputs, strict=True):
        where = f"{path.stem} {run['prompt']}"
        _same(walked["chain"].accept_lengths, run["acceptance_lengths"], run, where)
        _same(output, run["output_ids"], run, where + " output")
        compared["hybrid chain lists"] += 1
    for budget, trees in record["budgets"].items():
        for chain, tree, walked in zip(runs, trees, walks, strict=True):
            assert tree["prompt"] == chain["prompt"]
            # Trees have no gap of their own: near ties of the same text are those of its chain.
            _same(
                walked[names[budget]].accept_lengths,
                tree["acceptance_lengths"],
                chain,
                f"{path.stem} {budget}",
            )
            compared["hybrid tree lists"] += 1
    need = Need(record["max_new_tokens"], frozenset(record["stop_token_ids"]), drafter.drafts)
    compared["hybrid drafts"] += _compare_drafts(hybrid, drafter, need, runs, path.stem)
    assert bool(names) == (path.stem == "hybrid-oracle__drafter-hybrid-b8-final")


@pytest.mark.parametrize("path", LOGITS, ids=lambda p: p.stem)
def test_draft_logits_equal_the_reference(path: Path, request: pytest.FixtureRequest) -> None:
    harness: Harness = request.getfixturevalue("hybrid" if "hybrid" in path.stem else "harness")
    stored = np.load(path)
    drafter = harness.drafter(path.stem.removeprefix("logits__"))
    for index in range(3):
        ids = stored[f"p{index}_ids"].tolist()
        features, last = harness.target.hidden_states([ids], drafter.feature_indices)
        anchors = torch.tensor(stored[f"p{index}_anchors"])
        with torch.no_grad():
            hidden = drafter.draft(
                drafter.prepare(features), torch.zeros_like(anchors), anchors, torch.tensor(ids)[anchors]
            )
            found = harness.target.head(hidden).numpy()
        assert np.abs(found - stored[f"p{index}_logits"]).max() <= 1e-4
        compared["logit blocks"] += len(anchors)
        if f"p{index}_features" in stored:
            assert np.abs(features[0].numpy() - stored[f"p{index}_features"]).max() <= 1e-4
            logits = harness.target.head(last[0, -8:]).numpy()
            assert np.abs(logits - stored[f"p{index}_target_logits_last8"]).max() <= 1e-4


@pytest.mark.parametrize("name", ["target-tiny", "target-hybrid-tiny"])
def test_continuations_equal_greedy_decoding_without_a_cache(
    name: str, request: pytest.FixtureRequest
) -> None:
    harness: Harness = request.getfixturevalue("hybrid" if "hybrid" in name else "harness")
    record = json.loads((VECTORS / f"greedy__{name}.json").read_text())
    need = Need(record["n"], frozenset(), 0)
    trajectories = harness.trajectories([PROMPTS[run["prompt"]] for run in record["runs"]], need)
    for run, trajectory in zip(record["runs"], trajectories, strict=True):
        closest = {"min_top2_gap_target": min(run["top2_gaps"])}
        _same(list(trajectory.tokens[: record["n"]]), run["greedy_ids"], closest, f"{name} {run['prompt']}")
        compared["greedy texts"] += 1


def test_the_wrong_variants_that_a_convention_expresses_give_the_references_lists(harness: Harness) -> None:
    conventions = {
        "correct": Convention(),
        "anchor_in_ctx": Convention(context="through_anchor"),
        "pos_plus1": Convention(block_position_offset=1),
        "pos_minus1": Convention(block_position_offset=-1),
        "layer_minus1": Convention(hidden_index_offset=-1),
        "layer_plus1": Convention(hidden_index_offset=1),
        "causal_block": Convention(in_block="causal"),
    }
    record = json.loads((VECTORS / "wrong_variants.json").read_text())
    for name, convention in conventions.items():
        drafter = harness.drafter(record["drafter"], convention=convention)
        walks, _ = harness.walk(
            drafter,
            [PROMPTS[prompt] for prompt in record["prompts"]],
            ["chain"],
            max_new_tokens=record["max_new_tokens"],
            stops=record["stop_token_ids"],
        )
        found = [walked["chain"].accept_lengths for walked in walks]
        assert found == record["variants"][name]["acceptance_lengths"], name
