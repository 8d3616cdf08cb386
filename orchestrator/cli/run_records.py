"""A run as the JSON documents and the tables show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.common import emit_json

if TYPE_CHECKING:
    from orchestrator.runs import Pulled, Run

__all__ = ["RUN_SCHEMA", "describe", "emit_run"]

RUN_SCHEMA = "orch/run/1"


def describe(run: Run, fault: str | None = None) -> dict[str, Any]:
    """Returns a run as the JSON documents show it."""
    seen, pulled = run.seen(), run.pulled()
    return {
        "run": run.job_id,
        "label": run.job.label,
        "host": run.where.host,
        "state": "unreachable" if fault else run.status(),
        "last_known_state": run.status(),
        "fault": fault or "",
        "reason": seen.reason if seen else "",
        "queue_position": seen.state.queue_position if seen and seen.state else None,
        "gpus": seen.state.gpu_uuids if seen and seen.state else [],
        "created": run.job.created,
        "suite": run.job.suite,
        "target": run.job.target.name,
        "shapes": run.job.shapes,
        "drafters": [drafter.label for drafter in run.job.drafters],
        "payload_hash": run.job.payload_hash,
        "folder": str(run.path),
        "pulled": None if pulled is None else ("complete" if pulled.complete else "incomplete"),
        "results": _results(pulled),
        "problems": pulled.problems if pulled else [],
    }


def _results(pulled: Pulled | None) -> str | None:
    """complete, incomplete, or none: everything there was is here, and neither rows nor a diagnosis among it."""
    if pulled is None:
        return None
    if not pulled.complete:
        return "incomplete"
    return "complete" if {"rows.jsonl", "diagnosis.json"} & pulled.files.keys() else "none"


def emit_run(run: Run, **more: Any) -> None:
    emit_json({"schema": RUN_SCHEMA, **describe(run), **more})
