"""Continuations: kept, checked, extended, and the same in a batch as alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remote_payload.sampling import Sampling
from remote_payload.trajectories import Need, Start, Trajectory, TrajectoryStore, extend
from tests.payload.conftest import PROMPTS, Harness


def _starts(prompts: list[list[int]]) -> list[Start]:
    return [Start(tuple(prompt)) for prompt in prompts]


IDENTITY = {"target": "t", "dtype": "float32"}


def test_a_stored_continuation_comes_back_only_for_its_own_key(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path, IDENTITY)
    trajectory = Trajectory((1, 2), (3, 4), (0.5, 0.25))
    store.save(trajectory)
    assert store.load(Start((1, 2))) == trajectory
    assert store.load(Start((1, 3))) is None
    assert store.load(Start((1, 2), sample=1)) is None
    assert TrajectoryStore(tmp_path, {**IDENTITY, "dtype": "bfloat16"}).load(Start((1, 2))) is None


@pytest.mark.parametrize("damage", ["token", "truncated", "key", "schema"])
def test_a_damaged_file_is_never_used(tmp_path: Path, damage: str) -> None:
    store = TrajectoryStore(tmp_path, IDENTITY)
    store.save(Trajectory((1, 2), (3, 4), (0.5, 0.25)))
    (file,) = tmp_path.rglob("*.json")
    record = json.loads(file.read_text())
    if damage == "token":
        record["tokens"][0] = 9
    elif damage == "key":
        record["prompt"] = [1, 3]
    elif damage == "schema":
        record["schema"] = "orch/trajectory/0"
    text = json.dumps(record)
    file.write_text(text[: len(text) // 2] if damage == "truncated" else text)
    assert store.load(Start((1, 2))) is None


def test_a_longer_need_extends_what_is_there(harness: Harness, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path, IDENTITY)
    prompts = [PROMPTS["o04"], PROMPTS["o12"], PROMPTS["o04"]]
    short = extend(
        harness.target, _starts(prompts), Need(8, frozenset(), 4), Sampling(), store=store, batch_tokens=4096
    )
    assert [len(t.tokens) for t in short] == [12, 12, 12]
    longer = extend(
        harness.target, _starts(prompts), Need(20, frozenset(), 4), Sampling(), store=store, batch_tokens=4096
    )
    fresh = extend(
        harness.target, _starts(prompts), Need(20, frozenset(), 4), Sampling(), store=None, batch_tokens=64
    )
    for a, b, c in zip(short, longer, fresh, strict=True):
        assert b.tokens[:12] == a.tokens
        assert b.tokens == c.tokens
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_what_reaches_far_enough_is_not_generated_again(harness: Harness, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path, IDENTITY)
    need = Need(16, frozenset([10]), 7)
    extend(harness.target, _starts([PROMPTS["o04"]]), need, Sampling(), store=store, batch_tokens=4096)
    # No target at all is needed the second time.
    again = extend(None, _starts([PROMPTS["o04"]]), need, Sampling(), store=store, batch_tokens=4096)  # type: ignore[arg-type]
    assert need.met(again[0].tokens)


def test_the_need_ends_at_a_stop_and_reaches_past_it() -> None:
    need = Need(6, frozenset([9]), 3)
    assert need.output_length([1, 9, 2]) == 2
    assert need.output_length([1, 2, 3, 4, 5, 6, 9]) == 6
    assert not need.met([1, 9, 2, 3])
    assert need.met([1, 9, 2, 3, 4])
    assert not need.met([1, 2, 3, 4, 5, 6, 7, 8])
    assert need.met([1, 2, 3, 4, 5, 6, 7, 8, 9])
