"""Live decoding equals the public reference implementations and the hybrid oracle, on every stored setting.

`test_vectors` holds replay against the same files; these runs share no cache, mask or loop with it. A list may
differ only where the stored run has a decision closer than 1e-4. Every setting, block size and budget is run;
a run takes every STRIDE-th prompt, each setting beginning at another one, since all of them take minutes:
`ORCH_ALL_VECTORS=1` runs every prompt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.engines.live import LiveDecoder, LiveWalk, make_verifier
from remote_payload.engines.live.verify import Verifier
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shape
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start
from tests.payload.conftest import MODELS, PROMPTS, VECTORS, Harness

CHAINS = sorted(VECTORS.glob("chain__*.json"))
TREES = sorted(VECTORS.glob("ddtree__*.json"))
HYBRIDS = sorted(VECTORS.glob("hybrid-oracle__*.json"))
EXCUSED_GAP = 1e-4
STRIDE = 1 if os.environ.get("ORCH_ALL_VECTORS") else 5
compared = {"lists": 0, "rounds": 0, "outputs": 0, "excused": 0}


@pytest.fixture(autouse=True)
def _counted(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Hands what this test compared to the run's summary (`tests/conftest.py`)."""
    before = dict(compared)
    yield
    for what, count in compared.items():
        record_property(f"compared live: {what}", count - before[what])


@pytest.fixture(scope="module")
def verifier(harness: Harness) -> Verifier:
    return make_verifier(harness.target)


@pytest.fixture(scope="module")
def hybrid() -> Harness:
    return Harness(Target(MODELS / "target-hybrid-tiny", dtype="float32", device=torch.device("cpu")))


@pytest.fixture(scope="module")
def hybrid_verifier(hybrid: Harness) -> Verifier:
    return make_verifier(hybrid.target)


def _decode(
    harness: Harness, verifier: Verifier, drafter: DFlashDrafter, prompt: str, shape: str, need: Need
) -> LiveWalk:
    decoder = LiveDecoder(verifier, drafter, harness.target.head, harness.target.vocab_size, Sampling())
    return decoder.decode(Start(tuple(PROMPTS[prompt])), parse_shape(shape), need)


def _same(found: list[int], expected: list[int], run: dict[str, Any], where: str) -> None:
    compared["lists"] += 1
    compared["rounds"] += len(expected)
    if found == expected:
        return
    gap = min(run.get("min_top2_gap_target", 1.0), run.get("min_top2_gap_draft", 1.0))
    print(f"{where}: {found} instead of {expected}; the run's closest decision is {gap:.1e}")
    assert gap < EXCUSED_GAP, f"{where}: {found} instead of {expected}"
    compared["excused"] += 1


def _some(runs: list[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
    return runs[turn % STRIDE :: STRIDE]


@pytest.mark.slow
@pytest.mark.parametrize("path", CHAINS, ids=lambda p: p.stem)
def test_chains_equal_the_reference_in_every_setting(
    harness: Harness, verifier: Verifier, path: Path
) -> None:
    record = json.loads(path.read_text())
    for turn, (name, setting) in enumerate(record["settings"].items()):
        given = setting["params"]
        drafter = harness.drafter(record["drafter"], given.get("block_size"))
        need = Need(given["max_new_tokens"], frozenset(given["stop_token_ids"] or ()), drafter.drafts)
        for run in _some(setting["runs"], turn):
            where = f"{path.stem} {name} {run['prompt']}"
            walk = _decode(harness, verifier, drafter, run["prompt"], "chain", need)
            _same(walk.accept_lengths, run["acceptance_lengths"], run, where)
            output = walk.tokens[: need.output_length(walk.tokens)]
            assert output == run["output_ids"] or run["min_top2_gap_target"] < EXCUSED_GAP, where
            compared["outputs"] += 1
    assert len(record["settings"]) in (1, 11)


@pytest.mark.slow
@pytest.mark.parametrize("path", TREES, ids=lambda p: p.stem)
def test_trees_equal_the_reference_at_every_budget(harness: Harness, verifier: Verifier, path: Path) -> None:
    record = json.loads(path.read_text())
    drafter = harness.drafter(record["drafter"])
    need = Need(record["max_new_tokens"], frozenset(record["stop_token_ids"]), drafter.drafts)
    for turn, (budget, runs) in enumerate(record["budgets"].items()):
        shape = "chain" if budget == "chain" else f"ddtree:{budget}"
        for run in _some(runs, turn):
            found = _decode(harness, verifier, drafter, run["prompt"], shape, need).accept_lengths
            expected = run.get("acceptance_lengths_untruncated_oracle")
            if expected is None:
                # The reference cut the block short in these rounds (its own buffer): comparable before them.
                cut = min(run.get("truncated_block_rounds") or [len(run["acceptance_lengths"])])
                found, expected = found[:cut], run["acceptance_lengths"][:cut]
            _same(found, expected, run, f"{path.stem} {budget} {run['prompt']}")
    assert len(record["budgets"]) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("path", HYBRIDS, ids=lambda p: p.stem)
def test_a_recurrent_target_equals_the_oracle(hybrid: Harness, hybrid_verifier: Verifier, path: Path) -> None:
    record = json.loads(path.read_text())
    drafter = hybrid.drafter(record["drafter"], record["bs_used"])
    need = Need(record["max_new_tokens"], frozenset(record["stop_token_ids"]), drafter.drafts)
    shapes = {"chain": record["runs"]}
    shapes |= {f"ddtree:{budget}": runs for budget, runs in record.get("budgets", {}).items()}
    for turn, (shape, runs) in enumerate(shapes.items()):
        for run in _some(runs, turn):
            walk = _decode(hybrid, hybrid_verifier, drafter, run["prompt"], shape, need)
            _same(walk.accept_lengths, run["acceptance_lengths"], run, f"{path.stem} {shape} {run['prompt']}")
            assert walk.tokens[: need.output_length(walk.tokens)] == run["output_ids"]
            compared["outputs"] += 1
