"""Who may run now: a first-come queue of one running job per work folder, kept by the kernel's file locks.

What always holds:

* A job that waits or runs holds a lock on its own numbered ticket in `jobs/.queue`; the holder of the oldest
  live ticket runs. A ticket whose lock can be taken is dead and is swept, so no crash can block the queue.
* The worker inherits the ticket's descriptor: the place stays taken until the last process of the job that
  could use the device is gone, even if the supervisor was killed.

Leases of single GPUs will be another `Lease`: the supervisor knows only this protocol.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO, TYPE_CHECKING, Protocol

from remote_payload.supervise.folder import lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Lease", "WorkdirLease"]


class Lease(Protocol):
    """The right to use the host's devices, waited for in line."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the worker inherits, so that the lease lives as long as any of its processes."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the worker must see to use what was leased, and only that."""

    @property
    def gpu_uuids(self) -> list[str]:
        """The GPUs that were leased."""

    def position(self) -> int:
        """Returns how many jobs are before this one: 0 means that the lease is held."""

    def release(self) -> None:
        """Leaves the line, or gives the lease back."""


class WorkdirLease:
    """At most `places` running jobs per work folder, first come, first served."""

    environment: Mapping[str, str] = {}

    def __init__(self, queue: Path, job_id: str, places: int = 1) -> None:
        self._queue = queue
        self._places = places
        queue.mkdir(parents=True, exist_ok=True)
        with lock(queue / ".mutex", wait=60.0) as held:
            if not held:
                raise TimeoutError(f"the queue in {queue} has been locked for a minute")
            numbers = [int(path.name.partition(".")[0]) for path in self._tickets()]
            self._path = queue / f"{max(numbers, default=0) + 1:09d}.{job_id}"
            self._ticket: IO[bytes] = self._path.open("xb")
            fcntl.flock(self._ticket, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The ticket's descriptor."""
        return (self._ticket.fileno(),)

    @property
    def gpu_uuids(self) -> list[str]:
        """None: this lease is for the whole host."""
        return []

    def _tickets(self) -> list[Path]:
        return sorted(path for path in self._queue.iterdir() if path.name[:1].isdecimal())

    def position(self) -> int:
        """Returns how many live tickets must go before this job may run; sweeps the dead ones."""
        before = 0
        for path in self._tickets():
            if path.name >= self._path.name:
                break
            if _is_dead(path):
                path.unlink(missing_ok=True)
            else:
                before += 1
        return max(0, before - self._places + 1)

    def release(self) -> None:
        """Removes the ticket and unlocks it."""
        self._path.unlink(missing_ok=True)
        self._ticket.close()


def _is_dead(ticket: Path) -> bool:
    """Says whether nobody holds a ticket. (A new one is locked before anyone can be behind it.)"""
    try:
        descriptor = os.open(ticket, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
