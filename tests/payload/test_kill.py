"""kill -9 at any moment: nothing durable is lost, repeated or computed again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_payload.durable import iter_jsonl
from remote_payload.protocol import Row
from remote_payload.share import SHARES, none_left
from tests.payload.runs import Zygote, make_job, rows_of, samples_of

MOMENTS = 20


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    process = Zygote(tmp_path_factory.mktemp("zygote") / "stderr")
    yield process
    process.close()


def _durable(folder: Path) -> set[str]:
    """The keys of all whole rows on disk, a worker's that were not merged yet among them."""
    files = [folder / "rows.jsonl", *(folder / SHARES).glob("*/rows.jsonl")]
    return {Row.from_json(record).key for file in files for record in iter_jsonl(file)}


def _batches(log: Path) -> list[set[str]]:
    return [set(json.loads(line)["keys"]) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_killed_at_any_moment_goes_on_as_if_nothing_had_happened(
    zygote: Zygote, tmp_path: Path, workers: int
) -> None:
    settings = {"workers": workers, "batch_tokens": 160, "prompts": 6, "max_new_tokens": 12}
    whole = make_job(tmp_path / "whole", **settings)
    assert zygote.run(whole, tmp_path / "warm") == 0, zygote.errors.read_text()
    again = make_job(tmp_path / "again", **settings)
    started = time.monotonic()
    assert zygote.run(again, tmp_path / "warm", tmp_path / "again.log") == 0
    takes = time.monotonic() - started
    expected, samples = rows_of(whole), samples_of(whole)
    assert len(expected) == 2 * 2 * 6
    assert rows_of(again) == expected
    assert len(_batches(tmp_path / "again.log")) >= 4

    moments = random.Random(20261130 + workers)  # noqa: S311 - test moments
    kept_rows, torn = [], 0
    for moment in range(MOMENTS // workers):
        out = make_job(tmp_path / f"out{moment}", **settings)
        # A third begins with an empty cache, so that continuations are cut off as well.
        cache = tmp_path / (f"cache{moment}" if moment % 3 == 0 else "warm")
        first, second = tmp_path / f"first{moment}.log", tmp_path / f"second{moment}.log"
        # Half of the moments are anywhere in the run, half while rows are written, which takes a part of it.
        when = (
            {"kill_after": moments.uniform(0.0, takes)} if moment % 2 else {"kill_at": moments.randint(1, 20)}
        )
        zygote.run(out, cache, first, **when)
        assert none_left(out, 5.0), "a worker outlived its parent"
        before = _durable(out)
        if moment % 4 == 2 and (out / "rows.jsonl").exists():
            torn += 1
            with (out / "rows.jsonl").open("ab") as stream:
                stream.write(b'{"drafter": "dr')
        old = (out / "rows.jsonl").read_bytes() if (out / "rows.jsonl").exists() else b""
        old = old[: old.rfind(b"\n") + 1]
        assert zygote.run(out, cache, second) == 0, zygote.errors.read_text()
        assert rows_of(out) == expected
        assert samples_of(out) == samples
        assert (out / "rows.jsonl").read_bytes().startswith(old)
        assert not (out / SHARES).exists()
        computed = set().union(*_batches(second))
        assert not computed & before, "durable rows were computed again"
        assert computed | before == set(expected)
        lost = [batch for batch in _batches(first) if batch & computed]
        assert len(lost) <= workers, "more than one batch per worker was repeated"
        kept_rows.append(len(before))
    # Not all before the first row or after the last one.
    assert len(set(kept_rows)) >= 3
    assert any(0 < kept < len(expected) for kept in kept_rows)
    assert torn
