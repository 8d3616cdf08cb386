"""A host behind SSH: one session, opened at first use, kept, and shared by all its programs.

What always holds: the host key of every hop is verified by `verify` before anything is sent; every hop has its
own deadline to connect, and a session that falls silent ends (`watched`); each failure is a LinkError that
names host, address and stage. A closed host stays closed: whoever still uses it, in whatever thread, gets a
LinkError and opens nothing. Nothing of fabric or paramiko is imported before the first connection.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from orchestrator.errors import OrchError
from orchestrator.hosts.base import Completed, command_line
from orchestrator.hosts.channel import BrokenLinkError, DeadlineError, Exec
from orchestrator.hosts.dial import dial
from orchestrator.hosts.libraries import load_fabric
from orchestrator.hosts.linkfault import (
    broken_link,
    closed_here,
    connect_retry,
    explain_fault,
    overdue,
    program_failed,
)
from orchestrator.hosts.session import fetch_host_key, open_session
from orchestrator.hosts.watched import KEEPALIVE_S, Keepalive, WatchedSocket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fabric import Connection
    from paramiko.transport import Transport

    from orchestrator.hosts.base import Host
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.gateways import SharedGateways
    from orchestrator.hosts.known_hosts import HostKey

__all__ = ["SshHost"]


class SshHost:
    """A machine behind SSH, possibly behind gateways; see `Host`.

    `requests` counts the exec requests, `connections` the sessions opened to this host (gateways count on
    their own `gateway`): round trips are measured by them. `companion` is what `bulk` has found for this host: a
    session of the ssh program, closed with this one, or this one itself.
    """

    def __init__(self, endpoint: Endpoint, shared: SharedGateways | None = None) -> None:
        self.endpoint = endpoint
        self.gateway: SshHost | None = None
        if endpoint.gateway is not None:
            self.gateway = SshHost(endpoint.gateway) if shared is None else shared.open(endpoint.gateway)
        self._shares_gateway = shared is not None
        self.requests = 0
        self.connections = 0
        self.companion: Host | None = None
        self.companion_lock = threading.Lock()
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._watched: WatchedSocket | None = None
        self._keepalive: Keepalive | None = None
        self._closed = False
        self._failure: tuple[float, OrchError] | None = None

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.endpoint.name

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Runs a program to its end; see `Host.run`."""
        pieces = (stdin,) if isinstance(stdin, bytes) else stdin
        try:
            return Completed(*self._start(argv, env, timeout, limit=timeout).run(pieces))
        except DeadlineError as error:
            raise overdue(self.endpoint, argv, f"did not end within {timeout:g} s") from error
        except BrokenLinkError as error:
            raise broken_link(self.endpoint, argv, self._why() or str(error)) from error

    def stream(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        lend_agent: bool = False,
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`. It may be lent the user's agent."""
        try:
            with closing(self._start(argv, env, timeout, limit=None, lend_agent=lend_agent)) as program:
                yield from program.stream(timeout)
                code, errors = program.finish(timeout)
        except DeadlineError as error:
            raise overdue(self.endpoint, argv, f"was silent for {timeout:g} s") from error
        except BrokenLinkError as error:
            raise broken_link(self.endpoint, argv, self._why() or str(error)) from error
        if code != 0:
            raise program_failed(self.endpoint, argv, code, errors)

    def connect(self) -> None:
        """Opens the session now. Raises LinkError."""
        self.transport()

    def close(self) -> None:
        """Closes the session and those of its gateways, for good."""
        self._closed = True
        if self.companion is not None and self.companion is not self:
            self.companion.close()
        # Whoever opens the session now holds the lock, maybe for long; it looks at the flag when it stands.
        if self._lock.acquire(timeout=0.2):
            try:
                self._drop()
            finally:
                self._lock.release()
        if self.gateway is not None and not self._shares_gateway:
            self.gateway.close()

    def transport(self) -> Transport:
        """Returns the open session, opening it (again) if need be.

        Raises:
            LinkError: the host cannot be reached, or it or the user was not accepted, or `close` was called.
        """
        load_fabric()
        came = time.monotonic()
        with self._lock:
            self._check_open()
            if self._failure is not None and self._failure[0] >= came:
                raise self._failure[1]  # tried while we waited: the many behind a dead gateway fail together
            if self._connection is not None and not self._connection.transport.is_active():
                self._drop()
            if self._connection is None:
                try:
                    self._connection = connect_retry()(self._connect)
                except OrchError as error:
                    self._failure = (time.monotonic(), error)
                    raise
            session: Transport = self._connection.transport
            return session

    def fetch_host_key(self) -> HostKey:
        """Returns the key that the host shows, without logging in to it. Gateways are verified as ever."""
        load_fabric()
        return connect_retry()(self._fetch_host_key)

    def _fetch_host_key(self) -> HostKey:
        return fetch_host_key(self.endpoint, self._open_way())

    def _drop(self) -> None:
        if self._keepalive is not None:
            self._keepalive.stop()
        if self._connection is not None:
            self._connection.client.close()
        self._connection = self._keepalive = None

    def _start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        timeout: float,
        limit: float | None,
        lend_agent: bool = False,
    ) -> Exec:
        transport = self.transport()
        with self._lock:
            self.requests += 1
        return Exec(transport, command_line(argv, env, limit), timeout, lend_agent=lend_agent)

    def _check_open(self) -> None:
        if self._closed:
            raise closed_here(self.endpoint)

    def _connect(self) -> Connection:
        self._check_open()
        watched = self._open_way()
        connection = open_session(self.endpoint, watched)
        self._watched, self._keepalive = watched, Keepalive(connection.transport, watched)
        self._keepalive.start()
        self.connections += 1
        if self._closed:  # while it was being opened
            self._drop()
            connection.client.close()
            self._check_open()
        return connection

    def _open_way(self) -> WatchedSocket:
        """Opens the way for the bytes: through the gateway's session, or one of our own."""
        endpoint = self.endpoint
        gateway = None if self.gateway is None else self.gateway.transport()
        deadline = time.monotonic() + endpoint.connect_timeout
        stage = "connect" if self.gateway is None else f"forwarding through {self.gateway.name}"
        try:
            if gateway is None:
                return WatchedSocket(dial(endpoint, deadline), deadline)
            channel = gateway.open_channel(
                "direct-tcpip",
                (endpoint.address, endpoint.port),
                ("127.0.0.1", 0),
                timeout=endpoint.connect_timeout,
            )
        except Exception as error:
            raise explain_fault(endpoint, error, stage) from error
        return WatchedSocket(channel, deadline)

    def _why(self) -> str:
        """Says which hop failed and how: the outermost one, since those behind it fall silent with it."""
        if self.gateway is not None and (blamed := self.gateway._why()):
            return f"its gateway {self.gateway.name} ({self.gateway.endpoint.where}): {blamed}"
        watched = self._watched
        if watched is None:
            return ""
        if watched.fault is not None:
            return getattr(watched.fault, "strerror", None) or str(watched.fault)
        silent = watched.silent_for()
        return f"no byte came for {silent:.0f} s" if silent > 2 * KEEPALIVE_S else ""
