"""Starting a job's supervisor so that it outlives the connection, with a record handed back.

What always holds: a launch that returns means that the supervisor runs and has recorded itself (or that the
job had been started before); a launch that raises, or is told to stop, leaves no process behind, and asking
again starts the job as if nothing had been. The supervisor runs from the very tree that this code is in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote_payload import durable, protocol
from remote_payload.supervise import disk, processes, scope
from remote_payload.supervise.folder import BROKEN, RESUMABLE, JobFolder, SuperviseError, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from remote_payload.supervise.slots import HostRules

__all__ = ["TURN_S", "StoppedError", "job_environment", "launch", "payload_command", "resume"]

_ROOT = Path(__file__).resolve().parents[2]
HANDOFF_S = 30.0
"""How long a launch waits for the supervisor's record: an import from a cold network disk takes a while."""
TURN_S = HANDOFF_S + 10
"""How long whoever starts or ends a job waits for a launch of it that is under way."""


class StoppedError(Exception):
    """A signal asked the launch to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def payload_command(*words: str) -> list[str]:
    """Returns the command line that runs this payload with the interpreter that runs now."""
    return [sys.executable, "-m", "remote_payload", *words]


def job_environment(job_id: str) -> dict[str, str]:
    """Returns the environment of a job's processes: the caller's, the tag, this tree first on the path."""
    environment = dict(os.environ)
    others = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p) != _ROOT]
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *others])
    environment[processes.TAG] = job_id
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONUTF8"] = "1"
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing but what was verified lies in a release
    environment.setdefault("LC_ALL", "C.UTF-8")
    return environment


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turns TERM, INT and HUP into an exception while the launch is half done."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StoppedError(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _spawn(folder: JobFolder, rules: HostRules) -> subprocess.Popen[bytes]:
    with folder.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            [
                *scope.own_scope(folder.job_id),
                *payload_command("supervise", "run", str(folder.path), *rules.to_flags()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            env=job_environment(folder.job_id),
            start_new_session=True,
        )


def _last_words(folder: JobFolder) -> str:
    lines = folder.supervisor_log.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _handoff(folder: JobFolder, child: subprocess.Popen[bytes], deadline: float) -> protocol.State:
    """Waits for the supervisor's own record."""
    pause = 0.01
    while time.monotonic() < deadline:
        state = folder.state()
        if state is not None and state.pid == child.pid:
            return state
        if child.poll() is not None:
            full = disk.refusal(folder.path)
            why = f"the supervisor did not start: {_last_words(folder)}"
            raise SuperviseError("launch", f"{full}; {why}" if full else why)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    raise SuperviseError(
        "launch", f"the supervisor did not report within {HANDOFF_S:.0f} s; see {folder.supervisor_log}"
    )


def _start(folder: JobFolder, rules: HostRules) -> protocol.State:
    """Starts the supervisor and waits for its record; on any other end nothing is left running.

    A disk without room is refused first: a job that cannot write its results should not wait for a GPU.
    """
    disk.reserve(folder.path)
    disk.ask_for_room(folder.path)
    if short_lived := scope.warning():
        durable.append_lines(folder.events, [protocol.Event("note", message=short_lived).to_json()])
    before = folder.state_file.read_bytes() if folder.state_file.exists() else None
    child: subprocess.Popen[bytes] | None = None
    try:
        with _stoppable():
            child = _spawn(folder, rules)
            return _handoff(folder, child, time.monotonic() + HANDOFF_S)
    except BaseException:
        reap: Callable[[], object] = child.poll if child else lambda: None
        processes.end_tagged(folder.job_id, grace=0.0, reap=reap)
        if before is None:
            folder.state_file.unlink(missing_ok=True)
        else:
            durable.write_atomic(folder.state_file, before)
        raise


def launch(folder: JobFolder, rules: HostRules) -> protocol.State:
    """Starts a job that is in its folder, or returns where it stands if it was started before."""
    with lock(folder.launch_lock, wait=TURN_S) as held:
        if not held:
            raise SuperviseError("busy", f"another launch of {folder.job_id} has not ended")
        state = folder.state()
        return state if state is not None else _start(folder, rules)


def resume(folder: JobFolder, rules: HostRules) -> protocol.State:
    """Starts a job again on its folder: finished rows stay, and what an earlier run left running is ended.

    A state that cannot be read is that of a lost job, if nobody holds the job's lock; it is set aside.

    Raises:
        SuperviseError: the job is done, or runs, or its job.json cannot be read (`job`).
    """
    try:
        folder.job()
    except durable.ProtocolError as error:
        raise SuperviseError("job", str(error)) from error
    with lock(folder.launch_lock, wait=TURN_S) as held:
        if not held:
            raise SuperviseError("busy", f"another launch of {folder.job_id} has not ended")
        now = folder.found()
        if now == BROKEN:
            if folder.is_supervised():
                raise SuperviseError(
                    "busy", f"job {folder.job_id} has a supervisor, and its state cannot be read"
                )
            now = "lost"
        if now != "unstarted" and now not in RESUMABLE:
            raise SuperviseError("state", f"job {folder.job_id} is {now}: there is nothing to resume")
        left = processes.end_tagged(folder.job_id, grace=2.0)
        if left:
            raise SuperviseError("leftover", f"processes {left} of {folder.job_id} cannot be ended")
        folder.set_broken_state_aside()
        return _start(folder, rules)
