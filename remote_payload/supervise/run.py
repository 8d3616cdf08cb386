"""The supervisor: owns one worker process from the queue to the final record.

What always holds:

* Only this process writes `state.json` while it lives; it holds the job's lock.
* The worker has its own session and the job's tag; when the job ends, nothing that carries the tag is left.
* The end is written in this order: whole lines in the result files, `MANIFEST.json`, the final `state.json`.
  That holds for failed, cancelled and timed-out jobs as well.
* A cancel request is the file `cancel` in the job's folder, or INT to this process. TERM and HUP, which the system
  sends at a shutdown and schedulers when they want the place, end the job as `preempted`: it can be resumed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from remote_payload import protocol
from remote_payload.supervise import disk, processes
from remote_payload.supervise.folder import JobFolder, SuperviseError, fresh_state, lock
from remote_payload.supervise.launch import job_environment, payload_command
from remote_payload.supervise.outcome import PREEMPTED, How, outcome, supervisor_fault
from remote_payload.supervise.slots import HostRules, Lease, lease_for
from remote_payload.supervise.watchdog import Watchdog

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["GRACE_S", "run"]

GRACE_S = 10.0
"""Between TERM and KILL, if the request does not say otherwise."""
HEARTBEAT_S = 5.0
_LOOK_S = 0.25
_LAST_WORDS_S = 5.0
"""How long a stalled worker that was asked where it stands may take to say it."""


def _say(text: str) -> None:
    """Adds a line to supervisor.log; on a full disk the line is lost, the job must not be."""
    try:
        sys.stderr.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text + "\n")
        sys.stderr.flush()
    except OSError as error:
        if not disk.is_full(error):
            raise


class _Alarm:
    """Wakes the loop when the worker ends or a signal asks for the end; remembers which one did."""

    def __init__(self) -> None:
        self.cancelled = self.preempted = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.cancelled = True
        else:
            self.preempted = True

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
        self.disk = disk.Lately(folder.path)
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

    def _asked_to_stop(self) -> Literal["", "cancelled", "preempted"]:
        if self.alarm.cancelled or self.folder.cancel.exists():
            return "cancelled"
        return "preempted" if self.alarm.preempted else ""

    def _heartbeat(self) -> None:
        if time.monotonic() - self._beat >= HEARTBEAT_S:
            self._record(self.state)

    def wait_in_line(self, lease: Lease) -> bool:
        """Waits for the lease. Returns False if the job was told to end before it came."""
        while position := lease.position():
            if self._asked_to_stop():
                return False
            waiting = replace(self.state, queue_position=position, reason=lease.waits_for())
            if waiting != self.state:
                self._record(waiting)
            self._heartbeat()
            self.alarm.wait(_LOOK_S)
        return not self._asked_to_stop()

    def start_worker(self, lease: Lease) -> subprocess.Popen[bytes]:
        """Starts the worker in its own session; both of its streams go to worker.log as they are."""
        environment = {**job_environment(self.folder.job_id), **lease.environment}
        environment.setdefault("PYTHONFAULTHANDLER", "1")  # a stalled worker can be asked where it stands
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

    def watch(self, worker: subprocess.Popen[bytes]) -> How:
        """Waits for the worker's end or a reason to end it, and returns that."""
        limit = self.job.timeout_s
        deadline = time.monotonic() + limit if limit else None
        watchdog = Watchdog(self.folder.path, self.job.stall_s)
        self.disk.look()
        while worker.poll() is None:
            if asked := self._asked_to_stop():
                return asked
            if deadline is not None and time.monotonic() >= deadline:
                return "timeout"
            if watchdog.barks():
                processes.send_signal(worker.pid, self.folder.job_id, signal.SIGABRT)
                self.alarm.wait(_LAST_WORDS_S)
                return "stalled"
            self._heartbeat()
            self.alarm.wait(_LOOK_S)
            self.disk.look()
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
            if self._asked_to_stop() == "preempted":
                return replace(self.state, state="preempted", reason=PREEMPTED)
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
        return outcome(self.folder, self.state, how, worker.returncode, self.job, self.disk.sentence())


def _grace(folder: JobFolder) -> float:
    """Returns the seconds that the cancel request allows the worker."""
    try:
        return float(json.loads(folder.cancel.read_bytes())["grace"])
    except (OSError, ValueError, KeyError, TypeError):
        return GRACE_S  # no file (a signal, a timeout), or one that a person made with `touch`


def run(folder: JobFolder, rules: HostRules) -> int:
    """Supervises a job to its end, by the rules of its host. Returns the supervisor's own exit code."""
    # A job that is resumed right after its end finds the last supervisor on its way out.
    with lock(folder.lock_file, wait=5.0) as held:
        if not held:
            raise SuperviseError("busy", f"job {folder.job_id} has a supervisor")
        supervisor = Supervisor(folder)
        lease: Lease | None = None
        try:
            lease = lease_for(supervisor.job, folder.path, rules)
            final = supervisor.run(lease)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job's record must say that the job failed
            reason = supervisor_fault(error, folder)
            _say(reason)
            final = replace(supervisor.state, state="failed", reason=reason)
        folder.seal(final)
        if lease is not None:
            lease.release()
        _say(f"{final.state} {final.reason}".strip())
    return 0
