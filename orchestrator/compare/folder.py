"""A run's folder: what the job was, how far it came, and whether its rows are those of its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.compare.digest import Digest, read_digest
from orchestrator.errors import ResultsError
from remote_payload.durable import ProtocolError, read_json
from remote_payload.proof import fault
from remote_payload.protocol import TERMINAL_STATES, Job, State, verify_manifest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Run", "read_rows", "read_run"]


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it. `state` is empty where no supervisor kept one, `lost` where it was; `differs` is
    what the run found against its own engines, in a sentence, empty if nothing.
    """

    folder: Path
    job: Job
    state: str
    complete: bool
    listed: dict[str, Any] | None = None
    """Size and SHA-256 of the rows by the manifest; None without one."""
    differs: str = ""

    @property
    def name(self) -> str:
        """The job's id."""
        return self.job.job_id


def read_run(folder: Path) -> Run:
    """Reads what a run was and whether it is complete; its rows are not looked at.

    Raises:
        ResultsError: no job.json, or a file of another version.
    """
    if not (folder / "job.json").is_file():
        raise ResultsError(
            f"{folder}: not the folder of a run (no job.json)",
            "`orch runs ls` lists the runs; a folder has to hold job.json and rows.jsonl",
        )
    try:
        job = Job.from_json(read_json(folder / "job.json"), str(folder / "job.json"))
        state_file, manifest_file = folder / "state.json", folder / "MANIFEST.json"
        state = State.from_json(read_json(state_file), str(state_file)).state if state_file.is_file() else ""
        state = state if state in TERMINAL_STATES else _last_seen(folder) or state
        whole = manifest_file.is_file()
        listed = _listed(folder, read_json(manifest_file)) if whole else None
    except ProtocolError as error:
        raise ResultsError(str(error), "pull the run again: `orch runs pull RUN`") from error
    return Run(folder, job, state, whole and state in ("", "done"), listed, _differs(folder, job))


def read_rows(run: Run) -> Digest:
    """Returns the rows of a run, which are those of its manifest if it has one.

    Raises:
        ResultsError: they are not, or a row cannot be; the message has file and line.
    """
    rows, again = run.folder / "rows.jsonl", f"pull it again: `orch runs pull {run.name}`"
    if run.listed is not None and not rows.is_file():
        raise ResultsError(f"{run.folder}: rows.jsonl is missing", again)
    try:
        digest = read_digest(run.folder)
    except ProtocolError as error:
        problems = verify_manifest(run.folder, {"files": {"rows.jsonl": run.listed}}) if run.listed else []
        if problems:
            raise ResultsError(f"{run.folder}: {'; '.join(problems)}; {error}", again) from error
        raise ResultsError(str(error), f"{again}; if the line stays, the payload wrote it so") from error
    if run.listed is not None:
        if digest.size != run.listed["size"]:
            said = f"has {digest.size} bytes, its manifest says {run.listed['size']}"
            raise ResultsError(f"{run.folder}: rows.jsonl {said}", again)
        if digest.sha256 != run.listed["sha256"]:
            raise ResultsError(f"{run.folder}: rows.jsonl has another hash than its manifest", again)
    return digest


def _differs(folder: Path, job: Job) -> str:
    """Returns what the summary of a run that decoded live says against it."""
    if job.engine == "replay" or not (folder / "summary.json").is_file():
        return ""
    try:
        summary = read_json(folder / "summary.json")
    except ProtocolError:
        return ""  # `orch runs show` names what is wrong with it; no figure here comes from it
    return fault(summary) if isinstance(summary, dict) else ""


def _last_seen(folder: Path) -> str:
    """Returns what the client last saw of a job whose own record has no end (it may be lost); empty if unknown."""
    path = folder / "seen.json"
    try:
        record = read_json(path)
    except (OSError, ProtocolError):
        return ""  # no client kept one, or `orch runs ls` names what is wrong with it
    verdict = record.get("verdict") if isinstance(record, dict) else None
    return verdict if isinstance(verdict, str) else ""


def _listed(folder: Path, manifest: Any) -> dict[str, Any] | None:
    """What the manifest says of the rows; None if the job left none."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise ProtocolError(f"{folder / 'MANIFEST.json'}: not a manifest")
    entry = files.get("rows.jsonl")
    if not entry:
        return None
    if not isinstance(entry, dict) or not {"size", "sha256"} <= entry.keys():
        raise ProtocolError(f"{folder / 'MANIFEST.json'}: rows.jsonl has no size and hash")
    return entry
