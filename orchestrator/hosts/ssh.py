"""A host behind SSH: one session, opened at first use, kept, and shared by all its programs.

What always holds: the host key of every hop is verified by `verify` before anything is sent; every hop has its
own deadline to connect, and a session that falls silent ends (`watched`); each failure is a LinkError that
names host, address and stage. A closed host stays closed: whoever still uses it, in whatever thread, gets a
LinkError and opens nothing. Nothing of fabric or paramiko is imported before the first connection.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts.base import Completed, command_line, shown
from orchestrator.hosts.channel import BrokenLinkError, DeadlineError, Exec
from orchestrator.hosts.dial import dial
from orchestrator.hosts.hostcert import CERTIFICATE_KINDS
from orchestrator.hosts.known_hosts import HostKey, KnownHosts
from orchestrator.hosts.libraries import load_fabric
from orchestrator.hosts.linkfault import explain_fault, is_transient
from orchestrator.hosts.verify import check_host_key
from orchestrator.hosts.watched import DEAD_AFTER_S, KEEPALIVE_S, Keepalive, TooSlowError, WatchedSocket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fabric import Connection
    from paramiko.pkey import PKey
    from paramiko.transport import Transport
    from tenacity import Retrying

    from orchestrator.errors import OrchError
    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["SshHost"]

_LATER_S = 5.0  # paramiko's own limits, a step at a time, come after the hop's one deadline
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
        self._watched: WatchedSocket | None = None
        self._keepalive: Keepalive | None = None
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
            return Completed(*self._start(argv, env, timeout, limit=timeout).run(pieces))
        except DeadlineError as error:
            raise self._too_slow(argv, f"did not end within {timeout:g} s") from error
        except BrokenLinkError as error:
            raise self._broken(argv, error) from error

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        """Runs a program and yields its stdout as it comes; see `Host.stream`."""
        try:
            with closing(self._start(argv, env, timeout, limit=None)) as program:
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
                f"{self.name}: {shown(argv)} {ended}" + (f": {text}" if text else ""),
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
                self._drop()
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
                self._drop()
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
        watched = self._open_way()
        try:
            with closing(self._new_transport(watched)) as transport:
                transport.banner_timeout = patience = self.endpoint.connect_timeout + _LATER_S
                transport.start_client(timeout=patience)
                return _host_key(transport.get_remote_server_key())
        except Exception as error:
            raise self._explain(watched, error) from error
        finally:
            watched.close()

    def _drop(self) -> None:
        if self._keepalive is not None:
            self._keepalive.stop()
        if self._connection is not None:
            self._connection.client.close()
        self._connection = self._keepalive = None

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None, timeout: float, limit: float | None
    ) -> Exec:
        transport = self.transport()
        with self._lock:
            self.requests += 1
        return Exec(transport, command_line(argv, env, limit), timeout)

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
        watched = self._open_way()
        patience = endpoint.connect_timeout + _LATER_S
        connection = None
        try:
            connection = Connection(
                endpoint.address,
                user=endpoint.user,
                port=endpoint.port,
                config=Config(ssh_config=SSHConfig(), lazy=True),  # the Endpoint has all of it already
                connect_kwargs={
                    "sock": watched,
                    "timeout": patience,
                    "banner_timeout": patience,
                    "auth_timeout": patience,
                    "channel_timeout": DEAD_AFTER_S,
                    "key_filename": [str(path) for path in endpoint.identity_files],
                    "allow_agent": not endpoint.only_identity,
                    "look_for_keys": not endpoint.only_identity,
                    "transport_factory": self._new_transport,
                },
            )
            connection.client.set_missing_host_key_policy(_StrictPolicy(endpoint, watched))
            connection.open()
            self._check_open()
        except BaseException as error:
            if connection is not None:
                connection.client.close()
            watched.close()
            if isinstance(error, Exception):
                raise self._explain(watched, error) from error
            raise
        watched.settled()
        self._watched, self._keepalive = watched, Keepalive(connection.transport, watched)
        self._keepalive.start()
        self.connections += 1
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

    def _explain(self, watched: WatchedSocket, error: Exception) -> OrchError:
        # A missed deadline looks like many things to paramiko; the socket knows better.
        first = watched.fault if isinstance(watched.fault, TooSlowError) else error
        said = watched.words() if self.endpoint.proxy_command is not None else ""
        return explain_fault(self.endpoint, first, said=said)

    def _new_transport(self, sock: Any, **options: Any) -> Transport:
        """Makes a session that asks first for the key types that are on record for this host."""
        from paramiko.transport import Transport

        transport = Transport(sock, **options)
        security = transport.get_security_options()
        book, name = KnownHosts(self.endpoint.known_hosts), self.endpoint.known_as
        names = [kind for wanted in book.kinds(name) for kind in (_RSA if wanted == "ssh-rsa" else (wanted,))]
        if any(entry.marker == "@cert-authority" for entry in book.entries(name)):
            names = [*CERTIFICATE_KINDS, *names]
        first = [kind for kind in names if kind in (*security.key_types, *CERTIFICATE_KINDS)]
        security.key_types = (*first, *(other for other in security.key_types if other not in first))
        return transport

    def _too_slow(self, argv: Sequence[str], what: str) -> LinkError:
        return LinkError(
            f"{self.name} ({self.endpoint.where}): {shown(argv)} {what}; it may still be running there",
            "look at the host's load and the link, then try again",
            host=self.name,
            address=self.endpoint.where,
            stage="deadline",
        )

    def _broken(self, argv: Sequence[str], error: Exception) -> LinkError:
        return LinkError(
            f"{self.name} ({self.endpoint.where}): the link broke while {shown(argv)} ran: "
            f"{self._why() or error}; what became of it is not known",
            "try again once the host answers (`ssh` to it by hand shows whether it does)",
            host=self.name,
            address=self.endpoint.where,
            stage="session",
        )

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


class _StrictPolicy:
    """Called by paramiko with every host key, because none is ever loaded into its own store."""

    def __init__(self, endpoint: Endpoint, watched: WatchedSocket) -> None:
        self._endpoint, self._watched = endpoint, watched

    def missing_host_key(self, _client: Any, _hostname: str, key: PKey) -> None:
        self._watched.stage = "login"
        check_host_key(self._endpoint, _host_key(key))


def connect_retry() -> Retrying:
    """The policy for connecting: two more quick tries if refused or cut, never for a key or a login."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

    return Retrying(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(3),
        wait=wait_random(0.1, 0.6),  # many hosts that were cut at once do not all come back at once
        reraise=True,
    )


def quiet_paramiko() -> None:
    """Keeps paramiko's thread tracebacks off stderr; whoever configures logging still gets them."""
    logger = logging.getLogger("paramiko")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


def _host_key(key: PKey) -> HostKey:
    certificate = key.public_blob
    return HostKey(key.get_name(), key.asbytes(), certificate.key_blob if certificate else b"")
