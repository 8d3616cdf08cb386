"""Where the numbers come from: what each run was, in what runs differ beyond acceptance, the command again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from orchestrator import __version__
from orchestrator.compare.folder import read_run
from orchestrator.compare.model import (
    Diagnosis,
    DrafterProvenance,
    FieldDifference,
    Provenance,
    RunProvenance,
)
from orchestrator.errors import ResultsError
from remote_payload.durable import ProtocolError, read_json
from remote_payload.protocol import State, check_schema
from remote_payload.vocabulary import DIAGNOSE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.compare.folder import Run

__all__ = ["command_line", "differing_origins", "origins", "read_diagnoses"]

_DECODING = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "samples_per_prompt",
    "acceptance",
)


def origins(runs: Sequence[Run], command: str) -> Provenance:
    """Returns what is known of the runs.

    Raises:
        ResultsError: a record in a run's folder cannot be read.
    """
    return Provenance(command, __version__, tuple(map(_run, runs)))


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command with these arguments as one types it into a shell."""
    return shlex.join(["orch", "compare", *arguments])


def differing_origins(runs: Sequence[RunProvenance]) -> tuple[FieldDifference, ...]:
    """Returns where the runs' payloads, hosts, devices and versions differ: told, never refused."""
    versions = list(dict.fromkeys(name for run in runs for name in run.versions))
    fields: dict[str, list[str]] = {
        "payload": [run.payload_hash[:12] for run in runs],
        "host": [run.host for run in runs],
        "device": [" ".join((run.device, *run.gpus)) for run in runs],
        **{name: [run.versions.get(name, "") for run in runs] for name in versions},
    }
    found = []
    for field, values in fields.items():
        groups: dict[str, list[str]] = {}
        for run, value in zip(runs, values, strict=True):
            groups.setdefault(value, []).append(run.name)
        if len(groups) > 1:
            found.append(
                FieldDifference(field, False, tuple((v, tuple(names)) for v, names in groups.items()))
            )
    return tuple(found)


def read_diagnoses(runs: Sequence[Run], hashes: Collection[str]) -> tuple[Diagnosis, ...]:
    """Returns the last diagnosis (`diagnosis.json`) of each of some drafters.

    They are looked for in the folders of the runs and, where those are in the local record, of all runs there:
    a diagnosis is a run of its own.

    Args:
        runs: the runs of the comparison.
        hashes: its drafters.

    Raises:
        ResultsError: one is no record of `orch/diagnose/1`.
    """
    folders = {run.folder: None for run in runs}
    for record in dict.fromkeys(run.folder.parent for run in runs if (run.folder / "where.json").is_file()):
        folders.update(dict.fromkeys(path.parent for path in sorted(record.glob("*/diagnosis.json"))))
    found: dict[str, tuple[float, Diagnosis]] = {}
    for folder in folders:
        if (folder / "diagnosis.json").is_file():
            created, diagnosis = _diagnosis(read_run(folder))
            if diagnosis.drafter_hash in hashes:
                old = found.get(diagnosis.drafter_hash)
                if old is None or old[0] <= created:
                    found[diagnosis.drafter_hash] = (created, diagnosis)
    return tuple(diagnosis for _, diagnosis in found.values())


def _diagnosis(run: Run) -> tuple[float, Diagnosis]:
    record = _record(run, "diagnosis.json") or {}
    try:
        check_schema(record, DIAGNOSE_SCHEMA, str(run.folder / "diagnosis.json"))
    except ProtocolError as error:
        raise ResultsError(str(error), "move the file away, or make the diagnosis again") from error
    spec, said = run.job.drafters[0], record.get("drafter")
    label, digest = (said.get("label"), said.get("hash")) if isinstance(said, dict) else (None, None)
    if not (isinstance(label, str) and isinstance(digest, str)):  # a record that does not tell its drafter
        label, digest = spec.label, spec.hash
    return run.job.created, Diagnosis(run.name, label, digest, record)


def _run(run: Run) -> RunProvenance:
    job, summary, state = run.job, _summary(run), _state(run)
    versions = summary.get("versions")
    return RunProvenance(
        name=run.name,
        state=run.state,
        complete=run.complete,
        created=job.created,
        host=(state.host if state else "") or str(summary.get("host") or ""),
        device=str(summary.get("device") or ""),
        gpus=tuple(state.gpu_uuids) if state else (),
        payload_hash=job.payload_hash,
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        target={
            "name": job.target.name,
            "path": job.target.path,
            "dtype": job.target.dtype,
            "attn": job.target.attn,
        },
        suite=job.suite,
        prompts_hash=job.prompts_hash,
        shapes=tuple(job.shapes),
        engine=job.engine,
        decoding={name: getattr(job, name) for name in _DECODING},
        drafters=tuple(
            DrafterProvenance(d.label, d.hash, d.source or d.path, d.step, d.convention, d.assumed)
            for d in job.drafters
        ),
    )


def _summary(run: Run) -> dict[str, Any]:
    try:
        return _record(run, "summary.json") or {}
    except ResultsError:
        return {}  # `orch runs show` names what is wrong with it; device and versions stay unknown here


def _state(run: Run) -> State | None:
    record = _record(run, "state.json")
    return None if record is None else State.from_json(record, str(run.folder / "state.json"))


def _record(run: Run, name: str) -> dict[str, Any] | None:
    path = run.folder / name
    try:
        record = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ProtocolError) as error:
        raise ResultsError(
            f"{path} cannot be read: {error}", f"pull it again: `orch runs pull {run.name}`"
        ) from error
    if not isinstance(record, dict):
        raise ResultsError(f"{path}: not a JSON object", f"pull it again: `orch runs pull {run.name}`")
    return record
