"""Where numbers come from, and in what the runs behind them differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Diagnosis", "DrafterProvenance", "FieldDifference", "Provenance", "RunProvenance"]


@dataclass(frozen=True)
class FieldDifference:
    """A field in which the runs differ: each value with the runs that have it.

    `allowed`: acceptance lengths depend on it, and it was overlooked on request. Otherwise they do not depend
    on it (payload, host, versions) and it is told for the record.
    """

    field: str
    allowed: bool
    values: tuple[tuple[Any, tuple[str, ...]], ...]


@dataclass(frozen=True)
class DrafterProvenance:
    """A drafter of a run: where it came from and what it was."""

    label: str
    hash: str
    source: str
    step: int | None
    convention: dict[str, Any]
    assumed: bool


@dataclass(frozen=True)
class RunProvenance:
    """What a run was. Times are seconds since the epoch; texts and dicts are empty where nothing is known."""

    name: str
    state: str
    complete: bool
    created: float
    host: str
    device: str
    gpus: tuple[str, ...]
    payload_hash: str
    versions: dict[str, str]
    target: dict[str, Any]
    suite: str
    prompts_hash: str
    shapes: tuple[str, ...]
    engine: str
    decoding: dict[str, Any]
    """max_new_tokens, temperature, top_p, top_k, seed, samples_per_prompt, acceptance."""
    drafters: tuple[DrafterProvenance, ...]


@dataclass(frozen=True)
class Provenance:
    """Where every number comes from. `command` prints the same comparison again."""

    command: str
    orch_version: str
    runs: tuple[RunProvenance, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What a run that diagnosed a drafter says of it: a record of `orch/diagnose/1`, as it was written."""

    run: str
    label: str
    drafter_hash: str
    record: dict[str, Any]
