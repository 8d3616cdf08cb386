"""Locks on folders of the local record: they are the kernel's, so that nobody who dies keeps one.

What always holds: on a file system that has no locks, what is told to wait does not, and what is not known to be free
is left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["locked", "new_folder", "remove_if_free"]


@contextmanager
def locked(folder: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Holds a folder while the block runs; calls `waiting` if somebody else holds it, and waits for them.

    Raises:
        OSError: it is not there.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _taken(descriptor):
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Takes the lock, if nobody else has it; says whether the caller may go on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder that is no leftover for anybody while the block runs; what is there afterwards is removed.

    Raises:
        OSError: it cannot be made, or is there.
    """
    descriptor = _made(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _made(folder: Path) -> int:
    while True:
        folder.mkdir()
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is(folder, descriptor):
                return descriptor
            os.close(descriptor)  # it was taken for a leftover in the moment before it was locked


def remove_if_free(folder: Path) -> None:
    """Removes a folder that nobody holds."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is(folder, descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # somebody holds it, or nobody can say
        return
    finally:
        os.close(descriptor)


def _is(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))  # noqa: PTH116
    except FileNotFoundError:
        return False
