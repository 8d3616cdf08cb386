"""Drafters that were really trained under another convention reach their own tau when the record says so.

Each is trained here, on the micro pair's target, by the examples' training script (which shares no code with
the payload), saved as a checkpoint with its record in `orch.json`, and evaluated through the payload. Under
its own record its lists are the training package's oracle's, and its tau is higher than under the published
convention.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples.tiny.pairs.convention import Convention as Trained
from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.files import load_target, save_drafter
from examples.tiny.pairs.oracle import chain, walk_text
from examples.tiny.pairs.presets import PRESETS
from examples.tiny.pairs.text import training_text
from examples.tiny.pairs.training import train_drafter
from remote_payload.drafters.checkpoint import load_checkpoint, read_declared
from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.selfcheck import MICRO
from remote_payload.target import Target
from remote_payload.tau import Walk, tau
from remote_payload.trajectories import Need
from tests.payload.conftest import PROMPTS, Harness

STEPS = 160
SOME = ["o03", "o04", "o06", "o07", "o08", "o15", "o18", "o21", "o29", "o31"]


@pytest.fixture(scope="module")
def micro() -> Harness:
    return Harness(Target(MICRO / "target", dtype="float32", device=torch.device("cpu")))


def _lists(harness: Harness, folder: Path, convention: Convention) -> list[list[int]]:
    checkpoint = load_checkpoint(folder)
    drafter = DFlashDrafter(
        checkpoint,
        convention,
        block_size=checkpoint.config.block_size,
        embed=harness.target.embed,
        device=harness.target.device,
        dtype=harness.target.dtype,
    )
    walks, _ = harness.walk(drafter, [PROMPTS[name] for name in SOME], ["chain"], max_new_tokens=48)
    return [walked["chain"].accept_lengths for walked in walks]


def _tau(lists: list[list[int]]) -> float:
    return tau(Walk(lengths, 1) for lengths in lists)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [{"block_position_offset": 1}, {"context": "through_anchor"}, {"label_offset": 1}],
    ids=["positions + 1", "anchor in the context", "labels shifted"],
)
def test_it_reaches_its_own_tau_under_its_own_record(
    micro: Harness, tmp_path: Path, setting: dict[str, int | str]
) -> None:
    trained = Trained(**setting)  # type: ignore[arg-type]
    target = load_target(MICRO / "target")
    drafter = train_drafter(
        target,
        PRESETS["micro"],
        training_text(),
        steps=STEPS,
        seed=11,
        convention=trained,
        report=lambda _: None,
    )
    save_drafter(drafter, tmp_path)
    (tmp_path / "orch.json").write_text(json.dumps({"convention": setting}))

    own = _lists(micro, tmp_path, Convention.from_mapping(read_declared(tmp_path)))
    published = _lists(micro, tmp_path, Convention())
    print(f"tau {_tau(own):.3f} under its own record, {_tau(published):.3f} under the published convention")
    assert _tau(own) > 1.25
    assert _tau(own) > 1.05 * _tau(published)

    pair = Pair(target, drafter, trained)
    compared = 0
    for name, lengths in zip(SOME[:4], own, strict=False):
        text = micro.trajectories([PROMPTS[name]], Need(48, frozenset(), 8))[0].tokens
        expected = walk_text(pair, PROMPTS[name], text, chain, max_new_tokens=48)
        if expected.gap > 1e-4:
            assert lengths == expected.accept_lengths
            compared += 1
    assert compared >= 2
