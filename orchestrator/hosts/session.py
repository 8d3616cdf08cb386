"""One SSH session on a hop whose bytes already pass: keys exchanged, host key verified, logged in.

What always holds: nothing is sent to a host whose key `verify` has not accepted; whatever goes wrong is an
OrchError with the hop and the stage; a session that was not opened whole is closed whole.
"""

from __future__ import annotations

import getpass
import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

from orchestrator.hosts.hostcert import CERTIFICATE_KINDS
from orchestrator.hosts.known_hosts import HostKey, KnownHosts
from orchestrator.hosts.linkfault import explain_fault
from orchestrator.hosts.login import log_in
from orchestrator.hosts.verify import check_host_key, marker_lines
from orchestrator.hosts.watched import DEAD_AFTER_S, TooSlowError

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko.pkey import PKey
    from paramiko.transport import Transport

    from orchestrator.errors import OrchError
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.watched import WatchedSocket

__all__ = ["fetch_host_key", "open_session"]

_LATER_S = 5.0  # paramiko's own limits, a step at a time, come after the hop's one deadline
_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


def open_session(endpoint: Endpoint, watched: WatchedSocket) -> Connection:
    """Opens the session that programs run on.

    Raises:
        LinkError: the host key or the login was refused, or the session did not stand in time.
    """
    from fabric import Config, Connection
    from paramiko.config import SSHConfig

    _quiet_paramiko()
    patience = endpoint.connect_timeout + _LATER_S
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
            "auth_strategy": _Login(endpoint),
            "transport_factory": _TransportFor(endpoint),
        },
    )
    connection.client.set_missing_host_key_policy(_StrictPolicy(endpoint, watched))
    try:
        connection.open()
    except BaseException as error:
        connection.client.close()
        watched.close()
        if isinstance(error, Exception):
            raise _explain(endpoint, watched, error) from error
        raise
    watched.settled()
    return connection


def fetch_host_key(endpoint: Endpoint, watched: WatchedSocket) -> HostKey:
    """Returns the key that a host shows, and closes the way to it. Raises LinkError."""
    _quiet_paramiko()
    try:
        with closing(_TransportFor(endpoint)(watched)) as transport:
            transport.banner_timeout = patience = endpoint.connect_timeout + _LATER_S
            transport.start_client(timeout=patience)
            return _host_key(transport.get_remote_server_key())
    except Exception as error:
        raise _explain(endpoint, watched, error) from error
    finally:
        watched.close()


def _explain(endpoint: Endpoint, watched: WatchedSocket, error: Exception) -> OrchError:
    # A missed deadline looks like many things to paramiko; the socket knows better.
    first = watched.fault if isinstance(watched.fault, TooSlowError) else error
    said = watched.words() if endpoint.proxy_command is not None else ""
    return explain_fault(endpoint, first, said=said)


class _TransportFor:
    """Makes sessions that ask first for the key types that are on record for a host."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __call__(self, sock: Any, **options: Any) -> Transport:
        from paramiko.transport import Transport

        transport = Transport(sock, **options)
        security = transport.get_security_options()
        book, name = KnownHosts(self._endpoint.known_hosts), self._endpoint.known_as
        names = [kind for wanted in book.kinds(name) for kind in (_RSA if wanted == "ssh-rsa" else (wanted,))]
        if any(entry.marker == "@cert-authority" for entry in marker_lines(self._endpoint, book)):
            names = [*CERTIFICATE_KINDS, *names]
        first = [kind for kind in names if kind in (*security.key_types, *CERTIFICATE_KINDS)]
        security.key_types = (*first, *(other for other in security.key_types if other not in first))
        return transport


class _StrictPolicy:
    """Called by paramiko with every host key, because none is ever loaded into its own store."""

    def __init__(self, endpoint: Endpoint, watched: WatchedSocket) -> None:
        self._endpoint, self._watched = endpoint, watched

    def missing_host_key(self, _client: Any, _hostname: str, key: PKey) -> None:
        self._watched.stage = "login"
        check_host_key(self._endpoint, _host_key(key))


class _Login:
    """Called by paramiko once the host key was accepted."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def authenticate(self, transport: Transport) -> None:
        log_in(self._endpoint, transport, self._endpoint.user or getpass.getuser())


def _quiet_paramiko() -> None:
    """Keeps paramiko's thread tracebacks off stderr; whoever configures logging still gets them."""
    logger = logging.getLogger("paramiko")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


def _host_key(key: PKey) -> HostKey:
    certificate = key.public_blob
    return HostKey(key.get_name(), key.asbytes(), certificate.key_blob if certificate else b"")
