"""Has a worker stopped making progress? Progress is anything new in the files that it writes.

What always holds: neither the clock of the host nor its load counts, only whether the files have changed; a worker
that computes and says nothing cannot be told from one that hangs, so the limit has to be longer than its longest
silence; without a limit the dog sleeps.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from remote_payload.protocol import RESULT_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Watchdog"]

_LOOKS = 20
"""How often the files are looked at within the limit."""


class Watchdog:
    """Watches the files of a job.

    Args:
        folder: the job's.
        limit: seconds without progress after which it barks; None or 0: never.
    """

    def __init__(
        self, folder: Path, limit: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._limit, self._clock = folder, limit or 0.0, clock
        self._changed = self._looked = clock()
        self._seen = self._look()

    def barks(self) -> bool:
        """Says whether nothing has changed for longer than the limit."""
        now = self._clock()
        if not self._limit or now - self._looked < self._limit / _LOOKS:
            return False
        self._looked = now
        seen = self._look()
        if seen != self._seen:
            self._seen, self._changed = seen, now
        return now - self._changed >= self._limit

    def _look(self) -> frozenset[tuple[str, int, int]]:
        return frozenset(self._stamps()) if self._limit else frozenset()

    def _stamps(self) -> Iterator[tuple[str, int, int]]:
        names = [str(self._folder / name) for name in RESULT_FILES]
        for base, _, files in os.walk(self._folder / "shards"):  # the workers of a job that has several
            names += [os.path.join(base, name) for name in files]  # noqa: PTH118 - as os.walk gives them
        for name in names:
            try:
                status = os.stat(name)  # noqa: PTH116
            except FileNotFoundError:
                continue
            yield name, status.st_size, status.st_mtime_ns
