"""Live decoding alone keeps samples too: at the same anchors as replay, drafted from what it saw itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_payload.durable import iter_jsonl, read_json
from remote_payload.engines.live import verify as verifying
from remote_payload.engines.live.rows import DetailsFile
from remote_payload.evaluate import run_job
from remote_payload.protocol import Job, row_key
from tests.payload.runs import make_job, rows_of


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _run(folder: Path, cache: Path, code: int = 0) -> list[dict[str, Any]]:
    assert run_job(Job.from_json(read_json(folder / "job.json")), folder, cache) == code
    return list(iter_jsonl(folder / "samples.jsonl"))


def _job(folder: Path, engine: str, **settings: Any) -> Path:
    plain: dict[str, Any] = {"prompts": 4, "samples": 3, "sample_stride": 4, "max_new_tokens": 16}
    return make_job(folder, **{**plain, "engine": engine, **settings})


def _in_order(samples: list[dict[str, Any]], engine: str) -> list[dict[str, Any]]:
    assert {sample["engine"] for sample in samples} == {engine}
    keys = ("drafter", "prompt_id", "turn", "sample", "anchor", "worst")
    bare = [{k: v for k, v in sample.items() if k != "engine"} for sample in samples]
    return sorted(bare, key=lambda sample: [sample[key] for key in keys])


@pytest.mark.parametrize("shapes", [["ddtree:4", "chain"], ["ddtree:4"]], ids=str)
def test_samples_of_live_decoding_are_those_of_replay(tmp_path: Path, cache: Path, shapes: list[str]) -> None:
    """Also where the chain, whose rounds say which are the worst, was not asked for; it gets no row."""
    found = {e: _run(_job(tmp_path / e, e, shapes=shapes), cache) for e in ("replay", "live", "both")}
    expected = _in_order(found["replay"], "replay")
    assert _in_order(found["live"], "live") == expected
    assert _in_order(found["both"], "replay") == expected
    assert len({sample["prompt_id"] for sample in expected}) == 3
    assert {sample["worst"] for sample in expected} == {False, True}
    assert {row["shape"] for row in rows_of(tmp_path / "live").values()} == set(shapes)
    duplicates = read_json(tmp_path / "live" / "summary.json")["drafters"][0]["adjacent_duplicates"]
    assert duplicates == read_json(tmp_path / "replay" / "summary.json")["drafters"][0]["adjacent_duplicates"]
    before = (tmp_path / "live" / "samples.jsonl").read_bytes()
    _run(tmp_path / "live", cache)
    assert (tmp_path / "live" / "samples.jsonl").read_bytes() == before


def test_samples_end_where_live_decoding_leaves_the_targets_own_text(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many: dict[str, Any] = {"shapes": ["chain"], "prompts": 8, "samples": 8, "max_new_tokens": 24}
    whole = _run(_job(tmp_path / "whole", "live", **many), cache)
    monkeypatch.setattr(verifying, "keep_path", lambda *_: None)  # rejected tokens stay in the cache
    broken = _run(_job(tmp_path / "broken", "live", **many), cache, code=1)
    details = DetailsFile(tmp_path / "broken").load()
    ends = {
        (row["drafter"], row["prompt_id"]): details[row_key(row)].divergence
        for row in rows_of(tmp_path / "broken").values()
    }
    assert any(ends.values())
    for sample in broken:
        end = ends[sample["drafter"], sample["prompt_id"]]
        assert end is None or sample["anchor"] < end.position
    kept = [s for s in broken if not s["worst"]]
    assert all(sample in whole for sample in kept)
    assert 0 < len(kept) < len([s for s in whole if not s["worst"]])
