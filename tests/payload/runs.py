"""Jobs for tests that run whole evaluations, and the process that runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remote_payload.drafters.checkpoint import drafter_hash
from remote_payload.drafters.dflash_live import LiveDFlash
from remote_payload.durable import file_sha256, iter_jsonl, write_json
from remote_payload.protocol import DrafterSpec, Job, TargetSpec
from tests.payload.conftest import MODELS, ROOT

__all__ = ["Zygote", "make_job", "rows_of", "samples_of", "with_another_anchor"]


def make_job(
    folder: Path, *, prompts: int = 10, drafters: Sequence[str | Path] = (), **settings: Any
) -> Path:
    """Writes a job's folder: the trained pair, the first prompts of the suite, small limits."""
    folder.mkdir(parents=True)
    lines = (MODELS / "prompts.jsonl").read_text().splitlines(keepends=True)[:prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    chosen = [MODELS / name for name in (drafters or ("drafter-b8-early", "drafter-b8-mid"))]
    job = Job(
        job_id="test",
        payload_hash="",
        kind="eval",
        drafters=[DrafterSpec(path.name, str(path), drafter_hash(path)) for path in chosen],
        prompts="prompts.jsonl",
        prompts_hash=file_sha256(folder / "prompts.jsonl"),
        **{
            "target": TargetSpec("tiny", str(MODELS / "target-tiny"), "float32"),
            "max_new_tokens": 20,
            "shapes": ["chain", "ddtree:8"],
            "samples": 3,
            "sample_stride": 8,
            "device": "cpu",
            "threads": 1,
            **settings,
        },
    )
    write_json(folder / "job.json", job.to_json())
    return folder


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns key -> row without its seconds; a key that is there twice is an error."""
    from remote_payload.protocol import Row

    rows: dict[str, dict[str, Any]] = {}
    for record in iter_jsonl(folder / "rows.jsonl"):
        key = Row.from_json(record).key
        assert key not in rows, f"twice: {key}"
        rows[key] = {name: value for name, value in record.items() if name != "seconds"}
    return rows


def samples_of(folder: Path) -> list[str]:
    """Returns the samples in a fixed order."""
    return sorted(json.dumps(record, sort_keys=True) for record in iter_jsonl(folder / "samples.jsonl"))


def with_another_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives live decoding a bug: its blocks start from another token than the last one committed."""
    real = LiveDFlash.draft
    monkeypatch.setattr(LiveDFlash, "draft", lambda self, token: real(self, (token + 1) % 256))


class Zygote:
    """`zygote.py`, running."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with errors.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.payload.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                cwd=ROOT,
                text=True,
            )

    def run(self, folder: Path, cache: Path, log: Path | None = None, **when: float) -> int:
        """Runs a job to its end, or kills it (`kill_after`, `kill_at`). Returns its exit code, negative: a signal."""
        request: dict[str, Any] = {"folder": str(folder), "cache": str(cache), **when}
        request |= {"log": str(log)} if log else {}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.errors.read_text()
        return int(line)

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
