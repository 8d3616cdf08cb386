"""The bytes of one hop under watch: a session that is not there in time, or falls silent, ends.

What always holds: until `settled` every wait ends at the hop's deadline; afterwards a session from which no
byte came for DEAD_AFTER_S ends, whoever reads or writes at that moment, with nothing of the system's own
timers needed. `Keepalive` makes a healthy session speak more often than that. Time in which this process
itself stood still (a laptop asleep, Ctrl-Z) counts for nothing. Times are seconds.
"""

from __future__ import annotations

import errno
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramiko.transport import Transport

__all__ = ["DEAD_AFTER_S", "KEEPALIVE_S", "Keepalive", "SilentLinkError", "TooSlowError", "WatchedSocket"]

KEEPALIVE_S = 5.0
"""Silence after which the other side is asked for a sign of life."""
DEAD_AFTER_S = 15.0
"""Silence that ends a session."""
_STOOD_STILL_S = 2.0  # paramiko looks ten times a second; a longer gap means that this process did not run


class SilentLinkError(ConnectionError):
    """No byte came for DEAD_AFTER_S."""


class TooSlowError(ConnectionError):
    """The session did not stand at its deadline; `stage` says how far it had come."""

    def __init__(self, stage: str) -> None:
        super().__init__(errno.ETIMEDOUT, f"no session in time (stage: {stage})")
        self.stage = stage


class WatchedSocket:
    """A socket (or a channel through a gateway) for paramiko, which polls it with short timeouts.

    Args:
        sock: anything with recv, send, settimeout and close.
        deadline: when the session has to stand, by `time.monotonic`.
    """

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._settled = self._closed_here = False
        self._heard = self._looked = time.monotonic()
        self.stage = "banner"
        """How far the handshake has come, for a message."""
        self.fault: Exception | None = None
        """Why no more bytes pass, once that is so."""

    def recv(self, size: int) -> bytes:
        """Reads; see `socket.recv`. Raises SilentLinkError and TooSlowError beside what that raises."""
        try:
            data: bytes = self._sock.recv(size)
        except TimeoutError:
            self._check()
            raise
        except OSError as error:
            self._note(error)
            raise
        self._heard = self._looked = time.monotonic()
        if not data:
            self._note(ConnectionResetError(errno.ECONNRESET, "the other side closed the connection"))
        if not self._settled:
            if self.stage == "banner":
                self.stage = "key exchange"
            self._check()  # a server that sends now and then meets the deadline too
        return data

    def send(self, data: bytes) -> int:
        """Writes; see `socket.send`. Raises as `recv` does."""
        try:
            count: int = self._sock.send(data)
        except TimeoutError:
            self._check()
            raise
        except OSError as error:
            self._note(error)
            raise
        return count

    def settled(self) -> None:
        """Says that the session stands: from now on silence is the measure, no longer the deadline."""
        self._settled = True

    def silent_for(self) -> float:
        """Returns how long no byte came."""
        return time.monotonic() - self._heard

    def close(self) -> None:
        """Closes the socket. What fails after that is no fault of the link.

        A way through another host is a channel there, and closing it says so to that host: if that session has
        broken meanwhile nobody is left to be told (EOFError), and the channel is gone with it.
        """
        self._closed_here = True
        with suppress(EOFError):
            self._sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _note(self, fault: Exception) -> None:
        if self.fault is None and not self._closed_here:
            self.fault = fault

    def _check(self) -> None:
        now = time.monotonic()
        if now - self._looked > _STOOD_STILL_S:
            self._heard += now - self._looked
        self._looked = now
        if not self._settled and now > self._deadline:
            self._note(TooSlowError(self.stage))
        elif self._settled and now - self._heard > DEAD_AFTER_S:
            self._note(SilentLinkError(errno.ETIMEDOUT, f"no byte came for {DEAD_AFTER_S:.0f} s"))
        if isinstance(self.fault, (TooSlowError, SilentLinkError)):
            raise self.fault


class Keepalive(threading.Thread):
    """Asks the other side for a sign of life whenever it has been silent, as long as the session lives.

    paramiko's own keepalive wants no reply, so that a dead link never shows by it.
    """

    def __init__(self, transport: Transport, watched: WatchedSocket) -> None:
        super().__init__(name="orch-keepalive", daemon=True)
        self._transport, self._watched = transport, watched
        self._ended = threading.Event()

    def run(self) -> None:
        """Asks until the session has ended or `stop` was called."""
        from paramiko.ssh_exception import SSHException

        while not self._ended.wait(KEEPALIVE_S) and self._transport.is_active():
            if self._watched.silent_for() >= 0.9 * KEEPALIVE_S:
                with suppress(SSHException, OSError, EOFError):  # the session says itself how it ended
                    self._transport.global_request("keepalive@openssh.com", wait=True)

    def stop(self) -> None:
        """Lets the thread end."""
        self._ended.set()
