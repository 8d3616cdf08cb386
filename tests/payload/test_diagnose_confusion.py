"""Drafters that were really trained wrong are named for what was wrong; sound ones are never accused.

The rules' thresholds were chosen on the drafters of seed 1; here are those of seed 2 (`tests/drafters`). A training
takes three minutes of one core (`python -m tests.drafters.train`); one is done again here, in short.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drafters.confusion import SHIPPED, TINY, Trained, diagnosed, row, trained
from tests.drafters.train import CAUSES, STEPS, make_pool, train

SEEN, REPORTED = 1, 2
NOT_TOLD = {"causal_block-seed2-step500"}
"""What these prompts do not tell apart from a sound drafter by enough: suspected, first among the candidates."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _in_ci() -> list[Trained]:
    """Returns the finals, and the early ones of the causes that are hardest to see (all: docs/diagnose.md)."""
    hard = {"sound", "causal_block", "layer_minus1"}
    return [one for one in trained(REPORTED) if one.step == max(STEPS) or one.cause in hard]


def _name(one: Trained) -> str:
    return one.folder.name


@pytest.mark.slow
@pytest.mark.parametrize("one", _in_ci(), ids=_name)
def test_the_cause_is_named(
    one: Trained, cache: Path, record_property: Callable[[str, object], None]
) -> None:
    found = diagnosed(one.folder, cache)
    print(row(one.cause, one.seed, one.step, found))
    if one.cause == "sound":
        assert found["verdict"] in {"ok", "undertrained"}, found["sentence"]
    elif one.folder.name in NOT_TOLD:
        assert (found["verdict"], found["cause"]) == ("unknown", None), found["sentence"]
        assert found["candidates"][0]["variant"] == one.cause
    else:
        assert (found["verdict"], found["cause"]) == ("convention", one.cause), found["sentence"]
        assert found["candidates"][0]["variant"] == one.cause
    record_property("compared diagnoses", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_sound_drafter_is_not_accused_at_any_step(name: str, cache: Path) -> None:
    found = diagnosed(TINY / name, cache)
    early = name in {"drafter-b8-untrained", "drafter-b8-early"}
    assert found["verdict"] == ("undertrained" if early else "ok"), found["sentence"]
    assert found["candidates"] == []


def test_every_cause_is_there_at_two_seeds_and_two_steps() -> None:
    for seed in (SEEN, REPORTED):
        for cause in CAUSES:
            steps = {one.step for one in trained(seed) if one.cause == cause}
            assert len(steps) == 2, (cause, seed)
    assert sum(f.stat().st_size for one in trained() for f in one.folder.iterdir()) < 15e6


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"block_position_offset": 1}, "positions_plus1"),
    ({"block_position_offset": -1}, "positions_minus1"),
    ({"hidden_index_offset": 1}, "layer_plus1"),
    ({"hidden_index_offset": -1}, "layer_minus1"),
    ({"label_offset": 1}, "label_shift"),
    ({"hidden_norm": False}, "no_hidden_norm"),
    ({"context": "one_short"}, "context_short"),
    ({"rope_theta": 10000}, "rope_theta"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("convention", "slug"), WRONG_SETTINGS, ids=[slug for _, slug in WRONG_SETTINGS])
def test_a_wrong_setting_of_the_harness_is_named(convention: dict[str, Any], slug: str, cache: Path) -> None:
    found = diagnosed(TINY / "drafter-b8-final", cache, prompts=36, convention=convention)
    assert (found["verdict"], found["cause"]) == ("convention", slug), found["sentence"]
    assert found["candidates"][0]["restores"] is True
    assert "published way" in found["sentence"]


@pytest.mark.slow
def test_a_fresh_training_is_diagnosed(tmp_path: Path, cache: Path) -> None:
    """Trains one of them again, with a tenth of the sequences and for 300 steps (about half a minute)."""
    folder = tmp_path / "fresh"
    train(make_pool(5, 160), CAUSES["label_shift"], seed=5, steps=300, keep={300: folder})
    found = diagnosed(folder, cache)
    assert (found["verdict"], found["cause"]) == ("convention", "label_shift"), found["sentence"]
