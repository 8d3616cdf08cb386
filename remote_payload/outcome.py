"""What a run (or one worker's share of it) learnt besides rows; several shares' put together; summary.json."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from remote_payload.durable import iter_jsonl, write_json
from remote_payload.engines.parity import engine_reports
from remote_payload.figures import duplicate_rates
from remote_payload.plan import Refusal
from remote_payload.protocol import SUMMARY_SCHEMA, Job, Row
from remote_payload.summary import bias_notes, overshoot_notes, summarize

__all__ = ["ENGINES", "Outcome", "merged", "write_summary"]

ENGINES = {"replay": ("replay",), "live": ("live",), "both": ("replay", "live")}
"""A job's `engine` -> the engines that run; the first one's rows make the summary's figures."""
_SAME_DRAFTER = {"drafter_hash": "hash", "block_size": "block_size", "convention": "convention"}
"""Fields of a sample -> the fields of a summary's drafter that they have to equal."""
_SUMMED = ("items", "prefill_disagreements")
"""Facts that count a share's own work; all others are the same for every share."""


@dataclass
class Outcome:
    """Refused drafters, notes for readers of the numbers, facts of the run, seconds by phase."""

    refused: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the record of a share's `outcome.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Outcome:
        """Reads a share's `outcome.json`."""
        refused = [Refusal(**entry) for entry in record["refused"]]
        return cls(refused, list(record["notes"]), dict(record["facts"]), dict(record["seconds"]))


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Puts shares together: refusals and notes once each, counts added, the longest time of every phase."""
    whole = Outcome()
    whole.refused = list({refusal.label: refusal for o in outcomes for refusal in o.refused}.values())
    whole.notes = list(dict.fromkeys(note for o in outcomes for note in o.notes))
    for outcome in outcomes:
        for name, value in outcome.facts.items():
            whole.facts[name] = whole.facts.get(name, 0) + value if name in _SUMMED else value
        for name, seconds in outcome.seconds.items():
            whole.seconds[name] = max(seconds, whole.seconds.get(name, 0.0))
    return whole


def write_summary(folder: Path, job: Job, rows: Sequence[Row], outcome: Outcome) -> dict[str, Any]:
    """Writes summary.json: figures derived from rows, and how they were made. Returns what it holds."""
    engines = ENGINES[job.engine]
    by_engine = {e: summarize((row for row in rows if row.engine == e), tail=job.tail) for e in engines}
    drafters = by_engine[engines[0]]
    samples = list(iter_jsonl(folder / "samples.jsonl"))
    for drafter in drafters:
        own = [s for s in samples if all(s[key] == drafter[name] for key, name in _SAME_DRAFTER.items())]
        drafter["adjacent_duplicates"] = duplicate_rates(own)
    reports = engine_reports(rows, folder) if "live" in by_engine else {}
    if len(by_engine) > 1:
        reports["live"] = by_engine["live"]
    notes = [*outcome.notes, *overshoot_notes(drafters)]
    if disagreements := outcome.facts.get("prefill_disagreements"):
        notes.append(
            f"{disagreements} tokens of the recorded continuations are not what one whole forward pass in "
            f"{job.target.dtype} chooses (near ties); the recorded path counts"
        )
    record = {
        "schema": SUMMARY_SCHEMA,
        "job_id": job.job_id,
        "payload_hash": job.payload_hash,
        "suite": job.suite,
        "prompts_hash": job.prompts_hash,
        "target": asdict(job.target),
        "engine": job.engine,
        "max_new_tokens": job.max_new_tokens,
        "tail": job.tail,
        "drafters": drafters,
        "rejected": [asdict(refusal) for refusal in outcome.refused],
        "notes": notes,
        "dialect_notes": bias_notes(drafters),
        "seconds": outcome.seconds,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "threads": torch.get_num_threads(),
        "host": platform.node(),
    }
    summary = record | outcome.facts | reports
    write_json(folder / "summary.json", summary)
    return summary
