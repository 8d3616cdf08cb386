"""The job folders of a work folder as things that are kept: listed with their sizes, described whole, removed.

What always holds: a job is removed only if its own record says that it has ended and its end is still the one that the
asker has seen (by the hash of its manifest), while nobody can start it; it is renamed out of sight first, so that no
half of a job is ever found under its name; what an interrupted removal left is removed by the next one.
"""

from __future__ import annotations

import base64
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_payload import durable, protocol
from remote_payload.supervise import processes
from remote_payload.supervise.folder import JobFolder, SuperviseError, lock, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["describe", "listing", "prune"]

_GONE = ".gone-"


def disk_use(path: Path) -> int:
    """Returns the bytes that a folder takes on its disk; what vanishes meanwhile counts nothing."""
    total = 0
    for one in (path, *path.rglob("*")):
        try:
            total += one.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _end_mark(folder: JobFolder) -> str:
    """Returns what tells this end of a job from every other: the hash of its manifest; empty if it wrote none."""
    if not folder.manifest.is_file():
        return ""
    return durable.sha256_hex(durable.canonical_json(durable.read_json(folder.manifest)))


def listing(jobs: Path, *, sizes: bool = False) -> list[dict[str, Any]]:
    """Returns the jobs of a work folder, oldest first; one that cannot be read is listed with its fault.

    Args:
        jobs: the folder of the job folders.
        sizes: also what each takes on the disk, and the mark of its end (see `prune`).
    """
    found = []
    for path in sorted(jobs.iterdir()) if jobs.is_dir() else []:
        if path.name.startswith(".") or not path.is_dir():
            continue
        folder = JobFolder(path)
        entry: dict[str, Any] = {"job_id": path.name, "dir": str(path)}
        try:
            job, state = folder.job(), folder.state()
            if sizes:
                entry |= {"bytes": disk_use(path), "end": _end_mark(folder)}
        except (OSError, durable.ProtocolError, SuperviseError) as error:
            found.append({**entry, "verdict": "broken", "fault": str(error)})
            continue
        entry |= {"verdict": verdict(state), "state": state.to_json() if state else None}
        entry |= {"label": job.label, "kind": job.kind, "suite": job.suite}
        found.append({**entry, "payload_hash": job.payload_hash, "created": job.created})
    return found


def describe(folder: JobFolder) -> dict[str, Any]:
    """Returns what a client needs to record a job that another one started: its record and the files sent with it."""
    job = folder.job()
    prompts = folder.path / durable.canonical_path(job.prompts)
    data = base64.b64encode(prompts.read_bytes()).decode("ascii")
    return {"job_id": folder.job_id, "job": job.to_json(), "files": {job.prompts: data}}


def prune(jobs: Path, wanted: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Removes jobs that have ended. Returns for each what it freed in bytes, or why it was kept.

    Args:
        jobs: the folder of the job folders.
        wanted: (job id, the mark of its end as `listing` gave it).
    """
    for leftover in jobs.glob(f"{_GONE}*"):
        _clear(leftover)
    done = []
    for job_id, end in wanted:
        try:
            done.append({"job_id": job_id, "freed": _remove(jobs, job_id, end), "kept": ""})
        except (OSError, durable.ProtocolError, SuperviseError) as error:
            done.append({"job_id": job_id, "freed": 0, "kept": str(error)})
    return done


def _remove(jobs: Path, job_id: str, end: str) -> int:
    folder = JobFolder(jobs / durable.canonical_path(job_id))
    if "/" in job_id or job_id.startswith(".") or not folder.path.is_dir():
        raise SuperviseError("absent", f"no job {job_id} in {jobs}")
    with lock(folder.launch_lock) as unstarted, lock(folder.lock_file) as unsupervised:
        if not (unstarted and unsupervised):
            raise SuperviseError("busy", f"job {job_id} is being started or supervised")
        now = folder.found()
        if now not in protocol.TERMINAL_STATES:
            raise SuperviseError("state", f"job {job_id} is {now}: it has not come to its end")
        if processes.tagged(job_id):
            raise SuperviseError("leftover", f"processes of job {job_id} are still there")
        if _end_mark(folder) != end:
            raise SuperviseError("changed", f"job {job_id} has come to another end since it was looked at")
        freed = disk_use(folder.path)
        gone = jobs / f"{_GONE}{job_id}"
        folder.path.rename(gone)
    _clear(gone)
    return freed


def _clear(path: Path) -> None:
    """Removes a folder, although another prune may be removing the same one: it asked for that and lost its link."""
    while path.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
