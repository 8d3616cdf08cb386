"""The local record of runs: `runs/<job id>/` beside inventory.yaml, one folder a run.

What always holds:

* A run's folder appears whole (a rename), with everything that is needed to submit it and to find it again
  (`job.json`, its prompts, `where.json`), before anything is started on a host: a client that is killed at
  any moment can come back. What it left half-way is in nobody's way, and is removed by a later command.
* `seen.json` is the last thing known of the job and may be out of date; `pulled.json` says which result
  files were verified, when and from where. Both are replaced atomically. One that cannot be read counts as not
  there (looking again or pulling again writes it anew) and `Run.damage` names it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import ResultsError, UsageError
from orchestrator.runs.locks import new_folder, remove_if_free
from remote_payload.durable import ProtocolError, read_json, sync_directory, write_json
from remote_payload.protocol import Job, State, check_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_T = TypeVar("_T")

__all__ = ["PULLED_SCHEMA", "Pulled", "Run", "RunStore", "Seen", "Where"]

WHERE_SCHEMA = "orch/where/1"
SEEN_SCHEMA = "orch/seen/1"
PULLED_SCHEMA = "orch/pulled/1"
_HALF_WAY = (".new-", ".gone-")
_WRITTEN_BY = re.compile(r"\..+\.([0-9]+)\.[0-9a-f]{8}\.tmp")  # as `durable.write_atomic` names them
_WRITING_S = 1.0


@dataclass(frozen=True)
class Where:
    """Where a run's job was submitted to."""

    host: str
    workdir: str
    launcher: str = "process"
    native_id: str = ""


@dataclass(frozen=True)
class Seen:
    """The last look at a job: its verdict and state, and when (by this machine's clock).

    Of a lost job, `left` are the processes that lived on and `note` is what else the host said.
    """

    verdict: str
    at: float
    state: State | None = None
    note: str = ""
    left: tuple[int, ...] = ()

    @property
    def reason(self) -> str:
        """Why the job stands where it does, in words; empty where there is nothing to say."""
        if self.verdict != "lost":
            return self.state.reason if self.state else ""
        pids = ", ".join(map(str, self.left))
        lives = f"its worker still runs (pid {pids})" if pids else ""
        return "; ".join(part for part in (self.note, lives) if part)


@dataclass(frozen=True)
class Pulled:
    """What was brought back: name -> size and SHA-256 of each verified file; what is wrong, if anything."""

    host: str
    job_dir: str
    at: float
    complete: bool
    files: dict[str, dict[str, Any]]
    problems: list[str]


@dataclass(frozen=True)
class Run:
    """One run in the record."""

    path: Path
    job: Job
    where: Where

    @property
    def job_id(self) -> str:
        """The run's id: its job's."""
        return self.job.job_id

    def seen(self) -> Seen | None:
        """Returns the last look at the job, if there was one that can be read."""
        return _if_sound(self._seen)

    def _seen(self) -> Seen | None:
        path = self.path / "seen.json"
        if not path.exists():
            return None
        record = _read(path, SEEN_SCHEMA)
        try:
            state = State.from_json(record["state"], str(path)) if record.get("state") else None
            left = tuple(int(pid) for pid in record.get("left") or ())
            return Seen(str(record["verdict"]), float(record["at"]), state, str(record.get("note", "")), left)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{path}: no record of a look ({error!r})") from error

    def saw(
        self, verdict: str, state: State | None, note: str | None = None, left: tuple[int, ...] | None = None
    ) -> None:
        """Records a look at the job; a `note` or `left` that this look did not ask for (None) is kept."""
        _remove_torn_writes(self.path)
        before = self.seen()
        same = before if before is not None and before.verdict == verdict else Seen(verdict, 0.0)
        record = {
            "schema": SEEN_SCHEMA,
            "verdict": verdict,
            "at": time.time(),
            "note": same.note if note is None else note,
            "left": same.left if left is None else left,
        }
        write_json(self.path / "seen.json", {**record, "state": state.to_json() if state else None})

    def pulled(self) -> Pulled | None:
        """Returns what was brought back, if anything was and the record of it can be read."""
        return _if_sound(self._pulled)

    def _pulled(self) -> Pulled | None:
        path = self.path / "pulled.json"
        if not path.exists():
            return None
        record = _read(path, PULLED_SCHEMA)
        try:
            found = Pulled(**{key: value for key, value in record.items() if key != "schema"})
        except TypeError as error:
            raise ResultsError(f"{path}: {error}") from error
        if not isinstance(found.files, dict) or not isinstance(found.problems, list):
            raise ResultsError(f"{path}: no record of a pull")
        return found

    def damage(self) -> list[str]:
        """Returns a sentence for each record of this run that is there and cannot be read."""
        found = []
        for read, mend in ((self._seen, "attach"), (self._pulled, "pull")):
            try:
                read()
            except ResultsError as error:
                found.append(f"{error.message}; `orch runs {mend} {self.job_id}` writes it anew")
        return found

    def files(self) -> dict[str, bytes]:
        """Returns what goes to the host with the job."""
        return {self.job.prompts: (self.path / self.job.prompts).read_bytes()}

    def status(self) -> str:
        """Returns where the run stands in one word, from the record alone."""
        seen = self.seen()
        return seen.verdict if seen else "unsubmitted"


def _remove_torn_writes(folder: Path) -> None:
    """Removes the temporary files of those who were killed while they wrote: writing one takes milliseconds."""
    for path in folder.glob(".*.tmp"):
        found = _WRITTEN_BY.fullmatch(path.name)
        with suppress(FileNotFoundError):  # its writer lives, and has just renamed it
            if found and not _lives(int(found[1])) and time.time() - path.stat().st_mtime > _WRITING_S:
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


class RunStore:
    """The runs of one inventory."""

    def __init__(self, inventory_folder: Path) -> None:
        self.folder = inventory_folder / "runs"

    def create(self, job: Job, where: Where, files: Mapping[str, bytes]) -> Run:
        """Records a run before it is submitted; one that somebody else has just recorded is returned as it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        path = self.folder / job.job_id
        temporary = self.folder / f".new-{job.job_id}.{secrets.token_hex(4)}"
        with new_folder(temporary):
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            write_json(temporary / "where.json", {"schema": WHERE_SCHEMA, **asdict(where)})
            write_json(temporary / "job.json", job.to_json())
            try:
                temporary.rename(path)
            except OSError:
                if not path.is_dir() or (there := self.open(job.job_id)).job != job:
                    raise
                return there
        sync_directory(self.folder)
        return Run(path, job, where)

    def _sweep(self) -> None:
        """Removes what interrupted commands have left half-way."""
        for path in [path for path in self.folder.iterdir() if path.name.startswith(_HALF_WAY)]:
            remove_if_free(path)

    def open(self, job_id: str) -> Run:
        """Reads one run by its full id."""
        path = self.folder / job_id
        try:
            job = Job.from_json(read_json(path / "job.json"), str(path / "job.json"))
        except (OSError, ProtocolError) as error:
            raise ResultsError(
                f"the run in {path} cannot be read: {error}", "move that folder away if you do not need it"
            ) from error
        record = _read(path / "where.json", WHERE_SCHEMA)
        try:
            where = Where(**{key: value for key, value in record.items() if key != "schema"})
        except TypeError as error:
            raise ResultsError(f"{path / 'where.json'}: {error}") from error
        return Run(path, job, where)

    def all(self) -> tuple[list[Run], list[str]]:
        """Returns (the runs, oldest first; one sentence for each folder that cannot be read)."""
        runs, faults = [], []
        for job_id in self._ids():
            try:
                runs.append(self.open(job_id))
            except ResultsError as error:
                faults.append(error.message)
        return sorted(runs, key=lambda run: (run.job.created, run.job_id)), faults

    def resolve(self, name: str) -> Run:
        """Finds a run by `last`, its id, a label (the newest run that has it), or a prefix that is its own."""
        ids = self._ids()
        if not ids:
            raise UsageError(f"there are no runs in {self.folder}", "start one: `orch eval --ckpt REF`")
        if name in ids:
            return self.open(name)
        runs, _ = self.all()
        if name == "last" and runs:
            return runs[-1]
        if labelled := [run for run in runs if run.job.label and run.job.label == name]:
            return labelled[-1]
        begun = [job_id for job_id in ids if name and job_id.startswith(name)]
        if len(begun) == 1:
            return self.open(begun[0])
        if begun:
            several = ", ".join(begun[:5])
            raise UsageError(f"{name!r} begins the ids of {len(begun)} runs: {several}", "give more of it")
        raise UsageError(f"there is no run {name!r}", "list them: `orch runs ls`")

    def remove(self, run: Run) -> None:
        """Removes a run's local record; what is on the host stays."""
        doomed = run.path.with_name(f".gone-{run.job_id}.{secrets.token_hex(4)}")
        run.path.rename(doomed)
        with suppress(FileNotFoundError):  # another command takes it for a leftover, and helps
            shutil.rmtree(doomed)

    def _ids(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _if_sound(read: Callable[[], _T | None]) -> _T | None:
    try:
        return read()
    except ResultsError:  # `Run.damage` says it; every command that shows runs does
        return None


def _read(path: Path, schema: str) -> dict[str, Any]:
    try:
        record = read_json(path)
        check_schema(record, schema, str(path))
    except ProtocolError as error:
        raise ResultsError(
            str(error), "this file is written by orch; if a newer orch wrote it, update this one"
        ) from error
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    return dict(record)
