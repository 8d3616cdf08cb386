"""Which runs to compare when nobody says: the last eval, its baseline, and the step before.

What always holds: a run is only brought in by itself if its job says the same of everything that acceptance
lengths depend on; anything else has to be asked for by name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.load import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from remote_payload.protocol import Job

__all__ = ["Recorded", "select_last", "select_labels"]


class Recorded(NamedTuple):
    """A run of the local record."""

    folder: Path
    job: Job


class _Step(NamedTuple):
    """A label as a step of a training: `step_0400` is step 400 of `step_`."""

    before: str
    number: int
    after: str


def select_last(newest_first: Sequence[Recorded], baseline: str | None) -> list[Source]:
    """Returns the last eval and, from earlier runs like it, the baseline and the step before its first."""
    evals = [one for one in newest_first if one.job.kind == "eval"]
    if not evals:
        return []
    last, earlier = evals[0], [one for one in evals[1:] if _same_settings(one.job, evals[0].job)]
    present = {spec.label for spec in last.job.drafters}
    sources = [Source(last.folder)]
    wanted = [] if baseline is None or baseline in present else [baseline]
    before = _step_before(present - {baseline}, earlier)
    wanted += [before] if before else []
    for label in wanted:
        run = next((one for one in earlier if any(spec.label == label for spec in one.job.drafters)), None)
        if run is not None:
            sources.append(Source(run.folder, frozenset({label})))
    return sources


def select_labels(newest_first: Iterable[Recorded], label: str) -> Source | None:
    """Returns the newest run that has a drafter of this label, that drafter only."""
    for one in newest_first:
        if one.job.kind == "eval" and any(spec.label == label for spec in one.job.drafters):
            return Source(one.folder, frozenset({label}))
    return None


def _same_settings(job: Job, other: Job) -> bool:
    return _settings(job) == _settings(other)


def _settings(job: Job) -> tuple[object, ...]:
    return (
        job.target.name,
        job.target.dtype,
        job.prompts_hash,
        job.template_hash,
        job.enable_thinking,
        job.max_new_tokens,
        job.stop_ids,
        job.temperature,
        job.top_p,
        job.top_k,
        job.seed,
        job.acceptance,
    )


def _step(label: str) -> _Step | None:
    match = re.fullmatch(r"(.*?)(\d+)(\D*)", label)
    return _Step(match[1], int(match[2]), match[3]) if match else None


def _step_before(present: set[str], earlier: Iterable[Recorded]) -> str | None:
    """The label of the nearest earlier step of the same training, if the last eval is of one training."""
    steps = [step for step in map(_step, present) if step is not None]
    if not steps or len({(step.before, step.after) for step in steps}) > 1:
        return None
    first = min(steps, key=lambda step: step.number)
    labels = {spec.label for one in earlier for spec in one.job.drafters} - present
    known = [(step.number, label) for label in labels if (step := _step(label)) is not None]
    lower = [
        (number, label)
        for number, label in known
        if number < first.number and _step(label) == _Step(first.before, number, first.after)
    ]
    return max(lower)[1] if lower else None
