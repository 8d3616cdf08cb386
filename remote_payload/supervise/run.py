"""The supervisor: owns one worker process from the queue to the final record.

What always holds:

* Only this process writes `state.json` while it lives; it holds the job's lock.
* The worker has its own session and the job's tag; when the job ends, nothing that carries the tag is left.
* The end is written in this order: whole lines in the result files, `MANIFEST.json`, the final `state.json`.
  That holds for failed, cancelled and timed-out jobs as well.
* A cancel request is the file `cancel` in the job's folder, or TERM to this process.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_payload import proof, protocol
from remote_payload.supervise import disk, processes
from remote_payload.supervise.folder import JobFolder, SuperviseError, fresh_state, lock
from remote_payload.supervise.launch import job_environment, payload_command
from remote_payload.supervise.slots import Lease, WorkdirLease

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["GRACE_S", "run"]

GRACE_S = 10.0
"""Between TERM and KILL, if the request does not say otherwise."""
HEARTBEAT_S = 5.0
_LOOK_S = 0.25
_REJECTED = 10
"""The worker's exit code for: some or all drafters, or the prompts, were rejected.

It ends with `proof.EXIT_DIFFERS` where everything was measured and the summary says that the engines differ; a
Python that breaks before the worker's own code runs ends with the same code, without such a summary.
"""


def _say(text: str) -> None:
    """Adds a line to supervisor.log; on a full disk the line is lost, the job must not be."""
    try:
        sys.stderr.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text + "\n")
        sys.stderr.flush()
    except OSError as error:
        if not disk.is_full(error):
            raise


class _Alarm:
    """Wakes the loop when the worker ends or a signal asks for the end; remembers that one did."""

    def __init__(self) -> None:
        self.stop = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop = True

    def wait(self, seconds: float) -> None:
        """Sleeps until a signal comes, `seconds` at most."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)


class Supervisor:
    """One run of one job."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.job = folder.job()
        self.alarm = _Alarm()
        self.state = fresh_state(self.job.created, folder.state())
        # What an earlier run of this job left: a request to end it must not end this run, and its final
        # files go only after the state says that the job is no longer final.
        folder.cancel.unlink(missing_ok=True)
        folder.write_state(self.state)
        folder.manifest.unlink(missing_ok=True)
        folder.summary.unlink(missing_ok=True)
        folder.diagnosis.unlink(missing_ok=True)
        self._beat = time.monotonic()

    def _record(self, state: protocol.State) -> None:
        """Writes the state with a heartbeat. A full disk now must not end a run that may still succeed."""
        self.state = replace(state, heartbeat=time.time())
        self._beat = time.monotonic()
        try:
            self.folder.write_state(self.state)
        except OSError as error:
            _say(f"the state could not be written: {error}")

    def _asked_to_stop(self) -> bool:
        return self.alarm.stop or self.folder.cancel.exists()

    def _heartbeat(self) -> None:
        if time.monotonic() - self._beat >= HEARTBEAT_S:
            self._record(self.state)

    def wait_in_line(self, lease: Lease) -> bool:
        """Waits for the lease. Returns False if the job was cancelled before it came."""
        while position := lease.position():
            if self._asked_to_stop():
                return False
            if position != self.state.queue_position:
                self._record(
                    replace(self.state, queue_position=position, reason=f"{position} before it on this host")
                )
            self._heartbeat()
            self.alarm.wait(_LOOK_S)
        return not self._asked_to_stop()

    def start_worker(self, lease: Lease) -> subprocess.Popen[bytes]:
        """Starts the worker in its own session; both of its streams go to worker.log as they are."""
        environment = {**job_environment(self.folder.job_id), **lease.environment}
        with self.folder.log.open("ab") as log:
            return subprocess.Popen(
                payload_command("worker", "--job", str(self.folder.path)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder.path,
                env=environment,
                start_new_session=True,
                pass_fds=lease.descriptors,
            )

    def watch(self, worker: subprocess.Popen[bytes]) -> str:
        """Waits for the worker's end or a reason to end it. Returns `ended`, `cancelled` or `timeout`."""
        limit = self.job.timeout_s
        deadline = time.monotonic() + limit if limit else None
        while worker.poll() is None:
            if self._asked_to_stop():
                return "cancelled"
            if deadline is not None and time.monotonic() >= deadline:
                return "timeout"
            self._heartbeat()
            self.alarm.wait(_LOOK_S)
        return "ended"

    def end_all(self, worker: subprocess.Popen[bytes], grace: float) -> None:
        """Ends the worker and everything it started, and collects it."""
        left = processes.end_tagged(self.folder.job_id, grace, reap=worker.poll)
        if left:
            _say(f"processes {left} do not end")
        if worker.poll() is None:
            worker.kill()
            worker.wait(timeout=30)

    def run(self, lease: Lease) -> protocol.State:
        """Runs the job to its end and returns its final state."""
        if not self.wait_in_line(lease):
            return replace(self.state, state="cancelled", reason="cancelled while it waited")
        worker = self.start_worker(lease)
        started = replace(
            self.state,
            state="running",
            reason="",
            queue_position=None,
            gpu_uuids=lease.gpu_uuids,
            started=time.time(),
        )
        try:
            self._record(started)
            how = self.watch(worker)
            grace = 1.0 if how == "ended" else _grace(self.folder)
        except BaseException:
            self.end_all(worker, 0.0)
            raise
        self.end_all(worker, grace)
        return _outcome(self.folder, self.state, how, worker.returncode, self.job.timeout_s)


def _grace(folder: JobFolder) -> float:
    """Returns the seconds that the cancel request allows the worker."""
    try:
        return float(json.loads(folder.cancel.read_bytes())["grace"])
    except (OSError, ValueError, KeyError, TypeError):
        return GRACE_S  # no file (a signal, a timeout), or one that a person made with `touch`


def _outcome(
    folder: JobFolder, state: protocol.State, how: str, code: int, limit: float | None
) -> protocol.State:
    """Returns the final state from how the worker ended."""
    name = signal.Signals(-code).name if code < 0 else None
    state = replace(state, exit_code=code if code >= 0 else None, signal=name)
    if how == "cancelled":
        return replace(state, state="cancelled", reason="cancelled on request")
    if how == "timeout":
        return replace(state, state="timeout", reason=f"ran longer than its limit of {limit:g} s")
    if _measured(folder):
        summary = _summary(folder)
        differs = proof.fault(summary) if code == proof.EXIT_DIFFERS else ""
        refused = code == _REJECTED or (differs and summary.get("rejected"))
        rejected = _rejection(folder) if refused else ""
        if code in (0, _REJECTED) or differs:
            said = [differs, f"rejected: {rejected}" if rejected else ""]
            return replace(state, state="done", reason="; ".join(filter(None, said)))
    return replace(state, state="failed", reason=_reason(folder, code, name))


def _measured(folder: JobFolder) -> bool:
    """Says whether the worker came to its end: a diagnosis, or a summary and (where it refused some) others' results."""
    if folder.diagnosis.is_file():
        return True
    if not folder.summary.is_file():
        return False
    summary = _summary(folder)
    return bool(summary.get("drafters")) or not summary.get("rejected")


def _summary(folder: JobFolder) -> dict[str, Any]:
    """Returns the summary; empty if there is none (a job that diagnosed has none)."""
    return dict(protocol.read_json(folder.summary)) if folder.summary.is_file() else {}


def _reason(folder: JobFolder, code: int, signal_name: str | None) -> str:
    why = _how_it_ended(folder, code, signal_name)
    full = disk.refusal(folder.path)
    if not full and any(os.strerror(number) in why for number in (errno.ENOSPC, errno.EDQUOT)):
        full = "a disk is full or a quota used up"  # it has room again, or it is another one: `why` names the file
    return f"{full}; {why}" if full else why


def _how_it_ended(folder: JobFolder, code: int, signal_name: str | None) -> str:
    last = _last_line(folder)
    if code == 0:
        return f"the worker ended without a summary: {last}"
    if signal_name:
        hint = " (the kernel does that when memory runs out)" if signal_name == "SIGKILL" else ""
        return f"the worker was ended by {signal_name}{hint}: {last}"
    if code == _REJECTED:
        return f"rejected: {_rejection(folder) or last.removeprefix('error: ')}"
    return f"the worker ended with exit code {code}: {last}"


def _rejection(folder: JobFolder) -> str:
    """Returns why the worker rejected its input: from the summary, else the last event that says so."""
    rejected = _summary(folder).get("rejected") or []
    if rejected:
        return "; ".join(f"{item.get('label')}: {item.get('reason')}" for item in rejected)
    said = [e.get("message", "") for e in protocol.iter_jsonl(folder.events) if e.get("phase") == "rejected"]
    return next((message for message in reversed(said) if message), "")


def _last_line(folder: JobFolder) -> str:
    """Returns the last line that the worker printed: the error itself, at the end of a Python traceback."""
    if not folder.log.is_file():
        return "it printed nothing"
    with folder.log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 8192))
        lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    return _plain(lines[-1].strip())[:500] if lines else "it printed nothing"


_SYSTEM_ERROR = re.compile(r"(?:\w+Error): \[Errno \d+\] (?P<what>[^:]+): '(?P<path>.+?)'(?: -> '.*')?")


def _plain(line: str) -> str:
    """Returns a line in which Python names a file that is in the way, the file first."""
    found = _SYSTEM_ERROR.fullmatch(line)
    return f"{found['path']}: {found['what']}" if found else line


def _supervisor_fault(error: Exception, folder: JobFolder) -> str:
    """Returns why the supervisor itself could not go on; a file that is in its way is named first."""
    if disk.is_full(error):
        return disk.sentence(folder.path)
    if isinstance(error, OSError) and error.filename:
        return f"supervisor: {os.fsdecode(error.filename)}: {error.strerror}"
    return f"supervisor: {type(error).__name__}: {error}"


def run(folder: JobFolder) -> int:
    """Supervises a job to its end. Returns the supervisor's own exit code."""
    # A job that is resumed right after its end finds the last supervisor on its way out.
    with lock(folder.lock_file, wait=5.0) as held:
        if not held:
            raise SuperviseError("busy", f"job {folder.job_id} has a supervisor")
        supervisor = Supervisor(folder)
        lease: Lease | None = None
        try:
            lease = WorkdirLease(folder.path.parent / ".queue", folder.job_id)
            final = supervisor.run(lease)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job's record must say that the job failed
            reason = _supervisor_fault(error, folder)
            _say(reason)
            final = replace(supervisor.state, state="failed", reason=reason)
        folder.seal(final)
        if lease is not None:
            lease.release()
        _say(f"{final.state} {final.reason}".strip())
    return 0
