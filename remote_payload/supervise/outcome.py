"""How a job ended, in one word and in a sentence: from its worker's exit, its files, or the supervisor's own fault.

What always holds: a job is `done` only if its worker came to its own end and left a summary; what is in the way (a
full disk, a file) is named first; the last line that the worker printed is part of the reason.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from remote_payload import durable, proof, protocol
from remote_payload.supervise import disk
from remote_payload.supervise.slots import LeaseError, LockDirError

if TYPE_CHECKING:
    from remote_payload.supervise.folder import JobFolder

__all__ = ["PREEMPTED", "How", "outcome", "supervisor_fault"]

How = Literal["ended", "cancelled", "preempted", "timeout", "stalled"]

PREEMPTED = "its supervisor was told to end, as at a shutdown of the host or by a scheduler"
_REJECTED = 10
"""The worker's exit code for: some or all drafters, or the prompts, were rejected.

It ends with `proof.EXIT_DIFFERS` where everything was measured and the summary says that the engines differ; a
Python that breaks before the worker's own code runs ends with the same code, without such a summary.
"""


def outcome(
    folder: JobFolder, state: protocol.State, how: How, code: int, job: protocol.Job, was_full: str = ""
) -> protocol.State:
    """Returns the final state from how the worker ended.

    Args:
        folder: the job's.
        state: the last one.
        how: why it was ended, or `ended` if by itself.
        code: its exit code, or minus the signal that ended it.
        job: what was to be run.
        was_full: the sentence for a disk that was full lately, empty if it was not.
    """
    name = signal.Signals(-code).name if code < 0 else None
    state = replace(state, exit_code=code if code >= 0 else None, signal=name)
    if how == "cancelled":
        return replace(state, state="cancelled", reason="cancelled on request")
    if how == "preempted":
        return replace(state, state="preempted", reason=PREEMPTED)
    if how == "timeout":
        return replace(state, state="timeout", reason=f"ran longer than its limit of {job.timeout_s:g} s")
    if how == "stalled":
        return replace(state, state="timeout", reason=_stall(folder, job))
    if _measured(folder):
        summary = _summary(folder)
        differs = proof.fault(summary) if code == proof.EXIT_DIFFERS else ""
        refused = code == _REJECTED or (differs and summary.get("rejected"))
        rejected = _rejection(folder) if refused else ""
        if code in (0, _REJECTED) or differs:
            said = [differs, f"rejected: {rejected}" if rejected else ""]
            return replace(state, state="done", reason="; ".join(filter(None, said)))
    return replace(state, state="failed", reason=_reason(folder, code, name, was_full))


def _stall(folder: JobFolder, job: protocol.Job) -> str:
    steps = [event for event in durable.iter_jsonl(folder.events) if event.get("phase")]
    words = [str(steps[-1].get(key, "")) for key in ("phase", "drafter")] if steps else ["none"]
    last = " ".join(word for word in words if word)
    return (
        f"made no progress for {job.stall_s:g} s (last step: {last}); where its threads stood is at the end of "
        "worker.log, if Python could still say it"
    )


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
    return dict(durable.read_json(folder.summary)) if folder.summary.is_file() else {}


def _reason(folder: JobFolder, code: int, signal_name: str | None, was_full: str) -> str:
    why = _how_it_ended(folder, code, signal_name)
    full = disk.refusal(folder.path)
    if not full and any(os.strerror(number) in why for number in (errno.ENOSPC, errno.EDQUOT)):
        full = "a disk is full or a quota used up"  # it has room again, or it is another one: `why` names the file
    return "; ".join(text for text in (full or was_full, why) if text)


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
    said = [e.get("message", "") for e in durable.iter_jsonl(folder.events) if e.get("phase") == "rejected"]
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


def supervisor_fault(error: Exception, folder: JobFolder) -> str:
    """Returns why the supervisor itself could not go on; a file that is in its way is named first."""
    if disk.is_full(error):
        return disk.sentence(folder.path)
    if isinstance(error, (LeaseError, LockDirError)):
        return str(error)
    if isinstance(error, OSError) and error.filename:
        return f"supervisor: {os.fsdecode(error.filename)}: {error.strerror}"
    return f"supervisor: {type(error).__name__}: {error}"
