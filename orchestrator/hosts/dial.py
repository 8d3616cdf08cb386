"""The way for the bytes of a hop: a TCP connection or a proxy command's, opened before a deadline.

What always holds: looking up a name counts against the deadline too; each of a name's addresses gets its
share of the time; what is returned is a real socket, whose timeouts work and which ends when the other side
does. `proxy_command` comes from the user's own ssh configuration and is run as OpenSSH runs it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["LookupTooSlowError", "ProxySocket", "dial"]

_LEAST_S = 0.5  # an address is given at least so long, however many there are


class LookupTooSlowError(OSError):
    """The name had no address yet when the deadline came."""


def dial(endpoint: Endpoint, deadline: float) -> Any:
    """Opens the way to an endpoint that no gateway of ours stands before.

    Raises:
        OSError: as the system says it; TimeoutError at the deadline, LookupTooSlowError while looking up.
    """
    if endpoint.proxy_command is not None:
        return ProxySocket(endpoint.proxy_command)
    return _connect(endpoint, deadline)


def _connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    places = _look_up(endpoint.address, endpoint.port, deadline)
    for index, (family, kind, protocol, _, place) in enumerate(places):
        left = deadline - time.monotonic()
        last = index == len(places) - 1
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(_LEAST_S, left if last else left / (len(places) - index)))
            sock.connect(place)
        except OSError:
            sock.close()
            if last or time.monotonic() >= deadline:
                raise
        else:
            _set_options(sock)
            return sock
    raise OSError(f"the name {endpoint.address!r} has no address")


def _look_up(address: str, port: int, deadline: float) -> list[Any]:
    """getaddrinfo, which has no timeout of its own, in a thread that may be left behind."""
    answer: list[Any] = []

    def look() -> None:
        try:
            answer.append(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    thread = threading.Thread(target=look, name="orch-lookup", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not answer:
        raise LookupTooSlowError(f"the name {address!r} was not looked up in time")
    if isinstance(answer[0], UnicodeError):
        raise socket.gaierror(socket.EAI_NONAME, "it cannot be the name of a host")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return list(answer[0])


def _set_options(sock: socket.socket) -> None:
    # No TCP_USER_TIMEOUT: with it the system forgets a connection that `watched` gives up before it could tell the
    # host, where sshd then keeps its half for hours. Without it the system goes on telling once the link is back.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class ProxySocket:
    """A proxy command's standard input and output as one socket; `words` is what it said on stderr."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._sock = ours
        self._words = bytearray()
        self._listener = threading.Thread(target=self._listen, name="orch-proxy-stderr", daemon=True)
        self._listener.start()
        self.recv: Callable[[int], bytes] = ours.recv
        self.send: Callable[[bytes], int] = ours.send

    def words(self) -> str:
        """Returns the end of what the command printed to stderr."""
        self._listener.join(0.2)
        return bytes(self._words[-300:]).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Closes the socket and ends the command."""
        self._sock.close()
        if self._process.poll() is None:
            self._process.terminate()
        threading.Thread(target=self._reap, name="orch-proxy-end", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _listen(self) -> None:
        stream = self._process.stderr
        while stream is not None and (piece := os.read(stream.fileno(), 1024)):
            self._words += piece
            del self._words[:-4096]

    def _reap(self) -> None:
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(5)
        if self._process.stderr is not None and not self._listener.is_alive():
            self._process.stderr.close()
