"""A folder of lock files that several Unix users share, and the line that forms in it.

What always holds:

* A lock is the kernel's (flock): it is free when the last process that has the file open is gone, however it went.
  What a file says of its holder is for people; it is shown only while the lock is held.
* No link is followed, and nothing is written to a file that is not a plain file of one name in this very folder: a
  folder that everybody may write to gives nobody a way to another user's files.
* Places in a line are given out under a lock, in order; a ticket whose lock can be taken is dead and counts for
  nothing, whoever it belonged to.
* Standard library only and nothing else of this package: `orch hosts gpus` sends this file along.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["SHARED", "LockDir", "LockDirError", "Ticket"]

SHARED = "/tmp/orch-gpu-locks"  # noqa: S108 - a shared, sticky folder is what is wanted, and it is checked
"""Where GPUs are locked unless the inventory says otherwise: on a local disk, for all users of the host."""

_MUTEX = "line.lock"
_TICKET = re.compile(r"(?P<number>\d{1,18})\.(?P<name>.+)")
_RECORD_LIMIT = 1 << 16


class LockDirError(Exception):
    """The folder or a file in it cannot be used; the message names it and says what to do."""


@contextmanager
def _open_to_all() -> Iterator[None]:
    """New files have the very mode that is asked for. (Only single-threaded programs use this module.)"""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


class LockDir:
    """A folder of lock files, made if it is not there.

    Args:
        path: absolute; its parent has to be there.
        shared: for all users (mode 1777) or for this one.
    """

    def __init__(self, path: Path | str, *, shared: bool) -> None:
        self.path = Path(path)
        self._shared = shared
        with _open_to_all(), suppress(FileExistsError):
            self.path.mkdir(0o1777 if shared else 0o755)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._folder = os.open(self.path, flags)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            what = "a link" if self.path.is_symlink() else "no folder"
            elsewhere = ", or set another `lock_dir`" if shared else ""
            raise LockDirError(f"{self.path} is {what}; remove it{elsewhere}") from error
        self._check()

    def _check(self) -> None:
        about = os.fstat(self._folder)
        if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
            raise LockDirError(
                f"{self.path} lets everybody remove everybody's locks; `chmod +t {self.path}`, or set another "
                "`lock_dir`"
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise LockDirError(
                f"{self.path} cannot be written to; ask its owner for `chmod 1777 {self.path}`, or set another "
                "`lock_dir` (the same one for all users)"
            )

    def close(self) -> None:
        """Closes the folder; locks that are held stay."""
        os.close(self._folder)

    def names(self) -> list[str]:
        """Returns the names of what is in the folder."""
        return os.listdir(self._folder)  # noqa: PTH208 - of the open folder, whatever its path leads to now

    def _open(self, name: str, flags: int) -> int:
        """Opens a plain file of the folder; never a link, a pipe, or a second name of a file elsewhere."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with _open_to_all():
                descriptor = os.open(name, flags, 0o666 if self._shared else 0o644, dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._not_plain(name) from error
            error.filename = str(self.path / name)
            raise
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            os.close(descriptor)
            raise self._not_plain(name)
        return descriptor

    def _not_plain(self, name: str) -> LockDirError:
        return LockDirError(f"{self.path / name} is not a plain file of one name; remove it")

    def _made(self, name: str) -> int:
        """Opens a lock file, made if need be. (Opening an existing one to make it fails on hardened systems.)"""
        for _ in range(5):
            with suppress(FileNotFoundError):
                return self._open(name, os.O_RDWR)
            with suppress(FileExistsError):
                return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        raise LockDirError(f"{self.path / name} comes and goes; see who removes it")

    def _is_here(self, name: str, descriptor: int) -> bool:
        """Says whether an open file still is the one of that name: a removed one locks nothing."""
        try:
            there = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(descriptor)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def take(self, name: str, wait: float = 0.0) -> int | None:
        """Locks a file. Returns its descriptor, or None if it is held for `wait` seconds and longer."""
        deadline = time.monotonic() + wait
        while True:
            descriptor = self._made(name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                if self._is_here(name, descriptor):
                    return descriptor
            os.close(descriptor)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)

    def holder(self, name: str) -> dict[str, Any] | None:
        """Returns what a held lock says of its holder (nothing that it says is sure); None if it is not held."""
        try:
            descriptor = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_record(descriptor)
        else:
            return None
        finally:
            os.close(descriptor)

    # ---------------------------------------------------------------- the line

    def _tickets(self) -> list[tuple[int, str]]:
        """Returns (number, name) of the tickets, dead ones too, in their order."""
        matches = [(_TICKET.fullmatch(name), name) for name in self.names()]
        return sorted((int(found["number"]), name) for found, name in matches if found)

    def stand_in_line(self, job_id: str, record: Mapping[str, Any]) -> Ticket:
        """Takes a place behind everybody who is there. `record` tells the others who it is and what it wants."""
        mutex = self.take(_MUTEX, wait=60.0)
        if mutex is None:
            raise LockDirError(f"the line in {self.path} has been locked for a minute")
        try:
            number = max((number for number, _ in self._tickets()), default=0) + 1
            name = f"{number:09d}.{job_id}"
            descriptor = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for a passing look at most
            write_record(descriptor, record)
        finally:
            os.close(mutex)
        return Ticket(self, number, name, descriptor)

    def line(self, before: int | None = None) -> list[dict[str, Any]]:
        """Returns what the live tickets say, in order.

        Args:
            before: only those with a smaller number, all of which were locked before this one was given out: of
                them the dead ones are swept. (One that is being made right now would look dead.)
        """
        found = []
        for number, name in self._tickets():
            if before is not None and number >= before:
                break
            try:
                record = self.holder(name)
            except LockDirError:
                continue  # no ticket of ours: somebody else's thing that has such a name
            if record is None:
                if before is None:
                    continue
                with suppress(
                    FileNotFoundError, PermissionError
                ):  # gone, or another user's: that one sweeps it
                    os.unlink(name, dir_fd=self._folder)
            else:
                found.append(record)
        return found

    def remove(self, name: str) -> None:
        """Removes a file of the folder that is ours."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)


class Ticket:
    """A place in a line, kept as long as a process has it open."""

    def __init__(self, folder: LockDir, number: int, name: str, descriptor: int) -> None:
        self._folder, self._name = folder, name
        self.number = number
        self.descriptor: int | None = descriptor

    def before(self) -> list[dict[str, Any]]:
        """Returns what those before it say of themselves."""
        return self._folder.line(self.number)

    def leave(self) -> None:
        """Gives the place up; a second time does nothing."""
        if self.descriptor is not None:
            self._folder.remove(self._name)
            os.close(self.descriptor)
            self.descriptor = None


def write_record(descriptor: int, record: Mapping[str, Any]) -> None:
    """Says who holds a file that we hold. On a full disk it stays unsaid: the lock is what counts."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(dict(record)).encode(), 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def read_record(descriptor: int) -> dict[str, Any]:
    """Returns what a file says of its holder, nothing if it cannot be read: any user may have written it."""
    try:
        record = json.loads(os.pread(descriptor, _RECORD_LIMIT, 0))
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
