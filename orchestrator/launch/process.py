"""The launcher for a single host: detached processes over SSH, through the supervisor of the pinned release.

What always holds: a job is started and resumed by the release that it names, never by `current`, and only while
that release is what was installed; looking at
a job, ending it and reading its results also works through `current`, when its own release was pruned. Each
operation is one exec request, however many jobs it is about.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, OrchError, UsageError
from orchestrator.hosts import remote
from orchestrator.hosts.packed import unpack
from orchestrator.launch.base import Cancelled, Cursor, Handle, LogPiece, Observation
from remote_payload.durable import ProtocolError, canonical_path
from remote_payload.protocol import Event, Job, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["ProcessLauncher"]

_LAUNCH_S = 90.0
_ASK_S = 60.0
_REMOVE_S = 600.0
_PAST = 1 << 62
"""An offset behind the end of every file: nothing of that file is wanted."""
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


class ProcessLauncher:
    """Jobs as detached processes on one host."""

    def __init__(self, host: Host, entry: HostEntry) -> None:
        self.host = host
        self.entry = entry

    def job_dir(self, job_id: str) -> str:
        """Returns a job's folder on the host."""
        return f"{self.entry.workdir}/jobs/{job_id}"

    def submit(self, job: Job, files: Mapping[str, bytes]) -> tuple[Handle, State]:
        """Starts a job; see `Launcher.submit`."""
        header = {"job": job.to_json(), "files": {name: len(data) for name, data in files.items()}}
        handle = Handle(self.host.name, job.job_id, job.payload_hash)
        reply = self._ask(
            handle,
            ["launch", self.job_dir(job.job_id), *self._rules()],
            stdin=[json.dumps(header).encode() + b"\n", *files.values()],
            timeout=_LAUNCH_S,
            pinned=True,
        )
        return handle, self._state(reply)

    def poll(
        self,
        handles: Sequence[Handle],
        cursors: Mapping[str, Cursor] | None = None,
        *,
        max_bytes: int = 1 << 20,
    ) -> list[Observation]:
        """Looks at jobs in one request; see `Launcher.poll`."""
        if not handles:
            return []
        words = ["observe", *(self.job_dir(handle.job_id) for handle in handles), f"--max-bytes={max_bytes}"]
        for handle in handles:
            cursor = (cursors or {}).get(handle.job_id, Cursor())
            for name, value in cursor._asdict().items():
                words.append(f"--{name}-offset={value}")
        reply = self._ask(handles[0], words)
        try:
            return [
                _observation(handle, record, float(reply["now"]))
                for handle, record in zip(handles, reply["jobs"], strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error

    def cancel(self, handle: Handle, *, grace: float = 10.0) -> Cancelled:
        """Ends a job; see `Launcher.cancel`."""
        words = ["cancel", self.job_dir(handle.job_id), f"--grace={grace}"]
        reply = self._ask(handle, words, timeout=grace + _LAUNCH_S)  # one under way ends first
        still = tuple(str(text) for text in reply.get("still") or ())
        return Cancelled(str(reply["was"]), self._state(reply), still)

    def read_log(self, handle: Handle, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        """Reads a job's log; see `Launcher.read_log`."""
        seen = self.poll([handle], {handle.job_id: Cursor(_PAST, offset, _PAST)}, max_bytes=limit)[0]
        return LogPiece(seen.log, seen.cursor.log, seen.more)

    def resume(self, handle: Handle) -> State:
        """Starts a job again; see `Launcher.resume`."""
        words = ["resume", self.job_dir(handle.job_id), *self._rules()]
        return self._state(self._ask(handle, words, timeout=_LAUNCH_S, pinned=True))

    def jobs(self, *, sizes: bool = False) -> list[dict[str, Any]]:
        """Returns what lies in the host's work folder, also jobs that other machines started.

        Each record has `job_id` and `verdict`, and `fault` or (`state`, `label`, `suite`, `created`); with `sizes` also
        `bytes` and `end`, the mark of its end; `age_s` is how long ago it ended by the host's clock, None if it has not.
        """
        words = ["list", f"{self.entry.workdir}/jobs", *(["--sizes"] if sizes else [])]
        try:
            reply = self._ask(Handle(self.host.name, "", ""), words)
        except HostFailedError as error:
            if (
                error.details.get("kind") == "no_release"
            ):  # nothing was ever pushed there, so nothing was started
                return []
            raise
        try:
            return [{**record, "age_s": _age(record, float(reply["now"]))} for record in reply["jobs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error

    def describe(self, job_id: str) -> tuple[Job, dict[str, bytes]]:
        """Returns the record of a job that is on the host, and the files that were sent with it."""
        reply = self._ask(Handle(self.host.name, job_id, ""), ["describe", self.job_dir(job_id)])
        try:
            files = {canonical_path(name): base64.b64decode(data) for name, data in reply["files"].items()}
            return Job.from_json(reply["job"]), files
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unreadable(error) from error

    def prune(self, ends: Mapping[str, str]) -> list[dict[str, Any]]:
        """Removes ended jobs from the host (job id -> mark of its end); see `supervise.shelf.prune`."""
        words = [
            "prune",
            f"{self.entry.workdir}/jobs",
            *(f"--job={name}={end}" for name, end in ends.items()),
        ]
        return list(self._ask(Handle(self.host.name, "", ""), words, timeout=_REMOVE_S)["jobs"])

    def send(self, handle: Handle, have: Mapping[str, str]) -> Iterator[bytes]:
        """Streams a job's results, less those that `have` (name -> hash) names; `runs.pull` reads it."""
        arguments = {
            "workdir": self.entry.workdir,
            "roots": self._roots(handle, pinned=False),
            "send": self.job_dir(handle.job_id),
            "have": dict(have),
        }
        try:
            yield from unpack(
                remote.stream(self.host, "supervise", arguments, python=self.entry.python, timeout=_ASK_S)
            )
        except HostFailedError as error:
            raise _explained(error, handle) from error

    def _rules(self) -> list[str]:
        """Returns how GPUs are shared on the host, as the supervisor's flags."""
        entry = self.entry
        words = [] if entry.lock_dir is None else [f"--lock-dir={entry.lock_dir}"]
        if entry.gpus is not None:
            words += [f"--gpu={name}" for name in entry.gpus or ("none",)]
        return words if entry.gpu_free is None else [*words, f"--gpu-free={entry.gpu_free}"]

    def _roots(self, handle: Handle, *, pinned: bool) -> list[str]:
        release = f"{self.entry.workdir}/releases/{handle.payload_hash}"
        return [release] if pinned else [release, f"{self.entry.workdir}/current"]

    def _ask(
        self,
        handle: Handle,
        words: Sequence[str],
        *,
        stdin: Sequence[bytes] = (),
        timeout: float = _ASK_S,
        pinned: bool = False,
    ) -> dict[str, Any]:
        arguments = {
            "workdir": self.entry.workdir,
            "roots": self._roots(handle, pinned=pinned),
            "argv": list(words),
            "env": {**_ENVIRONMENT, **self.entry.env},
        }
        try:
            return remote.call(
                self.host,
                "supervise_start" if pinned else "supervise",
                arguments,
                python=self.entry.python,
                stdin=stdin,
                timeout=timeout,
            )
        except HostFailedError as error:
            raise _explained(error, handle) from error

    def _state(self, reply: Mapping[str, Any]) -> State:
        try:
            return State.from_json(reply["state"])
        except (KeyError, TypeError, AttributeError, ProtocolError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> HostFailedError:
        return HostFailedError(
            f"{self.host.name}: the supervisor's reply cannot be read ({error})",
            f"push this orch's payload (`orch push {self.host.name}`) and try again",
        )


def _age(record: Mapping[str, Any], now: float) -> float | None:
    ended = (record.get("state") or {}).get("ended")
    return None if ended is None else max(0.0, now - float(ended))


def _observation(handle: Handle, record: Mapping[str, Any], now: float) -> Observation:
    state = State.from_json(record["state"]) if record["state"] else None
    if "cursor" not in record:
        return Observation(handle, record["verdict"], state, fault=record.get("fault", ""), now=now)
    known = Event.__dataclass_fields__.keys()
    return Observation(
        handle,
        record["verdict"],
        state,
        events=tuple(
            Event(**{k: v for k, v in e.items() if k in known}) for e in record["events"] if "phase" in e
        ),
        log=base64.b64decode(record["log"]),
        new_rows=int(record["new_rows"]),
        cursor=Cursor(**record["cursor"]),
        more=bool(record["more"]),
        left=tuple(record["left"]),
        fault=record.get("fault", ""),
        now=now,
    )


_HINTS = {
    "protocol": "`orch runs cancel {job}` ends what is left of it and sets the broken record aside; what was "
    "measured is kept: then `orch runs pull {job}` or `orch runs resume {job}`",
    "state": "see where it stands: `orch runs show {job}`",
    "absent": "the job's folder is gone from the host; run the eval again: `orch eval`",
    "conflict": "give the new run another label, or wait a second and run the command again",
    "leftover": "end those processes on the host, then run the command again",
    "busy": "wait for the other command to end, then run this one again",
    "launch": "see supervisor.log in the job's folder on {host}, then try again: `orch runs attach {job}`",
}


def _explained(error: HostFailedError, handle: Handle) -> OrchError:
    """Gives what the supervisor refused the next command to type."""
    reason = str(error.details.get("reason", ""))
    if error.details.get("kind") == "damaged":
        hint = f"`orch push {handle.host}` of that version repairs it; nothing was started"
    elif error.details.get("kind") == "no_release":
        hint = f"push it again (`orch push {handle.host}`), or run the eval again with the current one"
    elif reason in _HINTS:
        hint = _HINTS[reason].format(job=handle.job_id, host=handle.host)
    else:
        return error
    kind = UsageError if reason == "state" else HostFailedError  # asked for what makes no sense, or it failed
    return kind(error.message, hint, **error.details)
