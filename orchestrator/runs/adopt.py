"""Runs that another machine started: found in a host's work folder, and put on the record here.

What always holds: the job's folder is all that is needed; nothing on the host is changed; a run that is on the record
here already is taken from there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ResultsError, UsageError
from orchestrator.runs.store import RunStore, Where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.launch import ProcessLauncher
    from orchestrator.runs.store import Run

__all__ = ["adopt"]

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")
"""What `new_job_id` makes: a folder here is called so, and commands to type have it in them."""
_PROMPTS = "prompts.jsonl"
"""The one file that every orch sends along: nothing that a host says chooses the name of a file here."""


def adopt(store: RunStore, launcher: ProcessLauncher, name: str) -> Run:
    """Returns the run of a job on a host, recorded here from now on.

    Args:
        store: the record.
        launcher: of the host that the job is on.
        name: the job's id, a prefix that is its own, its label (the newest that has it), or: last.

    Raises:
        UsageError: there is no such job.
        ResultsError: the job there cannot be read.
    """
    host = launcher.host.name
    there = launcher.jobs()
    job_id = _resolve(there, name, host)
    if not _ID.fullmatch(job_id):
        raise ResultsError(
            f"{host}: the job {job_id!r} has an id that no orch gives",
            f"look at {launcher.entry.workdir}/jobs",
        )
    if (store.folder / job_id).is_dir():
        return store.open(job_id)
    job, files = launcher.describe(job_id)
    if (job.job_id, job.prompts) != (job_id, _PROMPTS) or set(files) != {_PROMPTS}:
        raise ResultsError(
            f"{host}: the folder of job {job_id} holds what no orch wrote there",
            f"look at {launcher.job_dir(job_id)}",
        )
    return store.create(job, Where(host, launcher.entry.workdir), files)


def _resolve(there: Sequence[dict[str, Any]], name: str, host: str) -> str:
    ids = [str(record["job_id"]) for record in there]
    if name in ids:
        return name
    by_age = sorted(there, key=lambda record: float(record.get("created") or 0.0))
    if name == "last" and by_age:
        return str(by_age[-1]["job_id"])
    if labelled := [record for record in by_age if record.get("label") and record["label"] == name]:
        return str(labelled[-1]["job_id"])
    begun = [job_id for job_id in ids if name and job_id.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    hint = f"list them: `orch runs ls --on {host}`"
    if begun:
        raise UsageError(f"{name!r} begins the ids of {len(begun)} jobs on {host}", hint)
    raise UsageError(f"there is no job {name!r} on {host}", hint)
