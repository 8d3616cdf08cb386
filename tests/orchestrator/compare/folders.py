"""Run folders for tests, written through the contract: what a job leaves, with acceptance lengths we choose."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.compare.columns import Shape
from remote_payload.durable import append_lines, sha256_hex, write_json
from remote_payload.protocol import SAMPLE_SCHEMA, DrafterSpec, Job, Row, State, TargetSpec, build_manifest

SETTINGS: dict[str, Any] = {
    "target_hash": "t" * 64,
    "engine": "replay",
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 0,
    "acceptance": "exact",
    "dtype": "float32",
    "max_new_tokens": 96,
    "stop_ids": [0],
    "template_hash": "",
}


def drafter_hash(label: str) -> str:
    return sha256_hex(f"drafter {label}")


def row(label: str, prompt: str, lengths: Sequence[int], **changes: Any) -> Row:
    """One row; everything that is not said is the same in all rows."""
    values: dict[str, Any] = {
        **SETTINGS,
        "drafter": label,
        "drafter_hash": drafter_hash(label),
        "prompt_id": prompt,
        "prompt_hash": sha256_hex(prompt),
        "dataset": "held-out",
        "turn": 0,
        "sample": 0,
        "shape": "chain",
        "block_size": 8,
        "convention": {},
        "prompt_tokens": 5,
        "output_tokens": max(1, sum(lengths)),
        "stop": "length",
        "accept_lengths": list(lengths),
    }
    return Row(**{**values, **changes})


def walk(label: str, prompt: str, mean: float, longest: int = 8, tokens: int = 96) -> list[int]:
    """Acceptance lengths that cover some tokens: hard prompts are hard for every drafter."""
    rng = random.Random(f"{label} {prompt}")  # noqa: S311
    rate = 1 - 1 / (mean * random.Random(prompt).uniform(0.8, 1.2))  # noqa: S311
    lengths: list[int] = []
    while sum(lengths) < tokens:
        length = 1
        while length < longest and rng.random() < rate:
            length += 1
        lengths.append(length)
    return lengths


def rows_of(label: str, mean: float, prompts: Iterable[int] = range(24), **changes: Any) -> list[Row]:
    """The rows of one drafter over numbered prompts of two datasets."""
    shape = Shape.parse(changes.get("shape", "chain"))
    longest = shape.bound(changes.get("block_size", 8) - 1)
    return [
        row(
            label,
            f"prompt-{number:02d}",
            walk(label, f"prompt-{number:02d}", mean, longest),
            **{"dataset": ("code", "prose")[number % 2], **changes},
        )
        for number in prompts
    ]


def write_run(
    folder: Path,
    rows: Sequence[Row],
    *,
    samples: Iterable[Mapping[str, Any]] = (),
    complete: bool = True,
    state: str = "done",
    specs: Sequence[DrafterSpec] | None = None,
    **job: Any,
) -> Path:
    """Writes the folder of a run that measured these rows."""
    folder.mkdir(parents=True)
    if specs is None:
        found = {(r.drafter, r.drafter_hash): r.convention for r in rows}
        specs = [
            DrafterSpec(label, f"/ckpt/{label}", digest, convention=c) for (label, digest), c in found.items()
        ]
    values: dict[str, Any] = {
        "job_id": folder.name,
        "payload_hash": "p" * 64,
        "kind": "eval",
        "target": TargetSpec("tiny", "/models/target-tiny", "float32"),
        "drafters": list(specs),
        "prompts": "prompts.jsonl",
        "prompts_hash": "s" * 64,
        "suite": "quick",
        **job,
    }
    write_json(folder / "job.json", Job(**values).to_json())
    append_lines(folder / "rows.jsonl", [one.to_json() for one in rows])
    append_lines(folder / "samples.jsonl", samples)
    if complete:
        write_json(folder / "MANIFEST.json", build_manifest(folder))
    write_json(folder / "state.json", State(state).to_json())
    return folder


def sample_record(label: str, draft: Sequence[str], truth: Sequence[str], **changes: Any) -> dict[str, Any]:
    """A line of samples.jsonl; tokens are given as text."""
    return {
        "schema": SAMPLE_SCHEMA,
        "drafter": label,
        "drafter_hash": drafter_hash(label),
        "convention": {},
        "block_size": 8,
        "prompt_id": "prompt-00",
        "prompt_hash": sha256_hex("prompt-00"),
        "dataset": "code",
        "turn": 0,
        "sample": 0,
        "anchor": 32,
        "worst": False,
        "stride": 32,
        "context_ids": [1, 2],
        "context": "if x:\n    ",
        "truth_ids": [_token(text) for text in truth],
        "truth": "".join(truth),
        "truth_pieces": list(truth),
        "draft_ids": [_token(text) for text in draft],
        "draft": "".join(draft),
        "draft_pieces": list(draft),
        "accepted": 0,
        **changes,
    }


def _token(text: str) -> int:
    return int(sha256_hex(text.encode(errors="surrogatepass"))[:8], 16)
