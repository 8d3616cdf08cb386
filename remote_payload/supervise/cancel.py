"""Ending a job, with proof.

What always holds: after a cancel that reports no process in `left`, no process of this user carries the
job's tag, also where the job's files cannot be read: they are looked at, never relied on. A supervisor that lives ends
its own job and writes its own record; only where it is dead or does not answer does the canceller take the job's lock
and write the record in its place. A launch that is under way comes to its end first, so that none goes on after a cancel.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

from remote_payload import durable, protocol
from remote_payload.supervise import disk, nvidia, processes
from remote_payload.supervise.folder import BROKEN, JobFolder, SuperviseError, fresh_state, identity, lock
from remote_payload.supervise.launch import TURN_S

__all__ = ["cancel"]

_ANSWER_S = 15.0
"""What a supervisor gets on top of the grace, to end the worker, hash the results and write its record."""


def cancel(folder: JobFolder, grace: float) -> dict[str, Any]:
    """Ends a job.

    Returns `was` (what it was found as), its final state, `left` (the pids still there), and `still` (a sentence for each
    process that computes on a GPU which the job had: somebody else's by now, or one that has lost the job's tag).
    """
    if not (folder.job_file.exists() or folder.state_file.exists()):
        raise SuperviseError("absent", f"no job in {folder.path}")
    with lock(folder.launch_lock, wait=TURN_S):  # a launch that hangs for longer is ended by the job's tag
        return _end(folder, grace)


def _end(folder: JobFolder, grace: float) -> dict[str, Any]:
    found = folder.found()
    asked = found in protocol.ACTIVE_STATES or (found == BROKEN and folder.is_supervised())
    if asked:
        _ask_to_stop(folder, grace)
        _await_end(folder, grace)
    left = processes.end_tagged(folder.job_id, grace=0.0 if asked else min(grace, 5.0))
    if folder.found() in ("lost", "unstarted", BROKEN):
        state: protocol.State | None = _record_in_place(folder, found)
    else:
        state = folder.state()
    shown = state.to_json() if state else None
    return {"was": found, "state": shown, "left": left, "still": _still_used(state) if state else []}


def _still_used(state: protocol.State) -> list[str]:
    """Says who computes on the GPUs that a job had."""
    if not state.gpu_uuids:
        return []
    try:
        had = [gpu for gpu in nvidia.look() or [] if gpu.uuid in state.gpu_uuids]
    except nvidia.NvidiaError as error:
        return [f"whether its GPUs are free again cannot be told: {error}"]
    return [
        f"GPU {gpu.index} is used by {user.name} (pid {user.pid}"
        + (f", {user.mib} MiB)" if user.mib else ")")
        for gpu in had
        for user in gpu.users
    ]


def _ask_to_stop(folder: JobFolder, grace: float) -> None:
    """Leaves the request; on a full disk a signal stands in for it (the supervisor's own grace counts then)."""
    try:
        durable.write_json(folder.cancel, {"grace": grace})
    except OSError as error:
        if not disk.is_full(error):
            raise
        state = folder.state() if folder.found() != BROKEN else None
        if state is not None and state.pid is not None and processes.is_alive(identity(state)):
            processes.send_signal(state.pid, folder.job_id, signal.SIGINT)


def _await_end(folder: JobFolder, grace: float) -> None:
    """Waits until the supervisor has written its record and gone, as long as that may take."""
    deadline = time.monotonic() + grace + _ANSWER_S
    pause = 0.02
    while time.monotonic() < deadline:
        if not _is_supervised(folder):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.3)


def _is_supervised(folder: JobFolder) -> bool:
    try:
        state = folder.state()
    except durable.ProtocolError:
        return folder.is_supervised()
    return state is not None and processes.is_alive(identity(state))


def _record_in_place(folder: JobFolder, found: str) -> protocol.State:
    """Writes the end of a job whose supervisor cannot."""
    with lock(folder.lock_file, wait=5.0) as held:
        if not held:
            raise SuperviseError("busy", f"job {folder.job_id} is being started again")
        folder.set_broken_state_aside()
        before = folder.state() or fresh_state(folder.created(), None)
        if before.state not in protocol.TERMINAL_STATES:
            why = {
                "lost": "cancelled after its supervisor was lost",
                "unstarted": "cancelled before it started",
                BROKEN: f"cancelled; its state could not be read and is kept as state.json.{BROKEN}",
            }
            reason = why.get(found, "cancelled; its supervisor did not answer and was ended")
            folder.seal(replace(before, state="cancelled", reason=reason))
        state = folder.state()
        if state is None:
            raise SuperviseError("state", f"{folder.state_file} is gone")
        return state
