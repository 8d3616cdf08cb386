"""Which processes are whose: the identity of a process, and the processes that carry a job's tag.

What always holds: a process is known by (boot id, pid, start time), never by its pid alone or by a name;
only processes that carry a job's tag in their environment are ever signalled, and the tag is read again
right before the signal, through a handle that cannot change owner where the system has one.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "TAG",
    "Identity",
    "boot_id",
    "end_tagged",
    "identity_of",
    "is_alive",
    "send_signal",
    "start_time",
    "tagged",
]

TAG = "ORCH_JOB_ID"
"""The environment variable that every process of a job inherits."""

_HAS_PROC = sys.platform.startswith("linux")
_SHOW_ENVIRONMENT = ("-E", "-ww") if sys.platform == "darwin" else ("eww",)
_EVERYTHING = ("-A",) if sys.platform == "darwin" else ("ax",)


@dataclass(frozen=True)
class Identity:
    """One process of one boot of one machine."""

    boot_id: str
    pid: int
    started: str


def _ask(*argv: str) -> str:
    """Returns what a system program prints, or nothing if it has nothing to say (a process that is gone)."""
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    return done.stdout.decode("utf-8", "replace").strip()


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Returns what tells this boot of the machine from every other."""
    if _HAS_PROC:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return _ask("sysctl", "-n", "kern.bootsessionuuid") or _ask("sysctl", "-n", "kern.boottime")


def start_time(pid: int) -> str | None:
    """Returns when a process started, in the system's own unit; None if it is gone or a zombie."""
    if not _HAS_PROC:
        text = _ask("ps", "-o", "stat=,lstart=", "-p", str(pid))
        status, _, started = text.partition(" ")
        return None if not started or status.startswith("Z") else started.strip()
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name is in brackets and may hold anything; fields 3 (status) and 22 (start) follow it.
    after_name = raw[raw.rindex(b")") + 1 :].split()
    return None if after_name[0] in (b"Z", b"X") else after_name[19].decode("ascii")


def identity_of(pid: int) -> Identity:
    """Returns the identity of a process that is alive (for example this one)."""
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"no process {pid}")
    return Identity(boot_id(), pid, started)


def is_alive(who: Identity) -> bool:
    """Says whether this very process runs now: same boot, same pid, same start."""
    return who.boot_id == boot_id() and start_time(who.pid) == who.started


def _carries(pid: int, job_id: str) -> bool:
    wanted = f"{TAG}={job_id}"
    if not _HAS_PROC:
        return wanted in _ask("ps", *_SHOW_ENVIRONMENT, "-o", "command=", "-p", str(pid)).split()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # gone, or another user's: a job's processes are ours
    return wanted.encode() in environment.split(b"\0")


def tagged(job_id: str) -> list[int]:
    """Returns the pids of the processes that carry a job's tag, except this one."""
    me = os.getpid()
    if _HAS_PROC:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return sorted(pid for pid in pids if pid != me and _carries(pid, job_id))
    wanted = f"{TAG}={job_id}"
    lines = [
        line.split()
        for line in _ask("ps", *_SHOW_ENVIRONMENT, *_EVERYTHING, "-o", "pid=,command=").splitlines()
    ]
    return sorted(int(words[0]) for words in lines if wanted in words[1:] and int(words[0]) != me)


def send_signal(pid: int, job_id: str, number: signal.Signals) -> None:
    """Signals a process if it still carries the tag when the signal is sent."""
    try:
        handle = _open(pid)
        try:
            if not _carries(pid, job_id):
                return
            if handle is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return  # it ended by itself, which is what was wanted


def _open(pid: int) -> int | None:
    """Returns a handle that stays this process's; None where the system (macOS, Linux before 5.3) has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise


def end_tagged(
    job_id: str,
    grace: float,
    *,
    patience: float = 10.0,
    reap: Callable[[], object] = lambda: None,
) -> list[int]:
    """Ends every other process that carries a job's tag: TERM, `grace` seconds, then KILL until none is left.

    Args:
        patience: how long KILL is repeated; a process in an uninterruptible wait may outlive it.
        reap: called between looks, so that a parent can collect its own children.

    Returns:
        The pids that are still there: empty is the proof that nothing is left.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + grace
    pause = 0.02
    while time.monotonic() < deadline:
        reap()
        left = tagged(job_id)
        if not left:
            return []
        for pid in left:
            if pid not in asked:
                send_signal(pid, job_id, signal.SIGTERM)
        asked.update(left)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.5)
    deadline = time.monotonic() + patience
    while (left := tagged(job_id)) and time.monotonic() < deadline:
        for pid in left:
            send_signal(pid, job_id, signal.SIGKILL)
        time.sleep(0.05)
        reap()
    return left
