"""Room on the disk for a job's last words, and what to say when there is none.

What always holds: a job that runs holds a reserve of `RESERVE_BYTES` in its folder, which is given back right
before its end is written; so a disk that the job itself (or a neighbour) has filled still takes the record
that says so. A disk is called full only when it has refused bytes.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

from remote_payload import durable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "Lately",
    "ask_for_room",
    "figures",
    "give_back",
    "insist",
    "is_full",
    "looks_full",
    "refusal",
    "reserve",
    "sentence",
]

RESERVE_BYTES = 64 << 10
_ROOM_BYTES = 1 << 20
_NAME = ".reserve"
_PATIENCE_S = 10.0


def is_full(error: BaseException | None) -> bool:
    """Says whether an error is a file system (or a quota) that takes no more."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _fill(path: Path, size: int) -> None:
    """Makes a file whose bytes are allocated (a hole would take nothing); it is not there if they do not fit."""
    try:
        with durable.naming(path.parent), path.open("wb") as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.write(os.urandom(size))  # a file system that compresses must not shrink it
    except OSError:
        path.unlink(missing_ok=True)
        raise


def reserve(folder: Path) -> None:
    """Takes the reserve in a job's folder unless it is there; OSError if the disk is full."""
    path = folder / _NAME
    if not path.is_file() or path.stat().st_size < RESERVE_BYTES:
        _fill(path, RESERVE_BYTES)


def give_back(folder: Path) -> None:
    """Removes the reserve of a job's folder."""
    (folder / _NAME).unlink(missing_ok=True)


def ask_for_room(folder: Path) -> None:
    """Raises the OSError of a disk that does not take another megabyte in this folder."""
    path = folder / f".room.{os.getpid()}"
    _fill(path, _ROOM_BYTES)
    path.unlink()


def figures(folder: Path) -> dict[str, Any]:
    """Returns free and total bytes and free inodes (None: not counted) of the folder's file system."""
    found = os.statvfs(folder)
    return {
        "path": str(folder),
        "free": found.f_bavail * found.f_frsize,
        "total": found.f_blocks * found.f_frsize,
        "inodes_free": found.f_favail if found.f_files else None,
    }


def refusal(folder: Path) -> str:
    """Returns the sentence for a disk that takes no more bytes in this folder; empty if it does."""
    try:
        ask_for_room(folder)
    except OSError as error:
        if not is_full(error):
            return ""  # another fault, which whoever writes there next will name
        return sentence(folder, quota=error.errno == errno.EDQUOT)
    return ""


def sentence(folder: Path, *, quota: bool = False) -> str:
    """Returns `the disk is full at FOLDER (figures)`."""
    about = figures(folder)
    inodes = "" if about["inodes_free"] is None else f", {about['inodes_free']} inodes free"
    what = "the quota is used up" if quota else "the disk is full"
    mib = f"{about['free'] / (1 << 20):.1f} MiB free of {about['total'] / (1 << 20):.1f} MiB"
    return f"{what} at {folder} ({mib}{inodes})"


def looks_full(folder: Path) -> str:
    """Returns the sentence for a disk whose figures say that it is full, writing nothing; else empty."""
    about = figures(folder)
    return sentence(folder) if about["free"] < _ROOM_BYTES or about["inodes_free"] == 0 else ""


class Lately:
    """Remembers that a disk was seen full: by the time a worker's death is looked into it may have room again.

    Args:
        folder: on the disk.
        memory_s: how long that explains anything.
    """

    def __init__(self, folder: Path, memory_s: float = 30.0) -> None:
        self._folder, self._memory_s = folder, memory_s
        self._full_at: float | None = None

    def look(self) -> None:
        """Looks, writing nothing."""
        if looks_full(self._folder):
            self._full_at = time.monotonic()

    def sentence(self) -> str:
        """Returns the sentence for a disk that was full lately; empty if it was not."""
        if self._full_at is None or time.monotonic() - self._full_at > self._memory_s:
            return ""
        return f"the disk was full at {self._folder} shortly before"


def insist(write: Callable[[], None], patience: float = _PATIENCE_S) -> None:
    """Writes; while the disk is full tries again, `patience` seconds at most, then raises its error."""
    deadline = time.monotonic() + patience
    while True:
        try:
            write()
        except OSError as error:
            if not is_full(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.25)
        else:
            return
