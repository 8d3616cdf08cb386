"""Watching a job from afar without ever harming it.

What always holds: looking is all that happens here. A broken link is an `Unreachable` update and another
try, later and later, for as long as the caller cares; it is never taken for the job's end. What was read
once is not read again: the cursor moves only when bytes have arrived.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import LinkError
from orchestrator.launch.base import ENDED, START, Cursor, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Clock", "Unreachable", "follow", "is_final"]

_FIRST_LOOK_S, _LAST_LOOK_S, _LOOK_GROWTH = 0.3, 2.0, 1.4
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def monotonic(self) -> float:
        """Returns seconds that never go back."""

    def sleep(self, seconds: float, /) -> None:
        """Waits."""


@dataclass(frozen=True)
class Unreachable:
    """The host does not answer now; the job is not touched by that."""

    message: str
    for_s: float
    retry_in_s: float


def is_final(seen: Observation) -> bool:
    """Says whether nothing more will come: the job has ended (or is not there) and all of it was read."""
    return seen.verdict in ENDED | {"absent", "broken"} and not seen.more


def follow(
    look: Callable[[Cursor], Observation], cursor: Cursor = START, clock: Clock = time
) -> Iterator[Observation | Unreachable]:
    """Looks at a job until its end and yields what each look brings.

    Args:
        look: one request to the host; LinkError means that it did not answer.
        cursor: where to begin.
    """
    pause, retry = _FIRST_LOOK_S, _FIRST_RETRY_S
    silent_since: float | None = None
    while True:
        try:
            seen = look(cursor)
        except LinkError as error:
            now = clock.monotonic()
            silent_since = now if silent_since is None else silent_since
            yield Unreachable(error.message, now - silent_since, retry)
            clock.sleep(retry)
            retry = min(retry * 2, _LAST_RETRY_S)
            continue
        silent_since, retry = None, _FIRST_RETRY_S
        news = bool(seen.events or seen.log)
        cursor = seen.cursor
        yield seen
        if is_final(seen):
            return
        pause = _FIRST_LOOK_S if news else min(pause * _LOOK_GROWTH, _LAST_LOOK_S)
        if not seen.more:
            clock.sleep(pause)
