"""One worker's side of a job that several workers run: its prompts, its folder, and its bond to the parent.

What always holds: a worker writes only below its own folder; it holds a shared lock as long as it lives, so
that whoever merges can wait until none is left; it dies with its parent (by the kernel's hand on Linux, by
looking twice a second elsewhere), so that no restarted job ever meets an old worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["SHARES", "Share", "bound_to", "holding", "none_left"]

SHARES = "shards"
_PR_SET_PDEATHSIG = 1

_T = TypeVar("_T")


@dataclass(frozen=True)
class Share:
    """Share `index` of `of`, on `device`."""

    index: int
    of: int
    device: str

    def folder(self, job: Path) -> Path:
        """Where the share's rows, samples and events go."""
        return job / SHARES / f"{self.index}-of-{self.of}"

    def prompts(self, prompts: Sequence[_T]) -> list[_T]:
        """Returns the share's prompts: every `of`-th, so that files sorted by length are dealt evenly."""
        return list(prompts[self.index :: self.of])


def bound_to(parent: int) -> None:
    """Makes this process end when its parent does.

    Args:
        parent: the parent's pid, as the parent knows it.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have gone before the line above; and not every system has it.
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent watch").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextlib.contextmanager
def holding(job: Path) -> Iterator[None]:
    """Holds the workers' shared lock of a job."""
    with _lock_file(job) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def none_left(job: Path, patience: float = 10.0) -> bool:
    """Waits until no worker of an earlier run is left. Returns False if one still is after `patience` seconds."""
    deadline = time.monotonic() + patience
    with _lock_file(job) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.05)
            else:
                return True


@contextlib.contextmanager
def _lock_file(job: Path) -> Iterator[int]:
    # Beside the shares, not among them: the shares are removed while the lock is held.
    descriptor = os.open(job / ".shards.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
