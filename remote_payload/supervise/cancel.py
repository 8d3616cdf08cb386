"""Ending a job, with proof.

What always holds: after a cancel that reports no process in `left`, no process of this user carries the
job's tag. A supervisor that lives ends its own job and writes its own record; only where it is dead or does
not answer does the canceller take the job's lock and write the record in its place.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from remote_payload import protocol
from remote_payload.supervise import processes
from remote_payload.supervise.folder import JobFolder, SuperviseError, fresh_state, identity, lock, verdict

__all__ = ["cancel"]

_ANSWER_S = 15.0
"""What a supervisor gets on top of the grace, to end the worker, hash the results and write its record."""


def cancel(folder: JobFolder, grace: float) -> dict[str, Any]:
    """Ends a job. Returns `was` (what it was found as), its final state, and `left`, the pids still there."""
    folder.job()
    found = verdict(folder.state())
    if found in protocol.ACTIVE_STATES:
        protocol.write_json(folder.cancel, {"grace": grace})
        _await_end(folder, grace)
    left = processes.end_tagged(
        folder.job_id, grace=0.0 if found in protocol.ACTIVE_STATES else min(grace, 5.0)
    )
    state = folder.state()
    if verdict(state) in ("lost", "unstarted"):
        state = _record_in_place(folder, found)
    return {"was": found, "state": state.to_json() if state else None, "left": left}


def _await_end(folder: JobFolder, grace: float) -> None:
    """Waits until the supervisor has written its record and gone, as long as that may take."""
    deadline = time.monotonic() + grace + _ANSWER_S
    pause = 0.02
    while time.monotonic() < deadline:
        state = folder.state()
        if state is None or not processes.is_alive(identity(state)):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.3)


def _record_in_place(folder: JobFolder, found: str) -> protocol.State:
    """Writes the end of a job whose supervisor cannot."""
    with lock(folder.lock_file, wait=5.0) as held:
        if not held:
            raise SuperviseError("busy", f"job {folder.job_id} is being started again")
        before = folder.state() or fresh_state(folder.job(), None)
        if before.state not in protocol.TERMINAL_STATES:
            why = {
                "lost": "cancelled after its supervisor was lost",
                "unstarted": "cancelled before it started",
            }
            reason = why.get(found, "cancelled; its supervisor did not answer and was ended")
            folder.seal(replace(before, state="cancelled", reason=reason))
        state = folder.state()
        if state is None:
            raise SuperviseError("state", f"{folder.state_file} is gone")
        return state
