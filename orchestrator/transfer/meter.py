"""How much of a parcel is there, counted over several lanes, for whoever shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from orchestrator.hosts.programs import PipeEnd

if TYPE_CHECKING:
    from threading import Event

    from orchestrator.transfer.parcel import Progress

__all__ = ["Meter"]


class Meter:
    """Counts bytes as they pass. The figure never falls and never exceeds the whole."""

    def __init__(self, there: int, total: int, progress: Progress | None) -> None:
        self._there, self._total, self._progress = there, total, progress
        self._lock = threading.Lock()
        self.sent = 0
        """Bytes that have passed, heads of chunks included."""

    def add(self, count: int) -> None:
        """Counts."""
        with self._lock:
            self.sent += count
            if self._progress:
                self._progress(min(self._there + self.sent, self._total), self._total)

    def count(self, pieces: Iterable[bytes | PipeEnd], over: Event) -> Iterator[bytes | PipeEnd]:
        """Passes pieces on and counts each when the next is asked for: then it was taken. Stops once it is `over`."""

        def poured(count: int) -> bool:
            self.add(count)
            return not over.is_set()

        for piece in pieces:
            if isinstance(piece, PipeEnd):
                piece.count = poured
                yield piece
            elif over.is_set():
                return
            else:
                yield piece
                self.add(len(piece))
