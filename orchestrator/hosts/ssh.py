"""A host behind SSH: one session, opened at first use, kept, and shared by all its programs.

What always holds: the host key of every hop is verified by `verify` before anything is sent; every step has
a deadline; each failure is a LinkError that names host, address and stage. A closed host stays closed: whoever
still uses it, in whatever thread, gets a LinkError and opens nothing. Nothing of fabric or paramiko is
imported before the first connection.
"""

from __future__ import annotations

import logging
import shlex
import socket
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.base import Completed, command_line
from orchestrator.hosts.channel import BrokenLinkError, DeadlineError, Exec
from orchestrator.hosts.known_hosts import HostKey, KnownHosts
from orchestrator.hosts.libraries import load_fabric
from orchestrator.hosts.linkfault import explain_fault, is_transient
from orchestrator.hosts.verify import check_host_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fabric import Connection
    from paramiko.pkey import PKey
    from paramiko.transport import Transport
    from tenacity import Retrying

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["SshHost"]

KEEPALIVE_S = 5
"""Seconds between keepalive messages on an idle session."""
DEAD_AFTER_S = 15
"""Seconds after which unacknowledged bytes end a session, where the system can do that."""
_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


class SshHost:
    """A machine behind SSH, possibly behind gateways; see `Host`.

    `requests` counts the exec requests, `connections` the sessions opened to this host (gateways count on
    their own `gateway`): round trips are measured by them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.gateway = SshHost(endpoint.gateway) if endpoint.gateway else None
        self.requests = 0
        self.connections = 0
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = False

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
            return Completed(*self._start(argv, env, timeout).run(pieces))
        except DeadlineError as error:
            raise self._too_slow(argv, f"did not end within {timeout:g} s") from error
        except BrokenLinkError as error:
            raise self._broken(argv, error) from error

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        try:
            with closing(self._start(argv, env, timeout)) as program:
                yield from program.stream(timeout)
                code, errors = program.finish(timeout)
        except DeadlineError as error:
            raise self._too_slow(argv, f"was silent for {timeout:g} s") from error
        except BrokenLinkError as error:
            raise self._broken(argv, error) from error
        if code != 0:
            ended = f"exited with {code}" if code > 0 else "died of a signal"
            text = errors.decode("utf-8", "replace").strip()[-2000:]
            raise HostFailedError(
                f"{self.name}: {_shown(argv)} {ended}" + (f": {text}" if text else ""),
                f"run it on {self.name} by hand to see more",
                host=self.name,
                exit_code=code,
                stderr=text,
            )

    def close(self) -> None:
        """Closes the session and those of its gateways, for good."""
        self._closed = True
        # Whoever opens the session now holds the lock, maybe for long; it looks at the flag when it stands.
        if self._lock.acquire(timeout=0.2):
            try:
                if self._connection is not None:
                    self._connection.client.close()
                    self._connection = None
            finally:
                self._lock.release()
        if self.gateway is not None:
            self.gateway.close()

    def transport(self) -> Transport:
        """Returns the open session, opening it (again) if need be.

        Raises:
            LinkError: the host cannot be reached, or it or the user was not accepted, or `close` was called.
        """
        load_fabric()
        with self._lock:
            self._check_open()
            if self._connection is not None and not self._connection.transport.is_active():
                self._connection.client.close()
                self._connection = None
            if self._connection is None:
                self._connection = connect_retry()(self._connect)
            session: Transport = self._connection.transport
            return session

    def fetch_host_key(self) -> HostKey:
        """Returns the key that the host shows, without logging in to it. Gateways are verified as ever."""
        load_fabric()
        return connect_retry()(self._fetch_host_key)

    def _fetch_host_key(self) -> HostKey:
        quiet_paramiko()
        sock = self._socket()
        try:
            with closing(self._new_transport(sock)) as transport:
                transport.banner_timeout = self.endpoint.connect_timeout
                transport.start_client(timeout=self.endpoint.connect_timeout)
                return _host_key(transport.get_remote_server_key())
        except Exception as error:
            raise explain_fault(self.endpoint, error) from error
        finally:
            sock.close()

    def _start(self, argv: Sequence[str], env: Mapping[str, str] | None, timeout: float) -> Exec:
        transport = self.transport()
        with self._lock:
            self.requests += 1
        return Exec(transport, command_line(argv, env), timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(
                f"{self.name} ({self.endpoint.where}): the connection was closed here",
                "run the command again",
                host=self.name,
                stage="closed",
            )

    def _connect(self) -> Connection:
        self._check_open()
        from fabric import Config, Connection
        from paramiko.config import SSHConfig

        quiet_paramiko()
        endpoint = self.endpoint
        sock = self._socket()
        connection = None
        try:
            connection = Connection(
                endpoint.address,
                user=endpoint.user,
                port=endpoint.port,
                config=Config(ssh_config=SSHConfig(), lazy=True),  # the Endpoint has all of it already
                connect_kwargs={
                    "sock": sock,
                    "timeout": endpoint.connect_timeout,
                    "banner_timeout": endpoint.connect_timeout,
                    "auth_timeout": endpoint.connect_timeout,
                    "channel_timeout": endpoint.connect_timeout,
                    "key_filename": [str(path) for path in endpoint.identity_files],
                    "allow_agent": not endpoint.only_identity,
                    "look_for_keys": not endpoint.only_identity,
                    "transport_factory": self._new_transport,
                },
            )
            connection.client.set_missing_host_key_policy(_StrictPolicy(endpoint))
            connection.open()
            self._check_open()
        except BaseException as error:
            if connection is not None:
                connection.client.close()
            sock.close()
            if isinstance(error, Exception):
                raise explain_fault(endpoint, error) from error
            raise
        connection.transport.set_keepalive(KEEPALIVE_S)
        self.connections += 1
        return connection

    def _socket(self) -> Any:
        """Opens the way for the bytes: a TCP socket, a channel through the gateway, or a proxy command."""
        endpoint = self.endpoint
        if self.gateway is not None:
            way = self.gateway.transport()
            try:
                return way.open_channel(
                    "direct-tcpip",
                    (endpoint.address, endpoint.port),
                    ("127.0.0.1", 0),
                    timeout=endpoint.connect_timeout,
                )
            except Exception as error:
                raise explain_fault(
                    endpoint, error, stage=f"forwarding through {self.gateway.name}"
                ) from error
        try:
            if endpoint.proxy_command is not None:
                from paramiko.proxy import ProxyCommand

                return ProxyCommand(endpoint.proxy_command)
            return _tcp_socket(endpoint)
        except OSError as error:
            raise explain_fault(endpoint, error, stage="connect") from error

    def _new_transport(self, sock: Any, **options: Any) -> Transport:
        """Makes a session that asks first for the key types that are on record for this host."""
        from paramiko.transport import Transport

        transport = Transport(sock, **options)
        security = transport.get_security_options()
        wanted = KnownHosts(self.endpoint.known_hosts).kinds(self.endpoint.known_as)
        names = [name for kind in wanted for name in (_RSA if kind == "ssh-rsa" else (kind,))]
        first = [name for name in names if name in security.key_types]
        security.key_types = (*first, *(name for name in security.key_types if name not in first))
        return transport

    def _too_slow(self, argv: Sequence[str], what: str) -> LinkError:
        return LinkError(
            f"{self.name} ({self.endpoint.where}): {_shown(argv)} {what}; it may still be running there",
            "look at the host's load and the link, then try again",
            host=self.name,
            address=self.endpoint.where,
            stage="deadline",
        )

    def _broken(self, argv: Sequence[str], error: Exception) -> LinkError:
        return LinkError(
            f"{self.name} ({self.endpoint.where}): the link broke while {_shown(argv)} ran: {error}; "
            "what became of it is not known",
            "try again once the host answers (`ssh` to it by hand shows whether it does)",
            host=self.name,
            address=self.endpoint.where,
            stage="session",
        )


class _StrictPolicy:
    """Called by paramiko with every host key, because none is ever loaded into its own store."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def missing_host_key(self, _client: Any, _hostname: str, key: PKey) -> None:
        check_host_key(self._endpoint, _host_key(key))


def connect_retry() -> Retrying:
    """The policy for connecting: two more quick tries if refused or cut, never for a key or a login."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

    return Retrying(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(3),
        wait=wait_fixed(0.2),
        reraise=True,
    )


def quiet_paramiko() -> None:
    """Keeps paramiko's thread tracebacks off stderr; whoever configures logging still gets them."""
    logger = logging.getLogger("paramiko")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


def _tcp_socket(endpoint: Endpoint) -> socket.socket:
    sock = socket.create_connection((endpoint.address, endpoint.port), timeout=endpoint.connect_timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)
    if user_timeout is not None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, user_timeout, DEAD_AFTER_S * 1000)
    return sock


def _host_key(key: PKey) -> HostKey:
    return HostKey(key.get_name(), key.asbytes())


def _shown(argv: Sequence[str]) -> str:
    text = shlex.join(argv)
    return f"`{text[:77]}…`" if len(text) > 80 else f"`{text}`"
