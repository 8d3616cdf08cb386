"""A job's folder as the supervisor's commands see it: made whole or not at all, one writer of its state.

What always holds:

* A job's folder appears by a rename, with `job.json` and its files complete.
* Whoever holds the lock on `.lock` is the job's supervisor, or stands in for one that is dead; nobody else
  writes `state.json`. The kernel frees the lock when its holder dies, however it dies.
* A job whose state is not final and whose supervisor (boot id, pid, start time) is gone is `lost`. A late
  heartbeat alone never means that.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from remote_payload import durable, protocol
from remote_payload.supervise import disk, processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = [
    "BROKEN",
    "RESUMABLE",
    "JobFolder",
    "SuperviseError",
    "identity",
    "lock",
    "read_request",
    "verdict",
]

RESUMABLE = frozenset({"failed", "lost", "timeout", "cancelled", "preempted"})
BROKEN = "broken"
"""The verdict on a job whose state cannot be read."""
_HEADER_LIMIT = 64 << 20
_PIECE = 1 << 20


class SuperviseError(Exception):
    """A command could not do what was asked; `kind` is one word for a program, the text is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def lock(path: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Holds an exclusive lock on a file, made if need be; yields False if another holds it for `wait` s."""
    with path.open("ab") as stream:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


class JobFolder:
    """The files of one job by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_id = path.name
        self.job_file = path / "job.json"
        self.state_file = path / "state.json"
        self.events = path / "events.jsonl"
        self.rows = path / "rows.jsonl"
        self.log = path / "worker.log"
        self.supervisor_log = path / "supervisor.log"
        self.summary = path / "summary.json"
        self.diagnosis = path / "diagnosis.json"
        self.manifest = path / "MANIFEST.json"
        self.cancel = path / "cancel"
        self.lock_file = path / ".lock"
        self.launch_lock = path / ".launch.lock"

    def job(self) -> protocol.Job:
        """Reads what is to be run."""
        if not self.job_file.is_file():
            raise SuperviseError("absent", f"no job in {self.path}")
        return protocol.Job.from_json(durable.read_json(self.job_file), str(self.job_file))

    def created(self) -> float:
        """Returns when the job was made, as far as its record can be read; 0 if not."""
        try:
            return self.job().created
        except (durable.ProtocolError, SuperviseError, OSError):
            return 0.0

    def state(self) -> protocol.State | None:
        """Reads where the job stands; None before its supervisor said anything."""
        if not self.state_file.exists():
            return None
        if not self.state_file.is_file():
            raise durable.ProtocolError(f"{self.state_file}: not a file")
        return protocol.State.from_json(durable.read_json(self.state_file), str(self.state_file))

    def found(self) -> str:
        """Returns the verdict on the job, `broken` if its state cannot be read."""
        try:
            return verdict(self.state())
        except durable.ProtocolError:
            return BROKEN

    def is_supervised(self) -> bool:
        """Says whether somebody holds the job's lock: the word of the kernel, whatever the files say."""
        with lock(self.lock_file) as held:
            return not held

    def set_broken_state_aside(self) -> None:
        """Renames a state that cannot be read to `state.json.broken`, so that a new one can be written."""
        if self.found() == BROKEN:
            aside = self.state_file.with_name(f"{self.state_file.name}.{BROKEN}")
            if aside.is_dir():
                shutil.rmtree(aside)
            self.state_file.replace(aside)

    def write_state(self, state: protocol.State) -> None:
        """Replaces the state. Only for the holder of `lock_file`."""
        durable.write_json(self.state_file, state.to_json())

    def seal(self, state: protocol.State) -> None:
        """Ends a job in the order of the contract: whole lines, manifest, final state.

        The job's reserve makes room for it; a disk that is full all the same is asked for some seconds.
        """
        disk.give_back(self.path)
        final = replace(state, ended=time.time(), heartbeat=time.time(), queue_position=None)
        disk.insist(lambda: self._write_end(final))

    def _write_end(self, final: protocol.State) -> None:
        for name in ("rows.jsonl", "samples.jsonl", "events.jsonl"):
            durable.trim_torn_line(self.path / name)
        durable.write_json(self.manifest, protocol.build_manifest(self.path))
        self.write_state(final)


def identity(state: protocol.State) -> processes.Identity:
    """Returns who supervises (or supervised) a job."""
    return processes.Identity(state.boot_id or "", state.pid or 0, state.pid_started or "")


def verdict(state: protocol.State | None) -> str:
    """Returns the state as an observer sees it: its own word, or `unstarted`, or `lost`."""
    if state is None:
        return "unstarted"
    if state.state in protocol.TERMINAL_STATES or processes.is_alive(identity(state)):
        return state.state
    return "lost"


def fresh_state(created: float, before: protocol.State | None) -> protocol.State:
    """Returns the first state of a supervisor that starts now: this process. `created`: 0 if not known."""
    me = processes.identity_of(os.getpid())
    now = time.time()
    return protocol.State(
        state="queued",
        pid=me.pid,
        pid_started=me.started,
        boot_id=me.boot_id,
        host=socket.gethostname(),
        created=before.created if before else (created or now),
        heartbeat=now,
    )


# --------------------------------------------------------------------------- making a folder


def read_request(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, int]]:
    """Reads a launch's header: one JSON line `{"job": {...}, "files": {name: size}}`; the bytes follow."""
    line = stream.readline(_HEADER_LIMIT)
    try:
        header = json.loads(line)
        job, files = header["job"], header["files"]
        job_record = dict(protocol.Job.from_json(job, "the launch's job").to_json())
        sizes = {durable.canonical_path(name): int(size) for name, size in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SuperviseError("request", f"the launch's header cannot be read: {error}") from error
    return job_record, sizes


def _copy(stream: IO[bytes], path: Path, size: int) -> None:
    with durable.naming(path), path.open("wb") as out:
        left = size
        while left:
            piece = stream.read(min(left, _PIECE))
            if not piece:
                raise SuperviseError(
                    "request", f"the launch ended {left} bytes before the end of {path.name}"
                )
            out.write(piece)
            left -= len(piece)
        out.flush()
        os.fsync(out.fileno())


def _sweep(jobs: Path, job_id: str) -> None:
    """Removes what launches of this job that were cut off left behind."""
    for leftover in jobs.glob(f".new-{job_id}.*"):
        pid = leftover.name.rpartition(".")[2]
        if not pid.isdecimal() or processes.start_time(int(pid)) is None:
            shutil.rmtree(leftover, ignore_errors=True)


def _meet(folder: JobFolder, job: Mapping[str, Any]) -> None:
    """Sees that the folder which is there is this job's; a `job.json` that cannot be read is written anew."""
    try:
        there = folder.job().to_json()
    except durable.ProtocolError:
        durable.write_json(folder.job_file, job)
        return
    if durable.canonical_json(there) != durable.canonical_json(job):
        raise SuperviseError("conflict", f"{folder.path} holds another job of that id")


def create(folder: JobFolder, job: Mapping[str, Any], files: Mapping[str, int], stream: IO[bytes]) -> bool:
    """Makes the job's folder from a launch's bytes. Returns False if the same job is there already.

    Raises:
        SuperviseError: another job has that id, or the bytes ended early (then nothing is left).
    """
    if job["job_id"] != folder.job_id:
        raise SuperviseError("request", f"job {job['job_id']} cannot be launched in {folder.path}")
    jobs = folder.path.parent
    jobs.mkdir(parents=True, exist_ok=True)
    _sweep(jobs, folder.job_id)
    temporary = jobs / f".new-{folder.job_id}.{os.getpid()}"
    temporary.mkdir()
    try:
        for name, size in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(stream, temporary / name, size)
        durable.write_json(temporary / "job.json", job)
        try:
            temporary.rename(folder.path)
        except OSError:
            if not folder.path.is_dir():
                raise
            _meet(folder, job)
            return False
        durable.sync_directory(jobs)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
