"""Logging in with keys as OpenSSH does: files, certificates and the agent that its configuration names.

What always holds: only public keys are tried, each once, never more than the configuration allows; a key that
cannot be used (no passphrase known, a kind that the library lacks) is passed over and told in the error if
nothing else is accepted; an agent that does not answer costs a few seconds, never more.
"""

from __future__ import annotations

import base64
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.hosts.libraries import load_paramiko

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paramiko.pkey import PKey
    from paramiko.transport import Transport

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["LoginError", "log_in"]

_AGENT_S = 5.0


@dataclass(eq=False)
class LoginError(Exception):
    """No key was accepted. `tried` and `unusable` name the keys; `allowed` is what the host asks for instead."""

    tried: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    second_factor: bool = False


def log_in(endpoint: Endpoint, transport: Transport, user: str) -> None:
    """Logs in on a session whose host key was accepted.

    Raises:
        LoginError: no key was accepted.
        Exception: what ended the session meanwhile.
    """
    load_paramiko()
    record = LoginError()
    with _agent_keys(endpoint, record) as agent:
        _try_keys(transport, user, _keys(endpoint, agent, record), record)


def _try_keys(transport: Transport, user: str, keys: Iterator[tuple[str, PKey]], record: LoginError) -> None:
    from paramiko.ssh_exception import (
        AuthenticationException,
        BadAuthenticationType,
        SSHException,
    )

    for name, key in keys:
        record.tried.append(name)
        try:
            further = transport.auth_publickey(user, key)
        except BadAuthenticationType as error:
            record.allowed = list(error.allowed_types)
            break
        except (AuthenticationException, SSHException) as error:
            if not transport.is_active():
                if isinstance(error, AuthenticationException):
                    break  # the host has had enough
                raise
            continue
        if transport.is_authenticated():
            return
        record.allowed, record.second_factor = list(further), True
        break
    raise record


def _keys(endpoint: Endpoint, agent: dict[bytes, Any], record: LoginError) -> Iterator[tuple[str, PKey]]:
    """Yields what to try, each key once: certificates and named files, then the agent, then the usual files."""
    seen: set[bytes] = set()

    def fresh(name: str, key: Any) -> Iterator[tuple[str, PKey]]:
        blob = _shown_blob(key)
        if blob not in seen:
            seen.add(blob)
            yield name, key

    def files(paths: tuple[Path, ...]) -> Iterator[tuple[str, PKey]]:
        for path in paths:
            for name, key in _file_keys(path, endpoint.certificate_files, agent, record):
                yield from fresh(name, key)

    yield from files(endpoint.identity_files)
    if not endpoint.identities_only:
        for key in agent.values():
            yield from fresh(f"the agent's {key.comment}", key)
    yield from files(endpoint.usual_identities)


def _file_keys(
    path: Path, certificates: tuple[Path, ...], agent: dict[bytes, Any], record: LoginError
) -> Iterator[tuple[str, PKey]]:
    """Yields a file's key with each certificate that belongs to it, then alone; the agent's if it is locked."""
    from paramiko.pkey import PKey
    from paramiko.ssh_exception import PasswordRequiredException

    if not path.is_file():
        return
    held = agent.get(_public_blob(path))
    if held is not None:  # the agent has it open already, whatever the file needs
        beside = path.with_name(path.name + "-cert.pub")
        for certificate in (*certificates, beside):
            if (blob := _public_blob(certificate, suffix="")) in agent:
                yield f"{certificate} (agent)", agent[blob]
        yield f"{path} (agent)", held
        return
    try:
        key = PKey.from_path(path)
    except (PasswordRequiredException, TypeError):
        record.locked.append(str(path))
        return
    except Exception as error:  # noqa: BLE001 - the backend has errors of its own for kinds it does not know
        record.unusable.append(f"{path}: {error or type(error).__name__}")
        return
    own, key.public_blob = key.public_blob, None
    for certificate in certificates:
        if _belongs(certificate, key):
            twin = PKey.from_path(path)
            twin.load_certificate(str(certificate))
            yield f"{path} with {certificate}", twin
    if own is not None:
        twin = PKey.from_path(path)
        yield f"{path}-cert.pub", twin
    yield str(path), key


def _belongs(certificate: Path, key: PKey) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        SSHCertificate,
        load_ssh_public_identity,
    )

    try:
        found = load_ssh_public_identity(certificate.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        return False
    if not isinstance(found, SSHCertificate):
        return False
    line = found.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(line.split()[1]) == key.asbytes()


def _public_blob(path: Path, suffix: str = ".pub") -> bytes:
    """Returns what the public file beside a key holds; empty if there is none."""
    try:
        return base64.b64decode(path.with_name(path.name + suffix).read_text().split()[1], validate=True)
    except (OSError, ValueError, IndexError):
        return b""


def _shown_blob(key: Any) -> bytes:
    """What the host is shown of a key: its certificate, if it has one."""
    certificate = key.public_blob
    return bytes(certificate.key_blob if certificate else key.asbytes())


# --------------------------------------------------------------------------- the agent


@contextmanager
def _agent_keys(endpoint: Endpoint, record: LoginError) -> Iterator[dict[bytes, Any]]:
    """Opens the agent in effect, for its keys by what the host is shown of them."""
    from paramiko.agent import AgentSSH
    from paramiko.ssh_exception import SSHException

    place = None if endpoint.only_identity else _agent_socket(endpoint.identity_agent)
    if place is None:
        yield {}
        return

    class Agent(AgentSSH):
        def open(self, link: socket.socket) -> None:
            self._connect(link)  # type: ignore[attr-defined]  # the stubs lack it

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        agent = Agent()
        keys: dict[bytes, Any] = {}
        try:
            link.settimeout(_AGENT_S)
            link.connect(place)
            agent.open(link)
            keys = {bytes(key.blob): _Held(key, record) for key in agent.get_keys()}
            link.settimeout(endpoint.connect_timeout)  # a signature may wait for a person's yes
        except Exception as error:  # noqa: BLE001 - whatever an agent answers, the files are still to be tried
            if endpoint.identity_agent is not None or isinstance(error, (TimeoutError, SSHException)):
                record.unusable.append(f"the agent at {place}: {error or type(error).__name__}")
        yield keys


class _Held:
    """An agent's key. paramiko signs in the thread that reads, where a refusal would end the session."""

    public_blob = None

    def __init__(self, key: Any, record: LoginError) -> None:
        self._key, self._record = key, record
        self.comment = key.comment or base64.b64encode(key.blob[-12:]).decode()

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        """Signs; a signature that the agent does not give is an empty one, which the host refuses."""
        try:
            return bytes(self._key.sign_ssh_data(data, algorithm))
        except Exception as error:  # noqa: BLE001 - see the class
            self._record.unusable.append(f"the agent's {self.comment}: {error or type(error).__name__}")
            return b""

    def get_name(self) -> str:
        """The key's kind."""
        return str(self._key.get_name())

    def asbytes(self) -> bytes:
        """What the host is shown."""
        return bytes(self._key.asbytes())


def _agent_socket(configured: str | None) -> str | None:
    if configured is None or configured == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if configured.lower() == "none":
        return None
    if configured.startswith("$"):
        return os.environ.get(configured[1:].strip("{}")) or None
    return str(Path(configured).expanduser())
