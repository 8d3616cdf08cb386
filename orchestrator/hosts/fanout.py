"""The same work on many hosts at once: bounded, each host with its own deadline and verdict.

What always holds: every host gets exactly one verdict, and none is raised (but for a fault of orch itself, which
ends everything). A host that cannot be reached holds nobody up: only hosts that answered take one of the places to
work, and one that is slow to answer gives its place to connect to the next after a moment. Starts are spread a
little, so that a gateway or a file server is not met by all in one instant. Whoever stops listening closes all.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestrator.errors import LinkError, OrchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.hosts.base import Host

__all__ = ["AT_ONCE", "Verdict", "fan_out"]

T = TypeVar("T")

AT_ONCE = 8
"""Hosts that work at the same time, if nothing else is said."""
_CONNECTING = 16
_PATIENCE_S = 2.0  # how long a host that does not answer keeps others from connecting
_SPREAD_S = 0.02  # a host, on average
_LOOK_S = 0.25
_CLOSE_S = 1.0  # what whoever stops listening waits at most


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """What came of one host: a result or an error, and the seconds from its start."""

    host: str
    seconds: float
    result: T | None = None
    error: OrchError | None = None


def fan_out(
    names: Sequence[str],
    open_host: Callable[[str], Host],
    work: Callable[[str, Host], T],
    *,
    deadline_s: float,
    at_once: int = AT_ONCE,
    keep_open: bool = False,
) -> Iterator[Verdict[T]]:
    """Does the work on every host and yields their verdicts as they come.

    Args:
        names: the hosts, each once.
        open_host: the way to a host, not yet connected.
        work: what is done on a connected host, in a thread of its own.
        deadline_s: seconds that the work on a host may take; it is cut off then.
        at_once: hosts that work at the same time.
        keep_open: whether the hosts stay open after their work (not after their deadline).
    """
    crowd = _Crowd(open_host, work, deadline_s, at_once, keep_open)
    try:
        yield from crowd.run(names)
    finally:
        crowd.close()


class _Crowd(Generic[T]):
    def __init__(
        self,
        open_host: Callable[[str], Host],
        work: Callable[[str, Host], T],
        deadline_s: float,
        at_once: int,
        keep_open: bool,
    ) -> None:
        self._open_host, self._work = open_host, work
        self._deadline_s, self._keep_open = deadline_s, keep_open
        self._connecting = _Places(_CONNECTING, _PATIENCE_S)
        self._working = _Places(max(1, at_once), deadline_s)
        self._said: queue.SimpleQueue[Verdict[T] | BaseException] = queue.SimpleQueue()
        self._hosts: dict[str, Host] = {}
        self._until: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._stopped = threading.Event()

    def run(self, names: Sequence[str]) -> Iterator[Verdict[T]]:
        waiting = set(names)
        spread = _SPREAD_S * len(waiting) if len(waiting) > _CONNECTING else 0.0
        for name in dict.fromkeys(names):
            pause = random.uniform(0, spread)  # noqa: S311 - nothing secret
            threading.Thread(target=self._one, args=(name, pause), name=f"orch-{name}", daemon=True).start()
        while waiting:
            try:
                said = self._said.get(timeout=_LOOK_S)
            except queue.Empty:
                pass
            else:
                if isinstance(said, BaseException):
                    raise said
                if said.host in waiting:  # else its deadline came first
                    waiting.discard(said.host)
                    yield said
            for name in self._overdue(waiting):
                waiting.discard(name)
                yield self._cut_off(name)

    def close(self) -> None:
        self._stopped.set()
        if self._keep_open:
            return
        # Closing ends the thread that waits on a host; one that is just connecting may hold its own close up.
        closers = [threading.Thread(target=host.close, daemon=True) for host in list(self._hosts.values())]
        for closer in closers:
            closer.start()
        until = time.monotonic() + _CLOSE_S
        for closer in closers:
            closer.join(max(0.0, until - time.monotonic()))

    def _one(self, name: str, pause: float) -> None:
        if self._stopped.wait(pause):
            return
        started = self._started[name] = time.monotonic()
        try:
            with self._connecting.hold():
                if self._stopped.is_set():
                    return
                host = self._hosts[name] = self._open_host(name)
                host.connect()
            with self._working.hold():
                self._until[name] = time.monotonic() + self._deadline_s
                result = None if self._stopped.is_set() else self._work(name, host)
            verdict = Verdict(name, time.monotonic() - started, result)
        except OrchError as error:
            verdict = Verdict(name, time.monotonic() - started, error=error)
        except BaseException as error:  # noqa: BLE001 - raised where somebody listens
            self._said.put(error)
            return
        finally:
            if not self._keep_open and name in self._hosts:
                self._hosts[name].close()
        self._until.pop(name, None)
        self._said.put(verdict)

    def _overdue(self, waiting: set[str]) -> list[str]:
        now = time.monotonic()
        return [name for name, until in list(self._until.items()) if now > until and name in waiting]

    def _cut_off(self, name: str) -> Verdict[T]:
        self._hosts[name].close()
        error = LinkError(
            f"{name}: not done after {self._deadline_s:g} s; it was cut off here and may go on there",
            "look at the host's load and the link, then try again",
            host=name,
            stage="deadline",
        )
        return Verdict(name, time.monotonic() - self._started[name], error=error)


class _Places:
    """So many may be inside at once; whoever stays longer than `patience` no longer counts."""

    def __init__(self, count: int, patience: float) -> None:
        self._free = threading.Semaphore(count)
        self._patience = patience

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._free.acquire()
        left = threading.Lock()  # taken by whichever comes first: leaving, or the end of patience

        def leave() -> None:
            if left.acquire(blocking=False):
                self._free.release()

        timer = threading.Timer(self._patience, leave)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            leave()
